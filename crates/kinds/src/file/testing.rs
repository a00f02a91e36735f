//! Random graphs draw no `file` disks: the simulator has simulated disks instead.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
