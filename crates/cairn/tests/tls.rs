//! TLS on NBD connections: Cairn as the server and as the client, with programs of other projects at the other end.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

#[path = "common/authority.rs"]
mod authority;
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use authority::{Authority, Valid};
use common::keeper::{Daemon, mirror};
use common::load::Load;
use common::{Dir, Ran, Serve, listens, send, tool, until};

/// Makes TLS certificates. All certificates in the directory `ours` are valid; each other directory has one fault.
fn certificates(dir: &Dir) {
    let (ours, theirs) = (Authority::new("Ours"), Authority::new("Theirs"));
    let here = |name| dir.path(name);
    let hosts = ["localhost", "127.0.0.1"];
    for place in ["ours", "bob", "past", "future", "alone", "elsewhere", "server-past"] {
        ours.write(&here(place));
    }
    ours.sign(&here("ours"), "server", "the server", &hosts, Valid::Now);
    ours.sign(&here("ours"), "client", "alice", &["alice.example"], Valid::Now);
    ours.sign(&here("bob"), "client", "bob", &[], Valid::Now);
    ours.sign(&here("past"), "client", "alice", &[], Valid::Past);
    ours.sign(&here("future"), "client", "alice", &[], Valid::Future);
    ours.sign(&here("elsewhere"), "server", "x", &["elsewhere.example"], Valid::Now);
    ours.sign(&here("server-past"), "server", "x", &hosts, Valid::Past);
    ours.pose(&here("authority"));
    theirs.write(&here("theirs"));
    theirs.sign(&here("theirs"), "client", "alice", &[], Valid::Now);
    // Our authority, and a certificate that it has not signed.
    ours.write(&here("mixed"));
    theirs.sign(&here("mixed"), "client", "alice", &[], Valid::Now);
}

const SPEC: &str = r#"
[nbd]
listen = "tls+unix:tls.sock"
tls = { cert = "ours/server-cert.pem", key = "ours/server-key.pem", clients = "ours/ca-cert.pem" }
[disk]
d = { memory = "64MiB" }
e = { memory = "1MiB" }
f = { memory = "2MiB" }
[export]
vol = { on = "d" }
alices = { on = "e", clients = ["alice.example"] }
bobs = { on = "f", clients = "bob" }
"#;

fn serve() -> (Dir, Serve) {
    let dir = Dir::new();
    certificates(&dir);
    dir.write("t.toml", SPEC);
    let serve = dir.serve(&["t.toml"]);
    (dir, serve)
}

fn uri(dir: &Dir, export: &str, certificate: &str) -> String {
    let (socket, certificate) = (dir.path("tls.sock"), dir.path(certificate));
    format!(
        "nbds+unix:///{export}?socket={}&tls-certificates={}",
        socket.display(),
        certificate.display()
    )
}

/// Returns a command for a program that uses GnuTLS, which knows no version after TLS 1.2 then.
fn old_command(dir: &Dir, name: &str) -> Command {
    dir.write("old.conf", "[overrides]\ndisabled-version = tls1.3\n");
    let mut command = Command::new(name);
    command.env("GNUTLS_SYSTEM_PRIORITY_FILE", dir.path("old.conf")).current_dir(&dir.0);
    command
}

/// Runs a program of another project that knows TLS 1.2 only.
fn old_tool(dir: &Dir, name: &str, args: &[&str]) -> Ran {
    let output = old_command(dir, name).args(args).stdin(Stdio::null()).output();
    Ran::of(&output.unwrap_or_else(|error| panic!("{name}: {error}; install it")))
}

/// Runs qemu-img with the export `vol` as its source, over TLS with these priorities of GnuTLS.
fn qemu_img(dir: &Dir, priority: &str, verb: &str, rest: &[&str]) -> Ran {
    let ours = dir.path("ours");
    let creds = format!(
        "tls-creds-x509,id=tls0,endpoint=client,dir={},priority={priority}",
        ours.display()
    );
    let socket = dir.path("tls.sock");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=vol,tls-creds=tls0,tls-hostname=localhost",
        socket.display()
    );
    tool(dir, "qemu-img", &[&[verb, "--object", &creds, "--image-opts", &image], rest].concat())
}

