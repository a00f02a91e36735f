//! Thin wrappers of system calls: numbers as arguments, `io::Result` as result. Also [`Call`], a system call of an
//! operation, which the ring submits or [`perform`] makes.
//!
//! One of the few modules with unsafe code.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::net::SocketAddrAny;

/// One system call of an operation. The operation's slot keeps the pointers valid until the kernel has completed the
/// call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Read {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
        offset: u64,
        /// Whether the kernel might sleep when it accepts the call. Such a call must not be made on the core's
        /// thread.
        apart: bool,
    },
    Write {
        fd: RawFd,
        ptr: *const u8,
        len: u32,
        offset: u64,
        dsync: bool,
        apart: bool,
    },
    Fsync {
        fd: RawFd,
    },
    Fallocate {
        fd: RawFd,
        mode: c_int,
        offset: u64,
        len: u64,
    },
    Recv {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
    },
    Send {
        fd: RawFd,
        msg: *const libc::msghdr,
    },
    Accept {
        fd: RawFd,
    },
    Connect {
        fd: RawFd,
        addr: *const SocketAddrAny,
    },
    /// A read of one item of a stream: an eventfd or a signalfd.
    Next {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
    },
    /// A wait until the descriptor has bytes to read, or its stream has ended.
    Ready {
        fd: RawFd,
    },
}

// SAFETY: a call is numbers; a thread that performs it keeps the memory behind its pointers alive.
unsafe impl Send for Call {}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> i32 {
    if result < 0 { -last_errno() } else { result as i32 }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the socket from the result of an accept that has completed, as its owner.
pub(crate) fn accepted(fd: i32) -> OwnedFd {
    // SAFETY: as the result of an accept it is fresh, and its one completion is taken once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes the system call `call` on this thread. Returns the number of bytes moved, or a negative errno.
///
/// # Safety
/// The call's pointers must be valid for its lengths, and no other code may use the memory during the call.
pub(crate) unsafe fn perform(call: Call) -> i32 {
    match call {
        Call::Read { fd, ptr, len, offset, .. } => {
            let part = libc::iovec { iov_base: ptr.cast(), iov_len: len as usize };
            // SAFETY: one valid part, by the contract above.
            check_size(unsafe { libc::preadv2(fd, &raw const part, 1, offset as i64, 0) })
        }
        Call::Write { fd, ptr, len, offset, dsync, .. } => {
            let part = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len as usize };
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            // SAFETY: one valid part, which the kernel only reads.
            check_size(unsafe { libc::pwritev2(fd, &raw const part, 1, offset as i64, flags) })
        }
        Call::Fsync { fd } => {
            // SAFETY: no memory is passed.
            check_size(unsafe { libc::fdatasync(fd) } as isize)
        }
        Call::Fallocate { fd, mode, offset, len } => {
            // SAFETY: no memory is passed.
            check_size(unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) } as isize)
        }
        Call::Recv { fd, ptr, len } => {
            // SAFETY: valid memory, by the contract above.
            check_size(unsafe { libc::recv(fd, ptr.cast(), len as usize, libc::MSG_DONTWAIT) })
        }
        Call::Send { fd, msg } => {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: a valid header with valid parts, by the contract above.
            check_size(unsafe { libc::sendmsg(fd, msg, flags) })
        }
        Call::Accept { fd } => {
            let none = std::ptr::null_mut();
            let flags = libc::SOCK_CLOEXEC;
            // SAFETY: no address is asked for.
            check_size(unsafe { libc::accept4(fd, none, std::ptr::null_mut(), flags) } as isize)
        }
        Call::Connect { fd, addr } => {
            // SAFETY: a valid address, by the contract above.
            let addr = unsafe { &*addr };
            // SAFETY: as above, with its own length.
            let result = unsafe { libc::connect(fd, addr.as_ptr().cast(), addr.addr_len()) };
            check_size(result as isize)
        }
        Call::Next { fd, ptr, len } => {
            // SAFETY: valid memory, by the contract above.
            check_size(unsafe { libc::read(fd, ptr.cast(), len as usize) })
        }
        Call::Ready { fd } => {
            let mut polls = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            match poll(&mut polls, None) {
                Ok(_) => i32::from(polls[0].revents),
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            }
        }
    }
}

