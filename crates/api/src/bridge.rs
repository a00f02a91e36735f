//! The bridge from the HTTP thread to the thread that owns the graph, and back.
//!
//! A question to the graph is a closure. The HTTP thread sends the closure through a bounded channel, and gets the
//! answer through another channel. Sending wakes the task on the thread of the graph. So neither thread polls, and a
//! bridge without requests costs nothing.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::Problem;
use crate::follow::FOLLOWERS_MAX;

/// Maximum number of questions that wait for the thread of the graph. Further questions wait for a place among them.
pub const JOBS_MAX: usize = 64;

/// The task on the thread of the graph that computes the answer to one question.
pub type Answering = Pin<Box<dyn Future<Output = ()>>>;

type GraphCall<G> = Box<dyn FnOnce(Rc<G>) -> Answering + Send>;

/// The end of a bridge to a graph `G` that sends questions, used by the HTTP thread.
pub struct Bridge<G> {
    jobs: mpsc::Sender<GraphCall<G>>,
    /// Free permits for clients that follow events.
    followers: Arc<Semaphore>,
}

/// The end of a bridge that receives questions, used by the thread of the graph.
pub struct Answers<G>(mpsc::Receiver<GraphCall<G>>);

/// Returns both ends of a new bridge to a graph.
pub fn bridge<G>() -> (Arc<Bridge<G>>, Answers<G>) {
    let (jobs, receiver) = mpsc::channel(JOBS_MAX);
    let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
    (Arc::new(Bridge { jobs, followers }), Answers(receiver))
}

impl<G: 'static> Bridge<G> {
    /// Returns a permit for a client that follows events, if one is free.
    pub(crate) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        self.followers.clone().try_acquire_owned().ok()
    }

    /// Runs `question` on the thread of the graph, and waits for its result. That thread runs other questions
    /// meanwhile. With `gives_up`, the question is dropped when the caller no longer waits for the result.
    ///
    /// # Errors
    /// If the thread of the graph has ended.
    pub async fn ask<T: Send + 'static>(
        &self,
        gives_up: bool,
        question: impl AsyncFnOnce(Rc<G>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (mut sender, receiver) = oneshot::channel();
        let answering = async move |graph: Rc<G>| {
            let mut answer = pin!(question(graph));
            let answer = poll_fn(|cx| match gives_up && sender.poll_closed(cx).is_ready() {
                true => Poll::Ready(None),
                false => answer.as_mut().poll(cx).map(Some),
            });
            if let Some(answer) = answer.await {
                // The caller may have stopped waiting just now.
                let _ = sender.send(answer);
            }
        };
        let job: GraphCall<G> = Box::new(move |graph| Box::pin(answering(graph)));
        self.jobs.send(job).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())
    }
}

fn gone() -> Problem {
    Problem::new(1, "the graph is stopping".to_owned())
}

impl<G> Answers<G> {
    /// Receives the questions of the bridge, and calls `spawn` with a task that runs each question on `graph`. Ends
    /// when the other end of the bridge is dropped.
    pub async fn run(mut self, graph: Rc<G>, spawn: impl Fn(Answering)) {
        while let Some(job) = self.0.recv().await {
            spawn(job(graph.clone()));
        }
    }
}
