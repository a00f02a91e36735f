//! Runs the body of every fuzz target over seeded inputs: whole states with up to four wounds, and noise.

mod bodies;

use kinds::crypt::slots::{Cost, KeySlots, SLOTS, Slot};

const INPUTS: u64 = 20_000;

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
        (self.next() % end as u64) as usize
    }
}

fn whole(used: usize) -> Vec<u8> {
    let slot = Slot {
        cost: Cost { memory_kib: 65536, passes: 3, lanes: 4 },
        made_unix_s: 1,
        salt: [1; 32],
        nonce: [2; 12],
        wrapped: [3; 64],
        tag: [4; 16],
        label: "laptop".to_owned(),
    };
    let slots = std::array::from_fn(|n| (n < used).then(|| slot.clone()));
    KeySlots { unit: 4096, volume_id: [5; 16], check: [6; 32], slots }.encode()
}

#[test]
fn keyslots() {
    let mut taken = 0;
    for number in 0..INPUTS {
        let mut random = Random(number);
        let mut input = whole(1 + random.below(SLOTS));
        if number % 8 == 0 {
            input = (0..random.below(300)).map(|_| random.next() as u8).collect();
        } else {
            for _ in 0..random.below(5) {
                let at = random.below(input.len());
                input[at] = [0, 1, 0x7f, 0xff, random.next() as u8][random.below(5)];
            }
        }
        taken += u64::from(KeySlots::parse(&input).is_ok());
        bodies::keyslots(&input);
    }
    assert!(taken > INPUTS / 10 && taken < INPUTS, "{taken} of {INPUTS} were taken");
}
