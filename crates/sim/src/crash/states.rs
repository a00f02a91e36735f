//! The states of disks that a crash may leave.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::Rig;
use crate::{Image, Reached, WriteLog};

/// Largest number of writes that are not durable for which every subset is tried.
const WRITES_MAX: usize = 8;

/// The end of a server process without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process was killed. Each write that it had in flight was carried out or not.
    Kill,
    /// The power was cut. Each write that is not durable survived, or was lost, or some of its sectors were.
    PowerCut,
}

/// The crash states of a run, each of them once for the same promises: a state counts again when more writes have been
/// acknowledged or flushed since.
#[derive(Default)]
pub struct CrashStates(BTreeSet<(Vec<u64>, [u64; 2])>);

impl CrashStates {
    /// Returns the number of states so far.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the new states after a crash at the moment at which the disks had the content `images`. `log` has the
    /// writes of clients at that moment.
    pub fn after(&mut self, crash: Crash, images: &[Image], log: &WriteLog) -> Vec<Vec<Image>> {
        let mut states = match crash {
            Crash::Kill => subsets(images, Image::writes_in_flight),
            Crash::PowerCut => {
                let mut states = subsets(images, Image::open_writes);
                states.extend(torn(images));
                states
            }
        };
        let promised = [Reached::Acknowledged, Reached::Flushed].map(|far| log.requests(far));
        states.retain(|state| {
            let digests = state.iter().map(Image::digest).collect();
            self.0.insert((digests, promised))
        });
        states
    }
}

/// Returns the states in which some of the writes are lost that `open` returns for each disk: every subset of few writes;
/// of more writes every prefix and suffix, all but one, and one.
fn subsets(images: &[Image], open: impl Fn(&Image) -> Vec<u64>) -> Vec<Vec<Image>> {
    let open: Vec<Vec<u64>> = images.iter().map(open).collect();
    let all = open.iter().enumerate();
    let writes: Vec<(usize, u64)> =
        all.flat_map(|(disk, writes)| writes.iter().map(move |write| (disk, *write))).collect();
    let cut = |keeps: &dyn Fn(usize) -> bool| {
        let lost: BTreeSet<_> =
            (0..writes.len()).filter(|n| !keeps(*n)).map(|n| writes[n]).collect();
        let of =
            |(disk, image): (usize, &Image)| image.cut(|write, _| !lost.contains(&(disk, write)));
        images.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    let count = writes.len();
    if count <= WRITES_MAX {
        return (0..1_u64 << count).map(|set| cut(&|n| set >> n & 1 == 1)).collect();
    }
    let prefixes = (0..=count).flat_map(|at| [cut(&|n| n < at), cut(&|n| n >= at)]);
    let singles = (0..count).flat_map(|at| [cut(&|n| n == at), cut(&|n| n != at)]);
    prefixes.chain(singles).collect()
}

/// Returns states with torn writes: of every write some sectors only.
fn torn(images: &[Image]) -> impl Iterator<Item = Vec<Image>> {
    let some: [fn(u64) -> bool; 4] = [
        |sector| sector % 2 == 0,
        |sector| sector % 2 == 1,
        |sector| sector % 7 == 3,
        |sector| sector % 7 != 3,
    ];
    some.into_iter().map(|keeps| images.iter().map(|image| image.cut(|_, s| keeps(s))).collect())
}

/// Runs a task to its end. After each simulated event, calls `look` with images of the disks at that moment, in which
/// writes in flight count as unflushed.
///
/// # Panics
/// If the task does not end.
pub fn moments<T: 'static>(
    rig: &Rig,
    task: impl Future<Output = T> + 'static,
    mut look: impl FnMut(Vec<Image>),
) -> T {
    let done: Rc<RefCell<Option<T>>> = Rc::default();
    let told = done.clone();
    rig.world.env().spawn("looked at", async move {
        let answer = task.await;
        *told.borrow_mut() = Some(answer);
    });
    loop {
        look(rig.disks.iter().map(|disk| disk.image_in_flight()).collect());
        if let Some(answer) = done.borrow_mut().take() {
            return answer;
        }
        assert!(rig.world.step(), "the task waits for ever");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskConfig, Profile, SimDisk, SimWorld};
    use block::{ByteRange, Op};

    #[test]
    fn crash_states_count_state_again_when_more_is_acknowledged() {
        let world = SimWorld::new(1);
        let disk = SimDisk::new(&world, 0, DiskConfig::new(1 << 20, Profile::Native512));
        let (images, log) = ([disk.image_in_flight()], WriteLog::default());
        let mut seen = CrashStates::default();
        let mut new = |crash| seen.after(crash, &images, &log).len();
        assert_eq!([new(Crash::PowerCut), new(Crash::Kill)], [1, 0]);
        let range = ByteRange::new(0, 512).unwrap();
        let number = log.send(&Op::Discard { range, fua: false }).unwrap();
        assert_eq!(new(Crash::Kill), 0);
        log.acknowledge(number);
        assert_eq!([new(Crash::Kill), new(Crash::PowerCut)], [1, 0]);
        log.flushed(log.covered());
        assert_eq!(new(Crash::PowerCut), 1);
    }
}
