//! The disk against servers that break the protocol.
#![allow(clippy::disallowed_methods, reason = "the servers are threads of this process")]

mod fake;
mod volume;

mod away;
mod liars;
mod manual;
mod others;
mod replay;
