//! Where an export is, and what it takes to get there.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::env::{Address, Socket};
use block::{Env, Error, ErrorKind, Memory, Result};
use tls::{Authorities, Identity, Pem, PemKey, Secured};
use wire::nbd::ClientConfig;
use wire::nbd::uri::{Address as UriAddress, NbdUri};

use super::Client;

/// Longest file of certificates that is read.
pub const PEM_MAX_BYTES: usize = 1 << 20;

/// What a unix socket's server is called if nobody says.
const LOCAL: &str = "localhost";

/// Where an export is, and what it takes to get there.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where the server is.
    pub address: Address,
    /// The name of the export.
    pub export: String,
    /// TLS, and nothing without it.
    pub tls: Option<TlsFiles>,
}

/// Whom to trust as what, and who we are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign servers.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Whether ours may be missing: a directory without them is that of a client which needs none.
    pub anonymous: bool,
    /// The name that the server's certificate must have.
    pub hostname: String,
}

impl TlsFiles {
    /// The files that the NBD URI specification has in a directory; ours only if they are there.
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

    /// Reads them.
    ///
    /// # Errors
    /// What is missing, unreadable or wrong, with the file.
    pub fn client(&self, env: &Env) -> Result<tls::Client> {
        let ca = self.ca.as_deref().ok_or_else(|| {
            let words = "TLS needs to know whom to trust; add tls-certificates=DIR to the URI, or \
                         tls = { ca = \"ca-cert.pem\" } to the disk";
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
                let words = format!("TLS has a {have} of ours and no {lack}; give both or none");
                return Err(Error::new(ErrorKind::Invalid, words));
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
    /// What a URI names.
    ///
    /// # Errors
    /// `Invalid`, with the place, for what is no URI.
    pub fn of(uri: &str) -> Result<Self> {
        let parsed: std::result::Result<NbdUri, _> = uri.parse();
        let NbdUri { tls, address, export, certificates, hostname } =
            parsed.map_err(|error| Error::new(ErrorKind::Invalid, format!("{uri:?}: {error}")))?;
        let (address, host) = match address {
            UriAddress::Unix { path } => (Address::Unix(path.into()), LOCAL.to_owned()),
            UriAddress::Tcp { host, port } => (Address::Tcp(host.clone(), port), host),
        };
        let tls =
            tls.then(|| TlsFiles::of_directory(certificates.as_deref(), hostname.unwrap_or(host)));
        Ok(Self { address, export, tls })
    }

    /// The files that TLS needs, read; `None` without TLS.
    ///
    /// # Errors
    /// As [`TlsFiles::client`].
    pub fn client(&self, env: &Env) -> Result<Option<tls::Client>> {
        self.tls.as_ref().map(|files| files.client(env)).transpose()
    }

    /// Connects, in the way that `config` asks for.
    ///
    /// # Errors
    /// As [`Client::connect`] and [`Target::client`].
    pub async fn connect(&self, env: &Env, config: ClientConfig) -> Result<Client> {
        let tls = self.client(env).map_err(|error| error.at(&self.address))?;
        Client::connect_with(env, &self.address, config, tls.as_ref(), Memory::Free).await
    }
}

/// Secures a connection whose server has agreed to it, with buffers from `memory`.
///
/// # Errors
/// As [`tls::Client::connect`]; `Io` if something followed in `left`, which anybody could have put there.
pub async fn secure(
    env: &Env,
    socket: &Rc<dyn Socket>,
    tls: Option<&tls::Client>,
    left: usize,
    memory: Memory,
) -> Result<Rc<dyn Socket>> {
    let Some(tls) = tls.filter(|_| left == 0) else {
        let words = "bytes came after the answer to STARTTLS, before TLS";
        return Err(Error::new(ErrorKind::Io, words));
    };
    let Secured { socket, .. } = tls.connect(env, socket.clone(), memory).await?;
    Ok(socket)
}
