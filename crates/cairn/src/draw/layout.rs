//! A layered layout for pictures of graphs: every edge leads down from one layer to a lower one.
//!
//! An edge that crosses layers gets a point in each of them, so that the edge passes between boxes, not behind them.
//! Each layer is sorted by the positions of the neighbours of its boxes, those above and those below in turns, until
//! most crossings are removed. Then each box and point moves towards its neighbours as far as the gaps permit.

/// Least distance between two boxes, and between a box and an edge that passes the box, in pixels.
const GAP: f64 = 24.0;

/// Distance between the tops of two consecutive layers, in pixels.
pub const LAYER_HEIGHT: f64 = 96.0;

/// Number of rounds of sorting and of moving. More rounds cause no visible change.
const TURNS: usize = 12;

/// A box of the picture, or a point of an edge between two layers.
struct Vertex {
    layer: usize,
    width: f64,
    x: f64,
    up: Vec<usize>,
    down: Vec<usize>,
}

/// The positions of all boxes and edges of a picture.
pub struct Layout {
    /// The horizontal centre of each box, in pixels, and the number of its layer.
    pub boxes: Vec<(f64, usize)>,
    /// The points of each edge, from its upper end to its lower end: position in pixels, and number of the layer.
    pub edges: Vec<Vec<(f64, usize)>>,
    /// Distance from the left edge of the leftmost box to the right edge of the rightmost one.
    pub width: f64,
    /// Number of layers of the picture.
    pub layers: usize,
}

/// Returns the layout of boxes with these widths. An edge is a pair of the upper and the lower box; the edges must
/// not form a cycle. The boxes marked in `sunk` are in the lowest layer.
pub fn layout(widths: &[f64], edges: &[(usize, usize)], sunk: &[bool]) -> Layout {
    let layers_of = layers(widths.len(), edges, sunk);
    let layers = layers_of.iter().max().map_or(0, |deepest| deepest + 1);
    let vertex = |(width, layer): (&f64, &usize)| Vertex {
        layer: *layer,
        width: *width,
        x: 0.0,
        up: Vec::new(),
        down: Vec::new(),
    };
    let mut all: Vec<Vertex> = widths.iter().zip(&layers_of).map(vertex).collect();
    let chains: Vec<Vec<usize>> = edges.iter().map(|edge| chain(&mut all, *edge)).collect();
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); layers];
    for (index, vertex) in all.iter().enumerate() {
        rows[vertex.layer].push(index);
    }
    sort(&mut rows, &all);
    place(&rows, &mut all);
    let left = all.iter().map(|v| v.x - v.width / 2.0).fold(f64::INFINITY, f64::min);
    let right = all.iter().map(|v| v.x + v.width / 2.0).fold(f64::NEG_INFINITY, f64::max);
    let at = |index: usize| (all[index].x - left, all[index].layer);
    Layout {
        boxes: (0..widths.len()).map(at).collect(),
        edges: chains.iter().map(|chain| chain.iter().map(|index| at(*index)).collect()).collect(),
        width: (right - left).max(0.0),
        layers,
    }
}

/// Returns the layer of each box: the first one below all layers of its uppers.
fn layers(count: usize, edges: &[(usize, usize)], sunk: &[bool]) -> Vec<usize> {
    let mut layers = vec![0; count];
    let mut changed = true;
    while changed {
        changed = false;
        for (upper, lower) in edges {
            if layers[*lower] <= layers[*upper] {
                layers[*lower] = layers[*upper] + 1;
                changed = true;
            }
        }
    }
    let lowest = layers.iter().copied().max().unwrap_or(0);
    for (layer, _) in layers.iter_mut().zip(sunk).filter(|(_, sunk)| **sunk) {
        *layer = lowest;
    }
    layers
}

