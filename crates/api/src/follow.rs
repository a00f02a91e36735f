//! The response that reports events as they happen: it continues without an end, with a line of JSON for each event.
//! The server does not poll, so a graph without events causes no work.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::unfold;

use crate::routes::FOLLOW;
use crate::server::{Handler, refuse};
use crate::{Bridge, EventLine, EventsAfter, Problem};

/// Maximum number of clients that follow events at one time. The server refuses further ones.
pub const FOLLOWERS_MAX: usize = 32;

/// Content type of the response: one JSON value in each line.
const CONTENT_TYPE: &str = "application/x-ndjson";

/// Returns the handler of requests to follow events. `next` returns the events with numbers above a given one, as soon
/// as there are any.
pub fn follow<G: 'static>(
    next: impl AsyncFn(Rc<G>, u64) -> Vec<EventLine> + Copy + Send + Sync + 'static,
) -> Handler<Arc<Bridge<G>>> {
    let handler =
        get(async move |State(bridge), Query(EventsAfter { after })| respond(bridge, after, next));
    (FOLLOW.path, handler)
}

/// Returns a response with all events whose numbers are above `after`. The response ends when the graph is closed.
fn respond<G: 'static>(
    bridge: Arc<Bridge<G>>,
    after: u64,
    next: impl AsyncFn(Rc<G>, u64) -> Vec<EventLine> + Copy + Send + Sync + 'static,
) -> Response {
    let Some(seat) = bridge.follower() else {
        let message = format!("{FOLLOWERS_MAX} programs follow the events already");
        return refuse(Problem::new(5, message).next("end one of these programs"));
    };
    // The permit of the follower lasts as long as the response.
    let lines = unfold((bridge, after, seat), move |(bridge, last, seat)| async move {
        let told = bridge.ask(true, async move |graph| next(graph, last).await).await;
        // An error means that the graph is being closed, which ends the response.
        let events = told.ok()?;
        let last = events.last().map_or(last, |event| event.number);
        let line = |event| serde_json::to_string(event).expect("an event is valid JSON") + "\n";
        let lines: String = events.iter().map(line).collect();
        Some((Ok::<_, Infallible>(lines), (bridge, last, seat)))
    });
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(lines)).into_response()
}
