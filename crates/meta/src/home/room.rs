//! The room for the objects of a device on its lowers: found in the state in labels, or computed for new disks.

use std::rc::Rc;

use block::units::write_size;
use block::{
    ByteRange, Error, ErrorKind, Found, Info, Port, Result, StateStore, Table, TableError, bail,
    error,
};

use super::labels::{Labels, decode};
use super::objects::Objects;
use super::record::{Place, RANGES_MAX, Record, bytes_of};
use crate::vault::page::PAGE_BYTES;

/// The ranges of the lowers of a device, from the state in labels and the sizes of the lowers. Nothing has been written
/// yet.
pub struct Room {
    pub(super) labels: Labels,
    pub(super) objects: Objects,
    /// The state in labels; `None` on new disks.
    pub(super) found: Option<Record>,
    /// The state that fits the present sizes of the lowers.
    pub(super) record: Record,
    pub(super) read_only: bool,
    /// Whether the device shows the bytes of its data, which need no objects.
    pub(super) keeps_data: bool,
    /// The mapping of the data of the device to its first lower.
    pub data: Table,
    /// The mapping of the vault to the lower with the room.
    pub store: Table,
    /// The mapping of the journal to the lower with the room, if the device has a journal.
    pub journal: Option<Table>,
    /// Port of the lower with the room.
    pub port: usize,
}

impl Room {
    /// Finds the room of a device of the kind `kind` that has `objects` over `lowers`: one lower, or a second one with
    /// the room. `store` has the state of the device in labels. `keeps_data`: whether a new device shows the bytes that its
    /// data have, so that only the disks with the room must be new.
    ///
    /// # Errors
    /// `NotFound` if disks that are not new have no state of the device, `Corrupt` if the state is damaged, `Invalid` if
    /// the spec or a size differs from the state, `ReadOnly` for new disks that cannot be written, `NoSpace` if the
    /// room does not fit.
    pub fn find(
        kind: &str,
        objects: Objects,
        lowers: &[Info],
        store: Rc<dyn StateStore>,
        keeps_data: bool,
    ) -> Result<Self> {
        let read_only = lowers.iter().any(|lower| lower.read_only);
        let labels = Labels::new(store, lowers.len(), read_only);
        let place = place_of(&objects, lowers);
        let lower_bytes = lowers[0].size;
        let found = labels.found(kind, keeps_data && place == Place::Apart)?;
        let record = match &found {
            Some(record) => fitting(kind, record, &objects, lowers)?,
            None => made(kind, &objects, place, lower_bytes),
        };
        let port = usize::from(place == Place::Apart);
        let needed = record.ranges.iter().map(|range| range.end()).max().unwrap_or(0);
        let data = data_table(&record, lower_bytes);
        if needed > lowers[port].size || data.is_err() {
            let (room, has) = (write_size(record.room_bytes()), write_size(lowers[port].size));
            bail!(NoSpace, "the metadata of a {kind} need {room}; the device below has {has}");
        }
        let (journal, store) = split(&record.ranges, record.journal_bytes);
        let journal = if journal.is_empty() { None } else { Some(table(&journal)?) };
        let (data, store) = (data?, table(&store)?);
        Ok(Self {
            labels,
            objects,
            found,
            record,
            read_only,
            keeps_data,
            data,
            store,
            journal,
            port,
        })
    }
}

/// Checks that the newest state in labels, if there is one, is that of a device of the kind `kind` that has `objects` over
/// `lowers`. So a start can be refused before it changes labels.
///
/// # Errors
/// `Corrupt` if the state is damaged, `Invalid` if the spec or a size differs from it, `NoSpace` as [`Room::find`].
pub fn check_found(kind: &str, objects: &Objects, lowers: &[Info], found: &[Found]) -> Result<()> {
    let states = found.iter().filter_map(|found| found.state.as_ref());
    match states.max_by_key(|state| state.sequence) {
        Some(state) => fitting(kind, &decode(kind, &state.bytes)?, objects, lowers).map(drop),
        None => Ok(()),
    }
}

/// The parts of a device's lowers as the newest state in labels has them, and the options with which the device was made. A
/// plan computes reserves and needs from them.
pub struct Made {
    /// The data, the vault, and the journal if there is one: the port of the lower, and the mapping to it.
    pub parts: Vec<(usize, Table)>,
    /// Names and values of the fixed options.
    pub fixed: Vec<(String, String)>,
}

