//! The kept snapshots against a sorted set.

use std::collections::BTreeSet;

use pool::NUMBER_MAX;
use pool::map::{Kept, Window};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn kept_snapshots_equal_sorted_set(
        steps in prop::collection::vec((any::<bool>(), 5..40_u64), 0..120)
    ) {
        let (mut kept, mut model) = (Kept::new(4), BTreeSet::new());
        for (is_added, number) in steps {
            match is_added {
                true => {
                    kept.insert(number);
                    model.insert(number);
                }
                false => {
                    kept.remove(number);
                    model.remove(&number);
                }
            }
        }
        prop_assert!(kept.numbers().eq(model.iter().copied()));
        prop_assert!(kept.numbers().rev().eq(model.iter().rev().copied()));
        for number in 5..42 {
            prop_assert_eq!(kept.before(number), model.range(..number).next_back().copied().unwrap_or(4));
            prop_assert_eq!(kept.after(number), model.range(number + 1..).next().copied());
            for death in 5..42 {
                let holds = number < death && model.range(number..death).next().is_some();
                prop_assert_eq!(kept.holds(number, death), holds);
            }
        }
    }
}

#[test]
fn windows_of_removed_snapshots_reach_to_next_kept_one() {
    let mut kept = Kept::new(0);
    [3, 9].into_iter().for_each(|number| kept.insert(number));
    let window = |after, up_to| Window { after, up_to };
    let windows = Window::of(&[12, 1, 4, 5, 10], &kept);
    assert_eq!(windows, [window(1, 3), window(4, 9), window(10, NUMBER_MAX)]);
}
