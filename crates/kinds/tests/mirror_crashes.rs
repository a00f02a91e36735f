//! Enumerates the crashes of a mirror with the bitmaps in a store on its members.

use std::time::Duration;

use block::control::member::{Fail, Name, Resync, Stale};
use block::{ByteRange, Member, MemberState};
use sim::crash::{Running, Script, Setup, every_crash};
use sim::{Reached, WriteLog};

/// Regions of 64 KiB, which are cleared soon, so that a script marks and clears several.
const MIRROR: &str = "m = { kind = \"mirror\", on = [\"d0\", \"d1\"], region = \"64KiB\", \
                      clear_delay = \"1ms\" }";

/// Bytes of a member for data: the least that has room for a store.
const MEMBER_BYTES: u64 = 2 << 20;

/// Distance in bytes of the blocks that the scripts write. A first write marks the next five regions, too.
const STRIDE: u64 = 512 << 10;

/// Bytes of a block: a sector, which no crash tears.
const BLOCK: u64 = 512;

/// Simulated time in which a mirror makes its store, or clears regions.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest time in ms that a resync takes.
const RESYNC_MS_MAX: u64 = 1000;

/// Number of crash states of which one start crashes, too.
const AGAIN: usize = 1200;

/// The values that a script writes to each block, one after the other.
type Values = [Vec<u8>; 3];

fn values() -> Values {
    [0, 1, 2].map(|n| (1..=4).map(|lap| lap * 8 + n).collect())
}

async fn write(script: &Script, block: usize, lap: usize) {
    script.write(block as u64 * STRIDE, BLOCK, values()[block][lap]).await;
}

/// Judges a block: it must have a value that is not older than its last promised write.
fn judge_block(n: usize, bytes: &[u8], log: &WriteLog) -> Result<(), String> {
    let block = ByteRange::new(n as u64 * STRIDE, BLOCK).expect("a block has bytes");
    let least = log.writes_in(block, Reached::Acknowledged) as usize;
    let may_have = [&[0][..], &values()[n]].concat();
    if !may_have[least..].contains(&bytes[0]) {
        return Err(format!("block {n} has {}, and {least} writes are promised", bytes[0]));
    }
    Ok(())
}

/// Judges a mirror after a crash. Every member in sync must have the promised writes. Once all members are in sync, they must be
/// alike.
fn judge(running: &Running, log: &WriteLog) -> Result<(), String> {
    let on_disk = |disk: usize, start: u64, len: u64| {
        let range = ByteRange::new(meta::AREA_BYTES + start, len).expect("a range has bytes");
        running.peek(disk, range)
    };
    for n in 0..values().len() {
        let read = running.read(n as u64 * STRIDE, BLOCK).map_err(|error| error.to_string())?;
        judge_block(n, &read, log)?;
        for (disk, member) in running.report("m").members.iter().enumerate() {
            if member.state == MemberState::InSync {
                let bytes = on_disk(disk, n as u64 * STRIDE, BLOCK);
                judge_block(n, &bytes, log).map_err(|why| format!("{}: {why}", member.name))?;
            }
        }
    }
    let copied = |member: &Member| member.state == MemberState::InSync;
    for _ in 0..RESYNC_MS_MAX {
        if running.report("m").members.iter().all(copied) {
            break;
        }
        running.pass(Duration::from_millis(1));
    }
    let members = running.report("m").members;
    if let Some(member) = members.iter().find(|member| !copied(member)) {
        return Err(format!("{} is {:?}: {}", member.name, member.state, member.detail));
    }
    for n in 0..values().len() as u64 {
        if on_disk(0, n * STRIDE, BLOCK) != on_disk(1, n * STRIDE, BLOCK) {
            return Err(format!("the members differ in block {n}"));
        }
    }
    Ok(())
}

/// A member fails, misses a write, and returns when the region of the write is not marked any more. A start after a crash reads the
/// store, and makes a new one; some of these starts crash, too.
#[test]
fn mirror_has_flushed_writes_on_each_member_in_sync_after_every_crash() {
    let setup = Setup::new(kinds::REGISTRY, 2, MEMBER_BYTES, MIRROR, "m");
    let script = async |script: Script| {
        script.env.sleep(PAUSE).await;
        write(&script, 0, 0).await;
        script.flush().await;
        write(&script, 0, 1).await;
        script.ask::<Fail>("m", Name { member: "d1".to_owned() }).await.expect("d0 is in sync");
        write(&script, 1, 0).await;
        script.flush().await;
        script.env.sleep(PAUSE).await;
        script.ask::<Resync>("m", Stale::default()).await.expect("d1 is stale");
        write(&script, 2, 0).await;
        script.env.sleep(PAUSE).await;
        write(&script, 0, 2).await;
        script.flush().await;
    };
    let setup = setup.crashed_again(AGAIN).running_for(PAUSE);
    let crashes = every_crash(&setup, script, judge).unwrap_or_else(|words| panic!("{words}"));
    println!("{crashes:?}");
    assert!(crashes.states > 1000 && crashes.again > 1000, "{crashes:?}");
}
