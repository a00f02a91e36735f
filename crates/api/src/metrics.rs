//! The page of metrics for Prometheus, in its text format. `docs/metrics.md` lists the metrics. All values are in base
//! units.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use crate::{
    Counts, DaemonView, DeviceStatus, GraphView, Health, KeptGraph, MemberState, Phase, SpaceUse,
    Status, Top,
};

/// Content type of the page of metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The data of one graph that the page of metrics contains.
pub struct Sample {
    /// Structure of the graph: its nodes and exports.
    pub graph: GraphView,
    /// Status of the graph and of its devices.
    pub status: Status,
    /// Request counts of the graph's devices.
    pub top: Top,
}

/// Returns the page of metrics of the graphs `samples`, and of the daemon that keeps them if there is one. A graph of
/// the daemon without a sample has a worker that does not answer.
pub fn page(samples: &[Sample], daemon: Option<&DaemonView>) -> String {
    let mut page = Page::default();
    devices(&mut page, samples);
    health(&mut page, samples);
    members(&mut page, samples);
    clients(&mut page, samples);
    if let Some(daemon) = daemon {
        kept(&mut page, samples, daemon);
    }
    page.text
}

fn devices(page: &mut Page, samples: &[Sample]) {
    let rows = || {
        samples.iter().flat_map(|Sample { top, .. }| {
            let rows = top.rows.iter();
            rows.filter_map(|row| {
                Some((labels(&top.graph, &row.name, &row.kind), row.counts.as_ref()?))
            })
        })
    };
    let by_op = |pick: fn(&Counts) -> &BTreeMap<String, u64>| {
        rows().flat_map(move |([graph, device, kind], counts)| {
            pick(counts).iter().map(move |(op, n)| ([graph, device, kind, ("op", op)], n))
        })
    };
    let help = "Requests begun at a device.";
    page.family("cairn_device_ops_total", "counter", help, by_op(|counts| &counts.ops));
    let help = "Bytes of the requests begun at a device.";
    page.family("cairn_device_bytes_total", "counter", help, by_op(|counts| &counts.bytes));
    let errors = rows().map(|(labels, counts)| (labels, counts.errors));
    let help = "Requests that failed at a device.";
    page.family("cairn_device_errors_total", "counter", help, errors);
    let in_flight = rows().map(|(labels, counts)| (labels, counts.in_flight));
    let help = "Requests begun at a device and not yet answered.";
    page.family("cairn_device_in_flight", "gauge", help, in_flight);
}

fn health(page: &mut Page, samples: &[Sample]) {
    let all = samples.iter().map(|Sample { status, .. }| status);
    let graphs = all.flat_map(|status| states(&[("graph", &status.graph)], status.health));
    let help = "1 for the present state of a graph, 0 for the other states.";
    page.family("cairn_graph_state", "gauge", help, graphs);
    let devices = statuses(samples).flat_map(|(labels, device)| states(&labels, device.health));
    let help = "1 for the present state of a device, 0 for the other states.";
    page.family("cairn_device_state", "gauge", help, devices);
    // Only devices that allocate blocks have `room`.
    let room = |pick: fn(&SpaceUse) -> u64| {
        statuses(samples)
            .filter_map(move |(labels, device)| Some((labels, pick(device.room.as_ref()?))))
    };
    let help = "Bytes in use by a device that allocates blocks.";
    page.family("cairn_device_room_taken_bytes", "gauge", help, room(|room| room.taken_bytes));
    let help = "All bytes of a device that allocates blocks.";
    page.family("cairn_device_room_bytes", "gauge", help, room(|room| room.of_bytes));
    let events = statuses(samples).flat_map(|([graph, name, kind], device)| {
        let counters = device.counters.iter();
        counters.map(move |(event, n)| ([graph, name, kind, ("event", event)], n))
    });
    let help = "Events that a device counts besides requests.";
    page.family("cairn_device_events_total", "counter", help, events);
}

