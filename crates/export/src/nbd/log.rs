//! What is told of connections that end badly: each of them, as long as they are few.

use std::cell::Cell;
use std::time::Duration;

use block::{Env, Mono};

/// Lines in one window. Whoever connects in a loop must not fill a disk, nor a pipe that is read
/// slowly.
pub const LINES: u32 = 20;

/// How long a window is.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A log with a bound.
pub struct Log {
    env: Env,
    write: Box<dyn Fn(&str)>,
    since: Cell<Mono>,
    lines: Cell<u32>,
}

impl Log {
    pub fn new(env: &Env, write: impl Fn(&str) + 'static) -> Self {
        let since = Cell::new(env.now());
        Self { env: env.clone(), write: Box::new(write), since, lines: Cell::new(0) }
    }

    /// Writes the line, if it is one of the first of this window; else it is counted.
    pub fn line(&self, words: &str) {
        let now = self.env.now();
        if now.since(self.since.get()) >= WINDOW {
            let passed_over = self.lines.get().saturating_sub(LINES);
            if passed_over > 0 {
                (self.write)(&format!("{passed_over} more connections were closed"));
            }
            self.since.set(now);
            self.lines.set(0);
        }
        self.lines.set(self.lines.get().saturating_add(1));
        if self.lines.get() <= LINES {
            (self.write)(words);
        }
    }
}
