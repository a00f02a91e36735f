//! The picture of a graph as an SVG image without external parts.

use std::fmt::Write as _;

use api::{GraphView, NodeView, Power};

use super::layout::{LAYER_HEIGHT, Layout, layout};
use super::{export_facts, facts, is_marked};

const MARGIN: f64 = 24.0;
const TITLE_HEIGHT: f64 = 32.0;
const BOX_HEIGHT: f64 = 44.0;

/// Approximate width of a character of the picture's font, in pixels.
const CHARACTER: f64 = 6.7;

const STYLE: &str = "text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#1f2430}\
    .t{font-weight:600;font-size:15px;text-anchor:start}.n{font-weight:600}.f{fill:#5b6270}\
    rect{stroke-width:1.5;rx:8}path{fill:none;stroke:#9aa3b2;stroke-width:1.5}\
    .export{fill:#e8f1ff;stroke:#3b76d6}.disk{fill:#eceef2;stroke:#6b7280}\
    .table{fill:#eef8f0;stroke:#3c9a5f}.hooks{fill:#fdf5e3;stroke:#c8922b}\
    .device{fill:#f4edfc;stroke:#8557c5}.bad{fill:#fde8e8;stroke:#d03a3a}";

/// The text and the style of a box.
struct Label<'g> {
    name: &'g str,
    facts: String,
    class: &'static str,
}

/// Returns the picture of `graph` as an SVG image, with exports at the top and disks at the bottom.
pub fn svg(graph: &GraphView) -> String {
    let labels = labels(graph);
    let widths: Vec<f64> = labels.iter().map(Label::width).collect();
    let sunk: Vec<bool> = labels.iter().map(|label| label.class == "disk").collect();
    let laid = layout(&widths, &edges(graph), &sunk);
    let width = (laid.width + 2.0 * MARGIN).max(160.0);
    let height = y(laid.layers) + MARGIN - (LAYER_HEIGHT - BOX_HEIGHT);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>{STYLE}</style>\n\
         <text class=\"t\" x=\"{MARGIN}\" y=\"{:.0}\">{}</text>\n",
        MARGIN + 8.0,
        escaped(&graph.name)
    );
    for points in &laid.edges {
        // Writing to a String does not fail.
        let _ = writeln!(text, "<path d=\"{}\"/>", curve(points));
    }
    boxes(&labels, &widths, &laid, &mut text);
    text.push_str("</svg>\n");
    text
}

/// Returns the labels of all exports, and after them those of all nodes. An edge names a box by its index in this
/// list.
fn labels(graph: &GraphView) -> Vec<Label<'_>> {
    let exports = graph.exports.iter().map(|export| Label {
        name: &export.name,
        facts: export_facts(export),
        class: "export",
    });
    let nodes = graph.nodes.iter().map(|node| Label {
        name: &node.name,
        facts: facts(node),
        class: class(node),
    });
    exports.chain(nodes).collect()
}

fn class(node: &NodeView) -> &'static str {
    match node.power {
        _ if is_marked(node) => "bad",
        Power::Disk => "disk",
        Power::Table => "table",
        Power::Hooks => "hooks",
        Power::Device => "device",
    }
}

fn edges(graph: &GraphView) -> Vec<(usize, usize)> {
    let first = graph.exports.len();
    let index = |name: &String| {
        graph.nodes.iter().position(|node| node.name == *name).map(|index| first + index)
    };
    let mut edges = Vec::new();
    for (n, export) in graph.exports.iter().enumerate() {
        edges.extend(index(&export.on).map(|lower| (n, lower)));
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        edges.extend(node.lowers.iter().filter_map(index).map(|lower| (first + n, lower)));
    }
    edges
}

impl Label<'_> {
    fn width(&self) -> f64 {
        let characters = self.name.chars().count().max(self.facts.chars().count());
        characters as f64 * CHARACTER + 24.0
    }
}

/// Returns the vertical position of the top of a layer, in pixels.
fn y(layer: usize) -> f64 {
    MARGIN + TITLE_HEIGHT + layer as f64 * LAYER_HEIGHT
}

/// Returns the SVG path of an edge, from the bottom of one box to the top of another. It is vertical at each point in
/// `points`.
fn curve(points: &[(f64, usize)]) -> String {
    let mut path = String::new();
    for (n, pair) in points.windows(2).enumerate() {
        let ((x1, upper), (x2, lower)) = (pair[0], pair[1]);
        let (x1, x2) = (x1 + MARGIN, x2 + MARGIN);
        let (y1, y2) = (y(upper) + BOX_HEIGHT, y(lower));
        let middle = f64::midpoint(y1, y2);
        if n == 0 {
            let _ = write!(path, "M{x1:.1} {y1:.1}");
        } else {
            // Passes vertically between the boxes of a layer.
            let _ = write!(path, "L{x1:.1} {y1:.1}");
        }
        let _ = write!(path, "C{x1:.1} {middle:.1} {x2:.1} {middle:.1} {x2:.1} {y2:.1}");
    }
    path
}

fn boxes(labels: &[Label<'_>], widths: &[f64], laid: &Layout, text: &mut String) {
    for ((label, width), (x, layer)) in labels.iter().zip(widths).zip(&laid.boxes) {
        let (x, y) = (x + MARGIN, y(*layer));
        let _ = writeln!(
            text,
            "<rect class=\"{}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{BOX_HEIGHT}\"/>\n\
             <text class=\"n\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n\
             <text class=\"f\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            label.class,
            x - width / 2.0,
            y + 18.0,
            escaped(label.name),
            y + 35.0,
            escaped(&label.facts)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
