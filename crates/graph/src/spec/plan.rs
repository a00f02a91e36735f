//! Planning of every disk and device of a spec, lowers first.

use std::collections::BTreeMap;
use std::rc::Rc;

use block::env::LocalFuture;
use block::units::write_size;
use block::{Env, Info, Needs, Port, Table, TableError};
use engine::Reserve;
use kind::{
    self, AnyDevice, Beneath, Bytes, DeviceConfig, DevicePlan, DiskPlan, Kind, LowerConfig, Maker,
    MakerArgs, Registry, Surroundings, TablePlan, Value,
};

use super::around::surround;
use super::draft::{Draft, ExportDraft, Names, floats};
use super::fault::{Fault, Faults, Log, Position};
use super::known::{KnownDisk, is_fresh, newest_state, with_fixed};
use super::listen::{Listen, Nbd, TlsPaths};
use super::order::order;
use super::owner::{User, Uses};
use super::parse::{DEVICES_MAX, Spec};
use super::reserves::{Reserves, standing};
use super::tree::Word;
use super::volumes::{Amended, FoundVolume, FoundVolumes, Inputs, deferred};

/// The plan of a graph. The whole spec has been checked, and no disk or device has been opened.
#[derive(Clone)]
pub struct Planned {
    /// Name of the graph.
    pub name: String,
    /// The addresses at which the graph accepts clients; empty if the spec has none.
    pub listens: Vec<Listen>,
    /// The files for TLS, if the spec has them.
    pub tls: Option<TlsPaths>,
    /// Maximum number of client connections at one time, if the spec has one.
    pub max_connections: Option<u32>,
    /// Disks and devices of the graph, lowers first.
    pub nodes: Vec<PlannedNode>,
    /// The exports of the graph, in the order of the spec.
    pub exports: Vec<PlannedExport>,
    /// Warnings about the spec, in the order of its text: faults that do not prevent its use.
    pub warnings: Vec<Fault>,
    /// The inputs for the next plan; `None` if no node is deferred.
    pub(super) inputs: Option<Rc<Inputs>>,
    /// The changes of the plan after it was made, which the next plan gets too.
    pub(super) amended: Amended,
}

/// The role of a node in the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A disk, at the bottom of the graph.
    Disk,
    /// A device, above disks or other devices.
    Device,
}

/// A disk or device of a plan.
#[derive(Clone)]
pub struct PlannedNode {
    /// Name of the disk or device in the spec.
    pub name: String,
    /// Kind of the disk or device.
    pub kind: &'static Kind,
    /// Whether the node is a disk or a device.
    pub role: Role,
    /// Lowers of the device: indices into [`Planned::nodes`].
    pub lowers: Vec<usize>,
    /// Configuration that the kind gets to make the disk or device: name, options and lowers.
    pub given: DeviceConfig,
    /// Size, block size and other facts about the disk or device.
    pub info: Info,
    /// The largest need of one request in the device itself: child requests and buffer bytes. No need if the device
    /// issues no requests.
    pub needs: Needs,
    /// Engine reserve for one request through the device and all devices beneath it.
    pub reserve: Reserve,
    /// The table of the device, if its kind maps byte ranges by a table.
    pub table: Option<Table>,
    /// The parts of the lowers of a device with objects, each with the port of its lower, as its state in labels has them;
    /// empty if the state is not known.
    pub parts: Vec<(usize, Table)>,
    /// Number of bytes of the lowers that the device does not use and that no other device can use.
    pub unused_bytes: u64,
    /// For a device, whether this start creates every disk beneath the device; for a disk, whether this start creates
    /// the disk.
    pub created: bool,
    /// For a device, whether every disk beneath the device has a label; for a disk, whether the disk has a label.
    pub labelled: bool,
    /// Whether the node is a disk with `label = false`: the disk is served raw even if it has a label.
    pub said_raw: bool,
    /// Whether the node is a disk that labels of the graph name and that the start has not found.
    pub absent: bool,
    /// Whether the facts about the node are unknown, because they depend on a volume that is not found yet. Only the
    /// name, kind, lowers and options count.
    pub deferred: bool,
    /// Whether the node is a volume of which all bytes are zeros.
    pub blank: bool,
    /// Properties of a disk for the user, such as `O_DIRECT` or `in memory`; empty for a device.
    pub words: String,
    /// Position of the entry of the disk or device in the spec.
    pub position: Position,
    /// The devices around the node, as its kind learns them when the device is made.
    pub around: Surroundings,
}

