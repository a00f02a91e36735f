//! The part of the battery that sends commands to the device under test.

use std::time::Duration;

use block::control::{Command, Reply, VerbInfo};
use sim::workload::Mix;

use crate::bench::{Bench, stuck};
use crate::refusal::{Broken, Refusal};

/// JSON arguments for commands: texts that no command accepts, values of every type, and members that do not exist.
const ARGUMENTS: [&str; 16] = [
    "",
    "{",
    "null",
    "[]",
    "\"text\"",
    "18446744073709551616",
    "{}",
    r#"{"member":7}"#,
    r#"{"member":""}"#,
    r#"{"member":"no such member"}"#,
    r#"{"stop":true}"#,
    r#"{"stop":"yes"}"#,
    r#"{"action":"explode"}"#,
    r#"{"action":"pause"}"#,
    r#"{"action":"resume"}"#,
    r#"{"copies":4294967295}"#,
];

/// Longest virtual time that the battery waits for the answer to a command. A command without an answer by then is
/// dropped.
const LIMIT: Duration = Duration::from_secs(5);

/// Sends every command that the device under test accepts while clients send requests, each with all of [`ARGUMENTS`]
/// and the subject's own arguments. Checks that commands and answers stay the same when they are encoded and decoded.
pub fn commands(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    bench.begin(4, 30, Mix { abandon: 0, ..Mix::ALL });
    let (graph, top) = bench.top();
    let verbs = graph.verbs(top);
    for verb in verbs {
        for args in ARGUMENTS.iter().chain(bench.arguments()) {
            send(bench, verb, args)?;
        }
    }
    bench.finish()?;
    bench.verify()?;
    bench.settle()?;
    let declared = bench.registry().verbs();
    match verbs.iter().find(|verb| declared.iter().all(|known| known.name != verb.name)) {
        Some(verb) => Err(refuse(verb, "no kind declares this command")),
        None => Ok(()),
    }
}

fn send(bench: &Bench<'_>, verb: &'static VerbInfo, args: &str) -> Result<(), Refusal> {
    let Ok(command) = Command::decode(verb, args.as_bytes()) else { return Ok(()) };
    let sent = command.encode_args();
    let received = Command::decode(verb, &sent).map_err(|error| refuse(verb, error))?;
    if received.encode_args() != sent {
        return Err(refuse(
            verb,
            "the arguments of the command change when they are encoded and decoded",
        ));
    }
    let ((graph, top), env) = (bench.top(), bench.world.env());
    let answer = graph.command(top, received);
    let answered = bench.world.block_on(env.within(LIMIT, answer)).map_err(stuck)?;
    let Some(Ok(answer)) = answered else { return Ok(()) };
    let sent = answer.encode(verb);
    let received = Reply::decode(verb, &sent).map_err(|error| refuse(verb, error))?;
    if received.encode(verb) != sent {
        return Err(refuse(
            verb,
            "the answer of the command changes when it is encoded and decoded",
        ));
    }
    Ok(())
}

fn refuse(verb: &VerbInfo, words: impl std::fmt::Display) -> Refusal {
    Refusal::new(Broken::Commands, format_args!("{}: {words}", verb.name))
}
