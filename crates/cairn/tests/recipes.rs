//! The recipes of `docs/recipes`: the blocks of each page run in order, unchanged, on a machine of the page's own.
//!
//! `docs/recipes/README.md` describes the forms of a block. A page is passed over where a package that it names is not
//! installed, or where this process may not make namespaces. With `RECIPES=all` that is a failure.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The longest time that one block may take: a debug build derives keys and copies disks in it, beside other tests.
const BLOCK_MAX: Duration = Duration::from_secs(300);

/// The beginning of the line that installs the packages of a page.
const INSTALL: &str = "apt install ";

/// The user of the pages that need no root.
const USER: &str = "alice";

/// Makes the image that two pages download. Its boot sector writes a line to the first serial port, then a sector of
/// the disk again and again, and a line when that fails.
const IMAGE: &str = r#"
code='\xfb\x31\xc0\x8e\xd8\xbe\x3d\x7c\xac\x84\xc0\x74\x06\xba\xf8\x03\xee\xeb\xf5'
code+='\xbe\x2d\x7c\xb4\x43\xb0\x00\xb2\x80\xcd\x13\x72\x03\xf4\xeb\xf0\xbe\x46\x7c\xf4\xeb\xdf'
code+='\x90\x90\x90\x90'
code+='\x10\x00\x01\x00\x00\x7c\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00'
printf "${code}booted\r\n\0I/O error\r\n\0" >sector
truncate -s 510 sector
printf '\x55\xaa' >>sector
truncate -s 2M sector
qemu-img convert -f raw -O qcow2 sector debian-12-nocloud-amd64.qcow2
"#;

#[test]
fn recipe_for_qemu_machine_runs_as_written() {
    Recipe { page: "qemu.md", user: USER, download: IMAGE }.run();
}

#[test]
fn recipe_for_libvirt_runs_as_written() {
    Recipe { page: "libvirt.md", user: "root", download: IMAGE }.run();
}

#[test]
fn recipe_for_postgresql_on_attached_mirror_runs_as_written() {
    Recipe { page: "postgresql.md", user: "root", download: "" }.run();
}

#[test]
fn recipe_for_encrypted_home_server_runs_as_written() {
    Recipe { page: "home-server.md", user: "root", download: "" }.run();
}

#[test]
fn recipe_for_move_to_another_machine_runs_as_written() {
    Recipe { page: "move-a-disk.md", user: "root", download: "" }.run();
}

#[test]
fn recipe_blocks_of_unknown_form_are_refused() {
    let refused = |text: &str| std::panic::catch_unwind(|| blocks(text)).is_err();
    assert!(!refused("```sh on=old exit=10\ntrue\n```\n```toml\n# /etc/a.toml\nb = 1\n```"));
    for text in ["```\ntrue\n```", "```sh quietly\ntrue\n```", "```toml\nb = 1\n```", "```sh\ntrue"]
    {
        assert!(refused(text), "{text}");
    }
}

#[test]
fn recipe_output_must_have_shown_lines_in_order() {
    let output = "vm  up.  process 17\n  a   in sync\n  b   in sync\n";
    assert_eq!(missing_line(output, "vm  up.  process ...\n...\n  b   in sync\n"), None);
    assert_eq!(missing_line(output, "  b   in sync\n  a   in sync\n"), Some("  a   in sync"));
    assert_eq!(missing_line(output, "  a   in\n"), Some("  a   in"));
}

/// A page of `docs/recipes`, and the circumstances of its test.
struct Recipe {
    page: &'static str,
    /// The user that runs its commands.
    user: &'static str,
    /// The command that takes the place of its block `not-run`.
    download: &'static str,
}

/// The form of a fenced block of a page.
#[derive(Debug)]
enum Form {
    /// Commands, the exit code of the last one, and whether the machine is started anew before them.
    Run { exit: i32, is_after_restart: bool },
    /// Commands that no test can run.
    NotRun,
    /// A file, and its path.
    File(String),
    /// Lines of the output of the commands before it.
    Shown,
}

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// Line number of its fence on the page.
    line: usize,
    machine: String,
    /// Another machine of the page that loses its power before.
    off: Option<String>,
    form: Form,
    text: String,
}

