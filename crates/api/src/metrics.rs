//! Metrics for Prometheus, in its text format. `docs/metrics.md` lists them. All values are in base units.

use std::fmt::{Display, Write as _};

use crate::{DaemonView, GraphView, Health, MemberState, Phase, Room, Status, Top};

/// Content type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The data of one graph.
pub struct Sample {
    /// Structure of the graph.
    pub graph: GraphView,
    /// Status of the graph.
    pub status: Status,
    /// Request counts of its devices.
    pub top: Top,
}

/// Returns the page of these graphs, and of the daemon that keeps them, if one does.
pub fn page(samples: &[Sample], daemon: Option<&DaemonView>) -> String {
    let mut page = Page::default();
    devices(&mut page, samples);
    health(&mut page, samples);
    members(&mut page, samples);
    clients(&mut page, samples);
    if let Some(daemon) = daemon {
        kept(&mut page, daemon);
    }
    page.text
}

fn devices(page: &mut Page, samples: &[Sample]) {
    let rows = || {
        samples.iter().flat_map(|sample| {
            let rows = sample.top.rows.iter();
            rows.filter_map(|row| Some((&*sample.top.graph, row, row.counts.as_ref()?)))
        })
    };
    page.family("cairn_device_ops_total", "counter", "Requests begun at a device.");
    for (graph, row, counts) in rows() {
        for (op, n) in &counts.ops {
            page.line(
                &[("graph", graph), ("device", &row.name), ("kind", &row.kind), ("op", op)],
                n,
            );
        }
    }
    page.family("cairn_device_bytes_total", "counter", "Bytes that these requests were about.");
    for (graph, row, counts) in rows() {
        for (op, n) in &counts.bytes {
            page.line(
                &[("graph", graph), ("device", &row.name), ("kind", &row.kind), ("op", op)],
                n,
            );
        }
    }
    page.family("cairn_device_errors_total", "counter", "Requests that failed at a device.");
    for (graph, row, counts) in rows() {
        let labels = [("graph", graph), ("device", &*row.name), ("kind", &*row.kind)];
        page.line(&labels, counts.errors);
    }
    page.family("cairn_device_in_flight", "gauge", "Requests begun and not yet answered.");
    for (graph, row, counts) in rows() {
        let labels = [("graph", graph), ("device", &*row.name), ("kind", &*row.kind)];
        page.line(&labels, counts.in_flight);
    }
}

fn health(page: &mut Page, samples: &[Sample]) {
    page.family("cairn_graph_state", "gauge", "1 for the state that a graph is in, 0 for others.");
    for Sample { status, .. } in samples {
        page.states(&[("graph", &status.graph)], status.health);
    }
    page.family(
        "cairn_device_state",
        "gauge",
        "1 for the state that a device is in, 0 for others.",
    );
    for Sample { status, .. } in samples {
        for device in &status.devices {
            let labels =
                [("graph", &*status.graph), ("device", &*device.name), ("kind", &*device.kind)];
            page.states(&labels, device.health);
        }
    }
    room(page, samples);
    page.family("cairn_device_events_total", "counter", "What a device counts besides requests.");
    for Sample { status, .. } in samples {
        for device in &status.devices {
            for (event, n) in &device.counters {
                let labels = [
                    ("graph", &*status.graph),
                    ("device", &*device.name),
                    ("kind", &*device.kind),
                    ("event", event),
                ];
                page.line(&labels, n);
            }
        }
    }
}

/// Adds the metrics of devices that allocate blocks by themselves.
fn room(page: &mut Page, samples: &[Sample]) {
    type Pick = fn(&Room) -> u64;
    let families: [(_, _, Pick); 2] = [
        ("cairn_device_room_taken_bytes", "Bytes of a device's room that are taken.", |room| {
            room.taken_bytes
        }),
        ("cairn_device_room_bytes", "Bytes of a device's room.", |room| room.of_bytes),
    ];
    for (name, help, pick) in families {
        page.family(name, "gauge", help);
        for Sample { status, .. } in samples {
            for device in &status.devices {
                let Some(room) = &device.room else { continue };
                let labels =
                    [("graph", &*status.graph), ("device", &*device.name), ("kind", &*device.kind)];
                page.line(&labels, pick(room));
            }
        }
    }
}

