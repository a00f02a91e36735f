//! Tests of vaults that grow: after kills and power cuts, with copies that miss the growth, and with more levels of the map.

use std::rc::Rc;

use block::{Env, ErrorKind, Info, Lower};
use meta::vault::geometry::{Geometry, SUPERBLOCKS};
use meta::vault::superblock::Superblock;
use meta::vault::{Array, Bitmap, CopyState, Options, Shape, Spec, Vault};
use sim::SimWorld;
use testkit::recorded::{Disk, Event, Fails, Moment, Trace};
use zerocopy::little_endian::U64;

use crate::crashes::{Played, moments, some_cuts};
use crate::figures::Sparse;
use crate::scene::{self, SMALL, block_on, some};

/// Value of every byte of a disk before the vault is on it.
const JUNK: u8 = 0x5c;

/// Bytes of a copy before and after a growth, and the same with a growth to a further level of the map.
const SIZES: [u64; 2] = [320 << 10, 420 << 10];
const LEVEL_SIZES: [u64; 2] = [2 << 20, (2 << 20) + (320 << 10)];

/// Number of records of the array, and of bits of the bitmap, before and after their extension.
const RECORDS: [u64; 2] = [10, 2500];
const BITS: [u64; 2] = [64, 40_000];

fn sized(bytes: u64) -> Options {
    Options { bytes: Some(bytes), ..SMALL }
}

/// Makes a vault with copies of `sizes[0]` bytes on disks of `sizes[1]` bytes, and two objects that can be extended.
async fn make(env: &Env, copies: usize, sizes: [u64; 2], trace: &Trace) -> Vec<Rc<Disk>> {
    let junk = || vec![JUNK; sizes[1] as usize];
    let disks: Vec<_> = (0..copies).map(|n| Disk::new(n, junk(), trace)).collect();
    scene::format_as(env, &disks, Shape { bytes: Some(sizes[0]), ..scene::SHAPE }).await;
    let vault = Vault::open(env, some(&disks), &SMALL).await.unwrap();
    create(&vault).await;
    vault.close().await.unwrap();
    disks
}

async fn create(vault: &Vault) {
    let mut transaction = vault.begin();
    transaction.create(&Spec::array::<U64>("grown", 0, RECORDS[0])).unwrap();
    transaction.create(&Spec::bitmap("grown", 1, BITS[0])).unwrap();
    vault.commit(transaction).await.unwrap();
}

fn extendable(vault: &Vault) -> (Array<U64>, Bitmap) {
    let find = |role| vault.find("grown", role).expect("it was created");
    (Array::new(vault, find(0)), Bitmap::new(vault, find(1)))
}

/// Extends the array and the bitmap, and changes their last records and bits, in one transaction.
async fn extend(vault: &Vault) {
    let (array, bits) = extendable(vault);
    let mut transaction = vault.begin();
    transaction.grow(vault.find("grown", 0).unwrap(), RECORDS[1]).unwrap();
    transaction.grow(vault.find("grown", 1).unwrap(), BITS[1]).unwrap();
    array.set(&mut transaction, RECORDS[1] - 1, &U64::new(77)).unwrap();
    bits.put(&mut transaction, BITS[1] - 3, 3, true).unwrap();
    vault.commit(transaction).await.unwrap();
}

/// Whether the array and the bitmap are extended. Checks their content.
async fn is_extended(vault: &Vault) -> bool {
    let (array, bits) = extendable(vault);
    let count = array.records().unwrap();
    let mut records = vec![U64::new(1); count as usize];
    array.get_many(0, &mut records).await.unwrap();
    let extended = count == RECORDS[1];
    let last = if extended { 77 } else { 0 };
    assert_eq!(count, RECORDS[usize::from(extended)]);
    assert_eq!(records.pop(), Some(U64::new(last)), "the last record of {count}");
    assert!(records.iter().all(|record| *record == U64::ZERO));
    assert_eq!(bits.count().await.unwrap(), if extended { 3 } else { 0 });
    assert_eq!(bits.test(BITS[1] - 1).await.is_ok(), extended, "both are extended together");
    extended
}

