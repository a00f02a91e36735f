//! The labels of an open graph. A start writes them before the graph serves anything. An orderly close marks them as
//! closed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use block::env::LocalFuture;
use block::seeded::{self, Bug};
use block::{Env, Error, Handover, Result, error};
use engine::{AnyDevice, NodeId};
use kind::{Bytes, Kind};
use meta::{Inspection, Label, PAST_MAX, Past, Store, Uuid};

use super::Opening;
use super::absent::Absent;
use super::diagnosis::{self, Binding, Bindings, DiskContent};
use super::kept::{DiskLabel, LabelStateStore, Permits, all};
use super::probe::{InUse, OpenDisk, Probe, place_of};
use super::slot::{LabelUpdate, Slot};
use super::text::{self, Remembered};
use super::{LostLabel, overwritten};
use crate::spec::{LabelledDisk, Planned, PlannedNode, Spec};

/// Time limit for writing to the labels of removed disks, after a change or its undo.
const GONE_WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// Time limit for reading the label of each disk when the labels of an open graph are inspected.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// The labelled disks of an open graph.
pub struct Labels {
    env: Env,
    opening: Opening,
    disks: BTreeMap<String, Disk>,
    epoch: u64,
    /// Number of the broadcast that announced this epoch to the disks.
    broadcast: u64,
    spec: String,
    /// The earlier specs of the graph, the newest first.
    past: Rc<[Past]>,
    /// The names of the devices that keep a state in the labels.
    keepers: BTreeSet<String>,
    /// The names of the devices whose states the labels contained before this start or live change.
    known: BTreeSet<String>,
    /// The disks of the failed change that these labels undo. They stay open as long as this field holds them, so
    /// [`Labels::commit`] takes them out and drops them at its end.
    undoes: Cell<Option<Undoes>>,
}

/// The disks on which a failed change may have written its spec.
#[derive(Default)]
struct Undoes {
    /// Names of the disks that both the graph before the failed change and the graph of the failed change use.
    shared: BTreeSet<String>,
    /// The labels of the disks that the failed change added to the graph.
    new: Vec<Rc<Slot>>,
}

#[derive(Clone)]
struct Disk {
    /// The description of the disk in the spec with which the disk was opened; `None` if the disk is absent.
    disk: Option<LabelledDisk>,
    /// Identity of the disk, the same for every path that leads to it; empty if the disk is absent.
    identity: String,
    open: Option<OpenDisk>,
    slot: Option<Rc<Slot>>,
    data_bytes: u64,
    /// Number of data bytes before this start or change, if the disk has been enlarged since its label was written.
    grown_from: Option<u64>,
    fresh: bool,
    clean: bool,
}

/// The result of inspecting the label of one disk of an open graph, while the graph runs.
pub struct Inspected {
    /// Path or address of the disk.
    pub place: String,
    /// The label that the open graph last wrote to the disk.
    pub label: Label,
    /// The contents of the label areas of the disk as read, or the error of reading them.
    pub found: Result<Inspection>,
}

/// The location of the data of a labelled disk: present with a raw disk, or absent.
pub enum DataSource {
    /// The disk is present: its raw disk, the node of the raw disk in the engine, and the number of data bytes.
    Here(Rc<dyn AnyDevice>, NodeId, u64),
    /// The disk is absent, and this device takes its place in the graph: it fails every request.
    Absent(Rc<dyn AnyDevice>),
}

impl Probe {
    /// Writes a label to each disk that needs one, and durably marks all disks of the graph as open. After this, the
    /// caller builds the graph, and then calls [`Labels::made`].
    ///
    /// # Errors
    /// As [`Probe::prepare`].
    pub async fn begin(self, planned: &Planned) -> Result<Labels, Vec<Error>> {
        let labels = self.labelled(planned, false).await?;
        let written = labels.write_labels(|_| true, |disk| disk.fresh).await;
        written.into_iter().collect::<Result<()>>().map_err(failed)?;
        labels.clear_grown().await.map_err(failed)?;
        Ok(labels)
    }

    /// Writes a label to each disk that needs one, marked as provisioning. [`Labels::commit`] adds the spec and the
    /// states of devices to the labels.
    ///
    /// # Errors
    /// The reasons why the graph cannot be opened. Nothing was written, unless a write to a disk has failed.
    pub async fn prepare(self, planned: &Planned) -> Result<Labels, Vec<Error>> {
        self.labelled(planned, true).await
    }

