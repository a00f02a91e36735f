//! The verbs of `cairn vdisk` that change a pool.

use std::time::{Duration, Instant};

use api::{VolumeName, routes};
use block::control::volume;
use block::units::{format_duration, format_size, parse_duration, parse_size};
use indicatif::ProgressBar;
use kinds::vdisks::{
    CloneArgs, CloneOf, Keep, KeepArgs, LabelArgs, QuotaArgs, RollBack, RollBackArgs, SetLabel,
    SetQuota, SetTaking, Snapshot, SnapshotArgs, Taking, TakingArgs,
};
use serde::Serialize;

use super::How;
use super::name::{Target, parts};
use crate::exit::Result;
use crate::out::{Form, count};
use crate::verbs::confirm;

/// Most clones of one command.
pub const CLONES_MAX: u64 = 1_000_000;

/// Most clones of one request to the server.
const CLONES_AT_ONCE: usize = 500;

/// Most names of clones that are printed.
const SHOWN_MAX: usize = 10;

/// A virtual disk or snapshot after a change, or after a dry run.
#[derive(Serialize)]
struct Done {
    name: String,
    /// Whether this was a dry run.
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// URIs at which NBD clients can connect.
    uris: Vec<String>,
}

impl Done {
    fn of(target: &Target, how: &How, size_bytes: Option<u64>) -> Self {
        let name = target.export();
        let view = target.client.ask(&routes::VOLUME, &VolumeName { name: name.clone() });
        let uris = view.map(|view| view.uris).unwrap_or_default();
        Self { name, dry_run: how.dry_run, size_bytes, uris }
    }

    /// Returns a line without addresses.
    fn short(&self, would: &str, words: &str) -> String {
        match self.dry_run {
            true => format!("would {would} {}\n", self.name),
            false => format!("{}  {words}\n", self.name),
        }
    }

    fn line(&self, would: &str, words: &str) -> String {
        let Self { name, dry_run, uris, .. } = self;
        match dry_run {
            true => format!("would {would} {name}\n"),
            false => {
                let uris = uris.iter().map(|uri| format!("  {uri}\n")).collect::<String>();
                format!("{name}  {words}\n{uris}")
            }
        }
    }
}

pub fn create(form: Form, name: &str, size_bytes: u64, quota: Option<u64>, how: &How) -> Result {
    let target = Target::find(&how.at, name)?;
    let args = volume::Size { name: target.name.clone(), size_bytes, dry_run: how.dry_run };
    target.client.command::<volume::Create>(&target.pool, &args)?;
    if let Some(quota_bytes) = quota.filter(|_| !how.dry_run) {
        set_quota(&target, quota_bytes, how)?;
    }
    let done = Done::of(&target, how, Some(size_bytes));
    form.print(&done, || done.line("create", &format!("{}, empty", format_size(size_bytes))))
}

/// Changes the size of a virtual disk, its quota, or both.
pub fn resize(form: Form, name: &str, size: Option<u64>, quota: Option<u64>, how: &How) -> Result {
    let target = Target::find(&how.at, name)?;
    let mut words = Vec::new();
    if let Some(size_bytes) = size {
        let args = volume::Size { name: target.name.clone(), size_bytes, dry_run: how.dry_run };
        target.client.command::<volume::Resize>(&target.pool, &args)?;
        words.push(format!("{} now", format_size(size_bytes)));
    }
    if let Some(quota_bytes) = quota {
        set_quota(&target, quota_bytes, how)?;
        words.push(match quota_bytes {
            0 => "no quota".to_owned(),
            bytes => format!("a quota of {}", format_size(bytes)),
        });
    }
    let done = Done::of(&target, how, size);
    form.print(&done, || done.line("resize", &words.join(", ")))
}

fn set_quota(target: &Target, quota_bytes: u64, how: &How) -> Result<()> {
    let args = QuotaArgs { vdisk: target.name.clone(), quota_bytes, dry_run: how.dry_run };
    target.client.command::<SetQuota>(&target.pool, &args)?;
    Ok(())
}