/// Returns the fenced blocks of the page `text`.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        let Some(fence) = line.strip_prefix("```") else { continue };
        let mut text = String::new();
        loop {
            let (_, line) = lines.next().expect("a block has an end");
            if line == "```" {
                break;
            }
            text += line;
            text.push('\n');
        }
        let mut words = fence.split_whitespace();
        let language = words.next().unwrap_or_default();
        let (mut machine, mut off, mut exit) = ("host", None, 0);
        let (mut is_after_restart, mut not_run) = (false, false);
        for word in words {
            match word.split_once('=') {
                Some(("on", name)) => machine = name,
                Some(("off", name)) => off = Some(name.to_owned()),
                Some(("exit", code)) => exit = code.parse().expect("an exit code"),
                None if word == "after-restart" => is_after_restart = true,
                None if word == "not-run" => not_run = true,
                _ => panic!("line {}: a block cannot be {word:?}", n + 1),
            }
        }
        let form = match language {
            "sh" if not_run => Form::NotRun,
            "sh" => Form::Run { exit, is_after_restart },
            "console" => Form::Shown,
            "toml" | "ini" | "xml" => {
                let first = text.lines().next().unwrap_or_default();
                let comment = first.strip_prefix("# ").or_else(|| {
                    first.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"))
                });
                let path = comment.filter(|path| path.starts_with(['/', '~']));
                Form::File(path.expect("a file begins with a comment that is its path").to_owned())
            }
            _ => panic!("line {}: no block has the form {language:?}", n + 1),
        };
        blocks.push(Block { line: n + 1, machine: machine.to_owned(), off, form, text });
    }
    blocks
}

/// Whether `line` matches `shown`, in which `...` matches any text.
fn is_shown(line: &str, shown: &str) -> bool {
    let Some((first, shown)) = shown.split_once("...") else { return line == shown };
    let (middle, last) = shown.rsplit_once("...").unwrap_or(("", shown));
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for part in middle.split("...") {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// Returns the first line of `shown` that `output` does not have after the preceding lines of `shown`.
fn missing_line<'s>(output: &str, shown: &'s str) -> Option<&'s str> {
    let mut lines = output.lines().map(str::trim_end);
    shown.lines().find(|shown| !lines.any(|line| is_shown(line, shown)))
}

/// Prints that the page is passed over. With `RECIPES` in the environment, fails instead.
fn pass_over(page: &str, reason: &str) {
    assert!(std::env::var_os("RECIPES").is_none(), "{page}: {reason}");
    eprintln!("passed over: docs/recipes/{page}: {reason}");
}

impl Recipe {
    fn run(&self) {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes").join(self.page);
        let text = fs::read_to_string(page).unwrap();
        let blocks = blocks(&text);
        if let Some(reason) = self.obstacle(&text) {
            return pass_over(self.page, &reason);
        }
        let folder = Folder::new(self.page);
        let mut machines = BTreeMap::new();
        let (mut output, mut count) = (String::new(), 0);
        for block in &blocks {
            let at = format!("docs/recipes/{}:{}", self.page, block.line);
            if let Some(name) = &block.off {
                machines.remove(name);
            }
            let home = folder.0.join(&block.machine);
            let new = || Machine::start(&home, &block.machine, self.user);
            let machine = machines.entry(block.machine.clone()).or_insert_with(new);
            let run = |machine: &mut Machine, text: &str, exit| {
                machine.run(text, exit).unwrap_or_else(|output| panic!("{at}:\n{text}\n{output}"))
            };
            match &block.form {
                Form::NotRun if block.text.starts_with(INSTALL) => {}
                Form::NotRun if self.download.is_empty() => {
                    eprintln!("passed over: {at}: {}", block.text.trim());
                }
                Form::NotRun => output = run(machine, self.download, 0),
                Form::Run { exit, is_after_restart } => {
                    if *is_after_restart {
                        machine.restart();
                    }
                    output = run(machine, &block.text, *exit);
                    count += 1;
                }
                Form::File(path) => {
                    run(
                        machine,
                        &format!("cat >{path} <<'END OF FILE'\n{}END OF FILE", block.text),
                        0,
                    );
                }
                Form::Shown => {
                    let missing = missing_line(&output, &block.text);
                    assert_eq!(missing, None, "{at}: the output is\n{output}");
                }
            }
        }
        assert!(count > 5, "{}: only {count} blocks were run", self.page);
    }