    /// Labels the disks that need a label. With `held`, the states of devices reach the labels only with
    /// [`Labels::commit`].
    async fn labelled(mut self, planned: &Planned, held: bool) -> Result<Labels, Vec<Error>> {
        let mut refusals = self.refusals_of(planned);
        if refusals.is_empty() {
            refusals = self.misfits(planned);
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let remembered = self.remembered(planned);
        let spec = text::write(planned, &remembered);
        let broadcast = self.labels().map(|label| label.broadcast).max().unwrap_or(0);
        let bound = std::mem::take(&mut self.binding.disks);
        let absent = bound.values().any(|bound| matches!(bound, Binding::Absent(_)));
        let epoch = self.binding.epoch + u64::from(absent || spec != self.binding.spec);
        let past: Rc<[Past]> = self.past(&spec).into();
        let graph = self.binding.graph.unwrap_or_else(|| Uuid::draw(&self.env));
        let draft = |name: &str, known: &Remembered| Label {
            sequence: 0,
            epoch,
            broadcast,
            acked_broadcast: 0,
            disk: known.disk,
            disk_name: name.to_owned(),
            graph,
            graph_name: planned.name.clone(),
            data_bytes: known.data_bytes,
            block_size: known.block_size,
            written_unix_s: 0,
            holder: Some(self.opening.machine.clone()),
            provisioning: true,
            spec: spec.clone(),
            cells: BTreeMap::new(),
            past: past.clone(),
            unknown_read_only: 0,
        };
        let mut disks = BTreeMap::new();
        for (name, bound) in &bound {
            let disk = match bound {
                Binding::Absent(known) => Disk::absent(known),
                Binding::Labelled(n) => self.known(*n, planned, held).map_err(failed)?,
                Binding::Fresh(n) => {
                    let label = draft(name, &remembered[name]);
                    self.make(*n, label, held).await.map_err(failed)?
                }
            };
            disks.insert(name.clone(), disk);
        }
        let keepers = planned.nodes.iter().filter(|node| text::keeps(node));
        let keepers: BTreeSet<_> = keepers.map(|node| node.name.clone()).collect();
        let before = self.spec_before();
        let known = keepers.iter().filter(|name| before.has(name)).cloned().collect();
        Ok(Labels {
            env: self.env,
            opening: self.opening,
            disks,
            epoch,
            broadcast: broadcast + 1,
            spec,
            past,
            keepers,
            known,
            undoes: Cell::new(None),
        })
    }

    /// Returns the errors that keep the graph `planned` from being opened on the probed disks.
    pub(super) fn refusals_of(&self, planned: &Planned) -> Vec<Error> {
        let findings = diagnosis::serve(self.bound(), planned, &self.opening);
        [self.refusals.clone(), self.refusing(findings)].concat()
    }

    /// Returns the labels of the disks that the probe matched by their labels.
    pub(super) fn labels(&self) -> impl Iterator<Item = &Label> + Clone {
        self.binding.disks.values().filter_map(|bound| match bound {
            Binding::Labelled(n) => self.label(*n),
            Binding::Fresh(_) | Binding::Absent(_) => None,
        })
    }

    /// Whether the labels of the probed disks contain exactly the spec of `planned`.
    pub fn hold_spec_of(&self, planned: &Planned) -> bool {
        self.refusals.is_empty()
            && text::write(planned, &self.remembered(planned)) == self.binding.spec
    }

    /// Returns the spec in the newest label of the probed disks.
    pub fn spec_before(&self) -> Spec {
        Spec::parse(&self.binding.spec, "label", &|_| None)
    }

    /// Returns the earlier specs that labels with the spec `spec` must contain: those that the present labels contain,
    /// and the present spec if `spec` replaces it.
    fn past(&self, spec: &str) -> Vec<Past> {
        let Bindings { epoch, spec: before, past, .. } = &self.binding;
        let mut past = past.to_vec();
        let is_over = !before.is_empty() && without_sizes(before) != without_sizes(spec);
        // A spec with a migration is temporary, and no state to return to.
        if is_over && self.spec_before().moves(self.registry).is_empty() {
            let until_unix_s = self.env.wall().as_secs();
            past.insert(0, Past { epoch: *epoch, until_unix_s, spec: before.clone() });
            past.truncate(PAST_MAX);
        }
        past
    }

    /// Returns the facts about each labelled disk that the spec in the labels must contain, by name of the disk.
    fn remembered(&self, planned: &Planned) -> BTreeMap<String, Remembered> {
        let one = |(name, bound): (&String, &Binding)| {
            let known = match bound {
                Binding::Absent(known) => *known,
                Binding::Labelled(n) => {
                    let label = self.label(*n).expect("a bound disk has a label");
                    let (data_bytes, block_size) = (self.data_bytes(*n), label.block_size);
                    Remembered { disk: label.disk, data_bytes, block_size }
                }
                Binding::Fresh(_) => {
                    let node = planned.nodes.iter().find(|node| node.name == *name);
                    let info = &node.expect("every disk of the spec is planned").info;
                    let (data_bytes, block_size) = (info.size, info.block_size);
                    Remembered { disk: Uuid::draw(&self.env), data_bytes, block_size }
                }
            };
            (name.clone(), known)
        };
        self.binding.disks.iter().map(one).collect()
    }

    fn known(&self, n: usize, planned: &Planned, held: bool) -> Result<Disk> {
        let (look, facts) = (&self.results[n], &self.disks[n]);
        let DiskContent::Label(label, number) = &facts.content else {
            unreachable!("a bound disk has a label")
        };
        let mut label = (**label).clone();
        let open = look.open.clone().expect("a disk with a label is open");
        let (clean, data_bytes) = (label.holder.is_none(), self.data_bytes(n));
        let grown_from = self.grown.get(&n).map(|_| label.data_bytes);
        let fresh = label.provisioning;
        if facts.lost == Some(LostLabel::AtFront) {
            overwritten::forget_copies(&mut label, planned);
        }
        let (store, clean) = match &look.store {
            // A live change flushes every acknowledged write before it commits.
            Some(store) => (Rc::new(store.through(&open.lower)), true),
            None => (Rc::new(Store::new(&self.env, &open.lower, label, Some(*number))?), clean),
        };
        let slot = Some(Rc::new(if held { Slot::held(store) } else { Slot::new(store) }));
        let (disk, identity, open) = (Some(look.disk.clone()), look.identity(), Some(open));
        Ok(Disk { disk, identity, open, slot, data_bytes, grown_from, fresh, clean })
    }

    /// Opens disk `n`, which creates the disk if it does not exist, wipes it if the operator asked for that, and writes
    /// its first label.
    async fn make(&self, n: usize, label: Label, held: bool) -> Result<Disk> {
        let look = &self.results[n];
        let open = match &look.open {
            Some(open) => open.clone(),
            None => self.open(&look.disk, false).await?,
        };
        let data_bytes = label.data_bytes;
        let (label, copy) = match &self.disks[n].content {
            _ if self.opening.wipe.contains(&look.disk.given.name) => {
                meta::wipe(&self.env, &open.lower).await?;
                (label, None)
            }
            // The label of an interrupted start stays valid until the new label has replaced both of its generations.
            DiskContent::Label(left, copy) if !seeded::on(Bug::LeftLabelNewer) => {
                (Label { sequence: left.sequence, ..label }, Some(*copy))
            }
            _ => (label, None),
        };
        let store = Rc::new(Store::new(&self.env, &open.lower, label, copy)?);
        store.update(|_| {}).await?;
        let slot = Some(Rc::new(if held { Slot::held(store) } else { Slot::new(store) }));
        let (disk, identity, open) = (Some(look.disk.clone()), look.identity(), Some(open));
        let grown_from = None;
        Ok(Disk { disk, identity, open, slot, data_bytes, grown_from, fresh: true, clean: true })
    }
}

impl Disk {
    fn absent(known: &Remembered) -> Self {
        let data_bytes = known.data_bytes;
        let (disk, identity, open, slot, grown_from) = Default::default();
        Self { disk, identity, open, slot, data_bytes, grown_from, fresh: false, clean: false }
    }

