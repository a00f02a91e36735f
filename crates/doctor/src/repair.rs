//! Plans of repairs, and the writes of labels.

use std::path::Path;

use block::{Error, ErrorKind, Result};
use graph::labels::{Remembered, disks, newest};
use graph::spec::Planned;
use meta::{Inspection, Label, Store};
use serde::Serialize;

use crate::Doctor;
use crate::check::{Named, ProbedDisk, cut, plan};
use crate::directory::by_graph;
use crate::relabel::{Graph, NamedPlace, PlaceContent, Relabel, check_writable};

/// A disk and its place: from the operator (`true`), or from a spec.
pub type SaidPlace = (String, String, bool);

/// Labels that a repair writes.
#[derive(Default, Serialize)]
pub struct Plan {
    /// Disks with damaged copies of a label, which are written anew from another copy.
    pub renew: Vec<String>,
    /// Disks that get a label from the labels of the other disks of their graph.
    pub remake: Vec<Relabel>,
    /// Reasons why other disks in a spec get no label.
    pub not: Vec<String>,
}

/// The decisions of an operator about a repair.
pub struct Asked<'a> {
    /// Disks with bytes that are used as they are.
    pub trusted: &'a [String],
    /// Whether disks may be written that another machine has open.
    pub take: bool,
}

impl Doctor {
    /// Adds the labels that can be made again from the labels of the other disks in `directory`, and the labels
    /// of disks that have lost one end. `graphs`: uuids of the graphs that do not run. `said`: places of disks.
    ///
    /// # Errors
    /// If a disk that the operator named gets no label.
    pub async fn plan_labels(
        &self,
        directory: &Path,
        graphs: &[&str],
        said: &[SaidPlace],
        asked: &Asked<'_>,
        to_do: &mut Plan,
    ) -> Result<()> {
        let (disks, _) = self.copies(directory).await?;
        let places: Vec<_> = disks.iter().map(|(path, _)| path.display().to_string()).collect();
        let found = by_graph(&places, &disks);
        for uuid in graphs {
            let of_it = found.iter().find(|((_, of), _)| of.to_string() == **uuid);
            let seen = of_it.map(|(_, seen)| &seen[..]).unwrap_or_default();
            asked.relabels_of(self, seen, said, to_do).await?;
        }
        Ok(())
    }

    /// Reads the label copies and the block size of a disk.
    async fn there(&self, place: &str) -> Result<PlaceContent> {
        let disk = self.open(Path::new(place), true).await?;
        let inspection = meta::inspect(&self.env, disk.lower()).await?;
        Ok(PlaceContent { inspection, block_size: disk.lower().info().block_size })
    }

    /// Writes a planned label to a disk without a label, or over the one that it continues.
    ///
    /// # Errors
    /// `InUse` if the disk has another label by now; errors of the disk.
    pub async fn write_label(&self, relabel: &Relabel) -> Result<()> {
        let disk = self.open(Path::new(&relabel.place), false).await?;
        if let Inspection { label: Ok(Some((label, _))), .. } =
            meta::inspect(&self.env, disk.lower()).await?
            && (relabel.over.is_none() || label.sequence != relabel.label.sequence)
        {
            let words = format!("{} has another label by now", relabel.place);
            return Err(Error::new(ErrorKind::InUse, words).next("look again"));
        }
        let store = Store::new(&self.env, disk.lower(), relabel.label.clone(), relabel.over)?;
        store.renew().await
    }

    /// Writes all copies of a label anew from a sound one. `take`: even if another machine has the disk open.
    ///
    /// # Errors
    /// `Corrupt` if no copy can be read any more, `Unsupported` if this version must not write the label, `InUse` if
    /// another machine has the disk open; errors of the disk.
    pub async fn renew(&self, path: &Path, take: bool) -> Result<()> {
        let disk = self.open(path, false).await?;
        let inspection = meta::inspect(&self.env, disk.lower()).await?;
        let path = path.display();
        let Ok(Some((label, number))) = inspection.label else {
            let words = format!("{path} has no label any more that can be read");
            return Err(Error::new(ErrorKind::Corrupt, words));
        };
        check_writable(&path.to_string(), &label, &self.machine, take)?;
        Store::new(&self.env, disk.lower(), label, Some(number))?.renew().await
    }
}

