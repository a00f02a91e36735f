//! Questions to running graphs for completions, within a time limit: a person waits with a half-typed command, and a
//! server may be stopped or slow.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use api::{Client, DaemonView, routes};

use crate::{place, running};

/// Longest wait for all answers.
const PATIENCE: Duration = Duration::from_millis(150);

/// Most graphs that are asked at the same time.
const THREADS_MAX: usize = 16;

/// Asks all running graphs, or only the graph that `--at` of the command line chooses. Returns the name of each graph
/// with its answer. `question` returns `None` for a graph without an answer. Late answers are left out.
pub fn graphs<T: Send + 'static>(
    question: impl Fn(&Client) -> Option<T> + Send + Sync + 'static,
) -> Vec<(String, T)> {
    let mut paths = running::sockets().unwrap_or_default();
    match chosen() {
        Some(at) if at.to_string_lossy().contains('/') => paths = vec![at.into()],
        Some(at) => paths.retain(|path| at.to_str() == Some(&*graph_of(path))),
        None => {}
    }
    let question = move |path: &PathBuf| {
        let client = Client::new(path).within(PATIENCE);
        question(&client).map(|answer| (graph_of(path), answer))
    };
    each(paths, question)
}

/// Returns the graphs of the daemon, if it answers in time.
pub fn daemon() -> Option<DaemonView> {
    place::check(&place::directory()).ok()?;
    let ask = |path: &PathBuf| Client::new(path).within(PATIENCE).get(&routes::DAEMON).ok();
    each(vec![place::daemon()], ask).pop()
}

/// Returns the name of the graph with this control socket, `NAME-PID.sock`.
fn graph_of(path: &std::path::Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_owned()
}

/// Returns the value of `--at` on the command line that is completed.
fn chosen() -> Option<std::ffi::OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "--").peekable();
    while let Some(word) = words.next() {
        if word == "--at" {
            // The last word is still being typed.
            let value = words.next()?;
            return words.peek().is_some().then_some(value);
        }
        if let Some(value) = word.to_str().and_then(|word| word.strip_prefix("--at=")) {
            return words.peek().is_some().then(|| OsStr::new(value).to_owned());
        }
    }
    None
}

/// Returns the answers about the sockets at `paths` that arrive in time, in the order of the paths.
fn each<T: Send + 'static>(
    paths: Vec<PathBuf>,
    ask: impl Fn(&PathBuf) -> Option<T> + Send + Sync + 'static,
) -> Vec<T> {
    let deadline = Instant::now() + PATIENCE;
    let (paths, ask, next) = (Arc::new(paths), Arc::new(ask), Arc::new(AtomicUsize::new(0)));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..paths.len().min(THREADS_MAX) {
        let (paths, ask, next) = (paths.clone(), ask.clone(), next.clone());
        let sender = sender.clone();
        let work = move || {
            while let Some((n, path)) = {
                let n = next.fetch_add(1, Ordering::Relaxed);
                paths.get(n).map(|path| (n, path))
            } {
                // The receiver is gone when the time is over.
                let _ = sender.send((n, ask(path)));
            }
        };
        // A thread that cannot be started asks nothing.
        let _ = std::thread::Builder::new().name("cairn-complete".to_owned()).spawn(work);
    }
    drop(sender);
    let mut answers = Vec::new();
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        match receiver.recv_timeout(left) {
            Ok((n, answer)) => answers.extend(answer.map(|answer| (n, answer))),
            Err(_) => break,
        }
    }
    answers.sort_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
