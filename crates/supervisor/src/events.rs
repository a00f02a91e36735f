//! The programs that run for a worker's events. They start in the daemon: if the worker started them, they
//! would inherit its system call filter.

use tokio::sync::mpsc;

use crate::notify_message::Event;

/// Most events of one graph that wait.
const EVENTS_MAX: usize = 1024;

/// Runs a program, and returns when it has ended.
pub type Run = fn(&Event);

/// The programs of one graph: they run one after the other, in the order of their events.
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// Runs the programs, until this is dropped and no event waits.
    pub fn begin(run: Run) -> Self {
        let (sender, mut events) = mpsc::channel::<Event>(EVENTS_MAX);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                // A panic has been reported.
                let _ = tokio::task::spawn_blocking(move || run(&event)).await;
            }
        });
        Self(sender)
    }

    /// Queues a program. Returns whether there was space in the queue.
    pub fn push(&self, event: Event) -> bool {
        self.0.try_send(event).is_ok()
    }
}
