//! The simulator: implements the interfaces of [`block::env`] with a virtual clock, simulated disks, a simulated
//! network and a task executor, which depend only on a seed. So a run can be repeated exactly from its seed.
#![forbid(unsafe_code)]

mod assembly;
mod carried;
mod client;
mod clock;
mod counters;
pub mod crash;
pub mod disk;
mod door;
pub mod draw;
mod memory;
mod model;
mod net;
pub mod workload;
mod world;
mod write_log;

pub use assembly::{Assembly, BeforePlan, Labels, Options, answered};
pub use carried::AS_DEVICE;
pub use client::{Answer, Call, Client};
pub use counters::{Count, Counters};
pub use disk::{CutPolicy, DiskConfig, Faults, Image, Profile, SimDisk};
pub use door::{Door, Remote, Reply};
/// The number of a device in an [`Assembly`], counted from 0 in the order in which devices were added.
pub use kind::testing::PartId;
pub use memory::ProcessId;
pub use model::{Change, Changing, Content, Looking, Model, Promise, Rule, Stamp, Unsure, Wrong};
pub use world::{SimWorld, Stuck};
pub use write_log::{Covered, Reached, WriteLog};
