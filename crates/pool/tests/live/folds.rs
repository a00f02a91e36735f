//! Folds over several checkpoints, with crashes in any of them.

use std::collections::BTreeMap;
use std::time::Duration;

use block::Env;
use pool::live::{Options, Pool};
use pool::map::Number;

use crate::machine::Machine;
use crate::scene::{OPTIONS, assert_whole, block_on, bytes, find, name, number, stamps, version};

const DISK_BYTES: u64 = 128 << 20;

/// Blocks of the vdisk, so many that its map has several leaves.
const BLOCKS: u64 = 4096;

/// Writes between two crashes: more than an eighth of the map.
const WRITES: u64 = 600;

const SNAPSHOTS_MAX: usize = 4;

/// Every checkpoint folds one leaf.
const SHORT: Options = Options { fold_leaves: 1, ..OPTIONS };

/// The content of the head, and of the snapshots.
struct Model {
    head: Vec<u64>,
    snapshots: BTreeMap<Number, Vec<u64>>,
    stamp: u64,
}

impl Model {
    async fn check(&self, env: &Env, pool: &Pool, what: &str) {
        let head = find(pool, "web").await;
        assert!(stamps(env, pool, &head, BLOCKS).await.unwrap() == self.head, "{what}: the head");
        for (number, content) in &self.snapshots {
            let snapshot = find(pool, &format!("web@{number}")).await;
            let is = stamps(env, pool, &snapshot, BLOCKS).await.unwrap();
            assert!(is == *content, "{what}: snapshot {number}");
        }
        assert_whole(&pool.check().await.unwrap(), what);
    }

    /// Writes, takes a snapshot and removes one, all durable at the end.
    async fn change(&mut self, machine: &Machine, pool: &Pool) {
        let (env, draw) = (machine.env(), &machine.draw);
        let head = find(pool, "web").await;
        for _ in 0..draw.within(1, WRITES) {
            let block = draw.below(BLOCKS);
            if draw.below(8) == 0 {
                pool.zero(&head, block, 1).await.unwrap();
                self.head[block as usize] = 0;
            } else {
                self.stamp += 1;
                pool.write(&head, block, bytes(&env, self.stamp, 1)).await.unwrap();
                self.head[block as usize] = self.stamp;
            }
        }
        let taken = pool.snapshot(&[name("web")], None).await.unwrap()[0];
        self.snapshots.insert(taken, self.head.clone());
        if self.snapshots.len() > SNAPSHOTS_MAX {
            let numbers: Vec<Number> = self.snapshots.keys().copied().collect();
            let number = numbers[draw.below(numbers.len() as u64) as usize];
            pool.remove(&version(&format!("web@{number}"))).await.unwrap();
            self.snapshots.remove(&number);
        }
        pool.flush().await.unwrap();
    }
}

fn run(seed: u64) {
    let machine = Machine::new(seed, DISK_BYTES);
    machine.crash();
    let mut model = Model { head: vec![0; BLOCKS as usize], snapshots: BTreeMap::new(), stamp: 0 };
    for life in 0..12 {
        let pool = machine.open(SHORT);
        block_on(&machine.world, async {
            match life {
                0 => drop(pool.create(&name("web"), BLOCKS * 4096).await.unwrap()),
                _ => model.check(&machine.env(), &pool, &format!("seed {seed}, life {life}")).await,
            }
            model.change(&machine, &pool).await;
        });
        machine.env().spawn("checkpoints", async move {
            loop {
                pool.checkpoint().await.unwrap();
            }
        });
        machine.run(Duration::from_micros(machine.draw.within(1, 20_000)));
        machine.crash();
    }
}

#[test]
fn folds_in_parts_lose_and_leak_nothing_in_crashes() {
    let first = number("SEED", 0);
    (first..first + number("N", 4)).for_each(run);
}