fn members(page: &mut Page, samples: &[Sample]) {
    let all = || {
        statuses(samples).flat_map(|([graph, name, _], device)| {
            let members = device.members.iter();
            members.map(move |member| ([graph, name, ("member", &*member.name)], member))
        })
    };
    let in_sync = |state| u8::from(state == MemberState::InSync);
    let in_sync = all().map(|(labels, member)| (labels, in_sync(member.state)));
    let help = "1 if a member of a redundant device is in sync, else 0.";
    page.family("cairn_member_in_sync", "gauge", help, in_sync);
    let errors = all().map(|(labels, member)| (labels, member.errors));
    let help = "Errors of a member since the start of the server.";
    page.family("cairn_member_errors_total", "counter", help, errors);
    let progress = all().filter_map(|(labels, member)| {
        let progress = member.progress.filter(|progress| progress.all_bytes > 0)?;
        Some((labels, progress.done_bytes as f64 / progress.all_bytes as f64))
    });
    let help = "Finished share of the resync of a member.";
    page.family("cairn_member_progress_ratio", "gauge", help, progress);
}

fn clients(page: &mut Page, samples: &[Sample]) {
    let exports = samples.iter().flat_map(|Sample { graph, .. }| {
        let labels = |export| [("graph", &*graph.name), ("export", export)];
        graph.exports.iter().map(move |export| (labels(&*export.name), export.size_bytes))
    });
    page.family("cairn_export_capacity_bytes", "gauge", "Size of an export.", exports);
    let graphs = || samples.iter().map(|sample| ([("graph", &*sample.status.graph)], sample));
    let now = graphs().map(|(labels, sample)| (labels, sample.status.connections));
    page.family("cairn_connections", "gauge", "Open NBD connections of a graph.", now);
    let served = graphs().map(|(labels, sample)| (labels, sample.status.served));
    let help = "NBD connections of a graph since the start of the server.";
    page.family("cairn_connections_total", "counter", help, served);
    let attached = graphs().flat_map(|([graph], sample)| {
        let attached = sample.status.attached.iter();
        attached.map(move |one| ([graph, ("export", &*one.export), ("path", &*one.path)], 1))
    });
    let help = "1 for each export that is attached as a device of this machine.";
    page.family("cairn_attached", "gauge", help, attached);
}

fn kept(page: &mut Page, samples: &[Sample], daemon: &DaemonView) {
    let answers = |name: &str| samples.iter().any(|sample| sample.status.graph == name);
    let graphs = || daemon.graphs.iter().map(|graph| ([("graph", &*graph.name)], graph));
    let is_up = |graph: &KeptGraph| graph.phase == Phase::Up && answers(&graph.name);
    let up = graphs().map(|(labels, graph)| (labels, u8::from(is_up(graph))));
    let help = "1 if clients can connect to a graph and its worker answers, else 0.";
    page.family("cairn_daemon_graph_up", "gauge", help, up);
    let starts = graphs().map(|(labels, graph)| (labels, graph.starts));
    let help = "Workers started for a graph.";
    page.family("cairn_daemon_graph_starts_total", "counter", help, starts);
    let held = graphs().map(|(labels, graph)| (labels, graph.held));
    page.family("cairn_daemon_held", "gauge", "Descriptors held for a graph's next worker.", held);
}

/// A Prometheus label: its name and its value.
type Label<'a> = (&'a str, &'a str);

/// Returns the Prometheus labels of a device.
fn labels<'a>(graph: &'a str, device: &'a str, kind: &'a str) -> [Label<'a>; 3] {
    [("graph", graph), ("device", device), ("kind", kind)]
}

