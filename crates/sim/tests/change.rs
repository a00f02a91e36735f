//! A member that fails in the middle of a change.

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Op};
use graph::engine::Engine;
use graph::labels::{Labels, Opening, Survey};
use graph::live::{Live, Unchanged};
use graph::spec::{Planned, Spec};
use meta::Machine;
use sim::{Client, DiskConfig, Faults, Profile, SimDisk, SimWorld};

const DATA_BYTES: u64 = 64 << 10;
const PIECE: usize = 4096;

/// A mirror on these disks.
fn text(on: &[usize]) -> String {
    let disk = |n: &usize| format!("d{n} = {{ path = \"/disk{n}\", label = true }}\n");
    let disks: String = on.iter().map(disk).collect();
    let names: Vec<_> = on.iter().map(|n| format!("\"d{n}\"")).collect();
    let names = names.join(", ");
    format!(
        "name = \"g\"\n[disk]\n{disks}[device]\nm = {{ kind = \"mirror\", on = [{names}] }}\n\
         [export]\nvol = {{ on = \"m\" }}\n"
    )
}

struct Rig {
    world: SimWorld,
    engine: Engine,
    disks: Vec<Rc<SimDisk>>,
}

impl Rig {
    fn new(disks: usize) -> Self {
        let world = SimWorld::new(1);
        let size = DATA_BYTES + 2 * meta::AREA_BYTES;
        let disk = |n: usize| {
            let disk = SimDisk::new(&world, n as u64, DiskConfig::new(size, Profile::Native512));
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks = (0..disks).map(disk).collect();
        let engine = Engine::new(world.env().pool());
        world.env().spawn("engine", engine.clone().drive());
        Self { world, engine, disks }
    }

    async fn look(&self, on: &[usize], running: Option<&Labels>) -> (Planned, Survey) {
        let (env, spec) = (self.world.env(), Spec::parse(&text(on), "g.toml", &|_| None));
        let opening = Opening {
            machine: Machine::new("host", [1; 16]),
            degraded: true,
            wipe: Vec::new(),
            take: false,
            changes: true,
        };
        let (kinds, engine) = (kinds::REGISTRY, &self.engine);
        let survey = Survey::take(&spec, kinds, &env, engine, opening, false, running).await;
        let planned = spec.plan_over(kinds, &env, &survey.facts()).await;
        (planned.unwrap_or_else(|faults| panic!("{faults}")), survey)
    }

    fn open(&self, on: &[usize]) -> Live {
        let opening = async {
            let (planned, survey) = self.look(on, None).await;
            Live::open(&self.world.env(), &self.engine, planned, Some(survey)).await
        };
        self.world.block_on(opening).unwrap().unwrap()
    }

    fn call(&self, client: &Client, op: Op) -> Op {
        let answer = self.world.block_on(client.send(op)).unwrap();
        answer.result.unwrap();
        answer.op
    }
}

#[test]
fn the_last_member_with_every_write_is_not_removed() {
    let rig = Rig::new(3);
    let live = rig.open(&[0, 1]);
    let env = rig.world.env();
    rig.world.run(env.now().after(Duration::from_secs(60))).unwrap();
    let client = Client::new(&rig.engine, live.now().graph.exports()[0].node);
    let range = ByteRange::new(0, PIECE as u64).unwrap();
    let data = env.buf(PIECE).unwrap();
    data.write().fill(0x5a);

    // A write is under way when the change begins; one member misses it, and works again at once.
    rig.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let (planned, survey) = rig.look(&[1, 2], now.labels.as_ref()).await;
        let (write, ill) =
            (client.send(Op::Write { range, data, fua: false }), rig.disks[1].clone());
        env.spawn("a write", async move {
            write.await.result.expect("the other member has it");
            ill.set_faults(Faults::default());
        });
        live.change(&turn, planned, Some(survey), Duration::from_secs(30)).await
    };
    let came = rig.world.block_on(changing).unwrap();

    let Err(Unchanged::Failed(error)) = came else { panic!("it is refused: {came:?}") };
    assert!(error.to_string().contains("would show other bytes"), "{error}");
    let Op::Read { into, .. } = rig.call(&client, Op::read(range, env.buf(PIECE).unwrap())) else {
        panic!("a read is answered as one")
    };
    assert!(into.read().iter().all(|byte| *byte == 0x5a), "what was answered is there");
}
