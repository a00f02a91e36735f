//! Specs against what is said of them.

mod cases;
mod kinds;
mod plans;
mod random;
