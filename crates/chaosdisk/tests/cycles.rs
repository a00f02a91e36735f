//! Many kills of `cairn serve` and power cuts under load. After a kill the volume must have every acknowledged write,
//! after a power cut every flushed write. The simulator's model of the volume checks each sector.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::{Rig, Shape, Volume, seed};
use sim::Model;
use sim::draw::Stream;
use sim::workload::{Mix, Tally};

/// Number of NBD connections, and of clients that send requests at the same time on each connection.
const CONNECTIONS: u64 = 2;
const CLIENTS: u64 = 4;

/// Number of requests of each client: about as many as a client completes before the latest possible crash.
const REQUESTS: u64 = 40;

const POLICIES: [&str; 8] =
    ["drop-all", "keep-all", "prefix", "reverse", "omit-one", "keep-one", "random", "torn"];

const MIX: Mix = Mix { abandon: 0, pause: 0, ..Mix::ALL };

#[derive(Clone, Copy, PartialEq)]
enum End {
    Kill,
    PowerCut,
}

struct Trial<'a> {
    shape: &'a Shape,
    seed: u64,
    rig: Rig,
    model: Rc<Model>,
    draw: Stream,
    answered: u64,
}

impl<'a> Trial<'a> {
    fn new(shape: &'a Shape, seed: u64) -> Self {
        let mut rig = Rig::of(shape, seed);
        rig.serve(&shape.spec(0));
        let model = Rc::new(Model::new(seed, rig.volume().size()));
        rig.kill_and_drain();
        let draw = Stream::new(seed, shape.name, 0);
        Self { shape, seed, rig, model, draw, answered: 0 }
    }

    fn judge(&self, tally: &Tally, when: &str) {
        let wrong = tally.wrong.borrow();
        let words = wrong.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(wrong.is_none(), "{}, {when}: {words}. SEED={}", self.shape.name, self.seed);
    }

    fn no_error(&self, tally: &Tally, when: &str) {
        let error = tally.error.borrow();
        assert!(error.is_none(), "{}, {when}: {error:?}. SEED={}", self.shape.name, self.seed);
    }

    /// Starts the graph on the disks that the last crash has left, and checks the whole volume against the model.
    fn begin(&mut self, cycle: u64) -> Vec<Volume> {
        self.rig.serve(&self.shape.spec(cycle as usize));
        let volumes: Vec<_> = (0..CONNECTIONS).map(|_| self.rig.volume()).collect();
        let tally = Rc::new(Tally::default());
        let reader = {
            let draw = Stream::new(self.seed, "verify", cycle);
            volumes[0].worker(&self.model, &tally, draw, MIX)
        };
        self.rig.core.block_on(reader.verify());
        self.judge(&tally, "after its end");
        self.no_error(&tally, "after its end");
        // The next start may trust the other member: it must have all data, durably.
        self.rig.in_sync();
        let flush = Mix { read: 0, write: 0, zero: 0, discard: 0, status: 0, flush: 1, ..MIX };
        let draw = Stream::new(self.seed, "flush", cycle);
        volumes[0].worker(&self.model, &tally, draw, flush).start(1);
        self.rig.core.block_on(tally.idle());
        self.no_error(&tally, "at its start");
        volumes
    }

    fn cycle(&mut self, cycle: u64, end: End) {
        let volumes = self.begin(cycle);
        let tally = Rc::new(Tally::default());
        for n in 0..CLIENTS * CONNECTIONS {
            let volume = &volumes[(n % CONNECTIONS) as usize];
            let draw = Stream::new(self.seed, "client", cycle << 8 | n);
            volume.worker(&self.model, &tally, draw, MIX).start(REQUESTS);
        }
        let time = Duration::from_micros(self.draw.within(500, 40_000));
        self.rig.core.block_on(self.rig.core.env().sleep(time));
        self.no_error(&tally, "at work");
        match end {
            End::Kill => self.rig.kill_and_drain(),
            End::PowerCut => self.rig.power_cut(self.draw.pick(&POLICIES)),
        }
        // Replies on their way arrive; the other clients learn that the server is gone.
        self.rig.core.block_on(tally.idle());
        self.judge(&tally, "at work");
        self.answered += tally.done.get();
        match end {
            End::Kill => self.model.restarted(),
            End::PowerCut => self.model.power_cut(),
        }
    }
}

fn cycles(count: u64, end: impl Fn(u64) -> End) {
    let seed = seed();
    for shape in &Shape::ALL {
        let mut trial = Trial::new(shape, seed);
        (0..count).for_each(|n| trial.cycle(n, end(n)));
        trial.begin(count);
        println!("{}: {} requests answered in {count} cycles", shape.name, trial.answered);
        assert!(trial.answered > 10 * count, "{}: {} requests", shape.name, trial.answered);
    }
}

#[test]
fn volume_keeps_acknowledged_writes_after_server_kill() {
    cycles(20, |_| End::Kill);
}

#[test]
fn volume_keeps_flushed_writes_after_power_cut() {
    cycles(12, |n| if n % 4 == 3 { End::Kill } else { End::PowerCut });
}
