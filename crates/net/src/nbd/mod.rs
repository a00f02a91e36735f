//! Another server's export as a disk: kind `nbd`.

mod client;
mod target;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use block::env::{Address, Ticket};
use block::{
    Buf, ByteRange, Control, Deadline, Device, EXTENTS_MAX, Env, Error, ErrorKind, Extent, Handled,
    Health, Info, Op, Report, Request, Result, State, push_extent,
};
use graph::engine::AnyDevice;
use graph::kind::{DiskPlan, Fault, Given, Kind, Lowers, Maker, OptionSpec, Plan, ValueType};
use wire::nbd::{ClientConfig, Command, CommandFlags, ExportFacts, TransmissionFlags};

pub use client::{Client, HANDSHAKE};
pub use target::{PEM_MAX_BYTES, Target, TlsFiles, secure};

/// `nbd`
pub const KIND: Kind = Kind {
    name: "nbd",
    summary: "another server's export, over a unix socket",
    manual: include_str!("manual.md"),
    lowers: Lowers::None,
    options: &[
        OptionSpec {
            name: "nbd",
            value: ValueType::Text,
            required: true,
            help: "where: nbd+unix:///EXPORT?socket=PATH, or nbds+unix:// for TLS",
        },
        OptionSpec {
            name: "tls",
            value: ValueType::Table(&["ca", "cert", "key", "hostname"]),
            required: false,
            help: "for nbds: whom to trust, our certificate and its key, the server's name",
        },
        OptionSpec {
            name: "timeout",
            value: ValueType::Duration(Duration::from_secs(600)),
            required: false,
            help: "after this long without an answer the disk is out of service; 30s if not set",
        },
    ],
    maker: Maker::Disk {
        plan: |given, env| Box::pin(plan(given.clone(), env.clone())),
        make: |given, env| Box::pin(make(given.clone(), env.clone())),
    },
};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Where the disk is, and how to get there.
fn target(given: &Given) -> Result<Target> {
    let mut target = Target::of(given.text("nbd").unwrap_or_default())?;
    let text = |key| given.text_in("tls", key);
    match &mut target.tls {
        Some(files) => {
            let paths = [("ca", &mut files.ca), ("cert", &mut files.cert), ("key", &mut files.key)];
            for (key, path) in paths {
                *path = text(key).map(Into::into).or(path.take());
            }
            files.anonymous &= text("cert").is_none();
            files.hostname = text("hostname").map_or(files.hostname.clone(), str::to_owned);
        }
        None if given.is_set("tls") => {
            let words = "tls is set, and the URI is for a connection without it; use nbds:// or nbds+unix://";
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        None => {}
    }
    Ok(target)
}

async fn connect(given: &Given, env: &Env) -> Result<Client> {
    let target = target(given)?;
    if let Address::Tcp(..) = target.address {
        let words = format!(
            "{}: an NBD disk over TCP cannot be fenced yet; use a unix socket: \
             nbd+unix:///EXPORT?socket=PATH",
            target.address
        );
        return Err(Error::new(ErrorKind::Unsupported, words));
    }
    target.connect(env, ClientConfig::connect(target.export.clone())).await
}

fn info_of(facts: &ExportFacts) -> Info {
    let has = |flag| facts.flags.has(flag);
    let block_size = facts.blocks.min().max(512);
    Info {
        read_only: has(TransmissionFlags::READ_ONLY),
        volatile_cache: has(TransmissionFlags::FLUSH),
        native_fua: has(TransmissionFlags::FUA),
        native_zeroes: has(TransmissionFlags::WRITE_ZEROES),
        discard: has(TransmissionFlags::TRIM),
        preferred_io: facts.blocks.preferred().max(4096),
        max_transfer: facts.blocks.max_payload() - facts.blocks.max_payload() % block_size,
        // What the server does when it dies is not known.
        buf_align: 1,
        survives_process: false,
        ..Info::disk(facts.size_bytes - facts.size_bytes % u64::from(block_size), block_size)
    }
}

async fn plan(given: Given, env: Env) -> Plan<DiskPlan> {
    let fault = |error: Error| vec![Fault::new("nbd", error.to_string())];
    let client = connect(&given, &env).await.map_err(fault)?;
    let info = info_of(&client.session().facts);
    client.close();
    let uri = given.text("nbd").unwrap_or_default().to_owned();
    Ok(DiskPlan { info, creates: false, identity: uri, words: "over NBD".to_owned() })
}

async fn make(given: Given, env: Env) -> Result<Rc<dyn AnyDevice>> {
    let client = connect(&given, &env).await?;
    let timeout = given.duration("timeout").unwrap_or(TIMEOUT_DEFAULT);
    Ok(Rc::new(Remote {
        info: info_of(&client.session().facts),
        name: given.name.clone(),
        client,
        deadline: Deadline::new(&env, timeout),
        faulted: RefCell::default(),
        errors: Cell::new(0),
    }))
}

/// An export of another server. Once it has not answered, or its connection is gone, nobody knows
/// what it did with what was open; so it does nothing more.
struct Remote {
    info: Info,
    name: String,
    client: Client,
    deadline: Deadline,
    faulted: RefCell<Option<Error>>,
    errors: Cell<u64>,
}

impl Remote {
    fn flags(fua: bool) -> CommandFlags {
        if fua { CommandFlags::FUA } else { CommandFlags::NONE }
    }

    /// FUA where the server knows it, a flush after the write where it does not.
    async fn durably(
        &self,
        command: Command,
        flags: CommandFlags,
        range: ByteRange,
        buf: Option<Buf>,
        fua: bool,
    ) -> Result<()> {
        let native = self.info.native_fua;
        let flags = flags | Self::flags(fua && native);
        let ticket = self.client.start(command, flags, range.start(), range.len(), buf);
        self.answer(ticket).await?;
        if fua && !native { self.flush().await } else { Ok(()) }
    }

    async fn flush(&self) -> Result<()> {
        if !self.info.volatile_cache {
            return Ok(());
        }
        let ticket = self.client.start(Command::Flush, CommandFlags::NONE, 0, 0, None);
        let flushed = self.answer(ticket).await.map(drop);
        if let Err(error) = &flushed {
            self.fault(format!("a flush failed: {error}"));
        }
        flushed
    }

    async fn answer(&self, ticket: Ticket) -> Result<Option<Buf>> {
        if let Some(error) = &*self.faulted.borrow() {
            return Err(error.clone());
        }
        let Some(outcome) = self.deadline.guard(ticket).await else {
            let words = format!("no answer within {:?}", self.deadline.limit());
            self.client.close();
            return Err(self.fault(words));
        };
        match outcome.result {
            Ok(_) => Ok(outcome.buf),
            Err(error) => {
                self.errors.set(self.errors.get() + 1);
                match self.client.gone() {
                    Some(gone) => Err(self.fault(format!("the connection is gone: {gone}"))),
                    None => Err(error.at(&self.name)),
                }
            }
        }
    }

    fn fault(&self, why: String) -> Error {
        let words = format!("out of service: {why}. What was not flushed may be lost");
        let error = Error::new(ErrorKind::Faulted, words).at(&self.name);
        self.faulted.borrow_mut().get_or_insert(error).clone()
    }

    async fn status(&self, range: ByteRange) -> Vec<Extent> {
        let asked = self.client.status(range.start(), range.len().min(u64::from(u32::MAX) & !511));
        let mut all: Vec<Extent> = asked.await.unwrap_or_default();
        all.truncate(EXTENTS_MAX);
        if all.is_empty() {
            push_extent(&mut all, range.len(), State::Data);
        }
        all
    }
}

impl Device for Remote {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        let none = CommandFlags::NONE;
        match &mut request.op {
            Op::Read { range, into, .. } => {
                let (start, len) = (range.start(), range.len());
                let ticket = self.client.start(Command::Read, none, start, len, Some(into.clone()));
                if let Some(buf) = self.answer(ticket).await? {
                    *into = buf;
                }
                Ok(())
            }
            Op::Write { range, data, fua } => {
                self.durably(Command::Write, none, *range, Some(data.clone()), *fua).await
            }
            Op::WriteZeroes { range, unmap, fua } => {
                let flags = if *unmap { none } else { CommandFlags::NO_HOLE };
                self.durably(Command::WriteZeroes, flags, *range, None, *fua).await
            }
            Op::Discard { range, fua } => {
                self.durably(Command::Trim, none, *range, None, *fua).await
            }
            Op::Flush => self.flush().await,
            Op::Status { range, extents } => {
                *extents = self.status(*range).await;
                Ok(())
            }
        }
    }

    fn control(&self, control: &Control) -> Handled {
        let Control::Report = control else { return Handled::Pass };
        let faulted = self.faulted.borrow();
        let summary = faulted.as_ref().map_or_else(String::new, Error::to_string);
        let health = if faulted.is_some() { Health::Failed } else { Health::Ok };
        let counters = vec![("errors", self.errors.get())];
        Handled::Done(Ok(Report { health, summary, counters, ..Report::default() }))
    }
}
