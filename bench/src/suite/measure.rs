//! Runs the rounds of the suite: in each round all servers of a group take turns. The results keep every round.

use std::time::{Duration, Instant};

use bench::load::{self, Load};

use crate::fio;
use crate::group::{Group, Row, Target};
use crate::server::{At, Server};
use crate::stream;
use bench::places::Places;

/// Time for which the cipher of `crypt` is measured in a round.
const CIPHER_TIME: Duration = Duration::from_millis(20);

/// Length in bytes of the unit that the cipher of `crypt` encrypts in this measurement.
const CIPHER_UNIT: u32 = 4096;

/// The figures of one server in all rounds.
#[derive(Clone)]
pub struct Series {
    /// Name of the server in the results.
    pub name: String,
    /// The command line that started the server.
    pub line: String,
    /// Requests per second, one value for each round.
    pub iops: Vec<f64>,
    /// Processor time of the server for each request in microseconds, one value for each round.
    pub cpu_us: Vec<f64>,
    /// Latency at the 99th percentile in microseconds, one value for each round; empty if fio or openssl is the client.
    pub p99_us: Vec<f64>,
}

/// A row of the table with its measured figures.
pub struct Measured {
    /// Short name of the row.
    pub id: &'static str,
    /// Title of the row: what was measured.
    pub title: &'static str,
    /// Length of a request in bytes.
    pub block: u32,
    /// The figure that the Cairn server must reach.
    pub target: Target,
    /// The figures of all servers of the row, first those of the Cairn server.
    pub series: Vec<Series>,
    /// The figures of fio directly on a file; `None` if the row does not need them.
    pub direct: Option<Series>,
}

impl Series {
    fn new(name: &str, line: &str) -> Self {
        let (name, line) = (name.to_owned(), line.to_owned());
        Self { name, line, iops: Vec::new(), cpu_us: Vec::new(), p99_us: Vec::new() }
    }

    fn add(&mut self, (iops, cpu_us): (f64, f64)) {
        self.iops.push(iops);
        self.cpu_us.push(cpu_us);
    }

    fn called(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }
}

/// One load from one client, and the servers that take turns with it in each round.
struct Heat {
    load: Load,
    by_fio: bool,
    /// The servers: index in the group, and figures.
    lanes: Vec<(usize, Series)>,
    /// The figures of fio directly on a file; `None` if no row needs them.
    direct: Option<Series>,
    /// Nanoseconds of the cipher of `crypt` for the bytes of a request, one value for each round; `None` if no row
    /// needs it.
    cipher_ns: Option<Vec<f64>>,
}

/// The running servers of a group, and the client that measures them.
struct Track<'a> {
    core: runtime::Core,
    servers: Vec<Server>,
    places: &'a Places,
    size: u64,
}

/// Measures all rows of a group in `rounds` rounds.
pub fn measure(group: &Group, places: &Places, rounds: usize) -> Result<Vec<Measured>, String> {
    let track = Track::new(group, places)?;
    let mut heats = heats(group, &track.servers);
    for round in 0..rounds {
        for heat in &mut heats {
            track.run(heat, round)?;
        }
    }
    drop(track);
    group.rows.iter().map(|row| measured(row, &heats)).collect()
}

fn is_of(heat: &Heat, row: &Row) -> bool {
    heat.load == row.load && heat.by_fio == row.by_fio
}

/// Returns each load of the group's rows once, with all servers that get this load in a row.
fn heats(group: &Group, servers: &[Server]) -> Vec<Heat> {
    let mut heats: Vec<Heat> = Vec::new();
    for row in &group.rows {
        if !heats.iter().any(|heat| is_of(heat, row)) {
            let (load, by_fio, lanes) = (row.load.clone(), row.by_fio, Vec::new());
            heats.push(Heat { load, by_fio, lanes, direct: None, cipher_ns: None });
        }
        let heat = heats.iter_mut().find(|heat| is_of(heat, row)).expect("it is there by now");
        for (n, server) in servers.iter().enumerate() {
            let wanted = server.name == row.ours || row.peers.contains(&server.name);
            if wanted && !heat.lanes.iter().any(|(lane, _)| *lane == n) {
                heat.lanes.push((n, Series::new(server.name, &server.line)));
            }
        }
        if row.direct {
            heat.direct = Some(Series::new("fio", "fio --ioengine=io_uring --direct=1"));
        }
        if row.cipher {
            heat.cipher_ns = Some(Vec::new());
        }
    }
    heats
}

/// Returns the measured figures of a row. In the results the Cairn server has the name `cairn`, and the Cairn server
/// without the measured kind has the name `plain`.
fn measured(row: &Row, heats: &[Heat]) -> Result<Measured, String> {
    let heat = heats.iter().find(|heat| is_of(heat, row)).ok_or("a row was not measured")?;
    let of = |name: &str| {
        let found = heat.lanes.iter().find(|(_, series)| series.name == name);
        found.map(|(_, series)| series).ok_or_else(|| format!("{}: no server {name}", row.id))
    };
    let mut series = vec![of(row.ours)?.called("cairn")];
    for peer in row.peers {
        let peer = of(peer)?;
        let peer = if peer.name == "cairn" { peer.called("plain") } else { peer.clone() };
        series.push(match heat.cipher_ns.as_ref().filter(|_| row.cipher) {
            Some(cipher_ns) => with_cipher(&peer, cipher_ns),
            None => peer,
        });
    }
    let (id, title, block, target) = (row.id, row.title, row.load.block, row.target);
    let direct = heat.direct.clone().filter(|_| row.direct);
    Ok(Measured { id, title, block, target, series, direct })
}

