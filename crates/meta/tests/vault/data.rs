//! Tests of data blocks outside the vault to which its map refers: after every power cut, and after their loss.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Child, Env, ErrorKind, Lower, Op, all};
use meta::vault::page::checksum;
use meta::vault::{Array, Data, Options, Shape, Spec, Vault};
use sim::SimWorld;
use zerocopy::little_endian::U64;

use crate::crashes::{Played, moments, some_cuts};
use crate::scene::{self, DISK_BYTES, SMALL, block_on};
use testkit::copied::Copied;
use testkit::recorded::{Disk, Event, Fails, SECTOR, Trace};

/// Bytes of a data block on the disk.
const PLACE: usize = 2 * SECTOR;

const PLACES: usize = 8;

/// Number of entries in the vault's map from blocks to places on the disk.
const BLOCKS: u64 = 3;

/// Bit that is set in every byte of a data block that was overwritten in place.
const CHANGED: u8 = 0x80;

/// Value of every byte of a sector whose write a power cut has interrupted.
const GARBAGE: u8 = 0xda;

/// Number of states of one disk that are combined with each state of the other disk: no unflushed write kept, all kept,
/// every second write kept.
pub const FEW: usize = 3;

/// The vault's disk and a second disk for the data, or one disk with the data behind the vault.
pub struct Disks(Vec<Rc<Disk>>);

impl Disks {
    fn blank(apart: bool, trace: &Trace) -> Self {
        // The former content does not matter.
        let junk = vec![0xee; PLACES * PLACE];
        let blank = vec![0; DISK_BYTES];
        let images = if apart { vec![blank, junk] } else { vec![[blank, junk].concat()] };
        Self::of(images, trace)
    }

    pub fn of(images: Vec<Vec<u8>>, trace: &Trace) -> Self {
        let disk = |(n, bytes)| Disk::new(n, bytes, trace);
        Self(images.into_iter().enumerate().map(disk).collect())
    }

    fn data(&self) -> Lower {
        // The node number distinguishes the disks.
        let disk = self.0.last().expect("there is one");
        let info = block::Info::disk(disk.bytes.borrow().len() as u64, 512);
        Lower::new(disk.clone(), self.0.len() - 1, info, "data".into())
    }

    fn start(&self) -> u64 {
        if self.0.len() == 1 { DISK_BYTES as u64 } else { 0 }
    }

    fn range(&self, place: u64) -> ByteRange {
        ByteRange::new(self.start() + place * PLACE as u64, PLACE as u64).unwrap()
    }

    async fn format(&self, env: &Env) {
        let shape = Shape { bytes: Some(DISK_BYTES as u64), ..scene::SHAPE };
        Vault::format(env, &[self.0[0].lower()], shape).await.unwrap();
        let vault = self.open(env, &SMALL).await.unwrap();
        let mut transaction = vault.begin();
        transaction.create(&Spec::array::<U64>("map", 0, BLOCKS)).unwrap();
        vault.commit(transaction).await.unwrap();
        vault.close().await.unwrap();
    }

    /// Formats the disks, and opens the vault.
    async fn create(&self, env: &Env) -> Vault {
        self.format(env).await;
        self.open(env, &SMALL).await.unwrap()
    }

    pub async fn open(&self, env: &Env, options: &Options) -> block::Result<Vault> {
        let vault = vec![Some(self.0[0].lower())];
        Vault::open_with_data(env, vault, self.data(), options).await
    }

    /// Fills the data block number `place` with `byte`, without a flush.
    async fn write(&self, env: &Env, place: u64, byte: u8) {
        self.start_write(env, place, byte).await.result.unwrap();
    }

    fn start_write(&self, env: &Env, place: u64, byte: u8) -> Child {
        let buf = env.buf(PLACE).unwrap();
        buf.write().fill(byte);
        self.data().start(Op::write(self.range(place), buf))
    }

