use super::*;
use block::State;

const ONE: ByteRange = match ByteRange::new(0, 512) {
    Some(range) => range,
    None => panic!("512 bytes are some"),
};

/// A model of a volume with one sector, and helpers of the tests.
struct Bench(Model);

impl Bench {
    fn new() -> Self {
        Self(Model::new(1, 512))
    }

    fn begin(&self, change: Change) -> (Changing, Vec<u8>) {
        let changing = self.0.begin(ONE, change, false);
        let mut bytes = vec![0; 512];
        if change == Change::Write {
            self.0.fill(&changing, &mut bytes);
        }
        (changing, bytes)
    }

    fn write(&self) -> Vec<u8> {
        let (changing, bytes) = self.begin(Change::Write);
        self.0.end(changing, true);
        bytes
    }

    fn flush(&self) {
        self.0.flushed(self.0.flush(), true).unwrap();
    }

    fn read(&self, bytes: &[u8]) -> Result<(), Rule> {
        self.0.saw(self.0.look(), ONE, bytes).map_err(|wrong| wrong.rule)
    }
}

const ZEROS: [u8; 512] = [0; 512];

#[test]
fn model_rejects_read_of_overwritten_data() {
    let bench = Bench::new();
    bench.read(&ZEROS).unwrap();
    let (a, b) = (bench.write(), bench.write());
    bench.read(&b).unwrap();
    assert_eq!(bench.read(&a), Err(Rule::Order));
    assert_eq!(bench.read(&ZEROS), Err(Rule::Order));
}

#[test]
fn model_rejects_old_data_after_new_data_was_read() {
    let bench = Bench::new();
    let a = bench.write();
    let (changing, b) = bench.begin(Change::Write);
    bench.read(&a).unwrap();
    bench.read(&b).unwrap();
    assert_eq!(bench.read(&a), Err(Rule::Order));
    bench.0.end(changing, true);
    bench.read(&b).unwrap();
}

#[test]
fn model_fixes_order_of_concurrent_writes_at_first_read() {
    let bench = Bench::new();
    let ((one, a), (two, b)) = (bench.begin(Change::Write), bench.begin(Change::Write));
    bench.0.end(one, true);
    bench.0.end(two, true);
    bench.read(&a).unwrap();
    assert_eq!(bench.read(&b), Err(Rule::Order));
}

#[test]
fn model_allows_concurrent_reads_to_return_different_data() {
    let bench = Bench::new();
    let a = bench.write();
    let (_changing, b) = bench.begin(Change::Write);
    let (first, second) = (bench.0.look(), bench.0.look());
    bench.0.saw(first, ONE, &b).unwrap();
    bench.0.saw(second, ONE, &a).unwrap();
}

#[test]
fn model_rejects_data_older_than_durable_after_power_cut() {
    for left in 0..3 {
        let bench = Bench::new();
        let old = bench.write();
        let durable = bench.write();
        bench.flush();
        let newer = bench.write();
        let (_in_flight, newest) = bench.begin(Change::Write);
        bench.0.power_cut();
        assert_eq!(bench.read(&old), Err(Rule::Durable));
        assert_eq!(bench.read(&ZEROS), Err(Rule::Durable));
        for (n, bytes) in [durable, newer, newest].iter().enumerate().cycle().skip(left).take(3) {
            assert_eq!(bench.read(bytes).is_ok(), n == left, "the first that is seen stays");
        }
    }
}

#[test]
fn model_fixes_result_of_power_cut_at_first_read() {
    let bench = Bench::new();
    let a = bench.write();
    bench.0.power_cut();
    bench.0.power_cut();
    bench.read(&a).unwrap();
    bench.0.power_cut();
    assert_eq!(bench.read(&ZEROS), Err(Rule::Order), "shown once, it sticks");
    bench.read(&a).unwrap();
}

#[test]
fn model_flush_covers_only_writes_completed_before_flush() {
    let bench = Bench::new();
    let a = bench.write();
    let (changing, _) = bench.begin(Change::Write);
    let flush = bench.0.flush();
    bench.0.end(changing, true);
    bench.0.flushed(flush, true).unwrap();
    bench.0.power_cut();
    bench.read(&a).unwrap();
}