    /// Returns the label of the disk, if the disk is open for writing.
    fn writable(&self) -> Option<&Rc<Slot>> {
        let read_only = self.open.as_ref().is_none_or(|open| open.lower.info().read_only);
        self.slot.as_ref().filter(|_| !read_only)
    }

    fn in_use(&self) -> Option<InUse> {
        let (disk, open, store) = (self.disk.clone()?, self.open.clone()?, self.store()?.clone());
        Some(InUse { disk, open, store })
    }

    fn store(&self) -> Option<&Rc<Store>> {
        self.slot.as_ref().map(|slot| &slot.store)
    }

    /// Returns the disk for the graph that is opened again after the change `failed`: the states of devices are held
    /// back.
    fn reopened(&self, failed: Option<&Labels>) -> Self {
        let slot = self.slot.as_ref().map(|slot| {
            let failed = failed.and_then(|failed| failed.slot(&slot.store));
            let store = slot.store.clone();
            Rc::new(match failed {
                Some(failed) => failed.reopened(store),
                None => Slot::held(store),
            })
        });
        Self { slot, grown_from: None, fresh: false, clean: true, ..self.clone() }
    }

    fn label(&self) -> DiskLabel {
        DiskLabel {
            slot: self.slot.clone(),
            labelled: true,
            present: self.open.is_some(),
            fresh: self.fresh,
            clean: self.clean,
        }
    }
}

impl Labels {
    /// Commits a change of the graph: writes the identity of the graph, the new spec and the states of devices to the
    /// labels of all disks. From then on, a device that writes its state writes it to the labels at once.
    ///
    /// # Errors
    /// The error of the first disk that cannot be written. To undo a change, one written disk is enough.
    pub async fn commit(&self) -> Result<()> {
        // A new disk stays in provisioning until the labels of the other disks name it. Otherwise its label alone could
        // announce a graph that the other disks do not know.
        if let Some(undoes) = self.undoes.take() {
            return self.undo(undoes).await;
        }
        let fresh = |disk: &Disk| disk.fresh && !seeded::on(Bug::NewDiskEarly);
        // A disk on which no device keeps a changed state is written after the disks with changed states. If it were
        // written first and a crash followed, its label would name the new graph, while the other labels still had the
        // members of the old one.
        let behind = self.disks.iter().filter(|(_, disk)| {
            disk.writable().is_some_and(|slot| slot.is_behind()) || seeded::on(Bug::StatelessEarly)
        });
        let behind: BTreeSet<String> = behind.map(|(name, _)| name.clone()).collect();
        for has_state in [true, false] {
            let written = self.write_labels(|name| behind.contains(name) == has_state, fresh).await;
            written.into_iter().try_for_each(|written| written)?;
        }
        self.catch_up().await?;
        self.made().await?;
        self.clear_grown().await?;
        self.release();
        Ok(())
    }