impl Made {
    /// Returns the parts and the fixed options by the state `found` of a device of the kind `kind` that has `objects` over
    /// `lowers`; `None` if the state does not fit.
    pub fn of(kind: &str, objects: &Objects, lowers: &[Info], found: &[u8]) -> Option<Self> {
        let record = fitting(kind, &decode(kind, found).ok()?, objects, lowers).ok()?;
        let port = usize::from(record.place == Place::Apart);
        let (journal, store) = split(&record.ranges, record.journal_bytes);
        let mut parts = vec![(0, data_table(&record, lowers[0].size).ok()?)];
        for own in [store, journal].into_iter().filter(|own| !own.is_empty()) {
            parts.push((port, table(&own).ok()?));
        }
        Some(Self { parts, fixed: record.fixed })
    }
}

fn place_of(objects: &Objects, lowers: &[Info]) -> Place {
    match lowers.len() {
        1 if objects.is_behind => Place::Behind,
        1 => Place::Before,
        _ => Place::Apart,
    }
}

/// Returns the state that fits the present sizes of the lowers, from the state in labels.
fn fitting(kind: &str, found: &Record, objects: &Objects, lowers: &[Info]) -> Result<Record> {
    check_fixed(kind, found, objects)?;
    check_place(kind, found.place, place_of(objects, lowers))?;
    grown(found, objects, lowers[0].size)
}

/// Returns the state of a new device.
fn made(kind: &str, objects: &Objects, place: Place, lower_bytes: u64) -> Record {
    let bytes = objects.room_bytes(lower_bytes);
    let start = if place == Place::Behind { end_of_pages(lower_bytes, bytes) } else { 0 };
    let ranges = ByteRange::new(start, bytes).into_iter().collect();
    let (kind, fixed) = (kind.to_owned(), objects.fixed.clone());
    let journal_bytes = objects.journal_bytes();
    Record { kind, vault: None, lower_bytes, place, journal_bytes, ranges, fixed, own: Vec::new() }
}

/// Returns the start of the last `bytes` bytes of a lower that begin at a page.
fn end_of_pages(lower_bytes: u64, bytes: u64) -> u64 {
    let start = lower_bytes.saturating_sub(bytes);
    start - start % PAGE_BYTES as u64
}

/// Returns `record` with a range for the growth of the lower to `lower_bytes`.
///
/// # Errors
/// `Invalid` if the lower has shrunk, or has grown too often.
fn grown(record: &Record, objects: &Objects, lower_bytes: u64) -> Result<Record> {
    let was = record.lower_bytes;
    if lower_bytes < was {
        let (is, was) = (write_size(lower_bytes), write_size(was));
        let words = format!("the device below has {is}, and had {was}");
        return Err(Error::new(ErrorKind::Invalid, words).next("make it as large as before"));
    }
    let mut record = Record { lower_bytes, ..record.clone() };
    let (has, room) = (record.room_bytes(), objects.room_bytes(lower_bytes));
    if room < has {
        bail!(
            Invalid,
            "the metadata have {}, and would have {}: the device was made by another version of Cairn",
            write_size(has),
            write_size(room)
        );
    }
    if record.place != Place::Apart && lower_bytes - room < was - has {
        bail!(
            NoSpace,
            "the device below has grown by {}, and the metadata need {} more; make it larger",
            write_size(lower_bytes - was),
            write_size(room - has)
        );
    }
    let Some(end) = record.ranges.last().map(|range| range.end()) else { return Ok(record) };
    let start = match record.place {
        Place::Before => was.next_multiple_of(PAGE_BYTES as u64),
        Place::Behind => end_of_pages(lower_bytes, room - has),
        Place::Apart => end,
    };
    let Some(more) = ByteRange::new(start, room - has) else { return Ok(record) };
    match record.ranges.last_mut() {
        Some(last) if last.end() == more.start() => {
            *last = ByteRange::between(last.start(), more.end()).expect("a range that grows");
        }
        _ => record.ranges.push(more),
    }
    if record.ranges.len() > RANGES_MAX {
        let words =
            format!("the device below has grown {RANGES_MAX} times, the most that is possible");
        return Err(Error::new(ErrorKind::Limit, words));
    }
    Ok(record)
}

/// Checks that the spec has the values with which the device was made.
fn check_fixed(kind: &str, made: &Record, objects: &Objects) -> Result<()> {
    for (name, is) in &objects.fixed {
        let Some(was) = made.fixed_value(name).filter(|was| was != is) else { continue };
        let words = format!("the {kind} was made with {name} = \"{was}\", but the spec has {is}");
        return Err(Error::new(ErrorKind::Invalid, words).next(format!("set {name} = \"{was}\"")));
    }
    Ok(())
}

fn check_place(kind: &str, was: Place, is: Place) -> Result<()> {
    if was == is {
        return Ok(());
    }
    let (words, next) = match was {
        Place::Apart => ("on a second device", "name the second device in \"meta\""),
        Place::Before => ("before the data", "remove \"meta\""),
        Place::Behind => ("behind the data", "remove \"meta\""),
    };
    Err(error!(Invalid, "the {kind} was made with its metadata {words}").next(next))
}

