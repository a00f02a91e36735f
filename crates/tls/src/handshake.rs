//! Both sides of the TLS handshake, over a socket. rustls carries it out; this file receives and sends the bytes, and
//! finds the end of the handshake.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::env::Socket;
use block::{Buf, Env, Error, ErrorKind, Memory, Result, bail, error};
use rustls::client::{ClientConnectionData, Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::kernel::KernelConnection;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::{
    NoServerSessionStorage, ServerConnectionData, UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::unbuffered::{
    ConnectionState, EncodeError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, ConnectionTrafficSecrets, ExtractedSecrets, PeerIncompatible,
    ProtocolVersion, ServerConfig, SupportedProtocolVersion,
};

use crate::identity::{Authorities, Identity, Revoked, names, provider};
use crate::record::{HEADER_BYTES, Half, SEALED_MAX_BYTES, Version};
use crate::socket::{BATCH_BYTES, Begin, TlsSocket};

/// Length in bytes of the longest send during a handshake.
const CHUNK_BYTES: usize = 16 << 10;

/// Most bytes of the buffer pool that a TLS connection uses: a batch in each direction, and the sends of the
/// handshake.
pub const CONNECTION_BYTES: usize = 2 * BATCH_BYTES + CHUNK_BYTES;

/// The versions of TLS, the preferred one first. TLS 1.2 is for peers that know no other. Its handshake must be bound to
/// its keys (extended master secret, RFC 7627), or a third party could relay it between two connections.
const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// Whether this side is the client, and the part of the pool for its buffers.
type Side = (bool, Memory);

/// The server's side of TLS: its certificate, and the authorities that sign certificates of its clients.
pub struct Server {
    config: Arc<ServerConfig>,
    clock: Arc<Clock>,
}

/// The client's side of TLS: the authorities that it trusts, its own certificate, and the name of the server.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    clock: Arc<Clock>,
    name: ServerName<'static>,
}

/// A TLS connection after its handshake: a third party can neither read nor change its bytes.
pub struct Secured {
    /// The socket that sends and receives the plaintext of the connection.
    pub socket: Rc<dyn Socket>,
    /// Names in the peer's certificate; empty if the peer has sent no certificate.
    pub names: Vec<String>,
}

/// The wall clock of `Env` for rustls. It is set before each handshake, and does not run.
#[derive(Default)]
struct Clock(AtomicU64);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.load(Ordering::Relaxed))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

impl Clock {
    fn set(&self, env: &Env) {
        self.0.store(env.wall().as_secs(), Ordering::Relaxed);
    }
}

fn unusable(error: impl fmt::Display) -> Error {
    error!(Invalid, "TLS cannot be set up: {error}")
}

impl Server {
    /// Creates the server's side of TLS with the certificate `identity`. With `clients`, a client must have a
    /// certificate that one of these authorities has signed; without, the server requests no certificate. With lists
    /// of `revoked` certificates, every certificate of a client's chain below the authority must be in the scope of
    /// one list, and in none of the lists.
    ///
    /// # Errors
    /// `Invalid` for authorities that rustls cannot use.
    pub fn new(
        identity: &Identity,
        clients: Option<&Authorities>,
        revoked: Option<&Revoked>,
    ) -> Result<Self> {
        let clock = Arc::<Clock>::default();
        let builder = ServerConfig::builder_with_details(provider(), clock.clone());
        let builder = builder.with_protocol_versions(VERSIONS).map_err(unusable)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(Authorities(roots)) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
                let lists = revoked.cloned().unwrap_or_default().0;
                let verifier = verifier.with_crls(lists);
                builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
            }
        };
        let resolver = SingleCertAndKey::from(identity.certified.clone());
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        // No session is resumed: each connection shows its certificate, as it may have expired meanwhile.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ignore_client_order = true;
        config.require_ems = true;
        config.enable_secret_extraction = true;
        Ok(Self { config: Arc::new(config), clock })
    }

    /// Carries out the TLS handshake with a client that has connected to `socket`. The caller limits the time of the
    /// handshake.
    ///
    /// # Errors
    /// The error that the client has sent, or the fault of the client's certificate (`Denied`).
    pub async fn accept(&self, env: &Env, socket: Rc<dyn Socket>) -> Result<Secured> {
        self.clock.set(env);
        let connection = UnbufferedServerConnection::new(self.config.clone()).map_err(unusable)?;
        secure(env, socket, connection, (false, Memory::Free)).await
    }
}

