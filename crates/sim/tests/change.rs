//! Live changes of a mirror over labelled disks, with faults and requests during the change.

mod common;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use block::control::Nothing;
use block::control::copies::{Action, Scrub};
use block::control::member::{Fail, Name};
use block::env::{Address, LocalFuture};
use block::{ByteRange, ErrorKind, MemberState, Op, Reason, StateStore, all};
use common::{DATA_BYTES, LIMIT, NS_MAX, PIECE, Rig, moments, opening, piece, text};
use export::ExportList;
use export::nbd::{Export, Limits, Server};
use graph::labels::Opening;
use graph::live::{RunningGraph, Unchanged};
use kinds::mirror::record::Record;
use meta::{Area, Label, Uuid};
use net::nbd::Client as Connection;
use sim::Faults;
use wire::nbd::{ClientConfig, Command, CommandFlags};

#[test]
fn live_change_refuses_to_remove_last_member_in_sync() {
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1], false));
    let env = rig.world.env();
    rig.pass(Duration::from_secs(60));
    let client = rig.client(&live);
    let data = env.buf(PIECE).unwrap();
    data.write().fill(0x5a);

    // A write is in flight when the change begins. One member misses it, and works again at once.
    rig.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[1, 2], false), opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        let write = client.send(Op::Write {
            range: piece(),
            data,
            fua: false,
            restores: block::Copies::NONE,
        });
        let ill = rig.disks[1].clone();
        env.spawn("a write", async move {
            write.await.result.expect("the other member has it");
            ill.set_faults(Faults::default());
        });
        live.change(&turn, planned, Some(probe), Duration::from_secs(30)).await
    };
    let came = rig.world.block_on(changing).unwrap();

    let Err(Unchanged::Failed(error)) = came else { panic!("it is refused: {came:?}") };
    assert!(error.to_string().contains("would show other bytes"), "{error}");
    assert!(rig.holds(&client, 0x5a), "what was answered is there");
}

