//! Commands to devices, their verbs and the answers of devices.

use std::any::Any;
use std::fmt::{self, Debug};
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Nothing;
use crate::env::LocalFuture;
use crate::{Below, ByteRange, Error, Result, bail, error};

/// Time that a command waits for a live change of its graph to end, unless the command has a limit of its own.
const WAIT: Duration = Duration::from_secs(60);

/// The arguments or the answer of a command. A new version of a message only adds fields, and ignores unknown fields.
pub trait Message: Serialize + DeserializeOwned + Clone + Debug + 'static {}

impl<T: Serialize + DeserializeOwned + Clone + Debug + 'static> Message for T {}

/// The type of a command to devices, such as `member.fail`.
pub trait Verb: 'static {
    /// Name, reach and encoding of the verb.
    const INFO: &'static VerbInfo;
    /// Arguments of a command with this verb.
    type Args: Message;
    /// Answer to a command with this verb.
    type Answer: Message;

    /// Merges the answers of all devices that carried out a command with this verb into one answer. A range in an
    /// answer is moved from the `below` of its part to the `above`.
    ///
    /// # Errors
    /// An error if the answers cannot be merged.
    fn merge(parts: Vec<Part<Self::Answer>>) -> Result<Self::Answer> {
        only_one(parts)
    }
}

/// Returns the answer to a command that only one device carried out.
///
/// # Errors
/// `Unsupported` if no device answered the command, or several did.
pub fn only_one<A>(mut parts: Vec<Part<A>>) -> Result<A> {
    if parts.len() > 1 {
        bail!(Unsupported, "the answers of {} devices to a command cannot be merged", parts.len());
    }
    let part = parts.pop().ok_or_else(|| error!(Unsupported, "no device answered the command"))?;
    Ok(part.answer)
}

/// The declaration of a verb: name, help, reach and codec.
pub struct VerbInfo {
    /// Name of the verb, unique among all kinds: `member.fail`.
    pub name: &'static str,
    /// Effect of the verb's commands, in one sentence for a person.
    pub help: &'static str,
    /// The feature that a device needs for commands of the verb, in words for the message `m has no ...`: `members`.
    pub needs: &'static str,
    /// Devices on which a command of the verb acts.
    pub reach: Reach,
    /// Encoding of the verb's arguments and answers across a process boundary.
    pub codec: Codec,
}

impl VerbInfo {
    /// Creates the declaration of verb `V`, with JSON as its codec.
    pub const fn new<V: Verb>(
        name: &'static str,
        help: &'static str,
        needs: &'static str,
        reach: Reach,
    ) -> Self {
        Self { name, help, needs, reach, codec: Codec::json::<V>() }
    }
}

impl Debug for VerbInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Devices on which a command of a verb acts.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// The command acts on the named device.
    Here,
    /// The command acts on each device that holds a part of the command's range, without a lasting effect.
    Range,
    /// As [`Reach::Range`], but disks that do not know the verb are left out: they hold their part of the range alone.
    Known,
    /// As [`Reach::Known`], but the first answer ends the command on all of these devices. It is for commands that wait.
    First,
    /// The command acts on each device that holds a part of the command's range, with a lasting effect. It acts on
    /// all of these devices, in one order that is the same for all commands, or on none. The path to these devices
    /// must never change.
    Bound {
        /// The verb that reverts the effect, with the same arguments. A command with this verb starts at the call,
        /// and runs to its end even if its future is dropped.
        undo: &'static VerbInfo,
    },
}

/// Encoding of the arguments and answers of a verb, and the merge of its answers.
pub struct Codec {
    encode_args: fn(&dyn Any) -> Vec<u8>,
    decode_args: fn(&[u8]) -> Result<Rc<dyn Any>>,
    encode_answer: fn(&dyn Any) -> Vec<u8>,
    decode_answer: fn(&[u8]) -> Result<Rc<dyn Any>>,
    merge: fn(Vec<Part<Reply>>) -> Result<Reply>,
}

