//! `memory` in the tests. The simulator draws its disks itself.

use kind::testing::Testing;

pub const TESTING: Testing = Testing::NONE;