    /// Records that a failed change is undone: first on the disks that both graphs use, then on those that only the
    /// previous graph uses. In the other order, a crash between the two could leave each graph able to open without a
    /// disk of the other.
    async fn undo(&self, undoes: Undoes) -> Result<()> {
        let is_shared = |name: &str| undoes.shared.contains(name);
        let removed_first = seeded::on(Bug::UndoneOnRemovedFirst);
        let mut written =
            self.write_labels(|name| is_shared(name) != removed_first, |_| false).await;
        let is_known = written.iter().any(Result::is_ok);
        written.extend(self.write_labels(|name| is_shared(name) == removed_first, |_| false).await);
        // Their epoch is above all others: one disk with it is enough for a start to find this graph.
        written.into_iter().reduce(Result::or).unwrap_or(Ok(()))?;
        if !is_known && !undoes.shared.is_empty() {
            // Only the disks that the change adds can keep its graph from coming up.
            self.write_foreign_spec(&undoes.new).await;
        }
        // The other disks get the states with their next update. The undo counts in any case.
        let _ = self.catch_up().await;
        self.release();
        Ok(())
    }

    /// Records in the labels of the disks that `before` has and this graph has not that these disks were removed. A
    /// disk that takes longer than `GONE_WRITTEN_WITHIN` keeps its old label: the disk may be failing, and the labels
    /// of this graph record the removal as well.
    pub async fn record_removal(&self, before: &Self) {
        self.write_foreign_spec(&before.without(self)).await;
    }

    /// Returns the labels of the writable disks that `other` does not have.
    fn without(&self, other: &Self) -> Vec<Rc<Slot>> {
        let disks = self.disks.values().filter_map(Disk::writable);
        disks.filter(|slot| other.slot(&slot.store).is_none()).cloned().collect()
    }

