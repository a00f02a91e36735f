//! Tests of TLS sockets, with both ends of a connection in one process: data, key updates, closed and damaged streams.
#![allow(clippy::disallowed_methods, reason = "tests make their own directory")]

use std::rc::Rc;

use block::env::{Address, Socket};
use block::{BUF_MAX_BYTES, Env, Memory, Secret};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use runtime::{Config, Core, Engine};

use crate::handshake::secure_for_tests;
use crate::socket::TlsSocket;
use crate::{Authorities, CONNECTION_BYTES, Client, Identity, Pem, PemKey, Server};

fn pem(text: String) -> Pem {
    Pem { path: "test.pem".to_owned(), bytes: text.into_bytes() }
}

fn sides() -> (Server, Client) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["host".to_owned()]).unwrap();
    let cert = cert.signed_by(&key, &issuer).unwrap();
    let bytes = Secret::copy_of(key.serialize_pem().as_bytes()).unwrap();
    let key = PemKey { path: "key.pem".to_owned(), bytes };
    let identity = Identity::new(&pem(cert.pem()), &key).unwrap();
    let authorities = Authorities::new(&pem(ca.pem())).unwrap();
    let client = Client::new(&authorities, None, "host").unwrap();
    (Server::new(&identity, None, None).unwrap(), client)
}

/// Returns the server's and the client's socket of a TLS connection, and the plain socket below the client's.
async fn pair(env: &Env) -> (Rc<TlsSocket>, Rc<TlsSocket>, Rc<dyn Socket>) {
    pair_from(env, Memory::Free).await
}

/// Makes a TLS connection whose buffers come from `memory`. Returns the same sockets as [`pair`].
async fn pair_from(env: &Env, memory: Memory) -> (Rc<TlsSocket>, Rc<TlsSocket>, Rc<dyn Socket>) {
    let name = format!("cairn-tls-{}-{}", std::process::id(), env.random("test"));
    let at = Address::Unix(std::env::temp_dir().join(name));
    let listener = env.listen(&at).unwrap();
    let below = env.connect(&at).await.unwrap();
    let accepted = listener.accept().await.unwrap();
    let (server, client) = sides();
    let done = Rc::new(std::cell::RefCell::new(None));
    let (there, other) = (done.clone(), env.clone());
    env.spawn("the server's handshake", async move {
        let secured = secure_for_tests(&other, accepted, Some(&server), None, memory).await;
        *there.borrow_mut() = Some(secured);
    });
    let ours = secure_for_tests(env, below.clone(), None, Some(&client), memory).await.unwrap();
    while done.borrow().is_none() {
        env.give_way().await;
    }
    let theirs = done.take().unwrap().unwrap();
    (Rc::new(theirs), Rc::new(ours), below)
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let core = Core::new(Config { engine: Engine::Threads, ..Config::default() }).unwrap();
    let env = core.env();
    core.block_on(test(env));
}

async fn send_all(env: &Env, socket: &dyn Socket, bytes: &[u8], cut: usize) {
    let mut parts: Vec<_> = bytes
        .chunks(cut)
        .map(|chunk| {
            let buf = env.buf(chunk.len()).unwrap();
            buf.write().copy_from_slice(chunk);
            buf
        })
        .collect();
    let mut left = bytes.len();
    while left > 0 {
        let outcome = socket.send(std::mem::take(&mut parts)).await;
        let mut sent = outcome.result.unwrap();
        left -= sent;
        parts = outcome.parts;
        while let Some(part) = parts.first()
            && part.len() <= sent
        {
            sent -= part.len();
            parts.remove(0);
        }
        if sent > 0 {
            parts[0] = parts[0].slice(sent..parts[0].len());
        }
    }
}

async fn receive(env: &Env, socket: &dyn Socket, len: usize, cut: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let outcome = socket.recv(env.buf(cut.min(len - all.len())).unwrap()).await;
        let n = outcome.result.unwrap();
        assert!(n > 0, "an end after {} bytes", all.len());
        all.extend_from_slice(&outcome.buf.unwrap().read()[..n]);
    }
    all
}

