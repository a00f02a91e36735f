//! The programs that run for a worker's events. They start in the daemon: if the worker started them, they
//! would inherit its system call filter.

use tokio::sync::mpsc;

use crate::notify_message::Event;

/// Most events of one graph that wait.
const EVENTS_MAX: usize = 1024;

/// Runs the program of an event, and returns when the program has ended.
pub type Run = fn(&Event);

/// The queue of programs that the events of one graph start: they run one after the other, in the order of the events.
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// Runs queued programs in a task, which ends when this queue is dropped and empty.
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

    /// Queues the program of an event. Returns whether there was space in the queue.
    pub fn push(&self, event: Event) -> bool {
        self.0.try_send(event).is_ok()
    }
}
