//! What a mirror writes beside its data, to know after a crash where its copies may differ.

use std::time::Duration;

use api::Client;
use bench::load::{self, Load, Pattern, Verify};
use serde_json::json;

use crate::beside::{disk, spec};
use crate::graph::{Bed, said};
use crate::report::Row;
use crate::window::{Ground, Medium};

/// Writes of labels for each write of data that reaches a member, at most.
const SHARE: f64 = 0.03;

/// Bytes of the mirror: 4096 regions.
const SIZE: u64 = 4 << 30;

/// Writes anywhere.
struct Slow {
    name: &'static str,
    words: &'static str,
    /// So many a second at most.
    iops: u64,
    /// Before they are counted.
    warm_up: Duration,
    time: Duration,
}

/// Every region was written to before. Fast, all stay in the map; slowly, most are left alone for longer than the
/// mirror waits.
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
        words: "600 a second",
        iops: 600,
        warm_up: Duration::from_secs(11),
        time: Duration::from_secs(30),
    },
];

/// Writes that members got.
#[derive(Clone, Copy)]
struct Writes {
    /// Of the mirror's clients.
    data: u64,
    /// All that reached the member.
    member: u64,
}

/// Labels' writes beside data's.
pub fn measure(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Memory.place(ground), "marks")?;
    let mut served = None;
    let mut rows = Vec::new();
    for load in &LOADS {
        let served = match &served {
            None => {
                let first = served.insert(bed.serve(&graph(load.iops))?);
                ground.fill(first, SIZE)?;
                first
            }
            // The mirror beneath goes on.
            Some(served) => {
                served.control.apply(&bed.change_to(&graph(load.iops))).map_err(said)?;
                served
            }
        };
        let uri = served.uri();
        write(ground, &uri, load.warm_up)?;
        let before = writes(&served.control)?;
        write(ground, &uri, load.time)?;
        let after = writes(&served.control)?;
        rows.push(row(load, before, after));
    }
    Ok(rows)
}

fn graph(iops: u64) -> String {
    spec(
        &(disk("a", SIZE + (2 << 20)) + &disk("b", SIZE + (2 << 20))),
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
        title: format!("a mirror's map, random writes of 4 KiB over 4 GiB, {}", load.words),
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
        warm_up: Duration::ZERO,
        time,
        span: Some(SIZE),
        verify: Verify::Nothing,
        structured: false,
    };
    let outcome = ground.core.block_on(load::run(&ground.core.env(), uri, &load));
    let outcome = outcome.map_err(|error| error.to_string())?;
    outcome.first_error.map_or(Ok(()), |error| Err(error.to_string()))
}

/// Counted by the engine, where requests begin: labels are written through the same door as data.
fn writes(control: &Client) -> Result<Writes, String> {
    let top = control.top().map_err(said)?;
    let of = |name: &str| {
        let row = top.rows.iter().find(|row| row.name == name)?;
        row.counts.as_ref()?.ops.get("write").copied()
    };
    let found = of("pair").zip(of("a")).map(|(data, member)| Writes { data, member });
    found.ok_or_else(|| "the server does not count the writes of pair and a".to_owned())
}
