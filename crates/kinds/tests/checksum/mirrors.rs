//! A device over the kind `mirror`: the numbers of its copies, repair, and the count of wrong bytes.

use std::rc::Rc;
use std::time::Duration;

use block::{ByteRange, Lower, MemberState, Op};
use kind::Value;
use kinds::checksum::{BLOCK_BYTES, Core, Redundancy};
use meta::vault::Vault;
use sim::draw::Stream;
use sim::{Assembly, DiskConfig, PartId, Profile, SimDisk, SimWorld};

use crate::scene::{
    BLOCKS, Crash, DATA_BYTES, VAULT_BYTES, block_on, content, format_vault, open_core, read, run,
};

/// A mirror of two simulated disks, and a third disk for the vault.
struct Mirror {
    world: SimWorld,
    disks: Vec<Rc<SimDisk>>,
    graph: Assembly,
    mirror: PartId,
    vault: Lower,
}

impl Mirror {
    fn new() -> Self {
        let world = SimWorld::new(1);
        let sizes = [DATA_BYTES, DATA_BYTES, VAULT_BYTES];
        let disk = |(n, size): (usize, &u64)| {
            let config = DiskConfig::new(*size, Profile::Native512);
            let disk = SimDisk::new(&world, n as u64, config);
            world.plug(format!("/disk{n}"), &disk);
            disk
        };
        let disks: Vec<_> = sizes.iter().enumerate().map(disk).collect();
        let order = Stream::new(1, "order", 0);
        let mut graph = Assembly::new(&world.env(), kinds::REGISTRY, false, order).in_world(&world);
        let mut part = |n: usize| {
            graph.add("path", &[("path", Value::Text(format!("/disk{n}")))], &[]).unwrap()
        };
        let parts = [part(0), part(1), part(2)];
        let trust = Value::Text(graph.name(parts[0]).to_owned());
        let mirror = graph.add("mirror", &[("trust", trust)], &parts[..2]).unwrap();
        // The second member gets a resync.
        world.run(world.env().now().after(Duration::from_secs(60))).unwrap();
        let vault = graph.lower(parts[2]);
        Self { world, disks, graph, mirror, vault }
    }

    async fn open(&self) -> (Core, Vault) {
        let data = self.graph.lower(self.mirror);
        assert_eq!(data.info().copies, 2);
        let lowers = (&self.vault, &self.vault, data);
        let env = self.world.env();
        open_core(&env, lowers, Crash::Regions, Redundancy::Below).await.unwrap()
    }

    fn errors(&self) -> Vec<(u64, MemberState)> {
        let members = self.graph.report(self.mirror).members;
        members.iter().map(|member| (member.errors, member.state)).collect()
    }
}

#[test]
fn scan_restores_rotten_blocks_of_both_members_of_mirror() {
    let mirror = Mirror::new();
    let env = mirror.world.env();
    block_on(&mirror.world, async {
        let data = mirror.graph.lower(mirror.mirror);
        format_vault(&env, &mirror.vault, &data, true).await;
        let (core, vault) = mirror.open().await;
        for block in 0..BLOCKS {
            let data = env.buf(BLOCK_BYTES as usize).unwrap();
            data.write().copy_from_slice(&content(block, 1));
            core.submit(&mut Op::write(run(block, 1), data)).await.unwrap();
        }
        core.submit(&mut Op::Flush).await.unwrap();
        // The process dies before the regions are cleared.
        drop((core, vault));
        assert!(mirror.disks[0].rot(2 * BLOCK_BYTES + 5));
        assert!(mirror.disks[1].rot(3 * BLOCK_BYTES + 600));
        assert!(mirror.disks[1].rot(6 * BLOCK_BYTES + 4000));
        let (core, _vault) = mirror.open().await;
        env.sleep(Duration::from_secs(5)).await;
        let numbers = core.numbers();
        assert_eq!((numbers.repaired, numbers.accepted, numbers.damaged), (3, 0, 0));
        assert_eq!(numbers.unverified_bytes, 0);
        let whole = ByteRange::new(0, DATA_BYTES).unwrap();
        let expected: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 1)).collect();
        for disk in &mirror.disks[..2] {
            assert!(disk.peek(whole) == expected);
        }
        assert_eq!(read(&env, &core, whole, false).await.unwrap(), expected);
        // The crash may be the reason of the differences.
        assert_eq!(mirror.errors(), [(0, MemberState::InSync); 2]);
    });
}

#[test]
fn mirror_retires_member_that_rots() {
    let mirror = Mirror::new();
    let env = mirror.world.env();
    block_on(&mirror.world, async {
        let data = mirror.graph.lower(mirror.mirror);
        format_vault(&env, &mirror.vault, &data, true).await;
        let (core, vault) = mirror.open().await;
        for round in 0..3 {
            for block in 0..BLOCKS {
                let data = env.buf(BLOCK_BYTES as usize).unwrap();
                data.write().copy_from_slice(&content(block, round + 1));
                core.submit(&mut Op::write(run(block, 1), data)).await.unwrap();
            }
            core.submit(&mut Op::Flush).await.unwrap();
            (0..BLOCKS).for_each(|block| {
                mirror.disks[1].rot(block * BLOCK_BYTES + 9);
            });
            for block in 0..BLOCKS {
                for _ in 0..4 {
                    let found = read(&env, &core, run(block, 1), false).await.unwrap();
                    assert!(found == content(block, round + 1));
                }
            }
        }
        assert_eq!(mirror.errors()[1].1, MemberState::Failed);
        assert_eq!(mirror.errors()[0], (0, MemberState::InSync));
        drop((core, vault));
    });
}