impl Asked<'_> {
    async fn relabels_of(
        &self,
        doctor: &Doctor,
        seen: &[ProbedDisk<'_>],
        said: &[SaidPlace],
        to_do: &mut Plan,
    ) -> Result<()> {
        let Some(newest) = newest(seen.iter().map(|seen| seen.label)) else { return Ok(()) };
        let named: Named = disks(&newest.spec)?;
        let is_named =
            |seen: &&ProbedDisk<'_>| named.values().any(|known| known.disk == seen.label.disk);
        let seen: Vec<ProbedDisk<'_>> = seen.iter().filter(is_named).copied().collect();
        let said = self.all_said(&seen, &named, said)?;
        if said.is_empty() {
            return Ok(());
        }
        let planned = match planned_of(doctor, newest, &named).await {
            Ok(planned) => planned,
            Err(error) if said.iter().any(|(.., by_hand)| *by_hand) => return Err(error),
            Err(error) => {
                to_do.not.push(error.to_string());
                return Ok(());
            }
        };
        let has_label = |known: &Remembered| {
            let mut seen = seen.iter().filter(|seen| seen.label.disk == known.disk);
            seen.any(|seen| !seen.has_lost_its_end())
        };
        let mut looked = Vec::new();
        for (name, place, by_hand) in &said {
            let trusted = self.trusted.contains(name);
            if !by_hand && !trusted && named.get(name).is_none_or(has_label) {
                continue;
            }
            match doctor.there(place).await {
                Ok(there) => {
                    looked.push((NamedPlace { name, place, by_hand: *by_hand, trusted }, there))
                }
                Err(error) if *by_hand || trusted => return Err(error),
                Err(error) => to_do.not.push(error.to_string()),
            }
        }
        let elsewhere = looked.iter().filter(|(_, there)| there.inspection.lost_end().is_some());
        let cut = cut(&seen, &named).chain(elsewhere.map(|(said, _)| said.name));
        let cut = cut.filter(|name| self.trusted.iter().all(|trusted| trusted != name)).collect();
        let lost = said.iter().map(|(name, ..)| name.as_str()).collect();
        let take = self.take;
        let graph =
            Graph { newest, named: &named, planned: &planned, seen: &seen, lost, cut, take };
        for (said, there) in &looked {
            match graph.relabel(said, there, &doctor.machine) {
                Ok(relabel) => to_do.remake.push(relabel),
                Err(error) if said.by_hand || said.trusted => return Err(error),
                Err(error) => to_do.not.push(error.to_string()),
            }
        }
        Ok(())
    }

    /// Returns the named places, and those of disks that have lost one end and of trusted disks.
    fn all_said(
        &self,
        seen: &[ProbedDisk<'_>],
        named: &Named,
        said: &[SaidPlace],
    ) -> Result<Vec<SaidPlace>> {
        let mut all = said.to_vec();
        for (name, known) in named.iter().filter(|(name, _)| said.iter().all(|one| one.0 != **name))
        {
            let is_wanted =
                |seen: &&ProbedDisk<'_>| self.trusted.contains(name) || seen.has_lost_its_end();
            let mut of_it = seen.iter().filter(|seen| seen.label.disk == known.disk);
            if let Some(seen) = of_it.find(is_wanted) {
                all.push((name.clone(), seen.place.to_owned(), false));
            }
        }
        if let Some(name) = self.trusted.iter().find(|name| all.iter().all(|one| one.0 != **name)) {
            let why = format!("--trust {name}, and nothing says where {name} is");
            return Err(Error::new(ErrorKind::Invalid, why)
                .next(format!("--disk {name}=PATH, or repair a spec")));
        }
        Ok(all)
    }
}

/// Plans the graph with all of its disks.
async fn planned_of(doctor: &Doctor, newest: &Label, named: &Named) -> Result<Planned> {
    let graph = &newest.graph_name;
    let planned = plan(doctor, newest, named).await.map_err(|why| {
        let why = format!("{graph}: the spec in its labels cannot be planned: {why}");
        Error::new(ErrorKind::Corrupt, why)
    })?;
    planned.ok_or_else(|| {
        let why = format!("{graph} has disks without a label, and what they are like matters");
        Error::new(ErrorKind::Unsupported, why)
    })
}
