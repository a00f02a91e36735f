//! Checks and repairs of the labels of graphs that do not run, and checks of the labels of running ones.
//!
//! | file | contents |
//! | --- | --- |
//! | `lib.rs` | the environment of checks and repairs |
//! | `finding.rs` | the findings of a check |
//! | `check.rs` | checks of the labels of one graph |
//! | `directory.rs` | checks of all graphs with disks in a directory |
//! | `objects.rs` | checks of the object stores of devices |
//! | `scan.rs` | search for the disks of this machine |
//! | `import.rs` | graphs that the labels of disks describe |
//! | `relabel.rs` | a new label for a disk that has lost its label |
//! | `repair.rs` | plans of repairs, and their writes of labels |

#![forbid(unsafe_code)]

pub mod check;
mod directory;
mod finding;
pub mod import;
mod objects;
pub mod relabel;
pub mod repair;
pub mod scan;

use std::collections::BTreeMap;

use block::Env;
use engine::Engine;
use graph::spec::Spec;
use kind::Registry;
use meta::Machine;

pub use block::findings::{CheckedDevice, CheckedDisk, Soundness};
pub use directory::{CheckedDisks, Found};
pub use finding::{Checked, Finding, Sort};
pub use graph::labels::{
    DiskPreview, Inspected, Labels, Opening, Probe, Remembered, disks, refuse_labelled,
};
pub use meta::{AREA_BYTES, Label, PAST_MAX, Past, Uuid};

/// The tool that checks and repairs labels: the environment in which it opens disks, and the kinds of devices that it
/// knows.
#[derive(Clone)]
pub struct Doctor {
    /// The environment in which disks are opened.
    pub env: Env,
    /// The kinds that devices of graphs may have.
    pub registry: Registry,
    /// The machine on which this process runs, and on which disks would be opened.
    pub machine: Machine,
}

impl Doctor {
    /// Returns options for opening disks without any decision of an operator (`--degraded`, `--take`,
    /// `--accept-loss`, `--wipe`).
    pub fn opening(&self) -> Opening {
        let (degraded, take, accept_loss, changes, wipe, replaced, grow) = Default::default();
        let machine = self.machine.clone();
        Opening { machine, degraded, wipe, replaced, grow, take, accept_loss, changes }
    }

    /// Opens and reads the labelled disks of a spec; `None` if the spec has none. See [`Probe::take`].
    pub async fn probe(
        &self,
        spec: &Spec,
        engine: &Engine,
        opening: Opening,
        read_only: bool,
        running: Option<&Labels>,
    ) -> Option<Probe> {
        if spec.labelled(self.registry).is_empty() {
            return None;
        }
        let (registry, env) = (self.registry, &self.env);
        Some(Probe::take(spec, registry, env, engine, opening, read_only, running).await)
    }

    /// Starts an engine for requests to the checked disks.
    fn engine(&self) -> Engine {
        let engine = Engine::new(self.env.pool());
        self.env.spawn("engine", engine.clone().drive());
        engine
    }
}

/// Returns the name that messages use for a label: `label of DISK`.
pub fn name_of(label: &Label) -> String {
    format!("label of {}", label.disk_name.escape_debug())
}

/// Kind and path (or address) of each disk, as a spec has them, by name of the disk.
pub type Places = BTreeMap<String, (String, String)>;
