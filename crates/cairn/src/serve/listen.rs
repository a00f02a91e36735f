//! Where to listen, and the URIs that lead there.

use std::path::Path;

use block::env::Address;
use graph::spec::{SOCKET_PATH_MAX_BYTES, is_loopback, parse_address};
use wire::nbd::uri::{self, NbdUri};

use crate::exit::{Exit, Failure, Result};
use crate::out;

/// An address of the command line.
pub fn parse(text: &str, insecure: bool) -> Result<Address> {
    parse_address(text, insecure).map_err(|why| {
        let why = why.replace("set insecure = true", "add --insecure");
        Failure::new(Exit::Usage, format!("--listen {text}: {why}"))
    })
}

/// Warns of what others can reach.
pub fn warn(listens: &[Address]) {
    for at in listens {
        if let Address::Tcp(host, _) = at
            && !is_loopback(host)
        {
            out::note(&format!(
                "warning: {at} is open to whoever can reach it, and nothing on the way is encrypted"
            ));
        }
    }
}

/// The URI of an export, as `nbdinfo` and `qemu-img` take it.
pub fn uri(at: &Address, export: &str) -> String {
    let address = match at {
        Address::Tcp(host, port) => uri::Address::Tcp { host: reachable(host), port: *port },
        Address::Unix(path) => uri::Address::Unix { path: absolute(path) },
    };
    NbdUri { tls: false, address, export: export.to_owned() }.to_string()
}

/// The URIs of an export, one for each address.
pub fn uris(listens: &[Address], export: &str) -> Vec<String> {
    listens.iter().map(|at| uri(at, export)).collect()
}

/// A path that works from other directories too, unless it would be too long for a socket.
pub fn absolute(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let fits = whole.as_os_str().len() <= SOCKET_PATH_MAX_BYTES;
    let shown = if fits { whole.as_path() } else { path };
    shown.to_string_lossy().into_owned()
}

/// Nobody can connect to "all addresses"; this machine can to its own.
fn reachable(host: &str) -> String {
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
    fn uris_are_absolute_and_reachable() {
        let unix = uri(&Address::Unix("/run/a b.sock".into()), "vol");
        assert_eq!(unix, "nbd+unix:///vol?socket=/run/a%20b.sock");
        let tcp = uri(&Address::Tcp("0.0.0.0".into(), 10810), "vol");
        assert_eq!(tcp, "nbd://127.0.0.1:10810/vol");
        assert!(uri(&Address::Unix("x.sock".into()), "").contains("?socket=/"));
    }
}
