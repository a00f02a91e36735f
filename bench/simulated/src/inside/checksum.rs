//! The rows of `checksum`: reads with all checksums in the cache.

use std::hint::black_box;
use std::rc::Rc;

use bench::rows::Row;
use bench::stats::{Median, median, ratio};
use block::{Buf, Device, Info, Lower, Needs, Op, Request, Result};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Seed};
use meta::Uuid;
use serde_json::json;

use crate::scene::{Scene, Target};

/// Share of the speed of plain reads with their checksums that reads must have.
const AIM: f64 = 0.9;

/// Bytes that the reads of one turn have together: few, because the speed of memory in a virtual machine differs from one
/// moment to the next.
const TURN_BYTES: u64 = 16 << 20;

/// Turns in a round.
const TURNS: u64 = 32;

/// A device that passes its reads on, and computes the checksums of their bytes: the least that a device with checksums does.
struct Least {
    lower: Lower,
    info: Info,
    seed: Seed,
}

impl Device for Least {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        self.lower.forward(&mut request.op).await?;
        if let Op::Read { range, into, .. } = &request.op {
            sum(&self.seed, range.start(), into);
        }
        Ok(())
    }
}

impl Least {
    fn on(lower: Lower) -> (Rc<Self>, Needs) {
        let info = lower.info().clone();
        (Rc::new(Self { lower, info, seed: seed() }), Needs::children(1))
    }
}

/// Measures reads of a disk in memory, of a device with checksums on it, of a device that only computes them, and of the
/// disk by a client that computes them itself, in turns.
pub fn reads(rounds: usize) -> Vec<Row> {
    let scenes = ["regions", "journal"].map(|crash| {
        let options = [("crash", Value::Text(crash.to_owned())), ("cache", Value::Size(32 << 20))];
        (crash, Scene::new("checksum", &options, Least::on))
    });
    let mut rows = Vec::new();
    for bytes in [4 << 10, 64 << 10] {
        for (crash, scene) in &scenes {
            rows.push(row(crash, bytes, rounds, scene));
        }
    }
    rows
}

/// Times of a read in each round, in nanoseconds.
#[derive(Default)]
struct Times {
    plain: Vec<f64>,
    device: Vec<f64>,
    least: Vec<f64>,
    client: Vec<f64>,
}

impl Times {
    fn add_round(&mut self, scene: &Scene, bytes: u64) {
        let (seed, mut sums) = (seed(), [0.0; 4]);
        for _ in 0..TURNS {
            let read = |from| scene.read_ns(from, TURN_BYTES / bytes, bytes, |_, _| ());
            let [plain, device, least] = [Target::Disk, Target::Device, Target::Rival].map(read);
            let visit = |at, buf: &Buf| sum(&seed, at, buf);
            let client = scene.read_ns(Target::Disk, TURN_BYTES / bytes, bytes, visit);
            let turn = [plain, device, least, client];
            sums.iter_mut().zip(turn).for_each(|(sum, ns)| *sum += ns / TURNS as f64);
        }
        let lists = [&mut self.plain, &mut self.device, &mut self.least, &mut self.client];
        lists.into_iter().zip(sums).for_each(|(list, ns)| list.push(ns));
    }
}

fn row(crash: &str, bytes: u64, rounds: usize, scene: &Scene) -> Row {
    let mut times = Times::default();
    (0..rounds).for_each(|_| times.add_round(scene, bytes));
    let Times { plain, device, least, client } = &times;
    let (of_device, of_least) = (ratio(client, device), ratio(client, least));
    let Median { value, low, high } = of_device;
    let [plain_ns, device_ns, client_ns] = [plain, device, client].map(|all| median(all).value);
    Row {
        id: format!("checksum-reads-{crash}-{bytes}"),
        title: format!(
            "checksum, {crash}: reads of {} KiB, checksums in the cache, in process",
            bytes >> 10
        ),
        aim: format!("{AIM} of 1 / (time without it + time of the CRC)"),
        figure: format!(
            "{value:.2} ({low:.2} to {high:.2}): {device_ns:.0} ns; without it and with the CRC {client_ns:.0} ns, \
             without both {plain_ns:.0} ns; the least device {:.2}",
            of_least.value
        ),
        holds: Some(value >= AIM),
        rounds: json!({ "plain_ns": plain, "device_ns": device, "least_ns": least, "client_ns": client }),
    }
}

fn seed() -> Seed {
    Seed::new(Uuid([7; 16]))
}

/// Computes the checksums of the blocks in `buf`, which were read at byte `at`.
fn sum(seed: &Seed, at: u64, buf: &Buf) {
    let bytes = buf.read();
    let addresses = (at..).step_by(BLOCK_BYTES as usize);
    for (block, address) in bytes.chunks_exact(BLOCK_BYTES as usize).zip(addresses) {
        black_box(seed.sum(address, block));
    }
}
