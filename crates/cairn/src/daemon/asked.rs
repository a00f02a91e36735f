//! The requests at the control socket of a daemon.

use std::path::PathBuf;
use std::sync::Arc;

use api::metrics::Sample;
use api::{
    Answering, Client, DaemonView, GraphSource, Keeps, KeptGraph, KeptName, Problem, UpRequest,
};
use supervisor::{Options, Record, Source};

use super::graphs::Graphs;
use crate::exit::Result;
use crate::place;

impl Keeps for Graphs {
    fn view(&self) -> DaemonView {
        self.describe()
    }

    fn up(self: Arc<Self>, request: UpRequest) -> Answering<KeptGraph> {
        let (record, words) = record(request);
        apart(async move { self.bring_up(record, words).await })
    }

    fn stop(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph> {
        apart(async move { Graphs::stop(&self, &graph.name).await })
    }

    fn renew(self: Arc<Self>, graph: KeptName) -> Answering<KeptGraph> {
        Box::pin(async move { Graphs::renew(&self, &graph.name).await.map_err(Problem::from) })
    }

    fn metrics(self: Arc<Self>) -> Answering<String> {
        Box::pin(async move {
            let daemon = self.describe();
            let sampled = tokio::task::spawn_blocking(move || {
                let samples: Vec<_> = daemon.graphs.iter().filter_map(sample).collect();
                api::metrics::page(&samples, Some(&daemon))
            });
            sampled.await.map_err(|_| gone())
        })
    }

    fn leave(self: Arc<Self>) -> Answering<DaemonView> {
        apart(async move {
            let view = self.describe();
            self.leave_all(false).await?;
            self.goes();
            Ok(view)
        })
    }
}

/// Carries out a request in a task of its own: its client may disconnect, and it is carried out all the same.
fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Answering<T> {
    let work = tokio::spawn(work);
    Box::pin(async move { work.await.map_err(|_| gone())?.map_err(Problem::from) })
}

/// Returns the figures of a graph from its worker. A graph that does not answer appears only in the daemon's own
/// figures.
fn sample(graph: &KeptGraph) -> Option<Sample> {
    let worker = Client::new(place::control_of(&graph.name, graph.pid?));
    Some(Sample {
        graph: worker.graph().ok()?,
        status: worker.status().ok()?,
        top: worker.top().ok()?,
    })
}

fn gone() -> Problem {
    Problem::new(1, "the daemon is going down".to_owned())
}

/// Returns the record to keep for a request, and the arguments for its first start only.
fn record(request: UpRequest) -> (Record, Vec<String>) {
    let UpRequest { name, directory, source, read_only, degraded, .. } = request;
    let UpRequest { listen, insecure, wipe, trust, take, keys, .. } = request;
    let source = match source {
        GraphSource::Spec { file, text, variables } => Source::Spec { file, text, variables },
        GraphSource::Labels { text, disks, keys, options } => {
            Source::Labels { text, disks, keys, options }
        }
    };
    let options = Options { read_only, degraded, insecure, listen };
    let each = |word: &'static str, names: Vec<String>| {
        names.into_iter().flat_map(move |name| [word.to_owned(), name])
    };
    let mut words: Vec<_> = each("--wipe", wipe).chain(each("--trust", trust)).collect();
    words.push("--first".to_owned());
    words.extend(take.then(|| "--take".to_owned()));
    let key = |(device, file): (String, PathBuf)| {
        ["--key".to_owned(), format!("{name}/{device}={}", file.display())]
    };
    words.extend(keys.into_iter().flat_map(key));
    (Record { name, directory, source, next: None, options }, words)
}