/// Returns the status of every device of the graphs, with the Prometheus labels of the device.
fn statuses(samples: &[Sample]) -> impl Iterator<Item = ([Label<'_>; 3], &DeviceStatus)> {
    samples.iter().flat_map(|Sample { status, .. }| {
        let devices = status.devices.iter();
        devices.map(|device| (labels(&status.graph, &device.name, &device.kind), device))
    })
}

/// Returns one line for each state of health, with value 1 for the present state `is` and 0 for the others.
fn states<'a>(labels: &[Label<'a>], is: Health) -> [(Vec<Label<'a>>, u8); 4] {
    let all = [
        (Health::Ok, "ok"),
        (Health::Limited, "limited"),
        (Health::Degraded, "degraded"),
        (Health::Failed, "failed"),
    ];
    all.map(|(health, word)| ([labels, &[("state", word)]].concat(), u8::from(health == is)))
}

/// A page of metrics that is being written. The text format requires that all lines of one metric are adjacent.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family<'a, L: AsRef<[Label<'a>]>>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        lines: impl IntoIterator<Item = (L, impl Display)>,
    ) {
        // Writing to a String does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in lines {
            self.text.push_str(name);
            for (n, (label, value)) in labels.as_ref().iter().enumerate() {
                self.text.push(if n == 0 { '{' } else { ',' });
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.text, "{label}=\"{value}\"");
            }
            let _ = writeln!(self.text, "}} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::*;
    use crate::{Counts, DeviceStatus, Member, Progress, TopRow};

    fn sample(name: &str) -> Sample {
        let graph =
            GraphView { name: name.to_owned(), pid: None, nodes: Vec::new(), exports: Vec::new() };
        let member = Member {
            name: "b".to_owned(),
            state: MemberState::Copying,
            errors: 3,
            cause: None,
            detail: String::new(),
            since_unix_s: None,
            progress: Some(Progress { done_bytes: 1, all_bytes: 4, of_bytes: 4 }),
        };
        let device = DeviceStatus {
            errors: 0,
            name: "pair".to_owned(),
            kind: "mirror".to_owned(),
            health: Health::Degraded,
            summary: String::new(),
            members: vec![member],
            counters: BTreeMap::from([("repaired".to_owned(), 2)]),
            next: None,
            scrub: None,
            room: Some(SpaceUse { taken_bytes: 5, of_bytes: 9 }),
            rows: Vec::new(),
        };
        let status = Status {
            graph: name.to_owned(),
            pid: 1,
            health: Health::Degraded,
            connections: 1,
            served: 9,
            devices: vec![device],
            attached: Vec::new(),
            kept: None,
        };
        let ops = BTreeMap::from([("read".to_owned(), 7)]);
        let counts = Counts { ops, in_flight: 1, ..Counts::default() };
        let row = |counts| TopRow {
            name: "pair".to_owned(),
            kind: "mirror".to_owned(),
            fused: Vec::new(),
            counts,
        };
        let rows = vec![row(Some(counts)), row(None)];
        Sample { graph, status, top: Top { graph: name.to_owned(), clock_us: 0, rows } }
    }

    #[test]
    fn metrics_page_groups_lines_by_family() {
        let kept = |name: &str, phase| KeptGraph {
            name: name.to_owned(),
            phase,
            since_unix_s: 0,
            pid: None,
            starts: 4,
            held: 2,
            problem: None,
        };
        let graphs =
            vec![kept("more", Phase::Waiting), kept("home", Phase::Up), kept("silent", Phase::Up)];
        let daemon = DaemonView { pid: 1, state: PathBuf::from("/"), graphs };
        let text = page(&[sample("home"), sample("more")], Some(&daemon));
        let mut seen = BTreeSet::new();
        let mut now = "";
        for line in text.lines() {
            let name = match line.strip_prefix("# HELP ") {
                Some(help) => help.split(' ').next().unwrap(),
                None if line.starts_with('#') => continue,
                None => line.split('{').next().unwrap(),
            };
            if name != now {
                assert!(line.starts_with("# HELP "), "{line} stands without its family");
                assert!(seen.insert(name), "{name} begins twice");
                now = name;
            }
        }
        for line in [
            "cairn_device_ops_total{graph=\"home\",device=\"pair\",kind=\"mirror\",op=\"read\"} 7",
            "cairn_graph_state{graph=\"more\",state=\"degraded\"} 1",
            "cairn_graph_state{graph=\"more\",state=\"ok\"} 0",
            "cairn_member_progress_ratio{graph=\"home\",device=\"pair\",member=\"b\"} 0.25",
            "cairn_member_in_sync{graph=\"home\",device=\"pair\",member=\"b\"} 0",
            "cairn_daemon_graph_up{graph=\"more\"} 0",
            "cairn_daemon_graph_up{graph=\"home\"} 1",
            "cairn_daemon_graph_up{graph=\"silent\"} 0",
            "cairn_daemon_graph_starts_total{graph=\"more\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn metrics_document_lists_every_family() {
        let document = include_str!("../../../docs/metrics.md");
        let daemon = DaemonView { pid: 1, state: PathBuf::from("/"), graphs: Vec::new() };
        let text = page(&[], Some(&daemon));
        let families: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
            .collect();
        assert!(families.len() > 10);
        for family in families {
            assert!(document.contains(&format!("`{family}`")), "docs/metrics.md lacks {family}");
        }
    }

    #[test]
    fn metrics_label_values_are_escaped() {
        let mut page = Page::default();
        page.family("x", "gauge", "X.", [([("name", "a\"b\\c\nd")], 1)]);
        assert!(page.text.ends_with("x{name=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }
}
