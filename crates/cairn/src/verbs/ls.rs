//! `cairn ls`: lists the running graphs, and their addresses for clients.

use api::{Client, GraphView, VolumePage, VolumesAfter, routes};
use block::units::format_size;
use serde::Serialize;

use crate::exit::{Exit, Result};
use crate::out::{Form, columns};
use crate::running::{self, At};

/// A running graph with its control socket.
#[derive(Serialize)]
struct Listed {
    control: String,
    #[serde(flatten)]
    graph: GraphView,
    /// The first volumes of the graph's devices.
    volumes: VolumePage,
}

/// Most volumes of one graph in the list.
const VOLUMES_MAX: usize = 1000;

/// Returns the first volumes of a graph. A server of an earlier version has none.
fn volumes(client: &Client) -> VolumePage {
    let first = VolumesAfter { after: String::new(), most: VOLUMES_MAX };
    let none = VolumePage { volumes: Vec::new(), has_more: false };
    client.ask(&routes::VOLUMES, &first).unwrap_or(none)
}

/// Prints a list of all running graphs.
pub fn run(at: &At, form: Form) -> Result {
    let clients = match at.all() {
        Err(failure) if failure.code == Exit::NotFound.code() && at.is_any() => {
            let Some(kept) = running::kept()? else { return Err(failure) };
            return form.print(&Vec::<Listed>::new(), || running::idle(&kept));
        }
        clients => clients?,
    };
    let mut all = Vec::new();
    for client in clients {
        let control = client.path().display().to_string();
        let volumes = volumes(&client);
        all.push(Listed { control, graph: client.get(&routes::GRAPH)?, volumes });
    }
    form.print(&all, || table(&all))
}

fn table(all: &[Listed]) -> String {
    let title = ["GRAPH", "PID", "EXPORT", "SIZE", "BLOCK", "DEVICE, URI"];
    let mut rows = vec![title.map(str::to_owned).to_vec()];
    for Listed { graph, volumes, .. } in all {
        let pid = graph.pid.map(|pid| pid.to_string()).unwrap_or_default();
        for export in &graph.exports {
            let read_only = if export.read_only { ", read-only" } else { "" };
            rows.push(vec![
                graph.name.clone(),
                pid.clone(),
                export.name.clone(),
                format_size(export.size_bytes),
                format!("{}{read_only}", export.block_size_bytes),
                export.attached.iter().chain(&export.uris).cloned().collect::<Vec<_>>().join("  "),
            ]);
        }
        for volume in &volumes.volumes {
            let read_only = if volume.read_only { "read-only" } else { "" };
            rows.push(vec![
                graph.name.clone(),
                pid.clone(),
                volume.name.clone(),
                format_size(volume.size_bytes),
                read_only.to_owned(),
                volume.attached.iter().chain(&volume.uris).cloned().collect::<Vec<_>>().join("  "),
            ]);
        }
        if volumes.has_more {
            let more = format!("and more than {VOLUMES_MAX} volumes");
            rows.push(["", "", &more, "", "", ""].map(str::to_owned).to_vec());
        }
    }
    columns("<><><<", &rows)
}