/// Returns the sizes in the newest superblock on a disk, if the disk has one.
fn sizes_on(image: &[u8]) -> Option<Geometry> {
    let slots = SUPERBLOCKS.map(|at| Superblock::decode(&image[at as usize..]).ok());
    let newest = slots.into_iter().flatten().max_by_key(|superblock| superblock.sequence);
    newest.map(|superblock| superblock.geometry)
}

/// Checks that a disk has no bytes of its former content where its superblock says that the vault is.
fn check_room(image: &[u8], what: &str) {
    let Some(sizes) = sizes_on(image) else { return };
    let sectors = image[..sizes.end() as usize].chunks(512);
    let junk = sectors.enumerate().find(|(_, sector)| sector.iter().all(|byte| *byte == JUNK));
    assert_eq!(junk.map(|(n, _)| 512 * n), None, "{what}: the room was not taken");
}

/// Opens the vault with the disks that a crash has left, `None` for a missing one, and makes it grow to `bytes`. Checks
/// its content.
fn look(images: Vec<Option<Vec<u8>>>, bytes: Option<u64>, least: u64, most: u64, what: &str) {
    images.iter().flatten().for_each(|image| check_room(image, what));
    let (world, trace) = (SimWorld::new(2), Trace::default());
    let env = world.env();
    let disk = |(n, image): (usize, Option<Vec<u8>>)| image.map(|it| Disk::new(n, it, &trace));
    let disks: Vec<_> = images.into_iter().enumerate().map(disk).collect();
    let lowers = || disks.iter().map(|disk| disk.as_ref().map(Disk::lower)).collect();
    let options = Options { bytes, may_degrade: true, ..SMALL };
    block_on(&world, async {
        let vault = Vault::open(&env, lowers(), &options).await;
        let vault = vault.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = scene::shown(&vault).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!((least..=most).contains(&shown), "{what}: step {shown} of {least} to {most}");
        // The extension comes between two steps.
        let extended = is_extended(&vault).await;
        assert!(shown == EXTENDED_AFTER || extended == (shown > EXTENDED_AFTER), "{what}");
        if let Some(bytes) = bytes {
            assert_eq!(vault.geometry().bytes, bytes, "{what}");
            if !extended {
                extend(&vault).await;
            }
            vault.close().await.unwrap();
            let vault = Vault::open(&env, lowers(), &options).await.unwrap();
            assert!(is_extended(&vault).await, "{what}: then extended");
        }
    });
    for disk in disks.iter().flatten() {
        check_room(&disk.bytes.borrow(), what);
    }
}

/// The step behind which the objects are extended.
const EXTENDED_AFTER: u64 = 2;

/// Records a growth of a vault with records in its log, and the use of its new part.
fn play(copies: usize, sizes: [u64; 2]) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = make(&env, copies, sizes, &trace).await;
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        scene::run(&vault, &trace, 1, EXTENDED_AFTER).await.unwrap();
        drop(vault);
        trace.take();
        trace.note(Event::Begun(EXTENDED_AFTER));
        trace.note(Event::Answered(EXTENDED_AFTER));
        let before = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
        let vault = Vault::open(&env, some(&disks), &sized(sizes[1])).await.unwrap();
        extend(&vault).await;
        scene::run(&vault, &trace, EXTENDED_AFTER + 1, EXTENDED_AFTER + 1).await.unwrap();
        vault.flush().await.unwrap();
        Played { before, events: trace.take() }
    })
}

/// Checks a vault on one disk after every power cut and kill in the recording of a growth. Returns the number of states.
fn cut_one(sizes: [u64; 2]) -> usize {
    let mut states = 0;
    moments(&play(1, sizes), |event, disks, answered, begun| {
        disks[0].cuts(|image| {
            states += 1;
            let bytes = (states % 2 == 0).then_some(sizes[1]);
            look(vec![Some(image)], bytes, answered, begun, &format!("at event {event}"));
        });
    });
    states
}

