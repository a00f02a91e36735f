//! Fusion of tables: a table device and the tables directly below it become one table, so that one lookup per request
//! is enough.

use block::{Port, Result, Table};

/// The tables of a table device: its own table, which maps to its lowers, and this table fused with the tables below.
/// `P` is the type that identifies a device.
#[derive(Clone)]
pub(crate) struct Fusion<P> {
    pub own: Table,
    pub fused: Table,
    /// The devices to which the ports of `fused` lead, by port number.
    pub ports: Vec<P>,
}

impl<P: Copy + PartialEq> Fusion<P> {
    /// Returns the tables of a device with the table `own` over the device `below`, which has no table itself.
    pub fn alone(own: Table, below: P) -> Self {
        Self { fused: own.clone(), own, ports: vec![below] }
    }

    /// Returns the tables of a device with the table `own` over `lowers`, fused with the tables of those lowers that
    /// have one.
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