fn works(dir: &Dir, name: &str, args: &[&str]) -> String {
    worked(name, args, tool(dir, name, args))
}

fn worked(name: &str, args: &[&str], ran: Ran) -> String {
    assert!(ran.code == 0 && !ran.out.contains("failed"), "{name} {args:?}: {ran:?}");
    ran.out
}

#[test]
fn cairn_client_connects_to_cairn_server_over_tls() {
    let (dir, serve) = serve();
    assert!(serve.uri().starts_with("nbds+unix:///vol?socket="), "{}", serve.banner);
    assert!(dir.text(&["info", &uri(&dir, "vol", "ours")]).contains("64 MiB"));
    // As a disk, with the files in the spec.
    dir.write(
        "far.toml",
        "[nbd]\nlisten = \"unix:far.sock\"\n[disk]\nfar = { nbd = \"nbds+unix:///vol?socket=tls.sock\", tls = \
         { ca = \"ours/ca-cert.pem\", cert = \"ours/client-cert.pem\", key = \"ours/client-key.pem\", \
         hostname = \"127.0.0.1\" } }\n[export]\nnear = { on = \"far\" }\n",
    );
    let far = dir.serve(&["far.toml"]);
    let io =
        ["write -P 7 0 4M", "write -P 9 4M 512", "flush", "read -P 7 0 4M", "read -P 9 4M 512"];
    let mut args = vec!["-f", "raw", far.uri()];
    args.extend(io.iter().flat_map(|line| ["-c", *line]));
    works(&dir, "qemu-io", &args);
    assert_eq!(far.stop().code, 0);
    let bench = ["bench", "--time", "100ms", "--rounds", "1", "--block", "1MiB"];
    let vol = uri(&dir, "vol", "ours");
    assert!(dir.text(&[&bench[..], &[&vol]].concat()).contains("IOPS"));
    let ran = serve.stop();
    assert_eq!((ran.code, ran.err.contains("closed:")), (0, false), "{ran:?}");
}

#[test]
fn nbd_disk_serves_requests_over_tls_and_tcp() {
    let dir = Dir::new();
    certificates(&dir);
    dir.write("t.toml", &SPEC.replace("tls+unix:tls.sock", "tls://127.0.0.1:0"));
    let serve = dir.serve(&["t.toml"]);
    let (address, _) = serve.uri().split_once("/vol").expect("an address, and the export");
    dir.write(
        "far.toml",
        &format!(
            "[nbd]\nlisten = \"unix:far.sock\"\n[disk]\n\
             far = {{ nbd = \"{address}/vol?tls-certificates=ours\", connections = 2 }}\n\
             [export]\nnear = {{ on = \"far\" }}\n"
        ),
    );
    let far = dir.serve(&["far.toml"]);
    let io = ["-c", "write -P 7 0 4M", "-c", "flush", "-c", "read -P 7 0 4M"];
    works(&dir, "qemu-io", &[&["-f", "raw", far.uri()][..], &io[..]].concat());
    assert_eq!(far.stop().code, 0);
}

