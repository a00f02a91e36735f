//! What runs on this machine for this user, and which of it is meant.

use std::path::{Path, PathBuf};

use api::{Client, Problem};
use clap::Args;

use crate::exit::{Exit, Failure, Result};
use crate::names::{self, Path as Names, Unresolved};
use crate::place;

/// A rule by which a word names one of several things.
type Resolve = fn(&str, Vec<(Names, (Client, String))>) -> Result<(Client, String), Unresolved>;

/// Which running graph a live verb asks.
#[derive(Args, Default)]
pub struct At {
    /// The graph to ask, or its control socket, where more than one is running
    #[arg(long, value_name = "GRAPH|SOCKET")]
    at: Option<PathBuf>,
}

impl At {
    /// The graph of that name, or the one at that socket.
    pub fn of(at: PathBuf) -> Self {
        Self { at: Some(at) }
    }

    /// Whether none is named.
    pub fn is_any(&self) -> bool {
        self.at.is_none()
    }

    /// The one that is meant.
    ///
    /// # Errors
    /// `NotFound` if nothing runs, `Usage` with the list if more than one does.
    pub fn one(&self) -> Result<Client> {
        only(self.all()?, "are running")
    }

    /// The one that is meant: of several the one that `is_it`. `what` that is, in words: `has an export vol`.
    ///
    /// # Errors
    /// `NotFound` if nothing runs, or none of several is it; `Usage` with the list if more than one is.
    pub fn one_that(&self, what: &str, is_it: impl Fn(&Client) -> bool) -> Result<Client> {
        let all = self.all()?;
        if all.len() == 1 {
            return only(all, "are running");
        }
        let found: Vec<_> = all.into_iter().filter(|client| is_it(client)).collect();
        if found.is_empty() {
            let why = format!("no graph that is running {what}");
            return Err(Failure::new(Exit::NotFound, why).next("cairn ls"));
        }
        only(found, &format!("could be meant: each {what}"))
    }

    /// Returns the graph with the thing that a word names, and the thing's name there. `things` lists the paths of all such
    /// things of one graph, below the graph; `sort` is a noun: `a disk`.
    ///
    /// # Errors
    /// `NotFound` if the word names none, `Usage` if it names several. If only one graph runs it returns the word below that graph:
    /// that graph's refusal lists the things that it has.
    pub fn owner(
        &self,
        sort: &str,
        word: &str,
        things: impl Fn(&Client) -> Vec<Names>,
    ) -> Result<(Client, String)> {
        self.find(sort, word, things, names::resolve)
    }

    /// As [`At::owner`]. The name of a graph alone stands for the only such thing in it.
    ///
    /// # Errors
    /// As [`At::owner`].
    pub fn owner_or_only(
        &self,
        sort: &str,
        word: &str,
        things: impl Fn(&Client) -> Vec<Names>,
    ) -> Result<(Client, String)> {
        self.find(sort, word, things, names::resolve_or_only)
    }

    fn find(
        &self,
        sort: &str,
        word: &str,
        things: impl Fn(&Client) -> Vec<Names>,
        resolve: Resolve,
    ) -> Result<(Client, String)> {
        let all = self.all()?;
        let mut known = Vec::new();
        for client in &all {
            let Ok(graph) = client.graph() else { continue };
            known.extend(things(client).into_iter().map(|below| {
                let name = below.join("/");
                ([vec![graph.name.clone()], below].concat(), (client.clone(), name))
            }));
        }
        match (resolve(word, known), &all[..]) {
            (Ok(found), _) => Ok(found),
            (Err(Unresolved::Unknown), [client]) => {
                let graph = client.graph().map(|graph| graph.name + "/").unwrap_or_default();
                let name = word.strip_prefix(&graph).unwrap_or(word);
                Ok((client.clone(), name.to_owned()))
            }
            (Err(unresolved), _) => {
                let unknown = || format!("no graph that is running has {sort} {word}");
                let refusal = unresolved.refuse(word, unknown);
                let is_unknown = refusal.code == Exit::NotFound.code();
                Err(if is_unknown { refusal.next("cairn ls") } else { refusal })
            }
        }
    }

