//! The battery over every kind: alone, and stacked so that tables fuse.

use std::cell::Cell;
use std::time::Duration;

use crate::REGISTRY;
use block::{JobState, Result};
use kind::{Maker, Value};
use sim::{Assembly, PartId};
use testkit::{LowerSpec, Subject, conformance, disk_path};

/// Bytes of a device. It is small, so that requests collide and all of it is read often.
const SIZE: u64 = 48 << 10;

/// Kinds that do not keep their bytes by design, so no promise about bytes holds for them.
const WITHOUT_BYTES: [&str; 1] = ["null"];

fn over(
    name: &str,
    lowers: usize,
    build: impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static,
) -> Subject {
    Subject::new(name, REGISTRY, lowers, SIZE, build)
}

fn size(key: &'static str, bytes: u64) -> (&'static str, Value) {
    (key, Value::Size(bytes))
}

/// Returns the option that names the member whose bytes count, because members may differ.
fn trust(graph: &Assembly, member: PartId) -> (&'static str, Value) {
    ("trust", Value::Text(graph.name(member).to_owned()))
}

/// Returns each kind alone, under its own name.
fn alone() -> Vec<Subject> {
    let path = |key: &'static str| {
        move |graph: &mut Assembly| graph.add(key, &[(key, Value::Text(disk_path(0)))], &[])
    };
    vec![
        Subject::disk("file", REGISTRY, 1, SIZE, path("file")),
        Subject::disk("path", REGISTRY, 1, SIZE, path("path")).with_blocks_of_4k(),
        Subject::disk("memory", REGISTRY, 0, SIZE, |graph| {
            graph.add("memory", &[size("memory", SIZE)], &[])
        }),
        over("linear", 1, |graph, on| {
            graph.add("linear", &[size("start", 4096), size("size", 40960)], on)
        }),
        over("partition", 1, |graph, on| {
            graph.add("partition", &[size("size", 8192)], on)?;
            graph.add("partition", &[("size", Value::Rest)], on)
        }),
        over("concat", 3, |graph, on| graph.add("concat", &[], on)),
        over("stripe", 3, |graph, on| graph.add("stripe", &[size("chunk", 1024)], on)),
        over("pass", 1, |graph, on| graph.add("pass", &[], on)),
        over("error", 1, |graph, on| graph.add("error", &[("count", Value::Integer(0))], on)),
        over("delay", 1, |graph, on| {
            let time = |name, micros| (name, Value::Duration(Duration::from_micros(micros)));
            graph.add("delay", &[time("time", 100), time("flush", 2000), time("jitter", 3000)], on)
        }),
        over("limit", 1, |graph, on| {
            let rates = [("iops", Value::Integer(5000)), size("bytes", 20 << 20)];
            graph.add("limit", &rates, on)
        }),
        over("trace", 1, traced()),
        over("crypt", 1, |graph, on| graph.add("crypt", &plain(), on)),
        over("mirror", 2, |graph, on| graph.add("mirror", &[trust(graph, on[0])], on))
            .with_copies(1),
    ]
}

