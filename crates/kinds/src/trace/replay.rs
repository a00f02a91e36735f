//! Sends the requests of a trace again.

use std::collections::VecDeque;
use std::time::Duration;

use block::{Buf, ByteRange, Child, Env, Error, ErrorKind, Lower, Op, OpKind, Result};

use super::entry::Record;

/// Most requests that a replay has in flight, even if the trace had more.
pub const IN_FLIGHT_MAX: usize = 1024;

/// The result of replaying a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Number of requests sent.
    pub requests: u64,
    /// Number of requests that failed.
    pub failed: u64,
}

/// Replays the requests of one run to `lower` as they were recorded: none before its time, and none before the replies
/// to all requests that had been answered when it began. Requests that were in flight together are in flight together
/// again. Every 16 bytes of a payload hold their address and the number of their request.
///
/// # Errors
/// `Limit` if the pool is too small for the buffer of a single request. A request that fails is counted, and the replay
/// goes on.
pub async fn replay(records: &[Record], lower: &Lower, env: &Env) -> Result<Replayed> {
    let mut records = records.to_vec();
    records.sort_by_key(|record| (record.begin_ns, record.id));
    let first_ns = records.first().map_or(0, |record| record.begin_ns);
    let started = env.now();
    let mut flights = Flights::default();
    for record in &records {
        let due = Duration::from_nanos(record.begin_ns - first_ns);
        env.sleep_until(started.after(due)).await;
        flights.land(|end_ns| end_ns <= record.begin_ns).await;
        if flights.0.len() == IN_FLIGHT_MAX {
            flights.land_first().await;
        }
        let op = flights.operation(record, env).await?;
        flights.1.requests += 1;
        flights.0.push_back((record.end_ns, lower.start(op)));
    }
    flights.land(|_| true).await;
    Ok(flights.1)
}

/// Requests in flight, each with the time of its recorded reply; and the result so far.
#[derive(Default)]
struct Flights(VecDeque<(u64, Child)>, Replayed);

impl Flights {
    /// Waits for the requests with a recorded reply time that `answered` accepts.
    async fn land(&mut self, answered: impl Fn(u64) -> bool) {
        for _ in 0..self.0.len() {
            let (end_ns, child) = self.0.pop_front().expect("the loop above counted the entry");
            if answered(end_ns) {
                self.note(child).await;
            } else {
                self.0.push_back((end_ns, child));
            }
        }
    }

    async fn land_first(&mut self) {
        if let Some((_, child)) = self.0.pop_front() {
            self.note(child).await;
        }
    }

    async fn note(&mut self, child: Child) {
        self.1.failed += u64::from(child.await.result.is_err());
    }

    /// Returns the request of a record, with a buffer if it needs one. Replies hold their buffers until they are taken,
    /// so this takes replies before it waits for room in the pool.
    async fn operation(&mut self, record: &Record, env: &Env) -> Result<Op> {
        let Some(range) = record.range else { return Ok(Op::Flush) };
        let &Record { fua, unmap, id, .. } = record;
        Ok(match record.verb {
            OpKind::Read => Op::read(range, self.buf(range, env).await?),
            OpKind::Write => {
                let data = self.buf(range, env).await?;
                fill(&mut data.write(), range, id);
                Op::Write { range, data, fua }
            }
            OpKind::WriteZeroes => Op::WriteZeroes { range, unmap, fua },
            OpKind::Discard => Op::Discard { range, fua },
            OpKind::Status => Op::Status { range, extents: Vec::new() },
            OpKind::Flush => Op::Flush,
        })
    }

    async fn buf(&mut self, range: ByteRange, env: &Env) -> Result<Buf> {
        let len = usize::try_from(range.len())
            .map_err(|_| Error::new(ErrorKind::Limit, format!("a buffer for {range}")))?;
        loop {
            match env.buf(len) {
                Err(error) if error.kind() == ErrorKind::Limit && !self.0.is_empty() => {
                    self.land_first().await;
                }
                Err(error) if error.kind() == ErrorKind::Limit => {
                    return env.pool().wait_for(len).await;
                }
                taken => return taken,
            }
        }
    }
}

/// Fills the payload of a write.
fn fill(data: &mut [u8], range: ByteRange, id: u64) {
    for (at, bytes) in (range.start()..).step_by(16).zip(data.chunks_mut(16)) {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&at.to_le_bytes());
        words[8..].copy_from_slice(&id.to_le_bytes());
        bytes.copy_from_slice(&words[..bytes.len()]);
    }
}
