//! Tests of a core's tasks, timers, worker threads and clock, and that an idle core does not wake up.
#![allow(clippy::disallowed_methods, reason = "the tests play the world that the doors lead to")]

mod common;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use common::each_core;

#[test]
fn core_fires_timers_in_order_of_deadline() {
    each_core(|core| {
        let env = core.env();
        let fired = Rc::new(RefCell::new(Vec::new()));
        for delay in [30u64, 10, 20, 0, 10] {
            let (env, fired) = (env.clone(), fired.clone());
            core.env().spawn("timer", async move {
                let began = env.now();
                env.sleep(Duration::from_millis(delay)).await;
                assert!(env.now().since(began) >= Duration::from_millis(delay));
                fired.borrow_mut().push(delay);
            });
        }
        core.block_on(env.sleep(Duration::from_millis(60)));
        assert_eq!(*fired.borrow(), [0, 10, 10, 20, 30]);
    });
}

#[test]
fn core_clock_is_current_after_core_was_idle() {
    const AWAY: Duration = Duration::from_millis(50);
    each_core(|core| {
        let env = core.env();
        let before = core.block_on(async { env.now() });
        std::thread::sleep(AWAY);
        let after = core.block_on(async { env.now() });
        assert!(after.since(before) >= AWAY, "a deadline would be too early");
    });
}

/// A step of background work that reads from the page cache ends within one turn of the event loop, in which `now` does
/// not advance. The throttle must measure such a step on the real clock.
#[test]
fn throttle_limits_background_work_within_one_event_loop_turn() {
    const WORK: Duration = Duration::from_millis(2);
    const STEPS: u32 = 10;
    each_core(|core| {
        let env = core.env();
        let pace = block::Throttle::new(&env, None);
        let began = Instant::now();
        core.block_on(async {
            for _ in 0..STEPS {
                drop(pace.client());
                let step = pace.step_of(block::STEP_BYTES_MIN).await;
                let (now, clock) = (env.now(), env.clock());
                while env.clock().since(clock) < WORK {}
                assert_eq!(env.now(), now, "it is one turn");
                drop(pace.client());
                step.done(block::STEP_BYTES_MIN);
            }
        });
        // The throttle waits after each step but the last.
        assert!(began.elapsed() >= WORK * (STEPS - 1) * 5, "{:?}", began.elapsed());
    });
}

/// A client waits for a slow disk and sends no further request. The throttle must still count the client as active.
#[test]
fn throttle_slows_background_work_while_client_waits() {
    const WORK: Duration = Duration::from_millis(5);
    each_core(|core| {
        let env = core.env();
        let pace = block::Throttle::new(&env, None);
        let timed = async || {
            let began = Instant::now();
            for _ in 0..4 {
                let step = pace.step_of(block::STEP_BYTES_MIN).await;
                env.sleep(WORK).await;
                step.done(block::STEP_BYTES_MIN);
            }
            began.elapsed()
        };
        core.block_on(async {
            let alone = timed().await;
            let asked = pace.client();
            // Longer than an answered client counts as present.
            env.sleep(Duration::from_millis(100)).await;
            let beside = timed().await;
            assert!(beside >= WORK * 3 * 5, "{beside:?} beside somebody, {alone:?} alone");
            drop(asked);
            // The throttle notices it at the next step, and counts the client as present for a while from
            // there.
            pace.step_of(block::STEP_BYTES_MIN).await.done(block::STEP_BYTES_MIN);
            env.sleep(Duration::from_millis(100)).await;
            let step = pace.step().await;
            assert_eq!(step.bytes(), block::STEP_BYTES_MAX, "nobody is there any more");
        });
    });
}

#[test]
fn core_completes_ten_thousand_concurrent_sleeps() {
    each_core(|core| {
        let env = core.env();
        let ended = Rc::new(Cell::new(0));
        for number in 0..10_000u64 {
            let (env, ended) = (env.clone(), ended.clone());
            core.env().spawn("sleep", async move {
                env.sleep(Duration::from_micros(number * 7 % 50_000)).await;
                ended.set(ended.get() + 1);
            });
        }
        let began = Instant::now();
        core.block_on(async {
            while ended.get() < 10_000 {
                env.sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    });
}

#[test]
fn waker_wakes_core_from_another_thread() {
    each_core(|core| {
        let shared = Arc::new((AtomicBool::new(false), Mutex::new(None::<Waker>)));
        let other = shared.clone();
        let thread = std::thread::spawn(move || {
            loop {
                if let Some(waker) = other.1.lock().unwrap().take() {
                    std::thread::sleep(Duration::from_millis(30));
                    other.0.store(true, Ordering::SeqCst);
                    waker.wake_by_ref();
                    waker.wake();
                    return;
                }
                std::thread::yield_now();
            }
        });
        core.block_on(poll_fn(|cx| {
            if shared.0.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            *shared.1.lock().unwrap() = Some(cx.waker().clone());
            Poll::Pending
        }));
        thread.join().unwrap();
    });
}

#[test]
fn waker_has_no_effect_after_core_has_ended() {
    let kept = RefCell::new(None);
    each_core(|core| {
        core.block_on(poll_fn(|cx| {
            kept.replace(Some(cx.waker().clone()));
            Poll::Ready(())
        }));
    });
    let waker = kept.take().unwrap();
    waker.wake_by_ref();
    std::thread::spawn(move || waker.wake()).join().unwrap();
}

#[test]
fn worker_job_runs_on_another_thread_and_returns() {
    each_core(|core| {
        let env = core.env();
        let here = std::thread::current().id();
        core.block_on(async {
            for _ in 0..100 {
                let (tell, told) = std::sync::mpsc::channel();
                env.work(move || tell.send(std::thread::current().id()).unwrap()).await;
                assert_ne!(told.try_recv().unwrap(), here);
            }
        });
    });
}

/// A waker that records the thread of each wake, and then wakes another waker.
struct Witness(Mutex<Vec<std::thread::ThreadId>>, Waker);

impl std::task::Wake for Witness {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().push(std::thread::current().id());
        self.1.wake_by_ref();
    }
}

#[test]
fn worker_job_wakes_waiting_task_on_thread_of_core() {
    each_core(|core| {
        let mut work = core.env().work(|| std::thread::sleep(Duration::from_millis(5)));
        let mut witness = None;
        core.block_on(poll_fn(|cx| {
            let witness = witness
                .get_or_insert_with(|| Arc::new(Witness(Mutex::default(), cx.waker().clone())));
            work.as_mut().poll(&mut std::task::Context::from_waker(&Waker::from(witness.clone())))
        }));
        let woken = witness.unwrap().0.lock().unwrap().clone();
        assert_eq!(woken, [std::thread::current().id()]);
    });
}

#[test]
fn env_random_numbers_differ() {
    each_core(|core| {
        let mut numbers: Vec<u64> = (0..1000).map(|_| core.env().random("test")).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
    });
}

fn voluntary_switches() -> u64 {
    let words = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = words.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn idle_core_causes_no_wake_ups() {
    each_core(|core| {
        let env = core.env();
        // So that the last waits were short, and spinning would be allowed.
        for _ in 0..100 {
            core.block_on(env.sleep(Duration::from_micros(10)));
        }
        let before = voluntary_switches();
        core.block_on(env.sleep(Duration::from_secs(2)));
        let switches = voluntary_switches() - before;
        assert!(switches <= 2, "{switches} wake-ups in two idle seconds");
    });
}
