//! Tests of `crypt`: the encrypted bytes on the disk, access with keys, and changes of key slots.

use std::rc::Rc;

use crate::REGISTRY;
use crate::crypt::slots::{KeySlots, SLOTS};
use crate::crypt::verbs::{self, KeyChange, KeyRequest, Keys};
use block::{ByteRange, ErrorKind, Extent, Info, Op, Result, State};
use kind::{DeviceConfig, LowerConfig, Maker, Value};
use sim::draw::Stream;
use sim::{Assembly, Client, Count, DiskConfig, PartId, Profile, SimDisk, SimWorld};
use testkit::Shelf;

const SIZE: u64 = 8 << 20;
const PATH: &str = "/disk";

type Options = Vec<(&'static str, Value)>;

fn text(name: &'static str, value: &str) -> (&'static str, Value) {
    (name, Value::Text(value.to_owned()))
}

fn plain() -> Options {
    vec![text("key", "file:/key"), ("plain", Value::Switch(true))]
}

/// Returns options of a crypt device with key slots, whose key from `source` is derived at low cost.
fn slots(source: &str) -> Options {
    vec![
        text("key", source),
        ("kdf_memory", Value::Size(64 << 10)),
        ("kdf_passes", Value::Integer(1)),
    ]
}

/// A simulated world with one disk, and the labels in which the crypt device stores its key slots.
struct Bench {
    world: SimWorld,
    disk: Rc<SimDisk>,
    shelf: Rc<Shelf>,
}

/// Returns simulated labels whose writes take time.
fn strict(world: &SimWorld) -> Rc<Shelf> {
    Shelf::strict(&world.env(), Stream::new(world.seed(), "shelf", 0), Vec::new())
}

/// A running crypt device, and a client of the device.
struct Safe {
    graph: Assembly,
    part: PartId,
    client: Client,
    world: SimWorld,
}

impl Bench {
    fn new(profile: Profile) -> Self {
        let world = SimWorld::new(1);
        let config = DiskConfig { discard_zeroes: true, ..DiskConfig::new(SIZE, profile) };
        let disk = SimDisk::new(&world, 0, config);
        world.plug(PATH, &disk);
        let shelf = strict(&world);
        Self { world, disk, shelf }
    }

    fn open(&self, options: &Options) -> Result<Safe> {
        // End the life of the device before this one.
        self.world.drop_tasks();
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&self.world.env(), REGISTRY, true, order);
        let mut graph = graph.in_world(&self.world).on_labels(self.shelf.clone());
        let disk = graph.add("path", &[text("path", PATH)], &[])?;
        let part = graph.add("crypt", options, &[disk])?;
        let client = Client::new(&graph.engine, graph.node(part));
        Ok(Safe { graph, part, client, world: self.world.clone() })
    }

    fn refused(&self, options: &Options) -> (ErrorKind, String) {
        let error = self.open(options).map(drop).unwrap_err();
        (error.kind(), error.to_string())
    }

    fn below(&self, start: u64, len: u64) -> Vec<u8> {
        self.disk.peek(ByteRange::new(start, len).unwrap())
    }

    fn reads(&self) -> u64 {
        self.world.counters().get(Count::DiskRead)
    }
}

impl Safe {
    fn send(&self, op: Op) -> Op {
        let answer = self.world.block_on(self.client.send(op)).unwrap();
        answer.result.unwrap();
        answer.op
    }

    fn write(&self, start: u64, bytes: &[u8]) {
        let data = self.world.env().buf(bytes.len()).unwrap();
        data.write().copy_from_slice(bytes);
        let range = ByteRange::new(start, bytes.len() as u64).unwrap();
        let Op::Write { data, .. } = self.send(Op::write(range, data)) else { unreachable!() };
        assert!(*data.read() == *bytes, "a payload stays as it is");
        self.send(Op::Flush);
    }

    fn read(&self, start: u64, len: usize) -> Vec<u8> {
        let range = ByteRange::new(start, len as u64).unwrap();
        let into = self.world.env().buf(len).unwrap();
        let Op::Read { into, .. } = self.send(Op::read(range, into)) else { unreachable!() };
        into.read().to_vec()
    }

