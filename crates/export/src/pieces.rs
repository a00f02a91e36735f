//! Long requests of clients, carried out in pieces.

use std::rc::Rc;

use block::seeded::{self, Bug};
use block::{ByteRange, Op, Result};
use engine::Share;

use crate::nbd::Export;

/// Length in bytes above which a trim, a write of zeroes or a discard is carried out in pieces. So a live change
/// waits for one piece, not for a request that may take minutes.
pub const PIECE_BYTES: u64 = 16 << 20;

/// Carries out a long request on the range `whole`, one piece after the other; `op_of` returns the operation of a
/// piece. Each piece is admitted like a request of its own, for the client with the share `share`. All pieces but the
/// last end between two blocks of the device, so that an unaligned request rewrites the blocks at its ends only. After
/// an error no further piece begins, and the error is returned. Returns `None` if `goes_on` returned false between two
/// pieces; then no further piece begins either.
pub async fn in_pieces(
    export: &Export,
    share: &Rc<Share>,
    whole: ByteRange,
    piece_bytes: u64,
    goes_on: impl Fn() -> bool,
    op_of: impl Fn(ByteRange) -> Op,
) -> Option<Result<()>> {
    let behind = export.portal.node().filter(|_| seeded::on(Bug::PieceUnadmitted));
    let unadmitted = behind.map(|node| export.engine.lower(node));
    let block = u64::from(export.info().block_size);
    let mut at = whole.start();
    while at < whole.end() {
        if !goes_on() {
            return None;
        }
        let end = at.saturating_add(piece_bytes.max(block));
        let end = whole.end().min(end - end % block);
        let op = op_of(ByteRange::between(at, end).expect("a piece has bytes"));
        let done = match &unadmitted {
            Some(lower) => lower.call(op).await,
            None => export.engine.call_for(share, &export.portal, op).await,
        };
        match done.result {
            Err(error) if !seeded::on(Bug::PieceErrorForgotten) => return Some(Err(error)),
            _ => at = end,
        }
        // Devices that answer at once must not hold up other tasks.
        export.env.give_way().await;
    }
    Some(Ok(()))
}