#[test]
fn vault_keeps_content_after_power_cut_at_any_write_of_growth() {
    let states = cut_one(SIZES);
    assert!(states > 500, "only {states} states");
}

#[test]
fn vault_keeps_content_after_power_cut_during_growth_to_next_level() {
    let states = cut_one(LEVEL_SIZES);
    assert!(states > 500, "only {states} states");
}

/// Checks a vault of two copies in some crash states of a moment, and each copy alone.
fn cut_two(disks: &[Moment], bytes: u64, least: u64, most: u64, what: &str) -> usize {
    let mut unequal = 0;
    for one in some_cuts(&disks[0]) {
        for two in some_cuts(&disks[1]) {
            unequal += usize::from(sizes_on(&one) != sizes_on(&two));
            look(vec![Some(one.clone()), Some(two)], Some(bytes), least, most, what);
        }
        look(vec![Some(one), None], None, least, most, what);
    }
    for two in some_cuts(&disks[1]) {
        look(vec![None, Some(two)], Some(bytes), least, most, what);
    }
    unequal
}

#[test]
fn vault_of_two_copies_keeps_content_after_power_cut_during_growth() {
    for sizes in [SIZES, LEVEL_SIZES] {
        let mut unequal = 0;
        moments(&play(2, sizes), |event, disks, answered, begun| {
            unequal += cut_two(disks, sizes[1], answered, begun, &format!("at event {event}"));
        });
        assert!(unequal > 10, "{unequal} states with copies of unequal sizes");
    }
}

/// Opens the vault after a kill at each write and flush of an opening with a growth, with a second kill or power cut at
/// each write and flush of the next opening.
#[test]
fn vault_keeps_content_after_second_crash_during_repeated_growth() {
    let played = play(1, SIZES);
    let mut after = Vec::new();
    moments(&played, |event, disks, answered, begun| {
        after.push((event, disks[0].with(|_, _| true), answered, begun));
        after.push((event, disks[0].with(|n, _| n % 2 == 0), answered, begun));
    });
    let mut states = 0;
    for (first, image, answered, begun) in after {
        let (world, trace) = (SimWorld::new(3), Trace::default());
        let disks = [Disk::new(0, image.clone(), &trace)];
        block_on(&world, Vault::open(&world.env(), some(&disks), &sized(SIZES[1]))).unwrap();
        let again = Played { before: vec![image], events: trace.take() };
        moments(&again, |event, disks, _, _| {
            for image in some_cuts(&disks[0]) {
                states += 1;
                let what = format!("at event {first}, then at event {event} of an opening");
                look(vec![Some(image)], Some(SIZES[1]), answered, begun, &what);
            }
        });
    }
    assert!(states > 500, "only {states} states");
}

