//! Compares the results of start, check and import for all sets of up to three disks in all label states with recorded
//! files. `start.txt`: the disks of a start, or the reasons of its refusal. `check.txt`: the findings of a check.
//! `import.txt`: the graphs that an import lists.

#![allow(clippy::disallowed_methods, reason = "it reads and writes the recording")]

mod sets;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use block::{Env, Error, Reason};
use doctor::import::{FoundGraph, graphs};
use doctor::scan::FoundLabel;
use doctor::{Checked, CheckedDisks, Doctor, Sort};
use engine::Engine;
use graph::labels::{DiskFacts, Facts, Finding, Opening, Probe, diagnose};
use graph::spec::{Planned, Spec};
use meta::Machine;
use sets::{BESIDE, FEW, STATES, State};
use sim::SimWorld;

/// The letters that stand for results in the recorded tables.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The options with which an operator starts the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    None,
    Degraded,
    Take,
    Wipe(usize),
    Trust(usize),
    Change,
}

impl Flag {
    fn name(self) -> String {
        match self {
            Self::None => "no flag".to_owned(),
            Self::Degraded => "--degraded".to_owned(),
            Self::Take => "--take".to_owned(),
            Self::Wipe(n) => format!("--wipe {}", sets::DISKS[n]),
            Self::Trust(n) => format!("--trust {}", sets::DISKS[n]),
            Self::Change => "a change of the running graph".to_owned(),
        }
    }

    fn opening(self) -> Opening {
        let wipe = match self {
            Self::Wipe(n) => vec![sets::DISKS[n].to_owned()],
            _ => Vec::new(),
        };
        Opening {
            machine: Machine::new("here", sets::HERE),
            degraded: matches!(self, Self::Degraded | Self::Change),
            wipe,
            replaced: Vec::new(),
            grow: BTreeMap::new(),
            accept_loss: false,
            take: self == Self::Take,
            changes: self == Self::Change,
        }
    }
}

/// The environment and the engine with which the tests compute the results of start, check and import.
struct Judge {
    world: SimWorld,
    env: Env,
    engine: Engine,
}

impl Judge {
    fn new() -> Self {
        let world = SimWorld::new(1);
        let env = world.env();
        let engine = Engine::new(env.pool());
        Self { world, env, engine }
    }

    /// Plans the graph of `spec` over the disks of a probe. Returns `None` for a spec with faults.
    fn plan(&self, spec: &Spec, probe: &Probe) -> Option<Planned> {
        let found = probe.facts();
        let planned = spec.plan_over(kinds::REGISTRY, &self.env, &found);
        self.world.block_on(planned).expect("a plan waits for nothing").ok()
    }

    /// Whether a start with the options `asked` is refused on disks in these states, and the plan of the graph.
    fn refused_start(
        &self,
        spec: &Spec,
        states: &[State],
        asked: &Opening,
    ) -> (bool, Option<Planned>) {
        let probe = |opening| {
            let (env, engine) = (&self.env, &self.engine);
            Probe::of(spec, kinds::REGISTRY, env, engine, opening, facts(states))
        };
        let all_waived = probe(Opening { degraded: true, take: true, ..asked.clone() });
        let planned = match all_waived.refusals() {
            [] => self.plan(spec, &all_waived),
            _ => None,
        };
        let start = probe(asked.clone());
        let foreseen = planned.as_ref().map(|planned| start.foreseen(planned));
        let is_refused =
            !start.refusals().is_empty() || foreseen.is_some_and(|foreseen| !foreseen.is_empty());
        (is_refused, planned)
    }

    /// Whether a start with the options `asked` is refused on disks in these states, and the findings of the diagnosis
    /// without the options `--degraded` and `--take`.
    fn refused(&self, states: &[State], asked: &Opening) -> (bool, Vec<Finding>) {
        let spec = Spec::parse(&sets::spec(states.len()), "g.toml", &|_| None);
        let (is_refused, planned) = self.refused_start(&spec, states, asked);
        let disks = facts(states);
        let facts = Facts { graph: "g", disks: &disks, planned: planned.as_ref() };
        let question = Opening { degraded: false, take: false, ..asked.clone() };
        (is_refused, diagnose(&facts, &question))
    }

    /// Returns the result of a start on disks in these states: the role of each disk, or the reasons of the refusal.
    fn start(&self, states: &[State], flag: Flag) -> String {
        let mut spec = Spec::parse(&sets::spec(states.len()), "g.toml", &|_| None);
        if let Flag::Trust(n) = flag {
            spec.trust(sets::DISKS[n], kinds::REGISTRY).expect("it is a member of the mirror");
        }
        let (env, engine) = (&self.env, &self.engine);
        let probe = Probe::of(&spec, kinds::REGISTRY, env, engine, flag.opening(), facts(states));
        if !probe.refusals().is_empty() {
            return reasons(probe.refusals());
        }
        let Some(planned) = self.plan(&spec, &probe) else { return "no plan".to_owned() };
        let refusals = probe.foreseen(&planned);
        if !refusals.is_empty() {
            return reasons(&refusals);
        }
        let verbs = probe.previews();
        format!("up: {}", verbs.iter().map(|one| one.verb).collect::<Vec<_>>().join(", "))
    }

