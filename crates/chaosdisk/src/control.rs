//! The control socket of chaosdisk, client and server: a command is one line, and its reply is one line.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use block::env::{Listener, Socket};
use block::{Env, Result};

use crate::command::Command;
use crate::shelf::Shelf;

/// Length in bytes of the receive buffer for a command: more than the longest command.
const LINE_BYTES: usize = 4096;

/// Sends the command `line` to the chaosdisk at `socket`, and waits for the reply. The inner result is the reply.
///
/// # Errors
/// An error if no chaosdisk listens at the socket.
pub fn ask(socket: &Path, line: &str) -> std::io::Result<std::result::Result<String, String>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let answer = answer.trim_end();
    Ok(match answer.strip_prefix("error: ") {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer.to_owned()),
    })
}

/// Accepts clients of the control socket, and carries out their commands one after the other, up to `quit`.
///
/// # Errors
/// The error of a failed accept.
pub async fn serve(env: &Env, shelf: &Shelf, listener: Rc<dyn Listener>) -> Result<()> {
    loop {
        let client = listener.accept().await?;
        // A client that leaves early loses only its reply.
        let quit = answer(env, shelf, &*client).await.unwrap_or(false);
        client.shutdown();
        if quit {
            return Ok(());
        }
    }
}

/// Receives one command of a client of the control socket, carries it out, and replies. Returns whether it was `quit`.
async fn answer(env: &Env, shelf: &Shelf, client: &dyn Socket) -> Result<bool> {
    let buf = env.buf(LINE_BYTES)?;
    let mut have = 0;
    while have < LINE_BYTES && !buf.read()[..have].contains(&b'\n') {
        match client.recv(buf.slice(have..LINE_BYTES)).await.result? {
            0 => break,
            n => have += n,
        }
    }
    let line = String::from_utf8_lossy(&buf.read()[..have]).trim().to_owned();
    let parsed: std::result::Result<Command, String> = line.parse();
    let quit = parsed == Ok(Command::Quit);
    let said = match parsed {
        Ok(command) => shelf.carry_out(command).await.map_err(|error| error.to_string()),
        Err(words) => Err(words),
    };
    let text = said.unwrap_or_else(|words| format!("error: {words}")) + "\n";
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let out = env.buf(rest.len())?;
        out.write().copy_from_slice(rest);
        rest = &rest[client.send(vec![out]).await.result?..];
    }
    Ok(quit)
}
