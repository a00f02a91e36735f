//! Random graphs draw no `path` disks: the simulator has simulated disks instead.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