/// Returns the vertices of an edge, and creates a vertex in each layer between the edge's ends.
fn chain(all: &mut Vec<Vertex>, (upper, lower): (usize, usize)) -> Vec<usize> {
    let mut chain = vec![upper];
    for layer in all[upper].layer + 1..all[lower].layer {
        all.push(Vertex { layer, width: 0.0, x: 0.0, up: Vec::new(), down: Vec::new() });
        chain.push(all.len() - 1);
    }
    chain.push(lower);
    for pair in chain.windows(2) {
        all[pair[0]].down.push(pair[1]);
        all[pair[1]].up.push(pair[0]);
    }
    chain
}

fn sort(rows: &mut [Vec<usize>], all: &[Vertex]) {
    let mut rank = vec![0.0; all.len()];
    if rows.is_empty() {
        return;
    }
    for turn in 0..TURNS {
        let down = turn % 2 == 0;
        let last = rows.len() - 1;
        for step in 0..rows.len() {
            let row = &mut rows[if down { step } else { last - step }];
            let key = |index: &usize| {
                let near = if down { &all[*index].up } else { &all[*index].down };
                mean(near.iter().map(|other| rank[*other])).unwrap_or(rank[*index])
            };
            let mut keyed: Vec<_> = row.iter().map(|index| (key(index), *index)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *row = keyed.into_iter().map(|(_, index)| index).collect();
            // As a share of the row, so that rows of different lengths compare.
            let count = row.len() as f64;
            for (n, index) in row.iter().enumerate() {
                rank[*index] = (n as f64 + 0.5) / count;
            }
        }
    }
}

fn place(rows: &[Vec<usize>], all: &mut [Vertex]) {
    for turn in 0..2 * TURNS {
        for step in 0..rows.len() {
            let row = &rows[if turn % 2 == 0 { step } else { rows.len() - 1 - step }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|index| {
                    let vertex = &all[*index];
                    let near = vertex.up.iter().chain(&vertex.down).map(|other| all[*other].x);
                    mean(near).unwrap_or(vertex.x)
                })
                .collect();
            let gap = |a: usize, b: usize| (all[a].width + all[b].width) / 2.0 + GAP;
            // The mean of two placements that keep the gaps, one leftmost and one rightmost, keeps the gaps too.
            let mut right = wanted.clone();
            for n in 1..row.len() {
                right[n] = right[n].max(right[n - 1] + gap(row[n - 1], row[n]));
            }
            let mut left = wanted;
            for n in (1..row.len()).rev() {
                left[n - 1] = left[n - 1].min(left[n] - gap(row[n - 1], row[n]));
            }
            for (n, index) in row.iter().enumerate() {
                all[*index].x = f64::midpoint(left[n], right[n]);
            }
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_layout_draws_edges_downward_without_overlapping_boxes() {
        // Rows of two, three and one box, and one edge that spans a layer.
        let edges = [(0, 2), (0, 3), (1, 4), (1, 3), (2, 5), (3, 5), (4, 5), (0, 5)];
        let widths = [100.0; 6];
        let laid = layout(&widths, &edges, &[false, false, false, false, false, true]);
        assert_eq!(laid.layers, 3);
        for ((upper, lower), points) in edges.iter().zip(&laid.edges) {
            assert_eq!(points.first(), Some(&laid.boxes[*upper]));
            assert_eq!(points.last(), Some(&laid.boxes[*lower]));
            assert!(points.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1));
        }
        for (n, a) in laid.boxes.iter().enumerate() {
            assert!(a.0 >= 50.0 && a.0 <= laid.width - 50.0);
            for b in laid.boxes[..n].iter().filter(|b| b.1 == a.1) {
                assert!((a.0 - b.0).abs() >= 100.0 + GAP - 1e-6, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn graph_layout_orders_boxes_without_crossing_edges() {
        // The edges cross in the given order: 0 to 3, 1 to 2.
        let laid = layout(&[10.0; 4], &[(0, 3), (1, 2)], &[false; 4]);
        let over = |a: usize, b: usize| laid.boxes[a].0 < laid.boxes[b].0;
        assert_eq!(over(0, 1), over(3, 2));
    }

    #[test]
    fn graph_layout_has_no_layers_for_empty_graph() {
        assert_eq!(layout(&[], &[], &[]).layers, 0);
    }
}
