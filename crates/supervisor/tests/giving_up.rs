//! Workers that never become ready: the supervisor stops its restarts by itself or by a command. The clock of the tests
//! jumps to the next timer, so that the pauses between restarts take no time.
#![allow(clippy::disallowed_methods, reason = "it plays the world that the keeper lives in")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use supervisor::{GIVE_UP_AFTER, Kept, PAUSE_MAX, Phase, SpareDescriptors, WorkerSpec};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn keep(
    place: &Place,
    held: (&str, OwnedFd),
    command: impl Fn(&[String]) -> Command + Send + 'static,
) -> Kept {
    let charge = WorkerSpec {
        name: "home".to_owned(),
        place: place.0.clone(),
        held: vec![(held.0.to_owned(), held.1)],
        command: Box::new(command),
        note: |_, _| {},
        run: |_| {},
        spare: SpareDescriptors::open(),
    };
    Kept::begin(charge).unwrap()
}

#[tokio::test(start_paused = true)]
async fn supervisor_stops_restarts_when_worker_ends_quickly_each_time() {
    let (place, started) = (Place::new("giving-up"), Arc::<AtomicU32>::default());
    let node = std::fs::File::open("/dev/null").unwrap().into();
    let ours = started.clone();
    let kept = keep(&place, ("attached/home/vol/4096", node), move |_| {
        ours.fetch_add(1, Ordering::Relaxed);
        Command::new("false")
    });
    let begun = tokio::time::Instant::now();
    kept.start(Vec::new()).await.unwrap_err();
    while kept.status().phase != Phase::GivenUp {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let starts = kept.status().starts;
        assert!(starts <= u64::from(GIVE_UP_AFTER), "{starts} workers");
    }
    assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
    let status = kept.status();
    assert_eq!(status.starts, u64::from(GIVE_UP_AFTER));
    assert_eq!((status.pid, status.held), (None, 1), "who uses what it held waits");
    assert!(status.failure.is_some_and(|ended| !ended.why.is_empty()), "it says why");
    // No worker is started automatically any more.
    tokio::time::sleep(10 * PAUSE_MAX).await;
    assert_eq!(started.load(Ordering::Relaxed), GIVE_UP_AFTER);
    // An order starts anew, with the full number of tries.
    kept.start(Vec::new()).await.unwrap_err();
    while kept.status().phase != Phase::GivenUp {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(started.load(Ordering::Relaxed), 2 * GIVE_UP_AFTER);
    // A stop is possible in this phase, too.
    kept.stop().await.unwrap();
    assert_eq!(kept.status().phase, Phase::Ended);
}

/// Suspends the supervisor's automatic restarts. The clock also jumps while the supervisor waits for a process, so this
/// may need several tries.
async fn at_rest(kept: &Kept) {
    while kept.rest(PAUSE_MAX).await.is_err() {}
}

#[tokio::test(start_paused = true)]
async fn supervisor_try_once_starts_worker_once_and_restores_status() {
    let (place, started) = (Place::new("one-try"), Arc::<AtomicU32>::default());
    let node = std::fs::File::open("/dev/null").unwrap().into();
    let ours = started.clone();
    let kept = keep(&place, ("attached/home/vol/4096", node), move |words| {
        ours.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new("sh");
        command.args(["-c", if words.is_empty() { "exit 1" } else { "exit 4" }]);
        command
    });
    let by_hand = || vec!["--first".to_owned()];
    kept.start(Vec::new()).await.unwrap_err();
    // The graph is between two tries, or one is in progress. Afterwards nothing starts automatically.
    at_rest(&kept).await;
    let before = (kept.status(), started.load(Ordering::Relaxed));
    assert_eq!(before.0.phase, Phase::Waiting);
    tokio::time::sleep(10 * PAUSE_MAX).await;
    kept.try_once(by_hand()).await.unwrap_err();
    tokio::time::sleep(10 * PAUSE_MAX).await;
    assert_eq!(started.load(Ordering::Relaxed), before.1 + 1);
    let after = kept.status();
    assert_eq!((after.phase, &after.failure), (Phase::Waiting, &before.0.failure));
    // It has the remaining tries, and no more.
    kept.go_on().await;
    while kept.status().phase != Phase::GivenUp {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(started.load(Ordering::Relaxed), GIVE_UP_AFTER + 1);
    at_rest(&kept).await;
    kept.try_once(by_hand()).await.unwrap_err();
    kept.go_on().await;
    tokio::time::sleep(10 * PAUSE_MAX).await;
    assert_eq!(kept.status().phase, Phase::GivenUp);
    assert_eq!(started.load(Ordering::Relaxed), GIVE_UP_AFTER + 2);
    kept.stop().await.unwrap();
}

/// This test uses the real clock, because the worker process ends in real time.
#[tokio::test]
async fn supervisor_removes_socket_when_stopped_before_worker_is_up() {
    let place = Place::new("stopped-early");
    let path = place.0.join("vol.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let kept = keep(&place, ("listener", listener.into()), |_| {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    });
    let starting = tokio::spawn({
        let kept = kept.clone();
        async move { kept.start(Vec::new()).await }
    });
    while kept.status().pid.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The process dies of the signal, like a worker that does not handle signals yet.
    kept.stop().await.unwrap();
    starting.await.unwrap().unwrap_err();
    assert!(!path.exists() && kept.status().held == 0);
}
