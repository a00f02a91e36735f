//! Facts about the machine on which benchmarks run.
#![allow(clippy::disallowed_methods, reason = "it reads what the kernel says of itself")]

use serde_json::{Value, json};

/// Returns processor count, processor model and kernel version of the machine, as JSON for the results.
pub fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: "));
    json!({
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "model": model,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}
