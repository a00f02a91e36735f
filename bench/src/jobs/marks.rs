//! Measures how many writes of labels a mirror adds to its data writes, to keep the bitmap of its dirty regions.

use std::time::Duration;

use api::routes;
use bench::load::{Load, Pattern, Verify};
use serde_json::json;

use crate::beside::spec;
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::{Bed, Served, said, until_over};

/// Promise: at most this many writes of labels for each data write that reaches a member.
const SHARE: f64 = 0.03;

/// Size of the mirror in bytes: 2048 regions.
const SIZE: u64 = 2 << 30;

/// Longest time for the first resync of the new mirror.
const PATIENCE: Duration = Duration::from_secs(60);

/// A load of random writes with a limit.
struct Slow {
    name: &'static str,
    words: &'static str,
    /// Limit of the load in writes per second, by a `limit` device.
    iops: u64,
    /// Time with writes before they are counted.
    warm_up: Duration,
    time: Duration,
}

/// The two measured loads. Every region of the mirror was written before. Under the fast load all regions stay dirty;
/// under the slow load most regions have no write for longer than the mirror waits before it clears their bits.
const LOADS: [Slow; 2] = [
    Slow {
        name: "fast",
        words: "as many as it takes",
        iops: 1_000_000,
        warm_up: Duration::from_secs(2),
        time: Duration::from_secs(11),
    },
    Slow {
        name: "slow",
        words: "400 a second",
        iops: 400,
        warm_up: Duration::from_secs(26),
        time: Duration::from_secs(30),
    },
];

/// Numbers of writes that the two servers have counted.
#[derive(Clone, Copy)]
struct Writes {
    /// Number of data writes by clients to the mirror.
    data: u64,
    /// Number of all writes that reached one member: data and labels.
    member: u64,
}

/// Measures the mirror's writes of labels for each data write, under both loads.
pub fn measure(ground: &Ground) -> Result<Vec<Row>, String> {
    let place = Medium::Memory.place(ground);
    let (below, above) = (Bed::new(&place, "below")?, Bed::new(&place, "above")?);
    let members = below.serve(&format!(
        "[disk]\n{}{}[export]\nout-a = {{ on = \"a\" }}\nout-b = {{ on = \"b\" }}\n",
        member("a"),
        member("b")
    ))?;
    let graph = |iops| mirror(&members, iops);
    let served = above.serve(&graph(LOADS[0].iops))?;
    // The mirror cannot know yet that its members are equal, so it resyncs them first.
    until_over(&served.control, PATIENCE)?;
    ground.fill(&served.uri(), SIZE)?;
    let mut rows = Vec::new();
    for load in &LOADS {
        // The mirror itself keeps running.
        served.control.ask(&routes::APPLY, &above.change_to(&graph(load.iops))).map_err(said)?;
        write(ground, &served.uri(), load.warm_up)?;
        let before = writes(&served, &members)?;
        write(ground, &served.uri(), load.time)?;
        rows.push(row(load, before, writes(&served, &members)?));
    }
    Ok(rows)
}

fn member(name: &str) -> String {
    let size = SIZE + (2 << 20);
    format!("{name} = {{ file = \"{name}.img\", size = \"{size}\", create = true }}\n")
}

fn mirror(members: &Served<'_>, iops: u64) -> String {
    let disk = |name: &str| {
        format!(
            "{name} = {{ nbd = \"{}\", label = true }}\n",
            members.uri_of(&format!("out-{name}"))
        )
    };
    spec(
        &(disk("a") + &disk("b")),
        &format!(
            "pair = {{ kind = \"mirror\", on = [\"a\", \"b\"] }}\n\
             fair = {{ kind = \"limit\", on = \"pair\", iops = {iops} }}"
        ),
        "fair",
    )
}

fn row(load: &Slow, before: Writes, after: Writes) -> Row {
    let data = after.data - before.data;
    let labels = after.member - before.member - data;
    let share = labels as f64 / data as f64;
    Row {
        id: format!("marks-{}", load.name),
        title: format!("a mirror's map, random writes of 4 KiB over 2 GiB, {}", load.words),
        aim: format!("at most {:.0} % of the data's writes", SHARE * 1e2),
        figure: format!("{labels} beside {data} on a member: {:.2} %", share * 1e2),
        holds: Some(share <= SHARE),
        rounds: json!([{ "data_writes": data, "label_writes": labels }]),
    }
}

fn write(ground: &Ground, uri: &str, time: Duration) -> Result<(), String> {
    let load = Load {
        pattern: Pattern::RandomWrite,
        connections: 1,
        depth: 8,
        block: 4096,
        shift: 0,
        warm_up: Duration::ZERO,
        time,
        span: Some(SIZE),
        verify: Verify::Nothing,
        flush_every: None,
        structured: false,
    };
    ground.load(uri, &load).map(drop)
}

/// Reads the counters of both servers: the writes of clients to the mirror, and the writes that reached a member.
fn writes(above: &Served<'_>, below: &Served<'_>) -> Result<Writes, String> {
    Ok(Writes { data: writes_of(above, "pair")?, member: writes_of(below, "a")? })
}

fn writes_of(served: &Served<'_>, name: &str) -> Result<u64, String> {
    let top = served.control.get(&routes::TOP).map_err(said)?;
    let row = top.rows.iter().find(|row| row.name == name);
    let counts = row.and_then(|row| row.counts.as_ref());
    let writes = counts.map(|counts| counts.ops.get("write").copied().unwrap_or(0));
    writes.ok_or_else(|| format!("the server does not count what {name} does"))
}
