//! The bridge from the HTTP thread to the core that owns the graph, and back.
//!
//! A question is a closure. It travels through a bounded channel, and its answer comes back through another one.
//! Sending wakes the task on the core through its waker, which any thread may do. So nothing polls, and an idle
//! bridge costs nothing.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::Problem;
use crate::follow::FOLLOWERS_MAX;

/// The largest number of questions in flight. A further question waits.
pub const JOBS_MAX: usize = 64;

/// A task that answers a question, on the core of the graph.
pub type Answering = Pin<Box<dyn Future<Output = ()>>>;

type Job<G> = Box<dyn FnOnce(Rc<G>) -> Answering + Send>;

/// The asking end of a bridge to a graph `G`.
pub struct Bridge<G> {
    jobs: mpsc::Sender<Job<G>>,
    /// Free places for event followers.
    followers: Arc<Semaphore>,
}

/// The answering end of a bridge.
pub struct Answers<G>(mpsc::Receiver<Job<G>>);

/// Returns both ends of a new bridge.
pub fn bridge<G>() -> (Arc<Bridge<G>>, Answers<G>) {
    let (jobs, receiver) = mpsc::channel(JOBS_MAX);
    let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
    (Arc::new(Bridge { jobs, followers }), Answers(receiver))
}

impl<G: 'static> Bridge<G> {
    /// Reserves a place for an event follower, if one is free.
    pub(crate) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        self.followers.clone().try_acquire_owned().ok()
    }

    /// Asks a question, and waits for the answer. The core answers other questions meanwhile. With `gives_up`, it works
    /// on the answer only as long as the caller waits.
    ///
    /// # Errors
    /// If the core is gone.
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
                // The caller may have gone away just now.
                let _ = sender.send(answer);
            }
        };
        let job: Job<G> = Box::new(move |graph| Box::pin(answering(graph)));
        self.jobs.send(job).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())
    }
}

fn gone() -> Problem {
    Problem::new(1, "the graph is stopping".to_owned())
}

impl<G> Answers<G> {
    /// Has every question about `graph` answered by a task of its own, which `spawn` starts. Ends when the bridge is
    /// dropped.
    pub async fn run(mut self, graph: Rc<G>, spawn: impl Fn(Answering)) {
        while let Some(job) = self.0.recv().await {
            spawn(job(graph.clone()));
        }
    }
}