    /// Records in the labels of `disks` that these disks do not belong to this graph, within `GONE_WRITTEN_WITHIN`.
    async fn write_foreign_spec(&self, disks: &[Rc<Slot>]) {
        let written = disks.iter().map(|slot| {
            let (epoch, spec) = (self.epoch, self.spec.clone());
            update(slot, move |label| {
                (label.holder, label.epoch, label.spec) = (None, epoch, spec);
            })
        });
        let written: Vec<_> = written.collect();
        let _ = self.env.within(GONE_WRITTEN_WITHIN, all(written)).await;
    }

    /// Writes the epoch and the spec of the graph to the labels of the writable disks that `which` selects by name. The
    /// disks that `provisioning` selects stay marked as provisioning.
    async fn write_labels(
        &self,
        which: impl Fn(&str) -> bool,
        provisioning: impl Fn(&Disk) -> bool,
    ) -> Vec<Result<()>> {
        let disks = self.disks.iter().filter(|(name, _)| which(name));
        let writable = disks.filter_map(|(name, disk)| Some((name, disk, disk.writable()?)));
        let written = writable.map(|(name, disk, slot)| -> LocalFuture<Result<()>> {
            let update = LabelUpdate {
                holder: self.opening.machine.clone(),
                name: name.clone(),
                data_bytes: disk.data_bytes,
                epoch: self.epoch,
                broadcast: self.broadcast,
                spec: self.spec.clone(),
                past: self.past.clone(),
                provisioning: provisioning(disk),
                keepers: self.keepers.clone(),
            };
            let slot = slot.clone();
            Box::pin(async move { slot.write_update(update).await })
        });
        all(written.collect()).await
    }

    /// Writes to the labels all states that devices have changed since the last write of the labels.
    async fn catch_up(&self) -> Result<()> {
        let slots = self.disks.values().filter_map(Disk::writable).cloned();
        let behind = slots.map(|slot| -> LocalFuture<Result<()>> {
            Box::pin(async move { slot.catch_up().await })
        });
        all(behind.collect()).await.into_iter().collect()
    }

    /// Zeros the old label areas at the former ends of disks that have been enlarged: the rest of the new space has
    /// zeros too. If zeroing fails, that space keeps bytes that no client has written. Before that, updates each label
    /// once more: until both generations record the new end, a reader looks for labels at the old end.
    ///
    /// # Errors
    /// The error of the first disk that cannot be updated.
    async fn clear_grown(&self) -> Result<()> {
        for disk in self.disks.values() {
            if let (Some(before), Some(open), Some(slot)) =
                (disk.grown_from, &disk.open, disk.writable())
            {
                slot.update(|_| {}).await?;
                let _ = meta::wipe_back(&self.env, &open.lower, before).await;
            }
        }
        Ok(())
    }

    /// Lets devices write their states to the labels at once from now on, because the live change is committed.
    fn release(&self) {
        self.disks.values().filter_map(|disk| disk.slot.as_ref()).for_each(|slot| slot.release());
    }

    /// Ends the provisioning of new disks once the devices of the graph are made and their states are written: from now
    /// on the labels of these disks count. Also records on all disks that the broadcast reached every disk.
    ///
    /// # Errors
    /// The error of the first disk that cannot be updated.
    pub async fn made(&self) -> Result<()> {
        let (broadcast, is_complete) = (self.broadcast, self.reaches_all_disks());
        let written = self.disks.values().filter(|disk| disk.fresh || is_complete);
        let written = written.filter_map(Disk::writable).map(|slot| {
            update(slot, move |label| {
                label.provisioning = false;
                if is_complete {
                    label.acked_broadcast = broadcast;
                }
            })
        });
        all(written.collect()).await.into_iter().collect()
    }

    /// Whether every present disk can be written, so that a broadcast to the labels reaches all of these disks.
    fn reaches_all_disks(&self) -> bool {
        self.disks.values().all(|disk| disk.open.is_none() || disk.writable().is_some())
    }

    fn slot(&self, store: &Rc<Store>) -> Option<&Rc<Slot>> {
        let mut slots = self.disks.values().filter_map(|disk| disk.slot.as_ref());
        slots.find(|slot| slot.store.is_same(store))
    }

