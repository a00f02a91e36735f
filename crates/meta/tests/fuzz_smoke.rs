//! Runs the body of the fuzz target over seeded inputs: a label with wounds, and noise.

mod bodies;

use std::collections::BTreeMap;

use meta::{Cell, Label, Machine, Uuid};

const INPUTS: u64 = 4000;

/// A small generator of its own, so that a seed means the same input for ever (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn seed() -> Vec<u8> {
    let cell = |n: u8| (format!("device{n}"), Cell { sequence: u64::from(n), bytes: vec![n; 40] });
    let label = Label {
        sequence: 7,
        epoch: 2,
        disk: Uuid([1; 16]),
        disk_name: "a".to_owned(),
        graph: Uuid([2; 16]),
        graph_name: "home".to_owned(),
        data_bytes: 1 << 20,
        block_size: 4096,
        written_unix_s: 1,
        holder: Some(Machine::new("here", [3; 16])),
        forming: false,
        spec: "name = \"home\"\n".to_owned(),
        cells: BTreeMap::from([cell(1), cell(2)]),
        unknown_read_only: 0,
    };
    label.encode().unwrap()
}

#[test]
fn labels() {
    let seed = seed();
    for number in 0..INPUTS {
        let mut random = Random(number);
        let mut input = seed.clone();
        if number % 4 == 0 {
            input = (0..random.below(2000)).map(|_| random.next() as u8).collect();
        } else {
            for _ in 0..random.below(5) {
                let at = random.below(input.len());
                match random.below(3) {
                    0 => input.truncate(at.max(1)),
                    1 => input.insert(at, random.next() as u8),
                    _ => input[at] = [0, 1, 0x7f, 0xff, random.next() as u8][random.below(5)],
                }
            }
        }
        bodies::label(&input);
    }
}
