//! The steps of a trial of labelled disks, which `sim --shrink` can leave out. Each step has its own stream of random
//! numbers, so that the other steps stay the same without it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use sim::draw::Stream;

/// A step of a trial of labelled disks: one action in a run of the server process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// Number of the run of the server process. A run that is part of a change by the operator has its own number.
    pub life: u64,
    pub what: What,
}

/// The action of a step of the trial.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// Draws the number of clients, the number of live changes and the end of the process's run. Without this step the
    /// process starts and stops at once.
    Life,
    /// Gives one disk errors or late replies, or takes a member out by a command.
    Trouble,
    /// Starts the client with this number.
    Client(u64),
    /// Makes the live change with this number.
    Change(u64),
    /// Ends the process's run. The trial never leaves out this step.
    End,
    /// Lets the operator change disks after the process's run.
    Hand,
    /// Interrupts the start with this number before the next run of the process.
    Interruption(u64),
}

impl Step {
    /// Returns the stream of random numbers that only this step uses.
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

/// The steps that a trial has carried out, and the steps that it must leave out.
#[derive(Clone, Default)]
pub struct History {
    without: Rc<BTreeSet<Step>>,
    done: Rc<RefCell<Vec<(Step, String)>>>,
}

impl History {
    /// Creates the history of a trial that leaves out `steps`.
    pub fn without(steps: &BTreeSet<Step>) -> Self {
        Self { without: Rc::new(steps.clone()), done: Rc::default() }
    }

    /// Whether the trial carries out `step`, because the step is not among those to leave out.
    pub fn takes(&self, step: Step) -> bool {
        !self.without.contains(&step)
    }

    /// Records that the trial carries out `step` now, with its description.
    pub fn note(&self, step: Step, words: String) {
        self.done.borrow_mut().push((step, words));
    }

    /// Returns the steps that the trial has carried out, in order, with their descriptions.
    pub fn done(&self) -> Vec<(Step, String)> {
        self.done.borrow().clone()
    }
}

/// Finds the steps that a failing trial does not need. Leaves out groups of steps, first large, then single, as long as
/// `fails` returns `true` for the steps left out. Returns the steps that can be left out.
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
