//! Copies of a mirror: of parts only where the labels know more; begun again, and compared, while clients
//! work.

use std::time::Duration;

use block::Control;
use sim::Count;

use super::Trial;
use crate::trial::Failure;

impl Trial {
    /// Counts the copies that begin with a start.
    pub(super) fn note_copies(&self) -> Result<(), Failure> {
        for member in self.report()?.members {
            let Some(progress) = member.progress.filter(|_| member.state == "copying") else {
                continue;
            };
            let part = if progress.all < self.shape.data_bytes() {
                Count::CopiedPart
            } else {
                Count::CopiedWhole
            };
            self.world.counters().add(part);
        }
        Ok(())
    }

    /// Brings members back and compares them, now and then, while requests are on their way.
    pub(super) fn bring_back(&self, within: Duration) {
        if self.draw.below(3) == 0 {
            return;
        }
        let live = self.running.as_ref().expect("it runs").live.clone();
        let (env, times) = (self.world.env(), self.draw.within(1, 4) as u32);
        let pause = within / times;
        env.clone().spawn("commands", async move {
            for _ in 0..times {
                env.sleep(pause).await;
                let now = live.now();
                let Some(mirror) = now.graph.member("m") else { return };
                // It may be copied already, or have to wait for what is late.
                let _ = now.graph.control(mirror, &Control::Resync { member: None });
                // One may be under way.
                let _ = now.graph.control(mirror, &Control::Scrub { stop: false });
            }
        });
    }

    /// Takes a member out by command while others are read and copied. Its answers count for nothing from then on.
    pub(super) fn take_out(&self, within: Duration) {
        let (any, data) = (self.any_member(), self.data());
        let (member, disk) = (self.shape.member(any), self.disks[any].clone());
        let live = self.running.as_ref().expect("it runs").live.clone();
        let (world, pause) =
            (self.world.clone(), Duration::from_nanos(self.draw.below(within.as_nanos() as u64)));
        self.world.env().spawn("a command", async move {
            world.env().sleep(pause).await;
            let now = live.now();
            let mirror = now.graph.member("m").expect("the spec has it");
            // The last member in sync stays.
            if now.graph.control(mirror, &Control::Fail { member }).is_ok() {
                world.counters().add(Count::MemberFailed);
                disk.garble_reads(data);
            }
        });
    }
}
