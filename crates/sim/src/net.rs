//! The simulated network: connections whose bytes arrive with random splits and delays, and that can be reset.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use block::env::{Address, Listener, LocalFuture, Outcome, Socket, Ticket, Tickets, stopped};
use block::{Buf, Env, Error, ErrorKind, Result, Waiter};

use crate::clock::{Clock, Event, Fire};
use crate::counters::Count;
use crate::draw::{Stream, domain};

/// Largest number of bytes in transit in one direction of a simulated connection. They are few, so that senders must
/// wait.
const ROOM_BYTES: usize = 32 << 10;

/// Indices of the two ends of a simulated connection: the end that connected, and the end that accepted.
const CALLER: usize = 0;
const CALLED: usize = 1;

/// All listeners and connections of a simulated world.
pub(crate) struct Network {
    clock: Rc<Clock>,
    listeners: RefCell<BTreeMap<Address, Rc<Listening>>>,
    pairs: RefCell<Vec<Weak<Pair>>>,
    made: Cell<u64>,
}

struct Listening {
    address: Address,
    arrived: RefCell<VecDeque<Rc<dyn Socket>>>,
    waiting: Waiter,
    closed: Cell<bool>,
    called_off: Cell<bool>,
}

/// A simulated connection with both of its ends.
struct Pair {
    me: Weak<Self>,
    clock: Rc<Clock>,
    name: String,
    draw: Stream,
    next: Cell<u64>,
    reset: Cell<bool>,
    ends: [RefCell<End>; 2],
}

#[derive(Default)]
struct End {
    /// Bytes in transit that this end of the connection can receive now.
    arrived: VecDeque<u8>,
    /// Whether a process has shut down this end of the connection.
    closed: bool,
    open: BTreeMap<u64, Transfer>,
    outcomes: BTreeMap<u64, Outcome>,
}

/// A send or a receive in flight at one end of a connection, with its buffers.
struct Transfer {
    io: Io,
    waiter: Waiter,
    abandoned: bool,
    /// Whether the next clock event of the send or receive is scheduled. If not, the send or receive waits for the
    /// other end of the connection.
    set: bool,
}

enum Io {
    Recv(Buf),
    Send(Vec<Buf>),
}

/// The handle (socket) of a process to one end of a simulated connection.
struct Held {
    pair: Rc<Pair>,
    side: usize,
}

impl Network {
    pub fn new(clock: &Rc<Clock>) -> Self {
        Self {
            clock: clock.clone(),
            listeners: RefCell::default(),
            pairs: RefCell::default(),
            made: Cell::new(0),
        }
    }

    pub fn listen(&self, at: &Address) -> Result<Rc<dyn Listener>> {
        let mut listeners = self.listeners.borrow_mut();
        if listeners.get(at).is_some_and(|listening| !listening.closed.get()) {
            return Err(Error::new(
                ErrorKind::InUse,
                format!("{at}: another process listens at this address"),
            ));
        }
        let listening = Rc::new(Listening {
            address: at.clone(),
            arrived: RefCell::default(),
            waiting: Waiter::default(),
            closed: Cell::new(false),
            called_off: Cell::new(false),
        });
        listeners.insert(at.clone(), listening.clone());
        Ok(Rc::new(Open(listening)))
    }

    /// Connects to the listener at the address `to`, after a random delay.
    pub fn connect(&self, env: Env, to: &Address) -> LocalFuture<Result<Rc<dyn Socket>>> {
        let number = self.made.replace(self.made.get() + 1);
        let draw = Stream::new(self.clock.seed, "connection", number);
        let (clock, name) = (self.clock.clone(), to.to_string());
        let found = self.listeners.borrow().get(to).cloned();
        let pair = Rc::new_cyclic(|me| Pair {
            me: me.clone(),
            clock,
            name,
            draw,
            next: Cell::new(1),
            reset: Cell::new(false),
            ends: Default::default(),
        });
        let mut pairs = self.pairs.borrow_mut();
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.push(Rc::downgrade(&pair));
        Box::pin(async move {
            env.sleep(Duration::from_nanos(pair.draw.within(5_000, 500_000))).await;
            match found.filter(|listening| !listening.closed.get()) {
                Some(listening) => {
                    pair.clock.counters.add(Count::Connected);
                    let called: Rc<dyn Socket> = Rc::new(Held { pair: pair.clone(), side: CALLED });
                    listening.arrived.borrow_mut().push_back(called);
                    listening.waiting.wake();
                    Ok(Rc::new(Held { pair, side: CALLER }) as Rc<dyn Socket>)
                }
                None => Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{}: no process listens at this address", pair.name),
                )),
            }
        })
    }

    /// Resets one open connection, selected by the random number `drawn`. Does nothing without a connection.
    pub fn reset_one(&self, drawn: u64) {
        let whole = self.whole();
        if !whole.is_empty() {
            self.reset(&whole[drawn as usize % whole.len()]);
        }
    }

    /// Resets all open connections.
    pub fn reset_all(&self) {
        self.whole().iter().for_each(|pair| self.reset(pair));
    }

    fn whole(&self) -> Vec<Rc<Pair>> {
        let pairs = self.pairs.borrow();
        pairs.iter().filter_map(Weak::upgrade).filter(|pair| pair.is_whole()).collect()
    }

    fn reset(&self, pair: &Pair) {
        self.clock.counters.add(Count::Reset);
        pair.break_off();
    }

    /// Drops all listeners of the simulated network.
    pub fn clear(&self) {
        let listeners = self.listeners.take();
        drop(listeners);
    }
}

