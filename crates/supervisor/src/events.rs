//! The programs that run for events of a graph. The daemon starts them, because programs that a worker starts inherit
//! its filter of system calls.

use tokio::sync::mpsc;

use crate::notify_message::Event;

/// Most events of one graph that wait in the queue.
const EVENTS_MAX: usize = 1024;

/// A function that runs the program for an event, and returns when the program has ended.
pub type Run = fn(&Event);

/// The queue of events of one graph. The programs for them run one after the other, in the order of the events.
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// Runs the programs for queued events in a task. The task ends when this queue is dropped and empty.
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

    /// Adds an event to the queue. Returns whether the queue had room.
    pub fn push(&self, event: Event) -> bool {
        self.0.try_send(event).is_ok()
    }
}