impl Planned {
    /// Returns the plan of a graph without nodes.
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            listens: Vec::new(),
            tls: None,
            max_connections: None,
            nodes: Vec::new(),
            exports: Vec::new(),
            warnings: Vec::new(),
            inputs: None,
            amended: Amended::default(),
        }
    }

    /// Returns the first node, from node `index` downwards, that does not only pass bytes through.
    pub(crate) fn through(&self, mut index: usize) -> usize {
        while self.nodes[index].bytes() == Bytes::Passthrough {
            index = self.nodes[index].lowers[0];
        }
        index
    }

    /// Makes every export of the plan read-only, whatever the spec says.
    pub fn refuse_writes(&mut self) {
        self.amended.refuses_writes = true;
        for export in &mut self.exports {
            export.read_only = true;
            export.info.read_only = true;
        }
    }

    /// Makes every export, device and disk of the plan read-only, because the disks are opened read-only.
    pub fn refuse_all_writes(&mut self) {
        self.refuse_writes();
        self.amended.refuses_all_writes = true;
        for node in &mut self.nodes {
            node.info.read_only = true;
            node.given.lowers.iter_mut().for_each(|lower| lower.info.read_only = true);
        }
    }
}

impl PlannedNode {
    /// Returns the relation of the node's bytes to those of its lowers.
    pub fn bytes(&self) -> Bytes {
        self.kind.maker.bytes(&self.given)
    }

    /// Whether the node is a disk with a label. The data of such a disk are between the label areas.
    pub fn has_label(&self) -> bool {
        self.role == Role::Disk && self.labelled
    }

    /// Returns the path or address of the disk; `None` for a device, and for a disk without a path or address.
    pub fn place(&self) -> Option<&str> {
        self.given.text(self.kind.place()?)
    }

    /// Returns the path that the disk opens; `None` for a device, and for a disk that opens no path.
    pub fn path(&self) -> Option<&str> {
        self.place().filter(|_| self.kind.opens_path())
    }
}

/// A disk of a spec that must have a label.
#[derive(Clone)]
pub struct LabelledDisk {
    /// Kind of the disk.
    pub kind: &'static Kind,
    /// Name of the disk, and the options with which its kind opens the disk.
    pub given: DeviceConfig,
}

impl LabelledDisk {
    /// Returns the path or address of the disk.
    pub fn place(&self) -> Option<&str> {
        self.given.text(self.kind.place()?)
    }

    /// Returns the path that the disk opens, if it opens one.
    pub fn path(&self) -> Option<&str> {
        self.place().filter(|_| self.kind.opens_path())
    }

    /// Asks the kind of the disk for its plan. Opens nothing.
    pub(crate) fn plan(&self, env: &Env) -> LocalFuture<kind::Plan<DiskPlan>> {
        let Maker::Disk { plan, .. } = self.kind.maker else {
            unreachable!("only disks have labels: the draft checked that")
        };
        plan(&self.given, env)
    }

    /// Calls the kind of the disk to open it.
    pub(crate) fn make(
        &self,
        making: MakerArgs<'_>,
    ) -> LocalFuture<block::Result<Rc<dyn AnyDevice>>> {
        let Maker::Disk { make, .. } = self.kind.maker else {
            unreachable!("only disks have labels: the draft checked that")
        };
        make(making)
    }

    /// Returns the size in bytes with which this spec creates the disk, if the spec has such a size.
    pub(crate) fn made_size(&self) -> Option<u64> {
        self.given.size(self.kind.made_size()?)
    }

