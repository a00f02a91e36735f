//! Checks the manuals of kinds against the code: examples can be planned, and the tables list all options.

use std::collections::BTreeMap;

use crate::REGISTRY;
use graph::spec::Spec;
use kind::Kind;

use crate::tests::world::World;

const SECTIONS: [&str; 7] =
    ["Example", "Options", "Promises", "On failure", "Limits", "Cost", "See also"];

/// Returns every manual with the kinds that it describes: `file` and `path` share one manual.
fn manuals() -> BTreeMap<&'static str, Vec<&'static Kind>> {
    let mut manuals: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for kind in REGISTRY.0 {
        manuals.entry(kind.manual).or_default().push(kind);
    }
    manuals
}

fn section<'m>(manual: &'m str, name: &str) -> &'m str {
    let begin = format!("\n## {name}\n");
    let rest = manual.split_once(&begin).unwrap_or_else(|| panic!("no {name} in {manual}")).1;
    rest.split("\n## ").next().unwrap_or(rest)
}

/// Returns the names of the options in the option table of a manual.
fn documented(manual: &str) -> Vec<&str> {
    let rows = section(manual, "Options").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

#[test]
fn manuals_have_same_sections() {
    for (manual, kinds) in manuals() {
        assert!(manual.starts_with(&format!("# {}\n", kinds[0].name)), "{}", kinds[0].name);
        let found: Vec<_> = manual.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        // A kind with its own commands has one more section for them.
        let common: Vec<_> = found.iter().copied().filter(|name| *name != "Commands").collect();
        assert_eq!(common, SECTIONS, "{}", kinds[0].name);
        for name in found {
            assert!(!section(manual, name).trim().is_empty(), "{}: {name}", kinds[0].name);
        }
        assert!(manual.lines().all(|line| !line.ends_with(' ')), "{}", kinds[0].name);
    }
}

#[test]
fn manuals_document_exactly_the_options_of_kinds() {
    for (manual, kinds) in manuals() {
        let mut options: Vec<_> =
            kinds.iter().flat_map(|kind| kind.options).map(|option| option.name).collect();
        options.sort_unstable();
        options.dedup();
        let mut documented = documented(manual);
        documented.sort_unstable();
        assert_eq!(documented, options, "{}", kinds[0].name);
    }
}

#[test]
fn manual_examples_can_be_planned_and_use_documented_kind() {
    let world = World::new();
    for disk in ["nvme-A", "nvme-B"] {
        world.file(&format!("/dev/disk/by-id/{disk}"), 1 << 20);
    }
    for (manual, kinds) in manuals() {
        let mut used = Vec::new();
        for example in manual.split("```toml\n").skip(1) {
            let text = example.split("```").next().unwrap_or_default();
            let spec = Spec::parse(text, kinds[0].name, &|_| None);
            match world.block_on(spec.plan(REGISTRY, &world.env())) {
                Ok(planned) => {
                    assert!(planned.warnings.is_empty(), "{text}");
                    used.extend(planned.nodes.iter().map(|node| node.kind.name));
                }
                Err(faults) => panic!("{faults}\n{text}"),
            }
        }
        for kind in kinds {
            assert!(used.contains(&kind.name), "no example of {}", kind.name);
        }
    }
}