/// Parses a quota: a size, or `none`.
pub fn parse_quota(text: &str) -> std::result::Result<u64, String> {
    match text {
        "none" => Ok(0),
        size => parse_size(size).map_err(|why| format!("{why}; or none")),
    }
}

pub fn snap(form: Form, names: &[String], is_async: bool, how: &How) -> Result {
    let targets = names.iter().map(|name| Target::find(&how.at, name));
    let targets = targets.collect::<Result<Vec<_>>>()?;
    let (first, label) = (&targets[0], parts(&targets[0].name).1);
    let mut vdisks = Vec::new();
    for target in &targets {
        let (vdisk, other) = parts(&target.name);
        if !target.is_beside(first) {
            let (one, other) = (first.export(), target.export());
            let words = format!("{one} and {other} are in different pools");
            return Err(failure!(Usage, "{words}").next("take the snapshots one after the other"));
        }
        if other != label {
            let words = "snapshots of one instant have one label, or none";
            return Err(failure!(Usage, "{words}").next("write the same @LABEL behind each name"));
        }
        vdisks.push(vdisk.to_owned());
    }
    let label = label.map(str::to_owned);
    let args = SnapshotArgs { vdisks: vdisks.clone(), label, is_async, dry_run: how.dry_run };
    let answer = first.client.command::<Snapshot>(&first.pool, &args)?;
    let made = vdisks.into_iter().enumerate().map(|(at, vdisk)| {
        let number = answer.numbers.get(at).map(|number| format!("@{number}")).unwrap_or_default();
        let snapshot = args.label.as_ref().map(|label| format!("@{label}")).unwrap_or(number);
        let name = vdisk + &snapshot;
        let target = Target { client: first.client.clone(), pool: first.pool.clone(), name };
        Done::of(&target, how, None)
    });
    let made: Vec<Done> = made.collect();
    let durable = if is_async { "snapshot, durable after the next flush" } else { "snapshot" };
    form.print(&made, || made.iter().map(|done| done.line("take a snapshot:", durable)).collect())
}

pub fn rm(form: Form, names: &[String], yes: bool, how: &How) -> Result {
    let targets = names.iter().map(|name| Target::find(&how.at, name));
    let targets = targets.collect::<Result<Vec<_>>>()?;
    let remove = |target: &Target, dry_run: bool| {
        let args = volume::Name { name: target.name.clone(), dry_run };
        target.client.command::<volume::Remove>(&target.pool, &args)
    };
    // Nothing is removed, and nothing is asked, if any cannot be removed.
    let mut removed = targets.iter().map(|target| remove(target, true)).collect::<Answers>();
    if !how.dry_run && removed.is_ok() {
        confirm(
            yes,
            &format!("remove {}, with all snapshots of virtual disks?", names.join(", ")),
        )?;
        removed = targets.iter().map(|target| remove(target, false)).collect();
    }
    let done = |(target, removed): (&Target, volume::Removed)| Gone {
        name: target.export(),
        clones: removed.dependants,
        dry_run: how.dry_run,
    };
    let all: Vec<Gone> = targets.iter().zip(removed?).map(done).collect();
    form.print(&all, || all.iter().map(Gone::line).collect())
}

/// The answers of a server to several requests.
type Answers = std::result::Result<Vec<volume::Removed>, api::Problem>;

/// A virtual disk or snapshot that was removed.
#[derive(Serialize)]
struct Gone {
    name: String,
    /// Number of clones that keep its snapshots.
    clones: u64,
    /// Whether this was a dry run.
    dry_run: bool,
}

impl Gone {
    fn line(&self) -> String {
        let Self { name, clones, dry_run } = self;
        let kept = match clones {
            0 => "its space comes back".to_owned(),
            1 => "its space stays for 1 clone".to_owned(),
            _ => format!("its space stays for {clones} clones"),
        };
        match dry_run {
            true => format!("would remove {name}; {kept}\n"),
            false => format!("{name}  name removed; {kept}\n"),
        }
    }
}

/// Clones of one snapshot.
#[derive(Serialize)]
struct Clones {
    origin: String,
    names: Vec<String>,
    dry_run: bool,
    seconds: f64,
}

