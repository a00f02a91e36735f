//! Tests of the diagnosis of labels: which label is the newest, and when the label of a provisioning disk counts.

use std::collections::BTreeMap;

use super::*;

const GRAPH: Uuid = Uuid([9; 16]);

fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

/// Returns the text of a label's spec with the disks `disks`, given by their numbers.
fn spec(disks: &[u8]) -> String {
    let disk =
        |n: &u8| format!("\"d{n}\" = {{ uuid = \"{}\", size = 65536, block = 512 }}\n", uuid(*n));
    format!("name = \"g\"\n\n[disk]\n{}", disks.iter().map(disk).collect::<String>())
}

fn label(n: u8, provisioning: bool, epoch: u64, disks: &[u8]) -> DiskContent {
    let label = Box::new(Label {
        sequence: 1,
        epoch,
        broadcast: 0,
        acked_broadcast: 0,
        disk: uuid(n),
        disk_name: format!("d{n}"),
        graph: GRAPH,
        graph_name: "g".to_owned(),
        data_bytes: 65536,
        block_size: 512,
        written_unix_s: 0,
        holder: None,
        provisioning,
        spec: spec(disks),
        cells: BTreeMap::new(),
        past: Default::default(),
        unknown_read_only: 0,
    });
    DiskContent::Label(label, 0)
}

fn seen(sights: Vec<DiskContent>) -> Result<BTreeMap<String, Binding>, Vec<Case>> {
    let facts = |(n, content)| DiskFacts {
        name: format!("d{n}"),
        place: format!("/{n}"),
        content,
        size: 4 << 20,
        block_size: 512,
        read_only: false,
        lost: None,
    };
    let facts: Vec<_> = sights.into_iter().enumerate().map(facts).collect();
    let opening = Opening {
        machine: Machine::new("here", [1; 16]),
        degraded: false,
        wipe: Vec::new(),
        replaced: Vec::new(),
        grow: BTreeMap::new(),
        take: false,
        accept_loss: false,
        changes: false,
    };
    let (binding, findings) = identify("g", &facts, &opening);
    match findings.is_empty() {
        true => Ok(binding.disks),
        false => Err(findings.iter().map(|finding| finding.case).collect()),
    }
}

fn disks(bounds: Vec<Binding>) -> BTreeMap<String, Binding> {
    bounds.into_iter().enumerate().map(|(n, bound)| (format!("d{n}"), bound)).collect()
}

#[test]
fn diagnosis_binds_provisioning_disk_named_by_another_label() {
    let all = &[0, 1];
    let found = seen(vec![label(0, false, 2, all), label(1, true, 2, all)]);
    assert_eq!(found, Ok(disks(vec![Binding::Labelled(0), Binding::Labelled(1)])));
}

#[test]
fn diagnosis_treats_unnamed_provisioning_disk_as_fresh() {
    let found = seen(vec![label(0, false, 1, &[0]), label(1, true, 2, &[0, 1])]);
    assert_eq!(found, Ok(disks(vec![Binding::Labelled(0), Binding::Fresh(1)])));
    let all = &[0, 1];
    let found = seen(vec![label(0, true, 1, all), label(1, true, 1, all)]);
    assert_eq!(found, Ok(disks(vec![Binding::Fresh(0), Binding::Fresh(1)])));
}

#[test]
fn diagnosis_matches_provisioning_disk_by_label_not_path() {
    let all = &[0, 1];
    let found = seen(vec![label(1, true, 2, all), label(0, false, 2, all)]);
    assert_eq!(found, Ok(disks(vec![Binding::Labelled(1), Binding::Labelled(0)])));
}

#[test]
fn diagnosis_rejects_disk_of_another_interrupted_start() {
    let found = seen(vec![label(0, false, 2, &[0, 1]), label(7, true, 2, &[0, 7])]);
    assert_eq!(found, Err(vec![Case::Replaced]));
}