    fn doctor(&self) -> Doctor {
        let machine = Machine::new("here", sets::HERE);
        Doctor { env: self.env.clone(), registry: kinds::REGISTRY, machine }
    }

    fn checked(&self, states: &[State]) -> CheckedDisks {
        let disk = |(n, state): (usize, &State)| {
            let inspection = sets::inspection(n, states.len(), *state)?;
            Some((PathBuf::from(format!("/{}", sets::DISKS[n])), inspection))
        };
        let disks: Vec<_> = states.iter().enumerate().filter_map(disk).collect();
        let doctor = self.doctor();
        let checked = doctor.check_disks(&disks, &[], &[]);
        self.world.block_on(checked).expect("a check waits for nothing")
    }

    /// Returns the result of a check on disks in these states: the findings about each graph.
    fn check(&self, states: &[State]) -> String {
        let checked = self.checked(states);
        let unread = checked.unread.iter().map(finding);
        let graphs =
            checked.graphs.iter().map(|Checked { graph, change, soundness, findings, .. }| {
                let findings = findings.iter().map(finding).collect::<Vec<_>>().join(", ");
                format!("{graph} {change} {soundness:?}: {findings}")
            });
        graphs.chain(unread).collect::<Vec<_>>().join("; ")
    }

    /// Returns the result of an import on disks in these states: the graphs that the import lists.
    fn import(&self, states: &[State]) -> String {
        let found_label = |(n, state): (usize, &State)| {
            let label = sets::label(n, states.len(), *state)?;
            Some(FoundLabel { path: PathBuf::from(format!("/{}", sets::DISKS[n])), label })
        };
        let found_labels = states.iter().enumerate().filter_map(found_label).collect();
        let graph = |graph: &FoundGraph| {
            let view = if graph.text.contains("other-vol") { "other-vol" } else { "vol" };
            let disks = graph.disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>();
            let (name, change, disks) = (&graph.name, graph.epoch, disks.join(" "));
            let take = if graph.needs_take { ", --take" } else { "" };
            format!("{name} {change} {view}: {disks}, missing {}{take}", graph.missing.join(" "))
        };
        let listed = graphs(&self.doctor(), found_labels, &[]);
        listed.iter().map(graph).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the type of a check's finding and the name of its disk or device, as text for the recording.
fn finding(found: &doctor::Finding) -> String {
    let sort = match found.sort {
        Sort::Label(case) => format!("{case:?}"),
        sort => format!("{sort:?}"),
    };
    match &found.name {
        Some(name) => format!("{sort} {name}"),
        None => sort,
    }
}

/// Returns the facts that a probe would find about disks in these states.
fn facts(states: &[State]) -> Vec<DiskFacts> {
    let states_of = states.iter().enumerate();
    states_of.map(|(n, state)| sets::facts(n, states.len(), *state)).collect()
}

/// Returns the reasons of a start's errors with their disks or devices, sorted and without duplicates.
fn reasons(errors: &[Error]) -> String {
    let reason = |error: &Error| {
        let code = match error.reason() {
            Some(reason) => reason.code().to_owned(),
            None => format!("{:?}", error.kind()),
        };
        match error.place() {
            Some(place) => format!("{code} {place}"),
            None => code,
        }
    };
    errors.iter().map(reason).collect::<Vec<_>>().join(", ")
}

/// The text of a recorded file: tables with two letters for each result, and a legend of the letters.
#[derive(Default)]
struct Recording {
    letters: BTreeMap<String, String>,
    verdicts: Vec<String>,
    tables: String,
}

impl Recording {
    fn letters(&mut self, verdict: String) -> String {
        if let Some(letters) = self.letters.get(&verdict) {
            return letters.clone();
        }
        let n = self.verdicts.len();
        let letter = |n: usize| char::from(LETTERS[n]);
        let letters = format!("{}{}", letter(n / 26), letter(n % 26));
        self.letters.insert(verdict.clone(), letters.clone());
        self.verdicts.push(verdict);
        letters
    }

    /// Adds a table to the recording, with a row for each of `rows`, a column for each of `columns`, and the results of
    /// `verdict`.
    fn table<C: Copy>(
        &mut self,
        title: &str,
        rows: &[State],
        columns: &[C],
        verdict: impl Fn(State, C) -> String,
    ) {
        let _ = writeln!(self.tables, "\n{title}");
        for row in rows {
            let cells: Vec<_> =
                columns.iter().map(|column| self.letters(verdict(*row, *column))).collect();
            let _ = writeln!(self.tables, "{:14}  {}", sets::name(*row), cells.join(" "));
        }
    }

    fn text(self) -> String {
        let letters = self.verdicts.iter().map(|verdict| (&self.letters[verdict], verdict));
        let legend: String =
            letters.map(|(letters, verdict)| format!("{letters}  {verdict}\n")).collect();
        format!("{}\n{legend}", self.tables.trim_start())
    }
}

/// Compares a recording with the recorded file `name`. With `UPDATE=1`, writes the file.
fn compare(name: &str, recording: Recording) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/label_verdicts").join(name);
    let is = recording.text();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &is).expect("the recording can be written");
    }
    let was = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = was.lines().zip(is.lines()).find(|(was, is)| was != is);
    assert!(
        was == is,
        "{name}: a verdict has changed, first {differs:?}; see what UPDATE=1 writes"
    );
}