/// Opens the file at `path` with these flags, and with `mode` if it is created.
pub(crate) fn open(path: &Path, flags: c_int, mode: u32) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated string that lives over the call.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

/// Returns the alignments of offsets and of memory that O_DIRECT needs for the file; `None` if the kernel does not
/// report them.
pub(crate) fn direct_align(file: &OwnedFd) -> Option<(u32, u32)> {
    let mask = StatxFlags::DIOALIGN;
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, mask).ok()?;
    (stat.stx_mask & mask.bits() != 0 && stat.stx_dio_offset_align != 0)
        .then_some((stat.stx_dio_offset_align, stat.stx_dio_mem_align))
}

/// Returns the size and the logical block size of a block device, in bytes.
pub(crate) fn device_size(fd: RawFd) -> io::Result<(u64, u32)> {
    // BLKGETSIZE64: _IOR(0x12, 114, size_t), which the C library does not name everywhere.
    const GET_SIZE: u32 = 0x8008_1272;
    let (mut size, mut block) = (0u64, 0 as c_int);
    // SAFETY: both write one value of the type that is passed.
    check(unsafe { libc::ioctl(fd, GET_SIZE as libc::Ioctl, &raw mut size) })?;
    // SAFETY: as above.
    check(unsafe { libc::ioctl(fd, libc::BLKSSZGET, &raw mut block) })?;
    Ok((size, block as u32))
}

/// Locks the whole file `fd` with an open file description lock, without waiting.
pub(crate) fn lock(fd: RawFd, exclusive: bool) -> io::Result<()> {
    // SAFETY: zeros are a valid value: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    // SAFETY: reads the structure that is passed.
    check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

/// Moves the position of the file `fd` with `lseek`. Returns `None` if the file has no data or hole after `offset`.
pub(crate) fn seek(fd: RawFd, offset: u64, whence: c_int) -> io::Result<Option<u64>> {
    // SAFETY: no memory is passed.
    match unsafe { libc::lseek(fd, offset as i64, whence) } {
        found if found >= 0 => Ok(Some(found as u64)),
        _ if last_errno() == libc::ENXIO => Ok(None),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates an eventfd: a counter whose reader is woken when the counter grows.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })
}

/// Adds one to the eventfd `fd`, which wakes its reader.
pub(crate) fn ring_bell(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight valid bytes. It fails only if the counter is full, and then the reader is woken already.
    let _ = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Fills `into` with random bytes from the kernel. Early after boot the call waits until the kernel has good ones.
pub(crate) fn random_bytes(into: &mut [u8]) {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        // SAFETY: the rest of the slice.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got > 0 {
            done += got as usize;
        }
    }
}

/// Descriptor number of standard input.
pub(crate) const STDIN: RawFd = libc::STDIN_FILENO;

/// Reads the bytes that are available from `fd` into `into`.
pub(crate) fn read(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length of one slice.
    let got = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Whether a read of `fd` would return without waiting. Waits up to `limit` until it would.
pub(crate) fn readable(fd: RawFd, limit: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let limit_ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one entry.
    match unsafe { libc::poll(&raw mut poll, 1, limit_ms) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        _ if poll.revents & libc::POLLNVAL != 0 => Err(io::Error::from_raw_os_error(libc::EBADF)),
        ready => Ok(ready > 0),
    }
}

/// Whether the peer of the socket can send no bytes beyond those that have arrived. A FIN is enough: over TCP it is
/// the only sign that the peer's process was killed.
pub(crate) fn is_hung_up(fd: RawFd) -> bool {
    const ENDS: libc::c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let mut polls = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    let told = poll(&mut polls, Some(Duration::ZERO));
    told.is_ok_and(|is_ready| is_ready && polls[0].revents & ENDS != 0)
}

/// Returns the number of bytes in the socket's send queue, which the peer has not received yet; 0 if the kernel does not
/// report it.
pub(crate) fn unreceived_bytes(fd: RawFd) -> u64 {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int.
    let result = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes.max(0) as u64 } else { 0 }
}

