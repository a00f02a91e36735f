//! The steps of a trial. Each step has a stream of random numbers of its own, so that its removal does not affect
//! other steps.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use sim::draw::Stream;

/// A step of a trial: an action in a life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// Number of the life. A life that begins within a change by the operator has a number of its own.
    pub life: u64,
    pub what: What,
}

/// The action of a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// The course and the end of the life. Without this step the process is closed in order at once.
    Life,
    /// The faults of the life.
    Trouble,
    /// A client of the life.
    Client(u64),
    /// A live change in the life.
    Change(u64),
    /// The end of the life. This step is always carried out.
    End,
    /// The change by the operator after the life.
    Hand,
    /// An interrupted start before the next life.
    Interruption(u64),
}

impl Step {
    /// Returns the stream of the step's random numbers.
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

/// The steps that were carried out, and the steps to leave out.
#[derive(Clone, Default)]
pub struct History {
    without: Rc<BTreeSet<Step>>,
    done: Rc<RefCell<Vec<(Step, String)>>>,
}

impl History {
    /// Creates the history of a trial that leaves out the steps `without`.
    pub fn without(steps: &BTreeSet<Step>) -> Self {
        Self { without: Rc::new(steps.clone()), done: Rc::default() }
    }

    /// Whether this step must be carried out.
    pub fn takes(&self, step: Step) -> bool {
        !self.without.contains(&step)
    }

    /// Records that the step is carried out now.
    pub fn note(&self, step: Step, words: String) {
        self.done.borrow_mut().push((step, words));
    }

    /// Returns the steps that were carried out, with their descriptions.
    pub fn done(&self) -> Vec<(Step, String)> {
        self.done.borrow().clone()
    }
}

/// Removes steps as long as the trial still fails without them (`fails`), first many together, then one by one.
/// Returns the steps that can be left out.
pub fn shrink(steps: &[Step], mut fails: impl FnMut(&BTreeSet<Step>) -> bool) -> BTreeSet<Step> {
    let mut without = BTreeSet::new();
    let mut size = steps.len().next_power_of_two();
    while size > 0 {
        let left: Vec<Step> =
            steps.iter().filter(|step| !without.contains(*step)).copied().collect();
        // Last steps first: steps after the failure are not needed for it.
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
    fn simulator_shrink_keeps_only_steps_needed_for_failure() {
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