    fn elsewhere(&self) -> u64 {
        self.graph.report(self.part).counters[0].1
    }

    fn keys(&self, change: KeyChange, dry_run: bool) -> Result<verbs::KeySlots> {
        let answer = self.graph.ask_later::<Keys>(self.part, KeyRequest { change, dry_run });
        self.world.block_on(answer).unwrap()
    }

    fn add(&self, key: &str, new: &str, label: &str) -> Result<verbs::KeySlots> {
        let (key, new_key, label) = (key.to_owned(), new.to_owned(), label.to_owned());
        self.keys(KeyChange::Add { key, new_key, label }, false)
    }

    fn remove(&self, slot: usize) -> Result<verbs::KeySlots> {
        self.keys(KeyChange::Remove { slot }, false)
    }

    fn numbers(&self) -> Vec<usize> {
        let report = self.keys(KeyChange::List, false).unwrap();
        report.slots.iter().map(|slot| slot.slot).collect()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4096) as u8).collect()
}

#[test]
fn ciphertext_does_not_depend_on_size_of_writes() {
    for profile in [Profile::Native512, Profile::Native4k] {
        let bench = Bench::new(profile);
        let safe = bench.open(&plain()).unwrap();
        let all = bytes(2 << 20);
        // In one request, on a worker thread.
        safe.write(1 << 20, &all);
        assert_eq!(safe.elsewhere(), 1);
        let long = bench.below(1 << 20, 2 << 20);
        assert!(long != all);
        // In pieces, on the core.
        safe.write(1 << 20, &vec![0; 2 << 20]);
        for (n, piece) in all.chunks(64 << 10).enumerate() {
            safe.write((1 << 20) + n as u64 * (64 << 10), piece);
        }
        assert!(bench.below(1 << 20, 2 << 20) == long);
        assert!(safe.read(1 << 20, 2 << 20) == all);
        assert!(safe.read((1 << 20) + 8192, 4096) == all[8192..12288]);
        assert_eq!(safe.elsewhere(), 3);
    }
}

#[test]
fn crypt_decrypts_on_core_when_worker_threads_are_busy() {
    let bench = Bench::new(Profile::Native512);
    let safe = bench.open(&plain()).unwrap();
    safe.write(0, &bytes(6 << 20));
    let env = bench.world.env();
    let read = |n: u64| {
        let range = ByteRange::new(n << 20, 1 << 20).unwrap();
        safe.client.send(Op::read(range, env.buf(1 << 20).unwrap()))
    };
    let calls: Vec<_> = (0..6).map(read).collect();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = bench.world.block_on(call).unwrap();
        let Op::Read { into, .. } = answer.op else { unreachable!() };
        assert!(*into.read() == bytes(6 << 20)[n << 20..][..1 << 20]);
    }
    assert!((2..=6).contains(&safe.elsewhere()), "{}", safe.elsewhere());
}

#[test]
fn crypt_encrypts_zeroes_written_by_client() {
    let bench = Bench::new(Profile::Native512);
    let safe = bench.open(&plain()).unwrap();
    let range = ByteRange::new(4096, 1 << 20).unwrap();
    safe.send(Op::WriteZeroes { range, unmap: true, fua: true });
    assert!(safe.read(4096, 1 << 20).iter().all(|byte| *byte == 0));
    let below = bench.below(4096, 1 << 20);
    assert!(below.chunks(16).all(|block| block.iter().any(|byte| *byte != 0)));
    // Holes are not reported as such.
    let whole = ByteRange::new(0, SIZE).unwrap();
    let Op::Status { extents, .. } = safe.send(Op::Status { range: whole, extents: Vec::new() })
    else {
        unreachable!()
    };
    assert_eq!(extents, [Extent { len: SIZE, state: State::Data }]);
    assert!(!safe.client.info().native_zeroes);
}

