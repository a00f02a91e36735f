//! The records of a ring that count, the end of the log, and damage.

use std::cmp::Reverse;

use block::seeded::{self, Bug};

use super::{Head, Owner, Position, Survey};

/// A fault of a log that a crash alone does not make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// No record continues the log with this number, although it was flushed.
    Missing {
        /// Number of the record.
        number: u64,
        /// The highest flushed number.
        flushed: u64,
    },
    /// A record states a later tail than the root, and only roots move the tail: the newest root is lost.
    RootLost {
        /// Number of the root's tail.
        root: u64,
        /// Number of the tail that the record states.
        stated: u64,
    },
}

/// The result of the recovery of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Headers of the records that continue the log from its tail, in order. The owner verifies the data of those
    /// above the flushed number.
    pub records: Vec<Head>,
    /// The highest flushed number.
    pub flushed: u64,
    /// Position behind the last of the records: the end of the log, unless the owner finds wrong data before it.
    pub end: Position,
    /// The highest number of any record in the ring, at least the number before the end. The next opening begins above
    /// it.
    pub highest: u64,
    /// The first fault.
    pub damage: Option<Damage>,
    /// Headers of the flushed records behind a missing one, in order. They count only for an owner that is ordered to
    /// accept the loss.
    pub behind_damage: Vec<Head>,
}

/// The rule of an owner for the tail of its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TailRule {
    Roots,
    Records,
}

impl Survey {
    /// Judges a ring of which only roots move the tail.
    ///
    /// # Panics
    /// If the search has not ended.
    pub fn judge(self) -> Verdict {
        self.judge_by(TailRule::Roots)
    }

    /// Judges a ring of which roots and flushed records move the tail.
    ///
    /// # Panics
    /// If the search has not ended.
    pub fn judge_with_moving_tail(self) -> Verdict {
        self.judge_by(TailRule::Records)
    }

    /// Judges a ring by the rule of its owner for the tail.
    ///
    /// # Panics
    /// If the search has not ended.
    pub fn judge_for_owner(self) -> Verdict {
        match self.ring.owner {
            Owner::PoolLog => self.judge(),
            Owner::Journal => self.judge_with_moving_tail(),
        }
    }

    fn judge_by(mut self, rule: TailRule) -> Verdict {
        assert_eq!(self.wanted(), None, "the search has ended");
        drop_inside_payload(&mut self.heads);
        keep_newest_of_each(&mut self.heads);
        let (root, mut heads) = (self.root, self.heads);
        let highest_of =
            |part: fn(&Head) -> u64, least| heads.iter().map(part).fold(least, u64::max);
        let flushed = highest_of(|head| head.flushed, root.flushed);
        let stated = highest_of(|head| head.tail, root.tail.number);
        let highest = highest_of(|head| head.at.number, root.tail.number - 1);
        let behind_all = highest_of(Head::end, root.tail.offset);
        let mut damage = None;
        let mut first = root.tail.number;
        match rule {
            TailRule::Records => first = stated,
            TailRule::Roots if stated > first => {
                damage = Some(Damage::RootLost { root: first, stated });
            }
            TailRule::Roots => {}
        }
        let mut records = heads.split_off(heads.partition_point(|head| head.at.number < first));
        let mut end = Expected::tail(first, root.tail);
        let mut count = 0;
        while let Some(head) = records.get(count).filter(|head| end.is_met_by(head)) {
            end = Expected::behind(head);
            count += 1;
        }
        let mut behind_damage = records.split_off(count);
        behind_damage.retain(|head| (end.number + 1..=flushed).contains(&head.at.number));
        if end.number <= flushed && !seeded::on(Bug::FlushedIgnored) {
            damage = damage.or(Some(Damage::Missing { number: end.number, flushed }));
        }
        let end = end.position(behind_all);
        Verdict { records, flushed, end, highest, damage, behind_damage }
    }
}

/// Removes the candidates inside of another one of their opening: its payload may have any bytes.
fn drop_inside_payload(heads: &mut Vec<Head>) {
    heads.sort_unstable_by_key(|head| (head.at.opening, head.at.offset, Reverse(head.end())));
    let (mut opening, mut end) = (0, 0);
    heads.retain(|head| {
        let is_inside = head.at.opening == opening && head.at.offset < end;
        if !is_inside {
            (opening, end) = (head.at.opening, head.end());
        }
        !is_inside
    });
}

/// Leaves one candidate of each number, in the order of the numbers: that of the latest opening, then that with the
/// highest offset.
fn keep_newest_of_each(heads: &mut Vec<Head>) {
    heads.sort_unstable_by_key(|head| {
        (head.at.number, Reverse(head.at.opening), Reverse(head.at.offset))
    });
    if seeded::on(Bug::EarlierOpening) {
        heads.sort_by_key(|head| (head.at.number, head.at.opening));
    }
    heads.dedup_by_key(|head| head.at.number);
}

/// The next record of a log, as far as it is known.
struct Expected {
    number: u64,
    opening: u64,
    /// Offset, and checksum of the record before. `None` for the first record at a tail that only a record states.
    link: Option<(u64, u64)>,
}

impl Expected {
    fn tail(number: u64, root: Position) -> Self {
        let link = (number == root.number).then_some((root.offset, root.previous));
        Self { number, opening: root.opening, link }
    }

    fn behind(head: &Head) -> Self {
        let Position { offset, number, previous, opening } = head.next();
        Self { number, opening, link: Some((offset, previous)) }
    }

    fn is_met_by(&self, head: &Head) -> bool {
        let link = (head.at.offset, head.at.previous);
        head.at.number == self.number
            && (head.at.opening >= self.opening
                && self.link.is_none_or(|expected| expected == link)
                || seeded::on(Bug::EarlierOpening))
    }

    fn position(&self, behind_all: u64) -> Position {
        let (offset, previous) = self.link.unwrap_or((behind_all, 0));
        Position { offset, number: self.number, previous, opening: self.opening }
    }
}