    /// Returns the disk without the options that take effect only when a disk is created.
    pub(crate) fn once_made(&self) -> Self {
        let mut made = self.clone();
        let is_lasting = |name| self.kind.option(name).is_none_or(|it| it.effect.is_lasting());
        made.given.options.retain(|(name, _)| is_lasting(name));
        made
    }
}

/// An export of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedExport {
    /// Name of the export.
    pub name: String,
    /// The node that the export shows: an index into [`Planned::nodes`].
    pub node: usize,
    /// Whether the export refuses writes: because of the spec, or because the node is read-only.
    pub read_only: bool,
    /// Whether the spec itself makes the export read-only.
    pub said_read_only: bool,
    /// Whether the export is attached as a block device of this machine while it is served.
    pub attach: bool,
    /// The names that client certificates must have to use the export; `None` if all clients may use the export.
    pub clients: Option<Vec<String>>,
    /// Size, block size and other facts about the export.
    pub info: Info,
}

impl Spec {
    /// Checks the spec against the kinds of `registry` and the disks that `env` can reach, and returns the plan of the
    /// graph. Changes nothing.
    ///
    /// # Errors
    /// All faults of the text and of the plan together. Faults that follow from another fault are not reported.
    pub async fn plan(&self, registry: Registry, env: &Env) -> Result<Planned, Faults> {
        self.plan_over(registry, env, &BTreeMap::new()).await
    }

    /// Returns the labelled disks of the spec, except those with faults.
    pub fn labelled(&self, registry: Registry) -> Vec<LabelledDisk> {
        // `plan_over` reports the faults.
        let (names, mut log) = (Names::of(self, &[]), self.log.clone());
        let drafts = self.entries.iter().map(|e| Draft::new(e, registry, &names, &mut log));
        let labelled = drafts.filter(|draft| draft.label && draft.sound).map(|draft| {
            let name = draft.entry.name.text.clone();
            let graph = self.name.clone();
            let given = DeviceConfig {
                graph,
                name,
                options: draft.options,
                lowers: Vec::new(),
                trusted_now: draft.entry.trusted_now,
            };
            LabelledDisk { kind: draft.kind.expect("a sound draft has a kind"), given }
        });
        labelled.collect()
    }

    /// Plans the graph as [`Spec::plan`] does, with the facts `probed` about labelled disks, by name of the disk.
    ///
    /// # Errors
    /// As [`Spec::plan`].
    pub async fn plan_over(
        &self,
        registry: Registry,
        env: &Env,
        probed: &BTreeMap<String, KnownDisk>,
    ) -> Result<Planned, Faults> {
        self.plan_with(registry, env, probed, FoundVolumes::new()).await
    }

