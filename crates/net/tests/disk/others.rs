//! Tests of an NBD disk with servers of other projects: the disk uses their features, and survives their restarts.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use block::Op;

use crate::volume::{Volume, range};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("cairn-others-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::File::create(dir.join("disk")).unwrap().set_len(4 << 20).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running NBD server of another project, which is killed when this value is dropped.
struct Server(Child);

impl Server {
    /// Starts the server with the command line `line`, and waits until the server accepts connections: until the file
    /// `sign`, its pid file or its socket, exists, and the socket listens. Returns `None` if the program is not installed.
    fn start(line: &str, sign: &str) -> Option<Self> {
        let _ = std::fs::remove_file(sign);
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next()?);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().ok()?;
        let begun = Instant::now();
        let is_up =
            |found: Metadata| !found.file_type().is_socket() || UnixStream::connect(sign).is_ok();
        while !std::fs::metadata(sign).is_ok_and(is_up) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{line}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Self(child))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the command lines of the NBD servers under test.
fn lines(dir: &Dir) -> [String; 3] {
    let (disk, socket) = (dir.path("disk"), dir.path("sock"));
    [
        format!("nbdkit --foreground --newstyle --unix {socket} --exportname= file {disk}"),
        format!(
            "qemu-nbd --persistent --shared=8 --format=raw --discard=unmap --socket={socket} {disk}"
        ),
        format!(
            "qemu-storage-daemon --blockdev file,node-name=d,filename={disk},discard=unmap \
             --nbd-server addr.type=unix,addr.path={socket},max-connections=8 \
             --export nbd,id=e,node-name=d,name=,writable=on"
        ),
    ]
}

#[test]
fn disk_survives_kill_of_nbdkit_and_qemu_under_load() {
    for n in 0..3 {
        let dir = Dir::new(&n.to_string());
        let (line, socket) = (&lines(&dir)[n], dir.path("sock"));
        let Some(mut server) = Server::start(line, &socket) else {
            println!("passed over: {line}");
            continue;
        };
        let volume = Volume::new(&format!("nbd+unix:///?socket={socket}"), &[]);
        assert_eq!(volume.client.info().size, 4 << 20, "{line}");
        volume.write(0, 64 << 10, 1, false).unwrap();
        volume.write(64 << 10, 4096, 2, true).unwrap();
        volume.zero(4096, 4096).unwrap();
        volume.flush().unwrap();
        let status = Op::Status { range: range(0, 4 << 20), extents: Vec::new() };
        let answer = volume.core.block_on(volume.client.send(status));
        answer.result.unwrap();
        let Op::Status { extents, .. } = answer.op else { panic!("it was a status") };
        assert!(
            extents.len() > 1 && extents.last().unwrap().state.is_zero(),
            "{line}: {extents:?}"
        );
        for round in 0..3_u8 {
            let mut calls = Vec::new();
            for at in 0..64 {
                let data = volume.filled(4096, round + 3);
                calls.push(volume.client.send(Op::write(range(at << 13, 4096), data)));
            }
            volume.pass(Duration::from_micros(300));
            drop(server);
            server = Server::start(line, &socket).unwrap();
            for call in calls {
                volume.core.block_on(call).result.unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            for at in 0..64 {
                assert!(volume.read(at << 13, 4096).unwrap() == [round + 3; 4096], "{line}");
            }
            volume.flush().unwrap();
        }
        assert_eq!(volume.counter("reconnects"), 3, "{line}");
    }
}

#[test]
fn disk_over_tcp_survives_kill_of_server() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = Dir::new("tcp");
    let disk = dir.path("disk");
    // The pid file replaces the socket: it exists once the server listens.
    let pid = dir.path("pid");
    let line =
        format!("nbdkit --foreground --pidfile {pid} --ipaddr 127.0.0.1 --port {port} file {disk}");
    let Some(server) = Server::start(&line, &pid) else {
        println!("passed over: {line}");
        return;
    };
    let volume = Volume::new(&format!("nbd://127.0.0.1:{port}/vol"), &[]);
    assert!(!volume.client.info().fenced, "a network may hold a write");
    volume.write(0, 4096, 1, false).unwrap();
    drop(server);
    let _server = Server::start(&line, &pid).unwrap();
    assert!(volume.read(0, 4096).unwrap() == [1; 4096]);
    volume.flush().unwrap();
    assert_eq!((volume.counter("reconnects"), volume.counter("replayed")), (1, 1));
}