/// Returns the figures of a server as if each request took longer by the time of the cipher.
fn with_cipher(series: &Series, cipher_ns: &[f64]) -> Series {
    let slower = |(iops, ns): (&f64, &f64)| 1e9 / (1e9 / iops + ns);
    let ns = bench::stats::median(cipher_ns).value;
    Series {
        name: format!("{} + cipher", series.name),
        line: format!("{}; and {ns:.0} ns more for each request", series.line),
        iops: series.iops.iter().zip(cipher_ns).map(slower).collect(),
        ..series.clone()
    }
}

impl<'a> Track<'a> {
    /// Starts all servers of a group, and fills their volumes.
    fn new(group: &Group, places: &'a Places) -> Result<Self, String> {
        // The client sleeps while it waits, as ordinary clients do. A spinning one would take processor time from
        // servers.
        let config = runtime::Config { spin_us: 0, ..runtime::Config::default() };
        let core = runtime::Core::new(config).map_err(|error| error.to_string())?;
        for file in group.recipes.iter().filter_map(|recipe| recipe.file) {
            places.allocate(file, group.size)?;
        }
        let started = group.recipes.iter().map(|recipe| Server::start(recipe, places, group.size));
        let servers = started.collect::<Result<Vec<_>, _>>()?;
        for (server, recipe) in servers.iter().zip(&group.recipes) {
            match &server.at {
                At::Uri(uri) if group.filled && recipe.file.is_none() => core
                    .block_on(load::fill(&core.env(), uri, Some(group.size)))
                    .map_err(|error| format!("{}: {error}", server.name))?,
                At::Device(device) => fio::check(device, recipe.serves.depth())?,
                _ => {}
            }
        }
        Ok(Self { core, servers, places, size: group.size })
    }

    /// Runs one round: every server of `heat` gets the load once.
    fn run(&self, heat: &mut Heat, round: usize) -> Result<(), String> {
        let count = heat.lanes.len();
        for turn in 0..count {
            let (n, series) = &mut heat.lanes[(turn + round) % count];
            let server = &self.servers[*n];
            match &server.at {
                At::Uri(uri) if heat.by_fio => {
                    series.add(fio::round(&fio::Target::Uri(uri), &heat.load, self.size)?);
                }
                At::Device(device) => {
                    series.add(fio::round(&fio::Target::Device(device), &heat.load, self.size)?);
                }
                At::Uri(uri) => self.ask(uri, server, &heat.load, series)?,
                At::Port(port) => {
                    let before = server.cpu();
                    let begun = Instant::now();
                    let iops = stream::round(*port, &self.places.dir, &heat.load)?;
                    let used = (server.cpu() - before).as_secs_f64();
                    series.add((iops, used * 1e6 / (iops * begun.elapsed().as_secs_f64())));
                }
            }
        }
        if let Some(series) = &mut heat.direct {
            // It gets a file of its own, because its writes would destroy the pattern that reads from the servers are
            // compared with.
            let file = self.places.allocate("{dir}/direct.img", self.size)?;
            series.add(fio::round(&fio::Target::File(&file), &heat.load, self.size)?);
        }
        if let Some(cipher_ns) = &mut heat.cipher_ns {
            cipher_ns.push(cipher(heat.load.block)?);
        }
        Ok(())
    }

    /// Runs the load of one round on a server with the suite's own client, and adds the figures to `into`.
    fn ask(
        &self,
        uri: &str,
        server: &Server,
        load: &Load,
        into: &mut Series,
    ) -> Result<(), String> {
        // Only the filled part: a graph may be larger than its disks.
        let load = Load { span: Some(self.size), ..load.clone() };
        let before = server.cpu();
        let outcome = self
            .core
            .block_on(load::run(&self.core.env(), uri, &load))
            .map_err(|error| format!("{}: {error}", server.name))?;
        let used = server.cpu() - before;
        if let Some(error) = outcome.first_error {
            return Err(format!("{}: {} errors; the first: {error}", server.name, outcome.errors));
        }
        if outcome.wrong > 0 {
            return Err(format!("{}: {} reads had wrong bytes", server.name, outcome.wrong));
        }
        // The processor time includes the warm-up, in which requests are not counted.
        let share = load.time.as_secs_f64() / (load.time + load.warm_up).as_secs_f64();
        let cpu_us = used.as_secs_f64() * share * 1e6 / outcome.ops.max(1) as f64;
        into.add((outcome.iops(), cpu_us));
        into.p99_us.push(outcome.latency.percentile(0.99).as_secs_f64() * 1e6);
        Ok(())
    }
}

/// Returns the nanoseconds that the cipher of `crypt` needs for `bytes` bytes.
fn cipher(bytes: u32) -> Result<f64, String> {
    let mut kernel = kinds::crypt::kernel(CIPHER_UNIT).map_err(|error| error.to_string())?;
    let (begun, mut units) = (Instant::now(), 0);
    while begun.elapsed() < CIPHER_TIME {
        (0..64).for_each(|n| kernel((units + n) * u64::from(CIPHER_UNIT)));
        units += 64;
    }
    let each = begun.elapsed().as_nanos() as f64 / units as f64;
    Ok(each * f64::from(bytes) / f64::from(CIPHER_UNIT))
}