/// A live change resyncs a stale member. At every moment the test cuts the power, and puts an older image on the
/// member's disk. The next start must not read the image, although its label may equal the member's last label.
#[test]
fn old_member_image_is_stale_after_resync_in_change() {
    let rig = Rc::new(Rig::of_speeds(&[NS_MAX / 50, NS_MAX / 50, NS_MAX]));
    let live = Rc::new(rig.open(&text(&[0, 1], false)));
    let client = rig.client(&live);
    rig.fill(&client, 0x11);
    // No region is dirty, and the next state does not reach the member.
    rig.pass(LIMIT);
    let old = rig.disks[0].image();
    rig.disks[0].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    rig.fill(&client, 0x5a);
    rig.disks[0].set_faults(Faults::default());

    let after = text(&[0, 1, 2], false);
    let (own, its, wanted) = (rig.clone(), live.clone(), after.clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let looked = own.look(&wanted, opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        its.change(&turn, planned, Some(probe), LIMIT).await?;
        own.world.env().sleep(Duration::from_secs(1)).await;
        Ok::<_, Unchanged>(())
    };
    let mut came = 0;
    let changed = moments(&rig, change, |images| {
        let mut images: Vec<_> = images.iter().map(|image| image.cut(|_, _| false)).collect();
        images[0] = old.clone();
        let rig = Rig::of(&images);
        let Ok(live) = rig.try_open(&after) else { return };
        came += 1;
        let client = rig.client(&live);
        assert!((0..8).all(|_| rig.holds(&client, 0x5a)), "what was answered is there");
    });
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    println!("{came} states came up");
    assert!(came > 10);
}

/// A disk outside the mirror has no state of the mirror in its label. If a power cut came when only this label had the
/// new graph, a start could not know which members of the new mirror are in sync.
#[test]
fn live_change_writes_new_spec_first_to_members_of_mirror() {
    let rig = Rc::new(Rig::of_speeds(&[NS_MAX, NS_MAX, NS_MAX, NS_MAX / 50]));
    let beside = |text: String| {
        let disk = "d3 = { path = \"/disk3\", label = true }\n[device]";
        text.replace("[device]", disk) + "side = { on = \"d3\" }\n"
    };
    let before = beside(text(&[0, 1, 2], false));
    let live = Rc::new(rig.open(&before));
    rig.fill(&rig.client(&live), 0x5a);
    rig.pass(LIMIT);

    let after = beside(text(&[1, 2], false));
    let (own, its, wanted) = (rig.clone(), live.clone(), after.clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let (planned, probe) = own.look(&wanted, opening(true), now.labels.as_ref()).await?;
        its.change(&turn, planned, Some(probe), LIMIT).await
    };
    let mut started = [0, 0];
    let changed = moments(&rig, change, |images| {
        let images: Vec<_> = images.iter().map(|image| image.cut(|_, _| false)).collect();
        let graph = [&before, &after].into_iter().position(|graph| {
            let rig = Rig::of(&images);
            let Ok(live) = rig.try_open(graph) else { return false };
            rig.holds(&rig.client(&live), 0x5a)
        });
        started[graph.expect("one of the two graphs starts without a decision")] += 1;
    });
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    assert!(started.iter().all(|starts| *starts > 0), "{started:?}");
}

/// A remap device writes when it opens its vault. If a live change also makes the mirror below, the mirror cannot mark
/// dirty regions before the labels record the change.
#[test]
fn mirror_members_below_remap_stay_equal_after_power_cut_in_change() {
    const DATA: u64 = 256 << 10;
    let text = |timeout: &str| {
        let options =
            format!("\"d1\"], region = \"4KiB\", clear_delay = \"1ms\", timeout = \"{timeout}\"");
        let map =
            "map = { kind = \"remap\", on = \"m\", size = \"64KiB\", block = \"4KiB\" }\n[export]";
        let text = text(&[0, 1], false).replace("\"d1\"]", &options).replace("[export]", map);
        text.replace("on = \"m\" }\n", "on = \"map\" }\n")
    };
    let after = text("22s");
    let blank: Vec<_> = Rig::new(2).disks.iter().map(|disk| disk.image()).collect();
    let rig = Rc::new(Rig::of_larger(&blank, DATA));
    let live = Rc::new(rig.open(&text("20s")));
    rig.fill(&rig.client(&live), 0x5a);
    // The vault has nothing to write when it is closed next, and no region is dirty.
    become_graph(&rig, &live, &text("21s"));
    rig.pass(LIMIT);

    let (own, its, wanted) = (rig.clone(), live.clone(), after.clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let (planned, probe) = own.look(&wanted, opening(true), now.labels.as_ref()).await?;
        its.change(&turn, planned, Some(probe), LIMIT).await?;
        own.world.env().sleep(Duration::from_millis(100)).await;
        Ok::<_, Unchanged>(())
    };
    let mut seen = BTreeSet::new();
    let changed = moments(&rig, change, |images| {
        for kept in [0, 1] {
            let images = images.iter().enumerate().map(|(n, image)| image.cut(|_, _| n == kept));
            let images: Vec<_> = images.collect();
            if !seen.insert([images[0].digest(), images[1].digest()]) {
                continue;
            }
            let rig = Rig::of_larger(&images, DATA);
            let live = rig.open(&after);
            assert!(rig.holds(&rig.client(&live), 0x5a), "what was flushed is there");
            rig.pass(LIMIT);
            let data = ByteRange::new(meta::DATA_START, DATA).unwrap();
            let is_alike = rig.disks[0].peek(data) == rig.disks[1].peek(data);
            assert!(is_alike, "the power cut kept the unflushed writes of d{kept} alone");
        }
    });
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
}

/// The server sends a long write-zeroes request to the graph piece by piece. A live change waits only for the piece in
/// flight, and the later pieces go to the new graph.
#[test]
fn member_added_during_long_write_zeroes_has_zeroes() {
    const PIECES: u64 = 8;
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1], false));
    rig.pass(LIMIT);
    let (env, portal) = (rig.world.env(), live.portal("vol").unwrap());
    let limits = Limits { piece_bytes: PIECE as u64, ..Limits::default() };
    let export = Export::new(&env, &rig.engine, &portal, "");
    let server = Server::new(&env, ExportList::new([export]), limits, |_| {});
    let at = Address::Unix("/socket".into());
    server.serve(env.listen(&at).unwrap());
    let connecting = Connection::connect(&env, &at, ClientConfig::connect("vol"));
    let connection = rig.world.block_on(connecting).unwrap().unwrap();
    let data = env.buf(PIECES as usize * PIECE).unwrap();
    data.write().fill(0x5a);
    let send =
        |command, buf| connection.start(command, CommandFlags::NONE, 0, PIECES * PIECE as u64, buf);
    rig.world.block_on(send(Command::Write, Some(data))).unwrap().result.unwrap();

    let zeroing = send(Command::WriteZeroes, None);
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[0, 1, 2], false), opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    let changed = rig.world.block_on(changing).unwrap();
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    rig.world.block_on(zeroing).unwrap().result.unwrap();
    rig.pass(LIMIT);
    let range = ByteRange::new(meta::DATA_START, PIECES * PIECE as u64).unwrap();
    for disk in &rig.disks {
        assert!(disk.peek(range).iter().all(|byte| *byte == 0), "an old byte is left");
    }
}

