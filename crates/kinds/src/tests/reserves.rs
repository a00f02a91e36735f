//! Checks that the plan of a graph computes the same reserves of slots and buffers as the engine.

use crate::tests::world::World;

#[test]
fn plan_computes_reserves_that_engine_sets_aside() {
    let world = World::new();
    let devices = "\
        [device]\n\
        a = { kind = \"linear\", on = \"d\", start = \"64KiB\", size = \"512KiB\" }\n\
        b = { kind = \"pass\", on = \"a\" }\n\
        c = { kind = \"partition\", on = \"b\", size = \"128KiB\" }\n\
        e = { kind = \"partition\", on = \"b\", size = \"rest\" }\n\
        s = { kind = \"stripe\", on = [\"c\", \"e\"], chunk = \"4KiB\" }\n\
        w = { kind = \"linear\", on = \"s\", start = \"4KiB\", size = \"64KiB\" }\n\
        top = { kind = \"delay\", on = \"w\", time = \"1ms\" }\n";
    let running = world.graph(devices, "top");
    let engine = running.graph.engine();
    for (node, member) in running.planned.nodes.iter().zip(running.graph.members()) {
        assert_eq!(node.reserve, engine.reserve(member.node), "{}", node.name);
    }
    let slots = |name| running.graph.member(name).map(|one| engine.reserve(one.node).slots);
    assert_eq!((slots("d"), slots("w"), slots("top")), (Some(1), Some(17), Some(18)));
}
