//! Benchmark of one device in a graph, within one process: nanoseconds and instructions that a table, a hook or an
//! async device adds to a read.
//!
//! `hops [--json]` measures all rows. `hops GRAPH OPS` only sends OPS requests, so that callgrind can count
//! instructions; the program itself starts callgrind if it is installed. `hops crypt` measures a read through `crypt`,
//! and its cipher alone.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::cell::Cell;
use std::process::{Child, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Instant;

use block::{Buf, ByteRange, Op, OpKind, Request, Result};
use engine::{Engine, Sink};
use graph::Graph;
use graph::spec::Spec;
use runtime::{Config, Core};

const ROUNDS: usize = 15;
const OPS: u64 = 300_000;
const BLOCK: u64 = 4096;

/// A row of the benchmark: a number of devices of one type, stacked on a null disk.
struct Row {
    name: &'static str,
    hops: u64,
    spec: fn() -> String,
}

const ROWS: [Row; 8] = [
    Row { name: "null", hops: 0, spec: || on("d", "") },
    Row { name: "table-1", hops: 1, spec: || stack(1, table) },
    Row { name: "table-16", hops: 16, spec: || stack(16, table) },
    Row { name: "hook-1", hops: 1, spec: || stack(1, hook) },
    Row { name: "hook-16", hops: 16, spec: || stack(16, hook) },
    Row { name: "device-1", hops: 1, spec: || stack(1, device) },
    Row { name: "device-8", hops: 8, spec: || stack(8, device) },
    Row { name: "device-16", hops: 16, spec: || stack(16, device) },
];

fn on(top: &str, devices: &str) -> String {
    format!(
        "[disk]\nd = {{ null = \"1GiB\" }}\n[device]\n{devices}[export]\nvol = {{ on = \"{top}\" }}\n"
    )
}

/// Returns the spec of `count` devices stacked on a null disk. `line` returns the spec line of a device from its number
/// and the name of its lower.
fn stack(count: u32, line: fn(u32, &str) -> String) -> String {
    let mut below = "d".to_owned();
    let mut lines = String::new();
    for n in 1..=count {
        lines += &line(n, &below);
        below = format!("x{n}");
    }
    on(&below, &lines)
}

fn table(n: u32, below: &str) -> String {
    // Each starts at another odd multiple of 4 KiB, so that no two cancel out.
    format!(
        "x{n} = {{ kind = \"linear\", on = \"{below}\", start = \"{}KiB\" }}\n",
        4 * (2 * n - 1)
    )
}

fn hook(n: u32, below: &str) -> String {
    format!("x{n} = {{ kind = \"pass\", on = \"{below}\" }}\n")
}

fn device(n: u32, below: &str) -> String {
    format!("x{n} = {{ kind = \"delay\", on = \"{below}\", time = \"0s\" }}\n")
}

/// Receives the reply to a read, and keeps the buffer for the next read.
struct Last(Cell<Option<Buf>>);

impl Sink for Last {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        assert!(result.is_ok(), "a null disk does not fail");
        if let Op::Read { into, .. } = request.op {
            self.0.set(Some(into));
        }
    }
}

/// A graph in this process, to which the benchmark sends requests.
struct Bench {
    engine: Engine,
    graph: Graph,
    last: Rc<Last>,
    core: Core,
}

impl Bench {
    fn new(spec: &str) -> std::result::Result<Self, String> {
        let core = Core::new(Config::default()).map_err(|error| error.to_string())?;
        let env = core.env();
        let engine = Engine::new(env.pool());
        let spec = Spec::parse(spec, "hops", &|_| None);
        let graph = core.block_on(async {
            let plan =
                spec.plan(kinds::REGISTRY, &env).await.map_err(|faults| faults.to_string())?;
            Graph::build(&plan, &engine, &env).await.map_err(|error| error.to_string())
        })?;
        let buf = env.buf(BLOCK as usize).map_err(|error| error.to_string())?;
        Ok(Self { engine, graph, last: Rc::new(Last(Cell::new(Some(buf)))), core })
    }

    /// Sends `ops` reads of 4 KiB to the graph, one after the other, at scattered addresses.
    fn read(&self, ops: u64) {
        let export = &self.graph.exports()[0];
        let portal = self.engine.portal(&export.name, export.node);
        let blocks = export.info.size / BLOCK;
        let sink: Rc<dyn Sink> = self.last.clone();
        for n in 0..ops {
            let at = n.wrapping_mul(0x9e37_79b9) % blocks * BLOCK;
            let range = ByteRange::new(at, BLOCK).expect("inside the device");
            let buf = self.last.0.take().expect("the request before is done");
            let sent = self.engine.submit(&portal, Op::read(range, buf), sink.clone(), n);
            assert!(sent.is_ok(), "one request always finds room");
        }
    }

    /// Checks that every device of the graph except tables has seen all `ops` requests.
    fn check(&self, ops: u64) -> std::result::Result<(), String> {
        for member in self.graph.members().iter().filter(|member| member.kind.name != "linear") {
            let reads = self.engine.counters(member.node, |counters| counters.ops(OpKind::Read));
            let counters = self.graph.report(member).counters;
            let passed = counters.iter().find(|(name, _)| *name == "up").map_or(reads, |(_, n)| *n);
            if passed != ops {
                return Err(format!("{} saw {passed} of {ops} requests", member.name));
            }
        }
        Ok(())
    }
}

