//! Events as they happen: one response that goes on, with a line of JSON for each event. Nothing polls, and a graph
//! without events causes no work.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::{Bridge, EventLine, Problem};

/// The largest number of event followers. A further one is refused.
pub const FOLLOWERS_MAX: usize = 32;

/// One JSON value in each line.
const CONTENT_TYPE: &str = "application/x-ndjson";

type Next = Pin<Box<dyn Future<Output = Result<Vec<EventLine>, Problem>> + Send>>;

/// The response to a follower.
struct Lines {
    bridge: Bridge,
    /// Number of the last event that was sent.
    last: u64,
    next: Option<Next>,
    _seat: OwnedSemaphorePermit,
}

/// Returns a response with all events after number `after`. It does not end before the graph does.
pub(crate) fn follow(bridge: Bridge, after: u64) -> Response {
    let Some(seat) = bridge.follower() else {
        let message = format!("{FOLLOWERS_MAX} programs follow the events already");
        return crate::server::refuse(Problem::new(5, message).next("end one of them"));
    };
    let lines = Lines { bridge, last: after, next: None, _seat: seat };
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(lines)).into_response()
}

impl Stream for Lines {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { bridge, last, next, .. } = &mut *self;
        let future = next.get_or_insert_with(|| {
            let (bridge, last) = (bridge.clone(), *last);
            Box::pin(async move { bridge.ask_while(move |live| live.next_events(last)).await })
        });
        let told = ready!(future.as_mut().poll(cx));
        *next = None;
        let Ok(events) = told else {
            // The graph is going down, which ends the response.
            return Poll::Ready(None);
        };
        *last = events.last().map_or(*last, |event| event.number);
        let line = |event| serde_json::to_string(event).expect("it is plain data") + "\n";
        Poll::Ready(Some(Ok(events.iter().map(line).collect())))
    }
}