#[test]
fn crypt_passes_discards_only_if_option_is_set() {
    for discards in [false, true] {
        let bench = Bench::new(Profile::Native512);
        let mut options = plain();
        options.push(("discards", Value::Switch(discards)));
        let safe = bench.open(&options).unwrap();
        assert_eq!(safe.client.info().discard, discards);
        let old = bytes(8192);
        safe.write(0, &old);
        let range = ByteRange::new(0, 4096).unwrap();
        safe.send(Op::Discard { range, fua: false });
        let (now, below) = (safe.read(0, 8192), bench.below(0, 4096));
        assert_eq!(below == vec![0; 4096], discards);
        assert_eq!(now[..4096] == [0; 4096], discards);
        assert_eq!(now[..4096] == old[..4096], !discards);
        assert!(now[4096..] == old[4096..]);
    }
}

#[test]
fn crypt_creates_key_slots_once_then_opens_volume() {
    let bench = Bench::new(Profile::Native512);
    let first = bench.open(&slots("credential:safe")).unwrap();
    first.write(0, &bytes(8192));
    drop(first);
    assert_eq!(bench.shelf.writes(), 1, "the slot is kept before the device exists");
    let again = bench.open(&slots("credential:safe")).unwrap();
    assert!(again.read(0, 8192) == bytes(8192));
    assert_eq!(bench.shelf.writes(), 1);
    drop(again);
    // Another volume has another key, even with the same passphrase.
    let other = Bench { shelf: strict(&bench.world), ..bench };
    assert!(other.open(&slots("credential:safe")).unwrap().read(0, 8192) != bytes(8192));
}

#[test]
fn crypt_open_rejects_wrong_passphrase_without_any_write() {
    let bench = Bench::new(Profile::Native512);
    drop(bench.open(&slots("credential:safe")).unwrap());
    let before = (bench.reads(), bench.shelf.bytes());
    let (kind, words) = bench.refused(&slots("credential:other"));
    assert_eq!(kind, ErrorKind::Denied);
    assert!(words.contains("no key slot opens with this passphrase"), "{words}");
    assert_eq!((bench.reads(), bench.shelf.bytes()), before);
}

#[test]
fn crypt_open_rejects_missing_or_damaged_key_slots() {
    let bench = Bench::new(Profile::Native512);
    drop(bench.open(&slots("credential:safe")).unwrap());
    let whole = bench.shelf.bytes().unwrap();
    bench.shelf.put(None);
    let (kind, words) = bench.refused(&slots("credential:safe"));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(words.contains("but are not new"), "{words}");
    bench.shelf.put(Some(whole[..100].to_vec()));
    let (kind, words) = bench.refused(&slots("credential:safe"));
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(words.contains("100 bytes; key slots have 2240"), "{words}");
    let mut newer = whole.clone();
    newer[8] = 2;
    bench.shelf.put(Some(newer));
    assert!(bench.refused(&slots("credential:safe")).1.contains("version 2 is unknown"));
    bench.shelf.put(Some(whole));
    bench.open(&slots("credential:safe")).unwrap();
}

#[test]
fn crypt_open_fails_if_key_slots_cannot_be_written() {
    let bench = Bench::new(Profile::Native512);
    bench.shelf.fail(true);
    assert_eq!(bench.refused(&slots("credential:safe")).0, ErrorKind::Io);
}

#[test]
fn crypt_open_refuses_data_unit_larger_than_blocks() {
    let bench = Bench::new(Profile::Native4k);
    drop(bench.open(&slots("credential:safe")).unwrap());
    let whole = KeySlots::parse(&bench.shelf.bytes().unwrap()).unwrap();
    assert_eq!(whole.unit, 4096);
    // The same labels on a disk with smaller blocks.
    let small = Bench { shelf: bench.shelf.clone(), ..Bench::new(Profile::Native512) };
    let (kind, words) = small.refused(&slots("credential:safe"));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(words.ends_with("Next: set unit = 4096 in the spec"), "{words}");
    let mut options = slots("credential:safe");
    options.push(("unit", Value::Size(4096)));
    assert_eq!(small.open(&options).unwrap().client.info().block_size, 4096);
}

