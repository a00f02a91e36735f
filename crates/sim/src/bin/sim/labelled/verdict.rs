//! Checks the labels as `cairn check` does before each start in the trial of labelled disks, and compares the findings
//! with the result of the start.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{Env, Needs, Reason};
use doctor::{Doctor, Finding};
use engine::Engine;
use graph::labels::Opening;
use kind::{DeviceConfig, Maker, MakerArgs, Value};
use meta::{Inspection, Machine};
use sim::{SimDisk, SimWorld};

use super::{Ask, HERE, Start, THERE, Trial, path, wrong};
use crate::trial::Failure;

impl Trial {
    /// Checks the labels on copies of the disks as `cairn check` does, in a separate world, so that the seed's random
    /// numbers stay the same. Returns `None` if the findings cannot predict the next start, because a write is in
    /// flight, or because the start decides by flags or the spec.
    pub(super) fn checked(&self, ask: Ask) -> Result<Option<Vec<Finding>>, Failure> {
        let Ask { degraded: _, elsewhere, trust, leftover, wipe } = ask;
        let is_other = trust.is_some() || leftover.is_some() || wipe.is_some();
        let disks = self.disks_there();
        if is_other
            || self.doubt.is_some()
            || disks.iter().any(|(_, it)| !it.in_flight().is_empty())
        {
            return Ok(None);
        }
        let world = SimWorld::new(self.seed);
        disks.iter().for_each(|(path, disk)| world.plug(path, &disk.copy_into(&world)));
        let env = world.env();
        let found = async {
            let mut found = Vec::new();
            for (path, _) in &disks {
                found.push((path.clone(), inspect(&env, path).await?));
            }
            let machine = Machine::new("host", if elsewhere { THERE } else { HERE });
            let doctor = Doctor { env: env.clone(), registry: kinds::REGISTRY, machine };
            let checked = doctor.check_disks(&found, &[], &[]).await;
            let graphs = checked.graphs.into_iter().flat_map(|graph| graph.findings);
            // A disk that is not in the spec may have any label.
            let unread = found.iter().filter(|(_, inspection)| inspection.label.is_err());
            let unread = unread.zip(checked.unread).filter(|((path, _), _)| self.is_named(path));
            Ok::<_, block::Error>(graphs.chain(unread.map(|(_, it)| it)).collect::<Vec<_>>())
        };
        let found = world.block_on(found);
        world.drop_tasks();
        // If a disk cannot be read, there is nothing to compare.
        Ok(found?.ok())
    }

    /// Whether the spec of the next start has a disk at the path `at`.
    fn is_named(&self, at: &Path) -> bool {
        let is_beside = self.beside.is_some() && at == Path::new(super::beside::PATH);
        is_beside || self.shape.members.iter().any(|n| at == Path::new(&path(*n)))
    }

    /// Returns the disks that are plugged in, with their paths.
    fn disks_there(&self) -> Vec<(PathBuf, Rc<SimDisk>)> {
        let plugged = self.plugged.iter().enumerate();
        let disks = plugged.filter_map(|(at, n)| Some((path(at), self.disks[(*n)?].clone())));
        let beside = self.beside.iter().map(|it| (super::beside::PATH.to_owned(), it.disk.clone()));
        disks.chain(beside).map(|(path, disk)| (PathBuf::from(path), disk)).collect()
    }

    /// Compares the findings of `cairn check` with the result of the start that followed. A finding that refuses the
    /// start under the options `opening` must lead to a refused start, and a start that the labels refuse must have
    /// such a finding. Only the start compares spec and labels.
    pub(super) fn compare(
        &self,
        findings: &[Finding],
        opening: &Opening,
        start: &Start,
    ) -> Result<(), Failure> {
        let refuses = |finding: &&Finding| finding.refuses(opening);
        let refusing = findings.iter().find(refuses);
        match (start, refusing) {
            (Start::Up, Some(finding)) => Err(wrong(format!(
                "a start succeeded although cairn check reports a finding that refuses the start: \
                 {finding:?}"
            ))),
            (Start::Refused(Some(why), words), None) if is_of_labels(*why) => Err(wrong(format!(
                "a start was refused for a reason that cairn check does not report: {words}; \
                 findings: {findings:?}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether a start with the reason `why` was refused because of the labels alone, without regard to its spec.
fn is_of_labels(why: Reason) -> bool {
    use Reason::{
        LabelDamaged, LabelDegraded, LabelDuplicate, LabelHeldByOtherHost, LabelMissing,
        LabelStale, MirrorFlushFailed, MirrorMemberMissing, MirrorNoCurrentMember,
        MirrorSplitBrain,
    };
    matches!(
        why,
        LabelDamaged
            | LabelDegraded
            | LabelDuplicate
            | LabelHeldByOtherHost
            | LabelMissing
            | LabelStale
            | MirrorFlushFailed
            | MirrorMemberMissing
            | MirrorNoCurrentMember
            | MirrorSplitBrain
            | Reason::LabelSplitBrain
            | Reason::LabelNewer
            | Reason::MirrorUnknown
    )
}

/// Reads all copies of the label on the disk at `path`.
async fn inspect(env: &Env, path: &Path) -> block::Result<Inspection> {
    let kind = kinds::REGISTRY.find("path").expect("the registry has the kind path");
    let Maker::Disk { make, .. } = kind.maker else { unreachable!("the kind path is a disk") };
    let given = DeviceConfig {
        graph: String::new(),
        name: path.display().to_string(),
        options: vec![
            ("path", Value::Text(path.display().to_string())),
            ("read_only", Value::Switch(true)),
        ],
        lowers: Vec::new(),
        trusted_now: false,
    };
    let engine = Engine::new(env.pool());
    env.spawn("engine", engine.clone().drive());
    let node = engine.add_device(
        &given.name,
        make(MakerArgs::new(&given, env)).await?,
        Needs::LEAF,
        &[],
    )?;
    let found = meta::inspect(env, &engine.lower(node)).await;
    engine.forget(node);
    found
}
