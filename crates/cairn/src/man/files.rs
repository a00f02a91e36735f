//! The files and environment variables of the program, for manual pages.

/// A file, and its purpose in Markdown.
pub type File = (&'static str, &'static str);

/// A spec, in any directory.
pub const SPEC: File = ("NAME.toml", "A spec: `cairn-spec`(5).");

/// The directory of all sockets.
pub const RUNTIME: File = (
    "$XDG_RUNTIME_DIR/cairn, /run/cairn, /tmp/cairn-UID",
    "The runtime directory, below RUNTIME: the first if XDG_RUNTIME_DIR is a directory of this user and not \
     /run/user/0, else the second for root and the third for others. It has mode 0700. An existing directory that \
     other users could write is refused.",
);

/// The default socket for NBD clients.
pub const SOCKET: File =
    ("RUNTIME/NAME.sock", "The socket for NBD clients of a graph whose spec has no address.");

/// The socket for commands to a graph.
pub const CONTROL: File = (
    "RUNTIME/control/NAME-PID.sock",
    "The control socket of a running graph, of mode 0600. Commands find running graphs by these sockets.",
);

/// The socket for commands to a daemon.
pub const DAEMON: File = ("RUNTIME/daemon.sock", "The control socket of a daemon.");

/// The directory that a daemon shares with its workers.
pub const KEEPER: File =
    ("RUNTIME/keeper/", "Sockets and lock files between a daemon and its workers.");

/// The directory of local state.
pub const STATE: File = (
    "/var/lib/cairn, $XDG_STATE_HOME/cairn, ~/.local/state/cairn",
    "The state directory of a daemon, with a record of each graph that it keeps: the first for root, else the second or \
     the third. `--state` chooses another.",
);

/// The device of an attached export.
pub const DEVICE: File = ("/dev/cairn/NAME", "The block device of an attached export.");

/// The parts of attached devices.
pub const ATTACH: File =
    ("/run/cairn/attach/", "Mount points and sockets of attached devices, for root only.");

/// The devices of the kernel for attached exports.
pub const FUSE: File =
    ("/dev/fuse, /dev/loop-control", "Needed to attach an export with `--by fuse`.");

/// The file of a secret from systemd.
pub const CREDENTIAL: File = (
    "$CREDENTIALS_DIRECTORY/NAME",
    "The secret of a key with the source `credential:NAME`. systemd sets the directory.",
);

/// The files of verbs that ask running graphs.
pub const LIVE: &[File] = &[CONTROL, RUNTIME];

/// All files.
pub const ALL: &[File] =
    &[SPEC, RUNTIME, SOCKET, CONTROL, DAEMON, KEEPER, STATE, DEVICE, ATTACH, FUSE, CREDENTIAL];

/// The environment variables that the program reads or sets, each with its purpose.
pub const VARIABLES: &[(&str, &str)] = &[
    ("XDG_RUNTIME_DIR", "The directory that contains the runtime directory. See FILES."),
    (
        "XDG_STATE_HOME, HOME",
        "The directory that contains the state directory of a daemon. See FILES.",
    ),
    ("CREDENTIALS_DIRECTORY", "The directory of secrets with the source `credential:NAME`."),
    (
        "NOTIFY_SOCKET",
        "The socket of the service manager. `serve` and `daemon` report there when they are ready and when they stop, \
         and leave their descriptors to the next process.",
    ),
    (
        "LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES",
        "Descriptors from the service manager: sockets that are already open, and those that an earlier process left.",
    ),
    (
        "WATCHDOG_USEC, WATCHDOG_PID",
        "The time after which the service manager restarts a process that is silent.",
    ),
    (
        "uri, unixsocket, size",
        "Set for the command of `serve --run`: facts about the first export.",
    ),
    (
        "CAIRN_COMPLETE",
        "The shell for which the program prints completions, instead of running a verb. The scripts of \
         `cairn completions` set it.",
    ),
];

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::place;

    #[test]
    fn files_of_manual_are_those_of_program() {
        let shown = |path: PathBuf| path.display().to_string();
        let own = rustix::process::geteuid().as_raw().to_string();
        let default = shown(place::directory_of(None)).replace(&own, "UID");
        assert!(RUNTIME.0.contains(&default), "{default}");
        let below = |path: PathBuf| {
            let path = path.strip_prefix(place::directory()).unwrap().to_owned();
            format!("RUNTIME/{}", path.display())
        };
        assert_eq!(CONTROL.0, below(place::control_of("NAME", 7)).replace('7', "PID"));
        assert_eq!(DAEMON.0, below(place::daemon()));
        assert_eq!(KEEPER.0, below(place::keeper()) + "/");
        assert_eq!(DEVICE.0, format!("{}/NAME", attach::DEVICES));
        assert_eq!(ATTACH.0, format!("{}/", attach::RUNTIME));
        if rustix::process::geteuid().is_root() {
            assert!(STATE.0.contains(&shown(place::state())));
        }
    }

    /// Searches the sources for variables that the program reads.
    #[test]
    fn variables_of_manual_are_those_of_program() {
        let sources = [
            include_str!("../place.rs"),
            include_str!("../serve/process.rs"),
            include_str!("../complete/mod.rs"),
            include_str!("../serve/command.rs"),
        ];
        let listed: Vec<_> = VARIABLES.iter().flat_map(|(names, _)| names.split(", ")).collect();
        for name in ["var_os(\"", "absolute(\"", "variable(\"", "VARIABLE: &str = \"", ".env(\""] {
            for source in sources {
                for found in source.split(name).skip(1) {
                    let variable = found.split('"').next().unwrap();
                    assert!(listed.contains(&variable), "the manual does not list {variable}");
                }
            }
        }
    }
}
