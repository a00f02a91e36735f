//! The listening addresses of a server, and the URIs of exports at these addresses.

use std::path::Path;

use block::env::Address;
use graph::spec::{Listen, SOCKET_PATH_MAX_BYTES, is_loopback, parse_address};
use wire::nbd::uri::NbdUri;

use crate::exit::Result;

/// Parses the address of an option `--listen`.
pub fn parse(text: &str, insecure: bool) -> Result<Listen> {
    parse_address(text, insecure).map_err(|why| {
        let why = why.replace("set insecure = true", "add --insecure");
        failure!(Usage, "--listen {text}: {why}")
    })
}

/// Prints a warning for each address that other machines can reach without TLS.
pub fn warn(listens: &[Listen]) {
    for at in listens {
        if let Address::Tcp(host, _) = &at.address
            && !at.tls
            && !is_loopback(host)
        {
            warn!("the server at {at} accepts every host without encryption");
        }
    }
}

/// Returns the URI of an export at an address, in the form for `nbdinfo` and `qemu-img`.
pub fn uri(at: &Listen, export: &str) -> String {
    let address = match &at.address {
        Address::Tcp(host, port) => Address::Tcp(reachable(host), *port),
        Address::Unix(path) => Address::Unix(absolute(path).into()),
    };
    let export = export.to_owned();
    NbdUri { tls: at.tls, address, export, certificates: None, hostname: None }.to_string()
}

/// Returns the URIs of an export, one for each address at which clients can use it. An export with named clients
/// (`named`) can be used only through TLS.
pub fn uris(listens: &[Listen], export: &str, named: bool) -> Vec<String> {
    listens.iter().filter(|at| at.tls || !named).map(|at| uri(at, export)).collect()
}

/// Returns `path` as an absolute path; unchanged if the absolute path would be too long for a socket.
pub fn absolute(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let fits = whole.as_os_str().len() <= SOCKET_PATH_MAX_BYTES;
    let shown = if fits { whole.as_path() } else { path };
    shown.to_string_lossy().into_owned()
}

/// Returns the address to which a client can connect: for a wildcard address the loopback address, otherwise `host`.
pub fn reachable(host: &str) -> String {
    match host {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "::1".to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_uri_has_absolute_path_and_reachable_host() {
        let at = |address, tls| Listen { address, tls };
        let unix = uri(&at(Address::Unix("/run/a b.sock".into()), false), "vol");
        assert_eq!(unix, "nbd+unix:///vol?socket=/run/a%20b.sock");
        let tcp = uri(&at(Address::Tcp("0.0.0.0".into(), 10810), false), "vol");
        assert_eq!(tcp, "nbd://127.0.0.1:10810/vol");
        let tls = uri(&at(Address::Tcp("::1".into(), 10809), true), "vol");
        assert_eq!(tls, "nbds://[::1]/vol");
        assert!(uri(&at(Address::Unix("x.sock".into()), false), "").contains("?socket=/"));
    }
}