#[test]
fn copy_that_missed_growth_is_zeroed_before_its_resync() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let (disks, before) = block_on(&world, async {
        let disks = make(&env, 2, SIZES, &trace).await;
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        disks[1].fails.set(Fails { writes_left: Some(0), ..Fails::default() });
        scene::run(&vault, &trace, 1, EXTENDED_AFTER).await.unwrap();
        drop(vault);
        disks[1].fails.set(Fails::default());
        let vault = Vault::open(&env, some(&disks), &sized(SIZES[1])).await.unwrap();
        assert_eq!(vault.copy_state(1).0, CopyState::Behind);
        let sizes = [0, 1].map(|copy| sizes_on(&disks[copy].bytes.borrow()).unwrap().bytes);
        assert_eq!(sizes, [SIZES[1], SIZES[0]]);
        extend(&vault).await;
        trace.take();
        let before = disks.iter().map(|disk| disk.bytes.borrow().clone()).collect();
        vault.rejoin(1).await.unwrap();
        let step = EXTENDED_AFTER + 1;
        scene::run(&vault, &trace, step, step).await.unwrap();
        (disks, before)
    });
    check_room(&disks[1].bytes.borrow(), "at the end");
    let played = Played { before, events: trace.take() };
    let mut joined = 0;
    moments(&played, |event, disks, answered, begun| {
        let what = format!("at event {event}");
        let (answered, begun) = (answered.max(EXTENDED_AFTER), begun.max(EXTENDED_AFTER));
        for one in some_cuts(&disks[0]) {
            for two in some_cuts(&disks[1]) {
                look(vec![Some(one.clone()), Some(two)], None, answered, begun, &what);
            }
        }
        // Once a step was acknowledged after the resync, the copy is enough.
        if answered > EXTENDED_AFTER {
            for two in some_cuts(&disks[1]) {
                joined += 1;
                look(vec![None, Some(two)], Some(SIZES[1]), answered, begun, &what);
            }
        }
    });
    assert!(joined > 0);
}

#[test]
fn blank_disk_of_vault_is_zeroed_before_its_resync() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let mut disks = make(&env, 2, SIZES, &trace).await;
        disks[1] = Disk::new(1, vec![JUNK; SIZES[1] as usize], &trace);
        let degraded = Options { may_degrade: true, ..sized(SIZES[1]) };
        let vault = Vault::open(&env, some(&disks), &degraded).await.unwrap();
        vault.rejoin(1).await.unwrap();
        assert_eq!(sizes_on(&disks[1].bytes.borrow()).unwrap().bytes, SIZES[1]);
        check_room(&disks[1].bytes.borrow(), "after the resync");
    });
}

#[test]
fn vault_grows_several_times_with_same_content_and_clean_check() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    // A page more, and less than that; then to the second level of the map.
    let sizes = [8 << 10, 12 << 10, 100 << 10, LEVEL_SIZES[1] - SIZES[0], 4 << 20];
    block_on(&world, async {
        let disks = make(&env, 2, [SIZES[0], 5 << 20], &trace).await;
        let (mut pages, mut step) = (0, 1);
        for size in sizes.map(|more| SIZES[0] + more) {
            let vault = Vault::open(&env, some(&disks), &sized(size)).await.unwrap();
            assert_eq!(vault.geometry().bytes, size);
            assert!(vault.geometry().pages >= pages, "{} pages", vault.geometry().pages);
            pages = vault.geometry().pages;
            assert_eq!(scene::shown(&vault).await.unwrap(), step - 1);
            scene::run(&vault, &trace, step, step + 1).await.unwrap();
            step += 2;
            fill(&vault).await;
            assert_eq!(vault.counters().free_pages, 0);
            let findings = vault.check().await.unwrap();
            assert_eq!((findings.wrong, findings.repairable), (vec![], true));
            // A vault grows no further without a request, nor with that for fewer bytes.
            vault.close().await.unwrap();
            let vault = Vault::open(&env, some(&disks), &sized(SIZES[0])).await.unwrap();
            assert_eq!((vault.geometry().bytes, vault.geometry().pages), (size, pages));
            check_full(&vault).await;
        }
        assert!(pages > 254);
    });
}

/// An array with one record on each of its pages.
fn pages_of(vault: &Vault) -> Array<[u8; 4064]> {
    Array::new(vault, vault.find("full", 0).expect("it was created"))
}

/// Creates or extends an array so that no page of the vault is free, and sets the new records.
async fn fill(vault: &Vault) {
    let free = vault.counters().free_pages;
    let mut transaction = vault.begin();
    let before = match vault.find("full", 0) {
        Some(id) if free > 0 => {
            let before = pages_of(vault).records().unwrap();
            transaction.grow(id, before + free).unwrap();
            before
        }
        Some(_) => return,
        None => {
            transaction.create(&Spec::array::<[u8; 4064]>("full", 0, free)).unwrap();
            0
        }
    };
    vault.commit(transaction).await.unwrap();
    for page in before..before + free {
        assert_eq!(pages_of(vault).get(page).await.unwrap(), [0; 4064], "the new part");
        let mut transaction = vault.begin();
        pages_of(vault).set(&mut transaction, page, &[page as u8 | 1; 4064]).unwrap();
        vault.post(transaction).await.unwrap();
    }
    vault.sync().await.unwrap();
}