#[test]
fn key_slots_are_added_changed_and_removed_by_command() {
    let bench = Bench::new(Profile::Native512);
    let safe = bench.open(&slots("credential:one")).unwrap();
    safe.write(0, &bytes(4096));
    assert_eq!(safe.add("credential:one", "file:/two", "laptop").unwrap().done, "key slot 1 added");
    let slot = &safe.keys(KeyChange::List, false).unwrap().slots[1];
    assert_eq!(
        (slot.label.as_str(), slot.derivation.as_str(), slot.memory_bytes),
        ("laptop", "argon2id", 65536)
    );
    let change =
        |key: &str, new: &str| KeyChange::Change { key: key.to_owned(), new_key: new.to_owned() };
    let done = safe.keys(change("file:/two", "file:/three"), false).unwrap();
    assert_eq!(done.done, "key slot 1 changed");
    assert_eq!(done.slots[1].label, "laptop", "the label stays");
    assert_eq!(safe.remove(0).unwrap().done, "key slot 0 removed");
    drop(safe);
    assert_eq!(bench.refused(&slots("credential:one")).0, ErrorKind::Denied);
    assert_eq!(bench.refused(&slots("file:/two")).0, ErrorKind::Denied);
    assert!(bench.open(&slots("file:/three")).unwrap().read(0, 4096) == bytes(4096));
}

#[test]
fn key_slot_change_rejects_wrong_or_unsupported_passphrases() {
    let bench = Bench::new(Profile::Native512);
    let safe = bench.open(&slots("credential:one")).unwrap();
    let before = bench.shelf.bytes();
    let kind = |answer: Result<verbs::KeySlots>| answer.unwrap_err().kind();
    assert_eq!(kind(safe.add("file:/wrong", "file:/two", "")), ErrorKind::Denied);
    assert_eq!(kind(safe.add("ask", "file:/two", "")), ErrorKind::Invalid);
    assert_eq!(kind(safe.add("credential:one", "fd:3", "")), ErrorKind::Invalid);
    assert_eq!(kind(safe.add("credential:one", "file:/two", "a\nb")), ErrorKind::Invalid);
    assert_eq!(kind(safe.remove(0)), ErrorKind::InUse);
    assert_eq!(kind(safe.remove(3)), ErrorKind::NotFound);
    assert_eq!(kind(safe.remove(SLOTS)), ErrorKind::NotFound);
    let remove = KeyChange::Remove { slot: 0 };
    assert_eq!(kind(safe.keys(remove, true)), ErrorKind::InUse, "a dry run says so too");
    assert_eq!(bench.shelf.bytes(), before);
    for _ in 1..SLOTS {
        safe.add("credential:one", "file:/two", "").unwrap();
    }
    assert_eq!(kind(safe.add("credential:one", "file:/two", "")), ErrorKind::Limit);
    let before = bench.shelf.bytes();
    assert_eq!(
        safe.keys(KeyChange::Remove { slot: 4 }, true).unwrap().done,
        "key slot 4 would be removed"
    );
    bench.shelf.fail(true);
    assert_eq!(kind(safe.remove(4)), ErrorKind::Io);
    assert_eq!(safe.numbers().len(), SLOTS, "what was not kept has not changed");
    assert_eq!(bench.shelf.bytes(), before);
}

#[test]
fn key_slot_change_is_refused_during_another_change() {
    let bench = Bench::new(Profile::Native512);
    let safe = bench.open(&slots("credential:one")).unwrap();
    let add = |new: &str| {
        let (key, new_key) = ("credential:one".to_owned(), new.to_owned());
        let change = KeyChange::Add { key, new_key, label: String::new() };
        safe.graph.ask_later::<Keys>(safe.part, KeyRequest { change, dry_run: false })
    };
    let first = add("file:/two");
    let env = bench.world.env();
    env.spawn("the first", async move {
        first.await.unwrap();
    });
    let second = add("file:/three");
    let second = async {
        env.give_way().await;
        second.await
    };
    let refused = bench.world.block_on(second).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    bench.world.run(env.now().after(std::time::Duration::from_secs(1))).unwrap();
    assert_eq!(safe.numbers(), [0, 1]);
}

