//! Ownership of the bytes of each device. Two users that may write the same byte are a fault of the spec.

use std::collections::BTreeSet;

use block::units::format_size;
use block::{ByteRange, Place, Port, Table};

use super::fault::{Log, Position};

/// A user of a device: an upper device or an export, with the position in the spec at which it names the device.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct User {
    pub(super) at: Position,
    pub(super) name: String,
}

/// The users of the bytes of one device: its upper devices, and the exports that show the device.
#[derive(Clone, Default, Debug)]
pub(super) struct Uses {
    /// The byte ranges of the device that upper devices use, each with its user.
    claims: Vec<(ByteRange, User)>,
    /// The exports that show the device, each with whether it may write.
    exports: Vec<(User, bool)>,
}

impl Uses {
    /// Claims all `size` bytes of the device for `user`.
    pub(super) fn claim_all(&mut self, size: u64, user: User) {
        self.claims.extend(ByteRange::new(0, size).map(|range| (range, user)));
    }

    /// Claims for `user` the bytes of the device that `table` maps to `port`. For a striped table, claims the whole
    /// device: the plan of the table reports the bytes after the last full chunk as unused.
    pub(super) fn claim_table(&mut self, table: &Table, port: Port, size: u64, user: &User) {
        for segment in table.segments() {
            for origin in segment.place.origins().iter().filter(|origin| origin.port == port) {
                match segment.place {
                    Place::Linear(_) => {
                        let range = segment.range.at(origin.start);
                        self.claims.push((range, user.clone()));
                    }
                    Place::Striped(_) => self.claim_all(size, user.clone()),
                }
            }
        }
    }

    /// Transfers the claims of the users called `names` to `user`.
    pub(super) fn belong_to(&mut self, names: &[String], user: &User) {
        for (_, claimed) in &mut self.claims {
            if names.contains(&claimed.name) {
                *claimed = user.clone();
            }
        }
    }

    pub(super) fn export(&mut self, user: User, writes: bool) {
        self.exports.push((user, writes));
    }

    /// Returns the first byte of the device after all claimed ranges.
    pub(super) fn next_free(&self) -> u64 {
        self.claims.iter().map(|(range, _)| range.end()).max().unwrap_or(0)
    }

    /// Whether no device and no export uses the device.
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.exports.is_empty()
    }

    /// Reports an error for each two users that share bytes of the device `name`, which has `size` bytes.
    pub(super) fn check(&self, name: &str, size: u64, log: &mut Log) {
        self.check_devices(name, size, log);
        if let Some((_, below)) = self.claims.iter().min_by_key(|(_, user)| user) {
            for (export, _) in &self.exports {
                let (other, line) = (&below.name, below.at.line);
                let message = format!(
                    "{name:?} is below {other:?} (line {line}) already; export {other:?}, or an \
                     unused partition of {name:?}"
                );
                log.error(export.at, message);
            }
        }
        let mut writers = self.exports.iter().filter(|(_, writes)| *writes);
        let Some((first, _)) = writers.next() else { return };
        for (second, _) in writers {
            let (other, line) = (&first.name, first.at.line);
            let message = format!(
                "{name:?} is exported as {other:?} (line {line}) already; set read_only = true on \
                 one of the two"
            );
            log.error(second.at, message);
        }
    }

    fn check_devices(&self, name: &str, size: u64, log: &mut Log) {
        let mut claims: Vec<_> = self.claims.iter().collect();
        claims.sort();
        let mut told = BTreeSet::new();
        let mut reach = claims.first().copied();
        for claim in claims.iter().skip(1).copied() {
            let Some(far) = reach else { return };
            let [first, second] = if far.1 <= claim.1 { [far, claim] } else { [claim, far] };
            if let Some(shared) = far.0.intersect(claim.0)
                && far.1.name != claim.1.name
                && told.insert((&first.1, &second.1))
            {
                log.error(second.1.at, shared_message(name, size, &first.1, shared));
            }
            if claim.0.end() > far.0.end() {
                reach = Some(claim);
            }
        }
    }
}

fn shared_message(name: &str, size: u64, first: &User, shared: ByteRange) -> String {
    let (other, line) = (&first.name, first.at.line);
    if shared.start() == 0 && shared.end() == size {
        return format!(
            "{name:?} is below {other:?} (line {line}) already; put a partition of {name:?} below each"
        );
    }
    let [from, to] = [shared.start(), shared.end()].map(format_size);
    format!(
        "bytes {from} to {to} of {name:?} belong to {other:?} (line {line}) already; move one of the two"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(line: u32, name: &str) -> User {
        User { at: Position { line, column: 1 }, name: name.to_owned() }
    }

    fn describe(uses: &Uses, size: u64) -> String {
        let mut log = Log::new("t");
        uses.check("d", size, &mut log);
        log.finish().map_or_else(|faults| faults.to_string(), |_| "nothing".to_owned())
    }

    /// Claims what a table reaches: for each segment its length, its port, and its start below.
    fn claimed(uses: &mut Uses, line: u32, segments: &[(u64, u16, u64)]) {
        let parts = segments
            .iter()
            .map(|(len, _, start)| Table::linear(Port(0), u64::MAX, *start, *len).unwrap());
        let parts: Vec<_> = parts.collect();
        let sizes = (0..).map(Port).zip(segments.iter().map(|(len, ..)| *len));
        let joined = Table::concat(&sizes.collect::<Vec<_>>()).unwrap();
        let table = joined.fuse(&parts.iter().map(Some).collect::<Vec<_>>()).unwrap().table;
        let ports: Vec<_> = segments.iter().map(|(_, port, _)| Port(*port)).collect();
        let table = table.renumber(&ports).unwrap();
        claim(uses, line, &table);
    }

    fn claim(uses: &mut Uses, line: u32, table: &Table) {
        uses.claim_table(table, Port(0), 4096, &user(line, &format!("t{line}")));
    }

    #[test]
    fn plan_allows_tables_that_share_no_byte_of_device() {
        let mut uses = Uses::default();
        claimed(&mut uses, 1, &[(512, 0, 1024), (512, 1, 2048), (512, 0, 0)]);
        claimed(&mut uses, 2, &[(512, 0, 512)]);
        claimed(&mut uses, 4, &[(512, 1, 0)]);
        assert_eq!((describe(&uses, 4096).as_str(), uses.next_free()), ("nothing", 1536));
        claimed(&mut uses, 5, &[(512, 0, 2048)]);
        assert_eq!(describe(&uses, 4096), "nothing", "t1 reaches that byte of another port");
        claimed(&mut uses, 3, &[(1, 0, 1023)]);
        assert!(
            describe(&uses, 4096)
                .starts_with("t:3:1  error  bytes 1023 B to 1 KiB of \"d\" belong")
        );
    }

    #[test]
    fn plan_reports_devices_with_several_shared_ranges_once() {
        let mut uses = Uses::default();
        claimed(&mut uses, 7, &[(512, 0, 1024), (512, 0, 0)]);
        uses.claim_all(4096, user(3, "all"));
        let expected = "t:7:1  error  bytes 0 B to 512 B of \"d\" belong to \"all\" (line 3) already; \
                        move one of the two\n1 fault, nothing done.";
        assert_eq!(describe(&uses, 4096), expected);
    }

    #[test]
    fn stripe_claims_whole_columns_of_lower() {
        let mut uses = Uses::default();
        let striped = Table::stripe(&[(Port(0), 512), (Port(1), 512)], 512).unwrap();
        claim(&mut uses, 1, &striped.table);
        assert_eq!(uses.next_free(), 4096);
    }
}
