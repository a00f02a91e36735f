//! Power cuts on labelled disks, while a graph with a mirror and key slots starts, stops, loses a member, or gets
//! another key. After each power cut the graph must start, and the volume must have all flushed writes.

#![allow(clippy::disallowed_methods, reason = "a test drives real programs, by real time")]

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::{Rig, Volume, seed};
use sim::Model;
use sim::draw::Stream;
use sim::workload::{Mix, Tally};

/// Size of each disk in bytes: label areas at both ends, and a few simulated tracks between them.
const SIZE: u64 = (2 << 20) + (256 << 10);

const POLICIES: [&str; 7] =
    ["drop-all", "keep-all", "prefix", "reverse", "omit-one", "keep-one", "random"];

const KEYS: [&str; 2] = ["one", "two"];

const CLIENTS: u64 = 4;
const REQUESTS: u64 = 60;
// Kind `crypt` refuses discards by default.
const MIX: Mix = Mix { abandon: 0, pause: 0, discard: 0, ..Mix::ALL };

/// The operation of the graph during which the test cuts the power.
#[derive(Clone, Copy, Debug)]
enum Midst {
    Start,
    Stop,
    MemberFails,
    MemberTakenOut,
    MemberCopied,
    KeyChange,
}

const MIDST: [Midst; 6] = [
    Midst::Start,
    Midst::Stop,
    Midst::MemberFails,
    Midst::MemberTakenOut,
    Midst::MemberCopied,
    Midst::KeyChange,
];

struct Trial {
    seed: u64,
    rig: Rig,
    model: Rc<Model>,
    draw: Stream,
    /// The keys of which one opens the graph. There are two keys while the outcome of a key change is unknown.
    keys: Vec<&'static str>,
}

fn rig(seed: u64) -> Rig {
    let rig = Rig::new(seed, &["a", "b"].map(|disk| format!("{disk}={SIZE}B")));
    KEYS.iter().for_each(|key| rig.put(key, &format!("the passphrase of {key}")));
    rig
}

