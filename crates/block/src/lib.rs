//! The vocabulary of Cairn and the contract of a device. No I/O, no clock, no runtime.

mod range;
mod table;

pub use range::ByteRange;
pub use table::{
    Fused, Origin, ParseError, ParseProblem, Place, Port, PortPath, Run, Runs, Segment, Stripe,
    StripeTable, Table, TableError, TableId,
};
