//! Simulated clients that send random requests to a volume, and check every reply with a model of the volume.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Copies, Env, Error, Notify, Op};

use crate::door::{Door, Reply};
use crate::draw::{Ppm, Stream};
use crate::model::{Change, Model, Wrong};
use crate::write_log::WriteLog;

/// Largest length of a usual request, in blocks of the volume.
const BLOCKS_MAX: u64 = 12;

/// Largest length of a long request in bytes; less if the volume accepts only shorter requests.
const LONG_BYTES: u64 = 64 << 10;

/// Least number of reads in which a client verifies a large volume.
const VERIFY_STEPS: u64 = 128;

/// Number of failed reads of a range after which a client takes the bytes for zeros. A device of kind `error` fails
/// reads at random.
const LEARN_TRIES: u32 = 20;

/// Number of blocks in the part of the volume to which most requests go, so that requests overlap.
const HOT_BLOCKS: u64 = 24;

/// The byte with which a client overwrites the buffer of a read after the reply.
const JUNK: u8 = 0xee;

/// Part of the error message of every device of kind `error`, by which a client recognizes the device's errors.
const ON_PURPOSE: &str = "on purpose";

/// How often a client sends requests of each type: relative weights, and chances in a million.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Relative weight of reads among the requests.
    pub read: u64,
    /// Relative weight of writes of data among the requests.
    pub write: u64,
    /// Relative weight of write zeroes among the requests.
    pub zero: u64,
    /// Relative weight of discards among the requests.
    pub discard: u64,
    /// Relative weight of flushes among the requests.
    pub flush: u64,
    /// Relative weight of block status among the requests.
    pub status: u64,
    /// Number of writes, write zeroes and discards in a million that have the FUA flag.
    pub fua: Ppm,
    /// Number of reads and writes in a million for whose reply the client does not wait.
    pub abandon: Ppm,
    /// Number of requests in a million after which the client pauses for up to 2 ms.
    pub pause: Ppm,
    /// Length in bytes of the longest request, with all lengths up to it equally frequent; `None` if most requests are
    /// short.
    pub longest: Option<u64>,
    /// Address in bytes around which most requests lie; `None` for an address at a third of the volume.
    pub hot: Option<u64>,
}

impl Mix {
    /// The usual weights: a client sends requests of all types.
    pub const ALL: Self = Self {
        read: 30,
        write: 40,
        zero: 6,
        discard: 6,
        flush: 8,
        status: 6,
        fua: 150_000,
        abandon: 20_000,
        pause: 100_000,
        longest: None,
        hot: None,
    };
}

/// Counts of the requests of all clients, and the first failures.
#[derive(Default)]
pub struct Tally {
    /// The first broken rule that the model found in a reply; `None` if all replies were right.
    pub wrong: RefCell<Option<Wrong>>,
    /// The first error in a reply that does not come from a device of kind `error`.
    pub error: RefCell<Option<Error>>,
    /// Number of requests that a device of kind `error` failed.
    pub injected: Cell<u64>,
    /// Number of requests that succeeded.
    pub done: Cell<u64>,
    /// Number of requests that failed with an error.
    pub failed: Cell<u64>,
    /// Number of requests without a reply, because their connection was reset.
    pub lost: Cell<u64>,
    /// Number of flushes that succeeded.
    pub flushes: Cell<u64>,
    /// All writes of the clients, with how far each has come. The owner of the clients records power cuts in it.
    pub log: WriteLog,
    working: Cell<u64>,
    waiting: Notify,
}

impl Tally {
    /// Waits until all clients have sent all their requests and have the replies.
    pub async fn idle(&self) {
        self.until_flushes(u64::MAX).await;
    }

    /// Waits until `flushes` flushes have succeeded in total, or all clients have sent all their requests.
    pub async fn until_flushes(&self, flushes: u64) {
        self.waiting.until(|| self.working.get() == 0 || self.flushes.get() >= flushes).await;
    }

    /// Records that all clients have ended, because the simulator has killed their process.
    pub fn killed(&self) {
        self.working.set(0);
    }

    fn leave(&self) {
        self.working.set(self.working.get() - 1);
        self.waiting.wake();
    }

