//! Checks the links of documents: every document links to the glossary, and links lead to existing files.
#![allow(clippy::disallowed_methods, reason = "it reads the documents of this workspace")]

use std::path::{Component, Path, PathBuf};

/// Documents that need no link to the glossary: the glossary itself.
const WITHOUT_GLOSSARY: &[&str] = &["docs/glossary.md"];

/// Returns the targets of all links of a document to files, without the part behind `#`. Skips blocks of code.
fn links(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (n, prose) in text.split("```").enumerate() {
        if n % 2 == 1 {
            continue;
        }
        for rest in prose.split("](").skip(1) {
            let (target, _) = rest.split_once(')').expect("a link ends with a parenthesis");
            let (path, _) = target.split_once('#').unwrap_or((target, ""));
            if !path.is_empty() && !path.contains(':') {
                targets.push(path.to_owned());
            }
        }
    }
    targets
}

/// Returns the path of a link's target with its parts `.` and `..` resolved.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                assert!(plain.pop(), "the link {} leads out of the workspace", path.display())
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Returns the path of each document, relative to the workspace's root, and the paths of the files that it links to.
fn linked() -> Vec<(PathBuf, Vec<PathBuf>)> {
    let root = house::root();
    let linked = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(&root).unwrap().to_owned();
        let folder = path.parent().unwrap();
        let targets = links(&text).iter().map(|target| plain(&folder.join(target))).collect();
        (path, targets)
    };
    let all: Vec<_> = house::documents().into_iter().map(linked).collect();
    assert!(all.len() > 20, "only {} documents were found: is this the right place?", all.len());
    all
}

#[test]
fn every_document_links_to_glossary() {
    let glossary = Path::new("docs/glossary.md");
    for (path, targets) in linked() {
        let is_exception = WITHOUT_GLOSSARY.iter().any(|name| path == Path::new(name));
        let has_link = targets.iter().any(|target| target == glossary);
        assert_ne!(
            has_link,
            is_exception,
            "{}: a document must link to {}, unless the document is an exception",
            path.display(),
            glossary.display()
        );
    }
}

#[test]
fn document_links_lead_to_existing_files() {
    let mut missing = Vec::new();
    let mut count = 0;
    for (path, targets) in linked() {
        count += targets.len();
        let lost = targets.iter().filter(|target| !house::root().join(target).exists());
        missing.extend(lost.map(|target| format!("{}: {}", path.display(), target.display())));
    }
    assert!(count > 50, "only {count} links were found: is the search right?");
    assert!(missing.is_empty(), "links to files that do not exist: {missing:#?}");
}

#[test]
fn document_link_search_skips_code_and_web_pages() {
    let text =
        "[a](one.md) [b](two.md#part)\n```\n[c](three.md)\n```\n[d](https://x.org) [e](#here)";
    assert_eq!(links(text), ["one.md", "two.md"]);
}
