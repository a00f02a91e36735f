//! Carries out commands on devices.
//!
//! A place of a command is a device that lists the verb of the command, with its part of the command's range. Tables,
//! hooks and devices that do not list the verb are no places: the engine maps the range through them to their lowers.
//! The engine finds all places of a command before it begins the command at any place. Commands take no slots and do
//! not count as requests.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::control::{Command, Part, Reach, Reply, Resolved};
use block::env::LocalFuture;
use block::{ByteRange, Error, Result, all, bail, error};

use super::node::{Node, Power};
use super::{Engine, NodeId};

/// Most places of one command, including nodes that the engine must still search for places.
pub const PLACES_MAX: usize = 4096;

/// Most places at which a command without a lasting effect is carried out at the same time.
const AT_ONCE: usize = 16;

impl Engine {
    /// Carries out a command at the node `at` itself, or at the devices below that hold the command's range. A command
    /// without a range covers all bytes of the node. Dropping the future cancels the command at all its places.
    ///
    /// # Errors
    /// `Unsupported` if a device between the node and the places neither knows the command nor reports where its bytes
    /// are, or may move them under a command with a lasting effect; `Limit` beyond [`PLACES_MAX`] places; else the
    /// device's own errors.
    pub fn control(&self, at: NodeId, command: Command) -> LocalFuture<Result<Reply>> {
        carry_out(self.node(at), command)
    }
}

/// Carries out a command like [`Engine::control`], at `node`.
pub(super) fn carry_out(node: Rc<Node>, command: Command) -> LocalFuture<Result<Reply>> {
    Box::pin(async move {
        let Some(whole) = ByteRange::new(0, node.info.size) else {
            // A device that holds volumes may have no bytes of its own.
            return at_empty(node, command).await;
        };
        let range = command.range.unwrap_or(whole);
        let top = NodeRange { node, above: range, below: range };
        match command.verb().reach {
            Reach::Here if top.knows(&command) => top.begin(command).await,
            Reach::Here => Err(command.unknown_to(&top.node.name)),
            _ if !whole.contains(range) => Err(top.beyond(&command)),
            Reach::Range | Reach::Known => at_all(&command, top.find(&command).await?).await,
            Reach::First => at_first(&command, top.find(&command).await?).await,
            Reach::Bound { .. } => in_order(&command, top.find(&command).await?).await,
        }
    })
}

/// Carries out a command at a device without bytes, which has only commands of reach [`Reach::Here`].
async fn at_empty(node: Rc<Node>, command: Command) -> Result<Reply> {
    match &node.power {
        Power::Device { device, .. }
            if matches!(command.verb().reach, Reach::Here)
                && device.verbs().iter().any(|verb| verb.name == command.verb().name) =>
        {
            if node.closed.get() {
                Err(node.refusal())
            } else {
                device.clone().control(command).await
            }
        }
        _ => Err(command.unknown_to(&node.name)),
    }
}

/// A node that is or may lead to a place of a command, and the part of the command's range that the node has.
struct NodeRange {
    node: Rc<Node>,
    /// The part of the range, in the address space of the node to which the command was sent.
    above: ByteRange,
    /// The same part, in the address space of `node`.
    below: ByteRange,
}

impl NodeRange {
    fn knows(&self, command: &Command) -> bool {
        let Power::Device { device, .. } = &self.node.power else { return false };
        device.verbs().iter().any(|verb| verb.name == command.verb().name)
    }

    /// Begins the command at this place. The device of the place must know the command.
    fn begin(&self, command: Command) -> LocalFuture<Result<Reply>> {
        match &self.node.power {
            _ if self.node.closed.get() => Box::pin(std::future::ready(Err(self.node.refusal()))),
            Power::Device { device, .. } => device.clone().control(command),
            _ => unreachable!("only devices know commands"),
        }
    }

    fn part(&self, answer: Reply) -> Part<Reply> {
        Part { above: self.above, below: self.below, place: self.node.name.clone(), answer }
    }

    /// Returns the places of the command at this node and below it.
    async fn find(self, command: &Command) -> Result<Vec<Self>> {
        let (mut places, mut open) = (Vec::new(), VecDeque::from([self]));
        while let Some(place) = open.pop_front() {
            if places.len() + open.len() >= PLACES_MAX {
                return Err(error!(
                    Limit,
                    "the range of {command:?} lies in over {PLACES_MAX} places of lower devices"
                )
                .next("use a shorter range"));
            }
            if place.knows(command) {
                places.push(place);
                continue;
            }
            match &place.node.power {
                Power::Hooks { next, .. } => {
                    open.push_front(place.below(next, place.below.start(), place.below))
                }
                Power::Table { table, lowers, .. } => {
                    open.extend(table.map(place.below).take(PLACES_MAX).map(|run| {
                        place.below(&lowers[usize::from(run.port.0)], run.start, run.range)
                    }))
                }
                Power::Device { .. } => open.extend(place.resolve(command).await?),
            }
        }
        Ok(places)
    }

