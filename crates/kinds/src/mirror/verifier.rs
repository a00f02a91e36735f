//! The commands of a device above that verifies bytes: wrong copies, ranges in which copies may differ, and ranges that it
//! has verified.

use block::control::copies::{Numbers, Pending, Ranges, Wrong};
use block::control::{Cause, Command, Nothing};
use block::seeded::{self, Bug};
use block::{ByteRange, Copies, ErrorKind, Lower, MemberState as State, Result};

use super::device::Inner;

impl Inner {
    /// Counts wrong bytes in `copies` of `range` as a read error of each member that has one of them. A member that has copies
    /// of its own finds out which of its members it was.
    pub(super) async fn count_wrong(&self, range: ByteRange, copies: Copies) -> Result<()> {
        for (index, member) in self.members.iter().enumerate() {
            let wrong = member.numbers.below(copies);
            if wrong == Copies::NONE || member.state() != State::InSync {
                continue;
            }
            let command = Command::new::<Wrong>(Numbers { copies: wrong.0 });
            if ask_redundant::<Wrong>(&member.lower, command.at(range)).await?.is_some() {
                continue;
            }
            if !seeded::on(Bug::WrongUncounted) && member.read_failed(self.env.now()) {
                let why = format!("too many reads returned wrong bytes; the last at {range}");
                self.retire(index, Cause::Reads, why);
            }
        }
        Ok(())
    }

    /// Returns the parts of `range` in which copies may differ: the regions that a resync still copies, after an unclean
    /// stop or to a member that returns, and those of members with copies of their own.
    pub(super) async fn pending(&self, range: ByteRange) -> Result<Ranges> {
        let (mut ranges, mut upto) = (Vec::new(), None::<u64>);
        for member in &self.members {
            if member.state() == State::Copying && !seeded::on(Bug::PendingHidden) {
                let missing = member.missing();
                let regions = missing.iter().map(|region| self.regions.range(region));
                ranges.extend(regions.filter_map(|region| region.intersect(range)));
            }
            if !member.takes_writes() {
                continue;
            }
            let command = Command::new::<Pending>(Nothing {}).at(range);
            if let Some(below) = ask_redundant::<Pending>(&member.lower, command).await? {
                ranges.extend(below.iter().filter_map(|below| below.intersect(range)));
                upto = [upto, below.upto_bytes].into_iter().flatten().min();
            }
        }
        Ok(Ranges::of(ranges, upto))
    }
}

/// Carries out a command on the redundant devices in a lower; `None` if the lower has none.
async fn ask_redundant<V: block::control::Verb>(
    lower: &Lower,
    command: Command,
) -> Result<Option<V::Answer>> {
    if lower.info().copies == 1 {
        return Ok(None);
    }
    match lower.control::<V>(command).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        answer => answer.map(Some),
    }
}
