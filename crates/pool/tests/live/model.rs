//! A pool against a model: random changes, snapshots, clones, removals, checkpoints and openings.

use std::collections::BTreeMap;
use std::time::Duration;

use block::Env;
use pool::live::{FOLD_LEAVES, Options, Pool, Version};
use pool::map::Number;
use sim::SimWorld;
use sim::draw::Stream;
use testkit::recorded::{Disk, Trace};

use crate::scene::{
    self, BLOCKS, DISK_BYTES, OPTIONS, assert_whole, block_on, bytes, find, make, name, number,
    open_with, stamps, version,
};

/// Most vdisks at one time.
const VDISKS_MAX: usize = 4;

type Content = Vec<u64>;

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Scale {
    disk_bytes: usize,
    /// Blocks of a vdisk.
    blocks: u64,
    /// Writes of one step.
    writes: u64,
    fold_leaves: u64,
}

const SMALL: Scale =
    Scale { disk_bytes: DISK_BYTES, blocks: BLOCKS, writes: 1, fold_leaves: FOLD_LEAVES };

/// Maps have several leaves, and folds several parts.
const LARGE: Scale = Scale { disk_bytes: 128 << 20, blocks: 4096, writes: 200, fold_leaves: 1 };

/// The versions that a pool must have.
#[derive(Clone)]
struct Model {
    scale: Scale,
    /// Content of each head, and of each snapshot by number.
    vdisks: BTreeMap<String, (Content, BTreeMap<Number, Content>)>,
    made: u64,
    stamp: u64,
}

impl Model {
    fn vdisk(&self, draw: &Stream) -> Option<String> {
        let names: Vec<&String> = self.vdisks.keys().collect();
        (!names.is_empty()).then(|| names[draw.below(names.len() as u64) as usize].clone())
    }

    fn snapshot(&self, draw: &Stream) -> Option<(String, Number)> {
        let all: Vec<(String, Number)> = self
            .vdisks
            .iter()
            .flat_map(|(name, (_, snapshots))| snapshots.keys().map(|n| (name.clone(), *n)))
            .collect();
        (!all.is_empty()).then(|| all[draw.below(all.len() as u64) as usize].clone())
    }

    async fn write(&mut self, env: &Env, pool: &Pool, draw: &Stream) {
        let Some(vdisk) = self.vdisk(draw) else { return };
        let head = find(pool, &vdisk).await;
        for _ in 0..self.scale.writes {
            self.write_one(env, pool, &vdisk, &head, draw).await;
        }
    }

    async fn write_one(
        &mut self,
        env: &Env,
        pool: &Pool,
        vdisk: &str,
        head: &Version,
        draw: &Stream,
    ) {
        let (all, most) = match self.scale.writes {
            1 => (self.scale.blocks, 9),
            // Few blocks next to each other, so that there are many runs.
            _ => (self.scale.blocks, 2),
        };
        let block = draw.below(all);
        let blocks = draw.within(1, (all - block).min(most));
        let content = &mut self.vdisks.get_mut(vdisk).unwrap().0;
        let part = &mut content[block as usize..(block + blocks) as usize];
        if draw.below(4) == 0 {
            pool.zero(head, block, blocks).await.unwrap();
            part.fill(0);
        } else {
            pool.write(head, block, bytes(env, self.stamp, blocks)).await.unwrap();
            (0..).zip(part).for_each(|(n, stamp)| *stamp = self.stamp + n);
            self.stamp += blocks;
        }
    }

