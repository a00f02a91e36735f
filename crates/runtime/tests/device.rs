//! Test of I/O on a block device, with a loop device.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::process::Command;

use block::ErrorKind;
use block::env::{CacheMode, DiskIo, Open};
use common::{Place, byte_at, each_core, filled, range, write};

struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
#[ignore = "needs root and a free loop device"]
fn block_device_reads_back_writes_zeroes_and_discards() {
    each_core(|core| {
        let place = Place::on_disk("loop");
        std::fs::File::create_new(place.path()).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(place.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let device = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        let open = Open {
            path: device.0.clone().into(),
            device: true,
            read_only: false,
            create: None,
            odd_size: false,
            cache: CacheMode::Direct,
        };
        let env = core.env();
        core.block_on(async {
            let disk = env.open(&open).unwrap();
            assert_eq!((disk.facts().size, disk.facts().block_size), (16 << 20, 512));
            let error = env.open(&open).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InUse);
            let me = format!("process {}", std::process::id());
            assert!(error.to_string().contains(&me), "{error}");
            write(&*disk, 0, filled(&env, 1 << 20, 3), true).await;
            for (at, unmap) in [(0, false), (65536, true)] {
                let range = range(at, 65536);
                disk.start(DiskIo::Zero { range, unmap }).await.result.unwrap();
            }
            assert!(disk.facts().discard && disk.facts().discard_zeroes);
            disk.start(DiskIo::Discard { range: range(131_072, 65536) }).await.result.unwrap();
            disk.start(DiskIo::Flush).await.result.unwrap();
            assert_eq!(byte_at(&env, &*disk, 0, 196_608).await, 0);
            assert_eq!(byte_at(&env, &*disk, 196_608, 65536).await, 3);
            let error = disk.extents(range(0, 4096), 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        });
    });
}