    /// As [`At::owner`], of an export.
    ///
    /// # Errors
    /// As [`At::owner`].
    pub fn owner_of_export(&self, word: &str) -> Result<(Client, String)> {
        let exports = |client: &Client| {
            let graph = client.graph().ok().into_iter();
            graph.flat_map(|graph| graph.exports).map(|export| vec![export.name]).collect()
        };
        self.owner("an export", word, exports)
    }

    /// The graph of that name, if it runs; the one at the socket that is named, whatever it is called.
    ///
    /// # Errors
    /// `Denied` if others could have put sockets there; as [`At::all`] of one that is named by `--at`.
    pub fn named(&self, name: &str) -> Result<Option<Client>> {
        match &self.at {
            Some(at) => meant(at).map(Some),
            None => Ok(running()?.into_iter().find(|client| is_called(client, name))),
        }
    }

    /// All that run, or the one that is named.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Damaged` if a daemon keeps it, and it does not run.
    pub fn all(&self) -> Result<Vec<Client>> {
        if let Some(at) = &self.at {
            return Ok(vec![meant(at)?]);
        }
        let all = running()?;
        if all.is_empty() {
            let (why, next) = match daemon() {
                Some(_) => ("no graph is up here", "cairn apply SPEC, or cairn import"),
                None => (
                    "nothing is running here",
                    "cairn serve SPEC|FILE; or cairn daemon, and then cairn apply SPEC",
                ),
            };
            return Err(Failure::new(Exit::NotFound, why).next(next));
        }
        Ok(all)
    }
}

/// The only one.
fn only(all: Vec<Client>, what: &str) -> Result<Client> {
    if let [client] = &all[..] {
        return Ok(client.clone());
    }
    let list = all.iter().map(|client| format!("\n  --at {}", client.path().display()));
    let (count, list) = (all.len(), list.collect::<String>());
    let why = format!("{count} graphs {what}");
    Err(Failure::new(Exit::Usage, why).next(format!("say which, with one of{list}")))
}

/// What `--at` says: a word that is no file is the name of a graph.
///
/// # Errors
/// `Damaged` if it is the name of one that a daemon keeps, and that does not run: with what the daemon knows.
fn meant(at: &Path) -> Result<Client> {
    let name = at.to_str().filter(|name| !name.contains('/') && !at.exists());
    let found = name.and_then(|name| {
        let all = running().unwrap_or_default();
        all.into_iter().find(|client| is_called(client, name))
    });
    match found {
        Some(found) => Ok(found),
        None => name.map_or(Ok(()), is_not_kept).map(|()| Client::new(at)),
    }
}

/// Whether the daemon, if there is one, knows nothing of a graph that does not answer.
fn is_not_kept(name: &str) -> Result<()> {
    let kept = daemon().and_then(|daemon| daemon.daemon().ok());
    let graphs = kept.into_iter().flat_map(|daemon| daemon.graphs);
    let Some(kept) = graphs.into_iter().find(|graph| graph.name == name) else { return Ok(()) };
    let words = format!("{name} is kept by the daemon, and does not run now");
    Err(match kept.problem {
        None => Failure::new(Exit::Damaged, words).next("cairn status"),
        Some(problem) => {
            let words = format!("{words}: {}", problem.message);
            let next = problem.next.unwrap_or_else(|| "cairn status".to_owned());
            Failure::new(Exit::Damaged, words).next(next)
        }
    })
}

fn is_called(client: &Client, name: &str) -> bool {
    client.graph().is_ok_and(|graph| graph.name == name)
}

/// Sockets at which somebody answers, by name. One whose process is gone is removed.
///
/// # Errors
/// `Denied` if others could have put sockets there.
pub fn running() -> Result<Vec<Client>> {
    let Ok(entries) = std::fs::read_dir(place::control()) else { return Ok(Vec::new()) };
    place::check(&place::directory())?;
    place::check(&place::control())?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| api::is_heard(path));
    paths.sort();
    let lives = |path: PathBuf| {
        let client = Client::new(path);
        match client.connect() {
            Ok(_) => Some(client),
            Err(error) => {
                if error.kind() == std::io::ErrorKind::ConnectionRefused {
                    // If it cannot be removed it is skipped the next time too.
                    let _ = std::fs::remove_file(client.path());
                }
                None
            }
        }
    };
    Ok(paths.into_iter().filter_map(lives).collect())
}

/// The daemon of this user, if one answers.
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
