//! Random graphs draw no versioned devices. Their states in labels differ from those of pools in the name of the kind.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
