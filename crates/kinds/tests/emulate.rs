//! Tests `Emulate`, which emulates operations that a device lacks, with the battery.

use std::rc::Rc;

use block::{Device, Emulate, Info, Lower, Needs, Op, Request, Result};
use kinds::REGISTRY;
use sim::{Assembly, PartId};
use testkit::{Subject, conformance};

const SIZE: u64 = 48 << 10;

/// A device that supports only reads, writes and flushes, and declares that in its facts.
struct Plain {
    info: Info,
    lower: Lower,
}

impl Device for Plain {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match &mut request.op {
            op @ (Op::WriteZeroes { .. } | Op::Discard { .. }) => {
                panic!("a {} for a device that has none", op.verb())
            }
            op => self.lower.forward(op).await,
        }
    }
}

/// Builds a [`Plain`] device with an `Emulate` device above it that has blocks of 512 bytes.
fn emulated(graph: &mut Assembly, on: &[PartId]) -> Result<PartId> {
    let lower = graph.lower(on[0]);
    let info = Info { native_zeroes: false, discard: false, ..lower.info().clone() };
    let plain = graph.adopt("plain", Rc::new(Plain { info, lower }), Needs::children(1), on)?;
    let above = Emulate::new(graph.env(), graph.lower(plain), 512)?;
    graph.adopt("emulate", Rc::new(above), Emulate::NEEDS, &[plain])
}

#[test]
fn emulation_supplies_zeroes_and_discards() {
    judge(Subject::new("emulate", REGISTRY, 1, SIZE, emulated));
}

#[test]
fn emulation_supplies_small_writes_on_large_blocks() {
    judge(Subject::new("emulate 512 on 4096", REGISTRY, 1, SIZE, emulated).with_blocks_of_4k());
}

#[test]
fn emulation_mixes_small_writes_with_whole_block_zeroes() {
    let subject = Subject::new("emulate 512 on a disk", REGISTRY, 1, SIZE, |graph, on| {
        let above = Emulate::new(graph.env(), graph.lower(on[0]), 512)?;
        graph.adopt("emulate", Rc::new(above), Emulate::NEEDS, on)
    });
    judge(subject.with_blocks_of_4k());
}

fn judge(subject: Subject) {
    if let Err(refusal) = conformance(&subject) {
        panic!("{refusal}");
    }
}
