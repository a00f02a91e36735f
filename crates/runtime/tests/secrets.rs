//! Tests of reading keys and passphrases from files, pipes and a terminal. The program `script` provides the terminal.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use block::{Error, ErrorKind, KeySource, SECRET_BYTES_MAX, Wanted};
use common::{Place, each_core};
use runtime::{Config, Core};

fn wanted(source: &str, twice: bool) -> Wanted {
    let source = source.parse::<KeySource>().unwrap();
    let full_name = "home/safe".to_owned();
    Wanted { source, prompt: "passphrase for home/safe".to_owned(), twice, full_name }
}

fn get(core: &Core, source: &str) -> Result<Vec<u8>, Error> {
    let env = core.env();
    core.block_on(async { env.secret(&wanted(source, false)).await.map(|s| s.bytes().to_vec()) })
}

#[test]
fn key_file_is_read_unchanged_and_limited_in_length() {
    each_core(|core| {
        let place = Place::in_memory("key");
        let source = format!("file:{}", place.path().display());
        for bytes in [&b"hunter2\n"[..], &[0; 64], &vec![7; SECRET_BYTES_MAX]] {
            std::fs::write(place.path(), bytes).unwrap();
            assert_eq!(get(core, &source).unwrap(), bytes);
        }
        for (bytes, words) in
            [(vec![], "the key is empty"), (vec![7; SECRET_BYTES_MAX + 1], "longer than")]
        {
            std::fs::write(place.path(), bytes).unwrap();
            let error = get(core, &source).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Denied && error.to_string().contains(words),
                "{error}"
            );
        }
    });
}

#[test]
fn key_from_empty_pipe_is_refused_without_waiting() {
    let core = Core::new(Config::default()).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let source = format!("file:/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let error = get(&core, &source).unwrap_err();
    assert!(error.to_string().contains("write the key into the pipe first"), "{error}");
    writer.write_all(b"hunter2").unwrap();
    assert_eq!(get(&core, &source).unwrap(), b"hunter2");
    drop(writer);
    assert!(get(&core, &source).is_err(), "it is gone with the first reader");
}

/// The test `terminal_prompt_reads_passphrase_without_echo` starts this test in a process of its own with a terminal.
#[test]
fn child_process_prompts_for_passphrase_when_started_by_test() {
    let Ok(mode) = std::env::var("CAIRN_ASKED") else { return };
    let core = Core::new(Config::default()).unwrap();
    let env = core.env();
    let answer = core.block_on(async { env.secret(&wanted("ask", mode == "twice")).await });
    match answer {
        Ok(secret) => println!("got [{}]", String::from_utf8_lossy(secret.bytes())),
        Err(error) => println!("refused [{error}]"),
    }
}

/// Starts the child process on a terminal, and types each of `lines` after a prompt. Returns the terminal's output.
fn terminal(mode: &str, lines: &[&str]) -> String {
    let me = std::env::current_exe().unwrap();
    let command = format!(
        "{} --exact child_process_prompts_for_passphrase_when_started_by_test --nocapture",
        me.display()
    );
    let mut script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("CAIRN_ASKED", mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut typing = script.stdin.take().unwrap();
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    let typist = std::thread::spawn(move || {
        for line in lines {
            // A person waits for the prompt: characters typed before it are discarded.
            std::thread::sleep(Duration::from_millis(1500));
            typing.write_all(line.as_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500));
    });
    let seen = script.wait_with_output().unwrap();
    typist.join().unwrap();
    String::from_utf8_lossy(&seen.stdout).into_owned()
}

#[test]
fn terminal_prompt_reads_passphrase_without_echo() {
    let seen = terminal("once", &["hunter2"]);
    assert!(seen.contains("passphrase for home/safe: "), "{seen}");
    assert!(seen.contains("got [hunter2]"), "{seen}");
    assert_eq!(seen.matches("hunter2").count(), 1, "nothing is echoed: {seen}");
    let seen = terminal("twice", &["hunter2", "hunter3", "correct", "correct"]);
    assert!(
        seen.contains("the two passphrases differ") && seen.contains("got [correct]"),
        "{seen}"
    );
    assert!(terminal("once", &[""]).contains("refused [the passphrase is empty]"));
}

#[test]
fn passphrase_prompt_is_refused_without_terminal() {
    let me = std::env::current_exe().unwrap();
    let ran = Command::new(me)
        .args([
            "--exact",
            "child_process_prompts_for_passphrase_when_started_by_test",
            "--nocapture",
        ])
        .env("CAIRN_ASKED", "once")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("this process has no terminal for the prompt. Next: use"), "{said}");
}
