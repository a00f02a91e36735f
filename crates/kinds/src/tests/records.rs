//! Runs the fuzzer's check of each kind's records over seeded inputs: valid records, damaged records, and random bytes.

#[test]
fn record_decoders_of_all_kinds_handle_random_bytes() {
    let all = crate::TESTING.iter().flat_map(|kind| kind.records);
    for records in all {
        let mut accepted = 0;
        testkit::smoke(&(records.valid)(), |input| accepted += u64::from((records.check)(input)));
        let (name, inputs) = (records.name, testkit::INPUTS);
        assert!(accepted > inputs / 10, "{name}: {accepted} of {inputs} were accepted");
    }
}
