//! The words that fit an argument: names in running graphs, specs, kinds, sources of keys.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path as FilePath;

use api::{Client, DeviceStatus, GraphView, VolumeView, VolumesAfter, routes};
use block::control::Verb;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use kind::{Kind, Lowers};

use super::ask;
use crate::man;
use crate::names::Path;
use crate::registry::REGISTRY;

/// Maximum number of offered names of volumes of one graph.
const VOLUMES_MAX: usize = 1000;

/// The sources of a key, as far as they are the same everywhere.
const SOURCES: [&str; 4] = ["ask", "file:", "fd:", "credential:"];

/// Returns the names of running graphs, and paths of sockets, for `--at`.
pub fn graph_or_socket() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let is_path = current.to_string_lossy().contains('/');
        if is_path { PathCompleter::any().complete(current) } else { begun(current, graphs()) }
    })
}

/// Returns the names of running graphs, and paths of specs.
pub fn graph_or_spec() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut words = begun(current, graphs());
        words.extend(specs().complete(current));
        words
    })
}

/// Returns the names of running graphs, and of graphs that a daemon keeps.
pub fn kept_or_running_graph() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let kept = ask::daemon().map(|daemon| daemon.graphs).unwrap_or_default();
        let mut names = graphs();
        names.extend(kept.into_iter().map(|graph| graph.name));
        names.sort();
        names.dedup();
        begun(current, names)
    })
}

/// Returns the names of the graphs that a daemon keeps.
pub fn kept_graph() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let graphs = ask::daemon().map(|daemon| daemon.graphs).unwrap_or_default();
        graphs.into_iter().map(|graph| CompletionCandidate::new(graph.name)).collect()
    })
}

/// Returns the paths of specs: files with names that end in `.toml`.
pub fn spec() -> ArgValueCompleter {
    ArgValueCompleter::new(specs())
}

/// Returns the names of exports.
pub fn export() -> ArgValueCompleter {
    named(1, |client| {
        let exports = client.get(&routes::GRAPH).ok()?.exports.into_iter();
        Some(exports.map(|export| vec![export.name]).collect())
    })
}

/// Returns the names of devices that hold volumes.
fn pools(client: &Client) -> Option<Vec<Path>> {
    Some(nodes(&client.get(&routes::GRAPH).ok()?, |kind| kind.capabilities.holds_volumes))
}

/// Returns the names of the first volumes of a graph.
fn volumes(client: &Client) -> Option<Vec<Path>> {
    let first = VolumesAfter { after: String::new(), most: VOLUMES_MAX };
    let volumes = client.ask(&routes::VOLUMES, &first).ok()?.volumes.into_iter();
    let path = |volume: VolumeView| volume.name.split('/').map(str::to_owned).collect();
    Some(volumes.map(path).collect())
}

/// Returns the names of volumes.
pub fn volume() -> ArgValueCompleter {
    named(2, volumes)
}

/// Returns the names of devices that hold volumes, and of volumes.
pub fn pool_or_volume() -> ArgValueCompleter {
    named(1, |client| Some([pools(client)?, volumes(client)?].concat()))
}

/// Returns the first part of the name of a new volume: the name of a device that holds volumes, and a slash.
pub fn in_pool() -> ArgValueCompleter {
    within(pools)
}

/// Returns the names of disks.
pub fn disk() -> ArgValueCompleter {
    named(1, |client| {
        Some(nodes(&client.get(&routes::GRAPH).ok()?, |kind| kind.lowers == Lowers::None))
    })
}

/// Returns the names of devices with key slots.
pub fn encrypted() -> ArgValueCompleter {
    let has_slots =
        |kind: &Kind| kind.verbs.iter().any(|verb| verb.name == kinds::keys::Keys::INFO.name);
    named(1, move |client| Some(nodes(&client.get(&routes::GRAPH).ok()?, has_slots)))
}

