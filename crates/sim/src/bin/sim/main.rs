//! Runs seeds of the simulator, first the regression seeds (`regress/seeds.txt`). The environment variable `N=5000`
//! sets the number of new seeds, `FROM=0` the number of the first new seed, and `SEED=0x2a` runs one seed alone.

mod checksums;
mod clients;
mod far;
mod handover;
mod labelled;
mod migrations;
mod mirrors;
mod plan;
mod process;
mod served;
mod shapes;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use sim::draw::{Stream, mix};
use sim::{Count, Counters};

use crate::labelled::{History, Step};
use crate::plan::Plan;
use crate::trial::{Failure, Report};

/// Number of new seeds from which on the run fails if an event that the simulator counts did not happen in any seed.
const ENOUGH: u64 = 1000;

/// Every seed whose number is a multiple of `TWICE` runs twice, and the event hashes of both runs must be equal.
const TWICE: u64 = 100;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [verb, seed] if verb == "--shrink" => return shrink(hex(seed)),
        _ => {
            println!(
                "usage: sim [--shrink 0xSEED]; the variables N, FROM and SEED choose the seeds"
            );
            return ExitCode::FAILURE;
        }
    }
    if let Some(seed) = number("SEED") {
        match About::of(seed) {
            About::Labels => {}
            About::Graph => println!("{:#?}", Plan::draw(seed)),
            About::Far => println!("{:#?}", Plan::far(seed)),
            About::Handover => println!("{:#?}", Plan::handover(seed)),
        }
        let mut sum = Sum::default();
        let ok = sum.seed(seed, true);
        sum.print();
        return if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (from, count) = (number("FROM"), number("N").unwrap_or(1000));
    let mut sum = Sum::default();
    // With `FROM` the regression seeds are skipped: it is used to measure how soon new seeds find a bug.
    for seed in regress().filter(|_| from.is_none()) {
        if !sum.seed(seed, false) {
            return ExitCode::FAILURE;
        }
    }
    let from = from.unwrap_or(0);
    for n in from..from + count {
        if !sum.seed(mix(n), n % TWICE == 0) {
            return ExitCode::FAILURE;
        }
    }
    sum.print();
    let missing = sum.missing();
    if count >= ENOUGH && !missing.is_empty() {
        println!("events that no seed of {count} produced: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Returns the number in the environment variable `name`; `None` if the variable is not set.
fn number(name: &str) -> Option<u64> {
    Some(hex(&std::env::var(name).ok()?))
}

/// Parses a number in decimal or as `0x...`; panics if the text is no number.
fn hex(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("the seed or count {text} is not a number"))
}

/// `sim --shrink`: runs a failing seed with fewer and fewer steps as long as the seed fails, and prints the steps left.
fn shrink(seed: u64) -> ExitCode {
    if About::of(seed) != About::Labels {
        println!(
            "the seed {seed:#x} is not about labelled disks: --shrink cannot remove its steps"
        );
        return ExitCode::FAILURE;
    }
    let ran = |without: &BTreeSet<Step>| {
        let history = History::without(without);
        (labelled_run(seed, &history).err(), history.done())
    };
    let (failure, all) = ran(&BTreeSet::new());
    let Some(failure) = failure else {
        println!("the seed {seed:#x} passes");
        return ExitCode::SUCCESS;
    };
    println!("the seed {seed:#x} fails after {} steps: {failure}", all.len());
    std::panic::set_hook(Box::new(|_| {}));
    let steps: Vec<Step> = all.iter().map(|(step, _)| *step).collect();
    // Without some steps another rule may be broken, which is another failure.
    let promise = |words: &str| words.split(':').next().map(str::to_owned);
    let is_it = |words: String| promise(&words) == promise(&failure);
    let without = labelled::shrink(&steps, |without| ran(without).0.is_some_and(is_it));
    let (failure, left) = ran(&without);
    println!(
        "the seed fails with {} steps: {}",
        left.len(),
        failure.expect("the seed fails with the remaining steps")
    );
    left.iter().for_each(|(step, words)| println!("  {step}: {words}"));
    ExitCode::FAILURE
}

/// Text of the file of regression seeds, which have failed once: one seed `0x...` a line.
const REGRESS: &str = include_str!("../../../regress/seeds.txt");

fn regress() -> impl Iterator<Item = u64> {
    let lines = REGRESS.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let seed = line.split_whitespace().next().and_then(|word| word.strip_prefix("0x"));
        let seed = seed.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        seed.unwrap_or_else(|| {
            panic!("regress/seeds.txt: the line {line:?} does not begin with a seed 0x...")
        })
    })
}