/// After an orderly close, the next start resyncs no member, so the members of the mirror must be equal.
#[test]
fn graph_flush_before_close_waits_for_write_of_disconnected_client() {
    let rig = Rig::of_speeds(&[NS_MAX / 50, NS_MAX]);
    let live = rig.open(&text(&[0, 1], false));
    rig.pass(LIMIT);
    let range = ByteRange::new(meta::DATA_START + piece().start(), PIECE as u64).unwrap();
    let is_on = |disk: usize, byte| rig.disks[disk].peek(range).iter().all(|is| *is == byte);
    // The flush of a disk may overtake its write.
    for byte in 1..20 {
        let data = rig.world.env().buf(PIECE).unwrap();
        data.write().fill(byte);
        drop(rig.client(&live).send(Op::Write {
            range: piece(),
            data,
            fua: false,
            restores: block::Copies::NONE,
        }));
        while !is_on(0, byte) {
            rig.pass(Duration::from_nanos(NS_MAX / 100));
        }
        assert!(rig.world.block_on(live.flush()).unwrap().is_empty());
        assert!(is_on(1, byte), "the write is under way still");
    }
}

/// After a live change has replaced a mirror, the old mirror must not overwrite the new mirror's state in the labels.
#[test]
fn label_refuses_state_of_device_replaced_by_change() {
    let rig = Rig::new(2);
    let live = rig.open(&text(&[0, 1], false));
    rig.pass(LIMIT);
    let now = live.now();
    let mirror = now.planned.nodes.iter().position(|node| node.name == "m").unwrap();
    let labels = now.labels.as_ref().unwrap();
    let kept = || Rc::new(labels.kept(&now.planned, mirror, None));
    let (before, after) = (kept(), kept());
    let write = |kept: &dyn StateStore, byte: u8| {
        let written = rig.world.block_on(kept.write(&[0], vec![byte])).unwrap();
        written.into_iter().next().unwrap().1
    };
    write(&*after, 1).unwrap();
    write(&*before, 1).expect("the same state again");
    write(&*after, 2).unwrap();
    let equal = write(&*before, 3).expect_err("the number is taken");
    assert_eq!(equal.kind(), ErrorKind::Stopped, "{equal}");
    write(&*after, 4).unwrap();
    write(&*after, 5).unwrap();
    write(&*before, 6).expect_err("a later state is there");
    write(&*after, 7).unwrap();
}

/// A handle to a device that a live change has closed must return an error, and must not reach another device.
#[test]
fn closed_device_refuses_requests_after_live_change() {
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1], false));
    rig.pass(LIMIT);
    let old = rig.engine.lower(live.now().graph.exports()[0].node);
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[0, 1, 2], false), opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    rig.world.block_on(changing).unwrap().unwrap();
    let data = rig.world.env().buf(PIECE).unwrap();
    let late = rig.world.block_on(old.call(Op::write(piece(), data))).unwrap();
    assert_eq!(late.result.unwrap_err().kind(), ErrorKind::Stopped);
}