/// One side sends data in parts of many lengths, and the other side receives in pieces of other lengths, while both
/// sides update their keys.
#[test]
fn tls_socket_delivers_data_unchanged_across_key_updates() {
    run(|env| async move {
        let (server, client, _) = pair(&env).await;
        server.renew_after(3);
        client.renew_after(2);
        let bytes: Vec<u8> = (0..700_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for (parts, pieces) in
            [(1 << 20, 1 << 20), (16_384, 100_000), (16_400, 16_384), (4_112, 777)]
        {
            let (there, back) = (server.clone(), bytes.clone());
            let other = env.clone();
            env.spawn("an echo", async move {
                let got = receive(&other, &*there, back.len(), pieces).await;
                assert!(got == back);
                send_all(&other, &*there, &got, parts).await;
            });
            send_all(&env, &*client, &bytes, parts).await;
            assert!(
                receive(&env, &*client, bytes.len(), pieces).await == bytes,
                "{parts} {pieces}"
            );
        }
    });
}

/// After an orderly close, a receive returns zero bytes. After bytes that are not a TLS record, every receive fails.
#[test]
fn tls_socket_distinguishes_clean_close_from_garbage() {
    run(|env| async move {
        let (server, client, _) = pair(&env).await;
        client.shutdown();
        let end = server.recv(env.buf(100).unwrap()).await;
        assert_eq!(end.result.unwrap(), 0);

        let (server, _client, below) = pair(&env).await;
        let garbage = env.buf(100).unwrap();
        garbage.write().fill(0x17);
        below.send(vec![garbage]).await.result.unwrap();
        for _ in 0..2 {
            let told = server.recv(env.buf(100).unwrap()).await.result.unwrap_err();
            assert!(told.to_string().contains("not an encrypted record"), "{told}");
        }

        let (server, _client, below) = pair(&env).await;
        let half = env.buf(7).unwrap();
        half.write().copy_from_slice(&[23, 3, 3, 0, 40, 1, 2]);
        below.send(vec![half]).await.result.unwrap();
        below.shutdown();
        let told = server.recv(env.buf(100).unwrap()).await.result.unwrap_err();
        assert!(told.to_string().contains("closed the connection inside a TLS record"), "{told}");
    });
}

#[test]
fn tls_socket_fails_after_many_key_updates_without_data() {
    run(|env| async move {
        let (server, client, _below) = pair(&env).await;
        for _ in 0..3 {
            client.send_updates(32).await.result.unwrap();
            send_all(&env, &*client, b"hello", 5).await;
            assert_eq!(receive(&env, &*server, 5, 5).await, b"hello");
        }
        client.send_updates(33).await.result.unwrap();
        let ended = server.recv(env.buf(100).unwrap()).await.result.unwrap_err();
        assert!(ended.to_string().contains("more than 32 key updates"), "{ended}");
    });
}

/// An NBD disk must be able to reconnect over TLS while its waiting requests hold all free buffers of the pool.
#[test]
fn tls_handshake_succeeds_with_reserved_buffers_only() {
    run(|env| async move {
        let pool = env.pool();
        assert!(pool.reserve(2 * CONNECTION_BYTES));
        let mut taken = Vec::new();
        let mut len = BUF_MAX_BYTES;
        while len > 0 {
            match pool.take(len) {
                Ok(buf) => taken.push(buf),
                Err(_) => len /= 2,
            }
        }
        let (server, client, _below) = pair_from(&env, Memory::Reserved).await;
        drop(taken);
        send_all(&env, &*client, b"hello", 5).await;
        assert_eq!(receive(&env, &*server, 5, 5).await, b"hello");
        drop((server, client));
        pool.unreserve(2 * CONNECTION_BYTES);
    });
}
