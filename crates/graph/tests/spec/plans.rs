//! Tests of the plans that valid specs give, and of sizes and durations in specs.

use std::path::PathBuf;
use std::time::Duration;

use block::env::Address;
use block::units::{
    format_duration, format_exact, format_size, parse_size, write_duration, write_size,
};
use graph::spec::{Listen, Planned, Position, Role, Severity, Spec};
use kind::{Upper, Verified};

use super::kinds;

fn planned(text: &str) -> Planned {
    match kinds::plan(&Spec::parse(text, "test.toml", &|_| None)) {
        Ok(planned) => planned,
        Err(faults) => panic!("{faults}"),
    }
}

/// Returns the name and the text of each example spec in the folder `examples`.
pub fn examples() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let paths = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

fn example(name: &str) -> Planned {
    let (_, text) = examples().into_iter().find(|(found, _)| found == name).unwrap();
    planned(&text)
}

fn plain(path: &str) -> Listen {
    Listen { address: Address::Unix(path.into()), tls: false }
}

#[test]
fn example_specs_export_vol_on_socket() {
    let all = examples();
    assert_eq!(all.len(), 12);
    // The example of the demo has two exports, and the pool's has none: `tools/demo` runs both.
    let others = ["pool", "voila"];
    for (name, text) in all.into_iter().filter(|(name, _)| !others.contains(&&**name)) {
        let planned = planned(&text);
        assert_eq!(planned.listens, [plain("cairn.sock")], "{name}");
        assert_eq!(planned.exports.len(), 1, "{name}");
        assert_eq!(planned.exports[0].name, "vol", "{name}");
        assert!(planned.warnings.is_empty(), "{name}");
    }
}

#[test]
fn plan_expands_variables_in_example_spec() {
    let (_, text) = examples().into_iter().find(|(name, _)| name == "mirror").unwrap();
    let vars = |name: &str| match name {
        "SOCKET" => Some("/run/x.sock".to_owned()),
        "DIR" => Some("/data".to_owned()),
        "SIZE" => Some("3GiB".to_owned()),
        _ => None,
    };
    let planned = kinds::plan(&Spec::parse(&text, "examples/mirror.toml", &vars))
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(planned.name, "mirror");
    assert_eq!(planned.listens, [plain("/run/x.sock")]);
    assert_eq!(planned.nodes[0].given.text(&kinds::named("file")), Some("/data/a.img"));
    assert_eq!(planned.exports[0].info.size, 3 << 30);
    assert!(
        planned.summary().contains("survives the loss of 1 of 2 disks"),
        "{}",
        planned.summary()
    );
}

/// Returns the names of the devices through whose tables the byte at `offset` of a node is mapped, and the byte's
/// offset on the disk.
fn way(planned: &Planned, node: usize, offset: u64) -> (Vec<&str>, u64) {
    let (mut names, mut node, mut offset) = (Vec::new(), node, offset);
    while let Some(table) = &planned.nodes[node].table {
        names.push(planned.nodes[node].name.as_str());
        let byte = block::ByteRange::new(offset, 1).unwrap();
        let run = table.map_one(byte).unwrap();
        offset = run.range.start();
        node = planned.nodes[node].lowers[usize::from(run.port.0)];
    }
    (names, offset)
}

#[test]
fn plan_maps_every_byte_through_sixteen_tables() {
    let planned = example("tables16");
    let top = planned.exports[0].node;
    for offset in [0, 3 << 30, 7 << 30, planned.exports[0].info.size - 1] {
        let (names, place) = way(&planned, top, offset);
        assert_eq!(names.len(), 16, "{names:?}");
        assert_ne!(place, offset);
    }
    let starts = planned.nodes.iter().filter(|node| node.kind.name == "linear");
    let starts: Vec<u64> =
        starts.map(|node| node.given.size(&kinds::named("start")).unwrap() / 4096).collect();
    assert_eq!(starts, [1, 3, 5, 7, 9, 11, 13, 15]);
}

#[test]
fn plan_lists_lowers_before_uppers() {
    for (name, text) in examples() {
        for (index, node) in planned(&text).nodes.iter().enumerate() {
            assert!(node.lowers.iter().all(|lower| *lower < index), "{name}: {}", node.name);
            assert_eq!(node.lowers.is_empty(), node.role == Role::Disk, "{name}: {}", node.name);
        }
    }
}

