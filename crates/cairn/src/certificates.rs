//! The files behind TLS: read when a spec is checked and when it is served.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use block::Env;
use graph::spec::{Listen, Planned, Spec, TlsPaths};
use net::nbd::PEM_MAX_BYTES;
use tls::{Authorities, Identity, Pem, Server};

use crate::exit::{Exit, Failure, Result};
use crate::out;

/// Adds to a spec what is wrong with the files that it names.
pub fn check(env: &Env, spec: &mut Spec) {
    let Some(paths) = spec.tls().cloned() else { return };
    let identity = identity(env, &paths).err();
    let clients = paths.clients.as_deref().and_then(|path| authorities(env, path).err());
    for error in identity.into_iter().chain(clients) {
        spec.fault(paths.position, format!("tls: {error}"));
    }
}

/// The server's side of TLS, if it is to listen with it.
///
/// # Errors
/// `Usage` without certificates; what is wrong with them.
pub fn server(env: &Env, planned: &Planned, listens: &[Listen]) -> Result<Option<Rc<Server>>> {
    let Some(at) = listens.iter().find(|at| at.tls) else { return Ok(None) };
    let Some(paths) = &planned.tls else {
        let why = format!(
            "{at} needs a certificate. Next: a spec whose [nbd] has tls = {{ cert = \"...\", key = \"...\" }}"
        );
        return Err(Failure::new(Exit::Usage, why));
    };
    warn_of_readers(&paths.key);
    let identity = identity(env, paths)?;
    let clients = paths.clients.as_deref().map(|path| authorities(env, path)).transpose()?;
    if clients.is_none() {
        out::note(&format!(
            "warning: {at} takes whoever can reach it: tls has no clients = \"CA.pem\""
        ));
    }
    Ok(Some(Rc::new(Server::new(&identity, clients.as_ref())?)))
}

fn read(env: &Env, path: &Path) -> block::Result<Pem> {
    let bytes = env.read_file(path, PEM_MAX_BYTES)?;
    Ok(Pem { path: path.display().to_string(), bytes })
}

fn identity(env: &Env, paths: &TlsPaths) -> block::Result<Identity> {
    let identity = Identity::new(&read(env, &paths.cert)?, &read(env, &paths.key)?)?;
    identity.check_time(env.wall())?;
    Ok(identity)
}

fn authorities(env: &Env, path: &Path) -> block::Result<Authorities> {
    Authorities::new(&read(env, path)?)
}

/// Whoever has the key is the server.
fn warn_of_readers(key: &Path) {
    if std::fs::metadata(key).is_ok_and(|found| found.mode() & 0o077 != 0) {
        let shown = key.display();
        out::note(&format!("warning: others may read the key {shown}. Next: chmod 600 {shown}"));
    }
}
