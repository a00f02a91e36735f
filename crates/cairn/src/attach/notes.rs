//! Notes for the users of an attached device.

use api::Attached;

use super::behind::Behind;
use crate::exit::Result;
use crate::out::Form;

/// Settings of the kernel: each ends a mount if a request is not answered for that many seconds.
const TIMEOUTS: [&str; 2] = ["default_request_timeout", "max_request_timeout"];

/// Returns the notes about an attached device, the most important first. `kept` is whether the device outlives this
/// process.
pub fn of(behind: &Behind, path: &str, direct: bool, kept: bool) -> Vec<String> {
    let mut notes = vec![after_kill(path, kept)];
    let cache = "blocks that are read are cached twice";
    if !direct {
        notes.push(format!("the loop device uses the page cache: {cache}"));
    }
    match behind {
        Behind::Fuse(volume) => {
            notes.extend(TIMEOUTS.iter().filter_map(|name| timeout(name)));
            notes.extend(volume.lacks().map(str::to_owned));
        }
        Behind::Nbd(_) => notes.push(
            "when memory is short, writes to the device may block each other: do not swap onto the \
             device, or attach the export --by fuse"
                .to_owned(),
        ),
    }
    notes
}

/// Returns the note about the effect of a kill of this process on the device at `path`.
pub fn after_kill(path: &str, kept: bool) -> String {
    let pid = std::process::id();
    match kept {
        true => {
            format!("if process {pid} is killed, {path} pauses until that process is started again")
        }
        false => format!(
            "if process {pid} is killed, {path} returns I/O errors; unmount the device then, and \
             attach the export again"
        ),
    }
}

/// Prints an attached device on standard output, and its notes on standard error.
pub fn print(form: Form, attached: &Attached) -> Result {
    let printed = form.print(attached, || match &attached.device {
        Some(device) => format!("{} -> {device}\n", attached.path),
        None => format!("would attach {} as {}\n", attached.export, attached.path),
    })?;
    if form == Form::Text {
        attached.notes.iter().for_each(|note| note!("note: {note}"));
    }
    Ok(printed)
}

fn timeout(name: &str) -> Option<String> {
    let path = format!("/proc/sys/fs/fuse/{name}");
    let seconds: u32 = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
    (seconds > 0).then(|| {
        format!(
            "{path} is {seconds}: the kernel ends the device if a request takes that many seconds. \
             Next: set that limit to 0, and attach again"
        )
    })
}
