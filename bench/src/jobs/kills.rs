//! Benchmark of kills: encrypts a volume in place while clients use it, kills the server again and again, and checks
//! that no acknowledged write is lost.

use std::time::{Duration, Instant};

use api::{ApplyRequest, Client, routes};
use serde_json::json;

use crate::beside::{crypt, disk, spec};
use crate::known::Known;
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::{Bed, job, kill, said, until_over};

/// Number of kills of the server, each when a different random number of bytes is encrypted.
const KILLS: usize = 50;

/// Number of bytes of the volume, all of which are encrypted.
const DATA_BYTES: u64 = 1 << 30;

/// Length in bytes of both label areas of a disk.
const LABELS_BYTES: u64 = 2 << 20;

/// Limit for the encryption, in bytes per second. Without the limit the encryption would end before the last kill,
/// because it also runs while no client sends requests.
const SPEED_BYTES: u64 = 64 << 20;

/// Time from the start of the clients to the start of the encryption.
const BEGIN: Duration = Duration::from_millis(50);

/// Longest time that the benchmark waits for the encryption to reach a point or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Encrypts a volume in place while clients use it, kills and restarts the server [`KILLS`] times, and checks all
/// blocks at the end.
pub fn measure(ground: &Ground) -> Result<Vec<Row>, String> {
    let (env, bed) = (ground.core.env(), Bed::new(&Medium::Memory.place(ground), "kills")?);
    bed.write("key", "correct horse battery staple")?;
    let disk = disk("a", DATA_BYTES + LABELS_BYTES);
    let safe = spec(&disk, &crypt("1MiB", 1), "safe");
    let mut served = bed.serve(&spec(&disk, "", "a"))?;
    ground.fill(&served.uri(), DATA_BYTES)?;
    let mut after = bed.change_to(&safe);
    after.way.speed_bytes = Some(SPEED_BYTES);
    let mut known = Known::new(DATA_BYTES, env.random("kills"));
    let mut points: Vec<u64> = (0..KILLS).map(|_| known.draw(DATA_BYTES)).collect();
    points.sort_unstable();
    let mut starts_ms = Vec::new();
    for (n, point) in points.iter().enumerate() {
        let (uri, control, pid) = (served.uri(), served.control.clone(), served.pid());
        let after = Some(&after).filter(|_| n == 0);
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || kill_at(&control, pid, after, *point));
            ground.core.block_on(known.use_until_gone(&env, &uri))?;
            killer.join().map_err(|_| "the killer panicked")?
        })?;
        served.kill();
        let begun = Instant::now();
        served = bed.serve(&safe)?;
        starts_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        ground.core.block_on(known.settle(&env, &served.uri()))?;
    }
    until_over(&served.control, PATIENCE)?;
    ground.core.block_on(known.check(&env, &served.uri()))?;
    served.stop()?;
    // Checks again without the memory of the server.
    let served = bed.serve(&safe)?;
    ground.core.block_on(known.check(&env, &served.uri()))?;
    Ok(vec![Row {
        id: "kills-memory".to_owned(),
        title: format!("encrypting 1 GiB in place, {}: kills", Medium::Memory.words()),
        aim: format!("nothing lost over {KILLS} kills at random bytes"),
        figure: format!("{KILLS} kills, {} answered writes all there", known.answered),
        // Every other result is an error, and gives no figure.
        holds: Some(true),
        rounds: json!({ "killed_at_byte": points, "started_again_in_ms": starts_ms }),
    }])
}

/// Kills the server `pid` when `point` bytes are encrypted. With `begin`, starts the encryption by this request before.
fn kill_at(
    control: &Client,
    pid: u32,
    begin: Option<&ApplyRequest>,
    point: u64,
) -> Result<(), String> {
    // The kill must happen in any case, because the clients wait for it.
    let reached = wait_for(control, begin, point);
    kill(pid)?;
    reached
}

fn wait_for(control: &Client, begin: Option<&ApplyRequest>, point: u64) -> Result<(), String> {
    std::thread::sleep(BEGIN);
    if let Some(request) = begin {
        control.ask(&routes::APPLY, request).map_err(said)?;
    }
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match job(control)?.1 {
            Some(job) if job.work.progress.done_bytes < point => {}
            Some(_) => return Ok(()),
            None => return Err("all had moved before the last kill".to_owned()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{point} bytes have not moved within {PATIENCE:?}"))
}
