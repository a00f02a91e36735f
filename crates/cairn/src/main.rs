//! thin
use block::env::Address;
use export::nbd::{Export, Limits, Server};
use graph::engine::Engine;
use graph::kind::{Given, Maker, Value};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let core = runtime::Core::new(runtime::Config::default()).unwrap();
    let env = core.env();
    let engine = Engine::new();
    env.spawn("engine", engine.clone().drive());
    let kind = kinds::REGISTRY.find(&args[1]).unwrap();
    let value = match &*args[1] {
        "file" => Value::Text(args[2].clone()),
        _ => Value::Size(args[2].parse().unwrap()),
    };
    let given = Given { name: "disk".into(), options: vec![(kind.name, value)], lowers: vec![] };
    let Maker::Disk { make, .. } = kind.maker else { panic!() };
    let disk = make(&given, &env).unwrap();
    let node = engine.add_device("disk", disk, &[]).unwrap();
    let export = Export::new(&env, &engine, node, "vol", "");
    let server = Server::new(&env, vec![export], Limits::default(), |l| eprintln!("{l}"));
    server.serve(env.listen(&Address::Unix(args[3].clone().into())).unwrap());
    core.block_on(std::future::pending::<()>());
}