    /// Checks the data of the steps in `shown`. Those of [`CHANGED_STEP`] may be changed in place if `may_change`.
    pub fn check_data(&self, shown: &[Option<u64>], may_change: bool, what: &str) {
        for step in shown.iter().flatten() {
            let bytes = self.bytes(*step);
            let (old, may_change) = (*step as u8, may_change && *step == CHANGED_STEP);
            let changed = |byte: &u8| may_change && [old | CHANGED, GARBAGE].contains(byte);
            assert!(
                bytes.iter().all(|byte| *byte == old || changed(byte)),
                "{what}: step {step} holds {:x}",
                bytes[0]
            );
        }
    }

    fn bytes(&self, place: u64) -> Vec<u8> {
        let from = self.range(place).start() as usize;
        self.0.last().unwrap().bytes.borrow()[from..from + PLACE].to_vec()
    }
}

fn map(vault: &Vault) -> Array<U64> {
    Array::new(vault, vault.find("map", 0).expect("it was made"))
}

/// Makes step `step` durable: writes a new data block, and a transaction that maps one of the map's entries to it.
async fn put(env: &Env, disks: &Disks, vault: &Vault, step: u64) {
    post(env, disks, vault, step).await;
    vault.sync().await.unwrap();
}

/// Posts step `step`, and writes its data block at the same time.
pub async fn post(env: &Env, disks: &Disks, vault: &Vault, step: u64) {
    try_post(env, disks, vault, step).await.unwrap();
}

async fn try_post(env: &Env, disks: &Disks, vault: &Vault, step: u64) -> block::Result<u64> {
    let data = Data { range: disks.range(step), checksum: checksum(&[step as u8; PLACE]) };
    let mut transaction = vault.begin();
    let number = U64::new(step + 1);
    map(vault).set_with_data(&mut transaction, step % BLOCKS, &number, &data).unwrap();
    transaction.write_beside([disks.start_write(env, step, step as u8)]);
    vault.post(transaction).await
}

/// Overwrites the data block of a step in place, and flushes the disk.
async fn change(env: &Env, disks: &Disks, vault: &Vault, step: u64) {
    vault.wait_until_changeable(disks.range(step)).await.unwrap();
    disks.write(env, step, step as u8 | CHANGED).await;
    disks.data().call(Op::Flush).await.result.unwrap();
}

fn play(apart: bool) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(apart, &trace);
    block_on(&world, disks.format(&env));
    trace.take();
    let before = disks.0.iter().map(|disk| disk.bytes.borrow().clone()).collect();
    block_on(&world, async {
        let vault = disks.open(&env, &SMALL).await.unwrap();
        for step in 1..=4 {
            trace.note(Event::Begun(2 * step - 1));
            put(&env, &disks, &vault, step).await;
            trace.note(Event::Answered(2 * step - 1));
            if step == 3 {
                vault.flush().await.unwrap();
            }
            trace.note(Event::Begun(2 * step));
            change(&env, &disks, &vault, step).await;
            trace.note(Event::Answered(2 * step));
        }
    });
    Played { before, events: trace.take() }
}

/// Checks the map and the data blocks after a power cut. Each entry of the map must show its last acknowledged step, or
/// the step in progress. `least` and `most`: the numbers of the last half steps acknowledged and begun.
async fn look(disks: &Disks, vault: &Vault, least: u64, most: u64, what: &str) {
    for block in 0..BLOCKS {
        let last =
            |half_steps: u64| (1..=half_steps.div_ceil(2)).rev().find(|n| n % BLOCKS == block);
        let number = map(vault).get(block).await.unwrap().get();
        let shown = number.checked_sub(1);
        assert!(
            [last(least), last(most)].contains(&shown),
            "{what}: block {block} is at {shown:?}; {least} of {most} half steps were answered"
        );
        let Some(step) = shown else { continue };
        let bytes = disks.bytes(step);
        let (old, new) = (step as u8, step as u8 | CHANGED);
        let may_be_old = least < 2 * step;
        let may_be_new = most >= 2 * step;
        let torn = may_be_old && may_be_new;
        let right = |byte: &u8| match *byte {
            GARBAGE => torn,
            byte => (byte == old && may_be_old) || (byte == new && may_be_new),
        };
        assert!(bytes.iter().all(right), "{what}: block {block} holds {:x}", bytes[0]);
    }
}

