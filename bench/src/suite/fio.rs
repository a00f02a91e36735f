//! Runs fio: with its io_uring engine directly on a file (to find the limits of the disk) and on block devices, and
//! with its nbd engine on a server (as a second opinion on the suite's own client).

use std::path::Path;
use std::process::Command;

use bench::load::{Load, Pattern};

/// Where fio sends its requests.
pub enum Target<'a> {
    /// To a file, without the page cache.
    File(&'a Path),
    /// To a block device of a server, without the page cache.
    Device(&'a Path),
    /// To an NBD export of a server.
    Uri(&'a str),
}

/// Option without which fio calibrates the processor's clock for 0.2 s at each start. Runs of fio directly on a file do
/// without it, because that can only lower Cairn's ratio.
const CLOCK: &str = "--clocksource=clock_gettime";

impl Target<'_> {
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::File(path) => past_the_cache(path),
            Self::Device(path) => {
                let mut arguments = past_the_cache(path);
                arguments.push(CLOCK.to_owned());
                arguments
            }
            Self::Uri(uri) => {
                vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}"), CLOCK.to_owned()]
            }
        }
    }
}

fn past_the_cache(path: &Path) -> Vec<String> {
    vec![
        format!("--filename={}", path.display()),
        "--ioengine=io_uring".to_owned(),
        "--direct=1".to_owned(),
    ]
}

/// Checks that a block device returns the written bytes: fio writes 16 MiB at random addresses with `depth` writes in
/// flight, and compares a checksum in every block.
pub fn check(device: &Path, depth: u32) -> Result<(), String> {
    let output = Command::new("fio")
        .args(["--name=check", "--rw=randwrite", "--bs=4k", "--size=16M"])
        .arg(format!("--iodepth={depth}"))
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"])
        .args(Target::Device(device).arguments())
        .output()
        .map_err(|error| format!("fio: {error}; install it"))?;
    if output.status.success() {
        return Ok(());
    }
    // fio prints hundreds of lines; one is enough.
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or_default();
    Err(format!("{} does not keep what is written: {first}", device.display()))
}

/// Runs one round of fio. Returns the requests per second, and fio's own processor time for each request in
/// microseconds.
pub fn round(target: &Target<'_>, load: &Load, size: u64) -> Result<(f64, f64), String> {
    let pattern = match load.pattern {
        Pattern::RandomRead => "randread",
        Pattern::RandomWrite => "randwrite",
        Pattern::Mixed => "randrw",
        Pattern::SequentialRead => "read",
        Pattern::SequentialWrite => "write",
    };
    let output = Command::new("fio")
        .arg("--name=round")
        .args(target.arguments())
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={}", load.block))
        .arg(format!("--iodepth={}", load.depth * load.connections))
        .arg(format!("--runtime={}ms", load.time.as_millis()))
        .arg(format!("--ramp_time={}ms", load.warm_up.as_millis()))
        .arg(format!("--size={size}"))
        .args(["--rwmixread=70", "--refill_buffers"])
        .output()
        .map_err(|error| format!("fio: {error}; install it"))?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr)));
    }
    // Engines may print messages before the results.
    let text = String::from_utf8_lossy(&output.stdout);
    let results = text.find('{').map_or("", |begin| &text[begin..]);
    let parsed: serde_json::Value =
        serde_json::from_str(results).map_err(|error| format!("fio: {error}"))?;
    let job = &parsed["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
    let iops = number(&job["read"]["iops"]) + number(&job["write"]["iops"]);
    let busy = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    Ok((iops, busy * 1e6 / iops.max(1.0)))
}
