//! A tree of text for the terminal.

use crate::out::columns;

/// A line of a tree, and the lines below it.
pub struct Branch {
    /// Name in the first column.
    pub name: String,
    /// Facts in the second column.
    pub facts: String,
    /// The lines below it.
    pub below: Vec<Branch>,
}

impl Branch {
    /// Creates a line that says how much a picture leaves out.
    pub fn left_out(words: String) -> Self {
        Self { name: words, facts: String::new(), below: Vec::new() }
    }
}

/// Returns the picture of `roots`, one line for each branch.
pub fn tree(roots: &[Branch]) -> String {
    let mut rows = Vec::new();
    roots.iter().for_each(|root| draw(&mut rows, root, "", ""));
    columns("<<", &rows)
}

/// Draws a branch and those below it. `first` is in front of its line, `rest` in front of all further ones.
fn draw(rows: &mut Vec<Vec<String>>, branch: &Branch, first: &str, rest: &str) {
    // One blank more before the second column makes the names stand out.
    rows.push(vec![format!("{first}{} ", branch.name), branch.facts.clone()]);
    for (n, below) in branch.below.iter().enumerate() {
        let is_last = n + 1 == branch.below.len();
        let (line, stem) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        draw(rows, below, &format!("{rest}{line}"), &format!("{rest}{stem}"));
    }
}