#[test]
fn model_rejects_loss_of_fua_write_after_power_cut() {
    let bench = Bench::new();
    let a = bench.write();
    let changing = bench.0.begin(ONE, Change::Write, true);
    bench.0.end(changing, true);
    bench.0.power_cut();
    assert_eq!(bench.read(&a), Err(Rule::Durable));
}

#[test]
fn model_allows_failed_write_to_take_effect_or_not() {
    let bench = Bench::new();
    let a = bench.write();
    let (changing, b) = bench.begin(Change::Write);
    bench.0.end(changing, false);
    bench.read(&a).unwrap();
    bench.read(&b).unwrap();
    assert_eq!(bench.read(&a), Err(Rule::Order), "but not go again");
}

#[test]
fn model_allows_failed_write_to_revert_only_with_failing_copies() {
    for copies_fail in [false, true] {
        let bench = Bench::new();
        if copies_fail {
            bench.0.let_copies_fail();
        }
        let a = bench.write();
        let (changing, b) = bench.begin(Change::Write);
        bench.read(&b).unwrap();
        bench.0.end(changing, false);
        assert_eq!(bench.read(&a).is_ok(), copies_fail);
    }
}

#[test]
fn model_allows_power_cut_to_lose_flushed_failed_write() {
    let bench = Bench::new();
    let a = bench.write();
    let (changing, b) = bench.begin(Change::Write);
    bench.0.end(changing, false);
    bench.0.restarted();
    bench.read(&b).unwrap();
    bench.flush();
    bench.0.power_cut();
    bench.read(&a).unwrap();
}

#[test]
fn model_rejects_loss_of_acknowledged_write_after_restart() {
    let bench = Bench::new();
    let a = bench.write();
    let (_in_flight, b) = bench.begin(Change::Write);
    bench.0.restarted();
    assert_eq!(bench.read(&ZEROS), Err(Rule::Order));
    bench.read(&a).unwrap();
    assert_eq!(bench.read(&b), Err(Rule::Order), "it has landed or never will");
}

#[test]
fn model_rejects_change_of_discarded_data_between_reads() {
    for first_zero in [false, true] {
        let bench = Bench::new();
        let a = bench.write();
        let (changing, _) = bench.begin(Change::Discard);
        bench.0.end(changing, true);
        let (then, never) = if first_zero { (&ZEROS[..], &a[..]) } else { (&a[..], &ZEROS[..]) };
        bench.read(then).unwrap();
        bench.read(then).unwrap();
        assert!(bench.read(never).is_err());
    }
}

#[test]
fn model_rejects_old_data_after_write_zeroes() {
    let bench = Bench::new();
    let a = bench.write();
    let (changing, _) = bench.begin(Change::Zero);
    bench.0.end(changing, true);
    assert_eq!(bench.read(&a), Err(Rule::Order));
    bench.read(&ZEROS).unwrap();
}

#[test]
fn model_reports_misdirected_and_mixed_sectors() {
    let model = Model::new(1, 1024);
    let range = ByteRange::new(0, 1024).unwrap();
    let changing = model.begin(range, Change::Write, false);
    let mut bytes = vec![0; 1024];
    model.fill(&changing, &mut bytes);
    model.end(changing, true);
    let swapped = [&bytes[512..], &bytes[..512]].concat();
    let wrong = model.saw(model.look(), range, &swapped).unwrap_err();
    assert_eq!(wrong.rule, Rule::Place);
    assert!(wrong.words.contains("sector 0 read as write 1 to sector 1 of volume 1"), "{wrong}");
    bytes[100] ^= 1;
    assert_eq!(model.saw(model.look(), range, &bytes).unwrap_err().rule, Rule::Whole);
}