fn spec(key: &str) -> String {
    format!(
        r#"
        name = "vol"
        [disk]
        a = {{ nbd = "@a", label = true }}
        b = {{ nbd = "@b", label = true }}
        [device]
        pair = {{ kind = "mirror", on = ["a", "b"], timeout = "1s" }}
        safe = {{ kind = "crypt", on = "pair", key = "file:{key}", kdf_memory = "64KiB", kdf_passes = 1 }}
        [export]
        vol = {{ on = "safe" }}
        "#
    )
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut rig = rig(seed);
        rig.serve(&spec(KEYS[0]));
        rig.in_sync();
        let volume = rig.volume();
        let model = Rc::new(Model::new(seed, volume.size()));
        let draw = Stream::new(seed, "labels", 0);
        let tally = Rc::new(Tally::default());
        let learner = volume.worker(&model, &tally, Stream::new(seed, "learn", 0), MIX);
        rig.core.block_on(learner.learn());
        Self { seed, rig, model, draw, keys: vec![KEYS[0]] }
    }

    fn pass(&self, most_us: u64) {
        let time = Duration::from_micros(self.draw.below(most_us));
        self.rig.core.block_on(self.rig.core.env().sleep(time));
    }

    fn power_cut(&mut self) {
        let policy = self.draw.pick(&POLICIES);
        self.rig.power_cut(policy);
        // An injected error that did not happen yet would hit the next start.
        for (disk, verb) in [("a", "write"), ("a", "flush"), ("b", "write"), ("b", "flush")] {
            self.rig.ctl(&format!("eio {disk} {verb} 0"));
        }
    }

    /// Starts `cairn serve` with the key of the graph. If the outcome of a key change is unknown, tries both keys: one
    /// key must open the graph.
    fn up(&mut self, cycle: u64) {
        let mut said = String::new();
        for key in std::mem::take(&mut self.keys) {
            match self.rig.try_serve(&spec(key), &[]) {
                Ok(()) => {
                    self.keys = vec![key];
                    break;
                }
                Err(ended) => said += &ended.said,
            }
        }
        assert!(!self.keys.is_empty(), "cycle {cycle}: it opens again: {said}. SEED={}", self.seed);
    }

    fn verify(&self, volume: &Volume, cycle: u64) {
        let tally = Rc::new(Tally::default());
        let draw = Stream::new(self.seed, "verify", cycle);
        let reader = volume.worker(&self.model, &tally, draw, MIX);
        self.rig.core.block_on(reader.verify());
        self.judge(&tally, cycle);
        let error = tally.error.borrow();
        assert!(error.is_none(), "cycle {cycle}: {error:?}. SEED={}", self.seed);
    }

    fn judge(&self, tally: &Tally, cycle: u64) {
        let wrong = tally.wrong.borrow();
        let words = wrong.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(wrong.is_none(), "cycle {cycle}: {words}. SEED={}", self.seed);
    }

    /// Runs clients, cuts the power during the operation `midst`, and checks the volume. Returns the number of requests
    /// that were completed.
    fn cycle(&mut self, cycle: u64, midst: Midst) -> u64 {
        self.rig.in_sync();
        let volumes = [self.rig.volume(), self.rig.volume()];
        let tally = Rc::new(Tally::default());
        for n in 0..CLIENTS {
            let draw = Stream::new(self.seed, "client", cycle << 8 | n);
            let volume = &volumes[(n % 2) as usize];
            volume.worker(&self.model, &tally, draw, MIX).start(REQUESTS);
        }
        self.pass(20_000);
        let change = self.midst(midst);
        self.pass(60_000);
        let error = tally.error.borrow().clone();
        assert!(
            error.is_none() || matches!(midst, Midst::Stop),
            "cycle {cycle}, {midst:?}: {error:?}. SEED={}",
            self.seed
        );
        self.power_cut();
        if let Some(mut change) = change {
            // A caller whose key change succeeded relies on the new key.
            if change.wait().unwrap().success() && self.keys.len() > 1 {
                self.keys.remove(0);
            }
        }
        // Replies on their way arrive; the other clients learn that the server is gone.
        self.rig.core.block_on(tally.idle());
        self.judge(&tally, cycle);
        self.model.power_cut();
        if let Midst::Start = midst {
            let key = self.keys[0];
            for _ in 0..3 {
                self.rig.begin_serve(&spec(key));
                self.pass(120_000);
                self.power_cut();
                self.model.power_cut();
            }
        }
        self.up(cycle);
        self.verify(&self.rig.volume(), cycle);
        tally.done.get()
    }

    /// Begins the operation `midst` on the running graph. Returns the process of a command that still runs.
    fn midst(&mut self, midst: Midst) -> Option<std::process::Child> {
        let member = self.draw.pick(&["a", "b"]);
        let fail = ["device", "fail", &format!("pair/{member}"), "--yes"];
        match midst {
            Midst::Start => None,
            Midst::Stop => {
                self.rig.begin_stop();
                None
            }
            Midst::MemberFails => {
                let verb = self.draw.pick(&["write", "flush"]);
                self.rig.ctl(&format!("eio {member} {verb}"));
                None
            }
            Midst::MemberTakenOut => Some(self.rig.begin(&fail)),
            Midst::MemberCopied => {
                self.rig.begin(&fail).wait().unwrap();
                self.pass(20_000);
                Some(self.rig.begin(&["device", "resync", &format!("pair/{member}")]))
            }
            Midst::KeyChange => {
                let old = self.keys[0];
                let new = KEYS.into_iter().find(|key| *key != old).expect("there are two");
                self.keys = vec![old, new];
                let (old, new) = (format!("file:{old}"), format!("file:{new}"));
                Some(self.rig.begin(&["key", "change", "safe", "--key", &old, "--new-key", &new]))
            }
        }
    }
}

#[test]
fn labelled_graph_opens_after_any_power_cut() {
    let seed = seed();
    let mut trial = Trial::new(seed);
    let (mut answered, mut changed) = (0, 0);
    for cycle in 0..36 {
        let before = trial.keys.clone();
        answered += trial.cycle(cycle, MIDST[cycle as usize % MIDST.len()]);
        changed += u32::from(trial.keys != before);
    }
    println!("{answered} requests were answered, and the key has changed {changed} times");
    assert!(answered > 36 * 5, "{answered} requests were answered");
}

/// The test cuts the power during the first start of a graph, before any data were served. A second start may need
/// `--wipe` or a decision of the operator, which the error of `cairn serve` must explain.
#[test]
fn graph_first_start_can_be_repeated_after_power_cut() {
    let seed = seed();
    let draw = Stream::new(seed, "first", 0);
    for round in 0..8 {
        let mut rig = rig(seed + round);
        rig.begin_serve(&spec(KEYS[0]));
        let time = Duration::from_micros(draw.below(150_000));
        rig.core.block_on(rig.core.env().sleep(time));
        rig.power_cut(draw.pick(&POLICIES));
        if let Err(ended) = rig.try_serve(&spec(KEYS[0]), &[]) {
            let told = ended.said.contains("--wipe") || ended.said.contains("trust = ");
            assert!(told, "round {round}: {}. SEED={seed}", ended.said);
            let again = rig.try_serve(&spec(KEYS[0]), &["--wipe", "a", "--wipe", "b"]);
            again.unwrap_or_else(|ended| panic!("round {round}: {ended:?}. SEED={seed}"));
        }
        rig.in_sync();
        let volume = rig.volume();
        volume.write_fua(&rig.core, 0, &common::bytes_of(7, 4096));
        rig.power_cut("drop-all");
        rig.serve(&spec(KEYS[0]));
        assert!(rig.volume().read(&rig.core, 0, 4096) == common::bytes_of(7, 4096));
    }
}
