//! The devices around a device in its graph, as far as the device must know them.

/// The devices around a device. They are known when the device is made, but not while it is planned: lowers are planned
/// first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// The devices and exports that use the device.
    pub uppers: Vec<Upper>,
    /// Whether a redundant device is above the device, directly or not.
    pub redundancy_above: bool,
    /// Whether a redundant device is below the device, directly or not.
    pub redundancy_below: bool,
}

/// A device or an export that uses a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upper {
    /// The name of the device or export.
    pub name: String,
    /// Whether all reads through it are verified ([`crate::Capabilities::verifies`]), by the upper itself or above it.
    pub verifies: bool,
}

/// The part of a device's uppers through which all reads are verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verified {
    /// No read is verified; also if nothing uses the device.
    Never,
    /// Reads through some uppers are verified, and others are not.
    Partly,
    /// All reads are verified.
    Always,
}

impl Surroundings {
    /// Returns which reads of the device are verified above it.
    pub fn verified(&self) -> Verified {
        let verifying = self.uppers.iter().filter(|upper| upper.verifies).count();
        match verifying {
            0 => Verified::Never,
            all if all == self.uppers.len() => Verified::Always,
            _ => Verified::Partly,
        }
    }
}
