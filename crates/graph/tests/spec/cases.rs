//! Plans each spec `cases/NAME.toml`, and compares the output with `cases/NAME.txt`: the faults of the spec, or its
//! warnings and its summary. `CASES=write` writes the present output to these files; read them before a commit.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use graph::spec::{Planned, Spec};

use super::kinds;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec/cases")
}

/// Returns the names of the case files with this extension, without the extension.
fn names(extension: &str) -> BTreeSet<String> {
    let files = folder().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let chosen = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    chosen.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn variable(name: &str) -> Option<String> {
    (name == "SET").then(|| "set".to_owned())
}

/// Plans the spec `text`, and returns the output: its faults, or its warnings and its summary.
fn said(text: &str, file: &str) -> String {
    match kinds::plan(&Spec::parse(text, file, &variable)) {
        Err(faults) => format!("{faults}\n"),
        Ok(planned) => warned(&planned) + &planned.summary(),
    }
}

fn warned(planned: &Planned) -> String {
    planned.warnings.iter().fold(String::new(), |mut text, warning| {
        writeln!(text, "{warning}").unwrap();
        text
    })
}

#[test]
fn spec_cases_report_expected_faults_and_summaries() {
    let cases = names("toml");
    if std::env::var("CASES").is_ok_and(|what| what == "write") {
        for name in &cases {
            let path = folder().join(name);
            let text = std::fs::read_to_string(path.with_extension("toml")).unwrap();
            let mut file = std::fs::File::options();
            let file = file.write(true).create(true).truncate(true);
            #[allow(clippy::disallowed_methods, reason = "a test writes its own expectations")]
            let mut file = file.open(path.with_extension("txt")).unwrap();
            let said = said(&text, &format!("{name}.toml"));
            std::io::Write::write_all(&mut file, said.as_bytes()).unwrap();
        }
    }
    assert_eq!(cases, names("txt"), "a case for each expectation, an expectation for each case");
    let mut wrong = String::new();
    for name in &cases {
        let path = folder().join(name);
        let text = std::fs::read_to_string(path.with_extension("toml")).unwrap();
        let expected = std::fs::read_to_string(path.with_extension("txt")).unwrap();
        let said = said(&text, &format!("{name}.toml"));
        if said != expected {
            writeln!(wrong, "{name}: expected\n{expected}{name}: said\n{said}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