/// A command to a mirror that a live change replaces must wait, because the closed mirror can write no state any more.
#[test]
fn command_waits_while_live_change_replaces_device() {
    let rig = Rc::new(Rig::new(3));
    let before = text(&[0, 1], false);
    let live = Rc::new(rig.open(&before));
    rig.pass(LIMIT);
    let (own, its) = (rig.clone(), live.clone());
    let change = async move {
        let (turn, now) = (its.turn().await, its.now());
        let after = text(&[0, 1, 2], false);
        let looked = own.look(&after, opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        its.change(&turn, planned, Some(probe), LIMIT).await
    };
    let mut waiting = Vec::new();
    let changed = moments(&rig, change, |_| {
        if live.now().graph.is_closed("m") {
            let live = live.clone();
            let stop = Action { stop: true, ..Action::default() };
            let mut command: LocalFuture<block::Result<Nothing>> =
                Box::pin(async move { live.ask::<Scrub>("m", stop).await });
            let polled = command.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "no device takes it now");
            waiting.push(command);
        }
    });
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    assert!(waiting.len() > 10, "{} commands came in the midst of the change", waiting.len());
    for answer in rig.world.block_on(all(waiting)).unwrap() {
        answer.unwrap();
    }
    let fail = live.ask::<Fail>("m", Name { member: "d2".to_owned() });
    rig.world.block_on(fail).unwrap().expect("the device of the new graph has that member");
}

/// The live change calls the function passed to `change_and` before any request of a client begins in the new graph.
#[test]
fn live_change_calls_hook_before_requests_of_clients() {
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1], false));
    rig.pass(LIMIT);
    let client = rig.client(&live);
    let into = rig.world.env().buf(PIECE).unwrap();
    let early = Cell::new(None);
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[0, 1, 2], false), opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        let before_clients = || {
            assert!(live.now().graph.member("d2").is_some(), "it has happened");
            early.set(Some(client.send(Op::read(piece(), into))));
        };
        live.change_and(&turn, planned, Some(probe), LIMIT, before_clients).await
    };
    rig.world.block_on(changing).unwrap().unwrap();
    let early = rig.world.block_on(early.take().expect("it was called")).unwrap();
    let error = early.result.expect_err("no client's request begins");
    assert!(error.to_string().contains("no request slot is free"), "{error}");
    rig.fill(&client, 0x5a);
    assert!(rig.holds(&client, 0x5a));
}

/// The new export of a failed live change must not keep disks open, so that a second attempt can open the disks.
#[test]
fn failed_live_change_with_new_export_releases_disks() {
    let rig = Rig::new(3);
    let all = text(&[0, 1, 2], false);
    let live = rig.open(&all);
    rig.pass(LIMIT);
    let change = |to: &str, wipe: Vec<String>| {
        let changing = async {
            let (turn, now) = (live.turn().await, live.now());
            let opening = Opening { wipe, ..opening(true) };
            let (planned, probe) = rig.look(to, opening, now.labels.as_ref()).await?;
            live.change(&turn, planned, Some(probe), LIMIT).await
        };
        rig.world.block_on(changing).unwrap()
    };

    rig.disks[2].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let failed = change(&format!("{all}second = {{ on = \"m\", read_only = true }}\n"), vec![]);
    assert!(matches!(failed, Err(Unchanged::Failed(_))), "{failed:?}");
    rig.disks[2].set_faults(Faults::default());

    change(&text(&[0, 1], false), vec![]).unwrap();
    // It can be opened anew, because no handle is left.
    change(&all, vec!["d2".to_owned()]).unwrap();
}

