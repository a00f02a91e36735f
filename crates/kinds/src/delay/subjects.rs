//! The devices and graphs with `delay` that the battery, the conformance tests, runs on.

use std::time::Duration;

use kind::Value;
use testkit::Subject;

use crate::tests::subjects::over;

pub fn subjects() -> Vec<Subject> {
    vec![over("delay", 1, |graph, on| {
        let time = |name, micros| (name, Value::Duration(Duration::from_micros(micros)));
        graph.add("delay", &[time("time", 100), time("flush", 2000), time("jitter", 3000)], on)
    })]
}
