//! `[nbd]`: where clients connect.

use std::net::IpAddr;
use std::path::PathBuf;

use block::env::Address;

use super::fault::{Log, Position};
use super::parse::unknown_key;
use super::tree::{Field, Item, Raw};
use super::value;
use crate::kind::{OptionSpec, Value, ValueType};

/// Addresses of one graph.
pub const LISTENS_MAX: usize = 16;

/// Bytes in the path of a unix socket: what the kernel has room for.
pub const SOCKET_PATH_MAX_BYTES: usize = 107;

const INSECURE: OptionSpec = OptionSpec {
    name: "insecure",
    value: ValueType::Switch,
    required: false,
    help: "listen on TCP beyond loopback although nothing is encrypted and nobody is asked who they are",
};

const MAX_CONNECTIONS: OptionSpec = OptionSpec {
    name: "max_connections",
    value: ValueType::Integer(1, 65_536),
    required: false,
    help: "connections at once",
};

const KEYS: [&str; 3] = ["listen", INSECURE.name, MAX_CONNECTIONS.name];

/// What `[nbd]` says.
#[derive(Clone, Default, Debug)]
pub(super) struct Nbd {
    pub(super) listens: Vec<Address>,
    pub(super) max_connections: Option<u32>,
}

impl Nbd {
    pub(super) fn read(fields: &[Field], log: &mut Log) -> Self {
        let mut nbd = Self::default();
        let mut insecure = false;
        let mut listen = None;
        for Field { key, item } in fields {
            match key.text.as_str() {
                "listen" => listen = Some(item),
                "insecure" => {
                    insecure = value::check(&INSECURE, item, &[], log) == Some(Value::Switch(true));
                }
                "max_connections" => {
                    if let Some(Value::Integer(most)) =
                        value::check(&MAX_CONNECTIONS, item, &[], log)
                    {
                        nbd.max_connections = Some(most as u32);
                    }
                }
                "tls" => log.error(key.at, NO_TLS),
                _ => unknown_key(key, "nbd", KEYS, log),
            }
        }
        if let Some(item) = listen {
            nbd.listens = listens(item, insecure, log);
        }
        nbd
    }
}

const NO_TLS: &str = "TLS is not served yet; use unix: or tcp: on loopback";

fn listens(item: &Item, insecure: bool, log: &mut Log) -> Vec<Address> {
    let items = match &item.raw {
        Raw::List(items) => items.as_slice(),
        _ => std::slice::from_ref(item),
    };
    if items.is_empty() || items.len() > LISTENS_MAX {
        let count = items.len();
        log.error(item.at, format!("{count} addresses in listen; 1 to {LISTENS_MAX} are possible"));
    }
    let mut all = Vec::new();
    for one in items {
        match &one.raw {
            Raw::Broken => {}
            Raw::Text(text) => match parse_address(text, insecure) {
                Ok(address) if all.contains(&address) => twice(one.at, text, log),
                Ok(address) => all.push(address),
                Err(why) => log.error(one.at, format!("listen {text:?}: {why}")),
            },
            raw => log.error(one.at, format!("listen {}: {FORMS}", raw.show())),
        }
    }
    all
}

fn twice(at: Position, text: &str, log: &mut Log) {
    log.error(at, format!("listen {text:?} is there already; remove it"));
}

const FORMS: &str = "an address is needed: \"unix:PATH\" or \"tcp:HOST:PORT\"";

/// An address from text such as `unix:PATH` or `tcp:HOST:PORT`.
///
/// # Errors
/// What is wrong, in words that go on after the value; TCP beyond loopback unless `insecure`.
pub fn parse_address(text: &str, insecure: bool) -> Result<Address, String> {
    match text.split_once(':') {
        Some(("unix", path)) => unix(path),
        Some(("tcp", rest)) => tcp(rest.strip_prefix("//").unwrap_or(rest), insecure),
        Some(("tls", _)) => Err(NO_TLS.to_owned()),
        _ => Err(FORMS.to_owned()),
    }
}

fn unix(path: &str) -> Result<Address, String> {
    if path.is_empty() || path.contains('\0') {
        return Err("a path is needed, as in \"unix:/run/cairn/home.sock\"".to_owned());
    }
    if path.len() > SOCKET_PATH_MAX_BYTES {
        return Err(format!(
            "the path has {} bytes; a socket's has at most {SOCKET_PATH_MAX_BYTES}: use a shorter one",
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
            "beyond loopback nothing is encrypted and nobody is asked who they are; use unix: or \
             127.0.0.1, or set insecure = true"
                .to_owned(),
        );
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

/// Whether only this machine reaches that host: `localhost`, or an address of the loopback.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
