//! Runs the supervisor's fuzz targets over seeded inputs: damaged valid inputs, and random bytes.

mod bodies;

use std::collections::BTreeMap;
use std::path::PathBuf;

use supervisor::{NotifyMessage, Options, Record, Source};

#[test]
fn supervisor_record_parser_never_panics_on_mutated_input() {
    let text = "name = \"home\"\n[disk]\na = { memory = \"1MiB\" }\n".to_owned();
    let disks = BTreeMap::from([("a".to_owned(), ("file".to_owned(), "a.img".to_owned()))]);
    let record = Record {
        name: "home".to_owned(),
        directory: PathBuf::from("/srv"),
        source: Source::Labels {
            text: text.clone(),
            disks,
            keys: BTreeMap::new(),
            options: BTreeMap::from([("t".to_owned(), BTreeMap::new())]),
        },
        next: Some(Source::Spec { file: "x.toml".to_owned(), text, variables: BTreeMap::new() }),
        options: Options { degraded: true, ..Options::default() },
    };
    let whole = record.encode().unwrap();
    let mut counted = 0;
    testkit::smoke(&[whole], |input| {
        counted += u64::from(Record::decode(input).is_ok());
        bodies::state_record(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} were records", testkit::INPUTS);
}

#[test]
fn notify_message_parser_never_panics_on_mutated_input() {
    let whole = [
        b"FDSTORE=1\nFDNAME=attached/home/vol/1048576".to_vec(),
        NotifyMessage::last(4, "a is missing").into_bytes(),
    ];
    let mut counted = 0;
    testkit::smoke(&whole, |input| {
        counted += u64::from(NotifyMessage::parse(input) != NotifyMessage::default());
        bodies::keeper_words(input);
    });
    assert!(counted > testkit::INPUTS / 10, "{counted} of {} said something", testkit::INPUTS);
}
