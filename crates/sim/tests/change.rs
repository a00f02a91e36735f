//! A member that fails in the middle of a change.

mod common;

use std::time::Duration;

use block::Op;
use common::{PIECE, Rig, opening, piece, text};
use graph::live::Unchanged;
use sim::Faults;

#[test]
fn the_last_member_with_every_write_is_not_removed() {
    let rig = Rig::new(3);
    let live = rig.open(&text(&[0, 1], false));
    let env = rig.world.env();
    rig.pass(Duration::from_secs(60));
    let client = rig.client(&live);
    let data = env.buf(PIECE).unwrap();
    data.write().fill(0x5a);

    // A write is under way when the change begins; one member misses it, and works again at once.
    rig.disks[1].set_faults(Faults { write_error: 1_000_000, ..Faults::default() });
    let changing = async {
        let (turn, now) = (live.turn().await, live.now());
        let looked = rig.look(&text(&[1, 2], false), opening(true), now.labels.as_ref()).await;
        let (planned, survey) = looked?;
        let write = client.send(Op::Write { range: piece(), data, fua: false });
        let ill = rig.disks[1].clone();
        env.spawn("a write", async move {
            write.await.result.expect("the other member has it");
            ill.set_faults(Faults::default());
        });
        live.change(&turn, planned, Some(survey), Duration::from_secs(30)).await
    };
    let came = rig.world.block_on(changing).unwrap();

    let Err(Unchanged::Failed(error)) = came else { panic!("it is refused: {came:?}") };
    assert!(error.to_string().contains("would show other bytes"), "{error}");
    assert!(rig.holds(&client, 0x5a), "what was answered is there");
}
