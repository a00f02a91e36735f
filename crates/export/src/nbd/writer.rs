//! The writer of a connection: sends all available replies with one system call.

use std::rc::Rc;

use block::Buf;
use wire::stream::drop_front;

use super::connection::Connection;

/// Sends the replies of `connection`, until all its requests have replies and no more requests come.
pub async fn write(connection: Rc<Connection>) {
    while let Some(mut batch) = connection.batch().await {
        match send_all(&connection, batch.parts).await {
            Some(parts) => batch.parts = parts,
            None => {
                connection.close();
                break;
            }
        }
        connection.sent(batch);
    }
    connection.end_of_answers();
}

/// Sends all bytes of `parts`, and returns the vector for reuse; `None` if the connection is broken.
async fn send_all(connection: &Connection, mut parts: Vec<Buf>) -> Option<Vec<Buf>> {
    loop {
        let total: usize = parts.iter().map(Buf::len).sum();
        connection.begin_send();
        let outcome = connection.socket.send(parts).await;
        connection.end_send(*outcome.result.as_ref().unwrap_or(&0));
        parts = outcome.parts;
        let sent = outcome.result.ok().filter(|sent| *sent > 0)?;
        if sent == total {
            return Some(parts);
        }
        drop_front(&mut parts, sent);
    }
}
