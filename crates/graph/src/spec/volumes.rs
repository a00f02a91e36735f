//! Volumes that a spec names: `on = "vms/web"`. A volume is a node of the plan above the device that holds it. Its size
//! is known only when that device is open, so the first plan of a start defers the volume and all nodes above it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Env, Info, VOLUME_NAME_MAX_BYTES};
use kind::{
    Capabilities, Effect, Kind, Lowers, Maker, OptionSpec, Registry, Scope, Value, ValueType,
};

use super::draft::{Draft, Names};
use super::fault::{Faults, Log};
use super::known::KnownDisk;
use super::parse::{Entry, Section, Spec};
use super::plan::{Planned, PlannedNode};
use super::tree::{Raw, Word};

/// The volumes that a start or a change has looked for, by full name; `None` if there is no such volume.
pub type FoundVolumes = BTreeMap<String, Option<FoundVolume>>;

/// The facts about a volume that a start or a change has found.
#[derive(Clone, Debug)]
pub struct FoundVolume {
    /// Size, block size and abilities of the volume.
    pub info: Info,
    /// Whether all bytes of the volume are zeros, so that a new device on the volume destroys no data.
    pub is_blank: bool,
}

/// The kind of the nodes that are volumes. No registry contains it: a spec names a volume instead of describing it.
pub(super) static VOLUME: Kind = Kind {
    name: "volume",
    summary: "a volume of a device, opened by name",
    manual: "",
    lowers: Lowers::One,
    options: &[NAME],
    capabilities: Capabilities::NONE,
    verbs: &[],
    maker: Maker::Volume,
};

const NAME: OptionSpec = OptionSpec {
    name: "name",
    value: ValueType::Text,
    required: true,
    effect: Effect::Bytes,
    scope: Scope::Graph,
    help: "the volume's name in its device",
};

/// The inputs of a plan that has deferred nodes, from which the next plan is made.
pub(super) struct Inputs {
    pub(super) spec: Spec,
    pub(super) registry: Registry,
    pub(super) probed: BTreeMap<String, KnownDisk>,
    pub(super) volumes: FoundVolumes,
}

/// The changes of a plan after it was made.
#[derive(Clone, Default)]
pub(super) struct Amended {
    /// Whether every export was made read-only.
    pub(super) refuses_writes: bool,
    /// Whether every export, device and disk was made read-only.
    pub(super) refuses_all_writes: bool,
    /// Name of the device above which the plan was cut off.
    pub(super) top: Option<String>,
}

impl Spec {
    /// Returns an entry for each volume that a device or an export of the spec names. Its position is that of the first
    /// such name.
    pub(super) fn volume_entries(&self) -> Vec<Entry> {
        let (mut found, mut names) = (Vec::new(), BTreeSet::new());
        let devices = self.entries.iter().filter(|entry| entry.section == Section::Device);
        for on in devices.chain(&self.exports).filter_map(|entry| entry.field("on")) {
            for item in on.items() {
                let Raw::Text(text) = &item.raw else { continue };
                if text.contains('/') && names.insert(text) {
                    let name = Word { text: text.clone(), at: item.at };
                    found.push(Entry::new(Section::Device, name, Vec::new()));
                }
            }
        }
        found
    }
}

impl<'s> Draft<'s> {
    /// Drafts the volume that `entry` names. Reports a name that no volume can have, and a device that does not exist.
    pub(super) fn of_volume(entry: &'s Entry, names: &Names<'_>, log: &mut Log) -> Self {
        let mut draft = Self::empty(entry);
        draft.kind = Some(&VOLUME);
        let (device, volume) = entry.name.text.split_once('/').expect("a volume has a slash");
        if !(1..=VOLUME_NAME_MAX_BYTES).contains(&volume.len()) {
            let message = format!(
                "{:?} is no volume; the name behind the slash has 1 to {VOLUME_NAME_MAX_BYTES} bytes",
                entry.name.text
            );
            log.error(entry.name.at, message);
            return draft;
        }
        let word = Word { text: device.to_owned(), at: entry.name.at };
        if let Some(holder) = names.find(&word, log) {
            draft.options.push((NAME.name, Value::Text(volume.to_owned())));
            draft.on.push(word);
            draft.lowers.push(holder);
            draft.sound = true;
        }
        draft
    }
}

/// Returns for each draft whether its facts depend on a volume that was not looked for. `order` has the drafts, lowers
/// first.
pub(super) fn deferred(drafts: &[Draft<'_>], order: &[usize], volumes: &FoundVolumes) -> Vec<bool> {
    let mut deferred = vec![false; drafts.len()];
    for index in order {
        let draft = &drafts[*index];
        let is_unknown = draft.kind.is_some_and(|kind| matches!(kind.maker, Maker::Volume))
            && !volumes.contains_key(&draft.entry.name.text);
        deferred[*index] = is_unknown || draft.lowers.iter().any(|lower| deferred[*lower]);
    }
    deferred
}

impl PlannedNode {
    /// Whether the node is a volume of its lower.
    pub fn is_volume(&self) -> bool {
        matches!(self.kind.maker, Maker::Volume)
    }
}

impl Planned {
    /// Whether the plan has nodes that depend on volumes which were not looked for yet.
    pub fn is_deferred(&self) -> bool {
        self.inputs.is_some()
    }

    /// Returns the number of nodes that are not deferred. They are the first ones of the plan.
    pub fn known_nodes(&self) -> usize {
        self.nodes.iter().take_while(|node| !node.deferred).count()
    }

    /// Returns the names of the volumes on which the deferred nodes depend first: their devices are not deferred.
    pub fn volumes_to_find(&self) -> Vec<String> {
        let is_next = |node: &&PlannedNode| {
            node.deferred && node.is_volume() && !self.nodes[node.lowers[0]].deferred
        };
        self.nodes.iter().filter(is_next).map(|node| node.name.clone()).collect()
    }

    /// Plans the graph again, with the facts about the volumes `found` as well. The nodes that were not deferred stay
    /// the same.
    ///
    /// # Errors
    /// As [`Spec::plan`]; also for a volume that does not exist.
    ///
    /// # Panics
    /// If the plan has no deferred nodes.
    pub async fn with_volumes(&self, env: &Env, found: FoundVolumes) -> Result<Self, Faults> {
        let inputs: &Rc<Inputs> = self.inputs.as_ref().expect("the plan has deferred nodes");
        let Inputs { spec, registry, probed, volumes } = &**inputs;
        let volumes = volumes.clone().into_iter().chain(found).collect();
        let mut planned = spec.plan_with(*registry, env, probed, volumes).await?;
        let Amended { refuses_writes, refuses_all_writes, top } = &self.amended;
        if let Some(top) = top {
            planned = planned.down_from(top);
        }
        if *refuses_writes {
            planned.refuse_writes();
        }
        if *refuses_all_writes {
            planned.refuse_all_writes();
        }
        Ok(planned)
    }
}
