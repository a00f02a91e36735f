//! The table of requests in flight of one connection or mount.

use block::ByteRange;

/// The requests in flight of one connection or mount, each under a token, with the facts that its reply needs.
pub struct Tokens<T> {
    requests: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self { requests: Vec::new(), free: Vec::new() }
    }
}

impl<T> Tokens<T> {
    /// Adds a request that begins. Returns the token under which the request is removed at its end.
    pub fn add(&mut self, request: T) -> usize {
        let token = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[token] = Some(request);
        token
    }

    /// Removes the request with this token, which has ended, and returns its facts.
    ///
    /// # Panics
    /// If no request has this token, because it was removed before.
    pub fn take(&mut self, token: usize) -> T {
        self.free.push(token);
        self.requests[token].take().expect("a request is answered only once")
    }

    /// Whether a request in flight changes a byte of `range`, or any byte if `range` is `None`. `changes` returns the
    /// bytes that a request changes; `None` if it changes no bytes.
    pub fn any_change(
        &self,
        range: Option<ByteRange>,
        changes: impl Fn(&T) -> Option<ByteRange>,
    ) -> bool {
        let mut changed = self.requests.iter().flatten().filter_map(changes);
        changed.any(|changed| range.is_none_or(|range| changed.overlaps(range)))
    }
}
