//! The section `[nbd]` of a spec: the addresses at which a graph accepts clients, TLS and the limit of connections.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use block::env::Address;
use kind::{OptionSpec, Value, ValueType};

use super::fault::{Log, Position};
use super::keys::NBD;
use super::tree::{Field, Item, Raw};
use super::value::{self, setting};

/// Maximum number of listen addresses of one graph.
pub const LISTENS_MAX: usize = 16;

/// Maximum length of the path of a unix socket in bytes: the kernel's limit.
pub const SOCKET_PATH_MAX_BYTES: usize = 107;

pub(super) const INSECURE: OptionSpec = setting(
    "insecure",
    ValueType::Switch,
    "listen on TCP beyond loopback without encryption and authentication of clients",
);

pub(super) const MAX_CONNECTIONS: OptionSpec = setting(
    "max_connections",
    ValueType::Integer(1, 65_536),
    "most connections of clients at the same time",
);

pub(super) const TLS: OptionSpec = setting(
    "tls",
    ValueType::Table(&["cert", "key", "clients", "revoked"]),
    "files of the server's certificate and key, of the authority that signs client certificates, \
     and of its revocation lists",
);

/// An address at which a graph accepts NBD clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Path of the Unix socket, or TCP host and port.
    pub address: Address,
    /// Whether clients must use TLS at this address.
    pub tls: bool,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.address.to_string();
        match (&self.address, self.tls) {
            (_, false) => f.write_str(&plain),
            (Address::Unix(_), true) => write!(f, "tls+{plain}"),
            (Address::Tcp(..), true) => f.write_str(&plain.replacen("tcp:", "tls://", 1)),
        }
    }
}

/// Paths of the files with certificates and keys for TLS, as the spec has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsPaths {
    /// File with the certificate of the server, followed by the chain to its authority.
    pub cert: PathBuf,
    /// File with the private key of the server.
    pub key: PathBuf,
    /// File with the certificates of the authorities that sign client certificates; `None` if clients need no
    /// certificate.
    pub clients: Option<PathBuf>,
    /// File with the lists of revoked client certificates.
    pub revoked: Option<PathBuf>,
    /// Position of the TLS settings in the text of the spec.
    pub position: Position,
}

/// The contents of the section `[nbd]` of a spec.
#[derive(Clone, Default, Debug)]
pub(super) struct Nbd {
    pub(super) listens: Vec<Listen>,
    pub(super) tls: Option<TlsPaths>,
    pub(super) max_connections: Option<u32>,
}

impl Nbd {
    pub(super) fn read(fields: &[Field], log: &mut Log) -> Self {
        let mut nbd = Self::default();
        let mut insecure = false;
        let (mut listen, mut told_tls) = (None, false);
        for Field { key, item } in fields {
            if !NBD.has(key, "nbd", log) {
                continue;
            }
            match key.text.as_str() {
                "listen" => listen = Some(item),
                "insecure" => insecure = value::is_on(&INSECURE, item, log),
                "max_connections" => {
                    if let Some(Value::Integer(most)) =
                        value::check(&MAX_CONNECTIONS, item, &[], log)
                    {
                        nbd.max_connections = Some(most as u32);
                    }
                }
                "tls" => {
                    if let Some(Value::Table(texts)) = value::check(&TLS, item, &[], log) {
                        nbd.tls = tls_paths(&texts, item.at, log);
                    }
                    told_tls = true;
                }
                name => unreachable!("the table of keys has {name}, which is not parsed"),
            }
        }
        if let Some(item) = listen {
            nbd.listens = listens(item, insecure, log);
            if !told_tls && nbd.listens.iter().any(|listen| listen.tls) {
                log.error(
                    item.at,
                    "a tls: address needs a certificate; add tls = { cert = \"...\", key = \"...\" }",
                );
            }
        }
        nbd
    }
}

