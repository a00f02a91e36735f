//! Compares the schemas in `docs/api/openapi.json` with the JSON of the API's requests and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use api::*;
use block::control::{Nothing, volume};
use kinds::vdisks::*;

fn document() -> Value {
    serde_json::from_str(include_str!("../../../docs/api/openapi.json")).unwrap()
}

/// Returns the first mismatch between a JSON value and its schema, with the path of the wrong part in the value.
fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        let target = document["components"]["schemas"].get(name);
        let Some(target) = target else { return Some(format!("{at}: there is no {name}")) };
        return misfit(document, target, value, at);
    }
    if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
        // Each part knows only its own fields. Together they must know all of them.
        let known: BTreeSet<String> =
            all.iter().flat_map(|part| fields(document, part, value)).collect();
        let unknown = value.as_object().unwrap().keys().find(|key| !known.contains(*key));
        return unknown.map(|key| format!("{at}: {key} is not described"));
    }
    if let Some(some) = schema.get("oneOf").and_then(Value::as_array) {
        let fits = some.iter().any(|part| misfit(document, part, value, at).is_none());
        return (!fits).then(|| format!("{at}: {value} is none of those described"));
    }
    if let Some(constant) = schema.get("const") {
        return (constant != value).then(|| format!("{at}: {value} is not {constant}"));
    }
    if schema.get("enum").is_some_and(|all| !all.as_array().unwrap().contains(value)) {
        return Some(format!("{at}: {value} is none of those described"));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&json!(is)) {
        return Some(format!("{at}: {value} is of none of the types {types:?}"));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(n, item)| misfit(document, &schema["items"], item, &format!("{at}/{n}"))),
        Value::Object(entries) => object(document, schema, entries, at),
        _ => None,
    }
}

fn object(
    document: &Value,
    schema: &Value,
    entries: &serde_json::Map<String, Value>,
    at: &str,
) -> Option<String> {
    if let Some(each) = schema.get("additionalProperties") {
        if *each == json!(true) {
            return None;
        }
        let mut values = entries.iter();
        return values.find_map(|(key, it)| misfit(document, each, it, &format!("{at}/{key}")));
    }
    let properties = schema["properties"].as_object().unwrap();
    if let Some(key) = properties.keys().find(|key| !entries.contains_key(*key)) {
        return Some(format!("{at}: {key} is described, and is not there"));
    }
    entries.iter().find_map(|(key, value)| match properties.get(key) {
        Some(schema) => misfit(document, schema, value, &format!("{at}/{key}")),
        None => Some(format!("{at}: {key} is not described")),
    })
}

/// Returns the names of the fields that the schema `part` of an `allOf` schema defines for `value`.
fn fields(document: &Value, part: &Value, value: &Value) -> Vec<String> {
    let part = match part.get("$ref").and_then(Value::as_str) {
        Some(name) => &document["components"]["schemas"][name.rsplit('/').next().unwrap()],
        None => part,
    };
    let known = |part: &Value| -> Vec<String> {
        part["properties"].as_object().unwrap().keys().cloned().collect()
    };
    match part.get("oneOf").and_then(Value::as_array) {
        Some(some) => {
            let is_it = |one: &&Value| one["properties"]["do"]["const"] == value["do"];
            some.iter().find(is_it).map(known).unwrap_or_default()
        }
        None => known(part),
    }
}

fn of<T: Serialize>(name: &'static str, value: &T) -> (&'static str, Value) {
    (name, serde_json::to_value(value).unwrap())
}