impl Client {
    /// Creates the client's side of TLS. It trusts a server whose certificate is for `hostname`, a DNS name or an
    /// address, and signed by one of `authorities`.
    ///
    /// # Errors
    /// `Invalid` if `hostname` is no name of a host.
    pub fn new(
        authorities: &Authorities,
        identity: Option<&Identity>,
        hostname: &str,
    ) -> Result<Self> {
        Self::with(provider(), VERSIONS, authorities, identity, hostname)
    }

    /// Creates the client's side of TLS as [`Client::new`] does, with only some versions and ciphers.
    pub(crate) fn with(
        provider: Arc<CryptoProvider>,
        versions: &[&'static SupportedProtocolVersion],
        authorities: &Authorities,
        identity: Option<&Identity>,
        hostname: &str,
    ) -> Result<Self> {
        let clock = Arc::<Clock>::default();
        let name = ServerName::try_from(hostname.to_owned()).map_err(|_| {
            error!(Invalid, "{hostname:?} is not a valid host name for a certificate")
        })?;
        let builder = ClientConfig::builder_with_details(provider, clock.clone());
        let builder = builder.with_protocol_versions(versions).map_err(unusable)?;
        let builder = builder.with_root_certificates(authorities.0.clone());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
                identity.certified.clone(),
            ))),
        };
        config.resumption = Resumption::disabled();
        config.require_ems = true;
        config.enable_secret_extraction = true;
        Ok(Self { config: Arc::new(config), clock, name })
    }

    /// Carries out the TLS handshake with the server to which `socket` is connected. The connection takes at most
    /// [`CONNECTION_BYTES`] of buffers from `memory`. The caller limits the time of the handshake.
    ///
    /// A server may refuse the client's certificate after the handshake: then the first receive returns the error.
    ///
    /// # Errors
    /// The error that the server has sent, or the fault of the server's certificate (`Denied`).
    pub async fn connect(
        &self,
        env: &Env,
        socket: Rc<dyn Socket>,
        memory: Memory,
    ) -> Result<Secured> {
        self.clock.set(env);
        let connection = UnbufferedClientConnection::new(self.config.clone(), self.name.clone());
        secure(env, socket, connection.map_err(unusable)?, (true, memory)).await
    }
}

/// The source of the next keys of a TLS connection after a key update.
pub trait Keys {
    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets)>;
    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets)>;
}

impl<D> Keys for KernelConnection<D> {
    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.update_rx_secret().map_err(|error| failed(&error))
    }

    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.update_tx_secret().map_err(|error| failed(&error))
    }
}

/// The operations that the client and the server of rustls have in common.
trait Connection: Deref<Target = UnbufferedConnectionCommon<Self::Data>> {
    type Data: 'static;
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Keys>), rustls::Error>;
}

/// Implements [`Connection`] for a type of rustls. The two types have functions of the same names, but no common
/// trait.
macro_rules! connection {
    ($side:ty, $data:ty) => {
        impl Connection for $side {
            type Data = $data;

            fn process<'c, 'i>(
                &'c mut self,
                bytes: &'i mut [u8],
            ) -> UnbufferedStatus<'c, 'i, Self::Data> {
                self.process_tls_records(bytes)
            }

            fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Keys>), rustls::Error> {
                let (secrets, keys) = self.dangerous_into_kernel_connection()?;
                Ok((secrets, Box::new(keys)))
            }
        }
    };
}

connection!(UnbufferedServerConnection, ServerConnectionData);
connection!(UnbufferedClientConnection, ClientConnectionData);

async fn secure(
    env: &Env,
    lower: Rc<dyn Socket>,
    connection: impl Connection,
    side: Side,
) -> Result<Secured> {
    let (socket, names) = negotiate(env, lower, connection, side).await?;
    Ok(Secured { socket: Rc::new(socket), names })
}

