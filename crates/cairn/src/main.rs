//! thin
#![allow(clippy::disallowed_methods)]
use block::env::Address;
use export::nbd::{Export, Limits, Server};
use graph::engine::Engine;
use graph::spec::Spec;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let core = runtime::Core::new(runtime::Config::default()).unwrap();
    let env = core.env();
    let engine = Engine::new();
    env.spawn("engine", engine.clone().drive());
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let spec = Spec::parse(&text, &args[1], &|name| std::env::var(name).ok());
    let graph = core.block_on(async {
        let planned = spec.plan(kinds::REGISTRY, &env).await.unwrap();
        println!("{}", planned.summary());
        (graph::Graph::build(&planned, &engine, &env).await.unwrap(), planned)
    });
    let (graph, planned) = graph;
    let exports =
        graph.exports().iter().map(|e| Export::new(&env, &engine, e.node, &e.name, "")).collect();
    let server = Server::new(&env, exports, Limits::default(), |l| eprintln!("{l}"));
    for at in &planned.listens {
        server.serve(env.listen(at).unwrap());
    }
    let _ = Address::Unix("".into());
    core.block_on(std::future::pending::<()>());
}
