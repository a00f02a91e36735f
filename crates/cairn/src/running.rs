//! The running graphs of this user, and the choice of one of them for a live verb.

use std::path::{Path, PathBuf};

use api::{Client, KeptGraph, Problem, VolumeName, routes};
use clap::Args;

use crate::complete;
use crate::exit::{Exit, Failure, Result};
use crate::names::{self, Path as Names, Unresolved};
use crate::place;

/// A function that finds the object that a word names.
type Resolve = fn(&str, Vec<(Names, (Client, String))>) -> Result<(Client, String), Unresolved>;

/// Choice of the running graph for a live verb.
#[derive(Args, Default)]
pub struct At {
    /// The graph, or its control socket, if more than one is running
    #[arg(long, value_name = "GRAPH|SOCKET", add = complete::graph_or_socket())]
    at: Option<PathBuf>,
}

/// Choice of running graphs for a live verb that takes the name of a graph as its argument too.
#[derive(Args)]
pub struct Named {
    /// The graph, as with --at
    #[arg(value_name = "GRAPH", conflicts_with = "at", add = complete::kept_or_running_graph())]
    graph: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

impl Named {
    /// Returns the choice of the graph, by its argument or by `--at`.
    pub fn at(self) -> At {
        self.graph.map_or(self.at, At::of)
    }
}

impl At {
    /// Returns the choice of the graph of that name, or of the graph at that control socket.
    pub fn of(at: PathBuf) -> Self {
        Self { at: Some(at) }
    }

    /// Whether `--at` chooses the graph called `name` by its name.
    pub fn is_named(&self, name: &str) -> bool {
        self.at.as_deref() == Some(Path::new(name))
    }

    /// Whether `--at` is not given, so that any graph of this user may be meant.
    pub fn is_any(&self) -> bool {
        self.at.is_none()
    }

    /// Returns a client of the graph that `--at` chooses; without `--at`, of the only running graph.
    ///
    /// # Errors
    /// `NotFound` if no graph runs; `Usage` with the list of graphs if several run.
    pub fn one(&self) -> Result<Client> {
        only(self.all()?, "are running")
    }

    /// Returns a client of the only running graph; if several run, of the graph for which `is_it` is true. `what`
    /// describes this condition for messages: `has an export vol`.
    ///
    /// # Errors
    /// `NotFound` if no graph runs, or none of several meets the condition; `Usage` with a list if several meet it.
    pub fn one_that(&self, what: &str, is_it: impl Fn(&Client) -> bool) -> Result<Client> {
        let all = self.all()?;
        if all.len() == 1 {
            return only(all, "are running");
        }
        let found: Vec<_> = all.iter().filter(|client| is_it(client)).cloned().collect();
        if found.is_empty() {
            return Err(failure!(NotFound, "no running graph {what}{}", named(&all)));
        }
        only(found, &format!("match: each {what}"))
    }

    /// Returns a client of the graph with the object that `word` names, and the name of the object in the graph.
    /// `things` lists the paths of all such objects of one graph, without the graph's name; `sort` is a noun: `a
    /// disk`; `resolve` is [`names::resolve`] or [`names::resolve_or_only`].
    ///
    /// # Errors
    /// `NotFound` if `word` names no object; `Usage` if it names several. But if only one graph runs, an unknown word
    /// is returned as a name in that graph, whose own error message lists its objects.
    pub fn owner(
        &self,
        sort: &str,
        word: &str,
        resolve: Resolve,
        things: impl Fn(&Client) -> Vec<Names>,
    ) -> Result<(Client, String)> {
        let all = self.all()?;
        let mut known = Vec::new();
        for client in &all {
            let Ok(graph) = client.get(&routes::GRAPH) else { continue };
            known.extend(things(client).into_iter().map(|below| {
                let name = below.join("/");
                ([vec![graph.name.clone()], below].concat(), (client.clone(), name))
            }));
        }
        match (resolve(word, known), &all[..]) {
            (Ok(found), _) => Ok(found),
            (Err(Unresolved::Unknown), [client]) => {
                let graph =
                    client.get(&routes::GRAPH).map(|graph| graph.name + "/").unwrap_or_default();
                let name = word.strip_prefix(&graph).unwrap_or(word);
                Ok((client.clone(), name.to_owned()))
            }
            (Err(unresolved), _) => {
                let unknown = || format!("no running graph has {sort} named {word}{}", named(&all));
                Err(unresolved.refuse(word, unknown))
            }
        }
    }