    /// Returns the labels with which the graph from before a failed change is opened again. Their epoch is above that
    /// of the failed change.
    pub fn reopened(&self, failed: Option<&Self>) -> Self {
        let disks = self.disks.iter().map(|(name, disk)| (name.clone(), disk.reopened(failed)));
        let undoes = failed.map(|failed| {
            let has = |disk: &Disk| disk.store().is_some_and(|store| failed.slot(store).is_some());
            let shared = self.disks.iter().filter(|(_, disk)| has(disk));
            let shared = shared.map(|(name, _)| name.clone()).collect();
            Undoes { shared, new: failed.without(self) }
        });
        Self {
            env: self.env.clone(),
            opening: Opening { degraded: true, ..self.opening.clone() },
            disks: disks.collect(),
            epoch: failed.map_or(self.epoch, |failed| failed.epoch) + 1,
            broadcast: failed.map_or(self.broadcast, |failed| failed.broadcast) + 1,
            spec: self.spec.clone(),
            past: self.past.clone(),
            keepers: self.keepers.clone(),
            // The labels name every stateful device of this graph by now.
            known: self.keepers.clone(),
            undoes: Cell::new(Some(undoes.unwrap_or_default())),
        }
    }

    /// Whether the label of `disk` was written with the epoch of the open graph and with the current number of data
    /// bytes. True for a disk without a label.
    pub fn is_as_large(&self, disk: &str) -> bool {
        self.disks.get(disk).is_none_or(|disk| {
            let label = disk.store().map(|store| store.label());
            label.is_some_and(|label| {
                label.epoch == self.epoch && label.data_bytes == disk.data_bytes
            })
        })
    }

    /// Returns the epoch of the open graph, and the spec that its labels contain.
    pub fn open_spec(&self) -> (u64, &str) {
        (self.epoch, &self.spec)
    }

    /// Returns the earlier specs that the labels of the graph contain, the newest first.
    pub fn past(&self) -> &[Past] {
        &self.past
    }

    /// Reads every copy of the label of every disk. For a disk that does not complete the read within `LOOK_WITHIN`,
    /// returns an error.
    pub async fn inspect(&self) -> Vec<Inspected> {
        let looks = self.disks.values().filter_map(|disk| {
            let (store, known) = (disk.store()?.clone(), disk.disk.as_ref()?);
            let (env, place) = (self.env.clone(), place_of(known).to_owned());
            let look: LocalFuture<Inspected> = Box::pin(async move {
                let found = env.within(LOOK_WITHIN, store.inspect()).await;
                let found = found.unwrap_or_else(|| {
                    Err(error!(TimedOut, "the disk did not answer within {LOOK_WITHIN:?}"))
                });
                let label = store.label().clone();
                Inspected { place, label, found }
            });
            Some(look)
        });
        all(looks.collect()).await
    }

    /// Rewrites all copies of the labels of all writable disks.
    ///
    /// # Errors
    /// The error of the first disk that cannot be written.
    pub async fn renew(&self) -> Result<()> {
        for slot in self.disks.values().filter_map(Disk::writable) {
            slot.store.renew().await?;
        }
        Ok(())
    }

    /// Returns the path or address of the disk called `name`, if the disk is open.
    pub(super) fn place_in_use(&self, name: &str) -> Option<&str> {
        let disk = self.disks.get(name).filter(|disk| disk.open.is_some())?;
        disk.disk.as_ref().map(place_of)
    }

    /// Returns the open disk of this kind with this identity.
    pub(super) fn in_use(&self, kind: &Kind, identity: &str) -> Option<InUse> {
        let mut disks = self.disks.values().filter(|disk| disk.identity == identity);
        disks.find_map(|disk| disk.in_use().filter(|it| it.disk.kind.name == kind.name))
    }

    /// Returns the open disk that has the same name, kind and path (or address) as `sought`, together with its
    /// identity.
    pub(super) fn in_use_at(&self, sought: &LabelledDisk) -> Option<(String, InUse)> {
        let disk = self.disks.get(&sought.given.name)?;
        let is_it = |it: &InUse| {
            it.disk.kind.name == sought.kind.name && place_of(&it.disk) == place_of(sought)
        };
        Some((disk.identity.clone(), disk.in_use().filter(is_it)?))
    }