#[test]
fn model_rejects_block_status_zeros_over_data() {
    let model = Model::new(1, 1024);
    let range = ByteRange::new(0, 1024).unwrap();
    let extent = |len, state| Extent { len, state };
    model.judge_status(model.look(), range, &[extent(512, State::Hole)]).unwrap();
    model.judge_status(model.look(), range, &[extent(1024, State::Data)]).unwrap();
    let changing = model.begin(ByteRange::new(512, 512).unwrap(), Change::Write, false);
    model.end(changing, true);
    let told =
        |extents: &[Extent]| model.judge_status(model.look(), range, extents).map_err(|w| w.rule);
    assert_eq!(told(&[extent(1024, State::Zero)]), Err(Rule::Status));
    assert_eq!(told(&[extent(1536, State::Data)]), Err(Rule::Status));
    assert_eq!(told(&[]), Err(Rule::Status));
    told(&[extent(512, State::Zero), extent(512, State::Data)]).unwrap();
}

#[test]
fn model_forgets_replaced_writes_of_sector() {
    let bench = Bench::new();
    for _ in 0..100 {
        bench.write();
        bench.flush();
    }
    let last = bench.write();
    assert!(format!("{:?}", bench.0.registers.borrow()[0]).matches("write:").count() < 20);
    bench.read(&last).unwrap();
}

#[test]
fn model_rejects_successful_flush_after_failed_flush() {
    let bench = Bench::new();
    let beside = bench.0.flush();
    bench.0.flushed(bench.0.flush(), false).unwrap();
    bench.0.flushed(beside, true).unwrap();
    let later = bench.0.flushed(bench.0.flush(), true).unwrap_err();
    assert_eq!(later.rule, Rule::Sticky);
}

#[test]
fn model_accepts_learned_initial_content_until_first_write() {
    let bench = Bench::new();
    let junk = [7; 512];
    assert_eq!(bench.read(&junk), Err(Rule::Whole));
    bench.0.learn(ONE, &junk);
    bench.read(&junk).unwrap();
    assert_eq!(bench.read(&ZEROS), Err(Rule::Order));
    let a = bench.write();
    bench.read(&a).unwrap();
    assert_eq!(bench.read(&junk), Err(Rule::Order));
}

#[test]
fn model_accepts_any_bytes_of_doubted_learned_sector_until_next_write() {
    let (bench, doubt) = (Bench::new(), |bench: &Bench| bench.0.doubt(Unsure::Learned, 512));
    doubt(&bench);
    assert_eq!(bench.read(&[7; 512]), Err(Rule::Whole), "nothing was learned");
    bench.0.doubt(Unsure::From(0), 512);
    bench.0.learn_unknown(ONE, &[7; 512]);
    assert_eq!(bench.read(&[8; 512]), Err(Rule::Whole));
    doubt(&bench);
    bench.read(&[8; 512]).unwrap();
    let a = bench.write();
    bench.read(&a).unwrap();
    assert_eq!(bench.read(&[8; 512]), Err(Rule::Whole));
}

#[test]
fn model_rejects_other_bytes_of_learned_sector_after_write() {
    let bench = Bench::new();
    bench.0.doubt(Unsure::From(0), 512);
    bench.0.learn_unknown(ONE, &[7; 512]);
    bench.write();
    bench.0.doubt(Unsure::Learned, 512);
    assert_eq!(bench.read(&[8; 512]), Err(Rule::Whole));
}

#[test]
fn model_accepts_misdirected_bytes_only_under_displaced_promise() {
    let bench = Bench(Model::new(1, 1024));
    let other = ByteRange::new(512, 512).unwrap();
    let changing = bench.0.begin(other, Change::Write, false);
    let mut elsewhere = vec![0; 512];
    bench.0.fill(&changing, &mut elsewhere);
    bench.0.end(changing, true);
    for promise in [Promise::Full, Promise::Damage, Promise::Lossy] {
        bench.0.demand(promise);
        assert_eq!(bench.read(&elsewhere), Err(Rule::Place));
    }
    bench.0.demand(Promise::Displaced);
    bench.read(&elsewhere).unwrap();
    assert_eq!(bench.read(&[7; 512]), Err(Rule::Whole), "never bytes that nobody wrote");
    elsewhere[..256].fill(0);
    assert_eq!(bench.read(&elsewhere), Err(Rule::Whole), "nor a mixture");
}
