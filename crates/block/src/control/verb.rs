//! Verbs, commands and answers.

use std::any::Any;
use std::fmt::{self, Debug};
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Nothing;
use crate::env::LocalFuture;
use crate::{Below, ByteRange, Error, ErrorKind, Result};

/// Time that a command waits for a change of its graph, unless it has a limit of its own.
const WAIT: Duration = Duration::from_secs(60);

/// The arguments or the answer of a verb. Fields are only ever added, and unknown ones are ignored.
pub trait Message: Serialize + DeserializeOwned + Clone + Debug + 'static {}

impl<T: Serialize + DeserializeOwned + Clone + Debug + 'static> Message for T {}

/// A command that devices may know.
pub trait Verb: 'static {
    /// Its name, its reach and its codec.
    const INFO: &'static VerbInfo;
    /// Its arguments.
    type Args: Message;
    /// Its answer.
    type Answer: Message;

    /// Merges the answers of all places into one, with ranges moved from `below` back to `above`.
    ///
    /// # Errors
    /// A reason why the parts are not one answer.
    fn merge(parts: Vec<Part<Self::Answer>>) -> Result<Self::Answer> {
        only_one(parts)
    }
}

/// Returns the answer of the only place.
///
/// # Errors
/// `Unsupported` if there are several.
pub fn only_one<A>(mut parts: Vec<Part<A>>) -> Result<A> {
    if parts.len() > 1 {
        let words = format!("{} places answered, and their answers cannot be merged", parts.len());
        return Err(Error::new(ErrorKind::Unsupported, words));
    }
    let part =
        parts.pop().ok_or_else(|| Error::new(ErrorKind::Unsupported, "no place answered"))?;
    Ok(part.answer)
}

/// The declaration of a verb.
pub struct VerbInfo {
    /// Its name, unique among all kinds: `member.fail`.
    pub name: &'static str,
    /// Its effect, in one sentence for a person.
    pub help: &'static str,
    /// The feature that a device needs for it, as in "m has no ...": `members`.
    pub needs: &'static str,
    /// Devices on which it acts.
    pub reach: Reach,
    /// Its encoding across a process boundary.
    pub codec: Codec,
}

impl VerbInfo {
    /// Declares `V`, with JSON as its codec.
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

/// Devices on which a command acts.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// On the named device.
    Here,
    /// On each device that holds a part of the range, with no effect that lasts.
    Range,
    /// On each device that holds a part of the range, with a lasting effect: on all of them in one global order, or
    /// on none. The path to them must never move.
    Bound {
        /// Reverts the effect, with the same arguments. It starts at the call, and goes on if its future is dropped.
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
    /// Returns the codec for JSON, with fields by name.
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
    let message =
        message.downcast_ref::<M>().expect("a verb has one type of arguments and answers");
    serde_json::to_vec(message).expect("messages have string keys")
}

fn decode<M: Message>(bytes: &[u8]) -> Result<Rc<dyn Any>> {
    let message: M = serde_json::from_slice(bytes)
        .map_err(|why| Error::new(ErrorKind::Invalid, format!("not the expected form: {why}")))?;
    Ok(Rc::new(message))
}

fn merge<V: Verb>(parts: Vec<Part<Reply>>) -> Result<Reply> {
    let typed = |Part { above, below, place, answer }: Part<Reply>| {
        Ok(Part { above, below, place, answer: answer.answer::<V>()? })
    };
    let parts = parts.into_iter().map(typed).collect::<Result<Vec<_>>>()?;
    V::merge(parts).map(Reply::of::<V>)
}

/// One command on its way to devices.
#[derive(Clone)]
pub struct Command {
    /// Number of the command. A repeated send has the same number, so that a server carries it out once. 0 if it
    /// never leaves the process.
    pub id: u64,
    /// Client that sent it; 0 for this process.
    pub origin: u32,
    /// Bytes that it concerns, in the address space of the device that receives it.
    pub range: Option<ByteRange>,
    /// Time that it may wait for a change of its graph.
    pub limit: Duration,
    verb: &'static VerbInfo,
    args: Rc<dyn Any>,
}

impl Command {
    /// Creates a command of this process to the named device.
    pub fn new<V: Verb>(args: V::Args) -> Self {
        Self { id: 0, origin: 0, range: None, limit: WAIT, verb: V::INFO, args: Rc::new(args) }
    }

    /// Returns the same command for a range.
    pub fn at(&self, range: ByteRange) -> Self {
        Self { range: Some(range), ..self.clone() }
    }

    /// Returns the declaration of its verb.
    pub fn verb(&self) -> &'static VerbInfo {
        self.verb
    }

    /// Whether its verb is `V`.
    pub fn is<V: Verb>(&self) -> bool {
        self.verb.name == V::INFO.name
    }

