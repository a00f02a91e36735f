//! A client that knows from the acknowledged writes what each block of a volume must hold, also after kills of the
//! server.

use std::collections::{BTreeMap, VecDeque};

use bench::{load, pattern};
use block::{Buf, Env, Result};
use wire::nbd::{Command, CommandFlags};

/// Length in bytes of a block, which the client writes and checks as a unit.
pub const BLOCK: u64 = 4096;

/// Number of the client's requests in flight.
const DEPTH: usize = 8;

/// Length in bytes of a read when the client checks the whole volume.
const PIECE: u64 = 256 << 10;

/// Offset that distinguishes the writes of one block: write number n holds the test pattern for the block's address
/// plus n times this offset.
const GENERATION: u64 = 1 << 40;

/// For each block of the volume, the number of its last acknowledged write.
pub struct Known {
    generations: Vec<u32>,
    /// Numbers of blocks with a write that was sent and never answered.
    doubtful: Vec<u64>,
    /// State of the random number generator.
    draw: u64,
    /// Number of acknowledged writes to all blocks.
    pub answered: u64,
}

struct Sent {
    block: u64,
    /// Number of the block's write, counted from 1; `None` for a read.
    wrote: Option<u32>,
}

impl Known {
    /// Returns the expected content of a volume of `size` bytes that was just filled with [`load::fill`]. `draw` is the
    /// seed of the random numbers.
    pub fn new(size: u64, draw: u64) -> Self {
        let generations = vec![0; (size / BLOCK) as usize];
        Self { generations, doubtful: Vec::new(), draw, answered: 0 }
    }

    /// Returns a random number from 0 to `most - 1`.
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

    /// Sends random reads, each compared, and random writes to the volume until the server is gone.
    ///
    /// # Errors
    /// A read has returned wrong bytes, or the client cannot connect.
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

    /// Records the reply to a request, and compares a read. Returns `false` if the request failed because the server is
    /// gone.
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

    /// After a restart of the server, finds out by reads which of the unanswered writes were carried out.
    ///
    /// # Errors
    /// A block with an unanswered write holds neither its old nor its new content.
    pub async fn settle(&mut self, env: &Env, uri: &str) -> std::result::Result<(), String> {
        let client = load::connect(env, uri, false).await.map_err(|error| error.to_string())?;
        for block in std::mem::take(&mut self.doubtful) {
            let buf =
                load::read(env, &client, block * BLOCK, BLOCK).await.map_err(|e| e.to_string())?;
            let next = self.generations[block as usize] + 1;
            if pattern::is_right(&buf.read(), Self::place(block, next)) {
                self.generations[block as usize] = next;
            }
            self.compare(block, &buf.read())?;
        }
        client.close();
        Ok(())
    }

    /// Reads the whole volume, and compares every block with its expected content.
    ///
    /// # Errors
    /// The first block with wrong content, or an error of a request.
    pub async fn check(&self, env: &Env, uri: &str) -> std::result::Result<(), String> {
        let client = load::connect(env, uri, false).await.map_err(|error| error.to_string())?;
        let size = self.generations.len() as u64 * BLOCK;
        for at in (0..size).step_by(PIECE as usize) {
            let len = PIECE.min(size - at);
            let buf = load::read(env, &client, at, len).await.map_err(|error| error.to_string())?;
            let bytes = buf.read();
            for (n, bytes) in (0..).zip(bytes.chunks(BLOCK as usize)) {
                self.compare(at / BLOCK + n, bytes)?;
            }
        }
        client.close();
        Ok(())
    }
}
