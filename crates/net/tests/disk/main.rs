//! Tests of the NBD disk with servers that break the protocol, disconnect or restart.
#![allow(clippy::disallowed_methods, reason = "the servers are threads of this process")]

mod fake;
mod volume;

mod away;
mod liars;
mod manual;
mod others;
mod replay;