/// Returns the number of instructions for each request, counted by two runs under callgrind; `None` without valgrind.
fn instructions(row: &Row) -> Option<f64> {
    let start = |ops: u64| {
        Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args([row.name, &ops.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .ok()
    };
    let count = |run: Child| {
        let output = run.wait_with_output().ok()?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = words.lines().find(|line| line.contains("Collected"))?;
        line.split(':').nth(1)?.trim().parse::<f64>().ok()
    };
    let (few, many) = (start(5_000)?, start(15_000)?);
    let (few, many) = (count(few)?, count(many)?);
    Some((many - few) / 10_000.0)
}

/// Prints the nanoseconds for 4 KiB of a memory disk, of a whole read through `crypt` on it, and of the cipher of
/// `crypt` alone (`hops crypt`).
fn crypt() -> std::result::Result<(), String> {
    const MEMORY: &str = "[disk]\nd = { memory = \"16MiB\" }\n";
    let key = std::env::temp_dir().join(format!("cairn-hops-{}.key", std::process::id()));
    let bytes: Vec<u8> = (0..64).collect();
    std::fs::write(&key, bytes).map_err(|error| error.to_string())?;
    let device = format!(
        "x = {{ kind = \"crypt\", on = \"d\", key = \"file:{}\", plain = true, unit = 4096 }}",
        key.display()
    );
    let spec = |devices: &str, top: &str| {
        format!("{MEMORY}[device]\n{devices}\n[export]\nvol = {{ on = \"{top}\" }}\n")
    };
    let benches = [Bench::new(&spec("", "d")), Bench::new(&spec(&device, "x"))];
    std::fs::remove_file(&key).map_err(|error| error.to_string())?;
    let [without, with] = benches;
    let (without, with) = (without?, with?);
    let mut rounds = [const { Vec::new() }; 3];
    let timed = |run: &mut dyn FnMut()| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_nanos() as f64 / OPS as f64
    };
    let mut kernel = kinds::crypt::kernel(BLOCK as u32).map_err(|error| error.to_string())?;
    for _ in 0..ROUNDS {
        rounds[0].push(timed(&mut || without.read(OPS)));
        rounds[1].push(timed(&mut || with.read(OPS)));
        rounds[2].push(timed(&mut || (0..OPS).for_each(|n| kernel(n * BLOCK))));
    }
    rounds.iter_mut().for_each(|all| all.sort_by(f64::total_cmp));
    let [without, with, kernel] = rounds.map(|all| all[ROUNDS / 2]);
    println!("memory   {without:8.1} ns for 4 KiB");
    println!("cipher   {kernel:8.1} ns for 4 KiB, {:.2} GB/s", BLOCK as f64 / kernel);
    println!(
        "crypt    {with:8.1} ns for 4 KiB, {:.2} of 1 / (memory + cipher)",
        (without + kernel) / with
    );
    Ok(())
}

fn run() -> std::result::Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [what] = &words[..]
        && what == "crypt"
    {
        return crypt();
    }
    if let [name, ops] = &words[..] {
        let row = ROWS.iter().find(|row| row.name == name).ok_or("no such graph")?;
        let ops = ops.parse().map_err(|_| "how many requests?")?;
        Bench::new(&(row.spec)())?.read(ops);
        return Ok(());
    }
    let benches =
        ROWS.iter().map(|row| Bench::new(&(row.spec)())).collect::<Result<Vec<_>, _>>()?;
    let mut rounds = vec![Vec::new(); ROWS.len()];
    for _ in 0..ROUNDS {
        for (bench, rounds) in benches.iter().zip(&mut rounds) {
            let begun = Instant::now();
            bench.read(OPS);
            rounds.push(begun.elapsed().as_nanos() as f64 / OPS as f64);
        }
    }
    let mut all = Vec::new();
    for ((row, bench), rounds) in ROWS.iter().zip(&benches).zip(&rounds) {
        bench.check(OPS * ROUNDS as u64)?;
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        all.push((row, sorted[ROUNDS / 2], instructions(row), rounds));
    }
    drop(benches.into_iter().map(|bench| bench.core).collect::<Vec<_>>());
    print(&all, words.iter().any(|word| word == "--json"));
    Ok(())
}

fn print(all: &[(&Row, f64, Option<f64>, &Vec<f64>)], json: bool) {
    let base = (all[0].1, all[0].2);
    let per_hop = |row: &Row, value: f64, base: f64| (value - base) / row.hops.max(1) as f64;
    if json {
        let rows: Vec<_> = all
            .iter()
            .map(|(row, ns, instructions, rounds)| {
                serde_json::json!({
                    "name": row.name, "hops": row.hops, "ns": ns, "rounds": rounds,
                    "ns_per_hop": per_hop(row, *ns, base.0), "instructions": instructions,
                })
            })
            .collect();
        println!("{:#}", serde_json::Value::from(rows));
        return;
    }
    println!("{:10} {:>9} {:>10} {:>13} {:>10}", "", "ns", "ns/hop", "instructions", "/hop");
    for (row, ns, instructions, _) in all {
        let hop = per_hop(row, *ns, base.0);
        let (count, count_hop) = match (instructions, base.1) {
            (Some(count), Some(base)) => {
                (format!("{count:.0}"), format!("{:.1}", per_hop(row, *count, base)))
            }
            _ => ("-".to_owned(), "-".to_owned()),
        };
        println!("{:10} {ns:9.1} {hop:10.1} {count:>13} {count_hop:>10}", row.name);
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
