//! Tests of live changes: which devices stay unchanged, and whether an export has the same bytes after a change.

use std::time::Duration;

use block::{Info, Needs, Port, Table};
use kind::{
    Bytes, Capabilities, DeviceConfig, Effect, Kind, Lowers, Maker, OptionSpec, Scope, Value,
    ValueType,
};

use super::allow::{Renamed, newly_trusted, renamed};
use super::bytes::Compared;
use super::same::unchanged;
use crate::spec::{Planned, PlannedNode, Position, Role, test_kinds};

const MIB: u64 = 1 << 20;

/// Makes a kind whose devices these tests compare, but never build.
const fn kind(name: &'static str, maker: Maker) -> Kind {
    let (lowers, options, capabilities) = (Lowers::None, &[], Capabilities::NONE);
    Kind { name, summary: "", manual: "", lowers, options, capabilities, verbs: &[], maker }
}

const KDF_PASSES: OptionSpec = OptionSpec {
    name: "kdf_passes",
    value: ValueType::Integer(1, 8),
    required: false,
    effect: Effect::Behaviour,
    scope: Scope::Graph,
    help: "",
};

const NEVER: &str = "nothing is planned or made here";

const fn device(name: &'static str, bytes: Bytes) -> Kind {
    let maker =
        Maker::Device { bytes, plan: |_| unreachable!("{NEVER}"), make: |_| unreachable!() };
    kind(name, maker)
}

static FILE: Kind = Kind {
    maker: Maker::Disk { plan: |_, _| unreachable!("{NEVER}"), make: |_| unreachable!() },
    ..test_kinds::FILE
};
static PART: Kind = kind("linear", Maker::Table(|_| unreachable!("{NEVER}")));
static DELAY: Kind = device("delay", Bytes::Passthrough);
static SAFE: Kind = Kind { options: &[KDF_PASSES], ..device("crypt", Bytes::Private) };
static PAIR: Kind = Kind {
    maker: Maker::Stateful {
        bytes: Bytes::Replicated,
        plan: |_| unreachable!("{NEVER}"),
        make: |_| unreachable!(),
        prepare: None,
        preflight: None,
        describe: |_| unreachable!("{NEVER}"),
    },
    ..test_kinds::MIRROR
};

/// The plan of a graph for a test, to which the test adds one device after the other from the disks upwards.
struct Draft(Planned);

impl Draft {
    fn new() -> Self {
        Self(Planned::new("g".to_owned()))
    }

    fn add(mut self, kind: &'static Kind, name: &str, on: &[&str], size: u64) -> Self {
        let named = |name: &&str| self.0.nodes.iter().position(|node| node.name == **name).unwrap();
        let lowers: Vec<usize> = on.iter().map(named).collect();
        let (graph, role) = ("g".to_owned(), if on.is_empty() { Role::Disk } else { Role::Device });
        let given = DeviceConfig {
            graph,
            name: name.to_owned(),
            options: Vec::new(),
            lowers: Vec::new(),
            trusted_now: false,
        };
        self.0.nodes.push(PlannedNode {
            needs: Needs::LEAF,
            reserve: engine::Reserve::NONE,
            name: name.to_owned(),
            kind,
            role,
            lowers,
            given,
            info: Info::disk(size, 512),
            table: None,
            parts: Vec::new(),
            unused_bytes: 0,
            created: false,
            labelled: false,
            said_raw: false,
            absent: false,
            deferred: false,
            blank: false,
            words: String::new(),
            position: Position { line: 1, column: 1 },
            around: kind::Surroundings::default(),
        });
        self
    }

    fn disk(self, name: &str) -> Self {
        self.add(&FILE, name, &[], MIB).given("file", Value::Text(format!("/{name}")))
    }

    fn labelled(mut self, name: &str) -> Self {
        self = self.disk(name);
        self.last().labelled = true;
        self
    }

    fn part(mut self, name: &str, on: &str, start: u64, len: u64) -> Self {
        self = self.add(&PART, name, &[on], len);
        self.last().table = Some(Table::linear(Port(0), MIB, start, len).unwrap());
        self
    }

    fn given(mut self, option: &'static str, value: Value) -> Self {
        self.last().given.options.push((option, value));
        self
    }

    fn last(&mut self) -> &mut PlannedNode {
        self.0.nodes.last_mut().unwrap()
    }
}

