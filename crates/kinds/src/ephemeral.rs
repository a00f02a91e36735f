//! Parts shared by the disks without storage, `memory` and `null`.

use block::Info;
use kind::{DeviceConfig, DiskPlan, OptionSpec, Plan};

/// Returns the facts about a disk that does not outlive the process. `size` is the option that contains its size.
pub fn info(given: &DeviceConfig, size: &OptionSpec) -> Info {
    let size = given.size(size).unwrap_or(0);
    Info {
        buf_align: 1,
        volatile_cache: false,
        discard_zeroes: true,
        survives_process: false,
        ..Info::disk(size - size % 512, 512)
    }
}

/// Returns the plan of a disk that does not outlive the process, so that every start creates it anew.
pub fn plan(info: Info, words: &str) -> Plan<DiskPlan> {
    let (identity, words) = (String::new(), words.to_owned());
    Ok(DiskPlan { info, creates: true, identity, standing_bytes: 0, words })
}
