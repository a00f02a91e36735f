//! From the thread that speaks HTTP to the core that owns the graph, and back.
//!
//! A question is a closure that travels through a bounded channel; its answer comes back through
//! another one. Sending wakes the core's task through its waker, which may come from any thread:
//! nobody polls, and a core that is asked nothing does nothing.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::follow::FOLLOWERS_MAX;
use crate::{Later, Live, Problem};

/// Questions on their way at once; who asks one more waits.
pub const JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce(&dyn Live) + Send>;

/// The side that asks.
#[derive(Clone)]
pub struct Bridge {
    jobs: mpsc::Sender<Job>,
    /// Free places for those who are told of events.
    followers: Arc<Semaphore>,
}

/// The side that answers.
pub struct Answers(mpsc::Receiver<Job>);

/// Both sides.
pub fn bridge() -> (Bridge, Answers) {
    let (sender, receiver) = mpsc::channel(JOBS_MAX);
    let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
    (Bridge { jobs: sender, followers }, Answers(receiver))
}

impl Bridge {
    /// A place for one who is told of events, if there is one.
    pub(crate) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        self.followers.clone().try_acquire_owned().ok()
    }

    /// As [`Bridge::ask_later`], of what may never come: it is waited for only as long as this is.
    ///
    /// # Errors
    /// If the core is gone.
    pub(crate) async fn ask_while<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> Later<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (mut tell, told) = oneshot::channel();
        let begun = self.ask(move |live| {
            let mut answer = ask(live);
            live.spawn(Box::pin(async move {
                let answer = poll_fn(|cx| match tell.poll_closed(cx) {
                    Poll::Ready(()) => Poll::Ready(None),
                    Poll::Pending => answer.as_mut().poll(cx).map(Some),
                });
                if let Some(answer) = answer.await {
                    // Who asked may have left just now.
                    let _ = tell.send(answer);
                }
            }));
        });
        begun.await?;
        told.await.map_err(|_| gone())
    }

    /// As [`Bridge::ask`], of what takes time; other questions are answered meanwhile.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn ask_later<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> Later<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (tell, told) = oneshot::channel();
        let begun = self.ask(move |live| {
            let answer = ask(live);
            live.spawn(Box::pin(async move {
                // Who asked may have left.
                let _ = tell.send(answer.await);
            }));
        });
        begun.await?;
        told.await.map_err(|_| gone())
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |live| {
            // Who asked may have left.
            let _ = tell.send(ask(live));
        });
        self.jobs.send(job).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }
}

fn gone() -> Problem {
    Problem::new(1, "the graph is going down".to_owned())
}

impl Answers {
    /// Answers every question, in order, on the core of `live`; ends when nobody can ask any more.
    pub async fn run(mut self, live: Rc<dyn Live>) {
        while let Some(job) = self.0.recv().await {
            job(&*live);
        }
    }
}