impl Codec {
    /// Returns the codec of verb `V` that encodes messages as JSON, with fields by name.
    pub const fn json<V: Verb>() -> Self {
        Self {
            encode_args: encode::<V::Args>,
            decode_args: decode::<V::Args>,
            encode_answer: encode::<V::Answer>,
            decode_answer: decode::<V::Answer>,
            merge: merge::<V>,
        }
    }
}

fn encode<M: Message>(message: &dyn Any) -> Vec<u8> {
    let message = message
        .downcast_ref::<M>()
        .expect("a command has one type of arguments and one of answers");
    serde_json::to_vec(message).expect("the maps in a command's message have string keys")
}

fn decode<M: Message>(bytes: &[u8]) -> Result<Rc<dyn Any>> {
    let message: M = serde_json::from_slice(bytes)
        .map_err(|why| error!(Invalid, "the message of a command has a wrong form: {why}"))?;
    Ok(Rc::new(message))
}

fn merge<V: Verb>(parts: Vec<Part<Reply>>) -> Result<Reply> {
    let typed = |Part { above, below, place, answer }: Part<Reply>| {
        Ok(Part { above, below, place, answer: answer.answer::<V>()? })
    };
    let parts = parts.into_iter().map(typed).collect::<Result<Vec<_>>>()?;
    V::merge(parts).map(Reply::of::<V>)
}

/// A command to devices, from its client to the devices that carry it out.
#[derive(Clone)]
pub struct Command {
    /// Number of the command. A command that is sent again has the same number, so that a server carries it out once.
    /// 0 if the command never leaves the process.
    pub id: u64,
    /// Number of the client that sent the command; 0 for this process.
    pub origin: u32,
    /// Bytes that the command concerns, in the address space of the device that receives it; `None` for the whole
    /// device.
    pub range: Option<ByteRange>,
    /// Longest time that the command may wait for a live change of its graph to end.
    pub limit: Duration,
    verb: &'static VerbInfo,
    args: Rc<dyn Any>,
}

impl Command {
    /// Creates a command of this process with verb `V` and arguments `args`.
    pub fn new<V: Verb>(args: V::Args) -> Self {
        Self { id: 0, origin: 0, range: None, limit: WAIT, verb: V::INFO, args: Rc::new(args) }
    }

    /// Returns the same command for the bytes of `range`.
    pub fn at(&self, range: ByteRange) -> Self {
        Self { range: Some(range), ..self.clone() }
    }

    /// Returns the declaration of the command's verb.
    pub fn verb(&self) -> &'static VerbInfo {
        self.verb
    }

    /// Whether the verb of the command is `V`.
    pub fn is<V: Verb>(&self) -> bool {
        self.verb.name == V::INFO.name
    }

    /// Returns the arguments of the command, if its verb is `V`.
    pub fn args<V: Verb>(&self) -> Option<&V::Args> {
        if self.is::<V>() { self.args.downcast_ref() } else { None }
    }

    /// Returns the command that reverts the effect of this command; `None` if the effect does not last.
    pub fn undo(&self) -> Option<Self> {
        let Reach::Bound { undo } = self.verb.reach else { return None };
        Some(Self { verb: undo, ..self.clone() })
    }

    /// Encodes the arguments of the command for another process.
    pub fn encode_args(&self) -> Vec<u8> {
        (self.verb.codec.encode_args)(&*self.args)
    }

    /// Decodes `args`, and creates a command of this process with them.
    ///
    /// # Errors
    /// `Invalid` if `args` are not encoded arguments of the verb.
    pub fn decode(verb: &'static VerbInfo, args: &[u8]) -> Result<Self> {
        let args = (verb.codec.decode_args)(args).map_err(|why| {
            Error::new(why.kind(), format!("the arguments of {}: {why}", verb.name))
        })?;
        Ok(Self { id: 0, origin: 0, range: None, limit: WAIT, verb, args })
    }

    /// Merges the answers of all devices that carried out the command.
    ///
    /// # Errors
    /// As [`Verb::merge`].
    pub fn merge(&self, parts: Vec<Part<Reply>>) -> Result<Reply> {
        (self.verb.codec.merge)(parts)
    }

    /// Returns a future with the answer to a command that ended at once with the result `done`. Its verb must have
    /// the answer [`Nothing`].
    pub fn done(&self, done: Result<()>) -> LocalFuture<Result<Reply>> {
        Box::pin(std::future::ready(done.map(|()| Reply(Rc::new(Nothing {})))))
    }

    /// Returns the error for a device named `device` that does not know the command.
    pub fn unknown_to(&self, device: &str) -> Error {
        let VerbInfo { name, needs, .. } = self.verb;
        error!(Unsupported, "{device} has no {needs} and does not support the command {name}")
    }
}