#[test]
fn partition_without_start_follows_previous_partition() {
    let planned = planned(
        "[disk]\nd = { null = '1MiB' }\n[device]\n\
         late = { kind = 'partition', on = 'd', start = '512KiB', size = '1KiB' }\n\
         rest = { kind = 'partition', on = 'd', size = 'rest' }\n\
         [export]\na = { on = 'late' }\nb = { on = 'rest' }",
    );
    let rest = planned.nodes.iter().find(|node| node.name == "rest").unwrap();
    assert_eq!(rest.given.lowers[0].next_free, 513 << 10);
    assert_eq!(rest.table.as_ref().unwrap().to_string(), "0+523264 linear p0 525312");
}

#[test]
fn plan_passes_facts_of_disks_to_exports() {
    let planned = planned(
        "[disk]\na = { file = 'a.4k', read_only = true }\nb = { file = 'b', create = true, size = '1GiB' }\n\
         [device]\nboth = { kind = 'concat', on = ['a', 'b'] }\n\
         [export]\nvol = { on = 'both' }\nseen = { on = 'both', read_only = true, attach = true }",
    );
    let names = planned.nodes.iter().map(|node| (node.name.as_str(), node.created));
    assert_eq!(names.collect::<Vec<_>>(), [("a", false), ("b", true), ("both", false)]);
    let info = &planned.exports[0].info;
    assert_eq!((info.block_size, info.size, info.read_only), (4096, 2 << 30, true));
    assert_eq!(planned.exports.iter().map(|e| e.attach).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn plan_accepts_single_disk_without_spec_text() {
    let of_disk = |path: &str, read_only| kinds::plan(&Spec::of_disk("file", path, read_only));
    let planned = of_disk("/data/disk $1.img", false).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!((planned.name.as_str(), planned.exports[0].name.as_str()), ("disk--1.img", "vol"));
    assert_eq!(planned.nodes[0].given.text(&kinds::named("file")), Some("/data/disk $1.img"));
    assert!(!planned.exports[0].read_only && planned.listens.is_empty());
    let planned = of_disk("disk.img", true).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(planned.exports[0].read_only && planned.nodes[0].info.read_only);
    let faults = of_disk("missing.img", false).err().unwrap();
    let said = "missing.img  error  missing.img is not there; add create = true and a size\n\
                1 fault, nothing done.";
    assert_eq!(faults.to_string(), said);
}

#[test]
fn graph_name_defaults_to_file_name() {
    let name = |file: &str| {
        let spec =
            Spec::parse("[disk]\nd = { null = 512 }\n[export]\nv = { on = 'd' }", file, &|_| None);
        kinds::plan(&spec).ok().unwrap().name
    };
    assert_eq!(name("/etc/cairn/home.toml"), "home");
    assert_eq!(name(".hidden file.toml"), "hidden-file");
    assert_eq!(name("--.toml"), "graph");
    assert_eq!(name(&"x".repeat(99)), "x".repeat(64));
}

#[test]
fn spec_faults_have_file_position_and_severity() {
    let text = "[disk]\nd = { null = 1 }\n[export]\nvol = { on = 'e' }";
    let faults = kinds::plan(&Spec::parse(text, "a.toml", &|_| None));
    let faults = faults.err().unwrap();
    let [first, second] = faults.iter().collect::<Vec<_>>()[..] else { panic!("{faults}") };
    assert_eq!((first.file(), first.severity()), ("a.toml", Severity::Error));
    assert_eq!(first.position(), Position { line: 2, column: 14 });
    assert_eq!(second.message(), "no device \"e\"; did you mean \"d\"?");
}

#[test]
fn plan_rejects_spec_text_above_size_limit() {
    let text = " ".repeat(graph::spec::TEXT_MAX_BYTES + 1);
    let faults = kinds::plan(&Spec::parse(&text, "a.toml", &|_| None));
    let said = "a.toml  error  the text has 4194305 bytes; at most 4194304 are read\n\
                1 fault, nothing done.";
    assert_eq!(faults.err().unwrap().to_string(), said);
}

#[test]
fn plan_reports_too_many_devices_and_exports_once() {
    let mut text = "[disk]\n".to_owned();
    (0..4097).for_each(|i| text += &format!("d{i} = {{ null = 512 }}\n"));
    text += "[export]\n";
    (0..1025).for_each(|i| text += &format!("e{i} = {{ on = 'd{i}' }}\n"));
    let faults = kinds::plan(&Spec::parse(&text, "a.toml", &|_| None));
    let said = "a.toml:4098:1  error  4097 disks and devices; at most 4096 are possible\n\
                a.toml:5124:1  error  1025 exports; at most 1024 are possible\n\
                2 faults, nothing done.";
    assert_eq!(faults.err().unwrap().to_string(), said);
}

#[test]
fn format_size_rounds_to_largest_unit() {
    let said: Vec<String> = [0, 512, 1000, 1024, 1536, 10 << 30, 2_000_000_000_000, 1025, u64::MAX]
        .map(format_size)
        .into();
    let expected = [
        "0 B",
        "512 B",
        "1000 B",
        "1 KiB",
        "1.5 KiB",
        "10 GiB",
        "1.82 TiB",
        "1.00 KiB",
        "16777216 TiB",
    ];
    assert_eq!(said, expected);
    assert_eq!(format_size((10 << 30) + 1), "10.0 GiB");
    assert_eq!(format_size((100 << 30) + 1), "100 GiB");
    assert_eq!(format_exact(512), "512 B");
    assert_eq!(format_exact(10 << 30), "10 GiB (10737418240 B)");
    assert_eq!(write_size(1862 << 30), "1862GiB");
    assert_eq!((write_size(0), write_size(1000)), ("0".to_owned(), "1000".to_owned()));
}

#[test]
fn parse_size_rejects_fraction_of_byte() {
    assert_eq!(parse_size("1.500000000000000000000000G"), Ok(3 << 29));
    let fine = format!("1.{}G", "1".repeat(60));
    assert!(parse_size(&fine).unwrap_err().contains("whole number of bytes"));
}

#[test]
fn format_duration_uses_largest_unit() {
    let time = Duration::from_millis;
    assert_eq!(format_duration(time(5)), "5 ms");
    assert_eq!(format_duration(time(1500)), "1.5 s");
    assert_eq!(format_duration(time(90_000)), "1.5 min");
    assert_eq!(format_duration(time(0)), "0 s");
    assert_eq!(write_duration(time(90_000)), "90s");
    assert_eq!(write_duration(time(0)), "0s");
}

#[test]
fn spec_manual_page_has_limits_and_valid_example() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert_eq!(planned(block).exports.len(), 2);
    let limits = [
        ("text", "4 MiB".to_owned(), format_size(graph::spec::TEXT_MAX_BYTES as u64)),
        ("disks and devices", "4096".to_owned(), graph::spec::DEVICES_MAX.to_string()),
        (
            "devices on one another, the disk included",
            "32".to_owned(),
            graph::spec::DEPTH_MAX.to_string(),
        ),
        ("exports", "1024".to_owned(), graph::spec::EXPORTS_MAX.to_string()),
        ("addresses", "16".to_owned(), graph::spec::LISTENS_MAX.to_string()),
        ("bytes in a name", "64".to_owned(), graph::spec::NAME_MAX_BYTES.to_string()),
    ];
    for (what, said, is) in limits {
        assert!(page.contains(&format!("| {what} | {said} |")), "{what}");
        assert_eq!(said, is, "{what}");
    }
}

#[test]
fn plan_informs_device_of_verifying_uppers_and_of_redundancy() {
    let disks = "[disk]\nd = { memory = \"1GiB\" }\ne = { memory = \"1GiB\" }\n";
    let around = |devices: &str, name: &str| {
        let all = planned(&format!("{disks}[device]\n{devices}\n[export]\nv = {{ on = \"top\" }}"));
        let node = all.nodes.into_iter().find(|node| node.name == name);
        node.unwrap().around
    };
    let above = "m = { kind = \"mirror\", on = [\"d\", \"e\"] }\n\
                 p = { kind = \"pass\", on = \"m\" }\n\
                 top = { kind = \"sums\", on = \"p\" }";
    let m = around(above, "m");
    assert_eq!(m.uppers, [Upper { name: "p".to_owned(), verifies: true }]);
    assert_eq!(m.verified(), Verified::Always);
    let top = around(above, "top");
    assert_eq!((top.redundancy_above, top.redundancy_below), (false, true));
    assert_eq!(top.verified(), Verified::Never, "nothing verifies above it");
    let below = "s = { kind = \"sums\", on = \"d\" }\nt = { kind = \"sums\", on = \"e\" }\n\
                 top = { kind = \"mirror\", on = [\"s\", \"t\"] }";
    let s = around(below, "s");
    assert_eq!((s.redundancy_above, s.redundancy_below), (true, false));
    assert_eq!(around(below, "top").verified(), Verified::Never);
}
