//! The bridge from the HTTP thread to the core that owns the graph, and back.
//!
//! A question is a closure. It travels through a bounded channel, and its answer comes back through another one.
//! Sending wakes the task on the core through its waker, which any thread may do. So nothing polls, and an idle
//! bridge costs nothing.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::follow::FOLLOWERS_MAX;
use crate::{Later, Live, Problem};

/// The largest number of questions in flight. A further question waits.
pub const JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce(&dyn Live) + Send>;

/// The asking end of a bridge.
#[derive(Clone)]
pub struct Bridge {
    jobs: mpsc::Sender<Job>,
    /// Free places for event followers.
    followers: Arc<Semaphore>,
}

/// The answering end of a bridge.
pub struct Answers(mpsc::Receiver<Job>);

/// Returns both ends of a new bridge.
pub fn bridge() -> (Bridge, Answers) {
    let (sender, receiver) = mpsc::channel(JOBS_MAX);
    let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
    (Bridge { jobs: sender, followers }, Answers(receiver))
}

impl Bridge {
    /// Reserves a place for an event follower, if one is free.
    pub(crate) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        self.followers.clone().try_acquire_owned().ok()
    }

    /// Asks as [`Bridge::ask_later`] does, for an answer that may never come. The core waits for the answer only as
    /// long as the caller does.
    ///
    /// # Errors
    /// If the core is gone.
    pub(crate) async fn ask_while<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> Later<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (mut sender, receiver) = oneshot::channel();
        let begun = self.ask(move |live| {
            let mut answer = ask(live);
            live.spawn(Box::pin(async move {
                let answer = poll_fn(|cx| match sender.poll_closed(cx) {
                    Poll::Ready(()) => Poll::Ready(None),
                    Poll::Pending => answer.as_mut().poll(cx).map(Some),
                });
                if let Some(answer) = answer.await {
                    // The caller may have gone away just now.
                    let _ = sender.send(answer);
                }
            }));
        });
        begun.await?;
        receiver.await.map_err(|_| gone())
    }

    /// Asks as [`Bridge::ask`] does, for an answer that takes time. The core answers other questions meanwhile.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn ask_later<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> Later<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (sender, receiver) = oneshot::channel();
        let begun = self.ask(move |live| {
            let answer = ask(live);
            live.spawn(Box::pin(async move {
                // The caller may have gone away.
                let _ = sender.send(answer.await);
            }));
        });
        begun.await?;
        receiver.await.map_err(|_| gone())
    }

    /// Asks a question, and waits for the answer.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |live| {
            // The caller may have gone away.
            let _ = sender.send(ask(live));
        });
        self.jobs.send(job).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())
    }
}

fn gone() -> Problem {
    Problem::new(1, "the graph is going down".to_owned())
}

impl Answers {
    /// Answers every question, in order, on the core of `live`. Ends when all bridges are dropped.
    pub async fn run(mut self, live: Rc<dyn Live>) {
        while let Some(job) = self.0.recv().await {
            job(&*live);
        }
    }
}
