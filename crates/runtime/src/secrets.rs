//! Sources of keys and passphrases: a file, a descriptor, a credential of the service manager, the terminal.
//!
//! All bytes are read into locked memory. Keys are read before a graph is served, or by a command. Reading may block
//! the core while it waits for the operator, or for the writer of a descriptor.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, KeySource, Result, SECRET_BYTES_MAX, Secret, Wanted, bail};

use crate::{one_shot_keys, sys};

/// Longest wait between two bytes for the writer of a descriptor.
const WRITER_WAIT: Duration = Duration::from_secs(60);

/// Longest wait for a passphrase from the operator.
const PERSON_WAIT: Duration = Duration::from_secs(600);

/// Most times that the operator is asked for a new passphrase, until both entries are equal.
const TWICE_TRIES: usize = 3;

/// The sources from which this process may read keys and passphrases.
pub(crate) struct Keys {
    pub credentials: Option<OsString>,
    /// Whether keys may come from the terminal, or from a descriptor of this process.
    pub by_hand: bool,
    pub note: fn(&str),
}

impl Keys {
    pub(crate) fn get(&self, wanted: &Wanted) -> Result<Secret> {
        if matches!(wanted.source, KeySource::Ask | KeySource::Fd(_)) {
            if let Some(given) = one_shot_keys::given(&wanted.full_name)? {
                return Ok(given);
            }
            if !self.by_hand {
                let why = format!(
                    "the key of {} (source {}) must be given to cairn apply: this process cannot \
                     read the source",
                    wanted.full_name, wanted.source
                );
                return Err(denied(why).next(
                    "run cairn stop, then cairn apply, which asks for the key; or set the key to \
                     file:PATH or credential:NAME",
                ));
            }
        }
        let secret = match &wanted.source {
            KeySource::File(path) => file(path, &wanted.source, self.note),
            KeySource::Fd(number) => descriptor(*number),
            KeySource::Credential(name) => self.credential(name),
            KeySource::Ask => ask(wanted),
        }?;
        if secret.bytes().is_empty() {
            return Err(match wanted.source {
                KeySource::Ask => denied("the passphrase is empty".to_owned()),
                _ => denied(format!("key {}: the key is empty", wanted.source))
                    .next("write the key into this source"),
            });
        }
        Ok(secret)
    }

    fn credential(&self, name: &str) -> Result<Secret> {
        let source = KeySource::Credential(name.to_owned());
        let Some(directory) = &self.credentials else {
            let why = format!("key {source}: $CREDENTIALS_DIRECTORY is not set");
            return Err(denied(why).next(format!(
                "set LoadCredential={name}:PATH in the systemd unit, or key = \"file:PATH\""
            )));
        };
        file(&PathBuf::from(directory).join(name), &source, |_| {})
    }
}

/// Reads a key from the file at `path`, and calls `note` with a warning if other users may read the file.
pub(crate) fn file(path: &Path, source: &KeySource, note: fn(&str)) -> Result<Secret> {
    let refuse = |error: io::Error| {
        let next = match error.kind() {
            io::ErrorKind::NotFound => "create the key file, or name another",
            io::ErrorKind::PermissionDenied => {
                "run as a user that may read the key file, or name another"
            }
            io::ErrorKind::WouldBlock => "write the key into the pipe first",
            _ => "name another key source",
        };
        denied(format!("key {source}: {error}")).next(next.to_string())
    };
    // Never waits: a pipe must have its bytes already.
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(refuse)?;
    let about = file.metadata().map_err(refuse)?;
    if about.is_dir() {
        let why = format!("key {source}: the path is a directory");
        return Err(denied(why).next("name a file in the directory"));
    }
    let (mode, shown) = (about.mode() & 0o777, path.display());
    if about.is_file() && mode & 0o044 != 0 {
        note(&format!(
            "warning: other users can read the key file {shown} (mode {mode:03o}). Next: chmod 600 \
             {shown}"
        ));
    }
    let mut secret = Secret::zeroed(SECRET_BYTES_MAX + 1)?;
    let len = read_all(&mut file, secret.bytes_mut()).map_err(refuse)?;
    cut(secret, len, source)
}

fn denied(words: impl Into<String>) -> Error {
    Error::new(ErrorKind::Denied, words)
}

