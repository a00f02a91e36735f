//! The results of the suite: every round as JSON, and from the JSON a table for the README and a page with plots.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::group::Target;
use crate::measure::{Measured, Series};
use bench::machine::machine;
use bench::stats::{Median, median, ratio};

/// The ratio of the Cairn server to its best peer or to fio on a file, and the target.
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
        format!("{:.0} MiB/s", iops * f64::from(block) / f64::from(1 << 20))
    } else if iops >= 1e6 {
        format!("{:.2} M/s", iops / 1e6)
    } else {
        format!("{:.0} k/s", iops / 1e3)
    }
}

/// Formats the figures of a row for the terminal.
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

/// Returns the results of all rows as JSON, with the facts about the machine.
pub fn results(
    all: &[Measured],
    hops: Value,
    (rounds, each): (usize, Duration),
    took: Duration,
) -> Value {
    json!({
        "rounds": rounds,
        "round_seconds": each.as_secs_f64(),
        "took_seconds": took.as_secs(),
        "machine": machine(),
        "cells": all.iter().map(cell_json).collect::<Vec<_>>(),
        "hops": hops,
    })
}

/// Writes the results to the files `results.json`, `table.md` and `index.html` in the directory `out`.
pub fn write(out: &Path, results: &Value) -> Result<(), String> {
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    save("results.json", &format!("{results:#}\n"))?;
    save("table.md", &table(results))?;
    save("index.html", &page(results))
}

fn series_json(series: &Series) -> Value {
    json!({
        "name": series.name, "command": series.line, "iops": series.iops,
        "median_iops": median(&series.iops).value, "cpu_us": series.cpu_us,
        "median_cpu_us": median(&series.cpu_us).value, "p99_us": series.p99_us,
    })
}

fn cell_json(measured: &Measured) -> Value {
    let verdict = verdict(measured).map(|verdict| {
        let held = !matches!(measured.target, Target::Shown);
        json!({
            "ratio": verdict.ratio.value, "low": verdict.ratio.low, "high": verdict.ratio.high,
            "against": verdict.against, "wanted": held.then_some(verdict.wanted),
            "cpu_share": verdict.cpu.map(|(share, _)| share),
            "cpu_wanted": verdict.cpu.map(|(_, most)| most),
            "holds": held.then(|| verdict.holds()),
        })
    });
    json!({
        "id": measured.id, "title": measured.title, "block": measured.block,
        "series": measured.series.iter().chain(&measured.direct).map(series_json).collect::<Vec<_>>(),
        "verdict": verdict, "line": line(measured).trim(),
    })
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn holds(value: &Value) -> &'static str {
    match value.as_bool() {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    }
}

/// Formats the length of a round in words.
fn length(results: &Value) -> String {
    match results["round_seconds"].as_f64() {
        None | Some(1.0) => "a second".to_owned(),
        Some(seconds) => format!("{seconds} seconds"),
    }
}

/// Formats the JSON results as a Markdown table for the README.
pub fn table(results: &Value) -> String {
    let mut text = format!(
        "{} rounds of {} each, interleaved; medians; {} processors, client and server together.\n\n\
         | load, 4 KiB unless said | Cairn | beside | ratio (95 %) | target | holds |\n\
         |---|---|---|---|---|---|\n",
        results["rounds"],
        length(results),
        results["machine"]["processors"]
    );
    for cell in list(&results["cells"]) {
        text += &row(cell);
    }
    text += "\n| in process | ns | instructions | each hop | target | holds |\n|---|---|---|---|---|---|\n";
    let hops = list(&results["hops"]);
    let base = hops.iter().find(|hop| hop["name"] == "null");
    for hop in hops {
        text += &hop_row(hop, base.unwrap_or(hop), hops);
    }
    text
}