/// Carries out one side of a TLS handshake. The returned socket lets a test renew its keys.
#[cfg(test)]
pub async fn secure_for_tests(
    env: &Env,
    lower: Rc<dyn Socket>,
    server: Option<&Server>,
    client: Option<&Client>,
    memory: Memory,
) -> Result<TlsSocket> {
    let negotiated = match (server, client) {
        (Some(server), _) => {
            server.clock.set(env);
            let connection = UnbufferedServerConnection::new(server.config.clone()).unwrap();
            negotiate(env, lower, connection, (false, memory)).await
        }
        (None, client) => {
            let Client { config, clock, name } = client.unwrap().clone();
            clock.set(env);
            let connection = UnbufferedClientConnection::new(config, name).unwrap();
            negotiate(env, lower, connection, (true, memory)).await
        }
    };
    negotiated.map(|(socket, _)| socket)
}

async fn negotiate(
    env: &Env,
    lower: Rc<dyn Socket>,
    connection: impl Connection,
    (client, memory): Side,
) -> Result<(TlsSocket, Vec<String>)> {
    let buf = memory.buf(env.pool(), BATCH_BYTES).await?;
    let (end, offered, out) = (0, 0, Vec::new());
    let mut shaking = Shaking { env, memory, socket: &*lower, connection, buf, end, offered, out };
    shaking.run().await?;
    let Shaking { connection, buf, end, offered, .. } = shaking;
    let names =
        connection.peer_certificates().and_then(<[_]>::first).map(names).unwrap_or_default();
    let version = match connection.protocol_version() {
        Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
        _ => Version::Tls13,
    };
    let (secrets, keys) = connection.finish().map_err(|error| failed(&error))?;
    let (opening, sealing) = (Half::new(version, secrets.rx)?, Half::new(version, secrets.tx)?);
    let (env, arrived) = (env.clone(), (buf, offered..end));
    let begin = Begin { env, memory, lower, keys, opening, sealing, arrived, client };
    Ok((TlsSocket::new(begin).await?, names))
}

/// A TLS handshake that is being carried out.
struct Shaking<'a, C> {
    env: &'a Env,
    memory: Memory,
    socket: &'a dyn Socket,
    connection: C,
    buf: Buf,
    /// End of the received bytes, which begin at the front of the buffer.
    end: usize,
    /// Number of received bytes that were passed to rustls: whole records, one after the other, so that rustls gets
    /// no bytes from after the handshake.
    offered: usize,
    out: Vec<u8>,
}

enum Step {
    Again,
    NeedMore,
    Over,
}