async fn check_full(vault: &Vault) {
    for page in 0..pages_of(vault).records().unwrap() {
        assert_eq!(pages_of(vault).get(page).await.unwrap(), [page as u8 | 1; 4064]);
    }
}

#[test]
fn vault_grows_by_two_levels_at_once() {
    let world = SimWorld::new(1);
    let env = world.env();
    let lower = Lower::new(Rc::<Sparse>::default(), 0, Info::disk(1 << 30, 512), "disk".into());
    block_on(&world, async {
        let shape = Shape { bytes: Some(SIZES[0]), ..scene::SHAPE };
        Vault::format(&env, std::slice::from_ref(&lower), shape).await.unwrap();
        let open = async |options: &Options| {
            Vault::open(&env, vec![Some(lower.clone())], options).await.unwrap()
        };
        let vault = open(&SMALL).await;
        create(&vault).await;
        extend(&vault).await;
        assert_eq!(vault.geometry().root_level(), 1);
        vault.close().await.unwrap();
        let vault = open(&sized(600 << 20)).await;
        assert_eq!(vault.geometry().root_level(), 3);
        let free = vault.counters().free_pages;
        let mut transaction = vault.begin();
        let id = transaction.create(&Spec::array::<[u8; 4064]>("full", 0, free)).unwrap();
        let array = Array::<[u8; 4064]>::new(&vault, id);
        array.set(&mut transaction, free - 1, &[7; 4064]).unwrap();
        vault.commit(transaction).await.unwrap();
        vault.close().await.unwrap();
        let vault = open(&SMALL).await;
        assert!(is_extended(&vault).await);
        let array = pages_of(&vault);
        assert_eq!(array.get(free - 1).await.unwrap(), [7; 4064]);
        assert_eq!(array.get(free / 2).await.unwrap(), [0; 4064]);
        assert_eq!(vault.check().await.unwrap().wrong, Vec::<String>::new());
    });
}

#[test]
fn empty_vault_grows_to_next_level() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = [Disk::new(0, vec![0; LEVEL_SIZES[1] as usize], &trace)];
        let shape = Shape { bytes: Some(SIZES[0]), ..scene::SHAPE };
        Vault::format(&env, &[disks[0].lower()], shape).await.unwrap();
        let vault = Vault::open(&env, some(&disks), &sized(LEVEL_SIZES[1])).await.unwrap();
        create(&vault).await;
        extend(&vault).await;
        vault.close().await.unwrap();
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert!(is_extended(&vault).await);
    });
}

#[test]
fn read_only_opening_of_vault_ignores_request_to_grow() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = make(&env, 1, SIZES, &trace).await;
        let before = disks[0].writes.get();
        let looks = Options { read_only: true, ..sized(SIZES[1]) };
        let vault = Vault::open(&env, some(&disks), &looks).await.unwrap();
        assert_eq!(vault.geometry().bytes, SIZES[0]);
        assert_eq!(disks[0].writes.get(), before);
    });
}

#[test]
fn vault_refuses_to_grow_beyond_smallest_disk_without_writing() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = make(&env, 2, SIZES, &trace).await;
        disks[1].bytes.borrow_mut().truncate(SIZES[0] as usize);
        let writes = || disks.iter().map(|disk| disk.writes.get()).collect::<Vec<_>>();
        let before = writes();
        let error = Vault::open(&env, some(&disks), &sized(SIZES[1])).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("the disk has 327680 bytes"), "{error}");
        assert_eq!(writes(), before);
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        vault.close().await.unwrap();
        // The smaller disk is absent during the growth.
        let alone = Options { may_degrade: true, ..sized(SIZES[1]) };
        let lowers = vec![Some(disks[0].lower()), None];
        drop(Vault::open(&env, lowers, &alone).await.unwrap());
        let error = Vault::open(&env, some(&disks), &SMALL).await.err().unwrap();
        assert!(error.to_string().contains("give it a larger disk"), "{error}");
    });
}

