//! From the thread that speaks HTTP to the core that owns the graph, and back.
//!
//! A question is a closure that travels through a bounded channel; its answer comes back through
//! another one. Sending wakes the core's task through its waker, which may come from any thread:
//! nobody polls, and a core that is asked nothing does nothing.

use std::rc::Rc;

use tokio::sync::{mpsc, oneshot};

use crate::{Live, Problem, Tell};

/// Questions on their way at once; who asks one more waits.
pub const JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce(&dyn Live) + Send>;

/// The side that asks.
#[derive(Clone)]
pub struct Bridge(mpsc::Sender<Job>);

/// The side that answers.
pub struct Answers(mpsc::Receiver<Job>);

/// Both sides.
pub fn bridge() -> (Bridge, Answers) {
    let (sender, receiver) = mpsc::channel(JOBS_MAX);
    (Bridge(sender), Answers(receiver))
}

impl Bridge {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Live) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (tell, told) = oneshot::channel();
        let job = move |live: &dyn Live| {
            // Who asked may have left.
            let _ = tell.send(ask(live));
        };
        self.send(Box::new(job), told).await
    }

    /// Begins what takes its time, and waits until it tells how it went.
    ///
    /// # Errors
    /// If the core is gone.
    pub async fn begin<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&dyn Live, Tell<T>) + Send + 'static,
    ) -> Result<Result<T, Problem>, Problem> {
        let (tell, told) = oneshot::channel();
        let job = move |live: &dyn Live| {
            let tell = |answer| {
                // Who asked may have left.
                let _ = tell.send(answer);
            };
            begin(live, Box::new(tell));
        };
        self.send(Box::new(job), told).await
    }

    async fn send<T>(&self, job: Job, told: oneshot::Receiver<T>) -> Result<T, Problem> {
        let gone = || Problem { exit: 1, message: "the graph is going down".to_owned() };
        self.0.send(job).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }
}

impl Answers {
    /// Answers every question, in order, on the core of `live`; ends when nobody can ask any more.
    pub async fn run(mut self, live: Rc<dyn Live>) {
        while let Some(job) = self.0.recv().await {
            job(&*live);
        }
    }
}