/// Returns an example of each API type in JSON, with the name of the type. Every optional field is present.
fn examples() -> Vec<(&'static str, Value)> {
    let text = || "x".to_owned();
    let names = || vec![text()];
    let attached = Attached {
        name: text(),
        export: text(),
        path: text(),
        device: Some(text()),
        has_resend: true,
        notes: names(),
    };
    let sound = Soundness::Sound;
    let checked_disk = CheckedDisk { name: text(), place: text(), change: 1, to_renew: true };
    let checked_device = CheckedDevice { name: text(), kind: text(), words: text() };
    let finding = Finding { soundness: sound, name: Some(text()), words: text(), next: text() };
    let checked = Checked {
        graph: text(),
        uuid: text(),
        change: 1,
        soundness: sound,
        disks: vec![checked_disk.clone()],
        kept: vec![checked_device.clone()],
        findings: vec![finding.clone()],
    };
    let forgotten = ForgottenDisk { name: text(), uuid: text() };
    let past = PastSpec {
        change: 1,
        until_unix_s: 3,
        then: names(),
        text: text(),
        forgotten: vec![forgotten.clone()],
    };
    let problem = Problem::new(1, text());
    let kept = KeptGraph {
        name: text(),
        phase: Phase::GivenUp,
        since_unix_s: 1,
        pid: Some(1),
        starts: 1,
        held: 1,
        problem: Some(problem.clone()),
    };
    let progress = Progress { done_bytes: 1, all_bytes: 2, of_bytes: 3 };
    let difference = Difference { start_bytes: 1, len_bytes: 1, outvoted: vec![text()] };
    let scrub = Scrub {
        progress: Some(progress),
        is_repairing: true,
        since_unix_s: Some(1),
        ended_unix_s: None,
        differing_blocks: 1,
        block_bytes: 512,
        differences: vec![difference.clone()],
        repaired_blocks: 1,
        unreadable: 1,
    };
    let room = SpaceUse { taken_bytes: 1, of_bytes: 1 };
    let member = Member {
        name: text(),
        state: MemberState::Copying,
        errors: 1,
        cause: Some(block::control::Cause::Request),
        detail: text(),
        since_unix_s: Some(1),
        progress: Some(progress),
    };
    let device = DeviceStatus {
        name: text(),
        kind: text(),
        health: Health::Degraded,
        summary: text(),
        members: vec![member.clone()],
        counters: BTreeMap::from([(text(), 1)]),
        errors: 1,
        next: Some(text()),
        scrub: Some(scrub.clone()),
        room: Some(room),
        rows: vec![StatusRow { name: text(), value: text() }],
    };
    let job = Job {
        number: 1,
        device: text(),
        kind: text(),
        work: block::Job {
            task: text(),
            what: text(),
            is_reversed: false,
            state: JobState::Running,
            detail: text(),
            progress,
        },
    };
    let event = EventLine {
        number: 1,
        at_unix_s: 1,
        event: text(),
        graph: text(),
        device: text(),
        member: None,
        words: text(),
    };
    let insert = DiskChange::Insert(PathBuf::from("/"));
    let disk = DiskRequest {
        of: text(),
        member: text(),
        change: insert.clone(),
        directory: PathBuf::from("/"),
        wipe: true,
        dry_run: true,
    };
    let pause = JobRequest { job: text(), command: JobCommand::Pause, dry_run: true };
    let status = Status {
        graph: text(),
        pid: 1,
        health: Health::Ok,
        connections: 1,
        served: 1,
        devices: vec![device.clone()],
        attached: vec![attached.clone()],
        kept: Some(kept.clone()),
    };
    let node = NodeView {
        name: text(),
        kind: text(),
        power: Power::Table,
        lowers: names(),
        size_bytes: 1,
        block_size_bytes: 1,
        read_only: true,
        words: text(),
        health: Health::Failed,
        member: Some(MemberState::Stale),
    };
    let export = ExportView {
        name: text(),
        on: text(),
        size_bytes: 1,
        block_size_bytes: 1,
        read_only: true,
        uris: names(),
        attached: None,
    };
    let volume = VolumeView {
        name: text(),
        size_bytes: 1,
        read_only: true,
        is_open: true,
        uris: names(),
        attached: Some(text()),
    };
    let volumes = VolumePage { volumes: vec![volume.clone()], has_more: true };
    let (nodes, exports) = (vec![node.clone()], vec![export.clone()]);
    let graph = GraphView { name: text(), pid: Some(1), nodes, exports };
    let map = || BTreeMap::from([(text(), 1)]);
    let counts = Counts { ops: map(), bytes: map(), errors: 1, in_flight: 1 };
    let row = TopRow { name: text(), kind: text(), fused: names(), counts: Some(counts.clone()) };
    let place = |below| LocateStep {
        name: text(),
        kind: text(),
        offset_bytes: 1,
        label_bytes: 1,
        path: Some(text()),
        path_offset_bytes: Some(1),
        how: text(),
        below,
    };
    let change = ChangeLine { verb: text(), name: text(), words: text() };
    let command = CommandRequest { device: text(), verb: text(), args: json!({"do": "list"}) };
    let spec = GraphSource::Spec {
        file: text(),
        text: text(),
        variables: BTreeMap::from([(text(), text())]),
    };
    let labels = GraphSource::Labels {
        text: text(),
        disks: BTreeMap::from([(text(), (text(), text()))]),
        keys: BTreeMap::from([(text(), text())]),
        options: BTreeMap::from([(text(), BTreeMap::from([(text(), text())]))]),
    };
    let up = |source| UpRequest {
        name: text(),
        directory: PathBuf::from("/"),
        source,
        read_only: true,
        degraded: true,
        listen: names(),
        insecure: true,
        wipe: names(),
        trust: names(),
        take: true,
        accept_loss: true,
        keys: BTreeMap::from([(text(), PathBuf::from("/"))]),
    };
    let way = || ChangeWay {
        directory: PathBuf::from("/"),
        wipe: names(),
        move_bytes: true,
        speed_bytes: Some(1),
        dry_run: true,
    };
    let apply = ApplyRequest {
        file: text(),
        text: text(),
        variables: BTreeMap::from([(text(), text())]),
        way: way(),
    };
    let view = DaemonView { pid: 1, state: PathBuf::from("/"), graphs: vec![kept.clone()] };
    let attach =
        AttachRequest { export: text(), name: Some(text()), by: Some(Means::Fuse), dry_run: true };
    let top = Top { graph: text(), clock_us: 1, rows: vec![row.clone()] };
    let applied = Applied { graph: text(), changes: vec![change.clone()], notes: names() };
    vec![
        of("Attached", &attached),
        of("Problem", &problem),
        of("KeptGraph", &kept),
        of("Progress", &progress),
        of("MemberStatus", &member),
        of("DeviceStatus", &device),
        of("StatusRow", &device.rows[0]),
        of("Status", &status),
        of("NodeView", &node),
        of("ExportView", &export),
        of("VolumeView", &volume),
        of("VolumePage", &volumes),
        of("GraphView", &graph),
        of("Counts", &counts),
        of("TopRow", &row),
        of("Top", &top),
        of("LocateStep", &place(vec![place(Vec::new())])),
        of("SpecText", &SpecText { name: text(), text: text() }),
        of("AttachRequest", &attach),
        of("DetachRequest", &DetachRequest { name: text(), dry_run: true }),
        of("MemberRequest", &MemberRequest { of: text(), member: text(), dry_run: true }),
        of("CommandRequest", &command),
        of("ApplyRequest", &apply),
        of("Soundness", &sound),
        of("CheckedDisk", &checked_disk),
        of("CheckedDevice", &checked_device),
        of("Finding", &finding),
        of("Checked", &checked),
        of("ForgottenDisk", &forgotten),
        of("PastSpec", &past),
        of("History", &History { graph: text(), change: 2, past: vec![past.clone()] }),
        of(
            "UndoRequest",
            &UndoRequest {
                to: Some(1),
                disks: BTreeMap::from([(text(), (text(), text()))]),
                keys: BTreeMap::from([(text(), text())]),
                options: BTreeMap::from([(text(), BTreeMap::from([(text(), text())]))]),
                way: way(),
            },
        ),
        of("ResizeRequest", &ResizeRequest { disk: text(), size_bytes: None, dry_run: true }),
        of("Applied", &applied),
        of("ChangeLine", &change),
        of("DaemonView", &view),
        of("UpRequest", &up(spec.clone())),
        of("UpRequest", &up(labels)),
        of("GraphSource", &spec),
        of("KeptName", &KeptName { name: text() }),
        of("Health", &Health::Degraded),
        of("Power", &Power::Hooks),
        of("Means", &Means::Nbd),
        of("Phase", &Phase::Up),
        of("ScrubStatus", &scrub),
        of("SpaceUse", &room),
        of("Difference", &difference),
        of(
            "ScrubRequest",
            &ScrubRequest {
                of: text(),
                stop: true,
                repair: true,
                trust: Some(text()),
                dry_run: true,
            },
        ),
        of("DiskRequest", &disk),
        of("DiskChange", &insert),
        of("DiskChange", &DiskChange::Remove),
        of("EventLine", &event),
        of("Job", &job),
        of("JobState", &JobState::Stopped),
        of("JobCommand", &JobCommand::Cancel),
        of("JobRequest", &pause),
    ]
    .into_iter()
    .chain(examples_of_volumes())
    .collect()
}

