//! Finds the prose in comments and documents, and counts the words in it that plain language avoids.

use std::path::Path;

/// Words with which no sentence may begin, except for a question.
const NO_BEGINNINGS: [&str; 6] = ["what", "who", "whoever", "whose", "nobody", "somebody"];

/// Words and phrases that should be replaced by the noun of a component, or by a verb with one meaning.
const NO_PHRASES: [&str; 12] = [
    "whoever",
    "somebody",
    "nobody",
    "someone",
    "anyone",
    "no one",
    "that which",
    "the one that",
    "those who",
    "tell",
    "tells",
    "told",
];

/// The allowed uses of a phrase in [`NO_PHRASES`].
const PLAIN: [&str; 2] = ["tell apart", "tells apart"];

/// Returns the paragraphs of prose in a file: its comments, or the text of a document outside of fenced blocks and
/// tables.
pub fn paragraphs(path: &Path, text: &str) -> Vec<String> {
    let is_document = path.extension().is_some_and(|end| end == "md");
    let mut paragraphs = vec![String::new()];
    let mut fenced = false;
    for line in text.lines() {
        let line = line.trim();
        fenced ^= is_document && line.starts_with("```");
        let prose = match is_document {
            true => (!fenced && !line.starts_with("```")).then_some(line),
            false => comment(line),
        };
        match prose.filter(|prose| !prose.is_empty()) {
            Some(prose) => {
                let last = paragraphs.last_mut().expect("a paragraph has begun");
                last.push_str(prose);
                last.push(' ');
            }
            None => paragraphs.push(String::new()),
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Returns the text of a line comment without its slashes; `None` for a line of code.
fn comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Returns the number of words, phrases and sentence beginnings in a paragraph that plain language avoids.
pub fn marks(paragraph: &str) -> usize {
    let begun = sentences(paragraph).filter(|sentence| begins_badly(sentence)).count();
    let words: Vec<String> = paragraph.split_whitespace().map(plain).collect();
    let text = format!(" {} ", words.join(" "));
    let count = |phrase: &str| text.matches(&format!(" {phrase} ")).count();
    let used: usize = NO_PHRASES.iter().map(|phrase| count(phrase)).sum();
    let allowed: usize = PLAIN.iter().map(|phrase| count(phrase)).sum();
    begun + used - allowed
}

/// Returns a word without its punctuation, in lower case.
fn plain(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != '`').to_lowercase()
}

fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    paragraph.split_inclusive(['.', '?', '!', ':', ';', '|']).map(str::trim)
}

fn begins_badly(sentence: &str) -> bool {
    let first = sentence.split_whitespace().next().map(plain).unwrap_or_default();
    let is_capital = sentence.starts_with(char::is_uppercase);
    is_capital && !sentence.ends_with('?') && NO_BEGINNINGS.contains(&first.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_check_counts_each_word_that_is_not_plain() {
        assert_eq!(marks("The label names the machine that has the disk open."), 0);
        assert_eq!(marks("Whoever reads it waits. Somebody is told."), 5);
        assert_eq!(marks("What is new is copied."), 1);
        assert_eq!(marks("What is a label?"), 0);
        assert_eq!(marks("The reason helps to tell apart two disks."), 0);
    }

    #[test]
    fn prose_check_reads_comments_and_text_outside_of_fences() {
        let code = "/// One\n/// two.\nlet x = \"// no\";\n// Three.\n";
        assert_eq!(paragraphs(Path::new("a.rs"), code), ["One two. ", "Three. "]);
        let document = "# Title\n\nText.\n```\nnobody\n```\n";
        assert_eq!(paragraphs(Path::new("a.md"), document), ["# Title ", "Text. "]);
    }
}
