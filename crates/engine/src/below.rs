//! The engine's side of a [`block::Lower`]: begins the requests of a device to a node below it.

use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use block::control::{Command, Reply};
use block::env::LocalFuture;
use block::{ChildId, Core, Done, Op, Result, Started, check, env};

use super::node::{Node, Power};
use super::{Inner, Owner, control, rebase};

/// A handle to a node, for the device above the node.
pub(super) struct Below {
    pub engine: Weak<Inner>,
    pub node: Rc<Node>,
}

impl Core for Below {
    fn start(&self, op: &mut Op) -> Started {
        let Some(engine) = self.engine.upgrade() else { return Started::Done(Err(env::stopped())) };
        if let Err(error) = check(&self.node.info, op) {
            return Started::Done(Err(error));
        }
        // A child that goes directly to a device meets no hook or table on its way.
        let straight = match &self.node.power {
            Power::Device { device, future_bytes, .. } => Some((device, *future_bytes)),
            Power::Hooks { .. } | Power::Table { .. } => None,
        };
        if straight.is_some() {
            self.node.counters.begin(op);
        }
        let (index, entry) = engine.begin(std::mem::replace(op, Op::Flush));
        let polled = match straight {
            Some((device, future_bytes)) => {
                engine.enter(index, entry, &self.node, device, future_bytes)
            }
            None => engine.run(index, entry, &self.node).map(|result| engine.ascend(entry, result)),
        };
        match polled {
            Poll::Ready(result) => {
                // The replaced value is the flush that was put into `op` above; a flush has nothing to drop.
                std::mem::forget(std::mem::replace(op, engine.release(index, entry).op));
                rebase(op, entry.start.get());
                Started::Done(result)
            }
            Poll::Pending => {
                entry.owner.set(Owner::Child);
                Started::Running(ChildId(index as u64))
            }
        }
    }

    fn poll(&self, child: ChildId, cx: &mut Context<'_>) -> Poll<Done> {
        match self.engine.upgrade() {
            Some(engine) => engine.poll_child(child.0 as usize, cx),
            None => Poll::Ready(Done { op: Op::Flush, result: Err(env::stopped()) }),
        }
    }

    fn abandon(&self, child: ChildId) {
        if let Some(engine) = self.engine.upgrade() {
            engine.abandon(child.0 as usize);
        }
    }

    fn control(&self, command: Command) -> LocalFuture<Result<Reply>> {
        control::carry_out(self.node.clone(), command)
    }
}