    /// Returns a client of the graph with the export that `word` names, and the name of the export in the graph.
    ///
    /// # Errors
    /// As [`At::owner`].
    pub fn owner_of_export(&self, word: &str) -> Result<(Client, String)> {
        // A volume is named by the last two names of the word: DEVICE/VOLUME.
        let names: Vec<_> = word.rsplitn(3, '/').take(2).map(str::to_owned).collect();
        let exports = |client: &Client| {
            let graph = client.get(&routes::GRAPH).ok().into_iter();
            let exports = graph.flat_map(|graph| graph.exports).map(|export| vec![export.name]);
            let volume = match &names[..] {
                [volume, device] => Some(vec![device.clone(), volume.clone()]),
                _ => None,
            };
            let is_there = |path: &Vec<String>| {
                let name = VolumeName { name: path.join("/") };
                client.ask(&routes::VOLUME, &name).is_ok()
            };
            exports.chain(volume.filter(is_there)).collect()
        };
        self.owner("an export", word, names::resolve, exports)
    }

    /// Returns a client of the graph called `name`; `None` if it does not run. With `--at`, returns that of the
    /// chosen graph, of any name.
    ///
    /// # Errors
    /// `Denied` if other users could have created sockets in the directory; with `--at`, as [`At::all`].
    pub fn named(&self, name: &str) -> Result<Option<Client>> {
        match &self.at {
            Some(at) => meant(at).map(Some),
            None => Ok(running()?.into_iter().find(|client| is_called(client, name))),
        }
    }

    /// Returns clients of all running graphs; with `--at`, of the chosen graph.
    ///
    /// # Errors
    /// `NotFound` if no graph runs; `Damaged` if a daemon keeps the chosen graph, and the graph does not run.
    pub fn all(&self) -> Result<Vec<Client>> {
        if let Some(at) = &self.at {
            return Ok(vec![meant(at)?]);
        }
        let all = running()?;
        if all.is_empty() {
            return Err(match kept()? {
                Some(graphs) => {
                    Failure::new(Exit::NotFound, idle_words(&graphs)).next(idle_next(&graphs))
                }
                None => Failure::new(Exit::NotFound, "no graph and no daemon is running")
                    .next("cairn serve SPEC|FILE; or cairn daemon, and then cairn apply SPEC"),
            });
        }
        Ok(all)
    }
}

/// Returns the only client of the list. Fails if the list has several.
fn only(all: Vec<Client>, what: &str) -> Result<Client> {
    if let [client] = &all[..] {
        return Ok(client.clone());
    }
    let names = names_of(&all);
    let list = all.iter().zip(&names).map(|(client, name)| match name {
        // A second graph of that name can be chosen by its socket only.
        Some(name) if names.iter().flatten().filter(|other| *other == name).count() == 1 => {
            format!("\n  --at {name}")
        }
        _ => format!("\n  --at {}", client.path().display()),
    });
    let (count, list) = (all.len(), list.collect::<String>());
    Err(failure!(Usage, "{count} graphs {what}").next(format!("choose a graph by one of{list}")))
}

/// Returns the name of the graph of each client; `None` for a graph that does not answer.
fn names_of(all: &[Client]) -> Vec<Option<String>> {
    all.iter().map(|client| client.get(&routes::GRAPH).ok().map(|graph| graph.name)).collect()
}

/// Returns the end of a message about an unknown name, with the names of the running graphs.
fn named(all: &[Client]) -> String {
    let names: Vec<_> = names_of(all).into_iter().flatten().collect();
    names::listed(names.iter().map(|name| &**name), "", "; running:")
}

/// Returns a client of the graph that `--at` chooses. A word without a slash is the name of a graph, or else the path
/// of a socket in this directory.
///
/// # Errors
/// `Damaged` with the daemon's reason, if a daemon keeps that graph and the graph does not run; `NotFound` with the
/// names of running graphs, if neither a graph nor a file has this name.
fn meant(at: &Path) -> Result<Client> {
    let Some(name) = at.to_str().filter(|name| !name.contains('/')) else {
        return Ok(Client::new(at));
    };
    let all = running().unwrap_or_default();
    if let Some(found) = all.iter().find(|client| is_called(client, name)) {
        return Ok(found.clone());
    }
    is_not_kept(name)?;
    if at.exists() {
        return Ok(Client::new(at));
    }
    let none = "; no graph is running";
    let known = match &named(&all)[..] {
        "" => none.to_owned(),
        known => known.to_owned(),
    };
    Err(failure!(NotFound, "no running graph is called {name}{known}").next("cairn status"))
}

/// Fails if a daemon keeps the graph called `name`, which has no control socket.
fn is_not_kept(name: &str) -> Result<()> {
    let kept = daemon().and_then(|daemon| daemon.get(&routes::DAEMON).ok());
    let graphs = kept.into_iter().flat_map(|daemon| daemon.graphs);
    let Some(kept) = graphs.into_iter().find(|graph| graph.name == name) else { return Ok(()) };
    let words = format!("the daemon keeps {name}, but its worker does not run");
    Err(match kept.problem {
        None => Failure::new(Exit::Damaged, words).next("cairn status"),
        Some(problem) => {
            let next = problem.next.unwrap_or_else(|| "cairn status".to_owned());
            failure!(Damaged, "{words}: {}", problem.message).next(next)
        }
    })
}

/// Whether the graph of the client is called `name`.
pub fn is_called(client: &Client, name: &str) -> bool {
    client.get(&routes::GRAPH).is_ok_and(|graph| graph.name == name)
}

/// Returns a client of each control socket that accepts connections, in the order of the paths. Removes the sockets
/// of processes that have ended.
///
/// # Errors
/// `Denied` if other users could have created sockets in the directory.
pub fn running() -> Result<Vec<Client>> {
    let lives = |path: PathBuf| {
        let client = Client::new(path);
        match client.connect() {
            Ok(_) => Some(client),
            Err(error) => {
                if error.kind() == std::io::ErrorKind::ConnectionRefused {
                    // A socket that cannot be removed is skipped the next time too.
                    let _ = std::fs::remove_file(client.path());
                }
                None
            }
        }
    };
    Ok(sockets()?.into_iter().filter_map(lives).collect())
}

/// Returns the paths of the control sockets of graphs, sorted. The server of a socket may have ended.
///
/// # Errors
/// `Denied` if other users could have created sockets in the directory.
pub fn sockets() -> Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(place::control()) else { return Ok(Vec::new()) };
    place::check(&place::directory())?;
    place::check(&place::control())?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| api::is_heard(path));
    paths.sort();
    Ok(paths)
}