/// The states of devices that the live change held back are lost if a disk's label cannot be written at the undo. The
/// mirror must then fail the disk, also without a write of a client.
#[test]
fn mirror_fails_disk_that_misses_undo_of_live_change() {
    let rig = Rig::new(3);
    let before = text(&[0, 1, 2], false);
    let live = rig.open(&before);
    rig.pass(LIMIT);
    rig.disks[2].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let after = before.replace("kind = \"mirror\"", "kind = \"mirror\", timeout = \"7s\"");
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let (planned, probe) = rig.look(&after, opening(true), now.labels.as_ref()).await?;
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    let changed = rig.world.block_on(changing).unwrap();
    assert!(matches!(changed, Err(Unchanged::Failed(_))), "{changed:?}");
    rig.pass(Duration::from_secs(1));
    let now = live.now();
    let report = now.graph.report(now.graph.member("m").unwrap());
    let states: Vec<_> = report.members.iter().map(|member| member.state).collect();
    assert_eq!(
        states,
        [MemberState::InSync, MemberState::InSync, MemberState::Failed],
        "{report:?}"
    );
}

/// A live change reopens a disk with other options. Its label must keep the states that the old devices wrote after the
/// change had read the label.
#[test]
fn label_keeps_device_states_written_after_probe_of_change() {
    let rig = Rig::new(2);
    let before = text(&[0, 1], false);
    let live = rig.open(&before);
    rig.pass(LIMIT);
    rig.fill(&rig.client(&live), 0x11);
    let after = before.replace("label = true", "label = true, cache = \"buffered\"");
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let (planned, probe) = rig.look(&after, opening(true), now.labels.as_ref()).await?;
        // One member misses a write. The label of the other one records this before the write is acknowledged.
        let (client, data) = (rig.client(&live), rig.world.env().buf(PIECE).unwrap());
        data.write().fill(0x5a);
        rig.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
        client
            .send(Op::Write { range: piece(), data, fua: true, restores: block::Copies::NONE })
            .await
            .result
            .unwrap();
        rig.disks[1].set_faults(Faults::default());
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    let changed = rig.world.block_on(changing).unwrap();
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    let states = |live: &RunningGraph| -> Vec<MemberState> {
        let now = live.now();
        let report = now.graph.report(now.graph.member("m").unwrap());
        report.members.iter().map(|member| member.state).collect()
    };
    // The write is copied to that member before it counts as in sync, possibly within the change.
    let has_it = |rig: &Rig| {
        let range = ByteRange::new(meta::DATA_START, PIECE as u64).unwrap();
        rig.disks[1].peek(range).iter().all(|byte| *byte == 0x5a)
    };
    assert_eq!(states(&live)[0], MemberState::InSync);
    assert!(states(&live)[1] != MemberState::InSync || has_it(&rig));

    // The next process must know it, too.
    let images: Vec<_> = rig.disks.iter().map(|disk| disk.image()).collect();
    let next = Rig::of(&images);
    let live = next.open(&after);
    assert!(states(&live)[1] != MemberState::InSync || has_it(&next));
    assert!(next.holds(&next.client(&live), 0x5a));
}

/// A live change writes the removal to the label of the removed disk. Clients must not wait for this write if the disk
/// hangs.
#[test]
fn clients_do_not_wait_for_hung_disk_that_change_removes() {
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1, 2], false));
    rig.pass(LIMIT);
    let ill = Name { member: "d2".to_owned() };
    rig.world.block_on(live.ask::<Fail>("m", ill)).unwrap().unwrap();
    rig.pass(Duration::from_secs(1));
    rig.disks[2].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let env = rig.world.env();
    let (begun, client) = (env.now(), rig.client(&live));
    let waited = Rc::new(Cell::new(None));
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[0, 1], false), opening(true), now.labels.as_ref()).await;
        let (planned, probe) = looked?;
        let (told, clock) = (waited.clone(), env.clone());
        env.spawn("a client", async move {
            clock.sleep(Duration::from_millis(1)).await;
            // While clients are suspended there is no room for their requests.
            while client.send(Op::Flush).await.result.is_err() {
                clock.sleep(Duration::from_millis(1)).await;
            }
            told.set(Some(clock.now().since(begun)));
        });
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    let changed = rig.world.block_on(changing).unwrap();
    changed.unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
    let waited = waited.get().expect("it was answered before the change was told");
    assert!(waited < Duration::from_millis(500), "{waited:?}");
}

