//! The expected content of each block of a volume, according to the acknowledged writes.

use std::collections::{BTreeMap, VecDeque};

use bench::{load, pattern};
use block::{Buf, Env, Error, Result};
use net::nbd::Client;
use wire::nbd::{Command, CommandFlags};

/// Bytes of a block, which is written and checked as a unit.
pub const BLOCK: u64 = 4096;

/// Requests in flight.
const DEPTH: usize = 8;

/// Bytes of a read when the whole volume is checked.
const PIECE: u64 = 256 << 10;

/// Offset between the generations of a block. The pattern is made for the block's address plus its generation times
/// this, so every generation has a pattern of its own.
const GENERATION: u64 = 1 << 40;

/// The number of acknowledged writes to each block.
pub struct Known {
    generations: Vec<u32>,
    /// Blocks with a write that was sent and never answered.
    doubtful: Vec<u64>,
    /// State of the random generator.
    draw: u64,
    /// Number of acknowledged writes.
    pub answered: u64,
}

struct Sent {
    block: u64,
    /// The generation that was written; `None` for a read.
    wrote: Option<u32>,
}

impl Known {
    /// Returns the state of a volume of `size` bytes that was filled with [`load::fill`].
    pub fn new(size: u64, draw: u64) -> Self {
        let generations = vec![0; (size / BLOCK) as usize];
        Self { generations, doubtful: Vec::new(), draw, answered: 0 }
    }

    /// Draws a number below `most`.
    pub fn draw(&mut self, most: u64) -> u64 {
        self.draw = self
            .draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.draw >> 24) % most
    }

    fn place(block: u64, generation: u32) -> u64 {
        block * BLOCK + u64::from(generation) * GENERATION
    }

    /// Sends random reads, each compared, and writes, until the server is gone.
    ///
    /// # Errors
    /// Wrong bytes, or errors of connecting.
    pub async fn use_until_gone(
        &mut self,
        env: &Env,
        uri: &str,
    ) -> std::result::Result<(), String> {
        let client = load::connect(env, uri, false).await.map_err(|error| error.to_string())?;
        let mut under_way: VecDeque<(Sent, _)> = VecDeque::new();
        let mut busy = BTreeMap::new();
        loop {
            while under_way.len() < DEPTH {
                let block = self.draw(self.generations.len() as u64);
                if busy.insert(block, ()).is_some() {
                    continue;
                }
                let wrote = (self.draw(10) < 5).then(|| self.generations[block as usize] + 1);
                let buf = env.buf(BLOCK as usize).map_err(|error| error.to_string())?;
                let command = if wrote.is_some() { Command::Write } else { Command::Read };
                if let Some(generation) = wrote {
                    pattern::fill(&mut buf.write(), Self::place(block, generation));
                }
                let ticket =
                    client.start(command, CommandFlags::NONE, block * BLOCK, BLOCK, Some(buf));
                under_way.push_back((Sent { block, wrote }, ticket));
            }
            let Some((sent, ticket)) = under_way.pop_front() else { return Ok(()) };
            busy.remove(&sent.block);
            let outcome = ticket.await;
            if self.hear(&sent, outcome.result.map(drop), outcome.buf)? {
                continue;
            }
            for (sent, ticket) in under_way {
                let outcome = ticket.await;
                self.hear(&sent, outcome.result.map(drop), outcome.buf)?;
            }
            client.close();
            return Ok(());
        }
    }

    /// Records the result of a request. Returns whether the server is still there.
    fn hear(
        &mut self,
        sent: &Sent,
        result: Result<()>,
        buf: Option<Buf>,
    ) -> std::result::Result<bool, String> {
        let lost = result.is_err();
        match (sent.wrote, buf) {
            (Some(generation), _) if !lost => {
                self.generations[sent.block as usize] = generation;
                self.answered += 1;
            }
            (Some(_), _) => self.doubtful.push(sent.block),
            (None, Some(buf)) if !lost => self.compare(sent.block, &buf.read())?,
            (None, _) => {}
        }
        Ok(!lost)
    }

    fn compare(&self, block: u64, bytes: &[u8]) -> std::result::Result<(), String> {
        let generation = self.generations[block as usize];
        if pattern::is_right(bytes, Self::place(block, generation)) {
            return Ok(());
        }
        Err(format!("block {block} does not hold its write number {generation}"))
    }

    /// Finds out after a restart which of the unanswered writes were carried out.
    ///
    /// # Errors
    /// If such a block holds neither its old nor its new content.
    pub async fn settle(&mut self, env: &Env, uri: &str) -> std::result::Result<(), String> {
        let client = load::connect(env, uri, false).await.map_err(|error| error.to_string())?;
        for block in std::mem::take(&mut self.doubtful) {
            let buf = read(env, &client, block * BLOCK, BLOCK).await.map_err(|e| e.to_string())?;
            let next = self.generations[block as usize] + 1;
            if pattern::is_right(&buf.read(), Self::place(block, next)) {
                self.generations[block as usize] = next;
            }
            self.compare(block, &buf.read())?;
        }
        client.close();
        Ok(())
    }

    /// Checks every block.
    ///
    /// # Errors
    /// The first block with wrong content.
    pub async fn check(&self, env: &Env, uri: &str) -> std::result::Result<(), String> {
        let client = load::connect(env, uri, false).await.map_err(|error| error.to_string())?;
        let size = self.generations.len() as u64 * BLOCK;
        for at in (0..size).step_by(PIECE as usize) {
            let len = PIECE.min(size - at);
            let buf = read(env, &client, at, len).await.map_err(|error| error.to_string())?;
            let bytes = buf.read();
            for (n, bytes) in (0..).zip(bytes.chunks(BLOCK as usize)) {
                self.compare(at / BLOCK + n, bytes)?;
            }
        }
        client.close();
        Ok(())
    }
}

/// Reads bytes of an export.
pub async fn read(env: &Env, client: &Client, at: u64, len: u64) -> Result<Buf, Error> {
    let buf = env.buf(len as usize)?;
    let outcome = client.start(Command::Read, CommandFlags::NONE, at, len, Some(buf)).await;
    outcome.result?;
    outcome.buf.ok_or_else(|| Error::new(block::ErrorKind::Invalid, "a read without its bytes"))
}
