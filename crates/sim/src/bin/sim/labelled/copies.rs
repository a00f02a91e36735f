//! Resyncs and scrubs of the mirror in the trial of labelled disks, while clients send requests. A resync copies only
//! the missed regions if the labels record them.

use std::time::Duration;

use block::MemberState;
use block::control::copies::{Action, Scrub};
use block::control::member::{Fail, Name, Resync, Stale};
use sim::{Count, answered};

use super::Trial;
use crate::trial::Failure;

impl Trial {
    /// Counts the members that the mirror is resyncing just after a start.
    pub(super) fn note_copies(&self) -> Result<(), Failure> {
        for member in self.report().members {
            let Some(progress) = member.progress.filter(|_| member.state == MemberState::Copying)
            else {
                continue;
            };
            let part = if progress.all_bytes < progress.of_bytes {
                Count::CopiedPart
            } else {
                Count::CopiedWhole
            };
            self.world.counters().add(part);
        }
        Ok(())
    }

    /// Sends the mirror commands for resync and scrub at one to four moments within `within`, while clients send
    /// requests.
    pub(super) fn bring_back(&self, within: Duration) {
        if self.draw.below(3) == 0 {
            return;
        }
        let live = self.running.as_ref().expect("the graph runs").live.clone();
        let (env, times) = (self.world.env(), self.draw.within(1, 4) as u32);
        let pause = within / times;
        env.clone().spawn("commands", async move {
            for _ in 0..times {
                env.sleep(pause).await;
                let now = live.now();
                let Some(mirror) = now.graph.member("m") else { return };
                // The member may be copied already, or must wait for late writes.
                let _ = answered(now.graph.ask::<Resync>(mirror, Stale::default()));
                // A scrub may be running already.
                let _ = answered(now.graph.ask::<Scrub>(mirror, Action::default()));
            }
        });
    }

    /// Takes member `disk` out of the mirror by a command after `pause`, while clients send requests. From then on the
    /// mirror must not use replies of the member.
    pub(super) fn take_out(&self, disk: usize, pause: Duration) {
        let (member, data) = (self.shape.member(disk), self.data());
        let (world, disk) = (self.world.clone(), self.disks[disk].clone());
        let live = self.running.as_ref().expect("the graph runs").live.clone();
        self.world.env().spawn("a command", async move {
            world.env().sleep(pause).await;
            let now = live.now();
            let mirror = now.graph.member("m").expect("the spec has the mirror m");
            // The mirror keeps the last member in sync, and a change may have removed this one.
            if answered(now.graph.ask::<Fail>(mirror, Name { member })).is_ok() {
                world.counters().add(Count::MemberFailed);
                disk.garble_reads(data);
            }
        });
    }
}
