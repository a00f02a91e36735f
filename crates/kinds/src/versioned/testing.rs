//! Random graphs draw no versioned devices. Their states in labels are those of pools.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