    /// Returns the reason why the page cannot run here.
    fn obstacle(&self, text: &str) -> Option<String> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return Some("only root may make a machine".to_owned());
        }
        for path in ["/dev/fuse", "/dev/loop-control", "/sbin/ip", "/usr/bin/dpkg-query"] {
            if !Path::new(path).exists() {
                return Some(format!("there is no {path}"));
            }
        }
        let install = text.lines().find_map(|line| line.strip_prefix(INSTALL));
        let packages = install.expect("a page has a line `apt install`").split_whitespace();
        for package in packages {
            let query = ["--show", "--showformat=${db:Status-Status}", package];
            let query = Command::new("dpkg-query").args(query).output().unwrap();
            if query.stdout != b"installed" {
                return Some(format!("no package {package}. Next: tools/setup recipes"));
            }
        }
        let mut machine = Command::new("unshare");
        let machine = machine.args(NAMESPACES).args(["sh", "-ec", OVERLAY]).output().unwrap();
        (!machine.status.success()).then(|| "no namespace with an overlay can be made".to_owned())
    }
}

/// A folder for the machines of a page, removed after the test. It is in memory, because the file system of a container
/// cannot be the upper part of an overlay.
struct Folder(PathBuf);

impl Folder {
    fn new(page: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/cairn-{page}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes an overlay, as a machine needs it.
const OVERLAY: &str = "mount -t tmpfs test /mnt; mkdir /mnt/up /mnt/work
mount -t overlay test -o lowerdir=/etc,upperdir=/mnt/up,workdir=/mnt/work /etc";

const NAMESPACES: &[&str] =
    &["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--net", "--"];

/// First line for the shell of a machine: at its end the shell kills all processes, and detaches their loop devices. A
/// loop device with a mounted file system ends with the mounts of the namespace.
const POWER_CUT: &[u8] = b"trap 'kill -9 -1 2>/dev/null; for to in $(readlink /dev/cairn/*); do losetup -d /dev/${to##*/}; done' EXIT\n";

/// The longest time that a machine may take to end.
const END_MAX: Duration = Duration::from_secs(30);

/// A machine: a shell in namespaces of its own, which changes no file outside of its folder.
struct Machine {
    folder: PathBuf,
    name: String,
    user: String,
    shell: Child,
    stdin: Option<ChildStdin>,
    /// A line for each block that has ended.
    ends: Receiver<String>,
}

impl Machine {
    fn start(folder: &Path, name: &str, user: &str) -> Self {
        fs::create_dir_all(folder).unwrap();
        // Its user writes the output of a block.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("unshare");
        command.args(NAMESPACES).arg(source.join("tests/recipes/machine")).arg(folder);
        command.args([name, user, env!("CARGO_BIN_EXE_cairn")]);
        command.arg(source.join("../../packaging/cairn.service"));
        command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let (mut stdin, stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        stdin.write_all(POWER_CUT).unwrap();
        let (send, ends) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| send.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Self {
            folder: folder.into(),
            name: name.into(),
            user: user.into(),
            shell,
            stdin: Some(stdin),
            ends,
        }
    }

    /// Runs the commands `text` and checks that the last one ends with `exit`. Returns their output, as an error if a
    /// command fails.
    fn run(&mut self, text: &str, exit: i32) -> Result<String, String> {
        let (block, output) = (self.folder.join("block"), self.folder.join("output"));
        let _ = fs::remove_file(&output);
        fs::write(&block, text).unwrap();
        let (block, shown) = (block.display(), output.display());
        let line = if exit == 0 {
            format!("{{ . {block}; }} </dev/null >{shown} 2>&1; echo end\n")
        } else {
            format!(
                "set +e; (set -e; . {block}) </dev/null >{shown} 2>&1; ended=$?; echo \"exit $ended\" >>{shown}; \
                 set -e; [ $ended = {exit} ]; echo end\n"
            )
        };
        let sent = self.stdin.as_mut().unwrap().write_all(line.as_bytes());
        let ended = self.ends.recv_timeout(BLOCK_MAX);
        let output = fs::read_to_string(output).unwrap_or_default();
        if std::env::var_os("RECIPES_SHOW").is_some() {
            eprintln!("{text}---\n{output}\n");
        }
        if sent.is_ok() && ended.is_ok_and(|line| line == "end") { Ok(output) } else { Err(output) }
    }

    /// Starts the machine anew, as after a power cut.
    fn restart(&mut self) {
        self.end();
        *self = Self::start(&self.folder, &self.name, &self.user);
    }

    /// Ends the machine, with all of its processes and loop devices.
    fn end(&mut self) {
        // The shell ends with its input. If a block hangs, it does not.
        drop(self.stdin.take());
        if let Err(RecvTimeoutError::Timeout) = self.ends.recv_timeout(END_MAX) {
            let _ = self.shell.kill();
        }
        let _ = self.shell.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}