const STOPS: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Whether a signal that ends a program (SIGINT, SIGTERM, SIGHUP) is pending and blocked.
pub(crate) fn has_stop_signal() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the kernel writes the set; when it cannot, the set is empty.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigpending(set.as_mut_ptr());
        STOPS.iter().any(|signal| libc::sigismember(set.as_ptr(), *signal) == 1)
    }
}

/// Guard that switches the echo of the terminal off. Signals are blocked until the echo is on again.
pub(crate) struct Quiet {
    terminal: libc::termios,
    signals: libc::sigset_t,
}

impl Quiet {
    /// Switches the echo of standard input off. Returns `None` if standard input is no terminal.
    pub(crate) fn terminal() -> Option<Self> {
        let mut terminal = MaybeUninit::uninit();
        // SAFETY: the call fills it if it returns 0.
        if unsafe { libc::tcgetattr(STDIN, terminal.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled just now.
        let terminal: libc::termios = unsafe { terminal.assume_init() };
        let stops = signal_set(&STOPS);
        let mut signals = signal_set(&[]);
        let mut quiet = terminal;
        quiet.c_lflag = quiet.c_lflag & !libc::ECHO | libc::ICANON | libc::ISIG;
        // SAFETY: both sets and the settings are initialized.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stops, &raw mut signals);
            libc::tcsetattr(STDIN, libc::TCSAFLUSH, &raw const quiet);
        }
        Some(Self { terminal, signals })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: restores the earlier values; a signal that came meanwhile is delivered by the second call.
        unsafe {
            libc::tcsetattr(STDIN, libc::TCSAFLUSH, &raw const self.terminal);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut());
        }
    }
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set, sigaddset changes it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks `signals` in this thread, and returns a descriptor from which they can be read.
pub(crate) fn signalfd(signals: &[c_int]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: a valid set, no old one wanted.
    let errno =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    // SAFETY: a valid set.
    owned(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) })
}

/// Signals that came while they were unblocked: one bit for each.
static CAME: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_signal(signal: c_int) {
    CAME.fetch_or(1 << signal, Ordering::SeqCst);
}