/// Checks that the topmost device of `new` has the same bytes as the topmost device of `old`. `in_sync`: the names of
/// the mirror members that are in sync. An error is the name of the device in `new` that differs.
fn shows(old: &Draft, new: &Draft, in_sync: &[&str]) -> Result<(), String> {
    let (old, new) = (&old.0, &new.0);
    let unchanged = unchanged(old, new);
    let in_sync = |_: &PlannedNode, member: &PlannedNode| in_sync.contains(&member.name.as_str());
    let compared = Compared::new(old, new, &unchanged, &in_sync);
    let differs = compared.shows(old.nodes.len() - 1, new.nodes.len() - 1);
    differs.map_err(|differs| new.nodes[differs.new].name.clone())
}

fn pair(names: &[&str]) -> Draft {
    let disks = names.iter().fold(Draft::new(), |draft, name| draft.labelled(name));
    disks.add(&PAIR, "pair", names, MIB)
}

#[test]
fn live_change_reopens_devices_above_changed_lower() {
    let old = Draft::new().disk("a").disk("b").add(&SAFE, "sa", &["a"], MIB);
    let old = old.add(&SAFE, "sb", &["b"], MIB);
    let timeout = Value::Duration(Duration::from_secs(3));
    let new = Draft::new().disk("a").given("timeout", timeout).disk("b");
    let new = new.add(&SAFE, "sb", &["b"], MIB).add(&SAFE, "sa", &["a"], MIB);
    assert_eq!(unchanged(&old.0, &new.0), [None, Some(1), Some(3), None]);
}

#[test]
fn live_change_keeps_created_disk_and_reopens_absent_disk() {
    let old = Draft::new().disk("a").given("create", Value::Switch(true));
    assert_eq!(unchanged(&old.0, &Draft::new().disk("a").0), [Some(0)]);
    let mut back = Draft::new().disk("a");
    back.last().words = "not found".to_owned();
    assert_eq!(unchanged(&back.0, &old.0), [None], "one that was not there may be back");
}

#[test]
fn live_change_reopens_device_on_other_lowers() {
    let old = Draft::new().disk("a").disk("b").add(&SAFE, "s", &["a"], MIB);
    let new = Draft::new().disk("a").disk("b").add(&SAFE, "s", &["b"], MIB);
    assert_eq!(unchanged(&old.0, &new.0), [Some(0), Some(1), None]);
    assert_eq!(shows(&old, &new, &[]), Err("b".to_owned()));
}

#[test]
fn live_change_may_add_and_remove_passthrough_devices() {
    let bare = Draft::new().disk("a").add(&SAFE, "s", &["a"], MIB);
    let slow = Draft::new().disk("a").add(&DELAY, "low", &["a"], MIB);
    let slow = slow.add(&SAFE, "s", &["low"], MIB).add(&DELAY, "high", &["s"], MIB);
    assert_eq!(shows(&bare, &slow, &[]), Ok(()));
    assert_eq!(shows(&slow, &bare, &[]), Ok(()));
}

#[test]
fn live_change_cannot_add_or_remove_encryption() {
    let bare = Draft::new().disk("a");
    let safe = Draft::new().disk("a").add(&SAFE, "s", &["a"], MIB);
    assert_eq!(shows(&bare, &safe, &[]), Err("s".to_owned()));
    assert_eq!(shows(&safe, &bare, &[]), Err("a".to_owned()));
}

#[test]
fn live_change_may_set_options_that_keep_bytes() {
    let safe = |option, value| {
        Draft::new().disk("a").add(&SAFE, "s", &["a"], MIB).given(option, Value::Integer(value))
    };
    assert_eq!(shows(&safe("kdf_passes", 1), &safe("kdf_passes", 2), &[]), Ok(()));
    assert_eq!(shows(&safe("sector", 1), &safe("sector", 2), &[]), Err("s".to_owned()));
}

