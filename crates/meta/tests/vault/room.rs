//! A vault with a full log: commits wait for a checkpoint, and the test crashes the vault at any moment meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block::Result;
use meta::vault::{Array, Spec, Vault};
use zerocopy::little_endian::U64;

use crate::model::{Run, SHAPE};
use crate::scene::block_on;

const SEEDS: u64 = 150;

/// Number of concurrent transactions. A checkpoint begins when half of the log is full. The transactions together are
/// longer than the other half, so the log fills up during the checkpoint.
const WRITERS: usize = 12;

/// Number of entries of a writer's array. Each transaction changes all entries.
const ENTRIES: u64 = 128;

fn array(vault: &Vault, writer: usize) -> Array<U64> {
    Array::new(vault, vault.find(&format!("writer{writer}"), 0).expect("it was created"))
}

async fn create_arrays(vault: &Vault) {
    for writer in 0..WRITERS {
        let mut transaction = vault.begin();
        transaction.create(&Spec::array::<U64>(&format!("writer{writer}"), 0, ENTRIES)).unwrap();
        vault.commit(transaction).await.unwrap();
    }
}

/// Commits transactions that set all entries of a writer's array to 1, to 2, and so on until the process is killed.
async fn count_up(vault: Vault, writer: usize, acknowledged: Rc<Cell<u64>>) -> Result<()> {
    let array = array(&vault, writer);
    loop {
        let next = U64::new(acknowledged.get() + 1);
        let mut transaction = vault.begin();
        (0..ENTRIES).try_for_each(|index| array.set(&mut transaction, index, &next))?;
        vault.commit(transaction).await?;
        acknowledged.set(next.get());
    }
}

#[test]
fn vault_opens_with_all_commits_after_crash_while_log_is_full() {
    let mut waited = 0;
    for seed in 0..SEEDS {
        let run = Run::new(seed);
        block_on(&run.world, async {
            Vault::format(&run.world.env(), &run.lowers(), SHAPE).await.unwrap();
        });
        run.crash(false);
        let acknowledged = [(); WRITERS].map(|()| Rc::new(Cell::new(0)));
        let vault = block_on(&run.world, run.open());
        block_on(&run.world, create_arrays(&vault));
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let counting = count_up(vault.clone(), writer, acknowledged.clone());
            run.world.env().spawn("writer", async move { drop(counting.await) });
        }
        let length = Duration::from_micros(run.random.within(100, 60_000));
        run.world.run(run.world.env().now().after(length)).unwrap();
        waited += vault.counters().waited;
        drop(vault);
        run.crash(run.random.chance(600_000));
        let vault = block_on(&run.world, run.open());
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let mut entries = vec![U64::ZERO; ENTRIES as usize];
            block_on(&run.world, array(&vault, writer).get_many(0, &mut entries)).unwrap();
            let (all, last) = (entries[0].get(), acknowledged.get());
            assert!(entries.iter().all(|entry| entry.get() == all), "seed {seed}: a half commit");
            assert!((last..=last + 1).contains(&all), "seed {seed}: {all} instead of {last}");
        }
    }
    println!("{waited} records waited for room");
    assert!(waited > SEEDS, "only {waited} records waited for room in the log");
}
