//! The writer of a connection: sends what is ready, all of it at once.

use std::rc::Rc;

use block::Buf;

use super::connection::{Connection, Spare};
use super::outbox::HEADS_BYTES;

/// Sends answers until there will be no more.
pub async fn write(connection: Rc<Connection>) {
    // Two buffers of heads take turns: one is filled while the other is sent.
    let Ok(heads) = connection.export.env.buf(HEADS_BYTES) else { return connection.close() };
    let mut spare = Spare { heads: Some(heads), parts: Vec::new() };
    while let Some(batch) = connection.batch(&mut spare).await {
        let held = batch.held;
        match send_all(&connection, batch.parts).await {
            Some(parts) => spare.parts = parts,
            None => return connection.close(),
        }
        connection.sent(held);
    }
    connection.socket.shutdown();
}

/// Sends all parts; the emptied vector comes back, to be used again.
async fn send_all(connection: &Connection, mut parts: Vec<Buf>) -> Option<Vec<Buf>> {
    loop {
        let total: usize = parts.iter().map(Buf::len).sum();
        let outcome = connection.socket.send(parts).await;
        parts = outcome.parts;
        let sent = outcome.result.ok().filter(|sent| *sent > 0)?;
        if sent == total {
            parts.clear();
            return Some(parts);
        }
        drop_front(&mut parts, sent);
    }
}

fn drop_front(parts: &mut Vec<Buf>, mut sent: usize) {
    let whole = parts
        .iter()
        .take_while(|part| {
            let fits = part.len() <= sent;
            sent -= if fits { part.len() } else { 0 };
            fits
        })
        .count();
    parts.drain(..whole);
    if sent > 0 {
        parts[0] = parts[0].slice(sent..parts[0].len());
    }
}
