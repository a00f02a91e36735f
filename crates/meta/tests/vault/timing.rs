//! Tests of a vault on simulated disks with operations that take time: reads, checkpoints and proofs beside transactions.

use std::rc::Rc;
use std::time::Duration;

use block::{ErrorKind, Result};
use meta::vault::{Array, Cell, Codec, SEALED_AFTER, Spec};
use sim::Faults;
use sim::draw::Stream;
use zerocopy::little_endian::U64;

use crate::blocks::{Blocks, SLOTS};
use crate::model::Run;
use crate::scene::block_on;

/// Fails the data of a transaction, and begins a second checkpoint at a random moment while the first drops the record. Then
/// kills the process.
#[test]
fn vault_never_shows_transaction_with_failed_data_beside_any_checkpoint() {
    for seed in 0..200 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::array::<U64>("map", 0, SLOTS)).unwrap();
            vault.commit(transaction).await.unwrap();
            run.data_disk.set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
            let (flushing, delay) = (vault.clone(), Duration::from_micros(run.random.below(5_000)));
            let sleep = env.sleep(delay);
            env.spawn("a checkpoint", async move {
                sleep.await;
                drop(flushing.flush().await);
            });
            let data = run.data.borrow().clone().expect("the vault is open");
            let (blocks, random) = (Blocks::new(&env, &data, 0, &[]), Stream::new(seed, "slot", 0));
            let (mut transaction, mut map) = (vault.begin(), [0; SLOTS as usize]);
            blocks.put(&vault, id, &mut transaction, &mut map, &random).unwrap();
            let error = vault.post(transaction).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            env.sleep(Duration::from_millis(20)).await;
        });
        run.crash(false);
        block_on(&run.world, async {
            let vault = run.open().await;
            let map = Array::<U64>::new(&vault, vault.find("map", 0).unwrap());
            let mut records = vec![U64::new(1); SLOTS as usize];
            map.get_many(0, &mut records).await.unwrap();
            assert!(records.iter().all(|record| *record == U64::ZERO), "seed {seed}");
        });
    }
}

#[test]
fn closed_vault_has_no_write_in_flight() {
    for seed in 0..60 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            let mut transaction = vault.begin();
            transaction.create(&Spec::cell("closed", 0, 100)).unwrap();
            vault.commit(transaction).await.unwrap();
            // The proof of the commit becomes due during the close, or soon after.
            let early = Duration::from_micros(run.random.below(3_000));
            env.sleep(SEALED_AFTER.saturating_sub(early)).await;
            vault.close().await.unwrap();
        });
        let left: Vec<_> = run.disks.iter().flat_map(|disk| disk.in_flight()).collect();
        assert!(left.is_empty(), "seed {seed}: after the close: {left:?}");
    }
}

#[test]
fn vault_shows_changes_only_when_their_post_returns() {
    for seed in 0..20 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::array::<U64>("a", 0, 10)).unwrap();
            vault.commit(transaction).await.unwrap();
            let is_posted = Rc::new(std::cell::Cell::new(false));
            let (poster, done) = (vault.clone(), is_posted.clone());
            env.spawn("a post", async move {
                let mut transaction = poster.begin();
                Array::new(&poster, id).set(&mut transaction, 3, &U64::new(7)).unwrap();
                poster.post(transaction).await.unwrap();
                done.set(true);
            });
            let array = Array::<U64>::new(&vault, id);
            while array.get(3).await.unwrap() == U64::ZERO {
                env.sleep(Duration::from_micros(1)).await;
            }
            // The writes of the record take longer than the wake-up of the caller.
            env.give_way().await;
            assert!(is_posted.get(), "seed {seed}: the array changed before the post returned");
        });
    }
}

/// The state of a cell for a test: bytes that fill several pages.
struct Bytes(Vec<u8>);

impl Codec for Bytes {
    fn encode(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self(bytes.to_vec()))
    }
}

#[test]
fn vault_read_of_deleted_object_leaves_next_object_intact() {
    for seed in 0..20 {
        let run = Run::new(seed);
        let env = run.world.env();
        block_on(&run.world, async {
            let vault = run.create().await;
            for round in 0..10_u8 {
                let mut transaction = vault.begin();
                let id = transaction.create(&Spec::cell("a", 0, 12_000)).unwrap();
                let cell = Cell::<Bytes>::new(&vault, id);
                cell.set(&mut transaction, &Bytes(vec![round; 7000])).unwrap();
                vault.commit(transaction).await.unwrap();
                vault.flush().await.unwrap();
                for _ in 0..4 {
                    vault.unload(id).await.unwrap();
                    let (reader, other, key) = (vault.clone(), env.clone(), run.random.next());
                    env.spawn("a reader", async move {
                        let cell = Cell::<Bytes>::new(&reader, id);
                        while let Ok(Bytes(bytes)) = cell.get().await {
                            assert!(bytes.is_empty() || bytes == vec![round; 7000]);
                            if key % 3 == 0 {
                                let _ = reader.unload(id).await;
                            }
                            other.sleep(Duration::from_micros(1 + key % 50)).await;
                        }
                    });
                }
                let mut transaction = vault.begin();
                transaction.delete(id).unwrap();
                vault.commit(transaction).await.unwrap();
                let mut transaction = vault.begin();
                let next = transaction.create(&Spec::cell("b", round.into(), 12_000)).unwrap();
                let cell = Cell::<Bytes>::new(&vault, next);
                cell.set(&mut transaction, &Bytes(vec![!round; 6000])).unwrap();
                vault.commit(transaction).await.unwrap();
                env.sleep(Duration::from_millis(2)).await;
                assert!(cell.get().await.unwrap().0 == vec![!round; 6000], "seed {seed}");
                let mut transaction = vault.begin();
                transaction.delete(next).unwrap();
                vault.commit(transaction).await.unwrap();
            }
        });
        run.crash(false);
    }
}