    /// Plans the graph as [`Spec::plan_over`] does, with the facts about `volumes` that were found.
    pub(super) async fn plan_with(
        &self,
        registry: Registry,
        env: &Env,
        probed: &BTreeMap<String, KnownDisk>,
        volumes: FoundVolumes,
    ) -> Result<Planned, Faults> {
        let mut log = self.log.clone();
        let volume_entries = self.volume_entries();
        if let Some(extra) = volume_entries.get(DEVICES_MAX) {
            let count = volume_entries.len();
            let message = format!("{count} volumes in \"on\"; at most {DEVICES_MAX} are possible");
            log.error(extra.name.at, message);
        }
        let names = Names::of(self, &volume_entries);
        let mut drafts: Vec<_> =
            self.entries.iter().map(|e| Draft::new(e, registry, &names, &mut log)).collect();
        drafts.extend(volume_entries.iter().map(|e| Draft::of_volume(e, &names, &mut log)));
        let exports: Vec<_> =
            self.exports.iter().map(|e| ExportDraft::new(e, &names, &mut log)).collect();
        let holds_volumes =
            |draft: &Draft<'_>| draft.kind.is_some_and(|kind| kind.capabilities.holds_volumes);
        if self.is_read && self.exports.is_empty() && !drafts.iter().any(holds_volumes) {
            let at = Position { line: 1, column: 1 };
            log.error(at, "nothing is exported; add [export] with vol = { on = \"NAME\" }");
        }
        let verified = self.nbd.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
        for export in exports.iter().filter(|export| export.clients.is_some() && !verified) {
            let why = "clients: the server requests no certificates; add clients = \"CA.pem\" to [nbd] tls";
            log.error(export.entry.place("clients"), why);
        }
        let mut order = order(&drafts, &mut log);
        let deferred = deferred(&drafts, &order, &volumes);
        order.sort_by_key(|index| deferred[*index]);
        let mut planner = Planner {
            graph: &self.name,
            env,
            probed,
            volumes: &volumes,
            drafts: &drafts,
            deferred: &deferred,
            nodes: Vec::new(),
            reserves: Reserves::new(env.pool().limit_bytes()),
            beneath: Vec::new(),
            places: vec![None; drafts.len()],
            uses: vec![Uses::default(); drafts.len()],
            spoiled: vec![false; drafts.len()],
            identities: BTreeMap::new(),
            log,
        };
        for index in order {
            planner.draft(index).await;
        }
        let exports: Vec<_> = exports.iter().filter_map(|export| planner.export(export)).collect();
        planner.reserves.check_standing(&planner.nodes, &mut planner.log);
        planner.check_uses();
        let Planner { mut nodes, mut log, .. } = planner;
        surround(&mut nodes, &exports, &mut log);
        let warnings = log.finish()?;
        let Spec { name, nbd, .. } = self.clone();
        let Nbd { listens, tls, max_connections } = nbd;
        let inputs = deferred.contains(&true).then(|| {
            let (spec, probed) = (self.clone(), probed.clone());
            Rc::new(Inputs { spec, registry, probed, volumes })
        });
        let new = Planned::new(name);
        Ok(Planned { listens, tls, max_connections, nodes, exports, warnings, inputs, ..new })
    }
}

struct Planner<'p> {
    graph: &'p str,
    env: &'p Env,
    probed: &'p BTreeMap<String, KnownDisk>,
    volumes: &'p FoundVolumes,
    drafts: &'p [Draft<'p>],
    /// For each draft: whether the plan defers its node.
    deferred: &'p [bool],
    nodes: Vec<PlannedNode>,
    reserves: Reserves,
    /// For each node: the disks and devices beneath the node.
    beneath: Vec<Rc<Beneath>>,
    /// For each draft: the index of its node; `None` if the draft could not be planned.
    places: Vec<Option<usize>>,
    /// For each draft: the devices and exports that use its bytes.
    uses: Vec<Uses>,
    /// For each draft: whether a table above could not be planned, so that the free bytes of the draft are unknown.
    spoiled: Vec<bool>,
    /// For each identity of a disk: the first draft with that identity.
    identities: BTreeMap<String, usize>,
    log: Log,
}

/// The plan of one disk or device, as its kind returned it.
struct Answer {
    info: Info,
    needs: Needs,
    table: Option<Table>,
    parts: Vec<(usize, Table)>,
    unused_bytes: u64,
    created: bool,
    words: String,
}

impl Answer {
    /// Returns an answer with the facts `info` alone.
    fn unknown(info: Info) -> Self {
        let (table, parts, words) = (None, Vec::new(), String::new());
        Self { info, needs: Needs::LEAF, table, parts, unused_bytes: 0, created: false, words }
    }
}

