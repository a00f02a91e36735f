//! The devices and graphs with `stripe` that the battery, the conformance tests, runs on.

use sim::Assembly;
use testkit::Subject;

use crate::tests::subjects::{over, plain, size};

pub fn subjects() -> Vec<Subject> {
    vec![
        over("stripe", 3, |graph, on| graph.add("stripe", &[size("chunk", 1024)], on)),
        over("a stripe of partitions", 2, |graph, on| {
            let part = |graph: &mut Assembly, lower| {
                graph.add("partition", &[size("size", 16384)], &[lower])?;
                graph.add("partition", &[size("size", 32768)], &[lower])
            };
            let parts = [part(graph, on[0])?, part(graph, on[1])?];
            graph.add("stripe", &[size("chunk", 4096)], &parts)
        }),
        over("a window onto a concat of stripes", 4, |graph, on| {
            let low = graph.add("stripe", &[size("chunk", 512)], &on[..2])?;
            let high = graph.add("stripe", &[size("chunk", 8192)], &on[2..])?;
            let both = graph.add("concat", &[], &[low, high])?;
            let watched = graph.add("pass", &[], &[both])?;
            let half = [size("start", 24 << 10), size("size", 144 << 10)];
            let window = graph.add("linear", &half, &[watched])?;
            graph.add("pass", &[], &[window])
        }),
        over("a stripe of crypts", 2, |graph, on| {
            let safes = [on[0], on[1]].map(|lower| graph.add("crypt", &plain(), &[lower]));
            let [one, two] = safes;
            graph.add("stripe", &[size("chunk", 1024)], &[one?, two?])
        }),
        over("a stripe of 4 KiB blocks", 2, |graph, on| {
            graph.add("stripe", &[size("chunk", 4096)], on)
        })
        .with_blocks_of_4k(),
    ]
}
