//! Tests of `file`: faults that the plan of a graph reports before a disk is opened.

use crate::REGISTRY;
use graph::spec::Spec;

use crate::tests::world::World;

fn faults(world: &World, disks: &str) -> Vec<String> {
    let text = format!("[disk]\n{disks}\n[export]\nx = {{ on = \"a\" }}\n");
    let spec = Spec::parse(&text, "test.toml", &|_| None);
    let faults = world.block_on(spec.plan(REGISTRY, &world.env())).err();
    faults.iter().flat_map(|faults| faults.iter()).map(|f| f.message().to_owned()).collect()
}

#[test]
fn plan_rejects_same_file_in_two_disks() {
    let world = World::new();
    world.file("dir/a.img", 4096);
    let disks = "a = { file = \"dir/a.img\" }\nb = { file = \"dir/./a.img\" }";
    let words = "\"b\" and \"a\" (line 2) are both on dir/a.img; a disk is used once";
    assert_eq!(faults(&world, disks), [words]);
}

#[test]
fn plan_reports_both_sizes_if_file_size_differs() {
    let world = World::new();
    world.file("a.img", 8192);
    let words = "size 1 MiB (1048576 B), but a.img has 8 KiB (8192 B); the file was truncated, or \
                 made by another spec. Next: remove size, if the size of the file is \
                 right; cairn check, if the file had a label";
    assert_eq!(faults(&world, "a = { file = \"a.img\", size = \"1MiB\" }"), [words]);
    let words =
        "size 4 KiB (4096 B), but a.img has 8 KiB (8192 B). Next: remove size from the spec";
    assert_eq!(faults(&world, "a = { file = \"a.img\", size = \"4KiB\" }"), [words]);
    assert!(faults(&world, "a = { file = \"a.img\", size = \"8KiB\" }").is_empty());
}