/// A write to a mirror must first mark its region as dirty in the labels. It waits no longer than the mirror's timeout
/// for the label of a disk that hangs.
#[test]
fn mirror_write_does_not_wait_for_label_of_hung_disk() {
    let rig = Rig::new(2);
    let mirror = "kind = \"mirror\", timeout = \"1s\"";
    let live = rig.open(&text(&[0, 1], false).replace("kind = \"mirror\"", mirror));
    // Long enough for dirty regions to become clean again.
    rig.pass(LIMIT);
    let client = rig.client(&live);
    rig.disks[1].set_faults(Faults { hang: 1_000_000, ..Faults::default() });
    let (env, begun) = (rig.world.env(), rig.world.env().now());
    let data = env.buf(PIECE).unwrap();
    data.write().fill(0x5a);
    rig.call(&client, Op::Write { range: piece(), data, fua: true, restores: block::Copies::NONE });
    let took = env.now().since(begun);
    assert!(took < Duration::from_secs(3), "{took:?}");
    let now = live.now();
    let report = now.graph.report(now.graph.member("m").unwrap());
    let states: Vec<_> = report.members.iter().map(|member| member.state).collect();
    assert_eq!(states, [MemberState::InSync, MemberState::Failed], "{report:?}");
    assert!(rig.holds(&client, 0x5a));
}

/// Returns the newest label on the disk number `disk`.
fn label_on(rig: &Rig, disk: usize) -> Label {
    let area = |area: Area| rig.disks[disk].peek(area.range());
    let areas = [area(Area::Front), area(Area::Back(DATA_BYTES))];
    let (_, label) = meta::newest(areas.iter().map(Vec::as_slice)).unwrap().unwrap();
    label
}

/// Returns the mirror's record in the newest label on the disk number `disk`.
fn record_on(rig: &Rig, disk: usize) -> Record {
    Record::decode(&label_on(rig, disk).cells["m"].bytes).unwrap()
}

/// An interrupted first start may have updated a disk's label several times. The first label that the next start writes
/// must already count as newer than these.
#[test]
fn first_label_of_start_is_newer_than_labels_of_interrupted_start() {
    let cut = Rig::new(3);
    // So that its graph gets another uuid than the one below.
    Uuid::draw(&cut.world.env());
    let beginning = async {
        let (planned, probe) = cut.look(&text(&[1, 2], false), opening(false), None).await?;
        probe.begin(&planned).await.map_err(Unchanged::Refused).map(drop)
    };
    cut.world.block_on(beginning).unwrap().unwrap();
    let left = label_on(&cut, 2);
    assert!(left.provisioning && left.sequence > 1, "{left:?}");

    let rig = Rig::new(3);
    drop(rig.open(&text(&[0, 1], false)));
    let images = [&rig.disks[0], &rig.disks[1], &cut.disks[2]].map(|disk| disk.image());
    let rig = Rig::of(&images);
    let preparing = async {
        let (planned, probe) = rig.look(&text(&[0, 1, 2], false), opening(false), None).await?;
        probe.prepare(&planned).await.map_err(Unchanged::Refused).map(drop)
    };
    rig.world.block_on(preparing).unwrap().unwrap();
    let (known, new) = (label_on(&rig, 0), label_on(&rig, 2));
    assert!(known.graph == new.graph && new.graph != left.graph, "{new:?}");
}

