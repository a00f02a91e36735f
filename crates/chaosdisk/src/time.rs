//! The clock of the simulated world with all disks of chaosdisk. It follows the real clock.

use std::rc::Rc;

use block::{Env, Mono, Notify};
use sim::SimWorld;

/// The simulated world of all disks. Its clock follows the real clock, and the events of all disks have one order.
pub struct Time {
    world: SimWorld,
    env: Env,
    /// A moment of the real clock. The next field is the same moment of the simulated clock.
    outside: Mono,
    inside: Mono,
    changed: Notify,
}

impl Time {
    /// Creates a simulated world with the seed `seed`, and starts a task in `env` that runs the events of the world.
    pub fn start(env: &Env, seed: u64) -> Rc<Self> {
        let world = SimWorld::new(seed);
        let (outside, inside) = (env.now(), world.env().now());
        let time =
            Rc::new(Self { world, env: env.clone(), outside, inside, changed: Notify::default() });
        env.spawn("the time of the disks", time.clone().pass());
        time
    }

    /// Returns the simulated world with all disks.
    pub fn world(&self) -> &SimWorld {
        &self.world
    }

    /// Runs the events of the simulated world that are due at the present real time.
    pub fn catch_up(&self) {
        let now = self.inside.after(self.env.now().since(self.outside));
        self.world.run(now).expect("operations of disks end");
    }

    /// Wakes the task that runs events of the world. A disk calls it after the begin of an operation.
    pub fn begun(&self) {
        self.changed.wake();
    }

    async fn pass(self: Rc<Self>) {
        loop {
            self.catch_up();
            let next = self.world.next_at();
            let other = self.changed.until(|| self.world.next_at() != next);
            match next {
                Some(at) => {
                    let at = self.outside.after(at.since(self.inside));
                    self.env.within(at.since(self.env.now()), other).await;
                }
                None => other.await,
            }
        }
    }
}
