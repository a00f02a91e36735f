//! Checks plain language: the number of words to avoid in each file may only fall, and is zero for a new file.
#![allow(clippy::disallowed_methods, reason = "it reads the sources of this workspace")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use house::prose::{marks, paragraphs};

/// File with the allowed number of such words for each file. `UPDATE=1 cargo test -p cairn-house --test language`
/// updates the file after a number has fallen or a file got another name.
const ALLOWED: &str = "prose.txt";

fn counts() -> BTreeMap<String, usize> {
    let root = std::fs::canonicalize(house::root()).unwrap();
    let files = house::rust_files().into_iter().chain(house::documents());
    let files = files.chain(house::manuals());
    let count = files.map(|path| {
        let path = std::fs::canonicalize(path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (name, paragraphs(&path, &text).iter().map(|paragraph| marks(paragraph)).sum())
    });
    count.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn prose_of_workspace_uses_plain_words() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(ALLOWED);
    let counts = counts();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let row = |line: &str| {
        let (count, name) = line.split_once(' ').expect("a count and a name");
        (name.to_owned(), count.parse::<usize>().expect("a count"))
    };
    let allowed: BTreeMap<String, usize> = text.lines().map(row).collect();
    let total = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
    let worse =
        |(name, count): &(&String, &usize)| allowed.get(*name).is_none_or(|most| *count > most);
    let worse: Vec<_> = counts.iter().filter(worse).collect();
    if std::env::var_os("UPDATE").is_some() {
        let renamed = total(&counts) <= total(&allowed) || text.is_empty();
        assert!(
            renamed,
            "the sources have {} words that are not plain, more than the recorded {}: {worse:?}",
            total(&counts),
            total(&allowed)
        );
        let mut rows = String::new();
        counts.iter().for_each(|(name, count)| writeln!(rows, "{count} {name}").unwrap());
        return std::fs::write(path, rows).unwrap();
    }
    assert!(worse.is_empty(), "files have more words that are not plain than recorded: {worse:?}");
    assert_eq!(
        counts, allowed,
        "files have fewer words that are not plain than recorded: run this test once with UPDATE=1"
    );
}
