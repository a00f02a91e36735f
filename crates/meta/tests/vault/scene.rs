//! A vault for the tests with one object of each type. Each step of a test changes all objects in one transaction.

use std::rc::Rc;

use block::{Env, Lower, Result};
use meta::vault::{Array, Bitmap, Cell, Codec, Log, ObjectId, Options, Shape, Spec, Vault};
use sim::SimWorld;
use zerocopy::little_endian::U64;

use testkit::recorded::{Disk, Event, Trace};

/// Bytes of a vault's disk: enough for the smallest log and a few pages.
pub const DISK_BYTES: usize = 320 << 10;

/// Number of records of the vault's array, on four pages.
pub const RECORDS: u64 = 2000;

/// Number of bits of the vault's bitmap, on two pages.
pub const BITS: u64 = 40_000;

pub const SHAPE: Shape = Shape { log_bytes: Some(64 << 10), objects: 8, bytes: None };

pub const SMALL: Options = Options {
    cache_bytes: 40 * 4096,
    read_only: false,
    may_degrade: false,
    vault: None,
    bytes: None,
};

/// The state of the vault's cell: the number of the last step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step(pub u64);

impl Codec for Step {
    fn encode(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self(bytes.try_into().map_or(0, u64::from_le_bytes)))
    }
}

/// The objects of the vault for the tests.
pub struct Objects {
    pub cell: Cell<Step>,
    pub array: Array<U64>,
    pub bits: Bitmap,
    pub log: Log,
}

pub fn block_on<T>(world: &SimWorld, future: impl Future<Output = T>) -> T {
    world.block_on(future).unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// Returns `count` disks of zeros that record their events in `trace`.
pub fn blank(count: usize, trace: &Trace) -> Vec<Rc<Disk>> {
    (0..count).map(|n| Disk::new(n, vec![0; DISK_BYTES], trace)).collect()
}

pub fn lowers(disks: &[Rc<Disk>]) -> Vec<Lower> {
    disks.iter().map(Disk::lower).collect()
}

pub fn some(disks: &[Rc<Disk>]) -> Vec<Option<Lower>> {
    disks.iter().map(|disk| Some(disk.lower())).collect()
}

/// Formats a vault on the disks, creates its objects, and closes the vault.
pub async fn format(env: &Env, disks: &[Rc<Disk>]) {
    format_as(env, disks, SHAPE).await;
}

/// Formats a vault of this shape as [`format`] does.
pub async fn format_as(env: &Env, disks: &[Rc<Disk>], shape: Shape) {
    Vault::format(env, &lowers(disks), shape).await.unwrap();
    let vault = Vault::open(env, some(disks), &SMALL).await.unwrap();
    let mut transaction = vault.begin();
    transaction.create(&Spec::cell("scene", 0, 100)).unwrap();
    transaction.create(&Spec::array::<U64>("scene", 1, RECORDS)).unwrap();
    transaction.create(&Spec::bitmap("scene", 2, BITS)).unwrap();
    transaction.create(&Spec::log("scene", 3, 6000)).unwrap();
    vault.commit(transaction).await.unwrap();
    vault.close().await.unwrap();
}

pub async fn objects(vault: &Vault) -> Result<Objects> {
    let find = |role| vault.find("scene", role).unwrap_or(ObjectId(u64::MAX));
    Ok(Objects {
        cell: Cell::new(vault, find(0)),
        array: Array::new(vault, find(1)),
        bits: Bitmap::new(vault, find(2)),
        log: Log::open(vault, find(3)).await?,
    })
}

fn place(step: u64) -> u64 {
    step * 577 % RECORDS
}

fn bit(step: u64) -> u64 {
    step * 7919 % (BITS - 20)
}

/// Commits step number `step`: one transaction that changes all objects.
pub async fn step(vault: &Vault, objects: &Objects, step: u64) -> Result<()> {
    let mut transaction = vault.begin();
    objects.cell.set(&mut transaction, &Step(step))?;
    objects.array.set(&mut transaction, place(step), &U64::new(step))?;
    objects.bits.put(&mut transaction, bit(step), 13, true)?;
    if step > 3 {
        objects.bits.put(&mut transaction, bit(step - 3), 13, false)?;
        let first = objects.log.get(objects.log.first()).await?.expect("there are entries");
        objects.log.trim(&mut transaction, first.next).await?;
    }
    objects.log.append(&mut transaction, &entry(step)).await?;
    vault.commit(transaction).await
}

fn entry(step: u64) -> Vec<u8> {
    vec![step as u8; 900 + step as usize % 7]
}

/// Returns the number of the last step in the vault. Checks that all objects have exactly the content of that step.
pub async fn shown(vault: &Vault) -> Result<u64> {
    let objects = objects(vault).await?;
    let Step(last) = objects.cell.get().await?;
    let mut records = vec![U64::ZERO; RECORDS as usize];
    objects.array.get_many(0, &mut records).await?;
    let mut expected = vec![U64::ZERO; RECORDS as usize];
    (1..=last).for_each(|step| expected[place(step) as usize] = U64::new(step));
    assert!(records == expected, "the array is not the one of step {last}");
    let live: Vec<u64> = (last.saturating_sub(2)..=last).filter(|step| *step > 0).collect();
    for step in &live {
        for bit in bit(*step)..bit(*step) + 13 {
            assert!(objects.bits.test(bit).await?, "the bits are not those of step {last}");
        }
    }
    let set = 13 * live.len() as u64;
    assert_eq!(objects.bits.count().await?, set, "bits of another step than {last}");
    let mut at = objects.log.first();
    for step in live {
        let found = objects.log.get(at).await?.expect("an entry of a live step");
        assert!(found.bytes == entry(step), "the log is not the one of step {last}");
        at = found.next;
    }
    assert_eq!(at, objects.log.next(), "the log goes on behind step {last}");
    Ok(last)
}

/// Commits the steps from `first` to `last`, and records the begin and the acknowledgement of each step in `trace`.
pub async fn run(vault: &Vault, trace: &Trace, first: u64, last: u64) -> Result<()> {
    let objects = objects(vault).await?;
    for number in first..=last {
        trace.note(Event::Begun(number));
        step(vault, &objects, number).await?;
        trace.note(Event::Answered(number));
    }
    Ok(())
}