impl Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of bytes {:?} from client {}", self.verb.name, self.range, self.origin)
    }
}

/// Returns the verb called `name` among `known`.
///
/// # Errors
/// `Unsupported`, with the names of the known verbs, if no verb has that name.
pub fn find_verb(
    known: impl IntoIterator<Item = &'static VerbInfo> + Clone,
    name: &str,
) -> Result<&'static VerbInfo> {
    let found = known.clone().into_iter().find(|verb| verb.name == name);
    found.ok_or_else(|| {
        let names: Vec<_> = known.into_iter().map(|verb| verb.name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        error!(Unsupported, "unknown command {name:?}; known commands: {names}")
    })
}

/// The answer to a command, in the type that its verb declares.
#[derive(Clone)]
pub struct Reply(Rc<dyn Any>);

impl Reply {
    /// Creates the answer to a command of verb `V`.
    pub fn of<V: Verb>(answer: V::Answer) -> Self {
        Self(Rc::new(answer))
    }

    /// Returns the content of the answer, in the type that verb `V` declares.
    ///
    /// # Errors
    /// `Invalid` if the answer is not of that type.
    pub fn answer<V: Verb>(self) -> Result<V::Answer> {
        let answer = self.0.downcast::<V::Answer>().map_err(|_| {
            error!(Invalid, "the answer does not have the type of answers to {}", V::INFO.name)
        })?;
        Ok(Rc::unwrap_or_clone(answer))
    }

    /// Encodes the answer to a command of `verb` for another process.
    pub fn encode(&self, verb: &VerbInfo) -> Vec<u8> {
        (verb.codec.encode_answer)(&*self.0)
    }

    /// Decodes the answer to a command of `verb` from another process.
    ///
    /// # Errors
    /// `Invalid` if `answer` is not an encoded answer to a command of `verb`.
    pub fn decode(verb: &VerbInfo, answer: &[u8]) -> Result<Self> {
        (verb.codec.decode_answer)(answer).map(Self)
    }
}

impl Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// The answer of one device, which carried out a command for its part of the command's range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<A> {
    /// The part of the command's range that the answering device holds.
    pub above: ByteRange,
    /// The same bytes as `above`, in the address space of the answering device.
    pub below: ByteRange,
    /// Name of the device that answered.
    pub place: Rc<str>,
    /// Answer of the device.
    pub answer: A,
}

/// The parts of a device's lowers in which a range of the device lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The device has no lowers: the range is on its own storage.
    Bottom,
    /// The range lies in parts of the lowers. Bytes of the range in none of these parts are a hole.
    Places {
        /// Parts of the lowers that hold the range up to `upto`, for all copies.
        all: Vec<Below>,
        /// End of the part of the range that is resolved. The caller must resolve the rest with another call.
        upto: u64,
        /// Whether the device may later move the bytes of the range to other parts of its lowers.
        moves: bool,
    },
    /// The device cannot resolve the range.
    Unknown,
}

impl Resolved {
    /// Returns the position of `range` in the only lower of a device that maps every address to the same address;
    /// `how` as in [`Below`].
    pub fn same(range: ByteRange, how: &'static str) -> Self {
        let below = Below { lower: 0, above: range.start(), range, how: how.into() };
        Self::places(range, vec![below])
    }

    /// Returns the places in the lowers of a device that hold `range` of the device; `all` lists them.
    pub fn places(range: ByteRange, all: Vec<Below>) -> Self {
        Self::Places { all, upto: range.end(), moves: false }
    }
}
