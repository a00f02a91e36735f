//! Test of the FUSE channel between a mount in the kernel and a server.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

use std::fs;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use block::ErrorKind;
use runtime::{Config, Core};

/// The longest time that the test waits for an event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn fuse_channel_close_fails_waiting_requests_of_mount() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: only root may mount");
        return;
    }
    let at = std::env::temp_dir().join(format!("cairn-channel-{}", std::process::id()));
    fs::create_dir(&at).unwrap();
    let core = Core::new(Config::default()).unwrap();
    let env = core.env();
    let channel = env.mount(&at).unwrap();
    let (tell, told) = mpsc::channel();
    let below = at.join("volume");
    // The mount was never initialized: every call into it waits.
    let asks = std::thread::spawn(move || tell.send(fs::metadata(below).is_err()));
    let (head, rest) = (env.buf(4096).unwrap(), env.buf(1 << 20).unwrap());
    assert!(channel.recv(&head, &rest).unwrap().is_some(), "the kernel greets");
    channel.close().unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "it got an error");
    asks.join().unwrap().unwrap();
    let kind = |error: block::Error| error.kind();
    assert_eq!(channel.recv(&head, &rest).map_err(kind), Err(ErrorKind::Stopped));
    assert_eq!(channel.send(&[0; 16], None).map_err(kind), Err(ErrorKind::Stopped));
    let ready = core.block_on(channel.ready());
    assert_eq!(ready.result.map_err(kind), Err(ErrorKind::Stopped));
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    fs::remove_dir(&at).unwrap();
    core.shutdown(PATIENCE).unwrap();
}
