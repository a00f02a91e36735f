//! Text of manual pages in the language of roff, made from plain text and from Markdown.

use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Most bytes of a line in the source of a page, as far as words permit.
const LINE_BYTES: usize = 78;

/// Text of a manual page.
#[derive(Default)]
pub struct Text {
    roff: Roff,
    /// Whether nothing follows the last heading yet, which begins a paragraph by itself.
    begun: bool,
}

impl Text {
    /// Begins a section: `EXIT STATUS`.
    pub fn section(&mut self, title: &str) {
        self.roff.control("SH", [title]);
        self.begun = true;
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        self.roff.control("SS", [title]);
        self.begun = true;
    }

    /// Adds an entry of a list: a term in bold, and its description in Markdown below.
    pub fn entry(&mut self, term: &str, description: &str) {
        self.roff.control("TP", []);
        self.roff.text([bold(term)]);
        self.roff.text(inlines(description));
        self.begun = false;
    }

    /// Adds a paragraph in Markdown.
    pub fn paragraph(&mut self, text: &str) {
        if !self.begun {
            self.roff.control("PP", []);
        }
        self.roff.text(inlines(text));
        self.begun = false;
    }

    /// Adds lines that keep their spaces and ends.
    pub fn code(&mut self, lines: &str) {
        if !self.begun {
            self.roff.control("PP", []);
        }
        self.roff.control("RS", ["4"]);
        self.roff.control("EX", []);
        for line in lines.lines() {
            self.roff.text([roman(if line.is_empty() { EMPTY } else { line })]);
        }
        self.roff.control("EE", []);
        self.roff.control("RE", []);
        self.begun = false;
    }

    /// Adds a text in Markdown: paragraphs, lists, tables and blocks of code, without headings. Tables of options are
    /// left out, because a page has a section for options.
    pub fn markdown(&mut self, text: &str) {
        let mut lines = text.trim().lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with("```") {
                let code = lines.by_ref().take_while(|line| !line.starts_with("```"));
                let code: Vec<_> = code.collect();
                self.code(&code.join("\n"));
            } else if line.starts_with('|') {
                let header = cells(line);
                let mut rows = Vec::new();
                while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                    rows.push(cells(row));
                }
                if header[0] != "option" {
                    self.table(&rows[1..]);
                }
            } else if !line.trim().is_empty() {
                let mut whole = line.to_owned();
                let goes_on = |line: &&str| {
                    let is_new = ["- ", "|", "```"].iter().any(|start| line.starts_with(start));
                    !is_new && !line.trim().is_empty()
                };
                while let Some(more) = lines.next_if(goes_on) {
                    whole = format!("{whole} {}", more.trim());
                }
                match whole.strip_prefix("- ") {
                    Some(item) => self.item(item),
                    None => self.paragraph(&whole),
                }
            }
        }
    }

    fn item(&mut self, item: &str) {
        self.roff.control("IP", ["\\(bu", "2"]);
        self.roff.text(inlines(item));
        self.begun = false;
    }

    /// Adds the rows of a table as a list of entries. The first column has the terms.
    fn table(&mut self, rows: &[Vec<String>]) {
        for row in rows {
            let (term, others) = row.split_first().expect("a row of a table has a cell");
            let others: Vec<_> = others.iter().filter(|cell| !cell.is_empty()).cloned().collect();
            self.entry(&term.replace('`', ""), &others.join(": "));
        }
    }

    /// Returns the text in roff, without the definitions of a whole page.
    pub fn finish(&self) -> String {
        self.roff.render().replace(&definitions(), "")
    }
}

/// Returns the cells of a row of a table.
pub fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|');
    row.split(" | ").map(|cell| cell.trim().trim_matches('|').trim().to_owned()).collect()
}

/// Returns the sections of a document, by their headings of second level, without the text before the first one.
pub fn sections(document: &str) -> impl Iterator<Item = (&str, &str)> {
    document.split("\n## ").skip(1).map(|part| part.split_once('\n').unwrap_or((part, "")))
}

