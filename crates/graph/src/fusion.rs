//! Tables, each fused with the tables directly below it: one lookup, however many there are.

use block::{Port, Result, Table};

/// A table device: its own table over its lowers, and the fused one over the devices below them. `P` names such a device.
#[derive(Clone)]
pub(crate) struct Fusion<P> {
    pub own: Table,
    pub fused: Table,
    /// The target of each port of the fused table.
    pub ports: Vec<P>,
}

impl<P: Copy + PartialEq> Fusion<P> {
    /// Makes the table `own` over one device.
    pub fn alone(own: Table, below: P) -> Self {
        Self { fused: own.clone(), own, ports: vec![below] }
    }

    /// Makes the table `own`, and fuses it with those of its lowers that are tables.
    ///
    /// # Errors
    /// `Invalid` if the tables do not fit each other.
    pub fn over(own: Table, lowers: &[(P, Option<&Self>)]) -> Result<Self> {
        let tables: Vec<_> =
            lowers.iter().map(|(_, table)| table.map(|table| &table.fused)).collect();
        let fused = own.fuse(&tables)?;
        let (mut targets, mut ports) = (Vec::new(), Vec::new());
        for path in &fused.ports {
            let (lower, table) = lowers[usize::from(path.upper.0)];
            let target = match (path.lower, table) {
                (Some(port), Some(table)) => table.ports[usize::from(port.0)],
                _ => lower,
            };
            let at = targets.iter().position(|known| *known == target).unwrap_or_else(|| {
                targets.push(target);
                targets.len() - 1
            });
            ports.push(Port(at as u16));
        }
        let fused = fused.table.renumber(&ports)?;
        Ok(Self { own, fused, ports: targets })
    }
}
