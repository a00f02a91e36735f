//! The requests of the control socket of a daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::metrics::{self, Sample};
use api::{Client, GraphSource, Handler, KeptGraph, UpRequest, routes};
use supervisor::{Options, Record, Source};
use tokio::task::JoinSet;

use super::graphs::Graphs;
use crate::exit::{Failure, Result};
use crate::place;

/// Returns the handlers of the control socket, one for each route.
pub fn handlers() -> Vec<Handler<Arc<Graphs>>> {
    vec![
        routes::DAEMON.handler(async |graphs: Arc<Graphs>, _| Ok::<_, Failure>(graphs.describe())),
        routes::UP.handler(|graphs: Arc<Graphs>, request| {
            let (record, words) = record(request);
            apart(async move { graphs.bring_up(record, words).await })
        }),
        routes::STOP.handler(|graphs: Arc<Graphs>, graph| {
            apart(async move { graphs.stop(&graph.name).await })
        }),
        routes::RENEW.handler(async |graphs: Arc<Graphs>, graph| graphs.renew(&graph.name).await),
        routes::LEAVE.bare(|graphs: Arc<Graphs>| {
            apart(async move {
                let view = graphs.describe();
                graphs.leave_all(false).await?;
                graphs.goes();
                Ok(view)
            })
        }),
        figures(),
    ]
}

/// Longest wait for the figures of a graph. All graphs are asked at the same time.
const FIGURES: Duration = Duration::from_secs(1);

/// Returns the handler for the metrics of all graphs.
pub fn figures() -> Handler<Arc<Graphs>> {
    api::figures(async |graphs: Arc<Graphs>| {
        let daemon = graphs.describe();
        let mut asked = JoinSet::new();
        for graph in daemon.graphs.clone() {
            let sampled = tokio::task::spawn_blocking(move || sample(&graph));
            asked.spawn(tokio::time::timeout(FIGURES, sampled));
        }
        let sampled = asked.join_all().await;
        let mut samples: Vec<_> =
            sampled.into_iter().filter_map(|sampled| sampled.ok()?.ok()?).collect();
        samples.sort_by(|one, other| one.graph.name.cmp(&other.graph.name));
        Ok(metrics::page(&samples, Some(&daemon)))
    })
}

/// Carries out a request in a task of its own, so that the request is carried out even if its client disconnects.
async fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.map_err(|_| gone())?
}

/// Returns the figures of a graph from its worker; `None` if the worker does not answer.
fn sample(graph: &KeptGraph) -> Option<Sample> {
    let worker = Client::new(place::control_of(&graph.name, graph.pid?)).within(FIGURES);
    Some(Sample {
        graph: worker.get(&routes::GRAPH).ok()?,
        status: worker.get(&routes::STATUS).ok()?,
        top: worker.get(&routes::TOP).ok()?,
    })
}

fn gone() -> Failure {
    failure!(Other, "the daemon is stopping")
}

/// Returns the record of a graph for a request, and the worker's arguments that apply to its first start only.
fn record(request: UpRequest) -> (Record, Vec<String>) {
    let UpRequest { name, directory, source, read_only, degraded, .. } = request;
    let UpRequest { listen, insecure, wipe, trust, take, accept_loss, keys, .. } = request;
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
    words.extend(accept_loss.then(|| "--accept-loss".to_owned()));
    let key = |(device, file): (String, PathBuf)| {
        ["--key".to_owned(), format!("{name}/{device}={}", file.display())]
    };
    words.extend(keys.into_iter().flat_map(key));
    (Record { name, directory, source, next: None, options }, words)
}
