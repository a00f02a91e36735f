//! All simulated disks of a chaosdisk process, the NBD server on them, and their common power supply.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use block::env::Address;
use block::{Env, Error, ErrorKind, Needs, Result};
use engine::Engine;
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use serde_json::{Map, Value, json};
use sim::CutPolicy;

use crate::command::{Command, DiskSpec};
use crate::disk::Disk;
use crate::time::Time;

/// Pause after a power cut before the disks reply to the requests that the power cut has ended. By then the server has
/// closed the connections of these requests.
const CLOSED: Duration = Duration::from_millis(5);

/// All simulated disks of a chaosdisk process. They have a common power supply, and one NBD server exports each disk.
pub struct Shelf {
    env: Env,
    disks: Vec<Rc<Disk>>,
    exports: Vec<Rc<Export>>,
    address: Address,
    server: RefCell<Server>,
}

impl Shelf {
    /// Creates the disks of `specs` in a simulated world with the seed `seed`, and serves the disks on a unix socket.
    ///
    /// # Errors
    /// An error if two disks have the same name, or if the socket is in use.
    pub fn open(env: &Env, seed: u64, specs: &[DiskSpec], socket: PathBuf) -> Result<Rc<Self>> {
        let time = Time::start(env, seed);
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let (mut disks, mut exports) = (Vec::new(), Vec::new());
        for (number, spec) in specs.iter().enumerate() {
            let disk = Rc::new(Disk::new(env, &time, number as u64, spec)?);
            let node = engine.add_device(&spec.name, disk.clone(), Needs::LEAF, &[])?;
            let portal = engine.portal(&spec.name, node);
            exports.push(Export::new(env, &engine, &portal, "a simulated disk"));
            disks.push(disk);
        }
        let address = Address::Unix(socket);
        let server = RefCell::new(listen(env, &exports, &address)?);
        Ok(Rc::new(Self { env: env.clone(), disks, exports, address, server }))
    }

    /// Carries out a command of the control socket. Returns the reply, a line of text.
    ///
    /// # Errors
    /// `NotFound` if there is no disk of that name.
    pub async fn carry_out(&self, command: Command) -> Result<String> {
        match command {
            Command::PowerCut { policy, stay } => self.power_cut(policy, stay).await?,
            Command::Fail { disk, verb, count } => self.disk(&disk)?.fail(verb, count),
            Command::Stall { disk, time } => self.disk(&disk)?.stall(time),
            Command::Hang { disk } => self.disk(&disk)?.hang(),
            Command::Release { disk } => self.disk(&disk)?.release(),
            Command::Rot { disk, offset } => {
                if !self.disk(&disk)?.rot(offset) {
                    let words = format!("{disk}: the medium has no data at {offset}");
                    return Err(Error::new(ErrorKind::NotFound, words));
                }
            }
            Command::Counts => return Ok(self.counts().to_string()),
            Command::Quit => {}
        }
        Ok("ok".to_owned())
    }

    fn disk(&self, name: &str) -> Result<&Disk> {
        self.disks.iter().map(|disk| &**disk).find(|disk| disk.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.disks.iter().map(|disk| disk.name()).collect();
            let words = format!("no disk {name:?}; disks: {}", names.join(", "));
            Error::new(ErrorKind::NotFound, words)
        })
    }

    /// Switches the power of all disks off and on. Without `stay`, the server closes all connections, so that requests
    /// which no disk has received are lost.
    async fn power_cut(&self, policy: CutPolicy, stay: bool) -> Result<()> {
        self.disks.iter().for_each(|disk| disk.power_off(policy, !stay));
        if !stay {
            let server = self.server.borrow().clone();
            let (env, disks) = (self.env.clone(), self.disks.clone());
            self.env.spawn("end of a power cut", async move {
                env.sleep(CLOSED).await;
                disks.iter().for_each(|disk| disk.speak());
            });
            server.stop(Duration::ZERO).await;
            *self.server.borrow_mut() = listen(&self.env, &self.exports, &self.address)?;
        }
        self.disks.iter().for_each(|disk| disk.power_on());
        Ok(())
    }

    fn counts(&self) -> Value {
        let disks: Map<_, _> =
            self.disks.iter().map(|disk| (disk.name().to_owned(), disk.counts())).collect();
        json!({ "connections": self.server.borrow().connections(), "disks": disks })
    }
}

fn listen(env: &Env, exports: &[Rc<Export>], address: &Address) -> Result<Server> {
    let server = Server::new(env, ExportList::new(exports.to_vec()), Limits::default(), |line| {
        eprintln!("{line}")
    });
    server.serve(env.listen(address)?);
    Ok(server)
}
