//! Runs the body of a fuzz target over a few thousand inputs, which are the same in each `cargo test`.

use sim::draw::Stream;

/// Number of inputs for the body of a fuzz target.
pub const INPUTS: u64 = 4000;

/// One input of this many is random bytes; the other inputs are mutated valid inputs.
const NOISE_EVERY: u64 = 4;

/// Length in bytes of the longest random input.
const NOISE_BYTES_MAX: u64 = 2000;

/// Largest number of mutations of one valid input.
const WOUNDS_MAX: u64 = 4;

/// Length in bytes of the longest mutated input. Without the limit, mutations could double an input repeatedly.
const INPUT_BYTES_MAX: usize = 32 << 10;

/// Byte values for mutations: limits that a parser probably checks.
const EDGES: [u8; 4] = [0, 1, 0x7f, 0xff];

/// Runs `body` over [`INPUTS`] inputs. A quarter of them are random bytes; the others are from `whole`, with up to
/// four mutations. No input is empty.
///
/// # Panics
/// If `whole` is empty, or if `body` panics.
pub fn smoke(whole: &[Vec<u8>], mut body: impl FnMut(&[u8])) {
    for number in 0..INPUTS {
        let draw = Stream::new(number, "smoke", 0);
        let mut input: Vec<u8> = Vec::new();
        if number % NOISE_EVERY == 0 {
            input.extend((0..draw.below(NOISE_BYTES_MAX)).map(|_| draw.next() as u8));
        } else {
            input.clone_from(&whole[draw.below(whole.len() as u64) as usize]);
            (0..draw.below(WOUNDS_MAX + 1)).for_each(|_| wound(&mut input, &draw));
        }
        if input.is_empty() {
            input.push(0);
        }
        body(&input);
    }
}

fn wound(input: &mut Vec<u8>, draw: &Stream) {
    let at = draw.below(input.len().max(1) as u64) as usize;
    match draw.below(8) {
        _ if input.is_empty() => input.push(draw.next() as u8),
        0 => input.truncate(at),
        1 => input.insert(at, draw.next() as u8),
        2 => {
            input.remove(at);
            input.push(0);
        }
        3 => input.extend_from_within(at..),
        4 | 5 => input[at] = draw.pick(&EDGES),
        _ => input[at] = draw.next() as u8,
    }
    input.truncate(INPUT_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_smoke_mixes_valid_mutated_and_random_inputs() {
        let whole = [vec![7; 100], vec![9; 50]];
        let (mut seen, mut untouched, mut longest) = (0, 0, 0);
        smoke(&whole, |input| {
            seen += 1;
            untouched += u64::from(whole.iter().any(|one| one == input));
            longest = longest.max(input.len());
            assert!(!input.is_empty());
        });
        assert_eq!(seen, INPUTS);
        assert!(untouched > INPUTS / 10 && untouched < INPUTS / 2, "{untouched} were whole");
        assert!(longest > 1000, "the longest noise has {longest} bytes");
    }
}
