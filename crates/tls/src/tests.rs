//! Tests of TLS sockets, with both ends of a connection in one process: data, key updates, closed and damaged streams.
#![allow(clippy::disallowed_methods, reason = "tests make their own directory")]

use std::rc::Rc;
use std::sync::Arc;

use block::env::{Address, Socket};
use block::{BUF_MAX_BYTES, Env, Memory, Secret};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SignatureAlgorithm};
use runtime::{Config, Core, Engine};
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, cipher_suite};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use crate::handshake::secure_for_tests;
use crate::identity::provider;
use crate::record::{Content, NO_RENEGOTIATION, UNEXPECTED_MESSAGE, Version};
use crate::socket::TlsSocket;
use crate::{Authorities, CONNECTION_BYTES, Client, Identity, Pem, PemKey, Server};

/// The versions of TLS, for tests of both.
const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

fn pem(text: String) -> Pem {
    Pem { path: "test.pem".to_owned(), bytes: text.into_bytes() }
}

/// The server's side of TLS, and the authority that has signed its certificate.
struct Served {
    server: Server,
    authorities: Authorities,
}

impl Served {
    /// Makes a server. The key of its certificate is for this algorithm.
    fn new(algorithm: &'static SignatureAlgorithm) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate_for(algorithm).unwrap();
        let cert = CertificateParams::new(vec!["host".to_owned()]).unwrap();
        let cert = cert.signed_by(&key, &issuer).unwrap();
        let bytes = Secret::copy_of(key.serialize_pem().as_bytes()).unwrap();
        let key = PemKey { path: "key.pem".to_owned(), bytes };
        let identity = Identity::new(&pem(cert.pem()), &key).unwrap();
        let authorities = Authorities::new(&pem(ca.pem())).unwrap();
        Self { server: Server::new(&identity, None, None).unwrap(), authorities }
    }

    /// Makes a client with one cipher; with all ciphers if there is none.
    fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        cipher: Option<SupportedCipherSuite>,
    ) -> Client {
        let mut offers = (*provider()).clone();
        offers.cipher_suites.retain(|suite| cipher.is_none_or(|cipher| *suite == cipher));
        Client::with(Arc::new(offers), versions, &self.authorities, None, "host").unwrap()
    }
}

/// The two sockets of a TLS connection, and the plain socket below the client's.
struct Pair {
    server: Rc<TlsSocket>,
    client: Rc<TlsSocket>,
    below: Rc<dyn Socket>,
}

impl Pair {
    /// Makes a TLS connection of this version.
    async fn new(env: &Env, version: &'static SupportedProtocolVersion) -> Self {
        let served = Served::new(&rcgen::PKCS_ECDSA_P256_SHA256);
        let client = served.client(&[version], None);
        Self::between(env, served.server, &client, Memory::Free).await
    }

    /// Makes a TLS connection of version 1.2 with AES-GCM.
    async fn aes_gcm_1_2(env: &Env) -> Self {
        let served = Served::new(&rcgen::PKCS_ECDSA_P256_SHA256);
        let cipher = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
        let client = served.client(&[&TLS12], Some(cipher));
        Self::between(env, served.server, &client, Memory::Free).await
    }

    /// Makes a TLS connection with buffers from `memory`.
    async fn between(env: &Env, server: Server, client: &Client, memory: Memory) -> Self {
        let (accepted, below) = plain(env).await;
        let done = Rc::new(std::cell::RefCell::new(None));
        let (there, other) = (done.clone(), env.clone());
        env.spawn("the server's handshake", async move {
            let secured = secure_for_tests(&other, accepted, Some(&server), None, memory).await;
            *there.borrow_mut() = Some(secured);
        });
        let ours = secure_for_tests(env, below.clone(), None, Some(client), memory).await.unwrap();
        while done.borrow().is_none() {
            env.give_way().await;
        }
        let theirs = done.take().unwrap().unwrap();
        Self { server: Rc::new(theirs), client: Rc::new(ours), below }
    }
}

