//! `cairn locate`: the position of a byte of an export on the disks.

use api::{Byte, LocateStep, routes};
use block::units::parse_size;
use clap::Args;

use crate::complete;
use crate::exit::Result;
use crate::out::{Form, columns};
use crate::running::At;

/// Arguments of `locate`.
#[derive(Args)]
pub struct LocateArgs {
    /// The export
    #[arg(add = complete::export())]
    export: String,
    /// The byte: 4096, 5GiB
    #[arg(value_parser = parse_size)]
    offset: u64,
    #[command(flatten)]
    at: At,
}

impl LocateArgs {
    /// Asks the running graph for the position of the byte, and prints the devices on the way to the disks.
    pub fn run(self, form: Form) -> Result {
        let (client, export) = self.at.owner_of_export(&self.export)?;
        let byte = Byte { export, offset: self.offset };
        let place = client.ask(&routes::LOCATE, &byte)?;
        form.print(&place, || {
            let mut text = format!("{} {} -> ", byte.export, sum(byte.offset));
            draw(&place, text.chars().count() - 3, &mut text);
            let mut files = Vec::new();
            on_files(&place, &mut files);
            text + &columns("<<<", &files)
        })
    }
}

/// Adds to `text` the way of a byte to the disks, in one line. Each further copy has a line of its own, below the
/// arrow at `column`.
fn draw(place: &LocateStep, column: usize, text: &mut String) {
    text.push_str(&place.name);
    let Some((first, others)) = place.below.split_first() else {
        let label = match place.label_bytes {
            0 => String::new(),
            bytes => format!(" + {} (label)", sum(bytes)),
        };
        text.push_str(&format!(": {}{label}\n", sum(place.offset_bytes)));
        return;
    };
    let mut width = place.name.chars().count();
    if !first.how.is_empty() {
        text.push_str(&format!(" ({})", first.how));
        width += first.how.chars().count() + 3;
    }
    // The next arrow comes after this name and a blank.
    let column = column + 3 + width + 1;
    text.push_str(" -> ");
    draw(first, column, text);
    for other in others {
        text.push_str(&format!("{:w$}`-> ", "", w = column - 1));
        draw(other, column, text);
    }
}

/// Adds to `rows` each disk below a place: its name, the path of its file or block device, and the byte there.
fn on_files(place: &LocateStep, rows: &mut Vec<Vec<String>>) {
    if let (Some(path), Some(offset)) = (&place.path, place.path_offset_bytes) {
        let row = vec![format!("  {}", place.name), path.clone(), format!("byte {offset}")];
        rows.extend((!rows.contains(&row)).then_some(row));
    }
    place.below.iter().for_each(|below| on_files(below, rows));
}

/// Returns the exact offset `bytes` as a sum of common units: `5 GiB + 1 MiB`.
fn sum(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let mut rest = bytes;
    let mut parts = Vec::new();
    for (name, shift) in units {
        if rest >> shift > 0 {
            parts.push(format!("{} {name}", rest >> shift));
            rest &= (1 << shift) - 1;
        }
    }
    if parts.is_empty() { "0 B".to_owned() } else { parts.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str, offset_bytes: u64, how: &str, below: Vec<LocateStep>) -> LocateStep {
        let (name, kind, how) = (name.into(), "k".into(), how.into());
        LocateStep {
            name,
            kind,
            offset_bytes,
            label_bytes: 0,
            path: None,
            path_offset_bytes: None,
            how,
            below,
        }
    }

    #[test]
    fn locate_draws_each_copy_below_arrow_of_device() {
        let a = place("a", (5 << 30) + (1 << 20), "mirrored", vec![]);
        let b = LocateStep { label_bytes: 1 << 20, ..place("b", 512, "mirrored", vec![]) };
        let both = place("both", 5 << 30, "", vec![a, b]);
        let safe = place("safe", 5 << 30, "", vec![both]);
        let mut text = "home 5 GiB -> ".to_owned();
        draw(&safe, text.chars().count() - 3, &mut text);
        assert_eq!(
            text,
            "home 5 GiB -> safe -> both (mirrored) -> a: 5 GiB + 1 MiB\n\
             \x20                                    `-> b: 512 B + 1 MiB (label)\n"
        );
    }

    #[test]
    fn locate_prints_exact_offset_in_units() {
        assert_eq!(sum(0), "0 B");
        assert_eq!(sum((1 << 40) + 4096 + 7), "1 TiB + 4 KiB + 7 B");
        assert_eq!(sum(u64::MAX), "16777215 TiB + 1023 GiB + 1023 MiB + 1023 KiB + 1023 B");
    }
}