#[test]
fn tls_server_accepts_clients_of_other_projects() {
    let (dir, serve) = serve();
    let vol = uri(&dir, "vol", "ours");
    let told = works(&dir, "nbdinfo", &[&vol]);
    assert!(told.contains("newstyle-fixed with TLS"), "{told}");
    let bytes: Vec<u8> =
        (0..64u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(dir.path("in.img"), &bytes).unwrap();
    works(&dir, "nbdcopy", &["in.img", &vol]);
    works(&dir, "nbdcopy", &[&vol, "out.img"]);
    assert!(std::fs::read(dir.path("out.img")).unwrap() == bytes, "nbdcopy got other bytes");
    let ran = qemu_img(&dir, "NORMAL", "convert", &["-O", "raw", "qemu.img"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(std::fs::read(dir.path("qemu.img")).unwrap() == bytes, "qemu-img got other bytes");
    assert_eq!(serve.stop().code, 0);
}

/// Priorities of GnuTLS for TLS 1.2 only.
const OLD: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.2";

#[test]
fn tls_server_accepts_clients_of_other_projects_over_tls_1_2() {
    let (dir, serve) = serve();
    let vol = uri(&dir, "vol", "ours");
    let old = |name: &str, args: &[&str]| worked(name, args, old_tool(&dir, name, args));
    assert!(old("nbdinfo", &[&vol]).contains("newstyle-fixed with TLS"));
    let bytes: Vec<u8> =
        (0..64u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(dir.path("in.img"), &bytes).unwrap();
    old("nbdcopy", &["in.img", &vol]);
    old("nbdcopy", &[&vol, "out.img"]);
    assert!(std::fs::read(dir.path("out.img")).unwrap() == bytes, "nbdcopy got other bytes");
    for cipher in ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"] {
        let priority = format!("{OLD}:-CIPHER-ALL:+{cipher}");
        let ran = qemu_img(&dir, &priority, "convert", &["-O", "raw", "qemu.img"]);
        assert_eq!(ran.code, 0, "{cipher}: {ran:?}");
        assert!(std::fs::read(dir.path("qemu.img")).unwrap() == bytes, "{cipher}");
    }
    let ran = serve.stop();
    assert_eq!((ran.code, ran.err.contains("closed:")), (0, false), "{ran:?}");
}

/// That of Debian 12 knows TLS 1.2 only. It lists exports without a device of the kernel.
#[test]
fn nbd_client_of_debian_lists_exports_over_tls() {
    let dir = Dir::new();
    certificates(&dir);
    dir.write("t.toml", &SPEC.replace("tls+unix:tls.sock", "tls://127.0.0.1:0"));
    let serve = dir.serve(&["t.toml"]);
    let port = serve.uri().rsplit_once(':').unwrap().1.split('/').next().unwrap();
    let args = [
        "-l",
        "127.0.0.1",
        port,
        "-enable-tls",
        "-tlshostname",
        "localhost",
        "-cacertfile",
        "ours/ca-cert.pem",
        "-certfile",
        "ours/client-cert.pem",
        "-keyfile",
        "ours/client-key.pem",
    ];
    let listed = works(&dir, "nbd-client", &args);
    for (export, there) in [("vol", true), ("alices", true), ("bobs", false)] {
        let is_listed = listed.lines().any(|line| line.split(':').next() == Some(export));
        assert_eq!(is_listed, there, "{export}: {listed}");
    }
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn tls_export_admits_only_listed_clients() {
    let (dir, _serve) = serve();
    for (certificate, sees) in [("ours", "alices"), ("bob", "bobs")] {
        let args = ["--list", &uri(&dir, "", certificate)];
        let list = works(&dir, "nbdinfo", &args);
        let old_list = worked("nbdinfo", &args, old_tool(&dir, "nbdinfo", &args));
        for export in ["vol", "alices", "bobs"] {
            let there = list.contains(&format!("export=\"{export}\""));
            assert_eq!(there, export == "vol" || export == sees, "{certificate}: {list}");
            assert_eq!(there, old_list.contains(&format!("export=\"{export}\"")), "{old_list}");
            let ran = dir.cairn(&["info", &uri(&dir, export, certificate)]);
            assert_eq!(ran.code, if there { 0 } else { 4 }, "{certificate} {export}: {ran:?}");
        }
    }
}

#[test]
fn tls_server_refuses_client_without_valid_certificate() {
    let (dir, serve) = serve();
    let cases = [
        ("alone", "requires a client certificate"),
        ("mixed", "does not trust the authority"),
        ("theirs", "not signed by the configured authority"),
        ("past", "expired on"),
        ("future", "is not valid before"),
    ];
    for (certificate, why) in cases {
        let ran = dir.cairn(&["info", &uri(&dir, "vol", certificate)]);
        assert!(ran.code == 7 && ran.err.contains(why), "{certificate}: {ran:?}");
        // The other programs do not check their own certificate first.
        for ask in [tool, old_tool] {
            let ran = ask(&dir, "nbdinfo", &[&uri(&dir, "vol", certificate)]);
            assert_ne!(ran.code, 0, "{certificate}: {ran:?}");
        }
    }
    let ran = tool(&dir, "nbdinfo", &[&uri(&dir, "vol", "authority")]);
    assert_ne!(ran.code, 0, "{ran:?}");
    let named = format!("{}&tls-hostname=elsewhere.example", uri(&dir, "vol", "ours"));
    let ran = dir.cairn(&["info", &named]);
    assert!(ran.code == 7 && ran.err.contains("not valid for name"), "{ran:?}");
    let err = serve.stop().err;
    // Both nbdinfo of TLS 1.3 and that of TLS 1.2; the latter does not even send a certificate of another authority.
    for (why, count) in [
        ("no certificate", 3),
        ("not signed by the configured authority", 1),
        ("expired", 2),
        ("not valid yet", 2),
        ("is that of an authority", 1),
    ] {
        assert!(err.matches(why).count() >= count, "{why}: {err}");
    }
}

#[test]
fn tls_server_refuses_versions_and_ciphers_without_protection() {
    let (dir, serve) = serve();
    let cases = [
        ("NORMAL:-VERS-ALL:+VERS-TLS1.1".to_owned(), "supports neither TLS 1.2 nor TLS 1.3"),
        (format!("{OLD}:-CIPHER-ALL:+AES-128-CBC:+AES-256-CBC"), "offers no supported cipher"),
        (format!("{OLD}:-KX-ALL:+RSA"), "offers no supported key exchange"),
        (format!("{OLD}:%NO_SESSION_HASH"), "does not support the extended master secret"),
    ];
    for (priority, _) in &cases {
        let ran = qemu_img(&dir, priority, "info", &[]);
        assert_ne!(ran.code, 0, "{priority}: {ran:?}");
    }
    let ran = qemu_img(&dir, OLD, "info", &[]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let err = serve.stop().err;
    for (priority, why) in cases {
        assert!(err.contains(why), "{priority}: {err}");
    }
    assert!(err.contains("Cairn supports TLS 1.3, and TLS 1.2 with ECDHE"), "{err}");
}

/// Connects to the server, and sends the client flags of the NBD fixed newstyle handshake.
fn connect(dir: &Dir) -> UnixStream {
    let mut stream = UnixStream::connect(dir.path("tls.sock")).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream
}

const STARTTLS: u32 = 5;

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Reads the server's next NBD option reply, skips the data of the reply, and returns the reply type.
fn reply(stream: &mut UnixStream) -> u32 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    stream.read_exact(&mut vec![0; number(16) as usize]).unwrap();
    number(12)
}

fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // If the server closes with unread bytes, the end is a reset.
    stream.read_to_end(&mut rest).is_ok() || rest.is_empty()
}

#[test]
fn tls_server_refuses_nbd_options_before_starttls() {
    let (dir, serve) = serve();
    const TLS_REQD: u32 = 0x8000_0005;
    let mut stream = connect(&dir);
    for (code, data) in
        [(3, &b""[..]), (6, &b"\0\0\0\x03vol\0\0"[..]), (7, &b"\0\0\0\x03vol\0\0"[..]), (8, b"")]
    {
        stream.write_all(&option(code, data)).unwrap();
        assert_eq!(reply(&mut stream), TLS_REQD, "option {code}");
    }
    stream.write_all(&option(1, b"vol")).unwrap();
    assert!(is_closed(&mut stream), "EXPORT_NAME in plain");
    // An option right behind STARTTLS, before its reply. A man in the middle could have inserted it.
    let mut stream = connect(&dir);
    stream.write_all(&[option(STARTTLS, b""), option(3, b"")].concat()).unwrap();
    assert!(is_closed(&mut stream), "LIST behind STARTTLS");
    let mut stream = connect(&dir);
    stream.write_all(&option(STARTTLS, b"")).unwrap();
    assert_eq!(reply(&mut stream), 1);
    stream.write_all(&option(3, b"")).unwrap();
    assert!(is_closed(&mut stream), "no TLS after STARTTLS");
    let err = serve.stop().err;
    assert!(err.contains("bytes before the reply to STARTTLS"), "{err}");
    assert!(
        err.contains("TLS is required: send STARTTLS") && err.contains("the TLS handshake failed:"),
        "{err}"
    );
}

#[test]
fn tls_server_closes_hanging_handshake_after_timeout() {
    let (dir, serve) = serve();
    let mut stream = connect(&dir);
    stream.write_all(&option(STARTTLS, b"")).unwrap();
    assert_eq!(reply(&mut stream), 1);
    // A part of a record header.
    stream.write_all(&[22, 3]).unwrap();
    let begun = Instant::now();
    assert!(is_closed(&mut stream));
    assert!(begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(serve.stop().err.contains("did not complete the handshake within 10s"));
}

/// A running NBD server of another project, which is killed when this value is dropped.
struct Other(Child);

impl Other {
    fn start(dir: &Dir, name: &str, args: &[&str], socket: &str) -> Self {
        Self::spawn(dir, Command::new(name), args, socket)
    }

    fn spawn(dir: &Dir, mut command: Command, args: &[&str], socket: &str) -> Self {
        command.args(args).current_dir(&dir.0).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        until("the other server listens", || listens(&dir.path(socket)));
        Self(child)
    }

    /// Starts nbdkit on the socket `{prefix}{certificates}.sock`.
    fn nbdkit(dir: &Dir, command: Command, prefix: &str, certificates: &str) -> Self {
        let place = format!("--tls-certificates={}", dir.path(certificates).display());
        let socket = format!("{prefix}{certificates}.sock");
        let args =
            ["-f", "-U", &socket, "--tls=require", "--tls-verify-peer", &place, "memory", "1M"];
        Self::spawn(dir, command, &args, &socket)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_client_verifies_servers_of_other_projects() {
    let dir = Dir::new();
    certificates(&dir);
    let at = |server: &str, certificate: &str| {
        let (socket, certificate) = (dir.path(&format!("{server}.sock")), dir.path(certificate));
        let (socket, certificate) = (socket.display(), certificate.display());
        dir.cairn(&[
            "info",
            &format!("nbds+unix:///?socket={socket}&tls-certificates={certificate}"),
        ])
    };
    let servers = ["ours", "elsewhere", "server-past"];
    let _kit = servers.map(|server| Other::nbdkit(&dir, Command::new("nbdkit"), "", server));
    // The same over TLS 1.2.
    let old = || old_command(&dir, "nbdkit");
    let _old = servers.map(|server| Other::nbdkit(&dir, old(), "old-", server));
    for server in ["ours", "old-ours"] {
        assert!(at(server, "ours").out.contains("1 MiB"), "{:?}", at(server, "ours"));
        // The server closes the connection without a readable message.
        assert_ne!(at(server, "alone").code, 0);
    }
    let cases = [
        ("ours", "theirs", "not signed by the configured authority"),
        ("elsewhere", "ours", "not valid for name \"localhost\""),
        ("server-past", "ours", "expired"),
    ];
    for (server, certificate, why) in cases {
        for server in [server.to_owned(), format!("old-{server}")] {
            let ran = at(&server, certificate);
            assert!(ran.code == 7 && ran.err.contains(why), "{server} {certificate}: {ran:?}");
        }
    }
    std::fs::write(dir.path("q.img"), vec![0; 2 << 20]).unwrap();
    let creds = format!(
        "tls-creds-x509,id=tls0,endpoint=server,verify-peer=on,dir={}",
        dir.path("ours").display()
    );
    let socket = dir.path("qemu.sock").display().to_string();
    let args =
        ["--object", &creds, "--tls-creds", "tls0", "-k", &socket, "-t", "-f", "raw", "q.img"];
    let _qemu = Other::start(&dir, "qemu-nbd", &args, "qemu.sock");
    assert!(at("qemu", "ours").out.contains("2 MiB"), "{:?}", at("qemu", "ours"));
    // A client that wants TLS does not accept a server without it.
    let args = ["-f", "-U", "plain.sock", "memory", "1M"];
    let _plain = Other::start(&dir, "nbdkit", &args, "plain.sock");
    let ran = at("plain", "ours");
    assert!(ran.code != 0 && ran.err.contains("STARTTLS"), "{ran:?}");
}

#[test]
fn nbd_disk_serves_requests_over_tls_1_2() {
    let dir = Dir::new();
    certificates(&dir);
    let _old = Other::nbdkit(&dir, old_command(&dir, "nbdkit"), "old-", "ours");
    dir.write(
        "far.toml",
        "[nbd]\nlisten = \"unix:far.sock\"\n[disk]\n\
         far = { nbd = \"nbds+unix:///?socket=old-ours.sock&tls-certificates=ours\" }\n\
         [export]\nnear = { on = \"far\" }\n",
    );
    let far = dir.serve(&["far.toml"]);
    let io =
        ["write -P 7 0 1M", "write -P 9 4k 512", "flush", "read -P 9 4k 512", "read -P 7 8k 1000k"];
    let mut args = vec!["-f", "raw", far.uri()];
    args.extend(io.iter().flat_map(|line| ["-c", *line]));
    works(&dir, "qemu-io", &args);
    let ran = far.stop();
    assert_eq!((ran.code, ran.err.contains("reconnect")), (0, false), "{ran:?}");
}

#[test]
fn spec_check_reports_path_of_wrong_certificate() {
    let dir = Dir::new();
    certificates(&dir);
    let cases = [
        ("{ cert = \"no.pem\", key = \"ours/server-key.pem\" }", "no.pem"),
        (
            "{ cert = \"ours/server-cert.pem\", key = \"ours/client-key.pem\" }",
            "does not belong to",
        ),
        (
            "{ cert = \"ours/server-key.pem\", key = \"ours/server-key.pem\" }",
            "the file has no certificate",
        ),
        (
            "{ cert = \"ours/server-cert.pem\", key = \"ours/server-cert.pem\" }",
            "no unencrypted private key",
        ),
        (
            "{ cert = \"server-past/server-cert.pem\", key = \"server-past/server-key.pem\" }",
            "expired on",
        ),
        ("{ cert = \"ours/server-cert.pem\" }", "cert and key are both needed"),
    ];
    for (tls, why) in cases {
        let text = format!(
            "[nbd]\nlisten = \"tls://127.0.0.1:0\"\ntls = {tls}\n[disk]\nd = {{ memory = \"1MiB\" }}\n\
             [export]\nvol = {{ on = \"d\" }}\n"
        );
        dir.write("bad.toml", &text);
        for verb in ["validate", "serve"] {
            let ran = dir.cairn(&[verb, "bad.toml"]);
            assert!(ran.code == 3 && ran.err.contains("bad.toml:3:7  error"), "{tls}: {ran:?}");
            assert!(ran.err.contains(why), "{tls}: {ran:?}");
        }
    }
}

/// The test runs the commands of `docs/exports/nbd.md` unchanged.
#[test]
fn certificate_commands_in_manual_work() {
    let dir = Dir::new();
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exports/nbd.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let lines = |begin: &'static str| manual.lines().filter(move |line| line.starts_with(begin));
    for line in lines("openssl ").chain(lines("chmod ")) {
        works(&dir, "sh", &["-c", line]);
    }
    dir.write(
        "t.toml",
        "[nbd]\nlisten = \"tls://127.0.0.1:0\"\n\
         tls = { cert = \"server-cert.pem\", key = \"server-key.pem\", clients = \"ca-cert.pem\" }\n\
         [disk]\nd = { memory = \"1MiB\" }\n[export]\nhome = { on = \"d\", clients = [\"alice\"] }\n",
    );
    let serve = dir.serve(&["t.toml"]);
    let port = serve.uri().rsplit_once(':').unwrap().1.split('/').next().unwrap().to_owned();
    let place = dir.0.display().to_string();
    let cairn = env!("CARGO_BIN_EXE_cairn");
    for begin in ["nbdinfo ", "cairn ", "qemu-img "] {
        let mut seen = 0;
        for line in lines(begin) {
            let line = line.replace("10809", &port).replace("DIR", &place);
            let line = line.replacen("cairn info", &format!("{cairn} info"), 1);
            assert!(
                works(&dir, "sh", &["-c", &line]).contains("1 MiB") || begin == "nbdinfo ",
                "{line}"
            );
            seen += 1;
        }
        assert_eq!(seen, 1, "{begin}");
    }
    // And the commands that the server prints, with the directory filled in.
    let tried: Vec<String> = serve
        .banner
        .lines()
        .filter_map(|line| Some(line.split_once("qemu-img")?.1.replace("DIR", &place)))
        .collect();
    works(&dir, "sh", &["-c", &format!("qemu-img {}", tried[0])]);
    assert_eq!(serve.stop().code, 0);
}

#[test]
fn planned_restart_closes_tls_sessions() {
    let dir = Dir::new();
    certificates(&dir);
    let on_file = "d = { file = \"d.img\", size = \"64MiB\", create = true }";
    let rest = SPEC.split("e = {").next().unwrap();
    dir.write(
        "t.toml",
        &format!(
            "{}\n[export]\nvol = {{ on = \"d\" }}\n",
            rest.replace("d = { memory = \"64MiB\" }", on_file)
        ),
    );
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "t.toml"]);
    dir.write(
        "far.toml",
        "[nbd]\nlisten = \"unix:far.sock\"\n[disk]\nfar = { nbd = \"nbds+unix:///vol?socket=tls.sock\", tls = \
         { ca = \"ours/ca-cert.pem\", cert = \"ours/client-cert.pem\", key = \"ours/client-key.pem\", \
         hostname = \"127.0.0.1\" } }\n[export]\nnear = { on = \"far\" }\n",
    );
    let far = dir.serve(&["far.toml"]);
    let load = Load::of_nbd(&dir, far.uri());
    let reconnects = || {
        let ran = dir.cairn(&["-o", "json", "status", "--at", "far"]);
        let far: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        far[0]["devices"][0]["counters"]["reconnects"].as_u64().unwrap()
    };
    for round in 1..=4 {
        std::thread::sleep(Duration::from_millis(900));
        let old = daemon.worker("t");
        send(old, "USR2");
        until("another process is up", || {
            let graph = daemon.graph("t");
            graph.phase == api::Phase::Up && graph.pid != Some(old)
        });
        until("its client is back", || reconnects() >= round);
    }
    load.end();
    // Every session ended with an alert at a record boundary, so the server logs nothing about it.
    assert!(!daemon.log().contains("closed: TLS"), "{}", daemon.log());
    assert_eq!(far.stop().code, 0);
    assert_eq!(daemon.stop(), 0, "{}", daemon.log());
}

/// A running qemu-io that is connected to an export over TLS. The test makes it read one block at a time.
struct Reader {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Reader {
    fn start(dir: &Dir, export: &str, certificate: &str) -> Self {
        let creds = format!(
            "tls-creds-x509,id=tls0,endpoint=client,dir={}",
            dir.path(certificate).display()
        );
        let image = format!(
            "driver=nbd,server.type=unix,server.path={},export={export},tls-creds=tls0,tls-hostname=localhost",
            dir.path("tls.sock").display()
        );
        let mut command = Command::new("qemu-io");
        command.args(["--object", &creds, "-r", "--image-opts", &image]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = piped.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn reads(&mut self) -> bool {
        self.child.stdin.as_mut().unwrap().write_all(b"read 0 4k\n").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "qemu-io has ended");
            if line.contains("read failed") || line.contains("read 4096/4096") {
                return line.contains("4096/4096");
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn apply_closes_tls_sessions_of_clients_no_longer_listed() {
    let (dir, serve) = serve();
    let mut alices = Reader::start(&dir, "alices", "ours");
    let mut bobs = Reader::start(&dir, "bobs", "bob");
    let mut vol = Reader::start(&dir, "vol", "ours");
    assert!(alices.reads() && bobs.reads() && vol.reads());
    dir.write("t.toml", &SPEC.replace("alice.example", "carol.example"));
    dir.text(&["apply", "t.toml"]);
    assert!(!alices.reads(), "alice is not admitted any more");
    assert!(bobs.reads() && vol.reads());
    drop((alices, bobs, vol));
    let err = serve.stop().err;
    assert!(err.contains("certificate is no longer admitted to the export"), "{err}");
}

#[test]
fn tls_handshake_reads_changed_certificate_files() {
    let dir = Dir::new();
    let (ours, here) = (Authority::new("ours"), |name: &str| dir.path(name));
    ours.write(&here("ours"));
    ours.sign(&here("ours"), "server", "localhost", &["localhost"], Valid::Now);
    let alice = ours.sign(&here("ours"), "client", "alice", &["alice.example"], Valid::Now);
    ours.write(&here("bob"));
    ours.sign(&here("bob"), "client", "bob", &[], Valid::Now);
    ours.revoke(&here("ours"), &[]);
    let with_list = SPEC.replace("ca-cert.pem\" }", "ca-cert.pem\", revoked = \"ours/crl.pem\" }");
    assert_ne!(with_list, SPEC);
    dir.write("t.toml", &with_list);
    let serve = dir.serve(&["t.toml"]);
    let info = |certificate: &str| {
        let address = uri(&dir, "vol", certificate);
        let code = dir.cairn(&["info", &address]).code;
        // TLS 1.2 decides in the same way.
        assert_eq!(old_tool(&dir, "nbdinfo", &[&address]).code == 0, code == 0, "{certificate}");
        code
    };
    assert_eq!((info("ours"), info("bob")), (0, 0));
    // Revoked.
    ours.revoke(&here("ours"), &[alice]);
    assert_eq!((info("ours"), info("bob")), (7, 0));
    // An unreadable list changes nothing.
    std::fs::write(here("ours/crl.pem"), "garbage").unwrap();
    assert_eq!((info("ours"), info("bob")), (7, 0));
    std::fs::remove_file(here("ours/crl.pem")).unwrap();
    assert_eq!((info("ours"), info("bob")), (7, 0));
    ours.revoke(&here("ours"), &[]);
    assert_eq!(info("ours"), 0);
    // Another authority and certificate, while the server runs.
    let theirs = Authority::new("theirs");
    theirs.write(&here("theirs"));
    theirs.sign(&here("theirs"), "client", "carol", &[], Valid::Now);
    theirs.sign(&here("ours"), "server", "localhost", &["localhost"], Valid::Now);
    theirs.write(&here("ours"));
    theirs.revoke(&here("ours"), &[]);
    assert_eq!((info("theirs"), info("bob")), (0, 7));
    let err = serve.stop().err;
    assert!(
        err.contains("certificate is revoked") && err.contains("use the earlier ones"),
        "{err}"
    );
    assert_eq!(err.matches("cannot be used").count(), 2, "{err}");

    dir.write("t.toml", &with_list.replace("clients = \"ours/ca-cert.pem\", ", ""));
    let ran = dir.cairn(&["validate", "t.toml"]);
    assert!(ran.code == 3 && ran.err.contains("revoked needs clients"), "{ran:?}");
}

/// `import` has no argument for certificates, so it cannot listen with TLS.
#[test]
fn stop_prints_import_without_addresses_that_need_certificates() {
    let dir = Dir::new();
    certificates(&dir);
    let nbd = "[nbd]\nlisten = [\"unix:home.sock\", \"tls://127.0.0.1:0\"]\n\
               tls = { cert = \"ours/server-cert.pem\", key = \"ours/server-key.pem\", clients = \"ours/ca-cert.pem\" }\n";
    dir.write("home.toml", &mirror("home", nbd));
    let mut daemon = Daemon::start(&dir);
    dir.text(&["apply", "home.toml"]);
    let said = dir.text(&["stop", "home"]);
    let again = "Next: cairn import home --listen unix:home.sock\n";
    assert!(said.contains(again) && said.contains("labels do not hold tls of [nbd]"), "{said}");
    let open = ["--listen", "tcp:0.0.0.0:0", "--insecure"];
    dir.text(&[&["import", "home", "--read-only", "--degraded"], &open[..]].concat());
    let said = dir.text(&["stop", "home"]);
    let again =
        "Next: cairn import home --read-only --degraded --insecure --listen tcp:0.0.0.0:0\n";
    assert!(said.ends_with(again), "{said}");
    assert_eq!(daemon.stop(), 0);
}
