//! The results: every round as JSON, a table for the README, a page with plots.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::cell::Target;
use crate::measure::{Measured, Series};
use crate::stats::{Median, median, ratio};

/// Our figure, what it is held to, and whether it holds.
struct Verdict {
    ratio: Median,
    against: String,
    wanted: f64,
    cpu: Option<(f64, f64)>,
}

impl Verdict {
    fn holds(&self) -> bool {
        self.ratio.value >= self.wanted && self.cpu.is_none_or(|(share, most)| share <= most)
    }
}

fn best(peers: &[Series]) -> Option<&Series> {
    peers.iter().max_by(|a, b| median(&a.iops).value.total_cmp(&median(&b.iops).value))
}

fn verdict(measured: &Measured) -> Option<Verdict> {
    let (ours, peers) = measured.series.split_first()?;
    let peer = best(peers)?;
    let cpu_share = median(&ours.cpu_us).value / median(&peer.cpu_us).value;
    let over = |series: &Series, wanted, cpu| Verdict {
        ratio: ratio(&ours.iops, &series.iops),
        against: series.name.clone(),
        wanted,
        cpu,
    };
    Some(match measured.target {
        Target::TimesBest(wanted) => over(peer, wanted, None),
        Target::TimesBestAtCpu(wanted, most) => over(peer, wanted, Some((cpu_share, most))),
        Target::TimesDirect(wanted, most) => {
            over(measured.direct.as_ref()?, wanted, Some((cpu_share, most)))
        }
        Target::Shown => over(peer, 0.0, None),
    })
}

fn amount(iops: f64, block: u32) -> String {
    if block >= 64 << 10 {
        format!("{:.0} MB/s", iops * f64::from(block) / 1e6)
    } else if iops >= 1e6 {
        format!("{:.2} M/s", iops / 1e6)
    } else {
        format!("{:.0} k/s", iops / 1e3)
    }
}

/// A line for the terminal.
pub fn line(measured: &Measured) -> String {
    let mut text = String::new();
    for series in measured.series.iter().chain(&measured.direct) {
        let (iops, cpu) = (median(&series.iops), median(&series.cpu_us));
        let _ = write!(
            text,
            "  {} {} ({:.2} us)",
            series.name,
            amount(iops.value, measured.block),
            cpu.value
        );
    }
    if let Some(verdict) = verdict(measured) {
        let _ = write!(
            text,
            "  => {:.2} x {} [{:.2}, {:.2}], wanted {:.2}",
            verdict.ratio.value,
            verdict.against,
            verdict.ratio.low,
            verdict.ratio.high,
            verdict.wanted
        );
        if let Some((share, most)) = verdict.cpu {
            let _ = write!(text, ", CPU {share:.2} of the best peer's, wanted {most:.2}");
        }
        text += if verdict.holds() { "  holds" } else { "  DOES NOT HOLD" };
    }
    text
}

/// Writes `results.json`, `table.md` and `index.html`.
pub fn write(out: &Path, all: &[Measured], rounds: usize, took: Duration) -> Result<(), String> {
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let results = json!({
        "rounds": rounds,
        "took_seconds": took.as_secs(),
        "machine": machine(),
        "cells": all.iter().map(cell_json).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
    save("results.json", &text)?;
    save("table.md", &table(all))?;
    save("index.html", &page(all, rounds))?;
    eprintln!("{}", table(all));
    eprintln!("{}", out.join("index.html").display());
    Ok(())
}

fn machine() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: "));
    json!({
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "model": model,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

fn cell_json(measured: &Measured) -> serde_json::Value {
    let series = |series: &Series| {
        json!({
            "name": series.name, "command": series.line, "iops": series.iops,
            "cpu_us": series.cpu_us, "p99_us": series.p99_us,
        })
    };
    let verdict = verdict(measured).map(|verdict| {
        json!({
            "ratio": verdict.ratio.value, "low": verdict.ratio.low, "high": verdict.ratio.high,
            "against": verdict.against, "wanted": verdict.wanted,
            "cpu_share": verdict.cpu.map(|(share, _)| share), "holds": verdict.holds(),
        })
    });
    json!({
        "id": measured.id, "title": measured.title, "block": measured.block,
        "series": measured.series.iter().map(series).collect::<Vec<_>>(),
        "direct": measured.direct.as_ref().map(series),
        "verdict": verdict,
    })
}

fn table(all: &[Measured]) -> String {
    let mut text = String::from(
        "| load | Cairn | best peer | ratio | target | holds |\n|---|---|---|---|---|---|\n",
    );
    for measured in all {
        let Some(verdict) = verdict(measured) else { continue };
        let ours = median(&measured.series[0].iops).value;
        let theirs = measured
            .series
            .iter()
            .chain(&measured.direct)
            .find(|series| series.name == verdict.against)
            .map_or(0.0, |series| median(&series.iops).value);
        let target = match measured.target {
            Target::Shown => "-".to_owned(),
            _ => match verdict.cpu {
                Some((_, most)) => format!("{:.2}, CPU {most:.2}", verdict.wanted),
                None => format!("{:.2}", verdict.wanted),
            },
        };
        let cpu = verdict.cpu.map_or_else(String::new, |(share, _)| format!(", CPU {share:.2}"));
        let _ = writeln!(
            text,
            "| {} | {} | {} {} | {:.2} ({:.2} to {:.2}){cpu} | {target} | {} |",
            measured.title,
            amount(ours, measured.block),
            verdict.against,
            amount(theirs, measured.block),
            verdict.ratio.value,
            verdict.ratio.low,
            verdict.ratio.high,
            if verdict.holds() { "yes" } else { "**no**" },
        );
    }
    text
}

/// One plot for each cell: every round of every server as a dot, its median as a bar.
fn page(all: &[Measured], rounds: usize) -> String {
    let mut text = format!(
        "<!doctype html><meta charset=utf-8><title>Cairn beside its peers</title>\
         <style>body{{font:15px sans-serif;max-width:62em;margin:2em auto}}svg{{width:100%}}\
         code{{font-size:12px}}</style><h1>Cairn beside its peers</h1><p>{rounds} rounds of a \
         second, interleaved; every round is a dot, the bar is the median.</p>"
    );
    for measured in all {
        let _ = write!(text, "<h2>{}</h2><p>{}</p>", measured.title, line(measured));
        text += &plot(measured);
        for series in &measured.series {
            let _ = write!(text, "<div><code>{}</code></div>", series.line);
        }
    }
    text
}

fn plot(measured: &Measured) -> String {
    let rows: Vec<&Series> = measured.series.iter().chain(&measured.direct).collect();
    let most = rows.iter().flat_map(|row| &row.iops).copied().fold(1.0, f64::max);
    let x = |iops: f64| 120.0 + iops / most * 660.0;
    let mut text = format!("<svg viewBox='0 0 800 {}'>", rows.len() * 26 + 4);
    for (n, row) in rows.iter().enumerate() {
        let y = n * 26 + 4;
        let fill = if n == 0 { "#3b7dd8" } else { "#b8b8b8" };
        let _ = write!(
            text,
            "<text x=0 y={} font-size=13>{}</text><rect x=120 y={y} width={:.1} height=18 \
             fill='{fill}' />",
            y + 14,
            row.name,
            x(median(&row.iops).value) - 120.0,
        );
        for iops in &row.iops {
            let _ = write!(text, "<circle cx={:.1} cy={} r=2.2 />", x(*iops), y + 9);
        }
    }
    text + "</svg>"
}
