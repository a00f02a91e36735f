//! The schedule of failures: selects matching requests by number.

/// Most entries of a schedule that is a list.
const ENTRIES_MAX: usize = 1024;

/// The set of requests that a device fails, by their numbers, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Every request fails.
    All,
    /// Requests whose numbers are multiples of this number fail.
    Every(u64),
    /// Requests with numbers in these inclusive ranges fail. The ranges are in ascending order.
    Listed(Vec<(u64, u64)>),
}

impl Schedule {
    /// Parses a schedule of failing requests: `every 4`, or a list such as `3,5,9-12`.
    ///
    /// # Errors
    /// The fault in `text`, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(step) = text.trim().strip_prefix("every ") {
            return number(step).map(Self::Every);
        }
        let mut listed: Vec<(u64, u64)> = Vec::new();
        for entry in text.split(',') {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let (first, last) = (number(first)?, number(last)?);
            let before = listed.last().map_or(0, |(_, last)| *last);
            if first > last {
                return Err(format!("range {:?} ends before its first number", entry.trim()));
            }
            if first <= before {
                return Err(format!("{:?} is not greater than {before}", entry.trim()));
            }
            if listed.len() == ENTRIES_MAX {
                return Err(format!("the list has more than {ENTRIES_MAX} entries"));
            }
            listed.push((first, last));
        }
        Ok(Self::Listed(listed))
    }

    /// Whether the schedule contains the request with number `n`.
    pub fn has(&self, n: u64) -> bool {
        match self {
            Self::All => true,
            Self::Every(step) => n.is_multiple_of(*step),
            Self::Listed(listed) => {
                let at = listed.partition_point(|(_, last)| *last < n);
                listed.get(at).is_some_and(|(first, _)| *first <= n)
            }
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        format!("{text:?} is not a number above 0; write \"every 4\", or a list: \"3,5,9-12\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str) -> Vec<u64> {
        let schedule = Schedule::parse(text).unwrap();
        (1..=20).filter(|n| schedule.has(*n)).collect()
    }

    #[test]
    fn schedule_selects_requests_by_step_or_list() {
        assert_eq!(chosen("every 6"), [6, 12, 18]);
        assert_eq!(chosen("3, 5,9-12"), [3, 5, 9, 10, 11, 12]);
        assert_eq!(chosen("20-18446744073709551615"), [20]);
        assert!((1..=20).all(|n| Schedule::All.has(n)));
    }

    #[test]
    fn schedule_parse_rejects_malformed_or_unordered_list() {
        for text in ["", "0", "every 0", "every", "3,,5", "-4", "4-", "x", "1-2-3"] {
            let words = Schedule::parse(text).unwrap_err();
            assert!(words.contains("not a number above 0"), "{text:?}: {words}");
        }
        assert_eq!(Schedule::parse("5,3").unwrap_err(), "\"3\" is not greater than 5");
        assert_eq!(Schedule::parse("1-4,4").unwrap_err(), "\"4\" is not greater than 4");
        assert_eq!(
            Schedule::parse("9-3").unwrap_err(),
            "range \"9-3\" ends before its first number"
        );
        let long = (1..=1025).map(|n| (2 * n).to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(Schedule::parse(&long).unwrap_err(), "the list has more than 1024 entries");
    }
}