/// A record that the mirror sent to a failed member may be on the member's disk without an acknowledgement. A mirror
/// that a live change makes again must know this record; otherwise it would look like a split brain.
#[test]
fn recreated_mirror_remembers_states_sent_to_failed_member() {
    let rig = Rig::new(3);
    let mirror = "kind = \"mirror\"";
    let before = text(&[0, 1, 2], false).replace(mirror, &format!("{mirror}, spares = 1"));
    let live = rig.open(&before);
    rig.pass(LIMIT);
    // The spare takes its place, so no later state is sent to it.
    rig.disks[0].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    rig.fill(&rig.client(&live), 0x5a);
    rig.pass(Duration::from_secs(1));
    let of_failed = |record: &Record| record.member("d0").unwrap().clone();
    let then = of_failed(&record_on(&rig, 1));
    assert!(
        then.sent.events > then.known.events,
        "it has not acknowledged the last state: {then:?}"
    );

    let after = before.replace(mirror, &format!("{mirror}, timeout = \"7s\""));
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let (planned, probe) = rig.look(&after, opening(true), now.labels.as_ref()).await?;
        live.change(&turn, planned, Some(probe), LIMIT).await
    };
    let changed = rig.world.block_on(changing).unwrap();
    assert!(matches!(changed, Err(Unchanged::Failed(_))), "{changed:?}");
    rig.fill(&rig.client(&live), 0x5a);
    let now = record_on(&rig, 1);
    assert!(now.generation.events > then.sent.events + 1, "another mirror has written it: {now:?}");
    assert_eq!(of_failed(&now).sent, then.sent);
}

/// A graph flush must also reach a device without an export, because the device may have a cache. A disk below another
/// device is flushed through that device.
#[test]
fn graph_flush_reaches_exported_and_uppermost_devices() {
    let rig = Rig::new(2);
    let spec = "name = \"g\"\n[disk]\nd0 = { path = \"/disk0\", label = true }\n\
                d1 = { path = \"/disk1\", label = true }\n[device]\n\
                alone = { kind = \"pass\", on = \"d1\" }\n[export]\n\
                vol = { on = \"d0\" }\n";
    let live = rig.open(spec);
    let now = live.now();
    let flushed: Vec<_> = now.graph.flushed().map(|(name, _)| name).collect();
    assert_eq!(flushed, ["vol", "alone"]);
}

/// A spec from before the end of a migration would encrypt the volume a second time. The start must refuse the spec,
/// and change no byte of the volume.
#[test]
fn start_rejects_spec_of_migration_that_has_ended() {
    let disk = "name = \"g\"\n[disk]\nd0 = { path = \"/disk0\", label = true }\n[device]\n";
    let safe = "safe = { kind = \"crypt\", on = \"d0\", key = \"credential:safe\", \
                kdf_memory = \"64KiB\", kdf_passes = 1 }\n";
    let spec =
        |devices: &str, on: &str| format!("{disk}{devices}[export]\nvol = {{ on = \"{on}\" }}\n");
    let migrate = |on: &str| format!("{safe}move = {{ kind = \"migrate\", on = [{on}] }}\n");
    let plain = spec("", "d0");
    let encrypted = spec(safe, "safe");
    let [encrypts, decrypts] =
        [migrate("\"d0\", \"safe\""), migrate("\"safe\", \"d0\"")].map(|it| spec(&it, "move"));
    let mut images: Vec<_> = Rig::new(1).disks.iter().map(|disk| disk.image()).collect();
    for (before, during, after) in
        [(&plain, &encrypts, &encrypted), (&encrypted, &decrypts, &plain)]
    {
        let rig = Rig::of(&images);
        let live = rig.open(before);
        rig.fill(&rig.client(&live), 0x5a);
        become_graph(&rig, &live, during);
        rig.pass(LIMIT);
        become_graph(&rig, &live, after);
        images = rig.disks.iter().map(|disk| disk.image()).collect();
        match Rig::of(&images).try_open(during) {
            Err(Unchanged::Refused(why)) => {
                assert_eq!(why[0].reason(), Some(Reason::LabelForgotten), "{}", why[0])
            }
            Err(unchanged) => panic!("{unchanged:?}"),
            Ok(_) => panic!("it would move again: {during}"),
        }
        let rig = Rig::of(&images);
        let live = rig.open(after);
        assert!(rig.holds(&rig.client(&live), 0x5a), "{after}");
    }
}

fn become_graph(rig: &Rig, live: &RunningGraph, text: &str) {
    let change = async {
        let (turn, now) = (live.turn().await, live.now());
        let (planned, probe) = rig.look(text, opening(true), now.labels.as_ref()).await?;
        live.change(&turn, planned, Some(probe), LIMIT).await.map(drop)
    };
    rig.world.block_on(change).unwrap().unwrap_or_else(|unchanged| panic!("{unchanged:?}"));
}
