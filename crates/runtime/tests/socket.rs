//! Tests of sockets and listeners: transferred bytes, closed peers, and dropped receives and accepts.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::Duration;

use block::env::{Address, Listener, Socket};
use block::{Env, ErrorKind};
use common::{Place, each_core, filled};

async fn send_all(socket: &dyn Socket, part: block::Buf) {
    let mut left = part;
    loop {
        let sent = socket.send(vec![left.clone()]).await.result.unwrap();
        if sent == left.len() {
            return;
        }
        left = left.slice(sent..left.len());
    }
}

async fn serve_echo(env: Env, listener: Rc<dyn Listener>) {
    let socket = listener.accept().await.unwrap();
    loop {
        let outcome = socket.recv(env.buf(65536).unwrap()).await;
        match outcome.result.unwrap() {
            0 => return,
            count => send_all(&*socket, outcome.buf.unwrap().slice(0..count)).await,
        }
    }
}

async fn echo(env: &Env, at: &Address) {
    let listener = env.listen(at).unwrap();
    let at = listener.address();
    env.spawn("echo", serve_echo(env.clone(), listener));
    let socket = env.connect(&at).await.unwrap();
    for round in 0..100u8 {
        let len = 1 + usize::from(round) * 997;
        send_all(&*socket, filled(env, len, round)).await;
        let mut got = 0;
        while got < len {
            let outcome = socket.recv(env.buf(65536).unwrap()).await;
            let count = outcome.result.unwrap();
            assert!(count > 0, "the echo ended early");
            let buf = outcome.buf.unwrap();
            assert!(buf.read()[..count].iter().all(|&byte| byte == round));
            got += count;
        }
        assert_eq!(got, len);
    }
    socket.shutdown();
    assert_eq!(socket.recv(env.buf(1).unwrap()).await.result.unwrap(), 0);
}

#[test]
fn unix_socket_delivers_bytes_in_both_directions() {
    each_core(|core| {
        let place = Place::on_disk("echo.sock");
        core.block_on(echo(&core.env(), &Address::Unix(place.path())));
    });
}

#[test]
fn socket_reports_closed_peer_before_last_bytes_are_received() {
    each_core(|core| {
        let (env, place) = (core.env(), Place::on_disk("gone.sock"));
        for at in [Address::Unix(place.path()), Address::Tcp("127.0.0.1".into(), 0)] {
            core.block_on(async {
                let listener = env.listen(&at).unwrap();
                let peer = env.connect(&listener.address()).await.unwrap();
                let socket = listener.accept().await.unwrap();
                let bytes = env.buf(512).unwrap();
                peer.send(vec![bytes.slice(0..5)]).await.result.unwrap();
                assert!(!socket.is_gone());
                drop(peer);
                assert!(socket.is_gone(), "{at:?}");
                let outcome = socket.recv(env.buf(64).unwrap()).await;
                assert_eq!(outcome.result.unwrap(), 5);
            });
        }
    });
}

#[test]
fn socket_reports_half_closed_peer_as_gone() {
    each_core(|core| {
        let (env, place) = (core.env(), Place::on_disk("half.sock"));
        core.block_on(async {
            let listener = env.listen(&Address::Unix(place.path())).unwrap();
            let peer = std::os::unix::net::UnixStream::connect(place.path()).unwrap();
            let socket = listener.accept().await.unwrap();
            assert!(!socket.is_gone());
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(socket.is_gone());
        });
    });
}

#[test]
fn tcp_socket_delivers_bytes_in_both_directions() {
    each_core(|core| {
        core.block_on(echo(&core.env(), &Address::Tcp("127.0.0.1".into(), 0)));
        core.block_on(echo(&core.env(), &Address::Tcp("::1".into(), 0)));
        core.block_on(echo(&core.env(), &Address::Tcp("localhost".into(), 0)));
    });
}

#[test]
fn listener_removes_private_socket_file_when_closed() {
    each_core(|core| {
        let place = Place::on_disk("life.sock");
        let env = core.env();
        let at = Address::Unix(place.path());
        core.block_on(async {
            let listener = env.listen(&at).unwrap();
            let mode = place.path().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(env.listen(&at).err().unwrap().kind(), ErrorKind::InUse);
            // The probe for a listener is a connection, too.
            drop(listener.accept().await.unwrap());
            let waiting = listener.accept();
            let (closer, closing) = (listener.clone(), env.clone());
            env.spawn("close", async move {
                closing.sleep(Duration::from_millis(20)).await;
                closer.close();
            });
            assert_eq!(waiting.await.err().unwrap().kind(), ErrorKind::Stopped);
            assert_eq!(listener.accept().await.err().unwrap().kind(), ErrorKind::Stopped);
            assert!(!place.path().exists());
            // A killed process leaves a socket file without a listener.
            drop(std::os::unix::net::UnixListener::bind(place.path()).unwrap());
            assert!(place.path().exists());
            drop(env.listen(&at).unwrap());
            std::fs::write(place.path(), "not a socket").unwrap();
            assert_eq!(env.listen(&at).err().unwrap().kind(), ErrorKind::InUse);
        });
    });
}

#[test]
fn listener_keeps_connection_when_accept_is_abandoned() {
    each_core(|core| {
        let place = Place::on_disk("accept.sock");
        let env = core.env();
        let at = Address::Unix(place.path());
        core.block_on(async {
            let listener = env.listen(&at).unwrap();
            let none = env.within(Duration::from_millis(5), listener.accept()).await;
            assert!(none.is_none());
            let client = env.connect(&at).await.unwrap();
            let socket = listener.accept().await.unwrap();
            assert!(socket.peer().contains(&std::process::id().to_string()));
            send_all(&*client, filled(&env, 1, 9)).await;
            assert_eq!(socket.recv(env.buf(1).unwrap()).await.result.unwrap(), 1);
        });
    });
}

#[test]
fn socket_keeps_buffer_of_abandoned_receive_until_completion() {
    each_core(|core| {
        let place = Place::on_disk("abandon.sock");
        let env = core.env();
        let at = Address::Unix(place.path());
        core.block_on(async {
            let listener = env.listen(&at).unwrap();
            let client = env.connect(&at).await.unwrap();
            let socket = listener.accept().await.unwrap();
            let given_up = socket.recv(env.buf(4096).unwrap());
            assert!(env.within(Duration::from_millis(5), given_up).await.is_none());
            assert_eq!(env.pool().used_bytes(), 4096, "the kernel may still write there");
            send_all(&*client, filled(&env, 16, 3)).await;
            while env.pool().used_bytes() > 0 {
                env.sleep(Duration::from_millis(1)).await;
            }
            // The bytes went with the abandoned receive; the next receive gets the following bytes.
            send_all(&*client, filled(&env, 8, 4)).await;
            let outcome = socket.recv(env.buf(4096).unwrap()).await;
            assert_eq!(outcome.result.unwrap(), 8);
            assert_eq!(outcome.buf.unwrap().read()[..8], [4; 8]);
        });
    });
}

#[test]
fn listener_accept_waits_while_process_has_no_free_descriptors() {
    let ran = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 100 && exec \"$0\""])
        .arg(common::helper("few_descriptors"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("accepted"));
}