/// Returns the graphs that this user's daemon keeps; `None` if no daemon runs.
///
/// # Errors
/// The problem of a daemon that does not answer.
pub fn kept() -> Result<Option<Vec<KeptGraph>>> {
    let view = daemon().map(|daemon| daemon.get(&routes::DAEMON)).transpose()?;
    Ok(view.map(|daemon| daemon.graphs))
}

/// Returns the line about a daemon that runs none of the graphs that it keeps. An idle daemon is not an error.
pub fn idle(kept: &[KeptGraph]) -> String {
    format!("{}. Next: {}\n", idle_words(kept), idle_next(kept))
}

fn idle_words(kept: &[KeptGraph]) -> String {
    let names = kept.iter().map(|graph| &*graph.name);
    format!("the daemon runs no graph{}", names::listed(names, "", "; it keeps"))
}

fn idle_next(kept: &[KeptGraph]) -> &'static str {
    match kept {
        [] => "cairn apply SPEC, or cairn import",
        _ => "cairn status",
    }
}

/// Returns a client of this user's daemon, if its control socket accepts connections.
pub fn daemon() -> Option<Client> {
    let client = Client::new(place::daemon());
    place::check(&place::directory()).ok()?;
    client.connect().ok().map(|_| client)
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let failure = Self::of(problem.exit, problem.message);
        match problem.next {
            Some(next) => failure.next(next),
            None => failure,
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let problem = Self::new(failure.code, "");
        match &failure.causes[..] {
            [cause] => {
                let message = match cause.place() {
                    Some(place) => format!("{place}: {}", cause.message()),
                    None => cause.message().to_owned(),
                };
                let next = cause.next_step().map(str::to_owned);
                let reason = cause.reason().map(|reason| reason.code().to_owned());
                Self { message, next, reason, ..problem }
            }
            _ => Self { message: failure.to_string(), ..problem },
        }
    }
}
