//! Clients at work: random requests, every answer judged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Env, Error, Notify, Op};

use crate::door::{Door, Reply};
use crate::draw::{Ppm, Stream};
use crate::model::{Change, Model, Wrong};

/// The most blocks of most requests.
const BLOCKS_MAX: u64 = 12;

/// The most bytes of the rest, if the device takes so many.
const LONG_BYTES: u64 = 64 << 10;

/// Requests in which a large volume is read as a whole.
const VERIFY_STEPS: u64 = 128;

/// Before anybody has written, a read is tried this often: some devices fail now and then on purpose.
const LEARN_TRIES: u32 = 20;

/// Blocks that most requests go to, so that they meet.
const HOT_BLOCKS: u64 = 24;

/// Bytes that a reader leaves in its buffer.
const JUNK: u8 = 0xee;

/// What every error says that a device of kind `error` makes.
const ON_PURPOSE: &str = "on purpose";

/// How often each sort of request is sent, relative to the others.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Writes of zeros.
    pub zero: u64,
    /// Discards.
    pub discard: u64,
    /// Flushes.
    pub flush: u64,
    /// Block status.
    pub status: u64,
    /// How often a change is to be durable at once.
    pub fua: Ppm,
    /// How often nobody waits for the answer.
    pub abandon: Ppm,
    /// How often a client pauses.
    pub pause: Ppm,
    /// Bytes of the longest request, if requests of all lengths are as frequent: otherwise most are short.
    pub longest: Option<u64>,
    /// The byte around which most requests are; a third of the volume if not set.
    pub hot: Option<u64>,
}

impl Mix {
    /// A bit of everything.
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

/// What has become of the requests so far.
#[derive(Default)]
pub struct Tally {
    /// The first promise that was broken.
    pub wrong: RefCell<Option<Wrong>>,
    /// The first error that nobody makes on purpose.
    pub error: RefCell<Option<Error>>,
    /// Requests that failed on purpose.
    pub injected: Cell<u64>,
    /// Requests that succeeded.
    pub done: Cell<u64>,
    /// Requests that failed.
    pub failed: Cell<u64>,
    /// Requests of which nobody knows.
    pub lost: Cell<u64>,
    /// Flushes that succeeded.
    pub flushes: Cell<u64>,
    working: Cell<u64>,
    waiting: Notify,
}

impl Tally {
    /// Waits until no client is at work.
    pub async fn idle(&self) {
        self.until_flushes(u64::MAX).await;
    }

    /// Waits until so many flushes have succeeded, or no client is at work.
    pub async fn until_flushes(&self, flushes: u64) {
        self.waiting.until(|| self.working.get() == 0 || self.flushes.get() >= flushes).await;
    }

    /// The clients have died with their process.
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

/// A client that sends one request after the other; many of them overlap.
pub struct Worker {
    /// The world.
    pub env: Env,
    /// Where requests go.
    pub client: Door,
    /// What the answers should be.
    pub model: Rc<Model>,
    /// What they were.
    pub tally: Rc<Tally>,
    /// What it draws from.
    pub draw: Stream,
    /// What it sends.
    pub mix: Mix,
}

impl Worker {
    /// Sends so many requests, or fewer if something is wrong, in a task of its own.
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
        match choice.expect("below the sum of all") {
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
            // The edges.
            0 => 0,
            1 => room - 1,
            2 => self.draw.below(room),
            _ => (hot + self.draw.below(HOT_BLOCKS)) % room,
        };
        ByteRange::new(start * block, len * block).expect("some blocks")
    }

    fn is_abandoned(&self) -> bool {
        self.draw.chance(self.mix.abandon)
    }

    async fn change(&self, change: Change) {
        let (range, fua) = (self.range(), self.draw.chance(self.mix.fua));
        let op = match change {
            Change::Write => {
                let Ok(data) = self.env.pool().wait_for(range.len() as usize).await else { return };
                Op::Write { range, data, fua }
            }
            Change::Zero => Op::WriteZeroes { range, unmap: self.draw.below(2) == 0, fua },
            Change::Discard => Op::Discard { range, fua },
        };
        let changing = self.model.begin(range, change, fua);
        if let Op::Write { data, .. } = &op {
            self.model.fill(&changing, &mut data.write());
        }
        if self.is_abandoned() {
            // It stays in flight, as far as the model knows.
            return self.client.abandon(op).await;
        }
        let reply = self.client.send(op).await;
        self.tally.note(&reply);
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
        let flush = self.model.flush();
        let reply = self.client.send(Op::Flush).await;
        self.tally.note(&reply);
        if reply.lost {
            return;
        }
        let answer = reply.answer;
        if answer.result.is_ok() {
            self.tally.flushes.set(self.tally.flushes.get() + 1);
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
                self.tally.judge(self.model.told(looking, range, &extents));
            }
            _ => self.model.look_failed(looking),
        }
    }

    /// Reads everything before anybody has written: it has to stay so. What cannot be read is judged with
    /// all else.
    pub async fn learn(&self) {
        let info = self.client.info().clone();
        let step = u64::from(info.max_transfer).min(LONG_BYTES);
        let block = u64::from(info.block_size);
        let step = (step - step % block).max(block) as usize;
        for at in (0..info.size).step_by(step) {
            let end = info.size.min(at + step as u64);
            let range = ByteRange::between(at, end).expect("some are left");
            for _ in 0..LEARN_TRIES {
                let Ok(into) = self.env.buf(range.len() as usize) else { return };
                let answer = self.client.send(Op::read(range, into)).await.answer;
                if let (Ok(()), Op::Read { into, .. }) = (answer.result, answer.op) {
                    self.model.learn(range, &into.read());
                    break;
                }
            }
        }
    }

    /// Reads all of it, twice, and asks for its status in between.
    pub async fn verify(mut self) {
        self.mix.abandon = 0;
        let info = self.client.info().clone();
        let block = u64::from(info.block_size);
        // Large volumes take longer requests.
        let step = (block * BLOCKS_MAX).max(info.size / VERIFY_STEPS / block * block);
        let step = step.min(u64::from(info.max_transfer)).min(info.size);
        for round in 0..3 {
            let mut at = 0;
            while at < info.size && self.tally.wrong.borrow().is_none() {
                let range =
                    ByteRange::between(at, info.size.min(at + step)).expect("some are left");
                match round {
                    1 => self.status(range).await,
                    _ => self.read(range).await,
                }
                at = range.end();
            }
        }
    }
}
