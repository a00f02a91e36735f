//! Measures the throughput of openssl's own programs over one TLS connection: the openssl server sends a file, and the
//! openssl client decrypts it and ignores the content.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::load::Load;

use crate::server::absolute;

/// The TLS cipher that Cairn's client and server agree on; openssl must use the same cipher.
pub const CIPHER: &str = "TLS_AES_256_GCM_SHA384";

/// Name of the file that the openssl server sends, in the directory of the server.
const FILE: &str = "stream";

/// Size of that file in bytes: enough for a few seconds.
const FILE_BYTES: u64 = 1 << 30;

/// Interval between two checks how many bytes the openssl client has received.
const LOOK: Duration = Duration::from_millis(5);

/// Longest time until the openssl client has received the first 16 MiB.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes a certificate authority, and a server certificate signed by it. Keeps existing certificates in `dir`.
pub fn make_certificates(dir: &Path) -> Result<(), String> {
    let path = |name: &str| dir.join(name).display().to_string();
    if dir.join("server-cert.pem").exists() {
        return Ok(());
    }
    let make = |name: &str, subject: &str, more: &[&str]| {
        let (key, cert) = (path(&format!("{name}-key.pem")), path(&format!("{name}-cert.pem")));
        let curve = "ec_paramgen_curve:prime256v1";
        let output = Command::new(absolute("openssl")?)
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", curve, "-nodes", "-days", "2"])
            .args(["-subj", subject, "-keyout", &key, "-out", &cert])
            .args(more)
            .output()
            .map_err(|error| format!("openssl: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("openssl req: {}", String::from_utf8_lossy(&output.stderr).trim()))
    };
    make("ca", "/CN=an authority for a measurement", &[])?;
    let (ca, key) = (path("ca-cert.pem"), path("ca-key.pem"));
    let server = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "extendedKeyUsage=serverAuth",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        &ca,
        "-CAkey",
        &key,
    ];
    make("server", "/CN=localhost", &server)
}

/// Makes the file that the openssl server sends.
pub fn make_file(shm: &Path) -> Result<(), String> {
    let path = shm.join(FILE);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    let mut piece = vec![0; 1 << 20];
    for at in (0..FILE_BYTES).step_by(piece.len()) {
        bench::pattern::fill(&mut piece, at);
        file.write_all(&piece).map_err(failed)?;
    }
    Ok(())
}

/// An openssl client that receives the file, killed on drop.
struct Client(Child);

impl Client {
    fn start(port: u16, dir: &Path) -> Result<Self, String> {
        let mut child = Command::new(absolute("openssl")?)
            .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-quiet", "-tls1_3"])
            .args(["-ciphersuites", CIPHER, "-verify_return_error", "-CAfile"])
            .arg(dir.join("ca-cert.pem"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("openssl: {error}"))?;
        // The pipe stays open with the child: at its end the client would exit.
        let asked = child.stdin.as_mut().map(|to| write!(to, "GET /{FILE} HTTP/1.0\r\n\r\n"));
        let client = Self(child);
        match asked {
            Some(Err(error)) => Err(format!("openssl s_client: {error}")),
            _ => Ok(client),
        }
    }

    /// Returns the number of bytes that the openssl client has decrypted so far; `None` when the client has ended.
    fn taken(&mut self) -> Option<u64> {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return None;
        }
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.0.id())).ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar: "))?.trim().parse().ok()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one round with an openssl client on the TCP port `port`. Returns the number of the load's blocks received per
/// second, measured after the warm-up for the time of the load or until the end of the file.
pub fn round(port: u16, dir: &Path, load: &Load) -> Result<f64, String> {
    let mut client = Client::start(port, dir)?;
    let least = FILE_BYTES / 64;
    let begun = Instant::now();
    while client.taken().is_some_and(|taken| taken < least) {
        if begun.elapsed() > PATIENCE {
            return Err(format!("openssl s_client has got nothing within {PATIENCE:?}"));
        }
        std::thread::sleep(LOOK);
    }
    std::thread::sleep(load.warm_up);
    let (from, first) = (Instant::now(), client.taken());
    let (mut until, mut last) = (from, first);
    while from.elapsed() < load.time {
        std::thread::sleep(LOOK);
        match client.taken() {
            // The file has ended. Bytes after the last look are not counted.
            None => break,
            taken if taken == last => {}
            taken => (until, last) = (Instant::now(), taken),
        }
    }
    match (first, last) {
        (Some(first), Some(last)) if last > first => {
            Ok((last - first) as f64 / f64::from(load.block) / (until - from).as_secs_f64())
        }
        _ => Err("openssl s_client ended before it was measured".to_owned()),
    }
}
