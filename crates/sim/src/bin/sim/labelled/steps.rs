//! The steps of a trial. Each draws from a stream of its own, so that one can be taken out and the others stay
//! what they were.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use sim::draw::Stream;

/// A step: what is done in which life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// The life, and the shorter ones within hands, from 1 on.
    pub life: u64,
    pub what: What,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// How the life goes and ends; without it, it is closed in order at once.
    Life,
    /// What goes wrong in it.
    Trouble,
    /// One of its clients.
    Client(u64),
    /// One of the changes meanwhile.
    Change(u64),
    /// How it comes to its end. It always does.
    End,
    /// What hands do afterwards.
    Hand,
    /// A start that is cut short before the next life.
    Interruption(u64),
}

impl Step {
    /// The stream that it draws from.
    pub fn stream(self, seed: u64) -> Stream {
        let (name, n) = match self.what {
            What::Life => ("life", 0),
            What::Trouble => ("trouble", 0),
            What::Client(n) => ("client", n),
            What::Change(n) => ("change", n),
            What::End => ("end", 0),
            What::Hand => ("hand", 0),
            What::Interruption(n) => ("interruption", n),
        };
        Stream::new(seed, name, self.life << 16 | n)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "life {}: {:?}", self.life, self.what)
    }
}

/// What was done, step by step, and which steps are not.
#[derive(Clone, Default)]
pub struct History {
    without: Rc<BTreeSet<Step>>,
    done: Rc<RefCell<Vec<(Step, String)>>>,
}

impl History {
    /// Of a trial that leaves these steps away.
    pub fn without(steps: &BTreeSet<Step>) -> Self {
        Self { without: Rc::new(steps.clone()), done: Rc::default() }
    }

    /// Whether this step is to be done.
    pub fn takes(&self, step: Step) -> bool {
        !self.without.contains(&step)
    }

    /// It is done now.
    pub fn note(&self, step: Step, words: String) {
        self.done.borrow_mut().push((step, words));
    }

    /// What was done.
    pub fn done(&self) -> Vec<(Step, String)> {
        self.done.borrow().clone()
    }
}

/// Takes steps out for as long as what is left `fails`: first many at once, then one by one. Answers those that
/// can be left away.
pub fn shrink(steps: &[Step], mut fails: impl FnMut(&BTreeSet<Step>) -> bool) -> BTreeSet<Step> {
    let mut without = BTreeSet::new();
    let mut size = steps.len().next_power_of_two();
    while size > 0 {
        let left: Vec<Step> =
            steps.iter().filter(|step| !without.contains(*step)).copied().collect();
        // Those at the end first: what failed by then needs nothing of it.
        for part in left.rchunks(size) {
            let mut more = without.clone();
            more.extend(part.iter().copied());
            if fails(&more) {
                without = more;
            }
        }
        size /= 2;
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(life: u64) -> Step {
        Step { life, what: What::Life }
    }

    #[test]
    fn what_is_left_is_what_it_takes() {
        let steps: Vec<_> = (0..20).map(step).collect();
        let needed = [step(3), step(7), step(12)];
        let mut runs = 0;
        let without = shrink(&steps, |without| {
            runs += 1;
            needed.iter().all(|step| !without.contains(step))
        });
        let left: Vec<_> = steps.into_iter().filter(|step| !without.contains(step)).collect();
        assert_eq!(left, needed);
        assert!(runs < 60, "{runs} runs");
    }
}