#[test]
fn vault_keeps_its_size_when_growth_finds_no_space() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = make(&env, 2, SIZES, &trace).await;
        let old = sizes_on(&disks[1].bytes.borrow()).unwrap();
        let new = Geometry::fit(SIZES[1], old.log_bytes, old.directory_pages).unwrap();
        disks[1].fails.set(Fails { zeroes_full: true, ..Fails::default() });
        let error = Vault::open(&env, some(&disks), &sized(SIZES[1])).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("new bytes of a vault"), "{error}");
        assert_eq!(disks[1].discarded.get(), new.end() - old.end(), "the new part alone");
        disks[1].fails.set(Fails::default());
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        assert_eq!(vault.geometry().bytes, SIZES[0]);
        assert_eq!(scene::shown(&vault).await.unwrap(), 0);
    });
}

#[test]
fn vault_grows_without_copy_that_fails_meanwhile() {
    for (writes, flushes) in (0..8).map(|writes| (Some(writes), false)).chain([(None, true)]) {
        let (world, trace) = (SimWorld::new(1), Trace::default());
        let env = world.env();
        block_on(&world, async {
            let disks = make(&env, 2, SIZES, &trace).await;
            disks[1].fails.set(Fails { writes_left: writes, flushes, ..Fails::default() });
            let vault = Vault::open(&env, some(&disks), &sized(SIZES[1])).await.unwrap();
            extend(&vault).await;
            scene::run(&vault, &trace, 1, 8).await.unwrap();
            assert_eq!(vault.copy_state(1).0, CopyState::Behind, "after {writes:?} writes");
            drop(vault);
            disks[1].fails.set(Fails::default());
            let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
            assert_eq!((vault.geometry().bytes, vault.copies()), (SIZES[1], 2));
            vault.rejoin(1).await.unwrap();
            drop(vault);
            let alone = Options { may_degrade: true, ..SMALL };
            let two = vec![None, Some(disks[1].lower())];
            let vault = Vault::open(&env, two, &alone).await.unwrap();
            assert_eq!(scene::shown(&vault).await.unwrap(), 8);
            assert!(is_extended(&vault).await);
        });
    }
}

#[test]
fn check_finds_damage_in_new_pages_of_vault() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    block_on(&world, async {
        let disks = make(&env, 2, LEVEL_SIZES, &trace).await;
        let old = sizes_on(&disks[0].bytes.borrow()).unwrap();
        let vault = Vault::open(&env, some(&disks), &sized(LEVEL_SIZES[1])).await.unwrap();
        fill(&vault).await;
        vault.close().await.unwrap();
        let vault = Vault::open(&env, some(&disks), &SMALL).await.unwrap();
        let new = vault.geometry();
        // A page of an object, and the page of the map above it.
        let pages = [new.pages - 1, new.parent(new.pages - 1).unwrap().0];
        for place in pages.into_iter().flat_map(|page| [new.home(page, 0), new.home(page, 1)]) {
            assert!(place >= old.end());
            disks[1].bytes.borrow_mut()[place as usize + 100] ^= 1;
        }
        let findings = vault.check().await.unwrap();
        assert_eq!((findings.count, findings.repairable), (2, true), "{:?}", findings.wrong);
        assert!(findings.wrong[0].contains(&format!("page {}", new.pages - 1)));
        assert!(findings.wrong[1].contains("page 1 in level 1 of the map"), "{:?}", findings.wrong);
        vault.close().await.unwrap();
    });
}