/// Returns the mapping of the data of a device to a lower of `lower_bytes` bytes: the bytes outside of the room.
fn data_table(record: &Record, lower_bytes: u64) -> Result<Table, TableError> {
    let mut room = record.ranges.clone();
    if record.place == Place::Apart {
        room.clear();
    }
    room.sort_unstable_by_key(|range| range.start());
    let (mut data, mut start) = (Vec::new(), 0);
    for range in room {
        data.extend(ByteRange::between(start, range.start()));
        start = range.end();
    }
    // The bytes behind the room, but no part of a page.
    let page = PAGE_BYTES as u64;
    let end = if record.place == Place::Behind { start } else { lower_bytes };
    let end = if record.place == Place::Apart { end } else { end - end % page };
    data.extend(ByteRange::between(start, end));
    table(&data)
}

/// Splits ranges behind their first `bytes` bytes.
fn split(ranges: &[ByteRange], bytes: u64) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    for range in ranges {
        let left = bytes.saturating_sub(bytes_of(&before)).min(range.len());
        let at = range.start() + left;
        before.extend(ByteRange::between(range.start(), at));
        behind.extend(ByteRange::between(at, range.end()));
    }
    (before, behind)
}

fn table(ranges: &[ByteRange]) -> Result<Table, TableError> {
    Table::ranges(Port(0), ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn objects(bytes: u64) -> Objects {
        Objects::new().array::<u64>(bytes / 4096)
    }

    fn sizes(record: &Record) -> Vec<(u64, u64)> {
        record.ranges.iter().map(|range| (range.start(), range.len())).collect()
    }

    /// The data keep their bytes in order, whatever the place of the room, and each growth only adds bytes at the end.
    #[test]
    fn room_that_grows_adds_data_only_at_end() {
        for place in [Place::Before, Place::Behind, Place::Apart] {
            let declared = |bytes| match place {
                Place::Behind => objects(bytes).behind(),
                _ => objects(bytes),
            };
            let mut record = made("wear", &declared(4 * MIB), place, 4 * MIB);
            let mut before = data_table(&record, 4 * MIB).unwrap();
            for bytes in [8 * MIB, 9 * MIB, 100 * MIB, 1 << 40] {
                let next = grown(&record, &declared(bytes), bytes).unwrap();
                assert_eq!(next.room_bytes(), declared(bytes).room_bytes(bytes), "{place:?}");
                let data = data_table(&next, bytes).unwrap();
                assert!(data.size() > before.size());
                for at in (0..before.size()).step_by(4096 * 97) {
                    let one = ByteRange::new(at, 1).unwrap();
                    assert_eq!(data.map_one(one), before.map_one(one), "{place:?} {bytes}: {at}");
                }
                let apart = place == Place::Apart;
                let room = if apart { 0 } else { next.room_bytes() };
                assert_eq!(data.size(), bytes - room);
                assert_eq!(Record::decode(&next.encode()), Ok(next.clone()));
                assert!(!apart || next.ranges.len() == 1, "{:?}", sizes(&next));
                (record, before) = (next, data);
            }
        }
    }

    #[test]
    fn room_has_journal_in_front_of_vault() {
        let range = |start, len| ByteRange::new(start, len).unwrap();
        let ranges = [range(0, 8192), range(40960, 8192)];
        assert_eq!(split(&ranges, 0), (vec![], ranges.to_vec()));
        let halves = (vec![range(0, 4096)], vec![range(4096, 4096), ranges[1]]);
        assert_eq!(split(&ranges, 4096), halves);
        let across = (vec![ranges[0], range(40960, 4096)], vec![range(45056, 4096)]);
        assert_eq!(split(&ranges, 12288), across);
        let with = objects(4 * MIB).journal(MIB);
        let more = with.room_bytes(4 * MIB) - objects(4 * MIB).room_bytes(4 * MIB);
        assert_eq!(more, made("wear", &with, Place::Before, 4 * MIB).journal_bytes);
    }

    #[test]
    fn room_refuses_shrunk_lower_and_growth_without_space() {
        let record = made("wear", &objects(8 * MIB), Place::Before, 8 * MIB);
        let error = grown(&record, &objects(4 * MIB), 4 * MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let large = objects(8 * MIB + 4096).aligned(MIB);
        let error = grown(&record, &large, 8 * MIB + 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }

    #[test]
    fn device_grows_at_most_as_often_as_its_state_has_ranges() {
        let mut record = made("wear", &objects(MIB), Place::Before, MIB);
        let mut failed = None;
        for step in 2.. {
            match grown(&record, &objects(step * MIB), step * MIB) {
                Ok(next) => record = next,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        assert_eq!(failed.unwrap().kind(), ErrorKind::Limit);
        assert_eq!(record.ranges.len(), RANGES_MAX);
    }
}