impl<C: Connection> Shaking<'_, C> {
    async fn run(&mut self) -> Result<()> {
        loop {
            match self.step() {
                Ok(Step::Again) => {}
                Ok(Step::Over) => return self.send().await,
                Ok(Step::NeedMore) => {
                    self.send().await?;
                    self.more().await?;
                }
                Err(error) => {
                    // The alert that rustls has for the peer. It comes first and only once, and its arrival
                    // is not awaited. A further step of rustls would fail again.
                    let _ = self.step();
                    let _ = self.send().await;
                    return Err(failed(&error));
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, rustls::Error> {
        let (discard, step) = {
            let mut bytes = self.buf.write();
            let UnbufferedStatus { discard, state } =
                self.connection.process(&mut bytes[..self.offered]);
            (discard, state.and_then(|state| take(state, &mut self.out)))
        };
        if discard > 0 {
            self.buf.write().copy_within(discard..self.end, 0);
            self.end -= discard;
            self.offered -= discard;
        }
        match step? {
            Step::Over if self.connection.is_handshaking() => Ok(Step::NeedMore),
            step => Ok(step),
        }
    }

    /// Passes one more record to rustls. Receives the record if it has not arrived.
    async fn more(&mut self) -> Result<()> {
        loop {
            let next = record_end(&self.buf.read()[self.offered..self.end]);
            if let Some(len) = next {
                self.offered += len;
                return Ok(());
            }
            if self.end == BATCH_BYTES {
                bail!(Io, "the peer's TLS handshake is longer than {BATCH_BYTES} bytes");
            }
            let outcome = self.socket.recv(self.buf.slice(self.end..BATCH_BYTES)).await;
            match outcome.result? {
                0 => {
                    let words = "the peer closed the connection during the TLS handshake";
                    return Err(Error::new(ErrorKind::Io, words));
                }
                n => self.end += n,
            }
        }
    }

    async fn send(&mut self) -> Result<()> {
        let mut rest = self.out.as_slice();
        while !rest.is_empty() {
            let len = rest.len().min(CHUNK_BYTES);
            let buf = self.memory.buf(self.env.pool(), len).await?;
            buf.write().copy_from_slice(&rest[..buf.len()]);
            match self.socket.send(vec![buf]).await.result? {
                0 => {
                    bail!(Io, "the peer closed the connection during the TLS handshake");
                }
                n => rest = &rest[n..],
            }
        }
        self.out.clear();
        Ok(())
    }
}

/// Carries out the step that a state of rustls requires.
fn take<D>(state: ConnectionState<'_, '_, D>, out: &mut Vec<u8>) -> Result<Step, rustls::Error> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let at = out.len();
            if let Err(EncodeError::InsufficientSize(needed)) = data.encode(&mut []) {
                out.resize(at + needed.required_size, 0);
                let encoded = data.encode(&mut out[at..]);
                encoded.map_err(|error| rustls::Error::General(error.to_string()))?;
            }
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake => Ok(Step::NeedMore),
        ConnectionState::WriteTraffic(_) => Ok(Step::Over),
        _ => Err(rustls::Error::HandshakeNotComplete),
    }
}

/// Returns the length of the first record in `bytes`; `None` if the record is incomplete. If `bytes` do not begin
/// with a record, returns the length of all bytes, so that rustls reports the fault.
fn record_end(bytes: &[u8]) -> Option<usize> {
    let first = *bytes.first()?;
    if !(20..=23).contains(&first) {
        return Some(bytes.len());
    }
    let header = bytes.get(..HEADER_BYTES)?;
    let len = usize::from(header[3]) << 8 | usize::from(header[4]);
    if len > SEALED_MAX_BYTES {
        return Some(bytes.len());
    }
    (bytes.len() >= HEADER_BYTES + len).then_some(HEADER_BYTES + len)
}

/// Returns the error with its cause in words for an error of rustls.
fn failed(error: &rustls::Error) -> Error {
    let (kind, why) = match error {
        rustls::Error::InvalidCertificate(why) => (ErrorKind::Denied, untrusted(why)),
        rustls::Error::NoCertificatesPresented => {
            (ErrorKind::Denied, "the peer sent no certificate".to_owned())
        }
        rustls::Error::PeerIncompatible(why) => {
            (ErrorKind::Unsupported, format!("{}; {SUPPORTED}", incompatible(why)))
        }
        error => (ErrorKind::Io, error.to_string()),
    };
    Error::new(kind, format!("the TLS handshake failed: {why}"))
}

/// The versions and ciphers of TLS that a peer may use, for messages.
const SUPPORTED: &str = "Cairn supports TLS 1.3, and TLS 1.2 with ECDHE, AES-GCM or ChaCha20-Poly1305, and the \
                         extended master secret";

fn incompatible(why: &PeerIncompatible) -> String {
    match why {
        PeerIncompatible::NoCipherSuitesInCommon => {
            "the peer offers no supported cipher".to_owned()
        }
        PeerIncompatible::ExtendedMasterSecretExtensionRequired => {
            "the peer does not support the extended master secret of TLS 1.2".to_owned()
        }
        PeerIncompatible::NoKxGroupsInCommon => {
            "the peer offers no supported key exchange".to_owned()
        }
        // A client of TLS 1.1 has no signature algorithms to offer.
        PeerIncompatible::SignatureAlgorithmsExtensionRequired
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::Tls12NotOffered => {
            "the peer supports neither TLS 1.2 nor TLS 1.3".to_owned()
        }
        other => format!("the peer is incompatible: {other:?}"),
    }
}

fn untrusted(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "the peer's certificate is not signed by the configured authority".to_owned()
        }
        CertificateError::Revoked => "the peer's certificate is revoked".to_owned(),
        // The name of an error of webpki, which rustls passes on. A certificate that signs itself is one of these.
        CertificateError::Other(error) if error.to_string() == "CaUsedAsEndEntity" => {
            "the peer's certificate is that of an authority; a certificate is needed that the \
             authority has signed"
                .to_owned()
        }
        other => format!("the peer's certificate: {other}"),
    }
}
