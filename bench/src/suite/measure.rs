//! Rounds: every server in turn, again and again, all of them kept.

use std::path::Path;
use std::time::Duration;

use bench::load::{self, Load};

use crate::cell::{Cell, Target};
use crate::fio;
use crate::server::Server;

/// What one server did in every round.
pub struct Series {
    /// The server.
    pub name: String,
    /// The command that started it.
    pub line: String,
    /// Requests per second, by round.
    pub iops: Vec<f64>,
    /// Microseconds of its processor time for each request, by round.
    pub cpu_us: Vec<f64>,
    /// Latency at the 99th percentile in microseconds, by round; empty for fio.
    pub p99_us: Vec<f64>,
}

/// A measured cell.
pub struct Measured {
    /// Its name.
    pub id: &'static str,
    /// In words.
    pub title: &'static str,
    /// Bytes of a request.
    pub block: u32,
    /// Its target.
    pub target: Target,
    /// The servers, ours first.
    pub series: Vec<Series>,
    /// fio on the file itself.
    pub direct: Option<Series>,
}

impl Series {
    fn new(name: &str, line: &str) -> Self {
        let (name, line) = (name.to_owned(), line.to_owned());
        Self { name, line, iops: Vec::new(), cpu_us: Vec::new(), p99_us: Vec::new() }
    }
}

/// Measures a cell.
pub fn measure(cell: &Cell, dir: &Path, rounds: usize) -> Result<Measured, String> {
    // The client sleeps when it waits, as clients do: a spinning one would take the processor from servers.
    let config = runtime::Config { spin_us: 0, ..runtime::Config::default() };
    let core = runtime::Core::new(config).map_err(|error| error.to_string())?;
    let env = core.env();
    let dir = dir.canonicalize().map_err(|error| error.to_string())?;
    for file in cell.recipes.iter().filter_map(|recipe| recipe.file) {
        allocate(&dir.join(file), cell.size)?;
    }
    let servers = cell
        .recipes
        .iter()
        .enumerate()
        .map(|(n, recipe)| Server::start(recipe, &dir, cell.size, n))
        .collect::<Result<Vec<_>, _>>()?;
    // Files have their bytes already.
    if cell.verify {
        for (server, _) in servers.iter().zip(&cell.recipes).filter(|(_, r)| r.file.is_none()) {
            core.block_on(load::fill(&env, &server.uri, Some(cell.size)))
                .map_err(|error| format!("{}: {error}", server.name))?;
        }
    }
    let mut series: Vec<_> =
        servers.iter().map(|server| Series::new(server.name, &server.line)).collect();
    let mut beside = cell.direct.then(|| Series::new("fio", "fio --ioengine=io_uring --direct=1"));
    for round in 0..rounds {
        for turn in 0..servers.len() {
            let n = (turn + round) % servers.len();
            one(&core, &env, cell, &servers[n], &mut series[n])?;
        }
        if let Some(beside) = &mut beside {
            // Its writes would undo what the servers' reads are compared with: a file of its own.
            let file = dir.join("direct.img");
            allocate(&file, cell.size)?;
            let target = fio::Target::File(&file);
            let (iops, cpu_us) = fio::round(&target, &cell.load, cell.size)?;
            beside.iops.push(iops);
            beside.cpu_us.push(cpu_us);
        }
    }
    drop(servers);
    let (id, title, block, target) = (cell.id, cell.title, cell.load.block, cell.target);
    Ok(Measured { id, title, block, target, series, direct: beside })
}

fn one(
    core: &runtime::Core,
    env: &block::Env,
    cell: &Cell,
    server: &Server,
    series: &mut Series,
) -> Result<(), String> {
    if cell.by_fio {
        let target = fio::Target::Uri(&server.uri);
        let (iops, cpu_us) = fio::round(&target, &cell.load, cell.size)?;
        series.iops.push(iops);
        series.cpu_us.push(cpu_us);
        return Ok(());
    }
    // What was filled, and no more: a graph may be larger than its disks.
    let load = Load { span: Some(cell.size), ..cell.load.clone() };
    let before = server.cpu();
    let outcome = core
        .block_on(load::run(env, &server.uri, &load))
        .map_err(|error| format!("{}: {error}", server.name))?;
    let used = server.cpu() - before;
    if let Some(error) = outcome.first_error {
        return Err(format!("{}: {} errors; the first: {error}", server.name, outcome.errors));
    }
    if outcome.wrong > 0 {
        return Err(format!("{}: {} reads had wrong bytes", server.name, outcome.wrong));
    }
    // Processor time covers the warm-up too, in which requests are not counted.
    let share = cell.load.time.as_secs_f64() / (cell.load.time + cell.load.warm_up).as_secs_f64();
    let per_op = used.as_secs_f64() * share * 1e6 / outcome.ops.max(1) as f64;
    series.iops.push(outcome.iops());
    series.cpu_us.push(per_op);
    series.p99_us.push(micros(outcome.latency.percentile(0.99)));
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A file with all its blocks written, so that no round pays for allocation. One that is there from a
/// cell before still has them: every write of a load puts down what belongs there.
fn allocate(path: &Path, size: u64) -> Result<(), String> {
    use std::io::Write;
    if path.metadata().is_ok_and(|found| found.len() == size) {
        return Ok(());
    }
    let file = std::fs::File::create(path);
    let mut file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    let mut piece = vec![0; 1 << 20];
    for n in 0..size >> 20 {
        bench::pattern::fill(&mut piece, n << 20);
        file.write_all(&piece).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    file.sync_all().map_err(|error| format!("{}: {error}", path.display()))
}
