//! The codec of the NBD protocol (Network Block Device) for server and client; the handshake is fixed newstyle.
//!
//! The specification is `doc/proto.md` of the NetworkBlockDevice project; comments name its sections.
//! `docs/formats/nbd.md` defines the implemented part, every limit, and the reaction to every kind of invalid input.
//!
//! A connection has two phases:
//!
//! 1. *Handshake*: [`ServerHandshake`] or [`ClientHandshake`] parses received bytes and creates the bytes to send,
//!    until it returns a [`Session`].
//! 2. *Transmission*: the client sends a [`RequestHeader`], perhaps with a payload; the server checks it with
//!    [`check`] and creates the reply with [`Reply`]; the client parses the reply with [`ReplyMessage::parse`].
//!
//! The codec never waits, stores no payload, and does not panic on any input. After a [`ProtocolError`] the position
//! in the stream is lost, and the connection must be closed.

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