/// Returns an example of each message of the routes for volumes.
fn examples_of_volumes() -> Vec<(&'static str, Value)> {
    let text = || "x".to_owned();
    let names = || vec![text()];
    let dry_run = true;
    let vdisk = VdiskView {
        name: text(),
        size_bytes: 1,
        origin: Some(text()),
        made_unix_s: 1,
        taking: Taking::EveryUs(1),
        keep_last: 1,
        keep_interval_s: 1,
        own_bytes: 1,
        unfound_bytes: 1,
        snapshot_bytes: 1,
        map_bytes: 1,
        quota_bytes: 1,
    };
    let snapshot = SnapshotView {
        number: 1,
        label: Some(text()),
        size_bytes: 1,
        taken_unix_us: 1,
        clones: 1,
        alone_bytes: 1,
    };
    let snapshots = SnapshotArgs { vdisks: names(), label: None, is_async: true, dry_run };
    let keep = KeepArgs { vdisk: text(), last: 1, interval_s: 1, once: true, dry_run };
    let data = DataCount { own_bytes: 1, inherited_bytes: 1, next_bytes: Some(1) };
    let taking = Taking::WithFlush;
    vec![
        of("Nothing", &Nothing {}),
        of("VolumeSize", &volume::Size { name: text(), size_bytes: 1, dry_run }),
        of("VolumeToRemove", &volume::Name { name: text(), dry_run }),
        of("RemovedVolume", &volume::Removed { dependants: 1 }),
        of("SnapshotArgs", &snapshots),
        of("Snapshots", &Snapshots { numbers: vec![1] }),
        of("CloneArgs", &CloneArgs { of: text(), names: names(), dry_run }),
        of("RollBackArgs", &RollBackArgs { to: text(), dry_run }),
        of("RolledBack", &RolledBack { taken: Some(1) }),
        of("LabelArgs", &LabelArgs { snapshot: text(), label: Some(text()), dry_run }),
        of("Taking", &Taking::ByCommand),
        of("Taking", &Taking::WithWrite),
        of("TakingArgs", &TakingArgs { vdisk: text(), taking, dry_run }),
        of("KeepArgs", &keep),
        of("Thinned", &Thinned { removed: 1 }),
        of("QuotaArgs", &QuotaArgs { vdisk: text(), quota_bytes: 1, dry_run }),
        of("Vdisks", &Vdisks { vdisks: vec![vdisk.clone()] }),
        of("VdiskView", &vdisk),
        of("DataCount", &data),
        of("SnapshotPage", &SnapshotPage { snapshots: vec![snapshot.clone()] }),
        of("SnapshotView", &snapshot),
    ]
}

#[test]
fn openapi_schemas_match_sent_types() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let examples = examples();
    for (name, example) in &examples {
        let schema = schemas.get(*name).unwrap_or_else(|| panic!("{name} is not described"));
        assert_eq!(misfit(&document, schema, example, name), None);
    }
    let shown: BTreeSet<&str> = examples.iter().map(|(name, _)| *name).collect();
    let described: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(shown, described);
}

#[test]
fn openapi_comparison_finds_value_that_violates_schema() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let fits = |name: &str, value: Value| misfit(&document, &schemas[name], &value, name).is_none();
    assert!(fits("Problem", json!({"exit": 1, "message": ""})));
    assert!(!fits("Problem", json!({"exit": 1})));
    assert!(!fits("Problem", json!({"exit": "1", "message": ""})));
    assert!(!fits("Problem", json!({"exit": 1, "message": "", "more": 1})));
    assert!(!fits("Phase", json!("gone")));
    assert!(!fits("GraphSource", json!({"disk": {}})));
    assert!(!fits("CommandRequest", json!({"device": "", "verb": "", "more": 1, "args": {}})));
}
