//! The facts about each verb that its definition does not contain: exit codes, files, examples, related pages.

use super::files::{
    ATTACH, CONTROL, CREDENTIAL, DAEMON, DEVICE, FUSE, File, KEEPER, LIVE, RUNTIME, SOCKET, SPEC,
    STATE,
};
use crate::exit::Exit::{self, Damaged, Degraded, InUse, NotFound, Spec, Unflushed, Unsupported};

/// The facts about a verb for its manual page.
pub struct VerbPage {
    /// The words of the verb: `device fail`.
    pub verb: &'static str,
    /// The exit codes that the verb may end with, besides the common ones.
    pub exits: &'static [Exit],
    /// The files that the verb uses.
    pub files: &'static [File],
    /// Commands, each with its effect.
    pub examples: &'static [(&'static str, &'static str)],
    /// Names of related pages, each with its section. The page of `cairn`, and those of verbs above and below, come in
    /// addition.
    pub see: &'static [&'static str],
}

/// Exit codes of verbs that read the state of running graphs.
const READS: &[Exit] = &[NotFound, Unsupported, Damaged];

/// Exit codes of verbs that change running graphs.
const CHANGES: &[Exit] = &[Spec, NotFound, InUse, Unsupported, Degraded, Damaged];

/// Exit codes of verbs that serve a graph, or let a daemon serve one.
const SERVES: &[Exit] = &[Spec, NotFound, InUse, Unsupported, Degraded, Damaged, Unflushed];

/// Files of verbs that serve a graph.
const SERVING: &[File] = &[SPEC, RUNTIME, SOCKET, CONTROL, DEVICE, ATTACH, FUSE, CREDENTIAL];

/// Files of verbs that a daemon may carry out.
const KEPT: &[File] = &[SPEC, CONTROL, DAEMON, RUNTIME, CREDENTIAL];

/// The pages of clients of NBD servers.
const CLIENTS: [&str; 4] = ["nbdinfo(1)", "nbdcopy(1)", "qemu-img(1)", "fio(1)"];

