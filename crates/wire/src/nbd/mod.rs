//! Network Block Device, fixed newstyle, both directions.
//!
//! The specification is `doc/proto.md` of the NetworkBlockDevice project; comments cite its section titles.
//! `docs/formats/nbd.md` describes the part that is implemented, every limit, and the answer to every kind of bad
//! input.
//!
//! A connection has two phases:
//!
//! 1. *Handshake*: [`ServerHandshake`] or [`ClientHandshake`] takes the received bytes and writes the bytes to send,
//!    until it yields a [`Session`].
//! 2. *Transmission*: the client sends a [`RequestHeader`], maybe with payload; the server [`check`]s it and answers
//!    through [`Reply`]; the client parses the answer with [`ReplyMessage::parse`].
//!
//! The codec never waits, buffers no payload, and does not panic on any input. After a [`ProtocolError`] the stream
//! cannot be trusted any more, and the connection must be closed.

mod bytes;
mod check;
mod client;
mod constants;
mod error;
mod export;
pub mod handed;
mod option;
mod reply;
mod reply_parse;
mod request;
mod server;
pub mod uri;

pub use check::{Refusal, check};
pub use client::{ClientConfig, ClientHandshake, ClientProgress, Goal, MAX_HANDSHAKE_REPLY_BYTES};
pub use constants::*;
pub use error::ProtocolError;
pub use export::{BlockSizes, Context, ExportEntry, ExportFacts, Exports, ReplyStyle, Session};
pub use reply::{Chunks, Extent, Head, MAX_STATUS_EXTENTS, Reply};
pub use reply_parse::{Body, Extents, ReplyMessage};
pub use request::RequestHeader;
pub use server::{Limits, ServerHandshake, ServerProgress, ServerTls};
