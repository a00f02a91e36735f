//! `null` in the tests.

use kind::testing::Testing;

pub const TESTING: Testing = Testing { forgets: true, ..Testing::NONE };
