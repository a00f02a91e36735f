//! `cairn wipe`: a disk that is Cairn's no more.

use std::path::{Path, PathBuf};

use block::env::{CacheMode, Open};
use block::{Env, Error, ErrorKind};
use clap::Args;
use engine::{Engine, NodeId};
use kind::{DeviceConfig, Maker, Value};
use meta::{Seen, Sought, Store};
use serde::Serialize;

use super::{confirm, core};
use crate::exit::{Exit, Failure, Result};
use crate::out::Form;
use crate::registry::REGISTRY;

/// What `wipe` takes.
#[derive(Args)]
pub struct WipeArgs {
    /// A file or a block device
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// Remove whatever is at both ends, not only a label of Cairn's
    #[arg(long)]
    all_signatures: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Say what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Wiped {
    path: String,
    held: String,
    wiped: bool,
}

impl WipeArgs {
    /// Looks, asks, and writes zeros over the first and last MiB.
    pub fn run(self, form: Form) -> Result {
        let core = core()?;
        let env = core.env();
        let engine = Engine::new(env.pool());
        env.spawn("engine", engine.clone().drive());
        let shown = self.disk.display().to_string();
        let node = core.block_on(open(&self.disk, self.dry_run, &env, &engine))?;
        let lower = engine.lower(node);
        let seen = core.block_on(Store::look(&env, &lower))?;
        let (held, ours) = held(&seen);
        if !ours && !self.all_signatures && !matches!(seen, Seen::Other(Sought::Blank)) {
            let why = format!("{shown} holds {held}, and no label of Cairn's");
            return Err(
                Failure::new(Exit::InUse, why).next("--all-signatures to remove it all the same")
            );
        }
        let nothing = matches!(seen, Seen::Other(Sought::Blank));
        if !nothing && !self.dry_run {
            if !self.yes {
                confirm(&format!("remove {held} from {shown}? Without it nobody finds the data."))?;
            }
            core.block_on(meta::wipe(&env, &lower))?;
        }
        let wiped =
            Wiped { path: shown.clone(), held: held.clone(), wiped: !nothing && !self.dry_run };
        form.print(&wiped, || match (nothing, self.dry_run) {
            (true, _) => format!("{shown}  blank, nothing done\n"),
            (false, true) => format!("{shown}  would remove {held}\n"),
            (false, false) => format!("{shown}  removed {held}\n"),
        })?;
        Ok(Exit::Ok)
    }
}

/// Opens a raw disk, under its lock.
pub async fn open(path: &Path, read_only: bool, env: &Env, engine: &Engine) -> Result<NodeId> {
    use std::os::unix::fs::FileTypeExt;
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Failure::io(&error, &shown))?;
    let device = found.file_type().is_block_device();
    if !device && !found.is_file() {
        let why = format!("{shown} is neither a file nor a block device");
        return Err(Failure::new(Exit::Usage, why));
    }
    let cache = CacheMode::Direct;
    let open = Open { path: path.to_owned(), device, read_only, create: None, cache };
    env.probe(&open)?;
    let name = if device { "path" } else { "file" };
    let kind = REGISTRY.find(name).filter(|kind| matches!(kind.maker, Maker::Disk { .. }));
    let Some(Maker::Disk { make, .. }) = kind.map(|kind| kind.maker) else {
        return Err(Error::new(ErrorKind::Unsupported, format!("no kind {name}")).into());
    };
    let options =
        vec![(name, Value::Text(shown.to_string())), ("read_only", Value::Switch(read_only))];
    let given = DeviceConfig {
        graph: String::new(),
        name: shown.to_string(),
        options,
        lowers: Vec::new(),
        trusted_now: false,
    };
    let disk = make(&given, env, None).await?;
    Ok(engine.add_device(&given.name, disk, &[])?)
}

/// What a disk holds, in words; and whether that is Cairn's.
pub fn held(seen: &Seen) -> (String, bool) {
    match seen {
        Seen::Label(label, _) => {
            let (disk, graph) = (&label.disk_name, &label.graph_name);
            (format!("the label of disk {disk:?} of the graph {graph:?}"), true)
        }
        Seen::Wrong(wrong) => (wrong.to_string(), true),
        Seen::Other(Sought::Blank) => ("nothing".to_owned(), false),
        Seen::Other(Sought::Holds(what)) => (what.to_string(), false),
        Seen::Other(Sought::Unknown) => ("bytes of something unknown".to_owned(), false),
        Seen::Other(Sought::TooSmall(bytes)) => {
            (format!("{bytes} bytes, too few for a label"), false)
        }
    }
}
