//! Damages the disks of a small vault in every way: the vault must report an error or repair the damage. It must never
//! return wrong content, panic or loop.

use std::panic::AssertUnwindSafe;

use block::ErrorKind;
use meta::vault::{Findings, Options, Vault};
use sim::SimWorld;

use crate::scene::{self, SMALL, block_on, some};
use testkit::recorded::{Disk, Trace};

/// Result of opening a vault on damaged disks and reading all its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The vault opens, and all its content is right.
    Right,
    /// The vault reports the damage as an error.
    Told,
}

/// The bytes of a vault's disks after `last` steps, and a few steps earlier.
struct Images {
    now: Vec<Vec<u8>>,
    before: Vec<Vec<u8>>,
    last: u64,
}

fn images(copies: usize, closed: bool) -> Images {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = scene::blank(copies, &trace);
    let taken = || disks.iter().map(|disk| disk.bytes.borrow().clone()).collect::<Vec<_>>();
    block_on(&world, async {
        scene::format(&env, &disks).await;
        // The cache is so large that no checkpoint is due for these few pages.
        let vault = Vault::open(&env, some(&disks), &Options::default()).await.unwrap();
        scene::run(&vault, &trace, 1, 4).await.unwrap();
        vault.flush().await.unwrap();
        scene::run(&vault, &trace, 5, 6).await.unwrap();
        vault.flush().await.unwrap();
        let before = taken();
        scene::run(&vault, &trace, 7, 10).await.unwrap();
        if closed {
            vault.close().await.unwrap();
        } else {
            env.sleep(2 * meta::vault::SEALED_AFTER).await;
        }
        Images { now: taken(), before, last: 10 }
    })
}

/// Opens a vault on damaged disks, and reads all its content, which must be that of step `last`.
fn look(images: &[Vec<u8>], last: u64, what: &str) -> Outcome {
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let (world, trace) = (SimWorld::new(2), Trace::default());
        let env = world.env();
        let disk = |(n, bytes): (usize, &Vec<u8>)| Disk::new(n, bytes.clone(), &trace);
        let disks: Vec<_> = images.iter().enumerate().map(disk).collect();
        block_on(&world, async {
            let vault = Vault::open(&env, some(&disks), &SMALL).await?;
            let shown = scene::shown(&vault).await?;
            // A repair must last.
            vault.close().await?;
            let vault = Vault::open(&env, some(&disks), &SMALL).await?;
            assert_eq!(scene::shown(&vault).await?, shown);
            Ok::<_, block::Error>(shown)
        })
    }));
    match opened {
        Ok(Ok(shown)) => {
            assert_eq!(shown, last, "{what}: a wrong answer");
            Outcome::Right
        }
        Ok(Err(error)) => {
            let kinds = [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Degraded];
            assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
            Outcome::Told
        }
        Err(_) => panic!("{what}: a panic"),
    }
}

/// Returns the numbers of the chunks of 64 bytes on the first disk that are not zero, now or some steps earlier.
fn used(images: &Images) -> Vec<usize> {
    let all = [&images.now[0], &images.before[0]];
    let used = |chunk: &usize| {
        all.iter().any(|image| image[chunk * 64..][..64].iter().any(|byte| *byte != 0))
    };
    (0..images.now[0].len() / 64).filter(used).collect()
}

/// Sets one byte of the first disk to `wrong` and opens the vault, for every `step`-th byte in turn. Returns the number
/// of openings with each [`Outcome`].
fn every_byte(images: &Images, step: usize, wrong: impl Fn(usize) -> u8) -> [usize; 2] {
    let mut counts = [0; 2];
    for chunk in used(images) {
        for at in (chunk * 64..(chunk + 1) * 64).filter(|at| at.is_multiple_of(step)) {
            let mut damaged = images.now.clone();
            if wrong(at) == damaged[0][at] {
                continue;
            }
            damaged[0][at] = wrong(at);
            counts[look(&damaged, images.last, &format!("byte {at}")) as usize] += 1;
        }
    }
    counts
}

