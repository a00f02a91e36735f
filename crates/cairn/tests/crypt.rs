//! Encrypted exports of `cairn serve`: the bytes on the disk, and the memory in which the key must not be.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::memory::{holds, memory};
use common::{Dir, Serve, tool};

const MIB: usize = 1 << 20;

/// Returns the spec of an encrypted file of 8 MiB, with more options for the crypt device.
fn spec(options: &str) -> String {
    format!(
        "name = \"home\"\n\
         [disk]\nd = {{ file = \"disk.img\", size = \"8MiB\", create = true }}\n\
         [device]\nsafe = {{ kind = \"crypt\", on = \"d\", plain = true, {options} }}\n\
         [export]\nvol = {{ on = \"safe\" }}\n"
    )
}

fn put_key(dir: &Dir, name: &str, key: &[u8]) {
    fs::write(dir.path(name), key).unwrap();
    fs::set_permissions(dir.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns a key of 64 random bytes, which occur in the server's memory only if the server has read the key.
fn random_key() -> Vec<u8> {
    let mut key = vec![0; 64];
    File::open("/dev/urandom").unwrap().read_exact_at(&mut key, 0).unwrap();
    key
}

#[test]
fn crypt_writes_same_bytes_as_dm_crypt() {
    let vectors = include_str!("../../kinds/src/crypt/vectors/plain64.txt");
    for unit in [512, 4096] {
        let dir = Dir::new();
        let key: Vec<u8> = (0..64_u32).map(|n| (37 * n + 11) as u8).collect();
        put_key(&dir, "key", &key);
        dir.write("home.toml", &spec(&format!("key = \"file:key\", unit = {unit}")));
        let mut plain = vec![0; 8 * MIB];
        let mut places = Vec::new();
        for line in vectors.lines().filter(|line| line.starts_with(&format!("{unit} "))) {
            let words: Vec<_> = line.split(' ').collect();
            let sector: usize = words[1].parse().unwrap();
            if sector * 512 + unit > plain.len() {
                continue;
            }
            let at = sector * 512;
            for (n, byte) in plain[at..at + unit].iter_mut().enumerate() {
                *byte = (7 * n + sector) as u8;
            }
            places.push((at, words[2].to_owned()));
        }
        assert!(places.len() >= 2);
        fs::write(dir.path("plain.img"), &plain).unwrap();
        let serve = dir.serve(&["home.toml"]);
        assert_eq!(tool(&dir, "nbdcopy", &["--flush", "plain.img", serve.uri()]).code, 0);
        assert_eq!(tool(&dir, "nbdcopy", &[serve.uri(), "back.img"]).code, 0);
        assert_eq!(serve.stop().code, 0);
        assert!(fs::read(dir.path("back.img")).unwrap() == plain);
        let stored = fs::read(dir.path("disk.img")).unwrap();
        for (at, expected) in places {
            let hex: String =
                stored[at..at + unit].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{unit} bytes at {at}");
        }
    }
}

/// Splits a key into pieces of 16 bytes. AES code keeps round keys of 16 bytes in memory; the first round keys are the
/// key itself.
fn pieces(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    key.chunks(16)
}

fn busy(dir: &Dir, serve: &Serve) {
    // In both directions, short requests (done on the core) and long ones (done on worker threads).
    for command in ["write -P 7 0 64k", "write -P 7 1M 4M", "read 0 64k", "read 1M 4M", "flush"] {
        assert_eq!(tool(dir, "qemu-io", &["-f", "raw", serve.uri(), "-c", command]).code, 0);
    }
}

#[test]
fn crypt_key_is_only_in_locked_memory() {
    let dir = Dir::new();
    let key = random_key();
    put_key(&dir, "key", &key);
    dir.write("home.toml", &spec("key = \"file:key\""));
    let serve = dir.serve(&["home.toml"]);
    busy(&dir, &serve);
    let pid = serve.pid();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    for verb in ["show", "graph", "status", "top", "ls"] {
        let ran = dir.cairn(&["-o", "json", verb]);
        let said = ran.out + &ran.err;
        assert!(!said.contains(&hex[..32]), "{verb} tells the key");
    }
    assert!(dir.text(&["show"]).contains("file:key"), "where it is may be told");
    for name in ["cmdline", "environ"] {
        let told = fs::read(format!("/proc/{pid}/{name}")).unwrap();
        assert!(pieces(&key).all(|piece| !holds(&told, piece)), "{name}");
    }
    let mappings = memory(pid);
    let found = |locked: bool, piece: &[u8]| {
        mappings.iter().filter(|(is, bytes)| *is == locked && holds(bytes, piece)).count()
    };
    assert!(mappings.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 4 * MIB);
    for (n, piece) in pieces(&key).enumerate() {
        assert!(found(true, piece) > 0, "piece {n} is not where it should be");
        assert_eq!(found(false, piece), 0, "piece {n} is where it should not be");
    }
    if rustix::process::geteuid().is_root() {
        let pid = pid.to_string();
        assert_eq!(tool(&dir, "gcore", &["-o", "core", &pid]).code, 0);
        let core = fs::read(dir.path(&format!("core.{pid}"))).unwrap();
        assert!(core.len() > MIB, "there is a core");
        assert!(pieces(&key).all(|piece| !holds(&core, piece)), "the core holds the key");
    }
    let ended = serve.stop();
    assert_eq!(ended.code, 0);
    assert!(!holds(ended.err.as_bytes(), &key[..16]) && !holds(ended.out.as_bytes(), &key[..16]));
}

#[test]
fn crypt_reads_keys_from_descriptors_and_credentials() {
    let dir = Dir::new();
    let key = random_key();
    put_key(&dir, "key", &key);
    let served = |options: &str, shell: &str| {
        dir.write("home.toml", &spec(options));
        let line = format!(
            "{shell} exec {} serve home.toml --run 'qemu-io -f raw -c \"$DO\" \"$uri\"'",
            env!("CARGO_BIN_EXE_cairn")
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).current_dir(&dir.0).env("XDG_RUNTIME_DIR", dir.path("run"));
        let write = command.env("DO", "write -P 5 0 1M").output().unwrap();
        assert!(write.status.success(), "{write:?}");
        fs::read(dir.path("disk.img")).unwrap()
    };
    let from_file = served("key = \"file:key\"", "");
    assert!(from_file[..MIB].iter().any(|byte| *byte != 5));
    assert!(served("key = \"fd:3\"", "exec 3<key;") == from_file);
    assert!(served("key = \"fd:0\"", "cat key |") == from_file);
    fs::create_dir(dir.path("credentials")).unwrap();
    put_key(&dir, "credentials/disk", &key);
    let set = "export CREDENTIALS_DIRECTORY=credentials;";
    assert!(served("key = \"credential:disk\"", set) == from_file);
}

#[test]
fn crypt_warns_of_key_file_readable_by_others() {
    let dir = Dir::new();
    put_key(&dir, "key", &random_key());
    dir.write("home.toml", &spec("key = \"file:key\""));
    let warned = |mode: u32| {
        fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(mode)).unwrap();
        let ran = dir.cairn(&["serve", "home.toml", "--run", "true"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.err.contains("warning: other users can read the key file key")
    };
    assert!(warned(0o644) && warned(0o640));
    assert!(!warned(0o600) && !warned(0o400));
}

#[test]
fn key_commands_refuse_device_without_key_slots() {
    let dir = Dir::new();
    put_key(&dir, "key", &random_key());
    dir.write("home.toml", &spec("key = \"file:key\""));
    let serve = dir.serve(&["home.toml"]);
    for (args, code, words) in [
        (&["key", "ls", "safe"][..], 9, "safe is a crypt and has no key slots"),
        (&["key", "ls", "home/safe"], 9, "has no key slots"),
        (&["key", "ls", "d"], 9, "d is a file and has no key slots"),
        (&["key", "ls", "other"], 4, "no device \"other\" in home"),
        (&["key", "ls", "away/safe"], 4, "no device \"away/safe\" in home"),
        (&["key", "add", "safe", "--key", "hunter2"], 2, "a key source is file:PATH"),
        (&["key", "rm", "safe", "0", "--yes"], 9, "has no key slots"),
    ] {
        let ran = dir.cairn(args);
        assert!(ran.code == code && ran.err.contains(words), "{args:?}: {ran:?}");
    }
    assert_eq!(serve.stop().code, 0);
}
