//! Random graphs draw no `wear` devices. The fuzzer checks their states in labels with those of `remap`.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