/// Replaces `size` bytes of the first disk with the result of `by` and opens the vault, at every multiple of `size` in
/// turn. Returns the number of openings with each [`Outcome`].
fn every_run(images: &Images, size: usize, by: impl Fn(usize) -> Vec<u8>) -> [usize; 2] {
    let mut counts = [0; 2];
    for at in (0..images.now[0].len()).step_by(size) {
        let new = by(at);
        if new != images.now[0][at..at + size] {
            let mut damaged = images.now.clone();
            damaged[0][at..at + size].copy_from_slice(&new);
            let what = format!("{size} bytes from {at}");
            counts[look(&damaged, images.last, &what) as usize] += 1;
        }
    }
    counts
}

/// Replaces runs of each of `sizes` bytes on the first disk: by zeros, by their older content, and by the run after and
/// before. Returns the number of openings with each [`Outcome`].
fn every_replacement(images: &Images, sizes: &[usize]) -> [usize; 2] {
    let len = images.now[0].len();
    let mut counts = [0; 2];
    for size in sizes.iter().copied() {
        let now = |at: usize| images.now[0][at % len..][..size].to_vec();
        let all = [
            every_run(images, size, |_| vec![0; size]),
            every_run(images, size, |at| images.before[0][at..at + size].to_vec()),
            every_run(images, size, |at| now(at + size)),
            every_run(images, size, |at| now(at + len - size)),
        ];
        all.iter().for_each(|more| (0..2).for_each(|n| counts[n] += more[n]));
    }
    counts
}

/// Damages every `step`-th byte of the first disk in turn: a flipped bit, zero, the older value, and the next byte's
/// value. Returns the number of openings with each [`Outcome`].
fn every_wrong_byte(images: &Images, step: usize) -> [usize; 2] {
    let (now, before) = (&images.now[0], &images.before[0]);
    let mut counts = every_byte(images, step, |at| now[at] ^ 0x10);
    let more = [
        every_byte(images, step, |_| 0),
        every_byte(images, step, |at| before[at]),
        every_byte(images, step, |at| now[(at + 1) % now.len()]),
    ];
    more.iter().for_each(|more| (0..2).for_each(|n| counts[n] += more[n]));
    counts
}

/// The test damages every 23rd byte. With `STEP=1` it damages every byte, which takes minutes.
#[test]
fn vault_never_misreads_only_copy_with_damaged_byte() {
    // The default is a prime, so that the damage hits every position in the fields.
    let step = std::env::var("STEP").map_or(23, |step| step.parse().expect("STEP is a number"));
    for closed in [true, false] {
        let counts = every_wrong_byte(&images(1, closed), step);
        assert!(counts[0] > 100 && counts[1] > 100, "right and told: {counts:?}");
        println!(
            "closed {closed}: {} times the right answer, {} times an error",
            counts[0], counts[1]
        );
    }
}

#[test]
fn vault_never_misreads_only_copy_with_replaced_sectors() {
    for closed in [true, false] {
        // If both the last record and the empty one behind it are lost, the log is merely shorter.
        let sizes = if closed { &[512, 4096, 8192][..] } else { &[512, 4096] };
        let counts = every_replacement(&images(1, closed), sizes);
        assert!(counts[0] > 100 && counts[1] > 100, "right and told: {counts:?}");
    }
}

#[test]
fn vault_repairs_any_damage_to_one_of_two_copies() {
    for closed in [true, false] {
        let images = images(2, closed);
        let counts = every_wrong_byte(&images, 97);
        assert!(counts[0] > 100, "right and told: {counts:?}");
        let more = every_replacement(&images, &[512, 4096, 8192]);
        // The only damage without a repair is that of both superblocks of a copy.
        assert!(counts[1] == 0 && more[1] <= 8, "right and told: {counts:?}, {more:?}");
    }
}