/// Opens the vault twice after every power cut in the recording, and calls `look` with the disks, the vault, and the
/// numbers of the last acknowledged and the last begun step. Returns the number of crash states.
fn every_cut(played: &Played, look: impl AsyncFn(&Disks, &Vault, u64, u64, &str)) -> usize {
    let apart = played.before.len() > 1;
    let mut states = 0;
    moments(played, |event, disks, answered, begun| {
        let mut judge = |images: Vec<Vec<u8>>| {
            states += 1;
            let (world, trace) = (SimWorld::new(2), Trace::default());
            let env = world.env();
            let disks = Disks::of(images, &trace);
            let what = format!("apart {apart}, at event {event}");
            block_on(&world, async {
                for _ in 0..2 {
                    let vault = disks.open(&env, &SMALL).await;
                    let vault = vault.unwrap_or_else(|error| panic!("{what}: {error}"));
                    look(&disks, &vault, answered, begun, &what).await;
                }
            });
        };
        match disks {
            [one] => one.cuts(|image| judge(vec![image])),
            [vault, data] => {
                for one in some_cuts(data).into_iter().take(FEW) {
                    vault.cuts(|image| judge(vec![image, one.clone()]));
                }
                for one in some_cuts(vault).into_iter().take(FEW) {
                    data.cuts(|image| judge(vec![one.clone(), image]));
                }
            }
            _ => unreachable!("there are no more"),
        }
    });
    states
}

#[test]
fn vault_keeps_committed_data_after_power_cut_of_one_disk() {
    let states = every_cut(&play(false), look);
    assert!(states > 1000, "only {states} states");
}

#[test]
fn vault_keeps_committed_data_after_power_cut_of_two_disks() {
    let states = every_cut(&play(true), look);
    assert!(states > 1000, "only {states} states");
}

#[test]
fn vault_commit_with_data_costs_one_flush_of_each_disk() {
    for apart in [false, true] {
        let world = SimWorld::new(1);
        let env = world.env();
        block_on(&world, async {
            let disks = Disks::blank(apart, &Trace::default());
            let vault = disks.create(&env).await;
            let flushes = || disks.0.iter().map(|disk| disk.flushes.get()).collect::<Vec<_>>();
            let before = flushes();
            put(&env, &disks, &vault, 1).await;
            let after: Vec<u64> = before.iter().map(|count| count + 1).collect();
            assert_eq!(flushes(), after);
            vault.wait_until_changeable(disks.range(2)).await.unwrap();
            assert_eq!(flushes(), after, "nobody has named that");
            for _ in 0..2 {
                vault.wait_until_changeable(disks.range(1)).await.unwrap();
                assert_eq!(flushes()[0], after[0] + 1, "once is enough");
            }
        });
    }
}

/// Posts three steps, and makes the first `durable` of them durable, or proves them. Then destroys the data of `step` on
/// the disk, past the vault. Returns the step that each block shows after an opening.
fn destroyed(step: u64, durable: u64, is_proven: bool) -> Vec<Option<u64>> {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(true, &trace);
    block_on(&world, async {
        let vault = disks.create(&env).await;
        for step in 1..=3 {
            post(&env, &disks, &vault, step).await;
            if step == durable {
                if is_proven { vault.prove().await.unwrap() } else { vault.sync().await.unwrap() }
            }
        }
        drop(vault);
        disks.write(&env, step, GARBAGE).await;
        let read_only = Options { read_only: true, ..SMALL };
        let looked = disks.open(&env, &read_only).await.unwrap();
        let seen = steps_of(&looked).await;
        drop(looked);
        for _ in 0..2 {
            let vault = disks.open(&env, &SMALL).await.unwrap();
            assert_eq!(steps_of(&vault).await, seen, "it stays so");
        }
        let vault = disks.open(&env, &SMALL).await.unwrap();
        put(&env, &disks, &vault, 4).await;
        assert_eq!(map(&vault).get(4 % BLOCKS).await.unwrap().get(), 5, "the log goes on");
        seen
    })
}

