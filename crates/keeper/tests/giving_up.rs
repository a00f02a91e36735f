//! A graph that does not come up is given up, by itself or by an order. The clock of the test jumps to
//! whatever is waited for, so that the minute of pauses is none.
#![allow(clippy::disallowed_methods, reason = "it plays the world that the keeper lives in")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use keeper::{Charge, GIVE_UP_AFTER, Kept, PAUSE_MAX, Phase};

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
    let charge = Charge {
        name: "home".to_owned(),
        place: place.0.clone(),
        held: vec![(held.0.to_owned(), held.1)],
        command: Box::new(command),
        note: |_| {},
    };
    Kept::begin(charge).unwrap()
}

#[tokio::test(start_paused = true)]
async fn after_so_many_deaths_it_waits_to_be_told() {
    let (place, started) = (Place::new("giving-up"), Arc::<AtomicU32>::default());
    let node = std::fs::File::open("/dev/null").unwrap().into();
    let ours = started.clone();
    let kept = keep(&place, ("attached/home/vol/4096", node), move |_| {
        ours.fetch_add(1, Ordering::Relaxed);
        Command::new("false")
    });
    let begun = tokio::time::Instant::now();
    kept.start(Vec::new()).await.unwrap_err();
    while kept.standing().phase != Phase::GivenUp {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let starts = kept.standing().starts;
        assert!(starts <= u64::from(GIVE_UP_AFTER), "{starts} workers");
    }
    assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
    let standing = kept.standing();
    assert_eq!(standing.starts, u64::from(GIVE_UP_AFTER));
    assert_eq!((standing.pid, standing.held), (None, 1), "who uses what it held waits");
    assert!(standing.failure.is_some_and(|ended| !ended.why.is_empty()), "it says why");
    // Nothing happens by itself any more.
    tokio::time::sleep(10 * PAUSE_MAX).await;
    assert_eq!(started.load(Ordering::Relaxed), GIVE_UP_AFTER);
    // Told to, it begins anew, with as many tries.
    kept.start(Vec::new()).await.unwrap_err();
    while kept.standing().phase != Phase::GivenUp {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(started.load(Ordering::Relaxed), 2 * GIVE_UP_AFTER);
    // A stop gives up what is held as well.
    kept.stop().await.unwrap();
    assert_eq!(kept.standing().phase, Phase::Ended);
}

/// The clock of this one is the world's: a process ends when it ends.
#[tokio::test]
async fn stopped_before_it_is_up_it_leaves_no_socket() {
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
    while kept.standing().pid.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // It dies of the signal, as one that has not taken over its signals yet.
    kept.stop().await.unwrap();
    starting.await.unwrap().unwrap_err();
    assert!(!path.exists() && kept.standing().held == 0);
}