/// Reads a secret file of at most `most` bytes into locked memory.
///
/// # Errors
/// Errors of the system; `Limit` if the file is longer than `most` bytes.
pub fn read(path: &Path, most: usize) -> Result<Secret> {
    let failed = |error: io::Error| Error::io(&error, path.display());
    let mut file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    // The length of a pipe is unknown before its end.
    let length = if found.is_file() { found.len() } else { most as u64 };
    let room = usize::try_from(length).unwrap_or(usize::MAX).min(most) + 1;
    let mut secret = Secret::zeroed(room)?;
    let len = read_all(&mut file, secret.bytes_mut()).map_err(failed)?;
    if len == room {
        bail!(Limit, "{}: the file is longer than the limit of {} bytes", path.display(), room - 1);
    }
    secret.truncate(len);
    Ok(secret)
}

fn read_all(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match file.read(&mut into[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A pipe that its writer keeps open: all written bytes have been read.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && len > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn cut(mut secret: Secret, len: usize, source: &KeySource) -> Result<Secret> {
    if len > SECRET_BYTES_MAX {
        let why = format!("key {source}: the key is longer than {SECRET_BYTES_MAX} bytes");
        return Err(denied(why).next("name a file that holds only the key"));
    }
    secret.truncate(len);
    Ok(secret)
}

fn descriptor(number: RawFd) -> Result<Secret> {
    let source = KeySource::Fd(number);
    let refuse = |error: io::Error| {
        let next = match error.raw_os_error() {
            Some(libc::EBADF) => {
                format!("start this process with the key on descriptor {number}: {number}<FILE")
            }
            _ => "name another key source".to_owned(),
        };
        denied(format!("key {source}: {error}")).next(next.to_string())
    };
    let mut secret = Secret::zeroed(SECRET_BYTES_MAX + 1)?;
    let mut len = 0;
    while len < secret.bytes().len() {
        match next_bytes(number, &mut secret.bytes_mut()[len..], WRITER_WAIT).map_err(refuse)? {
            0 => break,
            more => len += more,
        }
    }
    cut(secret, len, &source)
}

/// Reads the next bytes from a descriptor, after a wait of at most `limit`. Returns 0 at its end.
fn next_bytes(fd: RawFd, into: &mut [u8], limit: Duration) -> io::Result<usize> {
    const LOOK: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    while !sys::readable(fd, LOOK)? {
        if sys::has_stop_signal() {
            return Err(io::Error::other("reading the key was interrupted by a stop signal"));
        }
        if begun.elapsed() > limit {
            let why = format!("no bytes arrived within {} s", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
    sys::read(fd, into)
}

fn ask(wanted: &Wanted) -> Result<Secret> {
    let Some(_quiet) = sys::Quiet::terminal() else {
        let why = format!("{}: this process has no terminal for the prompt", wanted.prompt);
        return Err(denied(why).next("use \"file:PATH\", \"fd:NUMBER\" or \"credential:NAME\""));
    };
    let once = line(&wanted.prompt)?;
    if !wanted.twice {
        return Ok(once);
    }
    let mut one = once;
    for _ in 0..TWICE_TRIES {
        if one.same(&line("repeat the passphrase")?) {
            return Ok(one);
        }
        eprintln!("the two passphrases differ; enter the new passphrase again");
        one = line(&wanted.prompt)?;
    }
    Err(denied("the repeated passphrases differed each time; nothing was changed"))
}

/// Reads a line from the terminal, without the line end.
fn line(prompt: &str) -> Result<Secret> {
    eprint!("{prompt}: ");
    // A terminal that cannot be written to shows no prompt; it can be read all the same.
    let _ = io::stderr().flush();
    let mut secret = Secret::zeroed(SECRET_BYTES_MAX + 1)?;
    let mut len = 0;
    let read = loop {
        match next_bytes(sys::STDIN, &mut secret.bytes_mut()[len..], PERSON_WAIT) {
            Ok(0) => break Ok(()),
            Ok(more) => len += more,
            Err(error) => break Err(denied(format!("{prompt}: {error}"))),
        }
        if secret.bytes()[..len].ends_with(b"\n") || len > SECRET_BYTES_MAX {
            break Ok(());
        }
    };
    eprintln!();
    read?;
    Ok(cut(secret, len, &KeySource::Ask)?.without_newline())
}