/// Blocks `signals` in this thread, or unblocks them again.
pub(crate) fn hold(signals: &[c_int; 3], is_held: bool) {
    let (set, how) =
        (signal_set(signals), if is_held { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK });
    // SAFETY: a valid set, no old one wanted. It fails only for an invalid `how`.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}

/// Runs `start` with `signals` unblocked in this thread. A signal that comes during `start` is recorded, and is
/// raised again when the signals are blocked.
pub(crate) fn let_through<T>(signals: &[c_int; 3], start: impl FnOnce() -> T) -> T {
    let set = signal_set(signals);
    let handler: extern "C" fn(c_int) = note_signal;
    let block = |how| {
        // SAFETY: a valid set, no old one wanted. It fails only for an invalid `how`.
        unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
    };
    let handle = |signal, with: libc::sighandler_t| {
        // SAFETY: the handler does nothing but change an atomic number.
        unsafe { libc::signal(signal, with) }
    };
    let mut handled = [libc::SIG_DFL; 3];
    for (&signal, before) in signals.iter().zip(&mut handled) {
        *before = handle(signal, handler as libc::sighandler_t);
        // A signal that is ignored here, as by nohup, must be ignored by the program too.
        if *before == libc::SIG_IGN {
            handle(signal, libc::SIG_IGN);
        }
    }
    block(libc::SIG_UNBLOCK);
    let started = start();
    block(libc::SIG_BLOCK);
    for (&signal, before) in signals.iter().zip(handled) {
        handle(signal, before);
    }
    let came = CAME.swap(0, Ordering::SeqCst);
    for &signal in signals.iter().filter(|signal| came >> **signal & 1 == 1) {
        // SAFETY: it is blocked in this thread, so it waits to be read.
        unsafe { libc::raise(signal) };
    }
    started
}

/// Blocks every signal in this thread, because only the threads of cores handle signals.
pub(crate) fn block_signals() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset fills the set; the old one is not wanted.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Waits until a descriptor in `polls` is ready, or until `limit`, if there is one. Returns whether a descriptor is
/// ready.
pub(crate) fn poll(
    polls: &mut [libc::pollfd],
    limit: Option<std::time::Duration>,
) -> io::Result<bool> {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = polls.len() as libc::nfds_t;
    // SAFETY: the slice with its own length, and a time that lives over the call.
    let ready = check(unsafe { libc::ppoll(polls.as_mut_ptr(), count, limit, std::ptr::null()) })?;
    Ok(ready > 0)
}

/// Returns the pending error of a socket, zero if there is none: the result of a nonblocking connect.
pub(crate) fn socket_error(fd: RawFd) -> i32 {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let into = (&raw mut value).cast();
    // SAFETY: room for one number of that length.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, into, &raw mut len) } {
        0 => value,
        _ => last_errno(),
    }
}

/// Returns the process id and the user id of the peer of a unix socket.
pub(crate) fn credentials(fd: RawFd) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut peer).cast();
    // SAFETY: room for the structure of that length.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len)
    })?;
    Ok((peer.pid, peer.uid))
}

/// Sets or clears status flags of the open file `fd`.
pub(crate) fn set_flags(fd: RawFd, flags: c_int, on: bool) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let now = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let wanted = if on { now | flags } else { now & !flags };
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, wanted) }).map(drop)
}

/// Makes calls on the open file `fd` nonblocking, or blocking.
pub(crate) fn set_nonblocking(fd: RawFd, nonblocking: bool) -> io::Result<()> {
    set_flags(fd, libc::O_NONBLOCK, nonblocking)
}

/// Returns the descriptor that the parent of this process passed to it, as its owner. Programs that are started later
/// do not inherit the descriptor.
///
/// # Errors
/// `EBADF` if no such descriptor is open.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and was passed by number for this process to own. The caller has checked the
    // purpose, and takes each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Removes the variables `names` from the environment, unless this process has other threads, which might read the
/// environment.
pub(crate) fn forget_variables(names: &[&str]) {
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if alone {
        for name in names {
            // SAFETY: there is no other thread that could look at the environment meanwhile.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// Mounts a FUSE file system on the directory `at`. Its requests can be read from the descriptor `device`.
pub(crate) fn mount_fuse(device: RawFd, at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: no memory is passed.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let options = format!(
        "fd={device},rootmode=40000,user_id={user},group_id={group},allow_other,default_permissions"
    );
    let options = CString::new(options)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let (source, kind) = (c"cairn".as_ptr(), c"fuse".as_ptr());
    // SAFETY: terminated strings that live over the call.
    check(unsafe { libc::mount(source, at.as_ptr(), kind, flags, options.as_ptr().cast()) })
        .map(drop)
}

/// Locks the memory of `bytes`, so that it is not swapped out.
pub(crate) fn lock_memory(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the slice's own pages; their content does not change.
    check(unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) }).map(drop)
}

/// Marks this thread as an I/O flusher, because writes of other processes may wait for it. If memory is short, the
/// kernel does not make such a thread wait for these writes.
pub(crate) fn set_io_flusher() -> io::Result<()> {
    // PR_SET_IO_FLUSHER, since Linux 5.6, which the C library does not name.
    const SET_IO_FLUSHER: c_int = 57;
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) }).map(drop)
}