/// Returns the step that each block of the map shows.
pub async fn steps_of(vault: &Vault) -> Vec<Option<u64>> {
    let mut all = Vec::new();
    for block in 0..BLOCKS {
        all.push(map(vault).get(block).await.unwrap().get().checked_sub(1));
    }
    all
}

#[test]
fn vault_log_ends_at_first_unflushed_record_with_damaged_data() {
    assert_eq!(destroyed(2, 0, false), [None, Some(1), None]);
    assert_eq!(destroyed(3, 0, false), [None, Some(1), Some(2)]);
    // Step 3 states that step 1 is flushed, but not that step 2 is.
    assert_eq!(destroyed(2, 1, false), [None, Some(1), None]);
}

#[test]
fn vault_never_replays_record_that_earlier_opening_has_dropped() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(true, &trace);
    block_on(&world, async {
        let vault = disks.create(&env).await;
        post(&env, &disks, &vault, 1).await;
        drop(vault);
        disks.write(&env, 1, GARBAGE).await;
        drop(disks.open(&env, &SMALL).await.unwrap());
        // The data now match the dropped record, which is still in the ring.
        disks.write(&env, 1, 1).await;
        let vault = disks.open(&env, &SMALL).await.unwrap();
        assert_eq!(steps_of(&vault).await, [None; BLOCKS as usize]);
    });
}

/// Posts in one record a step whose data cannot be written and a transaction without data, then one more step, and kills
/// the process.
#[test]
fn vault_keeps_posts_beside_and_behind_failed_data_after_kill() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(true, &trace);
    block_on(&world, async {
        let vault = disks.create(&env).await;
        disks.0[1].fails.set(Fails { writes_left: Some(0), ..Fails::default() });
        let with_data = async || try_post(&env, &disks, &vault, 1).await;
        let without_data = async || {
            let mut transaction = vault.begin();
            map(&vault).set(&mut transaction, 2, &U64::new(8)).unwrap();
            vault.post(transaction).await
        };
        let both: Vec<Pin<Box<dyn Future<Output = _>>>> =
            vec![Box::pin(with_data()), Box::pin(without_data())];
        let results = all(both).await;
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::Io);
        results[1].as_ref().unwrap();
        assert_eq!(steps_of(&vault).await, [None, None, Some(7)]);
        disks.0[1].fails.set(Fails::default());
        post(&env, &disks, &vault, 3).await;
        drop(vault);
        let vault = disks.open(&env, &SMALL).await.unwrap();
        assert_eq!(steps_of(&vault).await, [Some(3), None, Some(7)]);
    });
}

#[test]
fn vault_under_load_without_flushes_proves_records_within_seven_seconds() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(false, &trace);
    block_on(&world, async {
        let vault = disks.create(&env).await;
        let (before, mut posted) = (disks.0[0].flushes.get(), Vec::new());
        // Few enough records that no checkpoint is due.
        for round in 0..9 {
            let mut transaction = vault.begin();
            map(&vault).set(&mut transaction, 0, &U64::new(round)).unwrap();
            posted.push((vault.post(transaction).await.unwrap(), env.now()));
            env.sleep(Duration::from_millis(900)).await;
            let late = posted.iter().find(|(number, at)| {
                !vault.is_proven(*number) && env.now().since(*at) > Duration::from_secs(7)
            });
            assert_eq!(late, None, "round {round}");
        }
        assert_eq!(disks.0[0].flushes.get() - before, 2, "one proof");
    });
}

#[test]
fn vault_replays_flushed_record_whatever_its_data() {
    assert_eq!(destroyed(2, 2, false), [Some(3), Some(1), Some(2)]);
    assert_eq!(destroyed(3, 3, true), [Some(3), Some(1), Some(2)]);
}

#[test]
fn vault_with_unflushed_data_opens_for_writing_only_with_data_disk() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(true, &trace);
    block_on(&world, async {
        let vault = disks.create(&env).await;
        post(&env, &disks, &vault, 1).await;
    });
    let blind = block_on(&world, Vault::open(&env, vec![Some(disks.0[0].lower())], &SMALL));
    let words = blind.err().expect("the data cannot be checked").to_string();
    assert!(words.contains("its data disk"), "{words}");
}

