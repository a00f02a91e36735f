//! The log of an NBD server about connections that end with an error, limited in its number of lines.

use std::cell::Cell;
use std::time::Duration;

use block::{Env, Mono};

/// Most lines that an NBD server logs in one window. So a client that connects in a loop cannot fill a disk, or a
/// pipe with a slow reader.
pub const LINES: u32 = 20;

/// Duration of a window of an NBD server's log.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A log of an NBD server, with at most [`LINES`] lines in each window.
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

    /// Writes `words` to the log as a line, unless the window has its [`LINES`] lines already; then counts the line
    /// only.
    pub fn line(&self, words: &str) {
        let now = self.env.now();
        if now.since(self.since.get()) >= WINDOW {
            let passed_over = self.lines.get().saturating_sub(LINES);
            if passed_over > 0 {
                (self.write)(&format!("{passed_over} more connections were closed, not logged"));
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
