//! What disks without storage share: `memory` and `null`.

use block::Info;
use kind::{DeviceConfig, DiskPlan, Plan};

/// The facts of a disk that is gone with the process; its size is the option of that name.
pub fn info(given: &DeviceConfig, option: &str) -> Info {
    let size = given.size(option).unwrap_or(0);
    Info {
        buf_align: 1,
        volatile_cache: false,
        discard_zeroes: true,
        survives_process: false,
        ..Info::disk(size - size % 512, 512)
    }
}

/// The plan of such a disk: every start makes it anew.
pub fn plan(info: Info, words: &str) -> Plan<DiskPlan> {
    Ok(DiskPlan { info, creates: true, identity: String::new(), words: words.to_owned() })
}
