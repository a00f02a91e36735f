//! What must be in each block of a volume, by what its clients were told.

use std::collections::{BTreeMap, VecDeque};

use bench::{load, pattern};
use block::{Buf, Env, Error, Result};
use net::nbd::Client;
use wire::nbd::{Command, CommandFlags};

/// What is written and looked at as one.
pub const BLOCK: u64 = 4096;

/// Requests on their way.
const DEPTH: usize = 8;

/// Read as one when all of it is looked at.
const PIECE: u64 = 256 << 10;

/// A pattern is made for this place and the block's generation times this: each is its own.
const GENERATION: u64 = 1 << 40;

/// How often each block was written, as far as clients were told.
pub struct Known {
    generations: Vec<u32>,
    /// Blocks with a write that was sent and never answered.
    doubtful: Vec<u64>,
    /// What random places are drawn from.
    draw: u64,
    /// Writes that were answered.
    pub answered: u64,
}

struct Sent {
    block: u64,
    /// The generation that was written; none for a read.
    wrote: Option<u32>,
}

impl Known {
    /// Of a volume of so many bytes that was filled with [`load::fill`].
    pub fn new(size: u64, draw: u64) -> Self {
        let generations = vec![0; (size / BLOCK) as usize];
        Self { generations, doubtful: Vec::new(), draw, answered: 0 }
    }

    /// A number below `most`.
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

    /// Random reads, each compared, and writes, until the server has gone.
    ///
    /// # Errors
    /// Wrong bytes, or what connecting says.
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

    /// What has become of a request; whether the server is still there.
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

    /// Finds out what became of the writes that were never answered, after a restart.
    ///
    /// # Errors
    /// That one of these blocks holds neither what it held nor what was written.
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

    /// Looks at every block.
    ///
    /// # Errors
    /// The first that does not hold what it should.
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

/// Bytes of an export.
pub async fn read(env: &Env, client: &Client, at: u64, len: u64) -> Result<Buf, Error> {
    let buf = env.buf(len as usize)?;
    let outcome = client.start(Command::Read, CommandFlags::NONE, at, len, Some(buf)).await;
    outcome.result?;
    outcome.buf.ok_or_else(|| Error::new(block::ErrorKind::Invalid, "a read without its bytes"))
}
