//! Network Block Device, fixed newstyle, both directions.
//!
//! The specification is `doc/proto.md` of the NetworkBlockDevice project; comments cite its section
//! titles. What of it is spoken here, with every limit and the answer to every kind of bad input, is
//! in `docs/formats/nbd.md`.
//!
//! A connection has two phases:
//!
//! 1. *Handshake*: [`ServerHandshake`] or [`ClientHandshake`] is fed the bytes that arrive and
//!    writes the bytes to send, until it yields a [`Session`].
//! 2. *Transmission*: the client sends a [`RequestHeader`], maybe with payload; the server
//!    [`check`]s it and answers through [`Reply`]; the client reads the answer with
//!    [`ReplyMessage::parse`].
//!
//! Nothing here waits, buffers payload, or panics on what a peer sends. A [`ProtocolError`] always
//! means that the stream cannot be trusted any more and the connection must be closed.

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