/// Returns both ends of a connection without TLS.
async fn plain(env: &Env) -> (Rc<dyn Socket>, Rc<dyn Socket>) {
    let name = format!("cairn-tls-{}-{}", std::process::id(), env.random("test"));
    let at = Address::Unix(std::env::temp_dir().join(name));
    let listener = env.listen(&at).unwrap();
    let below = env.connect(&at).await.unwrap();
    (listener.accept().await.unwrap(), below)
}

async fn send_raw(env: &Env, socket: &dyn Socket, bytes: &[u8]) {
    let buf = env.buf(bytes.len()).unwrap();
    buf.write().copy_from_slice(bytes);
    assert_eq!(socket.send(vec![buf]).await.result.unwrap(), bytes.len());
}

/// Returns the error of the next receive.
async fn receive_error(env: &Env, socket: &dyn Socket) -> String {
    socket.recv(env.buf(100).unwrap()).await.result.unwrap_err().to_string()
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

/// Sends `bytes` in parts of `parts` bytes, and receives the echo of the server in pieces of `pieces` bytes.
async fn exchange(env: &Env, pair: &Pair, bytes: &[u8], parts: usize, pieces: usize) {
    let (there, back) = (pair.server.clone(), bytes.to_vec());
    let other = env.clone();
    env.spawn("an echo", async move {
        let got = receive(&other, &*there, back.len(), pieces).await;
        assert!(got == back);
        send_all(&other, &*there, &got, parts).await;
    });
    send_all(env, &*pair.client, bytes, parts).await;
    let got = receive(env, &*pair.client, bytes.len(), pieces).await;
    assert!(got == bytes, "{parts} {pieces}");
}

fn some_bytes(len: u32) -> Vec<u8> {
    (0..len).map(|n| ((n * 31) >> 3) as u8).collect()
}

/// One side sends data in parts of many lengths, and the other side receives in pieces of other lengths, while both
/// sides update their keys.
#[test]
fn tls_socket_delivers_data_unchanged_across_key_updates() {
    run(|env| async move {
        let pair = Pair::new(&env, &TLS13).await;
        pair.server.renew_after(40_000);
        pair.client.renew_after(30_000);
        let bytes = some_bytes(700_000);
        for (parts, pieces) in
            [(1 << 20, 1 << 20), (16_384, 100_000), (16_400, 16_384), (4_112, 777)]
        {
            exchange(&env, &pair, &bytes, parts, pieces).await;
        }
    });
}

#[test]
fn tls_socket_delivers_data_unchanged_with_every_cipher_of_tls_1_3_and_tls_1_2() {
    run(|env| async move {
        assert_eq!(ALL_CIPHER_SUITES.len(), 9);
        for cipher in ALL_CIPHER_SUITES {
            let is_rsa = format!("{:?}", cipher.suite()).contains("_RSA_");
            let algorithm =
                if is_rsa { &rcgen::PKCS_RSA_SHA256 } else { &rcgen::PKCS_ECDSA_P256_SHA256 };
            let served = Served::new(algorithm);
            let client = served.client(&BOTH, Some(*cipher));
            let pair = Pair::between(&env, served.server, &client, Memory::Free).await;
            let version = if cipher.tls13().is_some() { Version::Tls13 } else { Version::Tls12 };
            assert_eq!((pair.server.version(), pair.client.version()), (version, version));
            let bytes = some_bytes(300_000);
            for (parts, pieces) in [(1 << 20, 1 << 20), (16_384, 100_000), (4_112, 777)] {
                exchange(&env, &pair, &bytes, parts, pieces).await;
            }
            pair.client.shutdown();
            let end = pair.server.recv(env.buf(100).unwrap()).await;
            assert_eq!(end.result.unwrap(), 0, "{cipher:?}");
        }
    });
}

#[test]
fn tls_handshake_prefers_tls_1_3() {
    run(|env| async move {
        let served = Served::new(&rcgen::PKCS_ECDSA_P256_SHA256);
        let client = Client::new(&served.authorities, None, "host").unwrap();
        let pair = Pair::between(&env, served.server, &client, Memory::Free).await;
        assert_eq!(
            (pair.server.version(), pair.client.version()),
            (Version::Tls13, Version::Tls13)
        );
    });
}

/// TLS 1.2 cannot renew keys. The sender's own close is the last record that it seals.
#[test]
fn tls_1_2_connection_with_aes_gcm_ends_when_its_keys_are_worn() {
    run(|env| async move {
        let Pair { server, client, .. } = Pair::aes_gcm_1_2(&env).await;
        client.renew_after(300_000);
        send_all(&env, &*client, &[1; 200_000], 200_000).await;
        receive(&env, &*server, 200_000, 200_000).await;
        send_all(&env, &*client, &[1; 100_000], 100_000).await;
        receive(&env, &*server, 100_000, 100_000).await;
        for _ in 0..2 {
            let refused = client.send(vec![env.buf(10).unwrap()]).await.result.unwrap_err();
            let words = "have protected 300000 bytes, the limit of AES-GCM";
            assert!(refused.to_string().contains(words), "{refused}");
        }
        client.shutdown();
        assert_eq!(server.recv(env.buf(100).unwrap()).await.result.unwrap(), 0);
    });
}

/// Server and client agree on ChaCha20-Poly1305 in TLS 1.2: its keys have no such limit.
#[test]
fn tls_1_2_connection_prefers_cipher_without_limit_of_its_keys() {
    run(|env| async move {
        let pair = Pair::new(&env, &TLS12).await;
        assert_eq!(pair.client.version(), Version::Tls12);
        pair.client.renew_after(0);
        pair.server.renew_after(0);
        exchange(&env, &pair, &some_bytes(300_000), 20_000, 20_000).await;
    });
}

/// After an orderly close, a receive returns zero bytes. After bytes that are not a TLS record, every receive fails.
#[test]
fn tls_socket_distinguishes_clean_close_from_garbage() {
    run(|env| async move {
        for version in BOTH {
            let Pair { server, client, .. } = Pair::new(&env, version).await;
            client.shutdown();
            let end = server.recv(env.buf(100).unwrap()).await;
            assert_eq!(end.result.unwrap(), 0);

            let Pair { server, client: _client, below } = Pair::new(&env, version).await;
            send_raw(&env, &*below, &[0x17; 100]).await;
            for _ in 0..2 {
                let told = receive_error(&env, &*server).await;
                assert!(told.contains("not an encrypted record"), "{told}");
            }

            let Pair { server, client: _client, below } = Pair::new(&env, version).await;
            send_raw(&env, &*below, &[23, 3, 3, 0, 40, 1, 2]).await;
            below.shutdown();
            let told = receive_error(&env, &*server).await;
            assert!(told.contains("closed the connection inside a TLS record"), "{told}");
        }
    });
}

/// Every case sends a good record first, so that only the second one is at fault.
#[test]
fn tls_socket_rejects_changed_repeated_omitted_and_too_long_records() {
    type Damage = fn(&TlsSocket) -> Vec<u8>;
    let damages: [(Damage, &str); 6] = [
        (
            |client| {
                let mut record = client.sealed(b"data", Content::Data);
                *record.last_mut().unwrap() ^= 1;
                record
            },
            "fails authentication",
        ),
        (
            |client| {
                let mut record = client.sealed(b"data", Content::Data);
                record[4] -= 1;
                record.pop();
                record
            },
            "fails authentication",
        ),
        (
            |client| {
                let record = client.sealed(b"", Content::Data);
                [record.clone(), record].concat()
            },
            "fails authentication",
        ),
        (
            |client| {
                client.sealed(b"omitted", Content::Data);
                client.sealed(b"data", Content::Data)
            },
            "fails authentication",
        ),
        (|_| vec![23, 3, 3, 0x42, 0], "longer than the protocol allows"),
        (|_| vec![23, 3, 3, 0, 3], "too short"),
    ];
    run(|env| async move {
        for (n, (damage, words)) in damages.iter().enumerate() {
            let pairs = [
                Pair::new(&env, &TLS13).await,
                Pair::new(&env, &TLS12).await,
                Pair::aes_gcm_1_2(&env).await,
            ];
            for Pair { server, client, below } in pairs {
                send_raw(&env, &*below, &client.sealed(b"hello", Content::Data)).await;
                assert_eq!(receive(&env, &*server, 5, 5).await, b"hello");
                send_raw(&env, &*below, &damage(&client)).await;
                let told = receive_error(&env, &*server).await;
                assert!(told.contains(words), "case {n}: {told}");
            }
        }
    });
}

/// In TLS 1.2 a client asks with a new hello, and a server with a request for one. Neither exists in TLS 1.3.
#[test]
fn tls_1_2_request_for_renegotiation_ends_connection_with_its_alert() {
    run(|env| async move {
        for version in BOTH {
            let is_old = version.version == rustls::ProtocolVersion::TLSv1_2;
            let (words, alert) = if is_old {
                ("a request for renegotiation", NO_RENEGOTIATION)
            } else {
                ("an unexpected handshake message", UNEXPECTED_MESSAGE)
            };
            let Pair { server, client, below } = Pair::new(&env, version).await;
            let hello = client.sealed(&[1, 0, 0, 2, 3, 3], Content::Handshake);
            send_raw(&env, &*below, &hello).await;
            let told = receive_error(&env, &*server).await;
            assert!(told.contains(words), "{told}");
            assert_eq!(server.last_word(), alert);
            server.shutdown();
            // The alert is a warning, and the end of the stream follows.
            let end = client.recv(env.buf(100).unwrap()).await.result;
            assert_eq!((end.ok(), client.idle()), if is_old { (Some(0), 1) } else { (None, 0) });

            let Pair { server, client, .. } = Pair::new(&env, version).await;
            let request = server.sealed(&[0, 0, 0, 0], Content::Handshake);
            send_raw(&env, &*server.lower(), &request).await;
            let told = receive_error(&env, &*client).await;
            assert!(told.contains(words), "{told}");
            assert_eq!(client.last_word(), alert);
        }
    });
}

#[test]
fn tls_1_2_connection_survives_warnings_up_to_limit() {
    run(|env| async move {
        let Pair { server, client, below } = Pair::new(&env, &TLS12).await;
        // Level 1, and the number of a refused name of a host.
        let warning = || client.sealed(&[1, 112], Content::Alert);
        for _ in 0..2 {
            for _ in 0..32 {
                send_raw(&env, &*below, &warning()).await;
            }
            send_raw(&env, &*below, &client.sealed(b"hello", Content::Data)).await;
            assert_eq!(receive(&env, &*server, 5, 5).await, b"hello");
        }
        for _ in 0..33 {
            send_raw(&env, &*below, &warning()).await;
        }
        let told = receive_error(&env, &*server).await;
        assert!(told.contains("more than 32 key updates or warnings"), "{told}");

        let Pair { server, client, below } = Pair::new(&env, &TLS12).await;
        send_raw(&env, &*below, &client.sealed(&[2, 49], Content::Alert)).await;
        let told = receive_error(&env, &*server).await;
        assert!(told.contains("denied access"), "{told}");
    });
}

/// Returns the record with a hello of a client that knows TLS 1.2 only, with these ciphers, and the extension for the
/// extended master secret (23) if `bound`.
fn hello_1_2(ciphers: &[u16], bound: bool) -> Vec<u8> {
    fn sized(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }
    let extension = |kind: u16, data: &[u8]| [&kind.to_be_bytes()[..], &sized(data)].concat();
    let ciphers: Vec<u8> = ciphers.iter().flat_map(|cipher| cipher.to_be_bytes()).collect();
    let mut extensions = [
        extension(10, &sized(&[0, 23])),
        extension(11, &[1, 0]),
        extension(13, &sized(&[4, 3, 8, 4])),
    ]
    .concat();
    if bound {
        extensions.extend(extension(23, &[]));
    }
    let body =
        [&[3, 3][..], &[7; 32], &[0], &sized(&ciphers), &[1, 0], &sized(&extensions)].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

#[test]
fn tls_1_2_handshake_refuses_old_ciphers_and_keys_that_are_not_bound_to_it() {
    // The alert's level is fatal, and its reason is that no parameters are acceptable.
    const FAILURE: &[u8] = &[21, 3, 3, 0, 2, 2, 40];
    // The start of the record with the server's hello.
    const HELLO: &[u8] = &[22, 3, 3];
    let cases: [(&[u16], bool, &[u8], &str); 3] = [
        // Ciphers with CBC, and of RSA without ECDHE.
        (
            &[0xc009, 0xc00a, 0xc013, 0xc014, 0x2f, 0x9c],
            true,
            FAILURE,
            "the peer offers no supported cipher; Cairn supports TLS 1.3, and TLS 1.2 with ECDHE",
        ),
        (
            &[0xc02b, 0xcca9],
            false,
            FAILURE,
            "the peer does not support the extended master secret of TLS 1.2; Cairn supports",
        ),
        (&[0xc02b, 0xcca9], true, HELLO, "the peer closed the connection"),
    ];
    run(|env| async move {
        for (ciphers, bound, answer, words) in cases {
            let Served { server, .. } = Served::new(&rcgen::PKCS_ECDSA_P256_SHA256);
            let (accepted, below) = plain(&env).await;
            let refused = Rc::new(std::cell::RefCell::new(None));
            let (there, other) = (refused.clone(), env.clone());
            env.spawn("the server's handshake", async move {
                *there.borrow_mut() = server.accept(&other, accepted).await.err();
            });
            send_raw(&env, &*below, &hello_1_2(ciphers, bound)).await;
            assert_eq!(receive(&env, &*below, answer.len(), answer.len()).await, answer);
            // Some bytes of the server are left; then the end reaches it as an end of the stream.
            let _ = below.recv(env.buf(4096).unwrap()).await;
            below.shutdown();
            while refused.borrow().is_none() {
                env.give_way().await;
            }
            let told = refused.take().unwrap().to_string();
            assert!(told.contains(words), "{told}");
        }
    });
}

#[test]
fn tls_socket_fails_after_many_key_updates_without_data() {
    run(|env| async move {
        let Pair { server, client, below: _below } = Pair::new(&env, &TLS13).await;
        for _ in 0..3 {
            client.send_updates(32).await.result.unwrap();
            send_all(&env, &*client, b"hello", 5).await;
            assert_eq!(receive(&env, &*server, 5, 5).await, b"hello");
        }
        client.send_updates(33).await.result.unwrap();
        let ended = receive_error(&env, &*server).await;
        assert!(ended.contains("more than 32 key updates"), "{ended}");
    });
}

/// An NBD disk must be able to reconnect over TLS while its waiting requests hold all free buffers of the pool.
#[test]
fn tls_handshake_succeeds_with_reserved_buffers_only() {
    for version in BOTH {
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
            let served = Served::new(&rcgen::PKCS_ECDSA_P256_SHA256);
            let client = served.client(&[version], None);
            let pair = Pair::between(&env, served.server, &client, Memory::Reserved).await;
            drop(taken);
            send_all(&env, &*pair.client, b"hello", 5).await;
            assert_eq!(receive(&env, &*pair.server, 5, 5).await, b"hello");
            drop(pair);
            pool.unreserve(2 * CONNECTION_BYTES);
        });
    }
}
