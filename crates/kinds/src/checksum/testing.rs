//! Random graphs draw no `checksum` devices here; the simulator has a load of its own for them. The fuzzer checks their states in
//! labels with those of `remap`.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