    /// Returns the nodes directly below a device that does not know the command, each with its part of the range.
    async fn resolve(&self, command: &Command) -> Result<Vec<Self>> {
        let Power::Device { device, lowers, .. } = &self.node.power else {
            unreachable!("only devices resolve ranges")
        };
        let (mut found, mut rest) = (Vec::new(), Some(self.below));
        while let Some(range) = rest {
            let (all, upto, moves) = match device.resolve(range).await? {
                Resolved::Places { all, upto, moves } => (all, upto, moves),
                _ if lowers.is_empty() && is_left_out(command) => break,
                _ => return Err(command.unknown_to(&self.node.name)),
            };
            if moves && matches!(command.verb().reach, Reach::Bound { .. }) {
                bail!(Unsupported, "{command:?} cannot pass {}, which moves bytes", self.node.name);
            }
            found.extend(all.iter().map(|it| self.below(&lowers[it.lower], it.above, it.range)));
            if found.len() > PLACES_MAX {
                break;
            }
            assert!(upto > range.start(), "{} resolved no byte of {range}", self.node.name);
            rest = ByteRange::between(upto, range.end());
        }
        Ok(found)
    }

    /// Returns the lower `node` with its part of the range: `below` in the lower, and from `start` on in this node.
    fn below(&self, node: &Rc<Node>, start: u64, below: ByteRange) -> Self {
        let start = self.above.start() + (start - self.below.start());
        let above = ByteRange::new(start, below.len()).expect("the lower range has bytes");
        Self { node: node.clone(), above, below }
    }

    fn beyond(&self, command: &Command) -> Error {
        let (name, size) = (&self.node.name, self.node.info.size);
        error!(OutOfRange, "{command:?} is beyond the {size} bytes of device {name}")
    }
}

/// Whether disks that do not know the command are left out.
fn is_left_out(command: &Command) -> bool {
    matches!(command.verb().reach, Reach::Known | Reach::First)
}

/// Carries out a command at all places, until one place answers.
async fn at_first(command: &Command, places: Vec<NodeRange>) -> Result<Reply> {
    let begin = |place: &NodeRange| place.begin(command.at(place.below));
    let mut begun: Vec<_> = places.iter().map(begin).collect();
    if begun.is_empty() {
        bail!(Unsupported, "no device below answers {command:?}");
    }
    let (n, answer) = poll_fn(|cx| {
        let mut all = begun.iter_mut().enumerate();
        let ready = all.find_map(|(n, one)| match one.as_mut().poll(cx) {
            Poll::Ready(answer) => Some((n, answer)),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await;
    command.merge(vec![places[n].part(answer?)])
}

/// Carries out a command without a lasting effect, at up to [`AT_ONCE`] places at the same time.
async fn at_all(command: &Command, places: Vec<NodeRange>) -> Result<Reply> {
    let mut parts = Vec::with_capacity(places.len());
    for some in places.chunks(AT_ONCE) {
        let begun = some.iter().map(|place| place.begin(command.at(place.below))).collect();
        for (place, answer) in some.iter().zip(all(begun).await) {
            parts.push(place.part(answer?));
        }
    }
    command.merge(parts)
}

/// Carries out a command with a lasting effect, at one place after the other. The order is the same for all commands,
/// so two commands never wait for each other. The command is carried out at all places or at none.
async fn in_order(command: &Command, mut places: Vec<NodeRange>) -> Result<Reply> {
    places.sort_by(|one, other| {
        (&one.node.name, one.below.start()).cmp(&(&other.node.name, other.below.start()))
    });
    let mut done = Done { command, places: Vec::new() };
    let mut parts = Vec::with_capacity(places.len());
    for place in places {
        let answer = place.begin(command.at(place.below)).await?;
        parts.push(place.part(answer));
        done.places.push(place);
    }
    let merged = command.merge(parts)?;
    done.places.clear();
    Ok(merged)
}

/// The places at which a command has had its lasting effect, until the command is complete. Dropping the value undoes
/// the effect at all these places.
struct Done<'c> {
    command: &'c Command,
    places: Vec<NodeRange>,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        for place in self.places.iter().rev() {
            let undo = self.command.at(place.below).undo().expect("a lasting command has an undo");
            // The device completes an undo even if its future is dropped.
            let begun = pin!(place.begin(undo));
            let _ = begun.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