/// Returns a whole page from its parts, which have no definitions.
pub fn page<'p>(parts: impl IntoIterator<Item = &'p str>) -> String {
    let mut page = definitions();
    let (mut is_code, mut is_term) = (false, false);
    let parts: String = parts.into_iter().collect();
    // clap separates a list of values by an empty line between two breaks.
    for line in parts.replace(".br\n\n.br\n", ".sp\n").lines() {
        let is_text = !line.starts_with('.') && !is_code && !is_term;
        match line {
            ".EX" => is_code = true,
            ".EE" => is_code = false,
            _ => {}
        }
        // The term of a list is one line.
        is_term = line == ".TP";
        let line = portable(line);
        page.push_str(if is_text { wrapped(&line) } else { line }.trim_end());
        page.push('\n');
    }
    page
}

/// Returns the definitions at the start of a page.
pub fn definitions() -> String {
    Roff::new().render()
}

/// Returns a line of text with breaks between words.
fn wrapped(line: &str) -> String {
    let mut text = String::new();
    let mut bytes = 0;
    for word in line.trim_end().split(' ') {
        let is_full = bytes + word.len() >= LINE_BYTES && bytes > 0;
        match is_full {
            // A control character at the start of a line begins a request.
            true if word.starts_with(['.', '\'']) => text.push_str("\n\\&"),
            true => text.push('\n'),
            false if bytes > 0 => text.push(' '),
            false => {}
        }
        bytes = if is_full { word.len() } else { bytes + 1 + word.len() };
        text.push_str(word);
    }
    text
}

/// A line of code without text. roff would take an empty line for a break.
const EMPTY: &str = "\u{a0}";

/// Escapes characters that roff replaces by typographic ones, and those beyond ASCII.
fn portable(line: &str) -> String {
    if line == EMPTY {
        return "\\&".to_owned();
    }
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '~' => text.push_str("\\(ti"),
            '^' => text.push_str("\\(ha"),
            '`' => text.push_str("\\(ga"),
            c if c.is_ascii() => text.push(c),
            c => text.push_str(&format!("\\[u{:04X}]", u32::from(c))),
        }
    }
    text
}

/// Returns text in Markdown as parts of a line: code and strong text in bold, links as their text. Each sentence has a
/// line of its own in the source of the page.
fn inlines(text: &str) -> Vec<Inline> {
    let mut parts = Vec::new();
    for (n, part) in text.split('`').enumerate() {
        if n % 2 == 1 {
            parts.push(bold(part));
            continue;
        }
        for (n, part) in without_links(part).split("**").enumerate() {
            match n % 2 {
                0 => parts.push(roman(part.replace(". ", ".\n").replace('*', ""))),
                _ => parts.push(bold(part)),
            }
        }
    }
    parts.retain(|part| *part != roman("") && *part != bold(""));
    parts
}

/// Replaces each link `[text](target)` by its text. A text that is the path of a document begins at its directory.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (_, behind) = after.split_once(')').unwrap_or((after, ""));
        let (start, words) = before.rsplit_once('[').unwrap_or(("", before));
        plain.push_str(start);
        if words.ends_with(".md") {
            plain.push_str("docs/");
        }
        plain.push_str(words);
        rest = behind;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(markdown: &str) -> String {
        let mut text = Text::default();
        text.markdown(markdown);
        page([&*text.finish()]).replace(&definitions(), "")
    }

    #[test]
    fn manual_text_has_links_code_and_lists_of_markdown() {
        let page = rendered(
            "See [the page](a.md#b), [a.md](a.md) and\n`--at`. Then **stop**.\n\n- one\n  more\n- two\n",
        );
        assert_eq!(
            page,
            ".PP\nSee the page, docs/a.md and \\fB\\-\\-at\\fR.\nThen \\fBstop\\fR.\n\
             .IP \\(bu 2\none more\n.IP \\(bu 2\ntwo\n"
        );
    }

    #[test]
    fn manual_text_keeps_lines_of_code_and_rows_of_tables() {
        let page = rendered(
            "```\n.a ~ ^C\n\n  'b' …\n```\n\n| key | value |\n| --- | --- |\n| `k` | a | b |\n",
        );
        assert_eq!(
            page,
            ".PP\n.RS 4\n.EX\n\\&.a \\(ti \\(haC\n\\&\n  \\*(Aqb\\*(Aq \\[u2026]\n.EE\n.RE\n\
             .TP\n\\fBk\\fR\na: b\n"
        );
    }
}