    fn note(&self, reply: &Reply) {
        match &reply.answer.result {
            _ if reply.lost => self.lost.set(self.lost.get() + 1),
            Ok(()) => self.done.set(self.done.get() + 1),
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                if error.to_string().contains(ON_PURPOSE) {
                    return self.injected.set(self.injected.get() + 1);
                }
                self.error.borrow_mut().get_or_insert_with(|| error.clone());
            }
        }
    }

    fn judge(&self, judged: Result<(), Wrong>) {
        if let Err(wrong) = judged {
            self.wrong.borrow_mut().get_or_insert(wrong);
        }
    }
}

/// A simulated client that sends random requests one after the other. Several clients run at the same time.
pub struct Worker {
    /// The environment (clock, buffers) of the client's simulated world.
    pub env: Env,
    /// How the client sends requests to the volume: through an NBD server, or directly.
    pub client: Door,
    /// The model of the volume, which checks the replies.
    pub model: Rc<Model>,
    /// The counts and failures that all clients share.
    pub tally: Rc<Tally>,
    /// The client's own stream of random numbers.
    pub draw: Stream,
    /// How often the client sends requests of each type.
    pub mix: Mix,
}

impl Worker {
    /// Starts a task that sends `requests` random requests. The task stops early when the model finds a wrong reply.
    pub fn start(self, requests: u64) {
        self.tally.working.set(self.tally.working.get() + 1);
        let env = self.env.clone();
        env.spawn("worker", async move {
            for _ in 0..requests {
                if self.tally.wrong.borrow().is_some() {
                    break;
                }
                self.request().await;
                if self.draw.chance(self.mix.pause) {
                    self.env.sleep(Duration::from_nanos(self.draw.below(2_000_000))).await;
                }
            }
            self.tally.leave();
        });
    }

    async fn request(&self) {
        let Mix { read, write, zero, discard, flush, status, .. } = self.mix;
        let choices = [read, write, zero, discard, flush, status];
        let mut drawn = self.draw.below(choices.iter().sum());
        let choice = choices.iter().position(|weight| {
            let here = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            here
        });
        match choice.expect("the drawn number is below the sum of all weights") {
            0 => self.read(self.range()).await,
            1 => self.change(Change::Write).await,
            2 => self.change(Change::Zero).await,
            3 => self.change(Change::Discard).await,
            4 => self.flush().await,
            _ => self.status(self.range()).await,
        }
    }

    fn range(&self) -> ByteRange {
        let info = self.client.info();
        let block = u64::from(info.block_size);
        let blocks = info.size / block;
        let longest = self.mix.longest.unwrap_or(LONG_BYTES).min(u64::from(info.max_transfer));
        let longest = (longest / block).clamp(1, blocks);
        let len = match self.draw.below(16) {
            _ if self.mix.longest.is_some() => self.draw.within(1, longest),
            0 => self.draw.within(1, longest),
            1..8 => self.draw.within(1, longest.min(BLOCKS_MAX)),
            _ => 1,
        };
        let room = blocks - len + 1;
        let hot = match self.mix.hot {
            None => blocks / 3,
            Some(byte) => (byte / block).saturating_sub(HOT_BLOCKS / 2),
        };
        let start = match self.draw.below(8) {
            // First and last block.
            0 => 0,
            1 => room - 1,
            2 => self.draw.below(room),
            _ => (hot + self.draw.below(HOT_BLOCKS)) % room,
        };
        ByteRange::new(start * block, len * block).expect("the range has at least one block")
    }

    fn is_abandoned(&self) -> bool {
        self.draw.chance(self.mix.abandon)
    }

    async fn change(&self, change: Change) {
        let (range, fua) = (self.range(), self.draw.chance(self.mix.fua));
        let op = match change {
            Change::Write => {
                let Ok(data) = self.env.pool().wait_for(range.len() as usize).await else { return };
                Op::Write { range, data, fua, restores: Copies::NONE }
            }
            Change::Zero => Op::WriteZeroes { range, unmap: self.draw.below(2) == 0, fua },
            Change::Discard => Op::Discard { range, fua },
        };
        let changing = self.model.begin(range, change, fua);
        if let Op::Write { data, .. } = &op {
            self.model.fill(&changing, &mut data.write());
        }
        let logged = self.tally.log.send(&op);
        if self.is_abandoned() {
            // For the model it stays in flight.
            return self.client.abandon(op).await;
        }
        let reply = self.client.send(op).await;
        self.tally.note(&reply);
        if !reply.lost && reply.answer.result.is_ok() {
            logged.into_iter().for_each(|number| self.tally.log.acknowledge(number));
        }
        match reply.lost {
            true => self.model.lost(changing),
            false => self.model.end(changing, reply.answer.result.is_ok()),
        }
    }