    async fn step(&mut self, env: &Env, pool: &Pool, draw: &Stream) {
        match draw.below(20) {
            0 if self.vdisks.len() < VDISKS_MAX => {
                self.made += 1;
                let new = format!("v{}", self.made);
                pool.create(&name(&new), self.scale.blocks * 4096).await.unwrap();
                self.vdisks.insert(new, (vec![0; self.scale.blocks as usize], BTreeMap::new()));
            }
            1..=3 => {
                let Some(vdisk) = self.vdisk(draw) else { return };
                let number = pool.snapshot(&[name(&vdisk)], None).await.unwrap()[0];
                let (content, snapshots) = self.vdisks.get_mut(&vdisk).unwrap();
                assert!(snapshots.last_key_value().is_none_or(|(last, _)| *last < number));
                snapshots.insert(number, content.clone());
            }
            4 if self.vdisks.len() < VDISKS_MAX => {
                let Some((vdisk, number)) = self.snapshot(draw) else { return };
                self.made += 1;
                let new = format!("v{}", self.made);
                let origin = version(&format!("{vdisk}@{number}"));
                pool.clone_of(&origin, &name(&new)).await.unwrap();
                let content = self.vdisks[&vdisk].1[&number].clone();
                self.vdisks.insert(new, (content, BTreeMap::new()));
            }
            5 => {
                let Some((vdisk, number)) = self.snapshot(draw) else { return };
                pool.remove(&version(&format!("{vdisk}@{number}"))).await.unwrap();
                self.vdisks.get_mut(&vdisk).unwrap().1.remove(&number);
            }
            6 if draw.below(3) == 0 => {
                let Some(vdisk) = self.vdisk(draw) else { return };
                pool.remove(&version(&vdisk)).await.unwrap();
                self.vdisks.remove(&vdisk);
            }
            10 => {
                let Some((vdisk, number)) = self.snapshot(draw) else { return };
                let to = version(&format!("{vdisk}@{number}"));
                let taken = pool.roll_back(&to).await.unwrap();
                let (content, snapshots) = self.vdisks.get_mut(&vdisk).unwrap();
                let before = std::mem::replace(content, snapshots[&number].clone());
                match taken {
                    Some(number) => drop(snapshots.insert(number, before)),
                    None => assert!(snapshots.values().any(|content| *content == before)),
                }
            }
            7 | 8 => pool.checkpoint().await.unwrap(),
            9 => pool.flush().await.unwrap(),
            _ => self.write(env, pool, draw).await,
        }
    }

    async fn check(&self, env: &Env, pool: &Pool) {
        let mut names: Vec<String> = Vec::new();
        for (vdisk, (content, snapshots)) in &self.vdisks {
            names.push(vdisk.clone());
            let head = find(pool, vdisk).await;
            let is = stamps(env, pool, &head, self.scale.blocks).await.unwrap();
            assert_eq!(is, *content, "{vdisk}");
            for (number, content) in snapshots {
                let text = format!("{vdisk}@{number}");
                let snapshot = find(pool, &text).await;
                let is = stamps(env, pool, &snapshot, self.scale.blocks).await.unwrap();
                assert_eq!(is, *content, "{text}");
                names.push(text);
            }
        }
        names.sort();
        assert_eq!(scene::names(pool).await.unwrap(), names);
    }
}

fn run(seed: u64, steps: u64, scale: Scale) {
    let world = SimWorld::new(seed);
    let (env, disk) = (world.env(), Disk::new(0, vec![0; scale.disk_bytes], &Trace::default()));
    let options = Options { fold_leaves: scale.fold_leaves, ..OPTIONS };
    let draw = Stream::new(seed, "steps", 0);
    block_on(&world, async {
        make(&env, &disk).await;
        let mut pool = open_with(&env, &disk, options).await.unwrap();
        let mut model = Model { scale, vdisks: BTreeMap::new(), made: 0, stamp: 1 };
        for step in 0..steps {
            model.step(&env, &pool, &draw).await;
            if draw.below(30) == 0 {
                // The process ends; the disk has all that it was sent.
                match draw.below(2) {
                    0 => pool.close().await.unwrap(),
                    // The keeper's checkpoint after a removal or rollback is over then.
                    _ => env.sleep(Duration::from_millis(1)).await,
                }
                drop(pool);
                pool = open_with(&env, &disk, options).await.unwrap();
            }
            if draw.below(12) == 0 {
                model.check(&env, &pool).await;
            }
            if draw.below(25) == 0 {
                let checked = pool.check().await.unwrap();
                assert_whole(&checked, &format!("seed {seed}, step {step}"));
            }
        }
        model.check(&env, &pool).await;
    });
}

/// Runs `count` seeds, or those that the environment names.
fn run_all(count: u64, steps: u64, scale: Scale) {
    let (first, count) = (number("SEED", 0), number("N", count));
    for seed in first..first + count {
        let ran = std::panic::catch_unwind(|| run(seed, steps, scale));
        if let Err(panic) = ran {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn pool_has_content_of_model_and_leaks_no_block() {
    run_all(50, 250, SMALL);
}

#[test]
fn pool_has_content_of_model_while_folds_span_checkpoints_and_openings() {
    run_all(4, 120, LARGE);
}