fn row(cell: &Value) -> String {
    let (verdict, block) = (&cell["verdict"], number(&cell["block"]) as u32);
    let series = list(&cell["series"]);
    let of = |name: &str| series.iter().find(|series| series["name"] == name);
    let against = verdict["against"].as_str().unwrap_or("");
    let shown = |name| of(name).map_or(String::new(), |s| amount(number(&s["median_iops"]), block));
    let cpu = verdict["cpu_share"].as_f64().map(|share| format!(", CPU {share:.2}"));
    let target = verdict["wanted"].as_f64().map(|wanted| {
        let cpu = verdict["cpu_wanted"].as_f64().map(|most| format!(", CPU {most:.2}"));
        format!("{wanted:.2}{}", cpu.unwrap_or_default())
    });
    format!(
        "| {} | {} | {against} {} | {:.2} ({:.2} to {:.2}){} | {} | {} |\n",
        cell["title"].as_str().unwrap_or(""),
        shown("cairn"),
        shown(against),
        number(&verdict["ratio"]),
        number(&verdict["low"]),
        number(&verdict["high"]),
        cpu.unwrap_or_default(),
        target.unwrap_or_default(),
        holds(&verdict["holds"]),
    )
}

/// Formats the table row of a graph in the results of `hops`. The target for tables is a number of instructions; the
/// targets for hooks and devices are nanoseconds for each device.
fn hop_row(hop: &Value, base: &Value, hops: &[Value]) -> String {
    let name = hop["name"].as_str().unwrap_or("");
    let (ns, each) = (number(&hop["ns"]), number(&hop["ns_per_hop"]));
    let count = hop["instructions"].as_f64();
    let more = |from: &Value| count.zip(from["instructions"].as_f64()).map(|(a, b)| a - b);
    let one = hops.iter().find(|hop| hop["name"] == "table-1");
    let (target, held) = match name {
        "table-16" => {
            let more = one.and_then(more);
            ("10 instructions more than for one".to_owned(), more.map(|more| more <= 10.0))
        }
        "hook-16" => ("7 ns".to_owned(), Some(each <= 7.0)),
        "device-8" => ("25 ns".to_owned(), Some(each <= 25.0)),
        _ => (String::new(), None),
    };
    let per_hop = match (number(&hop["hops"]), more(base)) {
        (0.0, _) => String::new(),
        (hops, Some(more)) => format!("{each:.1} ns, {:.0} instructions", more / hops),
        (_, None) => format!("{each:.1} ns"),
    };
    format!(
        "| {name} | {ns:.0} | {} | {per_hop} | {target} | {} |\n",
        count.map_or("-".to_owned(), |count| format!("{count:.0}")),
        holds(&held.map_or(Value::Null, Value::from)),
    )
}

/// Formats the JSON results as an HTML page with one plot for each row: a dot for each round of a server, and a bar for
/// the median.
fn page(results: &Value) -> String {
    let mut text = format!(
        "<!doctype html><meta charset=utf-8><title>Cairn beside its peers</title>\
         <style>body{{font:15px sans-serif;max-width:62em;margin:2em auto}}svg{{width:100%}}\
         code{{font-size:12px}}</style><h1>Cairn beside its peers</h1><p>{} rounds of {}, \
         interleaved; every round is a dot, the bar is the median. {}</p>",
        results["rounds"],
        length(results),
        results["machine"]
    );
    for cell in list(&results["cells"]) {
        let (title, line) = (cell["title"].as_str(), cell["line"].as_str());
        let _ = write!(text, "<h2>{}</h2><p>{}</p>", title.unwrap_or(""), line.unwrap_or(""));
        text += &plot(list(&cell["series"]));
        for series in list(&cell["series"]) {
            let _ = write!(
                text,
                "<div><code>{}</code></div>",
                series["command"].as_str().unwrap_or("")
            );
        }
    }
    text
}

fn plot(rows: &[Value]) -> String {
    let all = |row: &Value| list(&row["iops"]).iter().map(number).collect::<Vec<_>>();
    let most = rows.iter().flat_map(all).fold(1.0, f64::max);
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
            row["name"].as_str().unwrap_or(""),
            x(number(&row["median_iops"])) - 120.0,
        );
        for iops in all(row) {
            let _ = write!(text, "<circle cx={:.1} cy={} r=2.2 />", x(iops), y + 9);
        }
    }
    text + "</svg>"
}
