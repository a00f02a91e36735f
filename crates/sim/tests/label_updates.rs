//! Tests of label updates: an update needs no buffer of the shared pool, and completes even if its caller is dropped.

use std::time::Duration;

use block::ByteRange;
use kind::Value;
use meta::{Cell, Label, Store, Uuid};
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, Profile, SimDisk, SimWorld};

fn label() -> Label {
    Label {
        block_size: 512,
        sequence: 0,
        epoch: 1,
        broadcast: 0,
        acked_broadcast: 0,
        disk: Uuid([1; 16]),
        graph: Uuid([2; 16]),
        data_bytes: 2 << 20,
        written_unix_s: 0,
        provisioning: false,
        disk_name: "a".to_owned(),
        graph_name: "home".to_owned(),
        holder: None,
        spec: String::new(),
        cells: Default::default(),
        past: Default::default(),
        unknown_read_only: 0,
    }
}

#[test]
fn label_update_succeeds_when_buffer_pool_is_exhausted() {
    let world = SimWorld::new(1);
    let env = world.env();
    let disk = SimDisk::new(&world, 0, DiskConfig::new(4 << 20, Profile::Native512));
    world.plug("/disk", &disk);
    let mut graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
    let disk = graph.add("path", &[("path", Value::Text("/disk".to_owned()))], &[]).unwrap();
    let store = Store::new(&env, &graph.lower(disk), label(), None).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| env.buf(512).ok()).collect();
    assert!(!taken.is_empty() && env.pool().free_bytes() < 512);
    world.block_on(store.update(|label| label.epoch = 2)).expect("nobody waits").unwrap();
    assert_eq!(store.label().epoch, 2);
}

/// If a label update stopped with its caller, writes of the next update could land before late writes of the first.
#[test]
fn label_update_completes_before_next_when_first_wait_is_dropped() {
    for micros in 0..400 {
        let world = SimWorld::new(micros);
        let env = world.env();
        let disk = SimDisk::new(&world, 0, DiskConfig::new(4 << 20, Profile::Native512));
        world.plug("/disk", &disk);
        let mut graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
        let disk = graph.add("path", &[("path", Value::Text("/disk".to_owned()))], &[]).unwrap();
        let store = Store::new(&env, &graph.lower(disk), label(), None).unwrap();
        let done = world.block_on(async {
            store.update(|label| label.epoch = 2).await?;
            let cut = store.update(|label| label.epoch = 3);
            let _ = env.within(Duration::from_micros(2 * micros), cut).await;
            store.update(|label| label.epoch = 4).await?;
            // Late writes have landed by then.
            env.sleep(Duration::from_secs(1)).await;
            store.inspect().await
        });
        let found = done.unwrap().unwrap();
        let (label, _) = found.label.as_ref().unwrap().as_ref().unwrap();
        assert_eq!(
            (label.epoch, found.faults_of_copies().len()),
            (4, 0),
            "cut after {} us",
            2 * micros
        );
    }
}

/// The old, longer label may have held a key slot that was removed since, so no byte of the slot may stay on the disk.
#[test]
fn label_update_overwrites_all_bytes_of_longer_label() {
    let world = SimWorld::new(1);
    let env = world.env();
    let disk = SimDisk::new(&world, 0, DiskConfig::new(4 << 20, Profile::Native512));
    world.plug("/disk", &disk);
    let mut graph = Assembly::new(&env, kinds::REGISTRY, false, Stream::new(1, "order", 0));
    let node = graph.add("path", &[("path", Value::Text("/disk".to_owned()))], &[]).unwrap();
    let store = Store::new(&env, &graph.lower(node), label(), None).unwrap();
    let secret = b"a removed key slot";
    let is_there = || {
        let bytes = disk.peek(ByteRange::new(0, 4 << 20).unwrap());
        bytes.windows(secret.len()).any(|window| window == secret)
    };
    let longer = |label: &mut Label| {
        let cell = Cell { sequence: 1, bytes: secret.repeat(200) };
        label.cells.insert("safe".to_owned(), cell);
    };
    let shorter = |label: &mut Label| drop(label.cells.remove("safe"));
    let wrote = world.block_on(async {
        store.update(longer).await?;
        store.update(longer).await
    });
    wrote.unwrap().unwrap();
    assert!(is_there());
    // The process that shortens the label may also have found the longer one on the disk.
    let (found, number) = world.block_on(store.inspect()).unwrap().unwrap().label.unwrap().unwrap();
    let next = Store::new(&env, &graph.lower(node), found, Some(number)).unwrap();
    let wrote = world.block_on(async {
        next.update(shorter).await?;
        next.update(longer).await?;
        next.update(shorter).await?;
        next.update(shorter).await
    });
    wrote.unwrap().unwrap();
    assert!(!is_there(), "both generations are without it");
}