    /// Returns its arguments, if its verb is `V`.
    pub fn args<V: Verb>(&self) -> Option<&V::Args> {
        if self.is::<V>() { self.args.downcast_ref() } else { None }
    }

    /// Returns the command that reverts its effect, if the effect lasts.
    pub fn undo(&self) -> Option<Self> {
        let Reach::Bound { undo } = self.verb.reach else { return None };
        Some(Self { verb: undo, ..self.clone() })
    }

    /// Encodes its arguments for another process.
    pub fn encode_args(&self) -> Vec<u8> {
        (self.verb.codec.encode_args)(&*self.args)
    }

    /// Creates a command of this process from encoded arguments.
    ///
    /// # Errors
    /// `Invalid` if they are not the verb's arguments.
    pub fn decode(verb: &'static VerbInfo, args: &[u8]) -> Result<Self> {
        let args = (verb.codec.decode_args)(args)
            .map_err(|why| Error::new(why.kind(), format!("arguments of {}: {why}", verb.name)))?;
        Ok(Self { id: 0, origin: 0, range: None, limit: WAIT, verb, args })
    }

    /// Merges the answers of all places.
    ///
    /// # Errors
    /// As [`Verb::merge`].
    pub fn merge(&self, parts: Vec<Part<Reply>>) -> Result<Reply> {
        (self.verb.codec.merge)(parts)
    }

    /// Returns the answer to a command that was carried out at once and answers [`Nothing`].
    pub fn done(&self, done: Result<()>) -> LocalFuture<Result<Reply>> {
        Box::pin(std::future::ready(done.map(|()| Reply(Rc::new(Nothing {})))))
    }

    /// Returns the error of a device that does not know the command.
    pub fn unknown_to(&self, device: &str) -> Error {
        let VerbInfo { name, needs, .. } = self.verb;
        let words = format!("{device} has no {needs}, so it does not take {name}");
        Error::new(ErrorKind::Unsupported, words)
    }
}

impl Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?} of {}", self.verb.name, self.range, self.origin)
    }
}

/// Returns the verb of that name, if it is one of `known`.
///
/// # Errors
/// `Unsupported`, with the names of those that are known.
pub fn find_verb(
    known: impl IntoIterator<Item = &'static VerbInfo> + Clone,
    name: &str,
) -> Result<&'static VerbInfo> {
    let found = known.clone().into_iter().find(|verb| verb.name == name);
    found.ok_or_else(|| {
        let names: Vec<_> = known.into_iter().map(|verb| verb.name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::new(ErrorKind::Unsupported, format!("no command {name:?}; known: {names}"))
    })
}

/// The answer to a command, of a type that its verb declares.
#[derive(Clone)]
pub struct Reply(Rc<dyn Any>);

impl Reply {
    /// Creates the answer to a command of verb `V`.
    pub fn of<V: Verb>(answer: V::Answer) -> Self {
        Self(Rc::new(answer))
    }

    /// Returns the typed answer.
    ///
    /// # Errors
    /// `Invalid` if the device answered another verb than `V`.
    pub fn answer<V: Verb>(self) -> Result<V::Answer> {
        let answer = self.0.downcast::<V::Answer>().map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("not an answer to {}", V::INFO.name))
        })?;
        Ok(Rc::unwrap_or_clone(answer))
    }

    /// Encodes the answer for another process.
    pub fn encode(&self, verb: &VerbInfo) -> Vec<u8> {
        (verb.codec.encode_answer)(&*self.0)
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// `Invalid` if they are not an answer to the verb.
    pub fn decode(verb: &VerbInfo, answer: &[u8]) -> Result<Self> {
        (verb.codec.decode_answer)(answer).map(Self)
    }
}

impl Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// The answer of one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<A> {
    /// The part of the command's range that the place holds.
    pub above: ByteRange,
    /// The same bytes in the address space of the place.
    pub below: ByteRange,
    /// The name of the device.
    pub place: Rc<str>,
    /// Its answer.
    pub answer: A,
}

/// Position of a device's range in its lowers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The device is the storage.
    Bottom,
    /// The range lies in these places. Bytes that no place holds are a hole.
    Places {
        /// All places of all copies, for the range up to `upto`.
        all: Vec<Below>,
        /// End of the answer. The caller must ask again for the rest of the range.
        upto: u64,
        /// Whether the bytes may move while the device is in use.
        moves: bool,
    },
    /// The device cannot answer.
    Unknown,
}

impl Resolved {
    /// Returns the answer of a device that passes the range to its only lower; `how` as in [`Below`].
    pub fn same(range: ByteRange, how: &'static str) -> Self {
        let below = Below { lower: 0, above: range.start(), range, how: how.into() };
        Self::places(range, vec![below])
    }

    /// Returns an answer with the places of all of `range`.
    pub fn places(range: ByteRange, all: Vec<Below>) -> Self {
        Self::Places { all, upto: range.end(), moves: false }
    }
}
