//! Random graphs draw no `null` disks, because a `null` disk does not keep bytes.

use kind::testing::Testing;

pub const TESTING: Testing = Testing { forgets: true, ..Testing::NONE };
