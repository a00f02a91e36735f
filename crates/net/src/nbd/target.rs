//! The address of an NBD export, and the files for TLS with its server.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::env::{Address, Socket};
use block::{Env, Error, ErrorKind, Memory, Result, bail, error};
use tls::{Authorities, Identity, Pem, PemKey, Secured};
use wire::nbd::ClientConfig;
use wire::nbd::uri::NbdUri;

use super::Client;

/// Maximum length in bytes of a file with certificates or a key.
pub const PEM_MAX_BYTES: usize = 1 << 20;

/// Name that the certificate of a server on a Unix socket must have by default.
const LOCAL: &str = "localhost";

/// The NBD export to which a client connects: address and name, and the files for TLS.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address of the NBD server.
    pub address: Address,
    /// Name of the export.
    pub export: String,
    /// Files for TLS with the server; `None` for a connection without TLS.
    pub tls: Option<TlsFiles>,
}

/// The client's files for TLS, and the name of the server.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// File with the certificates of the authorities that sign server certificates.
    pub ca: Option<PathBuf>,
    /// File with the certificate of the client.
    pub cert: Option<PathBuf>,
    /// File with the private key of the client's certificate.
    pub key: Option<PathBuf>,
    /// Whether the file with the client's certificate may be missing: then the client connects without a certificate.
    pub anonymous: bool,
    /// The name that the certificate of the server must have.
    pub hostname: String,
}

impl TlsFiles {
    /// Returns the files in `directory` with the names from the NBD URI specification. Those of the client's
    /// certificate and key may be missing.
    fn of_directory(directory: Option<&str>, hostname: String) -> Self {
        let Some(directory) = directory.map(Path::new) else {
            return Self { ca: None, cert: None, key: None, anonymous: true, hostname };
        };
        let file = |name| Some(directory.join(name));
        let (cert, key) = (file("client-cert.pem"), file("client-key.pem"));
        Self { ca: file("ca-cert.pem"), cert, key, anonymous: true, hostname }
    }

    fn read(env: &Env, path: &Path) -> Result<Pem> {
        let bytes = env.read_file(path, PEM_MAX_BYTES)?;
        Ok(Pem { path: path.display().to_string(), bytes })
    }

    /// Reads the files, and returns the TLS settings of the client.
    ///
    /// # Errors
    /// The fault of a missing, unreadable or invalid file, with its path.
    pub fn client(&self, env: &Env) -> Result<tls::Client> {
        let ca = self.ca.as_deref().ok_or_else(|| {
            let words = "TLS needs a trusted CA; add tls-certificates=DIR to the URI, or tls = { \
                         ca = \"ca-cert.pem\" } to the disk";
            Error::new(ErrorKind::Invalid, words)
        })?;
        let authorities = Authorities::new(&Self::read(env, ca)?)?;
        let identity = self.identity(env)?;
        tls::Client::new(&authorities, identity.as_ref(), &self.hostname)
    }

    fn identity(&self, env: &Env) -> Result<Option<Identity>> {
        let (cert, key) = match (&self.cert, &self.key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => (cert, key),
            (cert, _) => {
                let (have, lack) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
                bail!(Invalid, "the disk's tls has a {have} but no {lack}; set both or none");
            }
        };
        let cert = match Self::read(env, cert) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.anonymous => {
                return Ok(None);
            }
            cert => cert?,
        };
        let bytes = env.read_secret(key, PEM_MAX_BYTES)?;
        let key = PemKey { path: key.display().to_string(), bytes };
        let identity = Identity::new(&cert, &key)?;
        identity.check_time(env.wall())?;
        Ok(Some(identity))
    }
}

impl Target {
    /// Returns the export that the NBD URI `uri` names.
    ///
    /// # Errors
    /// `Invalid`, with the URI, if the URI cannot be parsed.
    pub fn of(uri: &str) -> Result<Self> {
        let parsed: std::result::Result<NbdUri, _> = uri.parse();
        let NbdUri { tls, address, export, certificates, hostname } =
            parsed.map_err(|error| error!(Invalid, "{uri:?}: {error}"))?;
        let host = match &address {
            Address::Unix(_) => LOCAL,
            Address::Tcp(host, _) => host,
        };
        let hostname = hostname.unwrap_or_else(|| host.to_owned());
        let tls = tls.then(|| TlsFiles::of_directory(certificates.as_deref(), hostname));
        Ok(Self { address, export, tls })
    }

    /// Reads the files for TLS, and returns the TLS settings of the client; `None` for a connection without TLS.
    ///
    /// # Errors
    /// As [`TlsFiles::client`].
    pub fn client(&self, env: &Env) -> Result<Option<tls::Client>> {
        self.tls.as_ref().map(|files| files.client(env)).transpose()
    }

    /// Connects to the server of the export, and carries out the handshake with the settings `config`.
    ///
    /// # Errors
    /// As [`Client::connect`] and [`Target::client`].
    pub async fn connect(&self, env: &Env, config: ClientConfig) -> Result<Client> {
        let tls = self.client(env).map_err(|error| error.at(&self.address))?;
        Client::connect_with(env, &self.address, config, tls.as_ref(), Memory::Free).await
    }
}

/// Starts TLS on a connection to an NBD server that has accepted STARTTLS, with buffers from `memory`.
///
/// # Errors
/// As [`tls::Client::connect`]; `Io` if `left` bytes of the server are in the inbox already, because a third party
/// could have sent them before TLS.
pub async fn secure(
    env: &Env,
    socket: &Rc<dyn Socket>,
    tls: Option<&tls::Client>,
    left: usize,
    memory: Memory,
) -> Result<Rc<dyn Socket>> {
    let Some(tls) = tls.filter(|_| left == 0) else {
        let words = "the server sent bytes between its reply to STARTTLS and TLS";
        return Err(Error::new(ErrorKind::Io, words));
    };
    let Secured { socket, .. } = tls.connect(env, socket.clone(), memory).await?;
    Ok(socket)
}
