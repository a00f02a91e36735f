//! Records of kinds from a disk that anybody may have written to. The first byte selects the kind.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else { return };
    let all: Vec<_> = kinds::TESTING.iter().flat_map(|kind| kind.records).collect();
    (all[usize::from(*first) % all.len()].check)(data);
});
