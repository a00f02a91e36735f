//! Portals: the entries of clients' requests into the engine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{ByteRange, Device, Error, ErrorKind, Info, Needs, Op, Request, Result};

use super::node::{Node, Power};
use super::reserve::Reserve;
use super::share::{Need, Share};
use super::slot::AnyDevice;
use super::{Engine, NodeId, pieces};

/// The error message of a portal that was closed because the graph has no export of its name any more.
const GONE: &str = "the export is no longer offered";

/// The entry of clients' requests into the engine. A portal leads to a node, and can be led to another node while
/// clients use the portal. A clone is another handle to the same portal. A portal lasts until its last handle is
/// dropped.
#[derive(Clone)]
pub struct Portal(Rc<Entrance>);

struct Entrance {
    name: Box<str>,
    to: RefCell<Target>,
    share: Share,
}

struct Target {
    /// Number of the node in the engine; `None` once the portal is closed.
    id: Option<NodeId>,
    node: Rc<Node>,
    /// The node for requests that `node` does not accept as they are.
    pieces: Rc<Node>,
}

impl Portal {
    /// Returns the name of the portal, which is the name of its export.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the facts about the node to which the portal leads now. A closed portal has the facts about its last
    /// node.
    pub fn info(&self) -> Info {
        self.0.to.borrow().node.info.clone()
    }

    /// Returns the node to which the portal leads now; `None` once the portal is closed.
    pub fn node(&self) -> Option<NodeId> {
        self.0.to.borrow().id
    }

    /// Closes the portal: it refuses every further request with `error`. Requests that have begun continue.
    pub(super) fn close(&self, error: Error) {
        let (info, error) = (self.info(), error.at(self.name()));
        let reserve = Reserve::of_device(Needs::LEAF, info.block_size, &[]);
        let closed = |info: Info| {
            let device: Rc<dyn AnyDevice> =
                Rc::new(Closed { info: info.clone(), error: error.clone() });
            let future_bytes = device.future_bytes();
            let power = Power::Device { device, lowers: Box::default(), future_bytes };
            Rc::new(Node::new(self.name(), info, power, reserve))
        };
        let pieces = closed(pieces::info(&info));
        *self.0.to.borrow_mut() = Target { id: None, node: closed(info), pieces };
    }

    /// Leads the portal to another node. Requests that have begun continue at their node.
    pub(super) fn lead(&self, engine: &Engine, node: NodeId) {
        *self.0.to.borrow_mut() = engine.target(node);
    }

    /// Returns the share of the requests through this portal.
    pub(super) fn share(&self) -> &Share {
        &self.0.share
    }

    /// Returns the node that carries out a client's request `op`, the resources that it needs there, and the range of
    /// whole blocks that it changes.
    #[inline]
    pub(super) fn route(&self, op: &Op) -> (Rc<Node>, Need, Option<ByteRange>) {
        let to = self.0.to.borrow();
        if pieces::takes(&to.node.info, op) {
            let changes = op.range().filter(|_| op.writes());
            return (to.node.clone(), to.node.reserve.need(op), changes);
        }
        (to.pieces.clone(), pieces::need(to.pieces.reserve, op), None)
    }

    /// Whether a request in pieces rewrites a block that the request `op` would change.
    #[inline]
    pub(super) fn is_rewritten(&self, op: &Op) -> bool {
        let node = &self.0.to.borrow().node;
        op.writes()
            && op.range().is_some_and(|range| node.rewrites.hold(range, node.info.block_size))
    }

    pub(super) fn target(&self) -> Rc<Node> {
        self.0.to.borrow().node.clone()
    }
}

impl Engine {
    /// Creates a portal named `name` that leads to `node`.
    pub fn portal(&self, name: &str, node: NodeId) -> Portal {
        let to = RefCell::new(self.target(node));
        Portal(Rc::new(Entrance { name: name.into(), to, share: Share::default() }))
    }

    fn target(&self, id: NodeId) -> Target {
        let node = self.node(id);
        let pieces = self.pieces(&node);
        Target { id: Some(id), node, pieces }
    }
}

/// The node to which each portal of a set must lead, by the name of the portal.
pub type Targets = BTreeMap<String, NodeId>;

/// A set of portals, by name. All portals of a set are retargeted at once. The set stays in use when the devices behind
/// its portals are replaced.
#[derive(Default)]
pub struct Portals(RefCell<BTreeMap<String, Portal>>);

impl Portals {
    /// Returns the portal named `name`, if the set has one.
    pub fn get(&self, name: &str) -> Option<Portal> {
        self.0.borrow().get(name).cloned()
    }

    /// Leads every portal of the set to the target of its name. Creates the portals that are missing, and closes the
    /// portals without a target. Requests that have begun continue at their nodes.
    pub fn retarget(&self, engine: &Engine, targets: &Targets) {
        let mut portals = self.0.borrow_mut();
        let gone = portals.extract_if(.., |name, _| !targets.contains_key(name));
        gone.for_each(|(_, portal)| portal.close(Error::new(ErrorKind::Io, GONE)));
        for (name, node) in targets {
            match portals.get(name) {
                Some(portal) => portal.lead(engine, *node),
                None => drop(portals.insert(name.clone(), engine.portal(name, *node))),
            }
        }
    }

    /// Closes all portals of the set: they refuse further requests with `error`.
    pub fn close(&self, error: &Error) {
        self.0.borrow().values().for_each(|portal| portal.close(error.clone()));
    }
}

/// The device behind a closed portal, which fails every request with `error`.
struct Closed {
    info: Info,
    error: Error,
}

impl Device for Closed {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, _: &mut Request) -> Result<()> {
        Err(self.error.clone())
    }
}