#[derive(Default)]
struct Sum {
    counters: Counters,
    kinds: BTreeMap<&'static str, u64>,
    seeds: u64,
    twice: u64,
    done: u64,
    failed: u64,
}

impl Sum {
    /// Runs a seed once, or twice to compare the event hashes of both runs. Prints a failure, and then returns `false`.
    fn seed(&mut self, seed: u64, twice: bool) -> bool {
        let ran = run(seed).and_then(|report| {
            if !twice {
                return Ok(report);
            }
            self.twice += 1;
            let again = run(seed)?;
            if again.trace == report.trace {
                return Ok(report);
            }
            Err(format!(
                "two runs of one seed differ: their traces are {:x} and {:x}",
                report.trace, again.trace
            ))
        });
        match ran {
            Ok(report) => {
                self.add(&report);
                true
            }
            Err(words) => {
                println!("{words}\nafter {} seeds that did well", self.seeds);
                println!("SEED={seed:#x} cargo run -p cairn-sim");
                false
            }
        }
    }

    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.counters.absorb(&report.counters);
        for kind in &report.kinds {
            *self.kinds.entry(kind).or_default() += 1;
        }
        self.done += report.requests.0;
        self.failed += report.requests.1;
    }

    fn missing(&self) -> Vec<String> {
        let events = self.counters.zeroes().map(|count| count.words().to_owned());
        let all = kinds::REGISTRY.0.iter().zip(kinds::TESTING);
        let kinds = all.filter(|(_, testing)| testing.shape.is_some()).map(|(kind, _)| kind.name);
        let kinds = kinds.chain(labelled::KINDS).chain(migrations::KINDS).chain(checksums::KINDS);
        let kinds = kinds.filter(|kind| !self.kinds.contains_key(kind));
        events.chain(kinds.map(|kind| format!("a {kind}"))).collect()
    }

    fn print(&self) {
        for count in Count::ALL {
            println!("{:>12}  {}", self.counters.get(*count), count.words());
        }
        for (kind, times) in &self.kinds {
            println!("{times:>12}  devices of kind {kind}");
        }
        println!(
            "{} seeds, {} of them run twice; {} requests succeeded, {} failed as allowed",
            self.seeds, self.twice, self.done, self.failed
        );
    }
}

/// The type of trial that the simulator runs for a seed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// The trial `labelled`: a mirror over labelled disks with live changes and crashes; every fourth seed.
    Labels,
    /// The trial `far`: NBD disks, whose server loses its power.
    Far,
    /// The trial `handover`: members of a mirror replace each other while flushes are late.
    Handover,
    /// The trial `trial`: a random graph of devices of all kinds; most seeds.
    Graph,
}

impl About {
    fn of(seed: u64) -> Self {
        if seed.is_multiple_of(4) {
            return Self::Labels;
        }
        match Stream::new(seed, "which", 0).below(16) {
            0 => Self::Far,
            1 => Self::Handover,
            _ => Self::Graph,
        }
    }
}

/// Runs all trials of a seed once, and returns their report. A panic is a failure. Some seeds also run the independent
/// trials `migrations` and `checksums`.
fn run(seed: u64) -> Result<Report, String> {
    let report = match About::of(seed) {
        About::Labels => labelled_run(seed, &History::default())?,
        About::Far => caught("a far disk", || far::run(seed))?,
        About::Handover => caught("a handover", || handover::run(seed))?,
        About::Graph => caught("a graph", || trial::run(seed))?,
    };
    let report = match migrations::is_drawn(seed) {
        true => report.and(caught("migrations", || migrations::run(seed))?),
        false => report,
    };
    Ok(match checksums::is_drawn(seed) {
        true => report.and(caught("checksums", || checksums::run(seed))?),
        false => report,
    })
}

fn labelled_run(seed: u64, history: &History) -> Result<Report, String> {
    caught("labels", || labelled::run(seed, history))
}

/// Runs a trial. An error names its subject `about`, because a seed may run several trials.
fn caught(about: &str, run: impl FnOnce() -> Result<Report, Failure>) -> Result<Report, String> {
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(failure)) => failure.to_string(),
        Err(_) => "the run panicked; the panic is printed above".to_owned(),
    };
    Err(format!("the trial of {about}: {failure}"))
}
