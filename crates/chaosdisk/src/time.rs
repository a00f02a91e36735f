//! The clock of the simulated world, tied to the real one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use block::{Env, Mono};
use sim::SimWorld;

/// A simulated world in which time passes as it does outside. All its disks share one order of
/// events.
pub struct Time {
    world: SimWorld,
    env: Env,
    /// One moment, by both clocks.
    outside: Mono,
    inside: Mono,
    waiting: RefCell<Option<Waker>>,
}

impl Time {
    /// A world of that seed whose events happen in a task of `env`.
    pub fn start(env: &Env, seed: u64) -> Rc<Self> {
        let world = SimWorld::new(seed);
        let (outside, inside) = (env.now(), world.env().now());
        let time = Rc::new(Self { world, env: env.clone(), outside, inside, waiting: None.into() });
        env.spawn("the time of the disks", time.clone().pass());
        time
    }

    /// The world.
    pub fn world(&self) -> &SimWorld {
        &self.world
    }

    /// Lets happen what is due by now.
    pub fn catch_up(&self) {
        let now = self.inside.after(self.env.now().since(self.outside));
        self.world.run(now).expect("operations of disks end");
    }

    /// Something was begun, and will happen.
    pub fn begun(&self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    async fn pass(self: Rc<Self>) {
        loop {
            self.catch_up();
            match self.world.next_at() {
                Some(at) => {
                    let at = self.outside.after(at.since(self.inside));
                    let left = at.since(self.env.now());
                    self.env.within(left, self.changed()).await;
                }
                None => self.changed().await,
            }
        }
    }

    async fn changed(&self) {
        let mut waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
