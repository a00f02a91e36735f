//! A worker that dies again and again is given up, and what it held is held still. The clock of the test
//! jumps to whatever is waited for, so that the minute of pauses is none.
#![allow(clippy::disallowed_methods, reason = "it plays the world that the keeper lives in")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use keeper::{Charge, GIVE_UP_AFTER, Kept, PAUSE_MAX, Phase};

struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("cairn-giving-up-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A keeper of a worker that dies at once.
fn kept(place: &Place, started: &Arc<AtomicU32>) -> Kept {
    let node = std::fs::File::open("/dev/null").unwrap().into();
    let ours = started.clone();
    let command = move |_: &[String]| {
        ours.fetch_add(1, Ordering::Relaxed);
        Command::new("false")
    };
    let charge = Charge {
        name: "home".to_owned(),
        place: place.0.clone(),
        held: vec![("attached/home/vol/4096".to_owned(), node)],
        command: Box::new(command),
        note: |_| {},
    };
    Kept::begin(charge).unwrap()
}

#[tokio::test(start_paused = true)]
async fn after_so_many_deaths_it_waits_to_be_told() {
    let (place, started) = (Place::new(), Arc::<AtomicU32>::default());
    let kept = kept(&place, &started);
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