#[test]
fn diagnosis_reports_provisioning_disks_with_same_label_as_duplicates() {
    let all = &[0, 1, 2];
    let found = seen(vec![label(0, false, 2, all), label(1, true, 2, all), label(1, true, 2, all)]);
    assert!(found.unwrap_err().contains(&Case::Duplicate));
}

fn plain(n: u8, epoch: u64, broadcast: u64, sequence: u64) -> Label {
    let DiskContent::Label(label, _) = label(n, false, epoch, &[0, 1]) else { unreachable!() };
    Label { broadcast, sequence, ..*label }
}

#[test]
fn newest_label_has_highest_epoch_then_broadcast_then_low_uuid() {
    let by_epoch = [plain(0, 2, 1, 9), plain(1, 3, 0, 1)];
    assert_eq!(newest(&by_epoch).map(|label| label.disk), Some(uuid(1)));
    let by_broadcast = [plain(0, 2, 1, 9), plain(1, 2, 2, 1)];
    assert_eq!(newest(&by_broadcast).map(|label| label.disk), Some(uuid(1)));
    let by_uuid = [plain(1, 2, 1, 9), plain(0, 2, 1, 1)];
    assert_eq!(newest(&by_uuid).map(|label| label.disk), Some(uuid(0)));
}

#[test]
fn newest_label_includes_provisioning_disk_named_by_other_label() {
    let provisioning = |n| Label { provisioning: true, ..plain(n, 9, 9, 9) };
    let epoch = |labels: &[Label]| newest(labels).map(|label| label.epoch);
    assert_eq!(epoch(&[provisioning(7), plain(1, 2, 1, 1)]), Some(2));
    assert_eq!(epoch(&[provisioning(0), plain(1, 2, 1, 1)]), Some(9));
    assert_eq!(epoch(&[provisioning(0)]), None);
}

#[test]
fn diagnosis_reports_split_brain_for_different_specs_at_same_epoch() {
    let (one, mut two) = (plain(0, 2, 1, 1), plain(1, 2, 2, 1));
    assert!(split_brain(&two, [&one]).is_none());
    two.spec.push('\n');
    assert!(split_brain(&two, [&one]).is_some());
    two.epoch = 3;
    assert!(split_brain(&two, [&one]).is_none());
}

#[test]
fn diagnosis_reports_truncated_disk_open_on_another_host() {
    let DiskContent::Label(mut held, _) = label(0, false, 2, &[0]) else { unreachable!() };
    held.holder = Some(Machine::new("there", [2; 16]));
    // The facts of `seen` have 4 MiB.
    held.data_bytes = 8 << 20;
    let found = seen(vec![DiskContent::Label(held, 0)]);
    assert_eq!(found, Err(vec![Case::HeldByOtherHost, Case::Truncated]));
}

#[test]
fn label_findings_report_unknown_features_and_another_host() {
    let here = Machine::new("here", [1; 16]);
    let cases = |label: &Label| {
        let findings = label_findings("a", "/a", label, &here).into_iter();
        findings.map(|finding| (finding.case, finding.waived_by)).collect::<Vec<_>>()
    };
    let label = plain(0, 1, 1, 1);
    assert!(cases(&label).is_empty());
    let held = Label { holder: Some(Machine::new("there", [2; 16])), ..label.clone() };
    assert_eq!(cases(&held), [(Case::HeldByOtherHost, &[Waiver::Take][..])]);
    let renamed = Label { holder: Some(Machine::new("renamed", [1; 16])), ..label.clone() };
    assert!(cases(&renamed).is_empty(), "the id says which machine it is, not the name");
    let namesake = Label { holder: Some(Machine::new("here", [2; 16])), ..label.clone() };
    assert_eq!(cases(&namesake), [(Case::HeldByOtherHost, &[Waiver::Take][..])]);
    let newer = Label { unknown_read_only: 4, ..label };
    assert_eq!(cases(&newer), [(Case::Newer, &[Waiver::Wipe][..])]);
}
