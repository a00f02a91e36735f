//! fio's io_uring engine straight on a file: what the disk itself can do.

use std::path::Path;
use std::process::Command;

use bench::load::{Load, Pattern};

/// One round of fio: requests per second, and microseconds of processor time for each.
pub fn round(file: &Path, load: &Load, size: u64) -> Result<(f64, f64), String> {
    let pattern = match load.pattern {
        Pattern::RandomRead => "randread",
        Pattern::RandomWrite => "randwrite",
        Pattern::Mixed => "randrw",
        Pattern::SequentialRead => "read",
        Pattern::SequentialWrite => "write",
    };
    let output = Command::new("fio")
        .arg("--name=direct")
        .arg(format!("--filename={}", file.display()))
        .args(["--ioengine=io_uring", "--direct=1", "--time_based", "--output-format=json"])
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={}", load.block))
        .arg(format!("--iodepth={}", load.depth * load.connections))
        .arg(format!("--runtime={}", load.time.as_secs().max(1)))
        .arg(format!("--ramp_time={}ms", load.warm_up.as_millis()))
        .arg(format!("--size={size}"))
        .args(["--rwmixread=70", "--refill_buffers"])
        .output()
        .map_err(|error| format!("fio: {error}; install it"))?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let parsed: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("fio: {error}"))?;
    let job = &parsed["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
    let iops = number(&job["read"]["iops"]) + number(&job["write"]["iops"]);
    let busy = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    Ok((iops, busy * 1e6 / iops.max(1.0)))
}
