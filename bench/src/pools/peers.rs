//! The peers of a pool: qcow2 images in qemu-storage-daemon, and reflinks on XFS.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest time for a server to accept connections after its start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of the file system with reflinks.
const XFS_BYTES: u64 = 12 << 30;

/// Runs a program, and fails with its messages.
pub fn tool(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}. Next: tools/setup bench"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program} {arguments:?}: {}", said()))
    }
}

/// A running qemu-storage-daemon with one image, killed on drop.
pub struct Qemu {
    child: Child,
    socket: PathBuf,
    monitor: BufReader<UnixStream>,
}

impl Qemu {
    /// Serves an image of a format (`raw` or `qcow2`) in `dir`.
    pub fn serve(dir: &Path, format: &str, image: &Path) -> Result<Self, String> {
        let (socket, control) = (dir.join("qsd.sock"), dir.join("qmp.sock"));
        for old in [&socket, &control] {
            let _ = std::fs::remove_file(old);
        }
        let node = format!(
            "driver={format},node-name=image,file.driver=file,file.filename={},file.aio=io_uring,\
             file.cache.direct=on",
            image.display()
        );
        let child = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &node])
            .args([
                "--chardev",
                &format!("socket,id=c,path={},server=on,wait=off", control.display()),
            ])
            .args(["--monitor", "chardev=c"])
            .args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())])
            .args(["--export", "type=nbd,id=e,node-name=image,name=vol,writable=on"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // It reports each connection that ends without a disconnect command.
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("qemu-storage-daemon: {error}. Next: tools/setup bench"))?;
        let begun = Instant::now();
        let monitor = loop {
            match UnixStream::connect(&control) {
                Ok(stream) if UnixStream::connect(&socket).is_ok() => break stream,
                _ if begun.elapsed() > PATIENCE => {
                    return Err(format!("qemu-storage-daemon does not accept within {PATIENCE:?}"));
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut qemu = Self { child, socket, monitor: BufReader::new(monitor) };
        qemu.line()?;
        qemu.command("qmp_capabilities", json!({}))?;
        Ok(qemu)
    }

    /// Returns the NBD URI of the image.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///vol?socket={}", self.socket.display())
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes an internal snapshot of the image.
    pub fn snapshot(&mut self, name: &str) -> Result<(), String> {
        self.command("blockdev-snapshot-internal-sync", json!({"device": "image", "name": name}))
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.monitor.read_line(&mut line).map_err(|error| format!("QMP: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("QMP: {error}: {line}"))
    }

    fn command(&mut self, name: &str, arguments: Value) -> Result<(), String> {
        let text = json!({"execute": name, "arguments": arguments}).to_string();
        let sent = self.monitor.get_mut().write_all(text.as_bytes());
        sent.map_err(|error| format!("QMP: {error}"))?;
        loop {
            let line = self.line()?;
            if line.get("return").is_some() {
                return Ok(());
            }
            if line.get("error").is_some() {
                return Err(format!("QMP {name}: {line}"));
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A mounted XFS on a file, unmounted and removed on drop.
pub struct Xfs {
    image: PathBuf,
    /// The mount point.
    pub at: PathBuf,
}

impl Xfs {
    /// Makes a file system with reflinks in `dir`, and mounts it.
    pub fn mount(dir: &Path) -> Result<Self, String> {
        let xfs = Self { image: dir.join("xfs.img"), at: dir.join("xfs") };
        let failed = |error: std::io::Error| format!("{}: {error}", xfs.image.display());
        let file = std::fs::File::create(&xfs.image).map_err(failed)?;
        file.set_len(XFS_BYTES).map_err(failed)?;
        std::fs::create_dir_all(&xfs.at).map_err(failed)?;
        let [image, at] = [&xfs.image, &xfs.at].map(|path| path.display().to_string());
        tool("mkfs.xfs", &["-q", "-f", "-m", "reflink=1", &image])?;
        tool("mount", &["-o", "loop", &image, &at])?;
        Ok(xfs)
    }

    /// Clones a file of the file system, durably. Returns how long that took.
    pub fn clone(&self, from: &str, to: &str) -> Result<Duration, String> {
        let failed = |error: std::io::Error| format!("a reflink on XFS: {error}");
        let from = std::fs::File::open(self.at.join(from)).map_err(failed)?;
        let to = std::fs::File::create(self.at.join(to)).map_err(failed)?;
        let begun = Instant::now();
        rustix::fs::ioctl_ficlone(&to, &from).map_err(|error| failed(error.into()))?;
        to.sync_all().map_err(failed)?;
        Ok(begun.elapsed())
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = tool("umount", &[&self.at.display().to_string()]);
        let _ = std::fs::remove_file(&self.image);
    }
}
