//! A list of values that others own, such as the open connections of a server.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Length up to which a list keeps entries of dropped values.
const SHORT: usize = 16;

/// A list of values that others own. It forgets dropped values when its length has doubled, so that an addition to a
/// long list costs no look at all others.
pub struct Living<T>(RefCell<List<T>>);

struct List<T> {
    all: Vec<Weak<T>>,
    /// Length at which the list forgets dropped values.
    full: usize,
}

impl<T> Default for Living<T> {
    fn default() -> Self {
        Self(RefCell::new(List { all: Vec::new(), full: SHORT }))
    }
}

impl<T> Living<T> {
    /// Adds a value.
    pub fn add(&self, value: Weak<T>) {
        let List { all, full } = &mut *self.0.borrow_mut();
        if all.len() >= *full {
            all.retain(|one| one.strong_count() > 0);
            *full = SHORT.max(2 * all.len());
        }
        all.push(value);
    }

    /// Returns the values that are not dropped.
    pub fn all(&self) -> Vec<Rc<T>> {
        self.0.borrow().all.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_forgets_dropped_values_when_length_has_doubled() {
        let list = Living::default();
        let kept: Vec<Rc<usize>> = (0..100).map(Rc::new).collect();
        for one in &kept {
            list.add(Rc::downgrade(one));
            list.add(Rc::downgrade(&Rc::new(1000)));
        }
        assert_eq!(list.all(), kept);
        assert!(list.0.borrow().all.len() <= 2 * kept.len());
        drop(kept);
        for _ in 0..1000 {
            list.add(Rc::downgrade(&Rc::new(0)));
        }
        assert!(list.0.borrow().all.len() <= SHORT + 1, "{}", list.0.borrow().all.len());
    }
}
