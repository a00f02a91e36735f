//! Tests of `wear`: its counts after every crash.

use block::Op;
use sim::crash::{Script, Setup, every_crash};

use super::subjects::{LOWER_BYTES, judge};

/// Writes to both MiB, alone and together, with and without flushes.
async fn writes(script: Script) {
    for (start, len) in [(0, 512), (4096, 512), ((1 << 20) - 512, 1024)] {
        script.write(start, len, 0x11).await;
    }
    script.flush().await;
    script.write(8192, 512, 0x22).await;
    let range = block::ByteRange::new(0, 4096).expect("a range with bytes");
    let zeroes = Op::WriteZeroes { range, unmap: false, fua: true };
    script.send(zeroes).await.expect("no disk fails");
    script.write(0, 512, 0x33).await;
}

fn crash(disks: usize, device: &str) {
    let setup = Setup::new(crate::REGISTRY, disks, LOWER_BYTES, device, "w");
    let crashes = every_crash(&setup, writes, |running, log| judge(&running.report("w"), log));
    let crashes = crashes.unwrap_or_else(|words| panic!("{device}: {words}"));
    assert!(crashes.states > 100, "{crashes:?}");
}

#[test]
fn wear_counts_are_never_below_writes_after_every_crash() {
    crash(1, "w = { kind = \"wear\", on = \"d0\" }");
    crash(2, "w = { kind = \"wear\", on = [\"d0\", \"d1\"], meta = \"d1\" }");
}