#[test]
fn live_change_matches_raw_disk_by_path_labelled_by_name() {
    let at = |name: &str, place: &str, labelled| {
        let draft = Draft::new().add(&FILE, name, &[], MIB);
        let mut draft = draft.given("file", Value::Text(place.to_owned()));
        draft.last().labelled = labelled;
        draft
    };
    assert_eq!(shows(&at("a", "/x", false), &at("b", "/x", false), &[]), Ok(()));
    assert!(shows(&at("a", "/x", false), &at("a", "/y", false), &[]).is_err());
    assert_eq!(shows(&at("a", "/x", true), &at("a", "/y", true), &[]), Ok(()));
    assert!(shows(&at("a", "/x", true), &at("b", "/x", true), &[]).is_err());
    let label = shows(&at("a", "/x", false), &at("a", "/x", true), &[]);
    assert!(label.is_err(), "a label takes the ends of its disk");
}

#[test]
fn live_change_may_grow_table_but_not_move_table() {
    let part = |start, len| Draft::new().disk("a").part("p", "a", start, len);
    assert_eq!(shows(&part(4096, 8192), &part(4096, 16384), &[]), Ok(()));
    assert!(shows(&part(4096, 8192), &part(4096, 4096), &[]).is_err(), "it shrinks");
    assert!(shows(&part(4096, 8192), &part(8192, 8192), &[]).is_err(), "it moves");
}

#[test]
fn live_change_reports_device_above_too_small_lower() {
    let part = |name: &str, size| Draft::new().add(&FILE, name, &[], size).part("p", name, 0, 4096);
    let differs = |size| shows(&part("a", MIB), &part("b", size), &[]);
    assert_eq!(differs(2 * MIB), Err("b".to_owned()));
    assert_eq!(differs(MIB / 2), Err("p".to_owned()));
}

#[test]
fn live_change_keeps_mirror_bytes_if_in_sync_member_remains() {
    let all: &[&str] = &["a", "b"];
    let old = pair(all);
    assert_eq!(shows(&old, &pair(&["a", "b", "c"]), all), Ok(()));
    assert_eq!(shows(&old, &pair(&["b", "c"]), all), Ok(()));
    assert_eq!(shows(&old, &pair(&["b", "c"]), &["a"]), Err("pair".to_owned()));
    assert_eq!(shows(&old, &pair(&["c", "d"]), all), Err("pair".to_owned()));
}

#[test]
fn live_change_may_add_mirror_above_disk_and_remove_mirror() {
    let alone = Draft::new().labelled("a");
    let all: &[&str] = &["a", "b"];
    assert_eq!(shows(&alone, &pair(all), &[]), Ok(()));
    assert_eq!(shows(&pair(all), &alone, all), Ok(()));
    assert_eq!(shows(&pair(all), &alone, &["b"]), Err("a".to_owned()));
}

#[test]
fn live_change_reports_renamed_member() {
    let in_sync = |_: &PlannedNode, _: &PlannedNode| true;
    let of = |old: &Draft, new: &Draft| {
        let unchanged = unchanged(&old.0, &new.0);
        let compared = Compared::new(&old.0, &new.0, &unchanged, &in_sync);
        renamed(&compared).map(|Renamed { device, was, is }| format!("{device}: {was} is {is}"))
    };
    let old = pair(&["a", "b"]);
    let below = Draft::new().labelled("a").labelled("b").add(&DELAY, "low", &["b"], MIB);
    let below = below.add(&PAIR, "pair", &["a", "low"], MIB);
    assert_eq!(of(&old, &below), Some("pair: b is low".to_owned()));
    assert_eq!(of(&below, &old), Some("pair: low is b".to_owned()));
    let above = pair(&["a", "b"]).add(&DELAY, "high", &["pair"], MIB);
    assert_eq!(of(&old, &above), None);
    assert_eq!(of(&old, &pair(&["a", "c"])), None, "b is replaced");
    assert_eq!(of(&old, &pair(&["b", "a", "c"])), None);
}

#[test]
fn live_change_reports_new_trust_option() {
    let told = |member: &str| pair(&["a", "b"]).given("trust", Value::Text(member.to_owned()));
    let plain = pair(&["a", "b"]);
    assert_eq!(newly_trusted(&plain.0, &told("a").0), Some(("pair", "a")));
    assert_eq!(newly_trusted(&told("b").0, &told("a").0), Some(("pair", "a")));
    assert_eq!(newly_trusted(&told("a").0, &told("a").0), None, "it was heard at the start");
    assert_eq!(newly_trusted(&told("a").0, &plain.0), None);
    assert_eq!(newly_trusted(&Draft::new().disk("a").0, &told("a").0), None, "it is made now");
}
