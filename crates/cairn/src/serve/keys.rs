//! Key slots, as the control socket asks for them.

use api::{KeyChange, KeyRequest, KeySlot, KeySlots, Problem};
use block::env::LocalFuture;
use block::{Control, KeyCommand, KeySource, Report};
use graph::Graph;

use super::live::{problem, refused};
use crate::exit::Exit;

/// Asks the device.
pub fn answer(graph: &Graph, request: &KeyRequest) -> LocalFuture<Result<KeySlots, Problem>> {
    let asked = command(&request.change).and_then(|command| {
        let member = graph.member(&request.device).ok_or_else(|| {
            let why = format!("no device {:?} in {}", request.device, graph.name());
            problem(Exit::NotFound, why).next("cairn graph shows what there is")
        })?;
        Ok(graph.control_later(member, &Control::Keys { command, dry_run: request.dry_run }))
    });
    let device = request.device.clone();
    Box::pin(async move {
        let report = asked?.await.map_err(|error| refused(error.at(&device)))?;
        Ok(slots(device, report))
    })
}

fn command(change: &KeyChange) -> Result<KeyCommand, Problem> {
    let source = |text: &str| {
        let parsed = text.parse::<KeySource>();
        parsed.map_err(|words| problem(Exit::Usage, words))
    };
    Ok(match change {
        KeyChange::List => KeyCommand::List,
        KeyChange::Remove { slot } => KeyCommand::Remove { slot: *slot },
        KeyChange::Add { key, new_key, label } => {
            KeyCommand::Add { key: source(key)?, new: source(new_key)?, label: label.clone() }
        }
        KeyChange::Change { key, new_key } => {
            KeyCommand::Change { key: source(key)?, new: source(new_key)? }
        }
    })
}

fn slots(device: String, report: Report) -> KeySlots {
    let slot = |slot: block::KeySlot| KeySlot {
        slot: slot.number,
        label: slot.label,
        made_unix_s: slot.made.as_secs(),
        derivation: slot.derivation.to_owned(),
        memory_bytes: slot.memory_bytes,
        passes: slot.passes,
        lanes: slot.lanes,
    };
    let slots = report.key_slots.into_iter().map(slot).collect();
    KeySlots { device, done: report.summary, slots }
}
