//! Specs, and the plans or faults that they give.

mod cases;
mod kinds;
mod plans;
mod random;
