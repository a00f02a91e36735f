//! `cairn bench`: the same load on the exports of one or several servers, in rounds.

use std::time::Duration;

use bench::load::{self, Load, Outcome, Pattern, Verify};
use block::units::{format_duration, parse_duration, parse_size};
use clap::Args;
use runtime::{Config, Core};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use crate::out::{self, Form};

/// Time at the begin of each round in which requests are not counted.
const WARM_UP: Duration = Duration::from_millis(150);

/// Arguments of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// The exports: nbd+unix:///EXPORT?socket=PATH or nbd://HOST/EXPORT
    #[arg(required = true)]
    uris: Vec<String>,
    /// randread, randwrite, randrw (70 % reads), read, write
    #[arg(long, default_value = "randread", value_parser = parse_pattern)]
    pattern: Pattern,
    /// Bytes of a request
    #[arg(long, default_value = "4KiB", value_parser = parse_size)]
    block: u64,
    /// Connections to each export
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Rounds; each measures every export once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of a measured round
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    time: Duration,
    /// Use only this many bytes at the start of each export
    #[arg(long, value_parser = parse_size)]
    span: Option<u64>,
    /// Overwrite the export with known bytes first, and compare every read with them
    #[arg(long)]
    fill: bool,
    /// Overwrite without asking: writes and --fill destroy the data of the export
    #[arg(long)]
    yes: bool,
    /// Flush after each N requests of a connection
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    flush_every: Option<u32>,
    /// Request structured replies; simple ones are the same for every server
    #[arg(long)]
    structured: bool,
}

fn parse_pattern(word: &str) -> std::result::Result<Pattern, String> {
    let found = Pattern::ALL.iter().find(|(name, _)| *name == word);
    found.map(|(_, pattern)| *pattern).ok_or_else(|| {
        let names: Vec<_> = Pattern::ALL.iter().map(|(name, _)| *name).collect();
        format!("no such pattern; patterns: {}", names.join(", "))
    })
}

/// The results of all rounds for one export.
#[derive(Serialize)]
struct Measured {
    uri: String,
    iops: Vec<f64>,
    median_iops: f64,
    bytes_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl BenchArgs {
    /// Runs the load on each export, and prints the results.
    pub fn run(self, form: Form) -> Result {
        self.may_write()?;
        let load = self.load()?;
        let core = Core::new(Config { spin_us: 0, ..Config::default() })?;
        let env = core.env();
        let mut all: Vec<Vec<Outcome>> = vec![Vec::new(); self.uris.len()];
        if self.fill {
            for uri in &self.uris {
                core.block_on(load::fill(&env, uri, self.span))?;
            }
        }
        for round in 0..self.rounds as usize {
            for turn in 0..self.uris.len() {
                let n = (turn + round) % self.uris.len();
                let outcome = core.block_on(load::run(&env, &self.uris[n], &load))?;
                check(&self.uris[n], &outcome)?;
                all[n].push(outcome);
            }
        }
        let measured: Vec<_> =
            self.uris.iter().zip(&all).map(|(uri, rounds)| self.measured(uri, rounds)).collect();
        form.print(&measured, || self.text(&measured))
    }

    /// Fails if the load writes and `--yes` is missing.
    fn may_write(&self) -> Result<()> {
        let writes = !matches!(self.pattern, Pattern::RandomRead | Pattern::SequentialRead);
        if (writes || self.fill) && !self.yes {
            let why = "this benchmark overwrites the bytes of the export";
            return Err(Failure::new(Exit::Usage, why).next("add --yes, or use a reading pattern"));
        }
        Ok(())
    }

    fn load(&self) -> Result<Load> {
        let block = u32::try_from(self.block).unwrap_or(u32::MAX);
        if block == 0 || block > 32 << 20 || !block.is_multiple_of(512) {
            fail!(Usage, "--block {}: a multiple of 512 up to 32MiB is needed", self.block);
        }
        Ok(Load {
            pattern: self.pattern,
            connections: self.connections,
            depth: self.depth,
            block,
            shift: 0,
            warm_up: WARM_UP,
            time: self.time,
            span: self.span,
            verify: if self.fill { Verify::Everything } else { Verify::Nothing },
            flush_every: self.flush_every,
            structured: self.structured,
        })
    }

    fn measured(&self, uri: &str, rounds: &[Outcome]) -> Measured {
        let iops: Vec<f64> = rounds.iter().map(Outcome::iops).collect();
        let mut sorted = iops.clone();
        sorted.sort_by(f64::total_cmp);
        let median_iops = sorted[sorted.len() / 2];
        let middle = |of: fn(&Outcome) -> Duration| {
            let mut times: Vec<Duration> = rounds.iter().map(of).collect();
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e6
        };
        Measured {
            uri: uri.to_owned(),
            median_iops,
            bytes_per_second: median_iops * self.block as f64,
            p50_us: middle(|outcome| outcome.latency.percentile(0.5)),
            p99_us: middle(|outcome| outcome.latency.percentile(0.99)),
            max_us: rounds.iter().map(|o| o.latency.max().as_secs_f64() * 1e6).fold(0.0, f64::max),
            iops,
        }
    }

    fn text(&self, all: &[Measured]) -> String {
        let rounds = format!("{} rounds of {}", self.rounds, format_duration(self.time));
        let head = ["EXPORT", "IOPS", "MiB/s", "p50", "p99", "MAX"].map(str::to_owned);
        let mut rows = vec![head.to_vec()];
        for one in all {
            rows.push(vec![
                one.uri.clone(),
                format!("{:.0}", one.median_iops),
                format!("{:.1}", one.bytes_per_second / f64::from(1 << 20)),
                format!("{:.0} us", one.p50_us),
                format!("{:.0} us", one.p99_us),
                format!("{:.0} us", one.max_us),
            ]);
        }
        format!("{}medians of {rounds}\n", out::columns("<>>>>>", &rows))
    }
}

fn check(uri: &str, outcome: &Outcome) -> Result<()> {
    if let Some(error) = &outcome.first_error {
        fail!(Io, "{uri}: {} requests failed; the first: {error}", outcome.errors);
    }
    if outcome.wrong > 0 {
        fail!(Damaged, "{uri}: {} reads returned other bytes than were written", outcome.wrong);
    }
    Ok(())
}