/// Returns the options for a raw key: no key slots are kept.
fn plain() -> [(&'static str, Value); 2] {
    [("key", Value::Text("file:/key".to_owned())), ("plain", Value::Switch(true))]
}

/// Returns a device with key slots, made at its first start and found at all later ones.
fn with_slots() -> impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static {
    |graph, on| {
        let cheap = [("kdf_passes", Value::Integer(1)), size("kdf_memory", 64 << 10)];
        let key = [("key", Value::Text("credential:safe".to_owned()))];
        graph.add("crypt", &[&key[..], &cheap[..]].concat(), on)
    }
}

/// Commands for key slots that never remove the last one.
const KEY_COMMANDS: [&str; 7] = [
    r#"{"do":"list"}"#,
    r#"{"do":"list","dry_run":true}"#,
    r#"{"do":"explode"}"#,
    r#"{"do":"remove","slot":0}"#,
    r#"{"do":"remove","slot":18446744073709551615}"#,
    r#"{"do":"add","key":"credential:safe","new_key":"no source"}"#,
    r#"{"do":"change","key":"file:/no/such/file","new_key":"credential:safe"}"#,
];

/// Returns a trace with a new file at each start.
fn traced() -> impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static {
    let starts = Cell::new(0);
    move |graph, on| {
        starts.set(starts.get() + 1);
        let file = format!("/trace{}", starts.get());
        graph.add("trace", &[("file", Value::Text(file)), size("size", 1 << 20)], on)
    }
}

fn stacked() -> Vec<Subject> {
    vec![
        over("a stripe of partitions", 2, |graph, on| {
            let part = |graph: &mut Assembly, lower| {
                graph.add("partition", &[size("size", 16384)], &[lower])?;
                graph.add("partition", &[size("size", 32768)], &[lower])
            };
            let parts = [part(graph, on[0])?, part(graph, on[1])?];
            graph.add("stripe", &[size("chunk", 4096)], &parts)
        }),
        over("a window onto a concat of stripes", 4, |graph, on| {
            let low = graph.add("stripe", &[size("chunk", 512)], &on[..2])?;
            let high = graph.add("stripe", &[size("chunk", 8192)], &on[2..])?;
            let both = graph.add("concat", &[], &[low, high])?;
            let watched = graph.add("pass", &[], &[both])?;
            let half = [size("start", 24 << 10), size("size", 144 << 10)];
            let window = graph.add("linear", &half, &[watched])?;
            graph.add("pass", &[], &[window])
        }),
        over("a crypt of 4 KiB blocks", 1, |graph, on| graph.add("crypt", &plain(), on))
            .with_blocks_of_4k(),
        // Its worker threads are sometimes all busy. Then it splits the next request.
        Subject::new("a crypt of long requests", REGISTRY, 1, 2 << 20, |graph, on| {
            graph.add("crypt", &plain(), on)
        })
        .with_transfers_of(1 << 20)
        .with_seeds(1),
        over("a crypt in units of 4 KiB", 1, |graph, on| {
            let unit = [size("unit", 4096)];
            graph.add("crypt", &[&plain()[..], &unit[..]].concat(), on)
        }),
        over("a crypt with discards", 1, |graph, on| {
            let discards = [("discards", Value::Switch(true))];
            graph.add("crypt", &[&plain()[..], &discards[..]].concat(), on)
        }),
        over("a stripe of crypts", 2, |graph, on| {
            let safes = [on[0], on[1]].map(|lower| graph.add("crypt", &plain(), &[lower]));
            let [one, two] = safes;
            graph.add("stripe", &[size("chunk", 1024)], &[one?, two?])
        }),
        over("a stripe of 4 KiB blocks", 2, |graph, on| {
            graph.add("stripe", &[size("chunk", 4096)], on)
        })
        .with_blocks_of_4k(),
    ]
}

/// Returns options for several regions, which leave the bitmap while the mirror works.
fn small_regions() -> [(&'static str, Value); 2] {
    [size("region", 4096), ("settle", Value::Duration(Duration::from_millis(1)))]
}

/// Enlarges the lowers of a subject, because the map of a remap needs a part.
fn roomy(subject: Subject) -> Subject {
    let lowers = subject.lowers.iter().map(|lower| LowerSpec { size: 320 << 10, ..*lower });
    Subject { lowers: lowers.collect(), ..subject }
}

/// Marks a subject as a migration, which begins on disks with content. A completed migration must stay completed.
fn moving(subject: Subject) -> Subject {
    subject.adopting().promising(|before, after| match (&before.jobs[..], &after.jobs[..]) {
        ([was], [is])
            if was.state == JobState::Done && is.progress.done_bytes < is.progress.all_bytes =>
        {
            Err(format!("a move that was done is at {:?}", is.progress))
        }
        _ => Ok(()),
    })
}

/// Returns a device that places its blocks, and may move them.
fn remapped(
    more: &[(&'static str, Value)],
) -> impl Fn(&mut Assembly, &[PartId]) -> Result<PartId> + 'static {
    let options = [&[size("size", SIZE), size("block", 4096)], more].concat();
    move |graph, on| match on {
        [_] => graph.add("remap", &options, on),
        _ => {
            let meta = ("meta", Value::Text(graph.name(on[1]).to_owned()));
            graph.add("remap", &[&options[..], &[meta]].concat(), on)
        }
    }
}

/// Returns the stateful kinds on labelled disks: alone, and above and below others.
fn on_labels() -> Vec<Subject> {
    let mirror = || |graph: &mut Assembly, on: &[PartId]| graph.add("mirror", &[], on);
    let subjects = vec![
        over("mirror", 2, mirror()).with_copies(1),
        over("a mirror of three", 3, mirror()).with_copies(1),
        over("a mirror of 4 KiB blocks", 2, mirror()).with_copies(1).with_blocks_of_4k(),
        over("a mirror of small regions", 2, |graph, on| graph.add("mirror", &small_regions(), on))
            .with_copies(1),
        over("a mirror of three with small regions", 3, |graph, on| {
            graph.add("mirror", &small_regions(), on)
        })
        .with_copies(1),
        over("crypt", 1, with_slots()).with_arguments(&KEY_COMMANDS),
        over("a crypt of 4 KiB blocks", 1, with_slots()).with_blocks_of_4k(),
        moving(over("migrate", 2, |graph, on| graph.add("migrate", &[], on))),
        moving(over("a migrate of 4 KiB blocks", 2, |graph, on| graph.add("migrate", &[], on)))
            .with_blocks_of_4k(),
        moving(over("a migrate in place", 1, |graph, on| {
            let safe = graph.add("crypt", &plain(), on)?;
            graph.add("migrate", &[], &[on[0], safe])
        })),
        over("a crypt on a mirror", 2, |graph, on| {
            let mirror = graph.add("mirror", &[], on)?;
            with_slots()(graph, &[mirror])
        })
        .with_copies(1),
        over("a mirror of crypts", 2, |graph, on| {
            let safes = [with_slots()(graph, &on[..1])?, with_slots()(graph, &on[1..])?];
            graph.add("mirror", &[], &safes)
        })
        .with_redundancy(1),
        roomy(over("remap", 1, remapped(&[]))),
        roomy(over("a remap of 4 KiB blocks", 1, remapped(&[("pack", Value::Switch(true))])))
            .with_blocks_of_4k(),
        roomy(over(
            "a remap with a map elsewhere",
            2,
            remapped(&[("policy", Value::Text("log".into()))]),
        )),
        over("a mirror of stripes", 4, |graph, on| {
            let chunk = [size("chunk", 1024)];
            let stripes =
                [graph.add("stripe", &chunk, &on[..2])?, graph.add("stripe", &chunk, &on[2..])?];
            graph.add("mirror", &[], &stripes)
        })
        .with_redundancy(1),
    ];
    // There are several subjects of each kind, and each runs two more parts of the battery, so it gets fewer seeds.
    subjects.into_iter().map(|subject| Subject { seeds: 6, ..subject }.on_labels()).collect()
}

#[test]
fn kinds_that_keep_something() {
    for subject in on_labels() {
        match conformance(&subject) {
            Ok(passed) => assert!(passed.errors > 0, "{}: {passed:?}", subject.name),
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

#[test]
fn all_stateful_kinds_have_subjects() {
    let judged: Vec<_> = on_labels().into_iter().map(|subject| subject.name).collect();
    let keeps = |name: &&str| {
        let kind = REGISTRY.find(name).expect("it has just been named");
        matches!(kind.maker, Maker::Stateful { .. })
    };
    let keepers: Vec<_> = REGISTRY.device_names().filter(keeps).collect();
    assert!(keepers.len() >= 2, "{keepers:?}");
    let missing: Vec<_> =
        keepers.iter().filter(|name| !judged.iter().any(|j| j == *name)).collect();
    assert!(missing.is_empty(), "give each of these a subject in `on_labels`: {missing:?}");
}

#[test]
fn every_kind_alone() {
    for subject in alone() {
        if let Err(refusal) = conformance(&subject) {
            panic!("{refusal}");
        }
    }
}

#[test]
fn stacked_kinds_pass_battery() {
    for subject in stacked() {
        match conformance(&subject) {
            Ok(passed) => assert!(passed.errors > 0, "{}: {passed:?}", subject.name),
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

#[test]
fn all_kinds_have_subjects() {
    let subjects = alone().into_iter().chain(on_labels());
    let judged: Vec<_> = subjects.map(|subject| subject.name).collect();
    let known = REGISTRY.device_names().chain(REGISTRY.disk_names());
    let missing: Vec<_> = known
        .filter(|name| !WITHOUT_BYTES.contains(name) && !judged.iter().any(|j| j == name))
        .collect();
    assert!(missing.is_empty(), "give each of these a subject: {missing:?}");
}