/// The handle of a process to a listener of the simulated network.
struct Open(Rc<Listening>);

impl Listener for Open {
    fn accept(&self) -> LocalFuture<Result<Rc<dyn Socket>>> {
        let listening = self.0.clone();
        Box::pin(poll_fn(move |cx| {
            if listening.closed.get() {
                return Poll::Ready(Err(stopped()));
            }
            let arrived = listening.arrived.borrow_mut().pop_front();
            if listening.called_off.replace(false) && arrived.is_none() {
                return Poll::Ready(Err(stopped()));
            }
            arrived.map_or_else(
                || {
                    listening.waiting.wake_later(cx);
                    Poll::Pending
                },
                |socket| Poll::Ready(Ok(socket)),
            )
        }))
    }

    fn address(&self) -> Address {
        self.0.address.clone()
    }

    fn close(&self) {
        self.0.closed.set(true);
        self.0.waiting.wake();
    }

    fn call_off(&self) {
        self.0.called_off.set(true);
        self.0.waiting.wake();
    }
}

impl Pair {
    fn is_whole(&self) -> bool {
        !self.reset.get() && self.ends.iter().all(|end| !end.borrow().closed)
    }

    fn begin(&self, side: usize, io: Io) -> u64 {
        let id = self.next.replace(self.next.get() + 1) << 1 | side as u64;
        let transfer = Transfer { io, waiter: Waiter::default(), abandoned: false, set: false };
        self.ends[side].borrow_mut().open.insert(id, transfer);
        if self.reset.get() && side == CALLED {
            // This side is notified of the reset before the other; see `break_off`.
            self.answer(side, id, Err(self.error("the connection was reset")));
        } else {
            self.set(side, id);
        }
        id
    }

    /// Schedules the next clock event of the send or receive number `id` at the end `side` of the connection.
    fn set(&self, side: usize, id: u64) {
        if let Some(transfer) = self.ends[side].borrow_mut().open.get_mut(&id)
            && !std::mem::replace(&mut transfer.set, true)
        {
            let me = self.me.upgrade().expect("the network lives while its connections run");
            let delay = Duration::from_nanos(self.draw.within(1_000, 60_000));
            self.clock.schedule(self.clock.now().after(delay), Event::Fire(me, id));
        }
    }

    /// Schedules the next clock event of every send and receive in flight at the end `side` of the connection.
    fn poke(&self, side: usize) {
        let open: Vec<u64> = self.ends[side].borrow().open.keys().copied().collect();
        open.into_iter().for_each(|id| self.set(side, id));
    }

    fn answer(&self, side: usize, id: u64, result: Result<usize>) {
        let mut end = self.ends[side].borrow_mut();
        let Some(Transfer { io, waiter, abandoned, .. }) = end.open.remove(&id) else { return };
        if abandoned {
            return;
        }
        let (buf, parts) = match io {
            Io::Recv(buf) => (Some(buf), Vec::new()),
            Io::Send(parts) => (None, parts),
        };
        end.outcomes.insert(id, Outcome { result, buf, parts });
        drop(end);
        waiter.wake();
    }

    /// Returns how many of at most `most` bytes a send or receive moves at once: in a quarter of the cases a random
    /// part.
    fn split(&self, most: usize) -> usize {
        if self.draw.below(4) == 0 { self.draw.within(1, most as u64) as usize } else { most }
    }