#[test]
fn start_results_for_all_label_states_match_recording() {
    let (judge, mut recording) = (Judge::new(), Recording::default());
    let all: Vec<State> = STATES.iter().map(|(state, _)| *state).collect();
    let flags = [
        Flag::None,
        Flag::Degraded,
        Flag::Take,
        Flag::Wipe(0),
        Flag::Wipe(1),
        Flag::Trust(0),
        Flag::Trust(1),
        Flag::Change,
    ];
    let alone = [Flag::None, Flag::Degraded, Flag::Take, Flag::Wipe(0), Flag::Change];
    let names: Vec<_> = alone.iter().map(|flag| flag.name()).collect();
    recording.table(&format!("one disk: {}", names.join("; ")), &all, &alone, |a, flag| {
        judge.start(&[a], flag)
    });
    for flag in flags {
        let title = format!("a mirror of a (rows) and b (columns), {}", flag.name());
        let states = match flag {
            Flag::None | Flag::Degraded => &all[..],
            _ => &FEW,
        };
        recording.table(&title, states, states, |a, b| judge.start(&[a, b], flag));
    }
    for flag in [Flag::None, Flag::Degraded] {
        for c in BESIDE {
            let title = format!(
                "a mirror of a (rows) and b (columns), and c {}, {}",
                sets::name(c),
                flag.name()
            );
            recording.table(&title, &FEW, &FEW, |a, b| judge.start(&[a, b, c], flag));
        }
    }
    compare("start.txt", recording);
}

/// Records the results of `of` for all sets of one and two disks, and for some sets of three disks.
fn record(of: impl Fn(&[State]) -> String) -> Recording {
    let all: Vec<State> = STATES.iter().map(|(state, _)| *state).collect();
    let mut recording = Recording::default();
    recording.table("one disk", &all, &[()], |a, ()| of(&[a]));
    recording.table("a mirror of a (rows) and b (columns)", &all, &all, |a, b| of(&[a, b]));
    for c in BESIDE {
        let title = format!("a mirror of a (rows) and b (columns), and c {}", sets::name(c));
        recording.table(&title, &FEW, &FEW, |a, b| of(&[a, b, c]));
    }
    recording
}

#[test]
fn check_findings_for_all_label_states_match_recording() {
    let judge = Judge::new();
    compare("check.txt", record(|states| judge.check(states)));
}

#[test]
fn import_results_for_all_label_states_match_recording() {
    let judge = Judge::new();
    compare("import.txt", record(|states| judge.import(states)));
}

#[test]
fn recorded_label_reasons_are_registered() {
    let recorded = include_str!("start.txt");
    let codes = recorded.split([' ', ',', '\n']).filter(|word| word.contains("label."));
    for code in codes.collect::<std::collections::BTreeSet<_>>() {
        assert!(Reason::find(code).is_some(), "{code}");
    }
}

#[test]
fn start_is_refused_exactly_when_finding_is_not_waived() {
    let judge = Judge::new();
    for a in FEW {
        for b in FEW {
            for (degraded, take) in [(false, false), (true, false), (false, true), (true, true)] {
                let asked = Opening { degraded, take, ..Flag::None.opening() };
                let (is_refused, findings) = judge.refused(&[a, b], &asked);
                let refuses = findings.iter().any(|finding| finding.refuses(&asked));
                let set = format!("{a:?} and {b:?}, degraded {degraded}, take {take}");
                assert_eq!(is_refused, refuses, "{set}: {findings:?}");
            }
        }
    }
}

#[test]
fn start_is_refused_exactly_when_check_finding_is_not_waived() {
    let judge = Judge::new();
    let spec = |count| Spec::parse(&sets::spec(count), "g.toml", &|_| None);
    let judged = |states: &[State]| {
        if (0..states.len()).all(|n| sets::label(n, states.len(), states[n]).is_none()) {
            // A check cannot know a graph without any label.
            return;
        }
        let checked = judge.checked(states);
        let findings = checked.graphs.iter().flat_map(|graph| &graph.findings);
        let findings: Vec<_> = findings.chain(&checked.unread).collect();
        let flags = [(false, false), (true, true), (true, false), (false, true)];
        let count = if states.len() == 3 { 2 } else { 4 };
        for (degraded, take) in flags.into_iter().take(count) {
            let asked = Opening { degraded, take, ..Flag::None.opening() };
            let (is_refused, _) = judge.refused_start(&spec(states.len()), states, &asked);
            let refuses = findings.iter().any(|finding| finding.refuses(&asked));
            assert_eq!(is_refused, refuses, "{states:?}, {degraded}, {take}: {findings:?}");
        }
    };
    for a in FEW {
        for b in FEW {
            judged(&[a, b]);
            for c in BESIDE {
                judged(&[a, b, c]);
            }
        }
    }
}