    async fn read(&self, range: ByteRange) {
        let Ok(into) = self.env.pool().wait_for(range.len() as usize).await else { return };
        let looking = self.model.look();
        let op = Op::read(range, into);
        if self.is_abandoned() {
            self.model.look_failed(looking);
            return self.client.abandon(op).await;
        }
        let reply = self.client.send(op).await;
        self.tally.note(&reply);
        let answer = reply.answer;
        match (answer.result, answer.op) {
            (Ok(()), Op::Read { into, .. }) => {
                self.tally.judge(self.model.saw(looking, range, &into.read()));
                // The buffer of a read is the reader's: a device that keeps it would show these bytes to others.
                into.write().fill(JUNK);
            }
            _ => self.model.look_failed(looking),
        }
    }

    async fn flush(&self) {
        let (flush, covered) = (self.model.flush(), self.tally.log.covered());
        let reply = self.client.send(Op::Flush).await;
        self.tally.note(&reply);
        if reply.lost {
            return;
        }
        let answer = reply.answer;
        if answer.result.is_ok() {
            self.tally.flushes.set(self.tally.flushes.get() + 1);
            self.tally.log.flushed(covered);
            self.tally.waiting.wake();
        }
        self.tally.judge(self.model.flushed(flush, answer.result.is_ok()));
    }

    async fn status(&self, range: ByteRange) {
        let looking = self.model.look();
        let reply = self.client.send(Op::Status { range, extents: Vec::new() }).await;
        self.tally.note(&reply);
        let answer = reply.answer;
        match (answer.result, answer.op) {
            (Ok(()), Op::Status { extents, .. }) => {
                self.tally.judge(self.model.judge_status(looking, range, &extents));
            }
            _ => self.model.look_failed(looking),
        }
    }

    /// Reads the whole volume before the first write, or while no request is in flight, and gives its content to the model.
    /// The model takes bytes that cannot be read before the first write for zeros. Returns whether all bytes could be read.
    pub async fn learn(&self) -> bool {
        let info = self.client.info().clone();
        let step = u64::from(info.max_transfer).min(LONG_BYTES);
        let block = u64::from(info.block_size);
        let step = (step - step % block).max(block) as usize;
        let mut is_complete = true;
        for at in (0..info.size).step_by(step) {
            let end = info.size.min(at + step as u64);
            let range = ByteRange::between(at, end).expect("blocks of the volume are left");
            let mut is_known = false;
            for _ in 0..LEARN_TRIES {
                let Ok(into) = self.env.buf(range.len() as usize) else { return false };
                let answer = self.client.send(Op::read(range, into)).await.answer;
                if let (Ok(()), Op::Read { into, .. }) = (answer.result, answer.op) {
                    self.model.learn(range, &into.read());
                    is_known = true;
                    break;
                }
            }
            is_complete &= is_known;
        }
        is_complete
    }

    /// Reads the whole volume while no request is in flight, and gives the bytes of the sectors that may hold any bytes to
    /// the model.
    pub async fn learn_unknown(&self) {
        let info = self.client.info().clone();
        let step = u64::from(info.max_transfer).min(LONG_BYTES);
        let step = step - step % u64::from(info.block_size);
        let mut at = 0;
        while let Some(range) = ByteRange::between(at, info.size.min(at + step)) {
            let Ok(into) = self.env.buf(range.len() as usize) else { return };
            let reply = self.client.send(Op::read(range, into)).await;
            self.tally.note(&reply);
            if let (Ok(()), Op::Read { into, .. }) = (reply.answer.result, reply.answer.op) {
                self.model.learn_unknown(range, &into.read());
            }
            at = range.end();
        }
    }

    /// Reads the whole volume, then asks its block status, then reads it again, and checks all replies with the model.
    pub async fn verify(mut self) {
        self.mix.abandon = 0;
        let info = self.client.info().clone();
        let block = u64::from(info.block_size);
        // Large volumes are read in longer requests.
        let step = (block * BLOCKS_MAX).max(info.size / VERIFY_STEPS / block * block);
        let step = step.min(u64::from(info.max_transfer)).min(info.size);
        for round in 0..3 {
            let mut at = 0;
            while at < info.size && self.tally.wrong.borrow().is_none() {
                let range = ByteRange::between(at, info.size.min(at + step))
                    .expect("blocks of the volume are left");
                match round {
                    1 => self.status(range).await,
                    _ => self.read(range).await,
                }
                at = range.end();
            }
        }
    }
}
