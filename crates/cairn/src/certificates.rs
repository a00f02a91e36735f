//! The certificate files of TLS. They are read when a spec is checked, and again for each handshake.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use block::Env;
use export::nbd::CurrentTls;
use graph::spec::{Listen, Planned, Spec, TlsPaths};
use net::nbd::PEM_MAX_BYTES;
use tls::{Authorities, Identity, Pem, PemKey, Revoked, Server};

use crate::exit::{Failure, Result};
use crate::out;

/// Adds to the spec the faults of the certificate files that the spec names.
pub fn check(env: &Env, spec: &mut Spec) {
    let Some(paths) = spec.tls().cloned() else { return };
    if let Err(errors) = Files::read(env, &paths).and_then(|files| files.server(env).map(drop)) {
        for error in errors {
            spec.fault(paths.position, format!("tls: {error}"));
        }
    }
}

/// Returns the server's side of TLS; `None` if no address in `listens` has TLS.
///
/// # Errors
/// `Usage` if the spec names no certificate; the first fault of the certificate files.
pub fn server(env: &Env, planned: &Planned, listens: &[Listen]) -> Result<Option<CurrentTls>> {
    let Some(at) = listens.iter().find(|at| at.tls) else { return Ok(None) };
    let Some(paths) = &planned.tls else {
        return Err(failure!(Usage, "listening at {at} needs a certificate")
            .next("a spec whose [nbd] has tls = { cert = \"...\", key = \"...\" }".to_string()));
    };
    warn_of_readers(&paths.key);
    if paths.clients.is_none() {
        warn!("the server at {at} accepts every client: its tls has no clients = \"CA.pem\"");
    }
    let first = |mut errors: Errors| Failure::from(errors.remove(0));
    let files = Files::read(env, paths).map_err(first)?;
    let server = Rc::new(files.server(env).map_err(first)?);
    let current = Current { files, server, failed: None };
    let (env, paths, current) = (env.clone(), paths.clone(), RefCell::new(current));
    Ok(Some(Rc::new(move || current.borrow_mut().renewed(&env, &paths))))
}

/// The faults of the certificate files, at least one.
type Errors = Vec<block::Error>;

/// The content of the certificate files.
struct Files {
    cert: Pem,
    key: PemKey,
    clients: Option<Pem>,
    revoked: Option<Pem>,
}

/// The certificate files that new connections use.
struct Current {
    files: Files,
    server: Rc<Server>,
    /// The reason why the present files on disk are not used; `None` if they are.
    failed: Option<String>,
}

impl Current {
    /// Returns the server's side of TLS with the present files on disk. If these files have a fault, the fault is
    /// logged once, and the files in use remain.
    fn renewed(&mut self, env: &Env, paths: &TlsPaths) -> Rc<Server> {
        match Files::read(env, paths) {
            Ok(files) if files == self.files => self.failed = None,
            Ok(files) => match files.server(env) {
                Ok(server) => {
                    *self = Self { files, server: Rc::new(server), failed: None };
                    out::note("TLS: new connections use the changed certificate files");
                }
                Err(errors) => self.fail(&errors),
            },
            Err(errors) => self.fail(&errors),
        }
        self.server.clone()
    }

    fn fail(&mut self, errors: &Errors) {
        let why = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if self.failed.as_ref() != Some(&why) {
            warn!(
                "TLS: the changed certificate files cannot be used, so new connections use the \
                 earlier ones: {why}"
            );
            self.failed = Some(why);
        }
    }
}

impl PartialEq for Files {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |pem: &Option<Pem>| pem.as_ref().map(|pem| pem.bytes.clone());
        self.cert.bytes == other.cert.bytes
            && self.key.bytes.same(&other.key.bytes)
            && bytes(&self.clients) == bytes(&other.clients)
            && bytes(&self.revoked) == bytes(&other.revoked)
    }
}

impl Files {
    fn read(env: &Env, paths: &TlsPaths) -> Result<Self, Errors> {
        let key = env.read_secret(&paths.key, PEM_MAX_BYTES);
        let key = key.map(|bytes| PemKey { path: paths.key.display().to_string(), bytes });
        let other = |path: &Option<_>| path.as_deref().map(|path| read(env, path)).transpose();
        let (clients, revoked) = (other(&paths.clients), other(&paths.revoked));
        match (read(env, &paths.cert), key, clients, revoked) {
            (Ok(cert), Ok(key), Ok(clients), Ok(revoked)) => {
                Ok(Self { cert, key, clients, revoked })
            }
            (cert, key, clients, revoked) => {
                let all = [cert.err(), key.err(), clients.err(), revoked.err()];
                Err(all.into_iter().flatten().collect())
            }
        }
    }

    fn server(&self, env: &Env) -> Result<Server, Errors> {
        let identity = Identity::new(&self.cert, &self.key);
        let identity = identity.and_then(|it| it.check_time(env.wall()).map(|()| it));
        let clients = self.clients.as_ref().map(Authorities::new).transpose();
        let revoked = self.revoked.as_ref().map(Revoked::new).transpose();
        match (identity, clients, revoked) {
            (Ok(identity), Ok(clients), Ok(revoked)) => {
                Server::new(&identity, clients.as_ref(), revoked.as_ref())
                    .map_err(|error| vec![error])
            }
            (identity, clients, revoked) => {
                let all = [identity.err(), clients.err(), revoked.err()];
                Err(all.into_iter().flatten().collect())
            }
        }
    }
}

fn read(env: &Env, path: &Path) -> block::Result<Pem> {
    let bytes = env.read_file(path, PEM_MAX_BYTES)?;
    Ok(Pem { path: path.display().to_string(), bytes })
}

/// Prints a warning if other users can read the private key, because any program with the key can act as the server.
fn warn_of_readers(key: &Path) {
    if std::fs::metadata(key).is_ok_and(|found| found.mode() & 0o077 != 0) {
        let shown = key.display();
        warn!("other users may read the TLS key {shown}. Next: chmod 600 {shown}");
    }
}