/// Plans a crypt device with these options over a disk, labelled or not, and returns the faults of the options.
fn faults(options: &[(&'static str, Value)], labelled: bool) -> Vec<(&'static str, String)> {
    let Some(Maker::Stateful { plan, .. }) = REGISTRY.find("crypt").map(|kind| kind.maker) else {
        panic!("crypt keeps something")
    };
    let info = Info::disk(SIZE, 512);
    let (name, beneath) = ("d".to_owned(), Rc::default());
    let (fresh, state, next_free) = (false, None, 0);
    let lower =
        LowerConfig { name, info, created: true, labelled, fresh, state, next_free, beneath };
    let (graph, name, options) = ("g".to_owned(), "safe".to_owned(), options.to_vec());
    let faults =
        plan(&DeviceConfig { graph, name, options, lowers: vec![lower], trusted_now: false });
    faults.err().unwrap_or_default().into_iter().map(|f| (f.option, f.message)).collect()
}

#[test]
fn crypt_plan_reports_every_option_fault() {
    assert_eq!(faults(&plain(), false), []);
    assert_eq!(faults(&slots("ask"), true), []);
    let options = |options: &[&'static str]| -> Vec<_> {
        options.iter().map(|option| (*option, String::new())).collect()
    };
    let which = |given: &[(&'static str, Value)], labelled| -> Vec<_> {
        faults(given, labelled).into_iter().map(|(option, _)| (option, String::new())).collect()
    };
    let plain_ask = [text("key", "ask"), ("plain", Value::Switch(true))];
    assert_eq!(which(&plain_ask, false), options(&["key"]));
    assert_eq!(which(&[text("key", "hunter2")], false), options(&["key", "on"]));
    let (derived, mut costly) = ([plain(), slots("ask")[1..].to_vec()].concat(), slots("ask"));
    assert_eq!(which(&derived, true), options(&["kdf_memory", "kdf_passes"]));
    costly.truncate(1);
    costly.extend([("kdf_memory", Value::Size(1 << 30)), ("kdf_passes", Value::Integer(17))]);
    assert_eq!(which(&costly, true), options(&["kdf_memory", "kdf_passes"]));
    let odd = [&plain()[..], &[("unit", Value::Size(3072))]].concat();
    assert_eq!(
        faults(&odd, false),
        [("unit", "unit 3072 is not a power of two; 2048 is".to_owned())]
    );
    let raw = &faults(&slots("ask"), false)[0];
    assert!(raw.0 == "on" && raw.1.contains("label = true") && raw.1.contains("plain = true"));
}

/// If one of two labels cannot be written, the command fails, and the next start must find the old key slots.
#[test]
fn key_slot_change_is_undone_if_one_disk_fails() {
    let world = SimWorld::new(1);
    let shelf = strict(&world);
    for n in 0..2 {
        let disk = SimDisk::new(&world, n, DiskConfig::new(SIZE, Profile::Native512));
        world.plug(format!("{PATH}{n}"), &disk);
    }
    let open = |key: &str| -> Result<Safe> {
        world.drop_tasks();
        let order = Stream::new(1, "order", 0);
        let graph = Assembly::new(&world.env(), REGISTRY, true, order);
        let mut graph = graph.in_world(&world).on_labels(shelf.clone());
        let path = |n: usize| [text("path", &format!("{PATH}{n}"))];
        let lowers = [graph.add("path", &path(0), &[])?, graph.add("path", &path(1), &[])?];
        let mirror = graph.add("mirror", &[], &lowers)?;
        let part = graph.add("crypt", &slots(key), &[mirror])?;
        let client = Client::new(&graph.engine, graph.node(part));
        Ok(Safe { graph, part, client, world: world.clone() })
    };
    let safe = open("credential:one").unwrap();
    shelf.dead(Some(1));
    let refused = safe.add("credential:one", "file:/two", "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io);
    assert!(refused.to_string().contains("the key slots are unchanged"), "{refused}");
    assert_eq!(safe.numbers(), [0]);
    drop(safe);
    // The dead disk does not prevent the next start, as long as the mirror can work without it.
    assert_eq!(open("credential:one").unwrap().numbers(), [0]);
    shelf.dead(None);
    assert_eq!(open("file:/two").map(drop).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(open("credential:one").unwrap().numbers(), [0]);
}