pub fn clone(form: Form, origin: &str, name: &str, clones: Option<u64>, how: &How) -> Result {
    let (of, target) = (Target::find(&how.at, origin)?, Target::find(&how.at, name)?);
    if !target.is_beside(&of) {
        let (of, to) = (of.export(), target.export());
        return Err(failure!(Usage, "{of} and {to} are in different pools")
            .next("name a clone in the pool of its snapshot"));
    }
    let names = names(&target.name, clones)?;
    let begun = Instant::now();
    let mut args = CloneArgs { of: of.name.clone(), names: Vec::new(), dry_run: how.dry_run };
    if parts(&of.name).1.is_none() && !how.dry_run && names.len() > CLONES_AT_ONCE {
        // All clones have one origin.
        let args_of = SnapshotArgs {
            vdisks: vec![of.name.clone()],
            label: None,
            is_async: true,
            dry_run: false,
        };
        let answer = of.client.command::<Snapshot>(&of.pool, &args_of)?;
        args.of = format!("{}@{}", of.name, answer.numbers[0]);
    }
    let bar = ProgressBar::new(names.len() as u64);
    for part in names.chunks(CLONES_AT_ONCE) {
        args.names = part.to_vec();
        of.client.command::<CloneOf>(&of.pool, &args)?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    let took = begun.elapsed();
    let full = |name: &String| format!("{}/{name}", target.pool);
    let clones = Clones {
        origin: of.export(),
        names: names.iter().map(full).collect(),
        dry_run: how.dry_run,
        seconds: took.as_secs_f64(),
    };
    form.print(&clones, || {
        let Clones { origin, names, .. } = &clones;
        let all = count(names.len() as u64, "clone");
        if how.dry_run {
            return format!("would make {all} of {origin}\n");
        }
        let mut text = format!("{all} of {origin} in {}; nothing copied\n", format_duration(took));
        for name in names.iter().take(SHOWN_MAX) {
            let view = of.client.ask(&routes::VOLUME, &VolumeName { name: name.clone() });
            let uri = view.ok().and_then(|view| view.uris.into_iter().next());
            text += &format!("  {}\n", uri.as_ref().unwrap_or(name));
        }
        if names.len() > SHOWN_MAX {
            text += &format!("  and {} more\n", names.len() - SHOWN_MAX);
        }
        text
    })
}

/// Returns the names of clones: `{n}` is replaced by 1 and following numbers.
fn names(pattern: &str, clones: Option<u64>) -> Result<Vec<String>> {
    const NUMBER: &str = "{n}";
    match clones {
        None => Ok(vec![pattern.to_owned()]),
        Some(_) if !pattern.contains(NUMBER) => Err(failure!(
            Usage,
            "{pattern:?} does not have {NUMBER}, so all clones would have one name"
        )
        .next(format!("write a name such as {pattern}-{NUMBER}"))),
        Some(count) => Ok((1..=count).map(|n| pattern.replace(NUMBER, &n.to_string())).collect()),
    }
}

/// Parses when a virtual disk takes snapshots of itself.
pub fn parse_taking(text: &str) -> std::result::Result<Taking, String> {
    match text {
        "flush" => Ok(Taking::WithFlush),
        "write" => Ok(Taking::WithWrite),
        "never" => Ok(Taking::ByCommand),
        time => {
            let time = parse_duration(time).map_err(|why| {
                format!("{why}; it is a time such as 10ms, or flush, write or never")
            })?;
            Ok(Taking::EveryUs(time.as_micros().try_into().unwrap_or(u64::MAX)))
        }
    }
}

/// Sets when virtual disks take snapshots of themselves.
pub fn take(form: Form, names: &[String], taking: Taking, how: &How) -> Result {
    let mut all = Vec::new();
    for name in names {
        let target = Target::find(&how.at, name)?;
        let args = TakingArgs { vdisk: target.name.clone(), taking, dry_run: how.dry_run };
        target.client.command::<SetTaking>(&target.pool, &args)?;
        all.push(Done::of(&target, how, None));
    }
    let words = match taking {
        Taking::ByCommand => "takes no snapshots by itself".to_owned(),
        Taking::EveryUs(us) => {
            let time = format_duration(Duration::from_micros(us));
            format!("takes a snapshot every {time} from now on, if it has changed")
        }
        Taking::WithFlush => "takes a snapshot with each flush from now on".to_owned(),
        Taking::WithWrite => "takes a snapshot with each write from now on".to_owned(),
    };
    form.print(&all, || all.iter().map(|done| done.short("change", &words)).collect())
}

/// Which snapshots are kept.
pub struct Rule {
    pub last: u64,
    pub each: Option<Duration>,
    pub all: bool,
    pub once: bool,
}

/// The effect of a rule.
#[derive(Serialize)]
struct Kept {
    name: String,
    removed: u64,
    dry_run: bool,
}

/// Removes the snapshots of a virtual disk that a rule does not keep.
pub fn keep(form: Form, name: &str, rule: &Rule, how: &How) -> Result {
    let interval_s = rule.each.map_or(0, |each| each.as_secs());
    if rule.each.is_some() && interval_s == 0 {
        return Err(failure!(Usage, "--each is 1s at least"));
    }
    if !rule.all && rule.last == 0 && interval_s == 0 {
        let next = "give --last N, --each TIME or both; or remove snapshots with cairn vdisk rm";
        return Err(failure!(Usage, "this rule would keep no snapshot").next(next));
    }
    let target = Target::find(&how.at, name)?;
    let args = KeepArgs {
        vdisk: target.name.clone(),
        last: rule.last,
        interval_s,
        once: rule.once,
        dry_run: how.dry_run,
    };
    let removed = target.client.command::<Keep>(&target.pool, &args)?.removed;
    let kept = Kept { name: target.export(), removed, dry_run: how.dry_run };
    form.print(&kept, || {
        let would = if how.dry_run { "would remove " } else { "" };
        let gone = if how.dry_run { "" } else { " removed; their space comes back" };
        format!("{}  {would}{}{gone}\n", kept.name, count(removed, "snapshot"))
    })
}

/// A virtual disk after a rollback.
#[derive(Serialize)]
struct RolledBack {
    name: String,
    /// The snapshot with the same bytes.
    to: String,
    /// Number of the snapshot with the bytes before, if one was taken.
    taken: Option<u64>,
    /// Whether this was a dry run.
    dry_run: bool,
}

/// Gives a virtual disk the bytes of one of its snapshots.
pub fn roll_back(form: Form, name: &str, how: &How) -> Result {
    let target = Target::find(&how.at, name)?;
    let (vdisk, Some(snapshot)) = parts(&target.name) else {
        return Err(failure!(Usage, "{name} is no snapshot").next(format!(
            "write {name}@SNAPSHOT; list its snapshots with cairn vdisk ls {name}"
        )));
    };
    let of = format!("{}/{vdisk}", target.pool);
    let args = RollBackArgs { to: target.name.clone(), dry_run: how.dry_run };
    let taken = target.client.command::<RollBack>(&target.pool, &args)?.taken;
    let (to, dry_run) = (snapshot.to_owned(), how.dry_run);
    let done = RolledBack { name: of, to, taken, dry_run };
    form.print(&done, || match done {
        RolledBack { dry_run: true, ref name, ref to, .. } => {
            format!("would roll back {name} to @{to}\n")
        }
        RolledBack { ref name, ref to, taken: Some(taken), .. } => {
            format!("{name}  has the bytes of @{to}; those before are in {name}@{taken}\n")
        }
        RolledBack { ref name, ref to, .. } => format!("{name}  has the bytes of @{to}\n"),
    })
}

/// Gives a snapshot a label, or takes it away.
pub fn label(form: Form, name: &str, label: Option<String>, how: &How) -> Result {
    let target = Target::find(&how.at, name)?;
    let snapshot = target.name.trim_start_matches('@').to_owned();
    let args = LabelArgs { snapshot, label: label.clone(), dry_run: how.dry_run };
    target.client.command::<SetLabel>(&target.pool, &args)?;
    let done = Done::of(&target, how, None);
    form.print(&done, || match label {
        Some(label) => done.short("change", &format!("has the label {label}")),
        None => done.short("change", "has no label; it keeps its number"),
    })
}