fn members(page: &mut Page, samples: &[Sample]) {
    let all = || {
        samples.iter().flat_map(|Sample { status, .. }| {
            status.devices.iter().flat_map(move |device| {
                let labels = move |member| {
                    [("graph", &*status.graph), ("device", &*device.name), ("member", member)]
                };
                device.members.iter().map(move |member| (labels(&*member.name), member))
            })
        })
    };
    page.family("cairn_member_in_sync", "gauge", "Whether a member of a redundant device is.");
    for (labels, member) in all() {
        page.line(&labels, u8::from(member.state == MemberState::InSync));
    }
    page.family("cairn_member_errors_total", "counter", "Errors of a member since the start.");
    for (labels, member) in all() {
        page.line(&labels, member.errors);
    }
    page.family("cairn_member_progress_ratio", "gauge", "How far a member is that is copied to.");
    for (labels, member) in all() {
        if let Some(progress) = member.progress.filter(|progress| progress.all_bytes > 0) {
            page.line(&labels, progress.done_bytes as f64 / progress.all_bytes as f64);
        }
    }
}

fn clients(page: &mut Page, samples: &[Sample]) {
    page.family("cairn_export_capacity_bytes", "gauge", "What an export shows.");
    for Sample { graph, .. } in samples {
        for export in &graph.exports {
            page.line(&[("graph", &graph.name), ("export", &export.name)], export.size_bytes);
        }
    }
    page.family("cairn_connections", "gauge", "NBD connections now.");
    for Sample { status, .. } in samples {
        page.line(&[("graph", &status.graph)], status.connections);
    }
    page.family("cairn_connections_total", "counter", "NBD connections since the start.");
    for Sample { status, .. } in samples {
        page.line(&[("graph", &status.graph)], status.served);
    }
    page.family("cairn_attached", "gauge", "1 for each export that is a device of this machine.");
    for Sample { status, .. } in samples {
        for attached in &status.attached {
            let labels = [
                ("graph", &*status.graph),
                ("export", &*attached.export),
                ("path", &*attached.path),
            ];
            page.line(&labels, 1);
        }
    }
}

fn kept(page: &mut Page, daemon: &DaemonView) {
    page.family("cairn_daemon_graph_up", "gauge", "Whether clients can connect to a graph.");
    for graph in &daemon.graphs {
        page.line(&[("graph", &graph.name)], u8::from(graph.phase == Phase::Up));
    }
    page.family("cairn_daemon_graph_starts_total", "counter", "Processes started for a graph.");
    for graph in &daemon.graphs {
        page.line(&[("graph", &graph.name)], graph.starts);
    }
    page.family("cairn_daemon_held", "gauge", "Descriptors held for the next process.");
    for graph in &daemon.graphs {
        page.line(&[("graph", &graph.name)], graph.held);
    }
}

/// A page under construction. The format demands that the lines of a metric family are adjacent.
#[derive(Default)]
struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a String does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.family);
        for (n, (label, value)) in labels.iter().enumerate() {
            self.text.push(if n == 0 { '{' } else { ',' });
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{label}=\"{value}\"");
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn states(&mut self, labels: &[(&str, &str)], is: Health) {
        let all = [(Health::Ok, "ok"), (Health::Degraded, "degraded"), (Health::Failed, "failed")];
        for (health, word) in all {
            let labels = [labels, &[("state", word)]].concat();
            self.line(&labels, u8::from(health == is));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::*;
    use crate::{Counts, DeviceStatus, KeptGraph, Member, Progress, TopRow};

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
            name: "pair".to_owned(),
            kind: "mirror".to_owned(),
            health: Health::Degraded,
            summary: String::new(),
            members: vec![member],
            counters: BTreeMap::from([("repaired".to_owned(), 2)]),
            next: None,
            scrub: None,
            room: Some(Room { taken_bytes: 5, of_bytes: 9 }),
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
        let kept = KeptGraph {
            name: "more".to_owned(),
            phase: Phase::Waiting,
            since_unix_s: 0,
            pid: None,
            starts: 4,
            held: 2,
            problem: None,
        };
        let daemon = DaemonView { pid: 1, state: PathBuf::from("/"), graphs: vec![kept] };
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
        page.family("x", "gauge", "X.");
        page.line(&[("name", "a\"b\\c\nd")], 1);
        assert!(page.text.ends_with("x{name=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }
}
