//! Properties of the spec parser and of the parsers of sizes and durations, tested on random texts and numbers.

use block::units::{parse_duration, parse_share, parse_size, write_duration, write_size};
use graph::spec::{Severity, Spec};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

use super::kinds;
use super::plans::examples;

/// Pieces of the spec grammar with which mutations replace parts of an example, so that most of the text still parses.
const PIECES: [&str; 22] = [
    "",
    "\"",
    "{",
    "}",
    "[",
    "]",
    "=",
    ",",
    "\n",
    "$",
    "${",
    "d",
    "on",
    "kind",
    "\"rest\"",
    "-1",
    "18446744073709551615",
    "16777215TiB",
    "0",
    "512",
    "\u{df}",
    "[device]\n",
];

/// Generates the text of an example spec in which random parts are replaced.
fn mutated() -> impl Strategy<Value = String> {
    let examples = examples();
    let edit = (any::<prop::sample::Index>(), 0..12_usize, 0..PIECES.len());
    (0..examples.len(), vec(edit, 1..6)).prop_map(move |(which, edits)| {
        let mut text: Vec<char> = examples[which].1.chars().collect();
        for (at, removed, piece) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, PIECES[piece].chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any spec text is either planned, or rejected with faults. The faults are ordered by their positions in the text.
    #[test]
    fn random_spec_text_is_planned_or_reports_faults(text in prop_oneof![mutated(), any::<String>()]) {
        match kinds::plan(&Spec::parse(&text, "any.toml", &|_| None)) {
            Ok(planned) => {
                let summary = planned.summary();
                let is_described = match planned.exports.first() {
                    Some(export) => summary.starts_with(&export.name),
                    // A graph without exports has a device with volumes.
                    None => summary.contains("/  volumes"),
                };
                prop_assert!(is_described);
            }
            Err(faults) => {
                let positions: Vec<_> = faults.iter().map(|fault| fault.position()).collect();
                prop_assert!(positions.is_sorted());
                prop_assert!(faults.iter().any(|fault| fault.severity() == Severity::Error));
                let lines = text.split('\n').count() as u32;
                prop_assert!(positions.iter().all(|at| (1..=lines).contains(&at.line)));
            }
        }
    }

    #[test]
    fn written_sizes_and_durations_parse_to_same_values(bytes in any::<u64>(), shift in 0..64_u32) {
        let bytes = bytes >> shift;
        for bytes in [bytes, bytes << 10, bytes << 30] {
            prop_assert_eq!(parse_size(&write_size(bytes)), Ok(bytes));
            let time = Duration::from_nanos(bytes);
            prop_assert_eq!(parse_duration(&write_duration(time)), Ok(time));
        }
    }

    #[test]
    fn parse_size_of_fractions_is_exact(eighths in 0..1_u64 << 20, power in 1..=4_u32) {
        let unit = ["KiB", "MiB", "GiB", "TiB"][power as usize - 1];
        let text = format!("{}.{:03} {unit}", eighths / 8, eighths % 8 * 125);
        prop_assert_eq!(parse_size(&text), Ok((eighths << (10 * power)) / 8));
    }

    #[test]
    fn random_unit_text_parses_or_reports_error(text in "[-0-9.a-zA-Z%µ ]{0,12}") {
        let share = parse_share(&text);
        prop_assert!(share.is_err() || (0.0..=1.0).contains(&share.unwrap()));
        for error in [parse_size(&text).err(), parse_duration(&text).err()].into_iter().flatten() {
            prop_assert!(!error.is_empty());
        }
    }
}