/// Returns the names of devices with copies that can be compared.
pub fn scrubbed() -> ArgValueCompleter {
    named(1, |client| {
        let has_scrub = |device: &DeviceStatus| device.scrub.is_some();
        let devices = client.get(&routes::STATUS).ok()?.devices.into_iter().filter(has_scrub);
        Some(devices.map(|device| vec![device.name]).collect())
    })
}

/// Returns the names of members, each with that of its device: `pair/a`.
pub fn member() -> ArgValueCompleter {
    named(2, |client| {
        let devices = client.get(&routes::STATUS).ok()?.devices.into_iter();
        let members = devices.flat_map(|device| {
            let path = move |member: api::Member| vec![device.name.clone(), member.name];
            device.members.into_iter().map(path)
        });
        Some(members.collect())
    })
}

/// Returns the first part of the name of a new member: the name of a device with members, and a slash.
pub fn new_member() -> ArgValueCompleter {
    within(|client| {
        let devices = client.get(&routes::STATUS).ok()?.devices.into_iter();
        let devices = devices.filter(|device| !device.members.is_empty());
        Some(devices.map(|device| vec![device.name]).collect())
    })
}

/// Returns names of devices, each with a slash, for the name of a new part of the device.
fn within(
    devices: impl Fn(&Client) -> Option<Vec<Path>> + Clone + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let devices = paths(devices.clone());
        let names = forms(&current.to_string_lossy(), 1, &devices).into_iter();
        names.map(|name| CompletionCandidate::new(format!("{name}/"))).collect()
    })
}

/// Returns the names of devices with jobs, and the numbers of jobs.
pub fn job() -> ArgValueCompleter {
    named(1, |client| {
        let jobs = client.get(&routes::JOBS).ok()?.into_iter();
        Some(jobs.flat_map(|job| [vec![job.device], vec![job.number.to_string()]]).collect())
    })
}

/// Returns the means by which an export is attached.
pub fn means() -> ArgValueCandidates {
    ArgValueCandidates::new(|| ["fuse", "nbd"].map(CompletionCandidate::new).into())
}

/// Returns the names of attached devices of this machine.
pub fn attached() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let all = ask::graphs(|client| Some(client.get(&routes::STATUS).ok()?.attached));
        let names = all.into_iter().flat_map(|(_, attached)| attached).map(|one| one.name);
        names.map(CompletionCandidate::new).collect()
    })
}

/// Returns the names of kinds.
pub fn kind() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let word =
            |kind: &Kind| CompletionCandidate::new(kind.name).help(Some(kind.summary.into()));
        REGISTRY.0.iter().map(word).collect()
    })
}

/// Returns the names of manual pages.
pub fn page() -> ArgValueCandidates {
    ArgValueCandidates::new(|| man::names().into_iter().map(CompletionCandidate::new).collect())
}

/// Returns the sources of a key.
pub fn key_source() -> ArgValueCompleter {
    ArgValueCompleter::new(sources)
}

/// Returns the sources of a key after `DEVICE=`.
pub fn key_source_of_device() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let text = current.to_string_lossy();
        let Some((device, source)) = text.split_once('=') else { return Vec::new() };
        let words = sources(OsStr::new(source)).into_iter();
        words.map(|word| word.add_prefix(format!("{device}="))).collect()
    })
}

fn sources(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    match text.strip_prefix("file:") {
        Some(path) => {
            let paths = PathCompleter::any().complete(OsStr::new(path)).into_iter();
            paths.map(|path| path.add_prefix("file:")).collect()
        }
        None => begun(current, SOURCES.map(str::to_owned).into()),
    }
}

fn specs() -> PathCompleter {
    PathCompleter::any().filter(|path: &FilePath| path.extension() == Some(OsStr::new("toml")))
}

/// Returns the words that begin with `current`.
fn begun(current: &OsStr, words: Vec<String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let begun = words.into_iter().filter(|word| word.starts_with(&*current));
    begun.map(CompletionCandidate::new).collect()
}