fn tls_paths(texts: &[(&str, String)], at: Position, log: &mut Log) -> Option<TlsPaths> {
    let find = |key| texts.iter().find(|(known, _)| *known == key).map(|(_, text)| text.into());
    let (Some(cert), Some(key)) = (find("cert"), find("key")) else {
        log.error(at, "tls: cert and key are both needed");
        return None;
    };
    let (clients, revoked): (Option<PathBuf>, Option<PathBuf>) = (find("clients"), find("revoked"));
    if revoked.is_some() && clients.is_none() {
        log.error(
            at,
            "tls: revoked needs clients = \"CA.pem\": without clients the server requests no certificate",
        );
    }
    Some(TlsPaths { cert, key, clients, revoked, position: at })
}

fn listens(item: &Item, insecure: bool, log: &mut Log) -> Vec<Listen> {
    let items = item.items();
    if items.is_empty() || items.len() > LISTENS_MAX {
        let count = items.len();
        log.error(item.at, format!("{count} addresses in listen; 1 to {LISTENS_MAX} are possible"));
    }
    let mut all = Vec::new();
    for one in items {
        match &one.raw {
            Raw::Text(text) => match parse_address(text, insecure) {
                Ok(listen) if all.iter().any(|one: &Listen| one.address == listen.address) => {
                    log.error(one.at, format!("listen {text:?} is given twice; remove one"));
                }
                Ok(listen) => all.push(listen),
                Err(why) => log.error(one.at, format!("listen {text:?}: {why}")),
            },
            _ => log.wrong("listen", one, FORMS),
        }
    }
    all
}

const FORMS: &str = "an address is needed: \"unix:PATH\", \"tcp:HOST:PORT\" or \"tls://HOST:PORT\"";

/// Parses a listen address of a spec, such as `unix:PATH`, `tcp:HOST:PORT`, `tls://HOST:PORT` or `tls+unix:PATH`.
///
/// # Errors
/// A description of the fault, for the end of a message that begins with the address. A TCP address without TLS that is
/// not of the loopback interface is a fault, unless `insecure`.
pub fn parse_address(text: &str, insecure: bool) -> Result<Listen, String> {
    let bare = |rest: &'_ str| rest.strip_prefix("//").unwrap_or(rest).to_owned();
    let (address, tls) = match text.split_once(':') {
        Some(("unix", path)) => (unix(path)?, false),
        Some(("tls+unix", path)) => (unix(path)?, true),
        Some(("tcp", rest)) => (tcp(&bare(rest), insecure)?, false),
        Some(("tls", rest)) => (tcp(&bare(rest), true)?, true),
        _ => return Err(FORMS.to_owned()),
    };
    Ok(Listen { address, tls })
}

fn unix(path: &str) -> Result<Address, String> {
    if path.is_empty() || path.contains('\0') {
        return Err("a path is needed, as in \"unix:/run/cairn/home.sock\"".to_owned());
    }
    if path.len() > SOCKET_PATH_MAX_BYTES {
        return Err(format!(
            "the path has {} bytes; a socket path has at most {SOCKET_PATH_MAX_BYTES}: use a shorter path",
            path.len()
        ));
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

fn tcp(text: &str, insecure: bool) -> Result<Address, String> {
    let form = || "a host and a port are needed, as in \"tcp:127.0.0.1:10809\"".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.is_none() && host.contains(':') {
        return Err("an IPv6 address is written in brackets, as in \"tcp:[::1]:10809\"".to_owned());
    }
    let host = bare.unwrap_or(host);
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(form());
    }
    let port = port.parse().map_err(|_| format!("port {port:?}; 0 to 65535 are possible"))?;
    if !insecure && !is_loopback(host) {
        return Err(
            "TCP beyond loopback has no encryption and no authentication; use tls:, unix: or \
             127.0.0.1, or set insecure = true"
                .to_owned(),
        );
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

/// Whether only this machine can reach `host`: `localhost`, or an address of the loopback interface.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
