//! The simulated clients of one volume. They send random requests, and compare each reply with a model of the volume.

use std::rc::Rc;
use std::time::Duration;

use sim::draw::Stream;
use sim::workload::{Mix, Tally, Worker};
use sim::{Door, Model, SimWorld};

use crate::trial::{Failure, LIMIT};

/// The simulated clients of one volume, which several server processes may serve one after the other.
pub struct Clients {
    pub world: SimWorld,
    /// How the clients send requests to the volume. `None` between two server processes, because the access keeps the
    /// graph and its disks open.
    pub door: Option<Door>,
    pub model: Rc<Model>,
    pub tally: Rc<Tally>,
    pub may: May,
}

/// The failures of clients' requests that a trial permits.
#[derive(Clone, Copy, Default)]
pub struct May {
    /// Whether the graph has a device that fails requests on purpose (kind `error`), so that clients may get its
    /// errors.
    pub fail_on_purpose: bool,
    /// Whether any request may fail, because the disks have more faults than the graph must survive.
    pub fail: bool,
}

impl Clients {
    /// Creates the clients of a volume that reads as zeros, to which `door` gives access.
    pub fn new(world: &SimWorld, door: Door, may: May) -> Self {
        let model = Rc::new(Model::new(world.seed(), door.info().size));
        Self { world: world.clone(), door: Some(door), model, tally: Rc::default(), may }
    }

    /// Returns the clients' access to the volume. Panics between two server processes.
    pub fn door(&self) -> &Door {
        self.door.as_ref().expect("clients run between a start of the graph and its end")
    }

    /// Creates a client that sends requests of the types in `mix`. `number` selects its stream of random numbers.
    pub fn worker(&self, number: u64, mix: Mix) -> Worker {
        Worker {
            env: self.world.env(),
            client: self.door().clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            draw: Stream::new(self.world.seed(), "worker", number),
            mix,
        }
    }

    /// Lets virtual time pass, during which the simulated processes run.
    pub fn pass(&self, time: Duration) -> Result<(), Failure> {
        Ok(self.world.run(self.world.env().now().after(time))?)
    }

    /// Waits until every client has received its last reply, and checks the results. Fails after [`LIMIT`].
    pub fn finish(&self) -> Result<(), Failure> {
        let (env, tally) = (self.world.env(), self.tally.clone());
        let done = self.world.block_on(async move { env.within(LIMIT, tally.idle()).await })?;
        if done.is_none() {
            return Err(Failure::new(format!("the clients did not finish within {LIMIT:?}")));
        }
        self.judge()
    }

    /// Reads the whole volume through a new client with this number, and compares the bytes with the model.
    pub fn verify(&self, number: u64) -> Result<(), Failure> {
        self.world.block_on(self.worker(number << 48, Mix::ALL).verify())?;
        self.judge()
    }

    /// Fails if a client has received a wrong reply so far, or an error that the trial does not permit.
    pub fn judge(&self) -> Result<(), Failure> {
        if let Some(wrong) = &*self.tally.wrong.borrow() {
            return Err(Failure::new(wrong.to_string()));
        }
        let May { fail_on_purpose, fail } = self.may;
        // If disks may fail, the other member may be out.
        if self.tally.injected.get() > 0 && !fail_on_purpose && !fail {
            return Err(Failure::new(
                "a mirror returned an injected error although another member is in sync",
            ));
        }
        match &*self.tally.error.borrow() {
            Some(error) if !fail => Err(Failure::new(format!(
                "a request failed although the graph must survive the fault: {error}"
            ))),
            _ => Ok(()),
        }
    }
}