/// Returns the names of running graphs. An accepted connection is enough of an answer.
fn graphs() -> Vec<String> {
    ask::graphs(|client| client.connect().ok()).into_iter().map(|(name, _)| name).collect()
}

/// Returns the names of the nodes of a graph, those with a kind for which `is_it` is true.
fn nodes(graph: &GraphView, is_it: impl Fn(&Kind) -> bool) -> Vec<Path> {
    let is_it = |kind: &str| REGISTRY.find(kind).is_some_and(&is_it);
    let nodes = graph.nodes.iter().filter(|node| is_it(&node.kind));
    nodes.map(|node| vec![node.name.clone()]).collect()
}

/// Returns the words for the objects that `things` lists for a graph, by their paths without the graph's name. A word
/// has at least `least` names.
fn named(
    least: usize,
    things: impl Fn(&Client) -> Option<Vec<Path>> + Clone + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let paths = paths(things.clone());
        let words = forms(&current.to_string_lossy(), least, &paths).into_iter();
        words.map(CompletionCandidate::new).collect()
    })
}

/// Returns the full paths of the objects in all running graphs.
fn paths(things: impl Fn(&Client) -> Option<Vec<Path>> + Send + Sync + 'static) -> Vec<Path> {
    let all = ask::graphs(things).into_iter();
    let full = |(graph, things): (String, Vec<Path>)| {
        things.into_iter().map(move |below| [vec![graph.clone()], below].concat())
    };
    all.flat_map(full).collect()
}

/// Returns for each path the shortest word that begins with `current` and names this object alone, as in
/// [`crate::names`].
fn forms(current: &str, least: usize, paths: &[Path]) -> Vec<String> {
    let words = |path: &Path| -> Vec<String> {
        let (graph, own) = (&path[0], &path[path.len() - 1]);
        let ends = (least..=path.len()).map(|count| path[path.len() - count..].join("/"));
        let mut words: Vec<_> = ends.collect();
        // A member may be named without its device, and a device may have the name of its graph.
        let short = format!("{graph}/{own}");
        if !words.contains(&short) {
            words.push(short);
        }
        words
    };
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for path in paths {
        words(path).into_iter().for_each(|word| *count.entry(word).or_default() += 1);
    }
    let is_right = |word: &String| word.starts_with(current) && count[word] == 1;
    paths.iter().filter_map(|path| words(path).into_iter().find(is_right)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(paths: &[&str]) -> Vec<Path> {
        paths.iter().map(|path| path.split('/').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn completion_names_graph_only_where_name_is_ambiguous() {
        let all = split(&["home/vol", "home/all", "work/vol"]);
        assert_eq!(forms("", 1, &all), ["home/vol", "all", "work/vol"]);
        assert_eq!(forms("home/", 1, &all), ["home/vol", "home/all"]);
        assert_eq!(forms("v", 1, &all), [""; 0]);
    }

    #[test]
    fn completion_of_member_has_name_of_device_or_graph() {
        let all = split(&["home/pair/a", "home/pair/b", "home/far/b"]);
        assert_eq!(forms("", 2, &all), ["pair/a", "pair/b", "far/b"]);
        assert_eq!(forms("home/a", 2, &all), ["home/a"]);
        assert_eq!(forms("home/p", 2, &all), ["home/pair/a", "home/pair/b"]);
    }

    #[test]
    fn completed_words_name_objects_as_commands_resolve_them() {
        let all = split(&["home/pair/a", "home/pair/b", "work/pair/b", "work/home/a", "far/far/c"]);
        for (n, path) in all.iter().enumerate() {
            let numbered = all.iter().cloned().zip(0..);
            let word = &forms("", 2, &all)[n];
            assert_eq!(crate::names::resolve(word, numbered), Ok(n), "{word} {path:?}");
        }
    }
}
