//! The exit codes of verbs, in the words of the document that describes them.

use super::text::{Text, cells};
use super::verbs::VERBS;
use crate::exit::Exit;

/// The document with the table of all exit codes.
const DOCUMENT: &str = include_str!("../../../../docs/exit-codes.md");

/// Exit codes that any verb may end with: it reads its arguments and files, and prints a result.
pub const COMMON: [Exit; 6] =
    [Exit::Ok, Exit::Other, Exit::Usage, Exit::NoSpace, Exit::Denied, Exit::Io];

/// All exit codes.
pub const ALL: [Exit; 13] = [
    Exit::Ok,
    Exit::Other,
    Exit::Usage,
    Exit::Spec,
    Exit::NotFound,
    Exit::InUse,
    Exit::NoSpace,
    Exit::Denied,
    Exit::Io,
    Exit::Unsupported,
    Exit::Degraded,
    Exit::Damaged,
    Exit::Unflushed,
];

/// Adds the section about the exit codes of a verb, or of all verbs.
pub fn section(text: &mut Text, verb: Option<&str>, exits: &[Exit]) {
    text.section("EXIT STATUS");
    let mut table = DOCUMENT.lines().filter(|line| line.starts_with("| ")).map(cells);
    for exit in ALL.iter().filter(|exit| exits.contains(exit)) {
        let code = exit.code().to_string();
        let row =
            table.find(|row| row[0] == code).expect("the document has each exit code in order");
        let examples = row.get(2).map(|examples| examples_of(examples, verb)).unwrap_or_default();
        let separator = if examples.is_empty() { "" } else { ": " };
        text.entry(&code, &format!("{}{separator}{examples}", row[1]));
    }
    let (_, notes) = DOCUMENT.rsplit_once("|\n").expect("the document has text after the table");
    let notes = notes.trim().lines().collect::<Vec<_>>().join(" ");
    let notes =
        notes.split_inclusive(". ").filter(|note| verb.is_none_or(|verb| is_about(note, verb)));
    let notes: String = notes.collect();
    if !notes.is_empty() {
        text.paragraph(notes.trim());
    }
}

/// Returns the examples of an exit code without those that begin with the names of other verbs.
fn examples_of(examples: &str, verb: Option<&str>) -> String {
    let is_kept = |part: &&str| {
        let first = part.strip_prefix('`').and_then(|part| part.split(['`', ' ']).next());
        let is_of_verb = first.is_some_and(|first| VERBS.iter().any(|page| page.verb == first));
        !is_of_verb || verb.is_none_or(|verb| is_about(part, verb))
    };
    examples.split("; ").filter(is_kept).collect::<Vec<_>>().join("; ")
}

/// Whether a text names the verb in backticks.
fn is_about(text: &str, verb: &str) -> bool {
    let words = text.split('`').skip(1).step_by(2);
    words.into_iter().any(|word| word.split(' ').next() == Some(verb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_document_lists_every_code_in_order() {
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| ")).map(cells).skip(1);
        let codes: Vec<_> = rows.filter_map(|row| row[0].parse::<u8>().ok()).collect();
        assert_eq!(codes, ALL.map(Exit::code));
        assert_eq!(codes.len(), Exit::Unflushed as usize + 1);
    }

    #[test]
    fn exit_status_of_verb_leaves_out_examples_of_other_verbs() {
        let of = |verb| {
            let mut text = Text::default();
            section(&mut text, Some(verb), &ALL);
            text.finish()
        };
        assert!(
            of("status").contains("the data are safe")
                && !of("serve").contains("the data are safe")
        );
        assert!(of("serve").contains("the status of the command"));
        assert!(!of("create").contains("the status of the command"));
        assert!(of("status").contains("over several graphs"));
        assert!(of("create").contains("a path that exists already"));
    }
}
