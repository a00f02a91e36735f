//! A disk in memory. Each piece of memory is allocated at the first write to it.

#[cfg(test)]
pub(crate) mod subjects;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use std::cell::RefCell;
use std::rc::Rc;

use block::{ByteRange, Device, Info, Op, Request, Result, State, push_extent};
use kind::{
    AnyDevice, Capabilities, DeviceConfig, Effect, Kind, Lowers, Maker, OptionSpec, Scope,
    ValueType, at_once,
};

use crate::ephemeral;

/// The kind `memory`: a disk in memory, whose content is lost when the process ends.
pub const KIND: Kind = Kind {
    name: "memory",
    summary: "a disk in memory, lost when the process ends",
    manual: include_str!("manual.md"),
    lowers: Lowers::None,
    options: &[SIZE],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Disk {
        plan: |given, _| {
            at_once(ephemeral::plan(ephemeral::info(given, &SIZE), "in memory of this process"))
        },
        make: |making| at_once(make(making.config)),
    },
};

const SIZE: OptionSpec = OptionSpec {
    name: "memory",
    value: ValueType::Size(512, 1 << 46),
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Local,
    help: "size in bytes; a write allocates memory",
};

/// Bytes of a piece, the unit in which the disk allocates memory and frees discarded memory.
const PIECE_BYTES: u64 = 64 << 10;

/// Most pieces of memory for which one block status request returns extents.
const STATUS_PIECES_MAX: usize = 1 << 16;

struct Memory {
    info: Info,
    pieces: RefCell<Vec<Option<Box<[u8]>>>>,
}

fn make(given: &DeviceConfig) -> Result<Rc<dyn AnyDevice>> {
    let info = ephemeral::info(given, &SIZE);
    let pieces = RefCell::new(vec![None; info.size.div_ceil(PIECE_BYTES) as usize]);
    Ok(Rc::new(Memory { info, pieces }))
}

/// Splits `range` at the borders of pieces. Each part has the number of its piece, its offset in the piece, its offset
/// in `range`, and its length.
fn parts(range: ByteRange) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let first = range.start() / PIECE_BYTES;
    let last = (range.end() - 1) / PIECE_BYTES;
    (first..=last).map(move |piece| {
        let base = piece * PIECE_BYTES;
        let from = range.start().max(base);
        let len = range.end().min(base + PIECE_BYTES) - from;
        (piece as usize, (from - base) as usize, (from - range.start()) as usize, len as usize)
    })
}

impl Memory {
    fn read(&self, range: ByteRange, into: &mut [u8]) {
        let pieces = self.pieces.borrow();
        for (piece, within, above, len) in parts(range) {
            let into = &mut into[above..above + len];
            match &pieces[piece] {
                Some(bytes) => into.copy_from_slice(&bytes[within..within + len]),
                None => into.fill(0),
            }
        }
    }

    fn write(&self, range: ByteRange, data: &[u8]) {
        let mut pieces = self.pieces.borrow_mut();
        for (piece, within, above, len) in parts(range) {
            let bytes = pieces[piece]
                .get_or_insert_with(|| vec![0; PIECE_BYTES as usize].into_boxed_slice());
            bytes[within..within + len].copy_from_slice(&data[above..above + len]);
        }
    }

    fn zero(&self, range: ByteRange, unmap: bool) {
        let mut pieces = self.pieces.borrow_mut();
        for (piece, within, _, len) in parts(range) {
            let slot = &mut pieces[piece];
            if unmap && len as u64 == PIECE_BYTES {
                *slot = None;
            } else if let Some(bytes) = slot {
                bytes[within..within + len].fill(0);
            }
        }
    }

    fn status(&self, range: ByteRange, extents: &mut Vec<block::Extent>) {
        let pieces = self.pieces.borrow();
        for (piece, _, _, len) in parts(range).take(STATUS_PIECES_MAX) {
            let state = if pieces[piece].is_some() { State::Data } else { State::Hole };
            push_extent(extents, len as u64, state);
            if extents.len() >= block::EXTENTS_MAX {
                return;
            }
        }
    }
}

impl Device for Memory {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            Op::Read { range, into, .. } => self.read(*range, &mut into.write()),
            Op::Write { range, data, .. } => self.write(*range, &data.read()),
            Op::WriteZeroes { range, unmap, .. } => self.zero(*range, *unmap),
            Op::Discard { range, .. } => self.zero(*range, true),
            Op::Flush => {}
            Op::Status { range, extents } => self.status(*range, extents),
        }
        Ok(())
    }
}
