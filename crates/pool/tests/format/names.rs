//! Names of vdisks and snapshots.

use block::ErrorKind;
use pool::name::{ExportName, Label, SnapshotRef, VdiskName, VersionName};
use proptest::prelude::*;

#[test]
fn pool_name_parses_vdisk_snapshot_and_clone() {
    let parse = |text: &str| {
        let name = ExportName::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(name.to_string(), text);
        let VersionName { vdisk, snapshot } = name.version;
        (name.pool, vdisk.as_str().to_owned(), snapshot.map(|snapshot| snapshot.to_string()))
    };
    let of = |vdisk: &str, snapshot: Option<&str>| {
        ("vms".to_owned(), vdisk.to_owned(), snapshot.map(str::to_owned))
    };
    assert_eq!(parse("vms/web"), of("web", None));
    assert_eq!(parse("vms/web@monday"), of("web", Some("monday")));
    assert_eq!(parse("vms/web@15"), of("web", Some("15")));
    assert_eq!(parse("vms/gold@v1+job17"), of("gold@v1+job17", None));
    assert_eq!(parse("vms/gold@v1+job17@2"), of("gold@v1+job17", Some("2")));
    assert_eq!(parse("vms/a@b+c@d+e"), of("a@b+c@d+e", None));
}

#[test]
fn clone_name_leads_to_its_origin() {
    let origin = |text: &str| {
        let origin = VdiskName::parse(text).unwrap().origin();
        origin.map(|(vdisk, snapshot)| (vdisk.to_string(), snapshot.to_string()))
    };
    assert_eq!(origin("gold"), None);
    assert_eq!(origin("gold@v1+job17"), Some(("gold".to_owned(), "v1".to_owned())));
    assert_eq!(origin("a@7+c@d+e"), Some(("a@7+c".to_owned(), "d".to_owned())));
}

#[test]
fn wrong_pool_name_error_states_value_limit_and_next_step() {
    let long = "x".repeat(65);
    let wrong = [
        ("web", "names no pool", "write POOL/VDISK"),
        ("vms/", "1 to 64 letters", "choose a name"),
        ("vms/-web", "begins with a letter or digit", "choose a name"),
        ("vms/a/b", "\"a/b\"", "leave out"),
        ("vms/a+b", "\"a+b\"", "leave out"),
        ("vms/a@", "\"\"", "choose a name"),
        ("vms/a@b+", "\"\"", "choose a name"),
        ("vms/a@b+c+d", "\"c+d\"", "leave out"),
        ("vms/a@b@c", "snapshot of the snapshot \"b\"", "clone it"),
        ("vms/a@07", "1 to 281474976710654, without zeros in front", "list the snapshots"),
        ("vms/a@0", "no number", "list the snapshots"),
        ("vms/a@281474976710655", "no number", "list the snapshots"),
        ("vms/a@99999999999999999999", "no number", "list the snapshots"),
        ("v\u{e9}/a", "name of a pool", "choose a name"),
    ];
    for (text, words, step) in wrong {
        let error = ExportName::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(error.message().contains(words), "{text}: {}", error.message());
        assert!(error.next_step().unwrap().contains(step), "{text}: {:?}", error.next_step());
    }
    let error = ExportName::parse(&format!("vms/{long}")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.message().contains("65 bytes; at most 64"), "{}", error.message());
    let half = "x".repeat(31);
    let most = format!("vms/{half}@v+{half}@monday");
    let longer = format!("vms/{half}@v+{half}y");
    assert!(ExportName::parse(&most).is_err(), "65 bytes");
    assert!(ExportName::parse(&longer).is_err(), "66 bytes");
    let fits = format!("vms/{}@v+{half}@monday", &half[1..]);
    assert!(ExportName::parse(&fits).is_ok(), "64 bytes before the snapshot");
}

#[test]
fn new_vdisk_and_label_take_one_part_alone() {
    for text in ["a@b", "a+b", "a/b", "a@b+c", ""] {
        assert!(VdiskName::parse_new(text).is_err(), "{text}");
        assert!(Label::parse(text).is_err(), "{text}");
    }
    assert!(VdiskName::parse_new("web").is_ok());
    assert!(VdiskName::parse("web@monday").unwrap_err().message().contains("is a snapshot"));
    assert!(Label::parse("15").unwrap_err().message().contains("digits alone"));
    assert_eq!(SnapshotRef::parse("15").unwrap(), SnapshotRef::Number(15));
    let label = Label::parse("2026-11-25").unwrap();
    assert_eq!(SnapshotRef::parse("2026-11-25").unwrap(), SnapshotRef::Label(label));
}

proptest! {
    #[test]
    fn pool_name_is_shown_as_it_was_parsed(
        pool in "[a-z0-9][a-z0-9._-]{0,20}", parts in proptest::collection::vec("[a-z0-9][a-z._-]{0,6}", 1..7),
    ) {
        let mut text = format!("{pool}/{}", parts[0]);
        for pair in parts[1..].chunks(2) {
            text.push_str(&format!("@{}", pair[0]));
            if let Some(clone) = pair.get(1) {
                text.push_str(&format!("+{clone}"));
            }
        }
        match ExportName::parse(&text) {
            Ok(name) => prop_assert_eq!(name.to_string(), text),
            // A part that consists of the digit 0 alone is no number.
            Err(_) => prop_assert!(text.contains("@0")),
        }
    }
}
