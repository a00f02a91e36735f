//! The programs that a worker has run for its events. They start in the daemon: a program that the worker started would inherit its
//! filter of system calls.

use tokio::sync::mpsc;

use crate::notify_message::Event;

/// Events of one graph that wait for their turn.
const EVENTS_MAX: usize = 1024;

/// Runs a program, and returns when it has ended.
pub type Run = fn(&Event);

/// The programs of one graph: one after the other, in the order of their events.
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// Runs what comes, until this is dropped and nothing waits.
    pub fn begin(run: Run) -> Self {
        let (sender, mut events) = mpsc::channel::<Event>(EVENTS_MAX);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                // One that panics has been reported.
                let _ = tokio::task::spawn_blocking(move || run(&event)).await;
            }
        });
        Self(sender)
    }

    /// Has a program run when it is its turn; whether there is room for it to wait.
    pub fn push(&self, event: Event) -> bool {
        self.0.try_send(event).is_ok()
    }
}
