//! Power cuts of a whole machine under load: clients, daemon, worker, and the disks with their caches. Afterwards the
//! volume must have every flushed write; the simulator's model of the volume checks each sector. `make torture` runs
//! this test with `CUTS=100`.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::{Rig, Volume, seed};
use sim::Model;
use sim::draw::Stream;
use sim::workload::{Mix, Tally};

/// Number of power cuts in a run of `make test`.
const CUTS_DEFAULT: u64 = 3;

/// Number of NBD connections, and of clients on each connection: together 16 requests in flight.
const CONNECTIONS: u64 = 2;
const CLIENTS: u64 = 8;

/// Number of requests of each client: more than a client completes before the latest possible power cut.
const REQUESTS: u64 = 2000;

const POLICIES: [&str; 8] =
    ["drop-all", "keep-all", "prefix", "reverse", "omit-one", "keep-one", "random", "torn"];

/// The requests of the clients, without discards: a crypt device refuses discards, which would reveal unused blocks.
const MIX: Mix = Mix { abandon: 0, pause: 0, discard: 0, ..Mix::ALL };

/// The spec of a crypt device over a labelled mirror. With `SABOTAGE=liar` in the environment, the disks ignore
/// flushes, so that the test must fail.
const SPEC: &str = "[disk]\na = { nbd = \"@a\", label = true }\nb = { nbd = \"@b\", label = true }\n\
    [device]\npair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n\
    safe = { kind = \"crypt\", on = \"pair\", key = \"file:key\", kdf_memory = \"1MiB\", kdf_passes = 1 }\n\
    [export]\nvol = { on = \"safe\" }\n";

struct Machine {
    rig: Rig,
    seed: u64,
    model: Rc<Model>,
    draw: Stream,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let lies = std::env::var("SABOTAGE").is_ok_and(|what| what == "liar");
        let profile = if lies { "liar" } else { "512n" };
        let mut rig = Rig::new(seed, &["a", "b"].map(|disk| format!("{disk}=3MiB,{profile}")));
        rig.put("key", "a passphrase of some length");
        rig.keep(SPEC);
        // The plaintext of blocks that were never written is random, and unknown to the model.
        let volume = rig.volume();
        volume.zero(&rig.core, 0, volume.size(), false);
        volume.flush(&rig.core);
        let model = Rc::new(Model::new(seed, volume.size()));
        Self { rig, seed, model, draw: Stream::new(seed, "machine", 0) }
    }

    fn judge(&self, tally: &Tally, when: &str) {
        let wrong = tally.wrong.borrow();
        let words = wrong.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(wrong.is_none(), "{when}: {words}. SEED={}", self.seed);
    }

    fn no_error(&self, tally: &Tally, when: &str) {
        let error = tally.error.borrow();
        assert!(error.is_none(), "{when}: {error:?}. SEED={}", self.seed);
    }

    /// Checks the whole volume against the model. In some cycles the mirror's resync still runs during the check.
    fn look(&mut self, cycle: u64) -> Vec<Volume> {
        let volumes: Vec<_> = (0..CONNECTIONS).map(|_| self.rig.volume()).collect();
        let tally = Rc::new(Tally::default());
        let draw = Stream::new(self.seed, "verify", cycle);
        let reader = volumes[0].worker(&self.model, &tally, draw, MIX);
        self.rig.core.block_on(reader.verify());
        self.judge(&tally, "after the power was back");
        self.no_error(&tally, "after the power was back");
        if self.draw.within(0, 3) > 0 {
            self.rig.in_sync();
        }
        volumes
    }

    /// Checks the volume, runs clients, and cuts the power of the machine. Returns the number of requests that were
    /// completed before the power cut.
    fn cycle(&mut self, cycle: u64) -> u64 {
        let volumes = self.look(cycle);
        let tally = Rc::new(Tally::default());
        for n in 0..CLIENTS * CONNECTIONS {
            let volume = &volumes[(n % CONNECTIONS) as usize];
            let draw = Stream::new(self.seed, "client", cycle << 8 | n);
            volume.worker(&self.model, &tally, draw, MIX).start(REQUESTS);
        }
        let time = Duration::from_micros(self.draw.within(500, 400_000));
        self.rig.core.block_on(self.rig.core.env().sleep(time));
        self.no_error(&tally, "at work");
        let policy = self.draw.pick(&POLICIES);
        self.rig.machine_cut(policy);
        // Replies on their way arrive; the other clients learn that the server is gone.
        self.rig.core.block_on(tally.idle());
        self.judge(&tally, "at work");
        self.model.power_cut();
        self.rig.start_daemon();
        self.rig.is_up_again();
        tally.done.get()
    }
}

#[test]
fn volume_keeps_flushed_writes_when_machine_loses_power() {
    let cuts = std::env::var("CUTS").map_or(CUTS_DEFAULT, |cuts| cuts.parse().expect("a number"));
    let mut machine = Machine::new(seed());
    let answered: u64 = (0..cuts).map(|cycle| machine.cycle(cycle)).sum();
    machine.look(cuts);
    println!("{cuts} cuts: {answered} requests were answered before them");
    assert!(answered > 10 * cuts, "{answered} requests");
}
