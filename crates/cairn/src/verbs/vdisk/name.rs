//! Names of virtual disks and snapshots on the command line: `vms/web`, `home/vms/web@monday`.

use api::{Client, routes};
use block::control::Verb;
use kind::Kind;
use kinds::vdisks::ListVdisks;

use crate::exit::Result;
use crate::names::{self, Path};
use crate::registry::REGISTRY;
use crate::running::At;

/// A virtual disk or snapshot of a pool in a running graph. It need not exist.
pub struct Target {
    /// A client of the graph.
    pub client: Client,
    /// Name of the pool in the graph.
    pub pool: String,
    /// Name in the pool. That of a versioned device itself is empty, or that of its new snapshot: `@monday`.
    pub name: String,
}

impl Target {
    /// Finds the pool of the name `word`.
    ///
    /// # Errors
    /// `Usage` if the name has no pool; as [`At::owner`].
    pub fn find(at: &At, word: &str) -> Result<Self> {
        let (device, snapshot) = word.split_at(word.find('@').unwrap_or(word.len()));
        if let Ok((client, device)) = at.owner("a device", device, names::resolve, versioned)
            && versioned(&client).contains(&vec![device.clone()])
        {
            return Ok(Self { client, pool: device, name: snapshot.to_owned() });
        }
        let Some((pool, name)) = word.rsplit_once('/') else {
            let next = "write POOL/VDISK, such as vms/web; cairn vdisk ls lists them";
            return Err(failure!(Usage, "{word:?} names no pool").next(next));
        };
        let (client, pool) = find_pool(at, pool)?;
        Ok(Self { client, pool, name: name.to_owned() })
    }

    /// Returns the name of the export: `vms/web`; of a versioned device `past`, and of its snapshot `past/monday`.
    pub fn export(&self) -> String {
        match self.name.strip_prefix('@').unwrap_or(&self.name) {
            "" => self.pool.clone(),
            name => format!("{}/{name}", self.pool),
        }
    }

    /// Whether the target is in the pool of `other`.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.pool == other.pool && self.client.path() == other.client.path()
    }
}

/// Returns the pool called `word`, and a client of its graph.
///
/// # Errors
/// As [`At::owner`].
pub fn find_pool(at: &At, word: &str) -> Result<(Client, String)> {
    at.owner("a pool", word, names::resolve, pools)
}

/// Returns the names of the graph's devices that hold volumes.
pub fn pools(client: &Client) -> Vec<Path> {
    devices(client, |kind| kind.capabilities.holds_volumes)
}

/// Returns the names of the graph's devices that have bytes of their own and snapshots.
fn versioned(client: &Client) -> Vec<Path> {
    let has_lists = |kind: &Kind| kind.verbs.iter().any(|verb| verb.name == ListVdisks::INFO.name);
    devices(client, |kind| kind.capabilities.holds_volumes && !has_lists(kind))
}

fn devices(client: &Client, is_it: impl Fn(&Kind) -> bool) -> Vec<Path> {
    let graph = client.get(&routes::GRAPH).ok().into_iter();
    let nodes = graph.flat_map(|graph| graph.nodes);
    let nodes = nodes.filter(|node| REGISTRY.find(&node.kind).is_some_and(&is_it));
    nodes.map(|node| vec![node.name]).collect()
}

/// Returns the virtual disk and the snapshot in the name of a version. A clone that was made when its name was first
/// opened has an `@` in its own name, before a `+`.
pub fn parts(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('@') {
        Some((vdisk, snapshot)) if !snapshot.contains('+') => (vdisk, Some(snapshot)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_finds_snapshot_behind_last_at_sign() {
        assert_eq!(parts("web"), ("web", None));
        assert_eq!(parts("web@monday"), ("web", Some("monday")));
        assert_eq!(parts("gold@v1+job"), ("gold@v1+job", None));
        assert_eq!(parts("gold@v1+job@3"), ("gold@v1+job", Some("3")));
    }
}