/// The facts about all verbs, in the order of the command line. A test compares them with the definitions of verbs.
pub const VERBS: &[VerbPage] = &[
    VerbPage {
        verb: "create",
        exits: &[NotFound, InUse, Unsupported],
        files: &[],
        examples: &[("cairn create disk.img 10G", "Creates a sparse file of 10 GiB, a raw disk.")],
        see: &["cairn-serve(1)", "cairn-info(1)", "truncate(1)", "qemu-img(1)"],
    },
    VerbPage {
        verb: "info",
        exits: CHANGES,
        files: &[],
        examples: &[
            ("cairn info disk.img", "Shows size, format, label and user of a file."),
            (
                "cairn info 'nbd+unix:///vol?socket=/run/cairn/home.sock'",
                "Shows the facts that an NBD server reports about its export `vol`.",
            ),
        ],
        see: &["cairn-check(1)", "nbdinfo(1)", "qemu-img(1)", "blkid(8)"],
    },
    VerbPage {
        verb: "serve",
        exits: SERVES,
        files: SERVING,
        examples: &[
            ("cairn serve disk.img", "Serves all bytes of a file as the export `vol`."),
            (
                "cairn serve home.toml --dry-run",
                "Shows the effect of a start on each disk, and the addresses.",
            ),
            (
                "cairn serve home.toml --degraded",
                "Starts without a missing disk whose data other disks have.",
            ),
            (
                "cairn serve home.toml --run 'nbdinfo \"$uri\"'",
                "Serves while another command runs, and ends with its exit status.",
            ),
        ],
        see: &[
            "cairn-spec(5)",
            "cairn-daemon(1)",
            "cairn-validate(1)",
            CLIENTS[0],
            CLIENTS[2],
            CLIENTS[3],
        ],
    },
    VerbPage {
        verb: "import",
        exits: SERVES,
        files: &[RUNTIME, SOCKET, CONTROL, DAEMON, CREDENTIAL],
        examples: &[
            ("sudo cairn import", "Lists the graphs on the disks of this machine."),
            (
                "sudo cairn import home",
                "Serves the graph `home` from its labels, without its spec.",
            ),
            (
                "sudo cairn import home --take --key safe=file:/root/safe.key",
                "Opens disks that another machine had open, with a key from a file.",
            ),
        ],
        see: &["cairn-check(1)", "cairn-repair(1)", "cairn-daemon(1)"],
    },
    VerbPage {
        verb: "daemon",
        exits: SERVES,
        files: &[RUNTIME, DAEMON, CONTROL, KEEPER, STATE],
        examples: &[
            (
                "sudo cairn daemon",
                "Serves the graphs that `cairn apply` and `cairn import` bring up.",
            ),
            (
                "sudo cairn daemon --replace",
                "Replaces the running daemon and its workers by this version of the program.",
            ),
            (
                "sudo cairn daemon --metrics 127.0.0.1:9810",
                "Also answers Prometheus at a port of this machine.",
            ),
        ],
        see: &[
            "cairn-apply(1)",
            "cairn-import(1)",
            "cairn-stop(1)",
            "cairn-status(1)",
            "systemd.service(5)",
        ],
    },
    VerbPage {
        verb: "stop",
        exits: SERVES,
        files: &[DAEMON, CONTROL, RUNTIME, STATE],
        examples: &[(
            "sudo cairn stop home --yes",
            "Closes the graph `home`, even if it has clients.",
        )],
        see: &["cairn-daemon(1)", "cairn-detach(1)"],
    },
    VerbPage {
        verb: "validate",
        exits: CHANGES,
        files: &[SPEC],
        examples: &[(
            "cairn validate home.toml",
            "Shows every fault of a spec, or size and redundancy of its exports.",
        )],
        see: &["cairn-spec(5)", "cairn-show(1)", "cairn-diff(1)"],
    },
    VerbPage {
        verb: "diff",
        exits: CHANGES,
        files: &[SPEC, CONTROL, RUNTIME],
        examples: &[(
            "cairn diff home.toml",
            "Shows the changes that `cairn apply home.toml` would make.",
        )],
        see: &["cairn-apply(1)", "cairn-spec(5)"],
    },
    VerbPage {
        verb: "apply",
        exits: SERVES,
        files: KEPT,
        examples: &[
            ("sudo cairn apply home.toml --dry-run", "Shows the changes, and makes none."),
            (
                "sudo cairn apply home.toml",
                "Brings the graph up under a daemon, or changes the running one.",
            ),
            (
                "sudo cairn apply safe.toml --move --speed 100MiB --wait",
                "Moves the bytes of an export to their new place while clients use them.",
            ),
        ],
        see: &[
            "cairn-spec(5)",
            "cairn-diff(1)",
            "cairn-undo(1)",
            "cairn-job(1)",
            "cairn-daemon(1)",
        ],
    },
    VerbPage {
        verb: "undo",
        exits: SERVES,
        files: &[CONTROL, RUNTIME],
        examples: &[
            ("sudo cairn undo home --list", "Lists the earlier specs of the graph."),
            ("sudo cairn undo home", "Undoes the last change."),
        ],
        see: &["cairn-apply(1)", "cairn-diff(1)"],
    },
    VerbPage {
        verb: "show",
        exits: CHANGES,
        files: &[SPEC, CONTROL, RUNTIME],
        examples: &[
            ("cairn show home.toml", "Shows a spec with every default filled in."),
            ("cairn show home", "Shows the spec of a running graph."),
        ],
        see: &["cairn-spec(5)", "cairn-graph(1)", "cairn-validate(1)"],
    },
    VerbPage {
        verb: "ls",
        exits: READS,
        files: LIVE,
        examples: &[("cairn ls", "Lists running graphs and the URIs of their exports.")],
        see: &["cairn-status(1)", "cairn-graph(1)", CLIENTS[0], CLIENTS[1]],
    },
    VerbPage {
        verb: "status",
        exits: &[NotFound, Unsupported, Degraded, Damaged],
        files: &[CONTROL, DAEMON, RUNTIME],
        examples: &[
            ("cairn status", "Reports the state of every graph, and the next command to type."),
            ("cairn status --all home", "Also the counters and the rows of each device."),
            ("cairn -o json status home", "The same about one graph, for a program."),
        ],
        see: &["cairn-events(1)", "cairn-top(1)", "cairn-check(1)"],
    },
    VerbPage {
        verb: "graph",
        exits: CHANGES,
        files: &[SPEC, CONTROL, RUNTIME],
        examples: &[
            ("cairn graph home", "Draws a running graph."),
            ("cairn graph home.toml --svg", "Prints a picture of a spec."),
        ],
        see: &["cairn-show(1)", "cairn-locate(1)", "dot(1)"],
    },
    VerbPage {
        verb: "top",
        exits: READS,
        files: LIVE,
        examples: &[
            ("cairn top", "Shows the rates of each device, each second."),
            ("cairn top home --once --interval 10s", "Prints one table, over ten seconds."),
        ],
        see: &["cairn-status(1)", "cairn-bench(1)", "iostat(1)"],
    },
    VerbPage {
        verb: "locate",
        exits: READS,
        files: LIVE,
        examples: &[(
            "cairn locate home/vol 5GiB",
            "Shows where this byte of the export `vol` lies on the disks.",
        )],
        see: &["cairn-graph(1)", "filefrag(8)"],
    },
    VerbPage {
        verb: "attach",
        exits: SERVES,
        files: &[DEVICE, ATTACH, FUSE, CONTROL, RUNTIME],
        examples: &[
            (
                "sudo cairn attach home",
                "Makes the export `home` the block device `/dev/cairn/home`.",
            ),
            (
                "sudo cairn attach 'nbd+unix:///vol?socket=/run/other.sock' --name far",
                "Attaches an export of any NBD server.",
            ),
        ],
        see: &["cairn-detach(1)", "losetup(8)", "nbd-client(8)", "mount(8)"],
    },
    VerbPage {
        verb: "detach",
        exits: SERVES,
        files: &[DEVICE, ATTACH, CONTROL, RUNTIME],
        examples: &[("sudo cairn detach home", "Flushes and removes `/dev/cairn/home`.")],
        see: &["cairn-attach(1)", "umount(8)"],
    },
    VerbPage {
        verb: "device",
        exits: CHANGES,
        files: LIVE,
        examples: &[],
        see: &["cairn-status(1)", "cairn-apply(1)", "cairn-spec(5)"],
    },
    VerbPage {
        verb: "device fail",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn device fail pair/b --yes",
            "Takes the member `b` of the device `pair` out of service.",
        )],
        see: &["cairn-device-resync(1)", "cairn-device-replace(1)", "cairn-status(1)"],
    },
    VerbPage {
        verb: "device resync",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn device resync pair/b --wait",
            "Copies to `b` what it misses, and shows the progress.",
        )],
        see: &["cairn-device-fail(1)", "cairn-job(1)"],
    },
    VerbPage {
        verb: "device scrub",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            (
                "sudo cairn device scrub pair --wait",
                "Reads and compares all copies, and shows the result.",
            ),
            (
                "sudo cairn device scrub pair --repair --trust b",
                "Gives all copies the bytes of the member b where they differ.",
            ),
            ("sudo cairn device scrub pair --stop", "Ends the scrub."),
        ],
        see: &["cairn-status(1)", "cairn-check(1)"],
    },
    VerbPage {
        verb: "device insert",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn device insert pair/c /dev/disk/by-id/ata-ST2000-C",
            "Adds a disk as the member `c`, and copies all data to it.",
        )],
        see: &["cairn-device-replace(1)", "cairn-device-remove(1)", "cairn-apply(1)"],
    },
    VerbPage {
        verb: "device replace",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn device replace home/b /dev/disk/by-id/ata-ST2000-C --wait",
            "Replaces the disk of the member `b` of the graph `home`.",
        )],
        see: &["cairn-device-insert(1)", "cairn-device-fail(1)", "cairn-status(1)"],
    },
    VerbPage {
        verb: "device remove",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn device remove pair/b --dry-run",
            "Shows the changes that removing `b` would make.",
        )],
        see: &["cairn-device-insert(1)", "cairn-apply(1)"],
    },
    VerbPage {
        verb: "device resize",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("sudo cairn device resize a", "Lets the graph use all of a disk that has grown."),
            ("sudo cairn device resize a 20GiB", "Extends the file of the disk first."),
        ],
        see: &["cairn-apply(1)", "resize2fs(8)"],
    },
    VerbPage {
        verb: "vdisk",
        exits: CHANGES,
        files: LIVE,
        examples: &[],
        see: &["cairn-spec(5)", "cairn-attach(1)"],
    },
    VerbPage {
        verb: "vdisk create",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "cairn vdisk create vms/gold 40G",
            "Makes an empty virtual disk in the pool `vms`, and prints its address for clients.",
        )],
        see: &["cairn-vdisk-snap(1)", "cairn-attach(1)"],
    },
    VerbPage {
        verb: "vdisk ls",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("cairn vdisk ls", "Lists the virtual disks of all pools."),
            ("cairn vdisk ls vms/gold", "Lists the snapshots of one."),
            ("cairn vdisk ls vms --shared", "Also shows what each shares with its origin."),
        ],
        see: &["cairn-ls(1)", "cairn-status(1)"],
    },
    VerbPage {
        verb: "vdisk snap",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("cairn vdisk snap vms/gold@v1", "Takes a snapshot with the label `v1`."),
            ("cairn vdisk snap vms/db vms/log", "Takes snapshots of two at one instant."),
            ("cairn vdisk snap vms/db --every 10ms", "Takes one every 10 ms from now on."),
        ],
        see: &["cairn-vdisk-clone(1)", "cairn-vdisk-keep(1)", "cairn-vdisk-rm(1)"],
    },
    VerbPage {
        verb: "vdisk clone",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("cairn vdisk clone vms/gold@v1 vms/web", "Makes one virtual disk of a snapshot."),
            (
                "cairn vdisk clone vms/gold@v1 'vms/job-{n}' --count 1000",
                "Makes a thousand, without copying a byte.",
            ),
        ],
        see: &["cairn-vdisk-snap(1)", "cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "vdisk rollback",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("cairn vdisk rollback vms/db@monday", "Goes back to the state of Monday."),
            ("cairn vdisk rollback vms/db@18", "Goes forward again, to what the rollback kept."),
        ],
        see: &["cairn-vdisk-snap(1)", "cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "vdisk keep",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            ("cairn vdisk keep vms/db --last 100", "Keeps the last 100 snapshots, now and later."),
            (
                "cairn vdisk keep vms/db --last 60 --each 1h",
                "Also keeps the first snapshot of each hour.",
            ),
        ],
        see: &["cairn-vdisk-snap(1)", "cairn-vdisk-label(1)"],
    },
    VerbPage {
        verb: "vdisk label",
        exits: CHANGES,
        files: LIVE,
        examples: &[("cairn vdisk label vms/db@17 good", "The snapshot is `vms/db@good` as well.")],
        see: &["cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "vdisk tree",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "cairn vdisk tree vms",
            "Draws the virtual disks of a pool, their snapshots and clones.",
        )],
        see: &["cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "vdisk resize",
        exits: CHANGES,
        files: LIVE,
        examples: &[("cairn vdisk resize vms/web 80G", "Makes a virtual disk larger.")],
        see: &["cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "vdisk rm",
        exits: CHANGES,
        files: LIVE,
        examples: &[
            (
                "cairn vdisk rm vms/web",
                "Removes a virtual disk and its snapshots, after a question.",
            ),
            ("cairn vdisk rm vms/gold@v1 --yes", "Removes one snapshot without one."),
        ],
        see: &["cairn-vdisk-ls(1)"],
    },
    VerbPage {
        verb: "job",
        exits: CHANGES,
        files: LIVE,
        examples: &[],
        see: &["cairn-apply(1)", "cairn-device-resync(1)"],
    },
    VerbPage {
        verb: "job ls",
        exits: READS,
        files: LIVE,
        examples: &[("cairn job ls", "Lists the jobs of all running graphs.")],
        see: &["cairn-status(1)"],
    },
    VerbPage {
        verb: "job watch",
        exits: READS,
        files: LIVE,
        examples: &[("cairn job watch 7", "Shows the progress of job 7 until it ends.")],
        see: &["cairn-job-pause(1)", "cairn-job-cancel(1)"],
    },
    VerbPage {
        verb: "job pause",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn job pause home/safe-move",
            "Pauses a migration, also across restarts.",
        )],
        see: &["cairn-job-resume(1)"],
    },
    VerbPage {
        verb: "job resume",
        exits: CHANGES,
        files: LIVE,
        examples: &[("sudo cairn job resume home/safe-move", "Continues a paused migration.")],
        see: &["cairn-job-pause(1)"],
    },
    VerbPage {
        verb: "job cancel",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn job cancel home/safe-move",
            "Moves all bytes back to their old place.",
        )],
        see: &["cairn-job-watch(1)", "cairn-undo(1)"],
    },
    VerbPage {
        verb: "events",
        exits: READS,
        files: LIVE,
        examples: &[("cairn events --follow", "Prints events of devices as they happen.")],
        see: &["cairn-status(1)", "cairn-spec(5)"],
    },
    VerbPage {
        verb: "key",
        exits: CHANGES,
        files: &[CONTROL, RUNTIME, CREDENTIAL],
        examples: &[],
        see: &["cairn-spec(5)", "cryptsetup(8)"],
    },
    VerbPage {
        verb: "key ls",
        exits: CHANGES,
        files: LIVE,
        examples: &[("sudo cairn key ls safe", "Lists the used key slots of the device `safe`.")],
        see: &["cairn-key-add(1)"],
    },
    VerbPage {
        verb: "key add",
        exits: CHANGES,
        files: &[CONTROL, RUNTIME, CREDENTIAL],
        examples: &[
            (
                "sudo cairn key add safe --label laptop",
                "Asks for a present and for a new passphrase.",
            ),
            (
                "sudo cairn key add home/safe --key file:/root/old.key --new-key file:/root/new.key",
                "Reads both from files.",
            ),
        ],
        see: &["cairn-key-rm(1)", "cairn-key-change(1)"],
    },
    VerbPage {
        verb: "key rm",
        exits: CHANGES,
        files: LIVE,
        examples: &[(
            "sudo cairn key rm safe 1",
            "Empties slot 1: its passphrase no longer opens the device.",
        )],
        see: &["cairn-key-ls(1)", "cairn-key-add(1)"],
    },
    VerbPage {
        verb: "key change",
        exits: CHANGES,
        files: &[CONTROL, RUNTIME, CREDENTIAL],
        examples: &[(
            "sudo cairn key change safe",
            "Asks for a passphrase and for the one in its place.",
        )],
        see: &["cairn-key-add(1)"],
    },
    VerbPage {
        verb: "check",
        exits: CHANGES,
        files: &[SPEC, CONTROL, RUNTIME],
        examples: &[
            (
                "sudo cairn check",
                "Checks the labels of running graphs, and of all disks that are found.",
            ),
            (
                "sudo cairn check home --directory /srv",
                "Checks one graph, and also searches the files of a directory.",
            ),
        ],
        see: &["cairn-repair(1)", "cairn-device-scrub(1)", "cairn-import(1)"],
    },
    VerbPage {
        verb: "repair",
        exits: CHANGES,
        files: &[SPEC, CONTROL, RUNTIME],
        examples: &[
            ("sudo cairn repair --plan", "Shows the labels that a repair would write."),
            ("sudo cairn repair home --yes", "Writes the damaged labels of one graph anew."),
        ],
        see: &["cairn-check(1)", "cairn-import(1)"],
    },
    VerbPage {
        verb: "wipe",
        exits: CHANGES,
        files: &[],
        examples: &[(
            "sudo cairn wipe /dev/disk/by-id/ata-ST2000-B --dry-run",
            "Shows what would be removed from a disk.",
        )],
        see: &["cairn-info(1)", "wipefs(8)"],
    },
    VerbPage {
        verb: "kinds",
        exits: &[NotFound],
        files: &[],
        examples: &[
            ("cairn kinds", "Lists all kinds of disks and devices."),
            ("cairn kinds file", "Shows the manual of one kind."),
        ],
        see: &["cairn-spec(5)"],
    },
    VerbPage {
        verb: "bench",
        exits: CHANGES,
        files: &[],
        examples: &[(
            "cairn bench 'nbd+unix:///vol?socket=/run/cairn/home.sock' nbd://127.0.0.1/other",
            "Measures reads of two exports in turn.",
        )],
        see: &["cairn-top(1)", CLIENTS[3]],
    },
    VerbPage {
        verb: "completions",
        exits: &[],
        files: &[
            ("/usr/share/bash-completion/completions/cairn", "The place of the script for bash."),
            ("/usr/share/zsh/site-functions/_cairn", "The place of the script for zsh."),
            (
                "/usr/share/fish/vendor_completions.d/cairn.fish",
                "The place of the script for fish.",
            ),
        ],
        examples: &[("cairn completions bash", "Prints the script for bash.")],
        see: &["bash(1)", "zsh(1)", "fish(1)"],
    },
    VerbPage {
        verb: "man",
        exits: &[NotFound, InUse],
        files: &[
            ("/usr/share/man/man1/", "The place of the pages of verbs."),
            ("/usr/share/man/man5/", "The place of `cairn-spec.5`."),
        ],
        examples: &[
            ("cairn man pages", "Writes all pages into the directory `pages`."),
            ("cairn man --page cairn-spec.5", "Prints the page about specs."),
        ],
        see: &["cairn-spec(5)", "man(1)"],
    },
];
