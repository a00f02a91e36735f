//! Enumerates the crashes of test kinds with a state, right and wrong ones: the enumeration must find each fault.

use std::time::Duration;

use block::ByteRange;
use kind::Registry;
use sim::crash::{Crashes, Running, Script, Setup, every_crash};
use sim::{Reached, WriteLog};
use testkit::wrong::{KEEPER, Sin};

const REGISTRY: Registry = Registry(&[kinds::path::KIND, KEEPER]);

const DATA_BYTES: u64 = 64 << 10;

/// Returns the line of a spec for a device `k` of the kind `keeper`.
fn keeper(sin: Option<Sin>) -> String {
    let sin = sin.map(|sin| format!(", sin = \"{sin:?}\"")).unwrap_or_default();
    format!("k = {{ kind = \"keeper\", on = \"d0\"{sin} }}")
}

/// Enumerates the crashes of a graph that counts writes, from its first start to its close.
fn crashes_of(sin: Option<Sin>) -> Result<Crashes, String> {
    let setup = Setup::new(REGISTRY, 1, DATA_BYTES, &keeper(sin), "k");
    let script = async |script: Script| {
        for n in 0..10 {
            script.write(n * 512, 512, n as u8 + 1).await;
            if n % 4 == 3 {
                script.flush().await;
            }
        }
    };
    every_crash(&setup, script, |running, log| {
        let (counted, least) =
            (running.report("k").counters[0].1, log.writes(Reached::Acknowledged));
        if counted >= least { Ok(()) } else { Err(format!("{counted} of {least} writes")) }
    })
}

#[test]
fn crash_enumeration_accepts_device_that_counts_durably() {
    let crashes = crashes_of(None).unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    assert!(crashes.states > 100, "{crashes:?}");
}

/// A live change adds the device to a graph. Once the change is committed, the disks do not count as new any more.
fn crashes_of_change(sin: Option<Sin>) -> Result<Crashes, String> {
    let mut setup = Setup::new(REGISTRY, 2, DATA_BYTES, "", "d1").or(&keeper(sin), "d1");
    // The disk of the device is new in the change.
    let lines = setup.specs[0].lines().filter(|line| !line.starts_with("d0 "));
    setup.specs[0] = lines.collect::<Vec<_>>().join("\n");
    let script = async |mut script: Script| {
        script.change(1).await.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
        // The device makes its store after the commit.
        script.env.sleep(Duration::from_secs(1)).await;
    };
    every_crash(&setup, script, |_, _| Ok(()))
}

#[test]
fn crash_enumeration_refuses_device_with_store_before_provisioning_state() {
    let crashes = crashes_of_change(None).unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    let words = crashes_of_change(Some(Sin::MakesEarly)).unwrap_err();
    assert!(words.contains("of the script: no graph starts"), "{words}");
}

/// The bytes below are the same before and after the device acknowledges a write; only the promise grows.
#[test]
fn crash_enumeration_refuses_device_that_acknowledges_write_before_its_count() {
    let words = crashes_of(Some(Sin::CountsLate)).unwrap_err();
    assert!(words.contains("of the script: spec 0: "), "{words}");
    let words = crashes_of(Some(Sin::NeverStores)).unwrap_err();
    assert!(words.contains("0 of 1 writes"), "{words}");
}

/// Bytes of a block of `remap` in the test.
const BLOCK: u64 = 4096;

/// Judges the first blocks of a device. Each was filled with its `values`, one after the other, and must have a value that is not
/// older than its last promised write.
fn judge_blocks(running: &Running, log: &WriteLog, values: &[Vec<u8>]) -> Result<(), String> {
    for (n, values) in (0..).zip(values) {
        let block = ByteRange::new(n * BLOCK, BLOCK).expect("a block has bytes");
        let bytes = running.read(block.start(), BLOCK).map_err(|error| error.to_string())?;
        let value = bytes[0];
        if bytes.iter().any(|byte| *byte != value) {
            return Err(format!("block {n} is torn"));
        }
        let least = log.writes_in(block, Reached::Acknowledged) as usize;
        let may_have = [&[0][..], values].concat();
        if !may_have[least..].contains(&value) {
            return Err(format!("block {n} has {value}, and {least} writes are promised"));
        }
    }
    Ok(())
}

/// The ring of a journal goes round more than once. A start that replays it crashes again.
#[test]
fn journal_has_flushed_writes_after_every_crash_and_crash_in_replay() {
    let device = "s = { kind = \"checksum\", on = \"d0\", crash = \"journal\" }";
    let setup = Setup::new(kinds::REGISTRY, 1, 1 << 20, device, "s").crashed_again(150);
    let values: Vec<Vec<u8>> = (0..3).map(|n| (1..=6).map(|lap| lap * 8 + n).collect()).collect();
    let written = values.clone();
    let script = async move |script: Script| {
        for lap in 0..6 {
            for (n, values) in (0..).zip(&written) {
                script.write(n * BLOCK, BLOCK, values[lap]).await;
            }
            if lap % 2 == 1 {
                script.flush().await;
            }
        }
    };
    let crashes = every_crash(&setup, script, |running, log| judge_blocks(running, log, &values));
    let crashes = crashes.unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    assert!(crashes.states > 100 && crashes.again > 100, "{crashes:?}");
}

/// Each block is written once, with its number. Some are discarded after a flush, and their places are used again.
#[test]
fn remap_keeps_flushed_blocks_after_any_crash() {
    let device = "r = { kind = \"remap\", on = \"d0\", size = \"64KiB\", block = \"4KiB\" }";
    let setup = Setup::new(kinds::REGISTRY, 1, 512 << 10, device, "r");
    let script = async |script: Script| {
        for n in 0..6 {
            script.write(n * BLOCK, BLOCK, n as u8 + 1).await;
        }
        script.flush().await;
        script.discard(0, 2 * BLOCK).await;
        for n in 6..10 {
            script.write(n * BLOCK, BLOCK, n as u8 + 1).await;
        }
        script.flush().await;
    };
    let crashes = every_crash(&setup, script, |running, log| {
        for n in 0..10 {
            let block = ByteRange::new(n * BLOCK, BLOCK).expect("a block has bytes");
            let bytes = running.read(block.start(), BLOCK).map_err(|error| error.to_string())?;
            let is_written = bytes.iter().all(|byte| *byte == n as u8 + 1);
            let is_zeros = bytes.iter().all(|byte| *byte == 0);
            let may_be_zeros = n < 2 || log.writes_in(block, Reached::Acknowledged) == 0;
            if !(is_written || is_zeros && may_be_zeros) {
                return Err(format!("block {n} begins with {:?}", &bytes[..4]));
            }
        }
        Ok(())
    });
    let crashes = crashes.unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    assert!(crashes.states > 100, "{crashes:?}");
}