    /// Marks all writable disks as closed in their labels. Before that, the caller has flushed every acknowledged
    /// write.
    ///
    /// # Errors
    /// The error of the first disk that cannot be marked; the others are marked.
    pub async fn close(&self) -> Result<()> {
        let broadcast = self.broadcast + 1;
        self.close_those(|_| true, move |label| label.broadcast = broadcast).await?;
        if self.reaches_all_disks() {
            // The graph is closed in any case. This helps to recognize a copy of a disk from when it was in use.
            let _ =
                self.close_those(|_| true, move |label| label.acked_broadcast = broadcast).await;
        }
        Ok(())
    }

    /// Marks the disks that were closed in order before this start as closed again, because the start served nothing.
    ///
    /// # Errors
    /// As [`Labels::close`].
    pub async fn give_up(&self) -> Result<()> {
        self.close_those(|disk| disk.clean, |_| {}).await
    }

    async fn close_those(
        &self,
        which: impl Fn(&Disk) -> bool,
        too: impl Fn(&mut Label) + Copy + 'static,
    ) -> Result<()> {
        let slots = self.disks.values().filter(|disk| which(disk)).filter_map(Disk::writable);
        let closed = slots.map(|slot| {
            update(slot, move |label| {
                label.holder = None;
                too(label);
            })
        });
        all(closed.collect()).await.into_iter().collect()
    }

    /// Returns the location of the data of the disk that is node `index` of the plan; `None` for a disk without a
    /// label.
    pub fn place(&self, planned: &Planned, index: usize) -> Option<DataSource> {
        let node = &planned.nodes[index];
        let disk = self.disks.get(&node.name)?;
        Some(match &disk.open {
            Some(open) => DataSource::Here(open.device.clone(), open.node.id, disk.data_bytes),
            None => DataSource::Absent(Rc::new(Absent::disk(&node.name, node.info.clone()))),
        })
    }

    /// Returns the store that keeps the state of the device at node `index` of the plan in the labels of the disks
    /// beneath the device.
    pub fn kept(&self, planned: &Planned, index: usize, handover: Handover) -> LabelStateStore {
        let node = &planned.nodes[index];
        let is_written_anew = self.is_written_anew(planned, index);
        let is_new = !self.known.contains(&node.name);
        let beneath = |lower: &usize| {
            let (disks, written) = (planned.disks_of(*lower), planned.written_disks_of(*lower));
            let label = |disk: &usize| {
                let known = self.disks.get(&planned.nodes[*disk].name);
                let label = known.map(Disk::label).unwrap_or_else(|| DiskLabel {
                    present: true,
                    fresh: planned.nodes[*disk].created,
                    ..DiskLabel::default()
                });
                let is_unused = is_new && !written.contains(disk);
                DiskLabel { fresh: label.fresh || is_written_anew || is_unused, ..label }
            };
            disks.iter().map(label).collect()
        };
        let ports = node.lowers.iter().map(beneath).collect();
        let Opening { degraded, accept_loss: loss, .. } = self.opening;
        let permits = Permits { degraded, loss };
        LabelStateStore::new(&node.name, is_new, permits, ports, handover)
    }

    /// Whether all bytes that the device at node `index` shows are going to be written through the device, over the
    /// present bytes: the device is the target of a new migration that transforms bytes.
    fn is_written_anew(&self, planned: &Planned, index: usize) -> bool {
        let is_new = |node: &PlannedNode| !self.known.contains(&node.name);
        let node = &planned.nodes[index];
        is_new(node)
            && node.bytes() == Bytes::Transformed
            && planned.nodes.iter().any(|above| {
                above.kind.capabilities.moves.is_some() && is_new(above) && above.lowers[1] == index
            })
    }
}

/// Returns a spec from labels without the sizes of its disks: an undo cannot restore them, since disks do not shrink.
fn without_sizes(text: &str) -> String {
    let mut spec = Spec::parse(text, "label", &|_| None);
    spec.forget_label_sizes();
    spec.to_text()
}

fn failed(error: Error) -> Vec<Error> {
    vec![error]
}

fn update(slot: &Rc<Slot>, change: impl FnOnce(&mut Label) + 'static) -> LocalFuture<Result<()>> {
    let slot = slot.clone();
    Box::pin(async move { slot.update(change).await })
}