    /// Carries out a send or receive at the end `side`. Returns its result; `None` if it must wait for the other end.
    fn carry_out(&self, side: usize, io: &Io) -> Option<Result<usize>> {
        if self.reset.get() {
            return Some(Err(self.error("the connection was reset")));
        }
        let (mut own, mut other) = (self.ends[side].borrow_mut(), self.ends[1 - side].borrow_mut());
        match io {
            Io::Recv(_) if own.closed => Some(Ok(0)),
            Io::Recv(_) if own.arrived.is_empty() => other.closed.then_some(Ok(0)),
            Io::Recv(into) => {
                let count = self.split(own.arrived.len().min(into.len()));
                for (byte, arrived) in into.write().iter_mut().zip(own.arrived.drain(..count)) {
                    *byte = arrived;
                }
                self.clock.counters.add(Count::Received);
                Some(Ok(count))
            }
            Io::Send(_) if own.closed || other.closed => {
                Some(Err(self.error("the other end closed the connection")))
            }
            Io::Send(parts) => {
                let total: usize = parts.iter().map(Buf::len).sum();
                let room = ROOM_BYTES - other.arrived.len();
                if room == 0 && total > 0 {
                    return None;
                }
                let count = if total == 0 { 0 } else { self.split(total.min(room)) };
                let mut left = count;
                for part in parts {
                    let here = part.len().min(left);
                    other.arrived.extend(&part.read()[..here]);
                    left -= here;
                }
                self.clock.counters.add(Count::Sent);
                self.clock.counters.add_many(Count::SplitSend, u64::from(count < total));
                Some(Ok(count))
            }
        }
    }

    fn call_off(&self, side: usize) {
        let end = self.ends[side].borrow();
        let is_receive =
            |(id, one): (&u64, &Transfer)| matches!(one.io, Io::Recv(_)).then_some(*id);
        let receives: Vec<u64> = end.open.iter().filter_map(is_receive).collect();
        drop(end);
        for id in receives {
            self.answer(side, id, Err(self.error("the receive was cancelled")));
        }
    }

    fn error(&self, words: &str) -> Error {
        Error::new(ErrorKind::Io, format!("{}: {words}", self.name))
    }

    fn shutdown(&self, side: usize) {
        if !std::mem::replace(&mut self.ends[side].borrow_mut().closed, true) {
            self.poke(side);
            self.poke(1 - side);
        }
    }

    /// Resets the connection. Bytes in transit are lost. The end that accepted is notified first, before the other end
    /// can connect again.
    fn break_off(&self) {
        self.reset.set(true);
        self.ends.iter().for_each(|end| end.borrow_mut().arrived.clear());
        let open: Vec<u64> = self.ends[CALLED].borrow().open.keys().copied().collect();
        for id in open {
            self.answer(CALLED, id, Err(self.error("the connection was reset")));
        }
        self.poke(CALLER);
    }
}

impl Fire for Pair {
    fn fire(&self, id: u64) {
        let side = (id & 1) as usize;
        let taken = self.ends[side].borrow_mut().open.remove(&id);
        let Some(mut transfer) = taken else { return };
        self.clock.record(domain("transfer"), id);
        let done = self.carry_out(side, &transfer.io);
        transfer.set = false;
        self.ends[side].borrow_mut().open.insert(id, transfer);
        if let Some(result) = done {
            self.answer(side, id, result);
            self.poke(1 - side);
        }
    }
}

impl Tickets for Pair {
    fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut end = self.ends[(id & 1) as usize].borrow_mut();
        if let Some(outcome) = end.outcomes.remove(&id) {
            return Poll::Ready(outcome);
        }
        if let Some(transfer) = end.open.get_mut(&id) {
            transfer.waiter.wake_later(cx);
        }
        Poll::Pending
    }

    fn abandon(&self, id: u64) {
        let mut end = self.ends[(id & 1) as usize].borrow_mut();
        let outcome = end.outcomes.remove(&id);
        if let Some(transfer) = end.open.get_mut(&id) {
            transfer.abandoned = true;
            transfer.waiter.clear();
        }
        drop(end);
        drop(outcome);
    }
}

impl Socket for Held {
    fn recv(&self, into: Buf) -> Ticket {
        let id = self.pair.begin(self.side, Io::Recv(into));
        Ticket::new(self.pair.clone(), id)
    }

    fn send(&self, parts: Vec<Buf>) -> Ticket {
        let id = self.pair.begin(self.side, Io::Send(parts));
        Ticket::new(self.pair.clone(), id)
    }

    fn shutdown(&self) {
        self.pair.shutdown(self.side);
    }

    fn peer(&self) -> String {
        self.pair.name.clone()
    }

    fn call_off(&self) {
        self.pair.call_off(self.side);
    }

    fn is_gone(&self) -> bool {
        self.pair.reset.get() || self.pair.ends[1 - self.side].borrow().closed
    }

    fn may_outlive(&self) -> bool {
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pair.shutdown(self.side);
    }
}
