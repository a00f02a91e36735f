//! Serves the connections of a listening socket by HTTP, within limits. So clients that send or read nothing use up
//! neither the descriptors nor the memory of the process.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::Problem;
use crate::server::refuse;

/// Limits of a listening socket on its clients.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Most connections at the same time.
    pub connections: usize,
    /// Whether a further client ends the oldest connection. Otherwise it waits until a connection ends.
    pub ends_oldest: bool,
    /// Longest time from the start of a connection, or from the last reply on it, until the head of the next request
    /// has arrived. Then the connection is closed.
    pub request_head: Duration,
    /// Longest time of a connection; [`Duration::MAX`] if clients may read events for ever.
    pub connection: Duration,
}

/// Limits of a control socket. Only processes of the same user reach it.
pub const CONTROL_LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 64,
    ends_oldest: false,
    request_head: Duration::from_secs(10),
    connection: Duration::MAX,
};

/// Limits of a port for metrics, which every process of the machine reaches.
pub const METRICS_LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 32,
    ends_oldest: true,
    request_head: Duration::from_secs(5),
    connection: Duration::from_secs(60),
};

/// Longest time from the head of a request until its body has arrived.
const BODY: Duration = Duration::from_secs(10);

/// Most bytes in the body of a request. The longest spec is several times shorter.
const BODY_MAX_BYTES: usize = 2 << 20;

/// Serves the clients of `listener` with `router` until the future `until` ends. Then completes the requests in
/// progress.
pub(crate) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    limits: ConnectionLimits,
    until: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = router.layer(axum::middleware::from_fn(receive_body));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.request_head);
    let graceful = GracefulShutdown::new();
    let (mut tasks, mut ages) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    let mut until = std::pin::pin!(until);
    loop {
        while tasks.try_join_next().is_some() {}
        let accept = async {
            while tasks.len() >= limits.connections && !limits.ends_oldest {
                tasks.join_next().await;
            }
            listener.accept().await.0
        };
        let client = tokio::select! {
            client = accept => client,
            () = &mut until => break,
        };
        ages.retain(|connection| !connection.is_finished());
        if ages.len() >= limits.connections
            && let Some(oldest) = ages.pop_front()
        {
            oldest.abort();
        }
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(client), service));
        ages.push_back(tasks.spawn(async move {
            // A client that breaks the protocol, or that disconnects, has no other consequence.
            let _ = timeout(limits.connection, connection).await;
        }));
    }
    drop(listener);
    graceful.shutdown().await;
    Ok(())
}

/// Receives the body of a request completely, within its limits, before the request is carried out.
async fn receive_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match timeout(BODY, to_bytes(body, BODY_MAX_BYTES)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(_)) => refuse(Problem::new(
            2,
            format!("the body of a request has at most {BODY_MAX_BYTES} bytes"),
        )),
        Err(_) => {
            refuse(Problem::new(2, format!("the body of the request did not arrive in {BODY:?}")))
        }
    }
}
