//! Measures starts of a server after a kill: the time from the command to the first reply to a client.

use std::time::Duration;

use bench::load::{Load, Pattern, Verify};
use bench::stats::median;
use serde_json::json;

use crate::beside::{disk, spec};
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::Bed;

/// Promised longest time of a start without replay of a log, and promised speed of the replay in bytes per second.
const LONGEST: Duration = Duration::from_secs(2);
const LOG_BYTES_PER_S: u64 = 200_000_000;

/// Length in bytes of the longest log of a vault.
const LOG_BYTES: u64 = 16 << 20;

/// The clients' load until the kill. Most of its writes are the first write to a block of a `remap`.
const WRITES: Load = Load {
    pattern: Pattern::RandomWrite,
    connections: 1,
    depth: 32,
    block: 4096,
    shift: 0,
    warm_up: Duration::ZERO,
    time: Duration::ZERO,
    span: None,
    verify: Verify::Nothing,
    flush_every: None,
    structured: false,
};

/// The graph of the server that is killed.
#[derive(Clone, Copy, Debug)]
pub enum Graph {
    /// A mirror with dirty regions over its whole address space.
    Mirror,
    /// A `remap` whose vault has the longest log.
    Remap,
}

impl Graph {
    /// Both measured graphs.
    pub const ALL: [Self; 2] = [Self::Mirror, Self::Remap];

    /// Returns the name of the graph for the names of rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Remap => "remap",
        }
    }

    fn spec(self) -> String {
        let size = 2 << 30;
        match self {
            Self::Mirror => spec(
                &(disk("a", size) + &disk("b", size)),
                "pair = { kind = \"mirror\", on = [\"a\", \"b\"] }",
                "pair",
            ),
            Self::Remap => spec(
                &disk("a", size),
                "thin = { kind = \"remap\", on = \"a\", size = \"1GiB\", block = \"4KiB\" }",
                "thin",
            ),
        }
    }

    /// Returns the promised longest time of the graph's start after a kill.
    fn longest(self) -> Duration {
        match self {
            Self::Mirror => LONGEST,
            Self::Remap => {
                LONGEST + Duration::from_secs_f64(LOG_BYTES as f64 / LOG_BYTES_PER_S as f64)
            }
        }
    }
}

/// Kills the server of the graph under load in each round, at another time in each, and measures the next start.
pub fn measure(ground: &Ground, graph: Graph) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Disk.place(ground), "starts")?;
    let mut served = bed.serve(&graph.spec())?;
    let mut took_ms = Vec::new();
    for round in 0..ground.rounds {
        let time = Duration::from_millis(1500 + 700 * round as u64);
        let (again, ms) = served.killed_under(ground, "vol", &WRITES, time)?;
        served = again;
        took_ms.push(ms);
    }
    let worst = took_ms.iter().copied().fold(0.0, f64::max);
    let longest_ms = graph.longest().as_secs_f64() * 1e3;
    Ok(vec![Row {
        id: format!("start-{}", graph.name()),
        title: format!(
            "a {} killed under load, {}: start to first answer",
            graph.name(),
            Medium::Disk.words()
        ),
        aim: format!("{longest_ms:.0} ms"),
        figure: format!("{worst:.0} ms at most, median {:.0} ms", median(&took_ms).value),
        holds: Some(worst <= longest_ms),
        rounds: json!(took_ms),
    }])
}
