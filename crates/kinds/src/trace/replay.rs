//! Replays a trace: sends its requests to a device again.

use std::collections::VecDeque;
use std::time::Duration;

use block::{Buf, ByteRange, Child, Copies, Env, ErrorKind, Lower, Op, OpKind, Result, error};

use super::entry::Record;

/// Most requests that a replay has in flight, even if the trace had more.
pub const IN_FLIGHT_MAX: usize = 1024;

/// The result of replaying a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Number of requests that the replay sent.
    pub requests: u64,
    /// Number of sent requests that failed in the replay.
    pub failed: u64,
}

/// Replays the requests of one run to `lower` as they were recorded: no request before its recorded time, and no
/// request before the replies to all requests whose recorded replies came before its recorded beginning. Requests that
/// were in flight together are in flight together again. Every 16 bytes of a payload hold their address and the number
/// of their request.
///
/// # Errors
/// `Limit` if the pool is too small for the buffer of a single request. The replay counts a request that fails, and
/// continues.
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

/// The requests of a replay that are in flight, each with the recorded time of its reply; and the result of the replay
/// so far.
#[derive(Default)]
struct Flights(VecDeque<(u64, Child)>, Replayed);

impl Flights {
    /// Waits for the replies to the requests in flight whose recorded reply times `answered` accepts.
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

    /// Returns the operation of the recorded request `record`, with a buffer for a read or write. Replies hold their
    /// buffers until the replay takes the replies, so this function takes replies before it waits for room in the pool.
    async fn operation(&mut self, record: &Record, env: &Env) -> Result<Op> {
        let Some(range) = record.range else { return Ok(Op::Flush) };
        let &Record { fua, unmap, id, .. } = record;
        Ok(match record.verb {
            OpKind::Read => Op::read(range, self.buf(range, env).await?),
            OpKind::Write => {
                let data = self.buf(range, env).await?;
                fill(&mut data.write(), range, id);
                Op::Write { range, data, fua, restores: Copies::NONE }
            }
            OpKind::WriteZeroes => Op::WriteZeroes { range, unmap, fua },
            OpKind::Discard => Op::Discard { range, fua },
            OpKind::Status => Op::Status { range, extents: Vec::new() },
            OpKind::Flush => Op::Flush,
        })
    }

    async fn buf(&mut self, range: ByteRange, env: &Env) -> Result<Buf> {
        let len = usize::try_from(range.len())
            .map_err(|_| error!(Limit, "bytes {range} fit into no buffer"))?;
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

/// Fills the payload of a write: every 16 bytes hold their address and `id`, the number of the request.
fn fill(data: &mut [u8], range: ByteRange, id: u64) {
    for (at, bytes) in (range.start()..).step_by(16).zip(data.chunks_mut(16)) {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&at.to_le_bytes());
        words[8..].copy_from_slice(&id.to_le_bytes());
        bytes.copy_from_slice(&words[..bytes.len()]);
    }
}