impl Planner<'_> {
    async fn draft(&mut self, index: usize) {
        let draft = &self.drafts[index];
        let node = self.node(index).await;
        if let Some(node) = &node {
            self.claim(draft, node);
        } else {
            for lower in &draft.lowers {
                self.spoiled[*lower] = true;
            }
        }
        if let Some(mut node) = node {
            self.places[index] = Some(self.nodes.len());
            let beneath = Beneath::of(&node.given, self.nodes.len(), node.kind.maker);
            self.beneath.push(Rc::new(beneath));
            // Deferred nodes are the last ones.
            if !node.deferred {
                match self.reserves.add(&node) {
                    Ok(reserve) => node.reserve = reserve,
                    Err(error) => self.log.error(node.position, error.to_string()),
                }
            }
            self.nodes.push(node);
        }
    }

    /// Plans the node of a draft. Returns `None` if the draft has a fault or one of its lowers has no node.
    async fn node(&mut self, index: usize) -> Option<PlannedNode> {
        let draft = &self.drafts[index];
        let kind = draft.kind.filter(|_| draft.sound)?;
        let lowers: Vec<usize> =
            draft.lowers.iter().map(|lower| self.places[*lower]).collect::<Option<_>>()?;
        if floats(kind, &draft.options) && draft.lowers.iter().any(|lower| self.spoiled[*lower]) {
            return None;
        }
        let given = self.given(draft, &lowers);
        if let Some(odd) = given.lowers.iter().find(|lower| lower.info.padding > 0) {
            let words = format!("{:?} {}", odd.name, odd_size(&odd.info));
            self.log.error(draft.entry.name.at, words);
            return None;
        }
        for (lower, word) in lowers.iter().zip(&draft.on) {
            match kind.maker {
                Maker::Volume => self.check_has_volumes(*lower, draft)?,
                _ => self.check_has_bytes(*lower, word)?,
            }
        }
        let deferred = self.deferred[index];
        let answer = match deferred {
            true => Answer::unknown(Info::over(given.lowers.iter().map(|lower| &lower.info))?),
            false => self.ask(index, kind, &given, &lowers).await?,
        };
        if !deferred {
            self.check_answer(draft, kind, &answer)?;
        }
        let Answer { info, needs, table, parts, unused_bytes, created, words } = answer;
        let found = self.volumes.get(&given.name).and_then(Option::as_ref);
        let blank = found.is_some_and(|volume| volume.is_blank);
        let role = if lowers.is_empty() { Role::Disk } else { Role::Device };
        let labelled = match role {
            Role::Disk => draft.label,
            Role::Device => given.lowers.iter().all(|lower| lower.labelled),
        };
        let (name, position) = (given.name.clone(), draft.entry.name.at);
        let absent = self.probed.get(&name).is_some_and(|probed| probed.absent);
        Some(PlannedNode {
            name,
            kind,
            role,
            lowers,
            given,
            info,
            needs,
            reserve: Reserve::NONE,
            table,
            parts,
            unused_bytes,
            created,
            labelled,
            said_raw: draft.said_raw,
            absent,
            deferred,
            blank,
            words,
            position,
            around: Surroundings::default(),
        })
    }

    /// Reports an error for a device that no request could use.
    fn check_answer(&mut self, draft: &Draft<'_>, kind: &Kind, answer: &Answer) -> Option<()> {
        let (name, size, block) = (&draft.entry.name, answer.info.size, answer.info.block_size);
        let words = if size == 0 && !kind.capabilities.holds_volumes {
            format!("{:?} would be shorter than a block", name.text)
        } else if answer.info.max_transfer < block {
            format!(
                "{:?} would have blocks of {block} bytes, but a device below accepts only smaller \
                 requests. Next: let the server of that device accept larger requests, or remove the device",
                name.text
            )
        } else {
            return Some(());
        };
        self.log.error(name.at, words);
        None
    }

    fn given(&self, draft: &Draft<'_>, lowers: &[usize]) -> DeviceConfig {
        let device = &draft.entry.name.text;
        let lower = |(index, draft): (&usize, &usize)| {
            let (node, disks) = (&self.nodes[*index], || self.disks_beneath(*index));
            LowerConfig {
                name: node.name.clone(),
                info: node.info.clone(),
                created: node.created,
                labelled: node.labelled,
                fresh: disks().all(|disk| is_fresh(disk, self.probed)),
                state: newest_state(disks(), device, self.probed),
                next_free: self.uses[*draft].next_free(),
                beneath: self.beneath[*index].clone(),
            }
        };
        let lowers = lowers.iter().zip(&draft.lowers).map(lower).collect();
        let (graph, name) = (self.graph.to_owned(), device.clone());
        let (options, trusted_now) = (draft.options.clone(), draft.entry.trusted_now);
        DeviceConfig { graph, name, options, lowers, trusted_now }
    }

    /// Returns the disks beneath node `index`.
    fn disks_beneath(&self, index: usize) -> impl Iterator<Item = &PlannedNode> {
        self.beneath[index].disks.ones().map(|disk| &self.nodes[disk])
    }

    /// Asks the kind for the plan of the disk or device. Reports its faults, and then returns `None`. `lowers` are the
    /// nodes of its lowers.
    async fn ask(
        &mut self,
        index: usize,
        kind: &Kind,
        given: &DeviceConfig,
        lowers: &[usize],
    ) -> Option<Answer> {
        let draft = &self.drafts[index];
        let over = Info::over(given.lowers.iter().map(|lower| &lower.info));
        let created = given.lowers.iter().all(|lower| lower.created);
        let plain = |info| Answer { created, ..Answer::unknown(info) };
        let answer = match (kind.maker, over) {
            (Maker::Table(plan), Some(over)) => {
                let TablePlan { table, unused_bytes } = self.log_faults(draft, plan(given))?;
                self.check_blocks(draft, &table, over.block_size)?;
                let info = Info { size: table.size(), ..over };
                Answer { table: Some(table), unused_bytes, ..plain(info) }
            }
            (Maker::Hooks { plan, .. }, Some(over)) => {
                self.log_faults(draft, plan(given))?;
                plain(over)
            }
            (Maker::Stored(stored), _) => {
                let state = given.newest_state();
                let made = state.and_then(|state| stored.made(kind, given, &state.bytes));
                let (parts, fixed) = made.map(|made| (made.parts, made.fixed)).unwrap_or_default();
                let planned = stored.plan(kind, &with_fixed(kind, given, fixed));
                let DevicePlan { info, needs } = self.log_faults(draft, planned)?;
                Answer { needs, parts, ..plain(info) }
            }
            (Maker::Device { .. } | Maker::Stateful { .. }, _) => {
                let planned = kind.plan_device(given).expect("a kind of these makers has a plan");
                let DevicePlan { info, needs } = self.log_faults(draft, planned)?;
                Answer { needs, ..plain(info) }
            }
            (Maker::Disk { .. }, _) if self.probed.contains_key(&given.name) => {
                let KnownDisk { info, created, standing_bytes, words, .. } =
                    self.probed[&given.name].clone();
                Answer { created, needs: standing(standing_bytes), words, ..plain(info) }
            }
            (Maker::Disk { plan, .. }, _) => {
                let disk = self.log_faults(draft, plan(given, self.env).await)?;
                let info = self.data(draft, &disk)?;
                self.check_identity(index, disk.identity)?;
                let (created, needs) = (disk.creates, standing(disk.standing_bytes));
                Answer { created, needs, words: disk.words, ..plain(info) }
            }
            (Maker::Volume, _) => {
                let Some(FoundVolume { info, .. }) = self.volumes[&given.name].clone() else {
                    let (name, place) = (&given.name, draft.entry.name.at);
                    let next =
                        "create it while the graph runs without the devices and exports on it";
                    self.log.error(place, format!("no volume {name:?}; {next}"));
                    return None;
                };
                // Its requests go to the lowers of the device that holds it, as those of the device do.
                let needs = Needs { standing_bytes: 0, ..self.nodes[lowers[0]].needs };
                Answer { needs, ..Answer::unknown(info) }
            }
            (Maker::Table(_) | Maker::Hooks { .. }, None) => {
                unreachable!("the draft checked that {} has lower devices", kind.name)
            }
        };
        Some(answer)
    }

    /// Returns the plan, or reports the faults that a kind has found, each at the position of its option.
    fn log_faults<T>(&mut self, draft: &Draft<'_>, plan: kind::Plan<T>) -> Option<T> {
        let faults = match plan {
            Ok(plan) => return Some(plan),
            Err(faults) => faults,
        };
        for fault in faults {
            self.log.error(draft.entry.place(fault.option), fault.message);
        }
        None
    }

    /// Returns the facts about the data of a disk: without the label areas, if the disk gets a label.
    fn data(&mut self, draft: &Draft<'_>, disk: &DiskPlan) -> Option<Info> {
        if !draft.label {
            return Some(disk.info.clone());
        }
        if disk.info.padding > 0 {
            let words = format!("{:?} {}", draft.entry.name.text, odd_size(&disk.info));
            self.log.error(draft.entry.place("label"), words);
            return None;
        }
        let fault = if disk.identity.is_empty() {
            let name = &draft.entry.name.text;
            format!("{name:?} is lost with the process, and has no label; remove label")
        } else {
            match meta::data_bytes(disk.info.size) {
                Ok(size) => return Some(Info { size, ..disk.info.clone() }),
                Err(error) => format!("{error}; remove label, or make the disk larger"),
            }
        };
        self.log.error(draft.entry.place("label"), fault);
        None
    }

    fn check_blocks(&mut self, draft: &Draft<'_>, table: &Table, block: u32) -> Option<()> {
        let Err(error) = table.check_block_size(block) else {
            return Some(());
        };
        let odd = draft.options.iter().find_map(|(name, value)| match value {
            Value::Size(bytes) if !bytes.is_multiple_of(u64::from(block)) => Some((*name, *bytes)),
            _ => None,
        });
        let below = format!("the block size of the device below {:?}", draft.entry.name.text);
        let (option, message) = match (odd, error) {
            (Some((name, bytes)), _) => {
                let down = bytes - bytes % u64::from(block);
                let near = write_size(if down == 0 { u64::from(block) } else { down });
                (name, format!("{name} {bytes} is not a multiple of {block}, {below}; {near:?} is"))
            }
            (None, TableError::Misaligned { bytes, .. }) => (
                "on",
                format!(
                    "two lower devices meet at byte {bytes}, which is not a multiple of {block}, \
                     {below}; use partitions of whole blocks"
                ),
            ),
            (None, error) => ("on", error.to_string()),
        };
        self.log.error(draft.entry.place(option), message);
        None
    }

    fn check_identity(&mut self, index: usize, identity: String) -> Option<()> {
        let entry = self.drafts[index].entry;
        let first = match self.identities.get(&identity) {
            Some(first) => self.drafts[*first].entry,
            None => {
                self.identities.extend((!identity.is_empty()).then_some((identity, index)));
                return Some(());
            }
        };
        let (one, two) = (&first.name, &entry.name.text);
        let message = format!(
            "{two:?} and {:?} (line {}) are both on {identity}; a disk is used once",
            one.text, one.at.line
        );
        self.log.error(entry.name.at, message);
        None
    }

    fn claim(&mut self, draft: &Draft<'_>, node: &PlannedNode) {
        self.claim_in_place(draft, node);
        for (port, (word, lower)) in draft.on.iter().zip(&draft.lowers).enumerate() {
            let user = User { at: word.at, name: node.name.clone() };
            let size = node.given.lowers[port].info.size;
            if node.is_volume() {
                // The device that holds it gives no other volume the same bytes.
                continue;
            }
            let uses = &mut self.uses[*lower];
            match &node.table {
                Some(table) => uses.claim_table(table, Port(port as u16), size, &user),
                None => uses.claim_all(size, user),
            }
        }
    }

    /// Transfers the claims of the devices between a device and a common device beneath its two lowers to that device,
    /// if both lowers show the bytes of the common device at the same addresses. Of these bytes, the device itself
    /// decides which lower holds which.
    fn claim_in_place(&mut self, draft: &Draft<'_>, node: &PlannedNode) {
        let Some(common) = node.given.in_place().map(str::to_owned) else { return };
        let lowers = node.given.lowers.iter();
        let above: Vec<_> = lowers
            .filter_map(|lower| {
                let chain = &lower.beneath.in_place;
                let at = chain.iter().position(|name| *name == common)?;
                at.checked_sub(1).map(|above| chain[above].clone())
            })
            .collect();
        let place = self.drafts.iter().position(|draft| draft.entry.name.text == common);
        if let Some(place) = place {
            let user = User { at: draft.entry.name.at, name: node.name.clone() };
            self.uses[place].belong_to(&above, &user);
        }
    }

    fn export(&mut self, export: &ExportDraft<'_>) -> Option<PlannedExport> {
        let (word, draft) = export.on.as_ref()?;
        let node = self.places[*draft]?;
        self.check_has_bytes(node, word)?;
        let below = &self.nodes[node].info;
        let info = Info { read_only: below.read_only || export.read_only, ..below.clone() };
        let name = export.entry.name.text.clone();
        let user = User { at: word.at, name: name.clone() };
        self.uses[*draft].export(user, !info.read_only);
        let (attach, clients) = (export.attach, export.clients.clone());
        let (read_only, said_read_only) = (info.read_only, export.read_only);
        Some(PlannedExport { name, node, read_only, said_read_only, attach, clients, info })
    }

    /// Reports an error if a device or an export, which names the device `node` by `word`, would use the bytes of a
    /// device that has volumes and no bytes of its own.
    fn check_has_bytes(&mut self, node: usize, word: &Word) -> Option<()> {
        let PlannedNode { name, kind, info, .. } = &self.nodes[node];
        if info.size > 0 || !kind.capabilities.holds_volumes {
            return Some(());
        }
        let words = format!(
            "{name:?} is a {} and has no bytes of its own; clients open its volumes as \"{name}/VOLUME\"",
            kind.name
        );
        self.log.error(word.at, words);
        None
    }

    /// Reports an error if the device `node` has no volumes, though `draft` is a volume of this device.
    fn check_has_volumes(&mut self, node: usize, draft: &Draft<'_>) -> Option<()> {
        let PlannedNode { name, kind, .. } = &self.nodes[node];
        if kind.capabilities.holds_volumes {
            return Some(());
        }
        let volume = &draft.entry.name;
        let words = format!("{:?}: {name:?} is a {} and has no volumes", volume.text, kind.name);
        self.log.error(volume.at, words);
        None
    }

    fn check_uses(&mut self) {
        let used = self.places.iter().zip(&self.uses);
        let used = used.filter_map(|(place, uses)| Some((&self.nodes[(*place)?], uses)));
        let used: Vec<(&PlannedNode, &Uses)> = used.collect();
        // A device that cannot be written may have any number of users.
        let may_write = |node: &PlannedNode| !node.deferred && !node.info.read_only;
        for (node, uses) in used.iter().filter(|(node, _)| may_write(node)) {
            uses.check(&node.name, node.info.size, &mut self.log);
        }
        if self.log.has_errors() {
            return;
        }
        let is_idle = |(node, uses): &&(&PlannedNode, &Uses)| {
            uses.is_empty() && !node.deferred && !node.kind.capabilities.holds_volumes
        };
        for (node, _) in used.iter().filter(is_idle) {
            let message = format!(
                "{:?} is not used; add an export for the device, or remove the entry",
                node.name
            );
            self.log.warning(node.position, message);
        }
    }
}

/// Returns the fault of a disk that ends inside a block, and has a label or a device above it.
pub(crate) fn odd_size(info: &Info) -> String {
    let (has, whole, block) = (info.data_bytes(), info.size, info.block_size);
    format!(
        "has {has} bytes; a disk with a label, or below a device, has a multiple of {block}. Next: truncate -s \
         {whole} (or larger), or name another file"
    )
}
