//! The same bytes on several devices.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the kind: options, plan, maker |
//! | `member.rs` | one member: its state, its errors, how fast it answers |
//! | `device.rs` | reads, writes, flushes |
//! | `resync.rs` | copying what a member missed, and repairing what it cannot read |

mod device;
mod member;
mod resync;

use std::rc::Rc;
use std::time::Duration;

use block::{Env, Info, Lower, Result};
use graph::engine::AnyDevice;
use graph::kind::{Fault, Given, Kind, Lowers, Maker, OptionSpec, Plan, ValueType};

use device::Mirror;

/// `mirror`
pub const KIND: Kind = Kind {
    name: "mirror",
    summary: "the same bytes on several devices",
    manual: include_str!("manual.md"),
    lowers: Lowers::Many(2, MEMBERS_MAX),
    options: &[
        OptionSpec {
            name: "trust",
            value: ValueType::Member,
            required: false,
            help: "the member whose bytes count when the members may differ; the others are copied \
                   from it",
        },
        OptionSpec {
            name: "timeout",
            value: ValueType::Duration(Duration::from_secs(600)),
            required: false,
            help: "a member that has not answered for this long is taken out; 20s if not set",
        },
    ],
    maker: Maker::Device { plan, make },
};

/// Members of one mirror.
pub const MEMBERS_MAX: usize = 8;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

fn plan(given: &Given) -> Plan<Info> {
    given.replicas()?;
    let newly_made = given.lowers.iter().all(|lower| lower.created);
    if !newly_made && given.text("trust").is_none() {
        let names: Vec<_> = given.lowers.iter().map(|lower| format!("{:?}", lower.name)).collect();
        let fault = format!(
            "these members were there before, without labels nobody knows whether they are equal; \
             say whose bytes count: trust = {}",
            names.join(" or ")
        );
        return Err(vec![Fault::new("on", fault)]);
    }
    Ok(info(given.lowers.iter().map(|lower| &lower.info)))
}

fn info<'a>(lowers: impl Iterator<Item = &'a Info> + Clone) -> Info {
    let size = lowers.clone().map(|info| info.size).min().unwrap_or(0);
    let all = Info::over(lowers.clone()).expect("a mirror has members");
    Info {
        size: size - size % u64::from(all.block_size),
        // A discard goes down as zeroes where a member might keep its bytes, so it always works.
        discard: true,
        discard_zeroes: true,
        // Losing the process loses nothing only if no member loses anything.
        ..all
    }
}

fn make(given: &Given, env: &Env, lowers: Vec<Lower>) -> Result<Rc<dyn AnyDevice>> {
    let info = info(lowers.iter().map(Lower::info));
    let timeout = given.duration("timeout").unwrap_or(TIMEOUT_DEFAULT);
    let trusted = given.text("trust");
    let mirror = Mirror::new(&given.name, info, env, lowers, timeout, trusted);
    Ok(Rc::new(mirror))
}
