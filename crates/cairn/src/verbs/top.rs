//! `cairn top`: prints the request rates of every device, each second.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use api::{Counts, Top, TopRow, routes};
use block::OpKind;
use block::units::parse_duration;
use clap::Args;

use crate::exit::{Exit, Result};
use crate::out::{self, Form, columns};
use crate::running::Named;

/// Shortest interval between two updates. In a shorter one the measurement itself would change the figures.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Arguments of `top`.
#[derive(Args)]
pub struct TopArgs {
    /// Print one table, over one interval, and exit
    #[arg(long)]
    once: bool,
    /// Interval between two updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    #[command(flatten)]
    at: Named,
}

impl TopArgs {
    /// Prints rates until a signal ends the command. As JSON, prints the totals since the start of the server once.
    pub fn run(self, form: Form) -> Result {
        if self.interval < INTERVAL_MIN {
            fail!(Usage, "--interval {:?} is too short; at least {INTERVAL_MIN:?}", self.interval);
        }
        let client = self.at.at().one()?;
        let mut before = client.get(&routes::TOP)?;
        if form == Form::Json {
            return form.print(&before, String::new);
        }
        let in_place = std::io::stdout().is_terminal() && !self.once;
        let mut lines = 0;
        loop {
            std::thread::sleep(self.interval);
            let now = client.get(&routes::TOP)?;
            let mut text = String::new();
            if in_place && lines > 0 {
                // Move to the start of the last table, and clear it.
                let _ = write!(text, "\x1b[{lines}A\x1b[J");
            }
            let table = table(&before, &now);
            let table = out::escaped(&table);
            lines = table.lines().count();
            if in_place {
                // A long line is truncated. If it wrapped, it would take two lines, and the next move would go up too
                // few.
                let _ = write!(text, "\x1b[?7l{table}\x1b[?7h");
            } else {
                text.push_str(&table);
            }
            out::print_raw(&text)?;
            if self.once {
                return Ok(Exit::Ok);
            }
            before = now;
        }
    }
}

fn table(before: &Top, now: &Top) -> String {
    let seconds = now.clock_us.saturating_sub(before.clock_us).max(1) as f64 / 1e6;
    let mut title = vec!["DEVICE".to_owned(), "KIND".to_owned()];
    title.extend(OpKind::ALL.iter().map(|verb| format!("{verb}/s")));
    title.extend(["MiB/s", "IN FLIGHT", "ERRORS"].map(str::to_owned));
    let mut rows = vec![title];
    for row in &now.rows {
        let was = before.rows.iter().find(|was| was.name == row.name);
        rows.push(cells(row, was.and_then(|was| was.counts.as_ref()), seconds));
    }
    columns("<<>>>>>>>>>", &rows)
}

fn cells(row: &TopRow, was: Option<&Counts>, seconds: f64) -> Vec<String> {
    let name = match &row.fused[..] {
        [] => row.name.clone(),
        fused => format!("{} + {}", row.name, fused.join(" + ")),
    };
    let mut cells = vec![name, row.kind.clone()];
    let Some(now) = &row.counts else {
        cells.extend(std::iter::repeat_n("-".to_owned(), OpKind::ALL.len() + 3));
        return cells;
    };
    let none = Counts::default();
    let was = was.unwrap_or(&none);
    for verb in OpKind::ALL {
        let ops = of(&now.ops, verb).saturating_sub(of(&was.ops, verb));
        cells.push(format!("{:.0}", ops as f64 / seconds));
    }
    // A block status request moves no bytes.
    let moved = |counts: &Counts| -> u64 {
        let verbs = OpKind::ALL.into_iter().filter(|verb| *verb != OpKind::Status);
        verbs.map(|verb| of(&counts.bytes, verb)).sum()
    };
    let bytes = moved(now).saturating_sub(moved(was));
    cells.push(format!("{:.1}", bytes as f64 / seconds / f64::from(1 << 20)));
    cells.push(now.in_flight.to_string());
    cells.push(now.errors.to_string());
    cells
}

fn of(counts: &std::collections::BTreeMap<String, u64>, verb: OpKind) -> u64 {
    counts.get(verb.name()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(clock_us: u64, reads: u64) -> Top {
        let counts = Counts {
            ops: [("read".to_owned(), reads)].into(),
            bytes: [("read".to_owned(), reads * 4096)].into(),
            errors: 2,
            in_flight: 5,
        };
        let run = TopRow {
            name: "vol".into(),
            kind: "stripe".into(),
            fused: vec!["part-a".into(), "part-b".into()],
            counts: Some(counts),
        };
        let hook = TopRow { name: "t".into(), kind: "trace".into(), fused: vec![], counts: None };
        Top { graph: "g".into(), clock_us, rows: vec![run, hook] }
    }

    #[test]
    fn top_table_shows_request_rates_over_interval() {
        let text = table(&top(1_000_000, 1000), &top(3_000_000, 3000));
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = "vol + part-a + part-b stripe 1000 0 0 0 0 0 3.9 5 2";
        assert_eq!(row.join(" "), expected);
        assert!(text.lines().nth(2).unwrap().ends_with('-'));
    }
}