#[test]
fn vault_open_never_panics_on_forged_superblock() {
    let images = images(1, false);
    let mut outcomes = [0; 2];
    for at in (48..312).step_by(4) {
        for value in [0, 1, 3, 0x7fff_ffff, u32::MAX] {
            let mut image = images.now[0].clone();
            for slot in [0, 4096] {
                image[slot + at..slot + at + 4].copy_from_slice(&u32::to_le_bytes(value));
                let sum = meta::vault::superblock::superblock_checksum(&image[slot..]);
                image[slot + 16..slot + 24].copy_from_slice(&sum.to_le_bytes());
            }
            // With a right checksum the superblock can claim anything. The opening must end without a panic.
            let ended = std::panic::catch_unwind(|| opens(image));
            let opened = ended.unwrap_or_else(|_| panic!("{value:#x} at byte {at}: a panic"));
            outcomes[usize::from(opened)] += 1;
        }
    }
    assert!(outcomes[0] > 100 && outcomes[1] > 20, "refused and opened: {outcomes:?}");
}

/// Whether a vault on a disk with these bytes can be opened, flushed, and opened again.
fn opens(image: Vec<u8>) -> bool {
    let (world, trace) = (SimWorld::new(3), Trace::default());
    let env = world.env();
    let disks = [Disk::new(0, image, &trace)];
    block_on(&world, async {
        let Ok(vault) = Vault::open(&env, some(&disks), &SMALL).await else { return false };
        let _ = vault.check().await;
        vault.flush().await.is_ok() && Vault::open(&env, some(&disks), &SMALL).await.is_ok()
    })
}

/// Opens a vault on a disk with these bytes read-only, and returns the findings of its check.
fn checked(image: &[u8]) -> Findings {
    let (world, trace) = (SimWorld::new(4), Trace::default());
    let disks = [Disk::new(0, image.to_vec(), &trace)];
    let found = block_on(&world, async {
        let read_only = Options { read_only: true, ..SMALL };
        Vault::open(&world.env(), some(&disks), &read_only).await?.check().await
    });
    assert!(*disks[0].bytes.borrow() == image, "a check writes nothing");
    found.expect("one superblock is enough")
}

#[test]
fn vault_check_reports_damaged_or_missing_superblock() {
    let (world, trace) = (SimWorld::new(1), Trace::default());
    let env = world.env();
    let disks = scene::blank(1, &trace);
    let image = || disks[0].bytes.borrow().clone();
    let says = |image: &[u8], at: usize, bytes: &[u8], why: &str| {
        let mut damaged = image.to_vec();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        let found = checked(&damaged);
        assert!(found.count == 1 && found.repairable, "{at}: {found:?}");
        let slot = at / 4096 * 4096;
        assert!(found.wrong[0].starts_with(&format!("superblock on disk0 at {slot}: {why}")));
        damaged
    };
    let lowers = scene::lowers(&disks);
    block_on(&world, Vault::format(&env, &lowers, scene::SHAPE)).unwrap();
    let fresh = image();
    // The first superblock is alone; the slot of the second one has zeros.
    assert!(fresh[0] != 0 && fresh[4096..8192].iter().all(|byte| *byte == 0));
    assert_eq!(checked(&fresh).count, 0);
    says(&fresh, 4096 + 9, &[1], "overwritten with other data");
    block_on(&world, scene::format(&env, &disks));
    // The newer superblock may be in either slot.
    for step in 1..=2 {
        let vault = block_on(&world, Vault::open(&env, some(&disks), &SMALL)).unwrap();
        block_on(&world, scene::run(&vault, &trace, step, step)).unwrap();
        block_on(&world, vault.close()).unwrap();
        let image = image();
        assert_eq!(checked(&image).count, 0, "{step}");
        for at in [0, 4096] {
            says(&image, at, &[image[at] ^ 1], "overwritten with other data");
            says(&image, at + 8, &[0x77; 4088], "");
            let damaged = says(&image, at, &[0; 4096], "missing");
            let again = [Disk::new(0, damaged, &trace)];
            block_on(&world, async {
                let vault = Vault::open(&env, some(&again), &SMALL).await.unwrap();
                scene::run(&vault, &trace, step + 1, step + 1).await.unwrap();
                vault.close().await.unwrap();
            });
            assert_eq!(
                checked(&again[0].bytes.borrow()).count,
                0,
                "the next superblock goes there"
            );
        }
    }
}
