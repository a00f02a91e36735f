//! Volumes that clients open by name, on a test kind that holds volumes.

mod change;
mod lowers;
mod names;
mod opening;
mod restart;
mod rig;