/// Number of steps of [`play_posts`].
pub const POSTS: u64 = 5;

/// Step of [`play_posts`] with data that change in place.
const CHANGED_STEP: u64 = 4;

/// Posts the steps. The third and the last are made durable. Data of the last but one change in place before the end.
pub fn play_posts(apart: bool) -> Played {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = Disks::blank(apart, &trace);
    block_on(&world, disks.format(&env));
    trace.take();
    let before = disks.0.iter().map(|disk| disk.bytes.borrow().clone()).collect();
    block_on(&world, async {
        let vault = disks.open(&env, &SMALL).await.unwrap();
        for step in 1..=POSTS {
            trace.note(Event::Begun(step));
            post(&env, &disks, &vault, step).await;
            if step == 3 {
                vault.sync().await.unwrap();
                trace.note(Event::Answered(step));
            }
        }
        change(&env, &disks, &vault, CHANGED_STEP).await;
        vault.sync().await.unwrap();
        trace.note(Event::Answered(POSTS));
    });
    Played { before, events: trace.take() }
}

/// Returns the possible states of the map: the first steps up to one of `least` to `most`.
pub fn first_posts(least: u64, most: u64) -> Vec<Vec<Option<u64>>> {
    let after = |steps: u64| {
        (0..BLOCKS).map(|block| (1..=steps).rev().find(|n| n % BLOCKS == block)).collect()
    };
    (least..=most).map(after).collect()
}

/// Checks that the map shows the first steps up to one of `least` to `most`, with the data of these steps.
async fn look_at_posts(disks: &Disks, vault: &Vault, least: u64, most: u64, what: &str) {
    let shown = steps_of(vault).await;
    assert!(
        first_posts(least, most).contains(&shown),
        "{what}: the map shows {shown:?}; {least} of {most} steps were durable"
    );
    disks.check_data(&shown, most == POSTS, what);
}

#[test]
fn vault_keeps_first_posts_after_power_cut() {
    for apart in [false, true] {
        let states = every_cut(&play_posts(apart), look_at_posts);
        assert!(states > 300, "only {states} states");
    }
}

/// Data of an unflushed record that are wrong on one copy of a redundant disk are taken from the other, and written again.
#[test]
fn vault_replay_restores_named_data_from_other_copy_of_disk() {
    for wrong in 0..2 {
        let (world, trace) = (SimWorld::new(1), Trace::default());
        let env = world.env();
        let disks = Disks::blank(true, &trace);
        block_on(&world, async {
            let vault = disks.create(&env).await;
            for step in 1..4 {
                post(&env, &disks, &vault, step).await;
            }
            drop(vault);
            let one = &disks.0[1];
            let both = [1, 2].map(|n| Disk::new(n, one.bytes.borrow().clone(), &trace));
            both[wrong].bytes.borrow_mut()[2 * PLACE] ^= 1;
            let device = Copied::new(both.clone());
            let data = Lower::new(device.clone(), 1, device.lower().info().clone(), "data".into());
            let open = async |options: &Options| {
                let vault = vec![Some(disks.0[0].lower())];
                let vault =
                    Vault::open_with_data(&env, vault, data.clone(), options).await.unwrap();
                let mut entries = [U64::ZERO; BLOCKS as usize];
                map(&vault).get_many(0, &mut entries).await.unwrap();
                entries.map(u64::from)
            };
            let read_only = open(&Options { read_only: true, ..SMALL }).await;
            assert_eq!(device.restores.get(), 0);
            // Without a write to the wrong copy, a later read could find it.
            assert_eq!(read_only == [4, 2, 3], wrong == 1, "{read_only:?}");
            assert_eq!(open(&SMALL).await, [4, 2, 3]);
            assert!(wrong == 1 || *both[0].bytes.borrow() == *both[1].bytes.borrow());
        });
    }
}
