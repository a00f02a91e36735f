//! Encrypts a volume in use while its server is killed again and again, and checks that no write is lost.

use std::time::{Duration, Instant};

use api::{ApplyRequest, Client, routes};
use serde_json::json;

use crate::beside::{crypt, disk, spec};
use crate::graph::{Bed, job, kill, said, until_over};
use crate::known::Known;
use crate::report::Row;
use crate::window::{Ground, Medium};

/// Number of kills, each when another random number of bytes has moved.
const KILLS: usize = 50;

/// Bytes that are encrypted.
const DATA_BYTES: u64 = 1 << 30;

/// Bytes of both labels of a disk.
const LABELS_BYTES: u64 = 2 << 20;

/// Limit of the job in bytes per second. Otherwise it would end too soon, because it also runs while there are no
/// clients.
const SPEED_BYTES: u64 = 64 << 20;

/// Delay of the job after the start of the clients.
const BEGIN: Duration = Duration::from_millis(50);

/// Limit for the end of the job.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills the server, and checks all blocks afterwards.
pub fn measure(ground: &Ground) -> Result<Vec<Row>, String> {
    let (env, bed) = (ground.core.env(), Bed::new(&Medium::Memory.place(ground), "kills")?);
    bed.write("key", "correct horse battery staple")?;
    let disk = disk("a", DATA_BYTES + LABELS_BYTES);
    let safe = spec(&disk, &crypt("1MiB", 1), "safe");
    let mut served = bed.serve(&spec(&disk, "", "a"))?;
    ground.fill(&served, DATA_BYTES)?;
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

/// Kills the server when `point` bytes have moved. With `begin`, starts the job first.
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
