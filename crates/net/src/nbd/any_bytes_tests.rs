//! Fuzz targets of the NBD disk: any bytes from a server, and any bytes in the memory that holds writes for replay.

use std::cell::RefCell;
use std::rc::Rc;

use block::env::Lasting;
use block::{BufPool, Result};
use wire::nbd::{Body, Command, ReplyMessage, ReplyStyle};

use super::pending::{Follows, Pending, Rest, Slot, place_of};
use super::ring::Ring;

/// Feeds any bytes as the replies of a server to six requests in flight. Returns the number of reads that succeed.
pub fn try_any_replies(bytes: &[u8]) -> usize {
    const NOT_COME: u8 = 0xa5;
    const COME: u8 = 0x5a;
    const ASKED: [(Command, u64, usize); 6] = [
        (Command::Read, 0, 512),
        (Command::Read, 4096, 64),
        (Command::Read, u64::MAX - 255, 255),
        (Command::Write, 8192, 4096),
        (Command::BlockStatus, 0, 1 << 20),
        (Command::Read, 1 << 20, 64),
    ];
    // The waiter of the last one is gone.
    const ABANDONED: usize = 5;
    let Some((first, mut bytes)) = bytes.split_first() else { return 0 };
    let style = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
    let style = style[usize::from(*first) % style.len()];
    let pool = BufPool::new(1 << 20, 0);
    let mut pending = Pending::default();
    let asked = |(command, offset, len): (Command, u64, usize)| {
        let buf = (command == Command::Read).then(|| pool.take(len).expect("it is a small one"));
        buf.iter().for_each(|buf| buf.write().fill(NOT_COME));
        Slot { busy: true, command: Some(command), offset, buf, ..Slot::default() }
    };
    pending.slots.extend(ASKED.map(asked));
    pending.slots[ABANDONED].abandoned = true;
    while let Ok(Some((message, used))) = ReplyMessage::parse(bytes, style, 1 << 20) {
        bytes = &bytes[used..];
        let place = place_of(message.cookie);
        let buf = pending.slots.get(place).and_then(|slot| slot.buf.clone());
        let before = buf.map(|buf| buf.read().to_vec());
        let Ok(follows) = pending.hear(&message, style) else { break };
        if let (Body::Hole { offset, len }, Some(before)) = (message.body, before) {
            let hole = &before[(offset - ASKED[place].1) as usize..][..len as usize];
            assert!(hole.iter().all(|byte| *byte == NOT_COME), "a hole comes once, too");
        }
        let Some(Follows { cookie, what, last }) = follows else { continue };
        let len = match what {
            Rest::Data(into) => {
                assert!(into.read().iter().all(|byte| *byte == NOT_COME), "it comes once");
                into.write().fill(COME);
                into.len()
            }
            Rest::Nothing(len) => len,
        };
        let Some(rest) = bytes.get(len..) else { break };
        bytes = rest;
        if last {
            pending.finish(cookie);
        }
    }
    let well = pending.slots.iter().filter(|slot| slot.done && slot.failed.is_none());
    let read: Vec<_> = well.filter_map(|slot| slot.buf.as_ref()).collect();
    for buf in &read {
        assert!(buf.read().iter().all(|byte| *byte != NOT_COME), "all of it has come");
    }
    read.len()
}

/// Opens the ring of writes for replay in memory with these bytes, changes it, and opens it again. Returns the number
/// of records in the ring.
pub fn try_any_ring(bytes: &[u8]) -> usize {
    let Some(identity) = bytes.get(20..28).and_then(|bytes| bytes.first_chunk()) else { return 0 };
    let identity = u64::from_be_bytes(*identity);
    let memory = Rc::new(Plain(bytes.to_vec().into()));
    let pool = BufPool::new(1 << 20, 0);
    let Ok((mut ring, found)) = Ring::open(memory.clone(), identity, |len| pool.take(len)) else {
        return 0;
    };
    let count = ring.lengths.len();
    assert!(found.changes.len() == count || found.lost.is_some());
    ring.trim(count, true).expect("the memory is as large as it was");
    let (_, found) =
        Ring::open(memory, identity, |len| pool.take(len)).expect("it was just written");
    assert!(found.lost.is_some() || found.changes.is_empty());
    count
}

/// Memory for a ring of writes that a test provides instead of persistent memory.
pub(super) struct Plain(pub RefCell<Vec<u8>>);

impl Lasting for Plain {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let at = at as usize;
        into.copy_from_slice(&self.0.borrow()[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let at = at as usize;
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
