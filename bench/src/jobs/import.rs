//! Measures `cairn import`, which finds a graph from the labels of its disks alone.

use std::time::Instant;

use bench::stats::median;
use serde_json::json;

use crate::beside::disk;
use bench::ground::{Ground, Medium};
use bench::rows::Row;
use bench::served::Bed;

/// Number of disks of the imported graph.
const DISKS: usize = 64;

/// Number of disks that missed the last change of the graph.
const STALE: usize = 3;

/// Size of each disk in bytes.
const DISK_BYTES: u64 = 16 << 20;

/// Promised longest time of an import, in milliseconds.
const LONGEST_MS: f64 = 1000.0;

/// Measures the import of a graph of 64 disks, three of them stale, next to a disk of another graph and a copy of one
/// disk.
pub fn measure(ground: &Ground) -> Result<Vec<Row>, String> {
    let bed = Bed::new(&Medium::Disk.place(ground), "import")?;
    lay_out(&bed)?;
    let (mut listed_ms, mut up_ms) = (Vec::new(), Vec::new());
    for _ in 0..ground.rounds {
        let begun = Instant::now();
        let output = bed.command(&["import"])?.stdout(std::process::Stdio::piped()).output();
        listed_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        let list = String::from_utf8_lossy(&output.map_err(|error| error.to_string())?.stdout)
            .into_owned();
        let wanted = ["bench  64 disks, 64 found", "other  1 disk, 1 found"];
        if !wanted.iter().all(|words| list.contains(words)) {
            return Err(format!("cairn import does not say {wanted:?}: {list}"));
        }
        let begun = Instant::now();
        let mut served =
            bed.start(&["import", "bench", "--disk", "d9=twin.img", "--listen", "unix:nbd.sock"])?;
        ground.core.block_on(served.answers(&ground.core.env()))?;
        up_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        served.stop()?;
    }
    let worst = |ms: &[f64]| ms.iter().copied().fold(0.0, f64::max);
    let figure =
        |ms: &[f64]| format!("{:.0} ms at most, median {:.0} ms", worst(ms), median(ms).value);
    let row = |id: &str, title: &str, ms: &[f64]| Row {
        id: id.to_owned(),
        title: title.to_owned(),
        aim: format!("{LONGEST_MS:.0} ms"),
        figure: figure(ms),
        holds: Some(worst(ms) <= LONGEST_MS),
        rounds: json!(ms),
    };
    Ok(vec![
        row(
            "import-list",
            "64 labelled disks, 3 stale, 1 foreign, 1 twin: `cairn import`",
            &listed_ms,
        ),
        row("import-up", "the same: `cairn import NAME` to the first answer", &up_ms),
    ])
}

fn lay_out(bed: &Bed) -> Result<(), String> {
    let disks: String = (0..DISKS).map(|n| disk(&format!("d{n}"), DISK_BYTES)).collect();
    // Each disk that will become stale has a second copy in a mirror.
    let pairs: String = (0..STALE)
        .map(|n| format!("m{n} = {{ kind = \"mirror\", on = [\"d{n}\", \"d{}\"] }}\n", n + STALE))
        .collect();
    let pair = (0..STALE).map(|n| format!("\"m{n}\""));
    let names: Vec<_> = pair.chain((2 * STALE..DISKS).map(|n| format!("\"d{n}\""))).collect();
    let spec = |more: &str, on: &str| {
        format!(
            "[disk]\n{disks}[device]\n{pairs}all = {{ kind = \"concat\", on = [{}] }}\n{more}\
             [export]\nvol = {{ on = \"{on}\" }}\n",
            names.join(", ")
        )
    };
    let copy = |from: &str, to: &str| {
        let done = std::fs::copy(bed.path(from), bed.path(to));
        done.map(drop).map_err(|error| format!("{from}: {error}"))
    };
    bed.serve(&spec("", "all"))?.stop()?;
    for n in 0..STALE {
        copy(&format!("d{n}.img"), &format!("stale{n}"))?;
    }
    bed.serve(&spec("seen = { kind = \"pass\", on = \"all\" }\n", "seen"))?.stop()?;
    for n in 0..STALE {
        copy(&format!("stale{n}"), &format!("d{n}.img"))?;
        std::fs::remove_file(bed.path(&format!("stale{n}"))).map_err(|error| error.to_string())?;
    }
    copy("d9.img", "twin.img")?;
    let other =
        format!("[disk]\n{}[export]\nvol = {{ on = \"foreign\" }}\n", disk("foreign", DISK_BYTES));
    bed.serve_as("other", &other)?.stop()
}
