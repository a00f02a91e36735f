//! The vocabulary of Cairn and the contract of a device. No I/O, no clock, no runtime.

mod range;

pub use range::ByteRange;
