//! Merges, lookups and walks of single trees.

use pool::map::{
    Changed, Changes, Content, Form, Found, FromIter, Layer, MergeOptions, Overwritten, Reader,
    Root, Run, RunChange, RunKind, SumKind, Sums, TreeKind, merge_runs, nodes_after, settle,
    write_interval,
};
use pool::{Address, NUMBER_MAX};

use crate::golden::{data, hole, leaves, options, scattered};
use crate::store::{TestStore, block_on};

fn merge(store: &TestStore, tree: &Root, runs: Vec<RunChange>, found: &mut Found) -> Root {
    let merged =
        merge_runs(store, tree, FromIter(runs.into_iter()), false, options(1 << 30), found);
    block_on(merged).unwrap().root
}

/// Returns the pieces of a range as text.
fn pieces(store: &TestStore, layers: &[Layer], from: u64, end: u64) -> Vec<String> {
    let mut reader = Reader::new(store, layers).unwrap();
    let (mut block, mut all) = (from, Vec::new());
    while block < end {
        let piece = block_on(reader.piece(block, end)).unwrap();
        assert_eq!(piece.block, block);
        let content = match piece.content {
            Content::Data { address, birth, sums, .. } => {
                assert_eq!(sums.bytes().len() as u64, piece.blocks * 4);
                format!("{} from {} birth {birth}", piece.blocks, address.bits())
            }
            Content::Hole { .. } => format!("{} hole", piece.blocks),
            Content::Absent => format!("{} absent", piece.blocks),
        };
        all.push(content);
        block += piece.blocks;
    }
    all
}

fn top_layer(tree: Root) -> Layer {
    Layer { tree, limit: NUMBER_MAX }
}

#[test]
fn lookup_returns_pieces_of_several_trees() {
    let store = TestStore::default();
    let form = |kind| Form::runs(kind, 1, SumKind::Crc32c);
    let mut found = Found::default();
    let base = Root::empty(form(TreeKind::Base));
    let base =
        merge(&store, &base, vec![data(10, 20, 110, 1, 1), data(40, 5, 140, 2, 2)], &mut found);
    let change = Root::empty(form(TreeKind::Change));
    let runs = vec![data(12, 2, 212, 3, 3), hole(20, 22, 4, 4)];
    let change = merge(&store, &change, runs, &mut found);
    let layers = [top_layer(change), top_layer(base)];
    let expected = [
        "10 absent",
        "2 from 110 birth 1",
        "2 from 212 birth 3",
        "6 from 114 birth 1",
        "22 hole",
        "3 from 142 birth 2",
        "5 absent",
    ];
    assert_eq!(pieces(&store, &layers, 0, 50), expected);
    assert_eq!(pieces(&store, &layers, 13, 16), ["1 from 213 birth 3", "2 from 114 birth 1"]);
    // A tree whose births do not count is passed over.
    let older = [Layer { tree: change, limit: 2 }, top_layer(base)];
    assert_eq!(
        pieces(&store, &older, 10, 30),
        ["2 from 110 birth 1", "2 from 112 birth 1", "6 from 114 birth 1", "10 from 120 birth 1"]
    );
}

#[test]
fn version_with_more_than_sixteen_trees_is_refused() {
    let store = TestStore::default();
    let tree = Root::empty(Form::runs(TreeKind::Change, 1, SumKind::Crc32c));
    assert!(Reader::new(&store, &[top_layer(tree); 16]).is_ok());
    assert!(Reader::new(&store, &[top_layer(tree); 17]).is_err());
}

#[test]
fn merge_reports_overwritten_parts_with_first_overwrite_as_death() {
    let store = TestStore::default();
    let form = |kind| Form::runs(kind, 1, SumKind::Crc32c);
    let mut found = Found::default();
    let base =
        merge(&store, &Root::empty(form(TreeKind::Base)), vec![data(0, 30, 100, 1, 1)], &mut found);
    let change = Root::empty(form(TreeKind::Change));
    let change = merge(&store, &change, vec![data(5, 10, 200, 4, 3)], &mut found);
    let change = merge(&store, &change, vec![data(8, 4, 300, 9, 7)], &mut found);
    let dead = |bits, blocks, birth, death| Overwritten {
        address: Address::from_bits(bits),
        blocks,
        birth,
        death,
    };
    // The part of the change tree died at 7. It had replaced the base at 3.
    assert_eq!(found.blocks, [dead(203, 4, 4, 7)]);
    let mut found = Found::default();
    let source = pool::map::FoldSource::new(&store, &change, 0);
    let folded = merge_runs(&store, &base, source, false, options(1 << 30), &mut found);
    block_on(folded).unwrap();
    assert_eq!(found.blocks, [dead(105, 10, 1, 3)]);
}

#[test]
fn large_hole_is_one_run_and_removes_leaves_below_it() {
    let store = TestStore::default();
    let base = scattered(&store, 5000);
    assert!(base.top.unwrap().1 == 2);
    let mut found = Found::default();
    let change = Root::empty(Form::runs(TreeKind::Change, 7, SumKind::Crc32c));
    let change = merge(&store, &change, vec![hole(100, 1 << 34, 9000, 9000)], &mut found);
    assert_eq!((change.items, change.nodes), (1, 1));
    let mut found = Found::default();
    let source = pool::map::FoldSource::new(&store, &change, 0);
    let merged = merge_runs(&store, &base, source, false, options(1 << 30), &mut found);
    let base = block_on(merged).unwrap().root;
    assert_eq!((base.items, base.nodes, base.top.unwrap().1), (50, 1, 1));
    assert_eq!(found.blocks.iter().map(|run| run.blocks).sum::<u64>(), 4950);
}

#[test]
fn base_tree_keeps_holes_only_if_they_hide_an_origin() {
    let store = TestStore::default();
    let base = Root::empty(Form::runs(TreeKind::Base, 7, SumKind::Crc32c));
    for keep in [false, true] {
        let runs = FromIter([hole(5, 10, 3, 3), data(20, 1, 70, 3, 3)].into_iter());
        let mut found = Found::default();
        let merged = merge_runs(&store, &base, runs, keep, options(4), &mut found);
        assert_eq!(block_on(merged).unwrap().root.items, 1 + u64::from(keep));
    }
}

#[test]
fn merge_in_parts_equals_merge_in_one() {
    let store = TestStore::default();
    let base = scattered(&store, 5000);
    let runs = || (0..3000_u64).map(|n| data(n * 3, 1, n % 60 + 1, 7000, 7000));
    let mut found = Found::default();
    let whole = merge(&store, &base, runs().collect(), &mut found);
    let (mut parts, mut from, mut count, mut in_parts) = (base, Some(0), 0, Found::default());
    while let Some(block) = from {
        let rest = FromIter(runs().filter(move |change| change.run.block >= block));
        let options = MergeOptions { birth: 1 << 30, leaves_max: Some(3) };
        let merged = merge_runs(&store, &parts, rest, false, options, &mut in_parts);
        let merged = block_on(merged).unwrap();
        (parts, from) = (merged.root, merged.rest.map(|key| key[0]));
        count += 1;
        assert!(merged.written < 12, "a part of {} nodes", merged.written);
    }
    assert!(count > 3, "only {count} parts");
    let all = |root: &Root| pieces(&store, &[top_layer(*root)], 0, 10_000);
    assert_eq!(all(&parts), all(&whole));
    let blocks = |found: &Found| found.blocks.iter().map(|run| run.blocks).sum::<u64>();
    assert_eq!(blocks(&in_parts), blocks(&found));
}

#[test]
fn merge_of_few_changes_copies_their_paths_only() {
    let store = TestStore::default();
    let base = scattered(&store, 300_000);
    assert_eq!(base.top.unwrap().1, 3);
    let mut found = Found::default();
    let runs = FromIter([data(60_000, 1, 9, 1 << 30, 1 << 30)].into_iter());
    let merged = merge_runs(&store, &base, runs, false, options(1 << 30), &mut found);
    let merged = block_on(merged).unwrap();
    // Three nodes were full, and two of them became two.
    assert!(merged.written <= 5 && found.nodes.len() == 3, "{} written", merged.written);
    let mut shared = Found::default();
    block_on(nodes_after(&store, &merged.root, (1 << 30) - 1, &mut shared)).unwrap();
    assert_eq!(shared.nodes.len() as u64, merged.written, "walks into no older node");
}

#[test]
fn interval_tree_returns_newest_birth_up_to_limit_over_many_leaves() {
    let store = TestStore::default();
    let mut changes = Changes::new(4, 1);
    let mut found = Found::default();
    changes.write(data(0, 40, 1000, 1, 1), &mut found);
    for birth in 2..3000 {
        changes.write(data(20, 4, 64 * birth, birth, birth), &mut found);
    }
    let form = Form::runs(TreeKind::Interval, 1, SumKind::Crc32c);
    let root = block_on(write_interval(&store, form, &changes, 1, 2500, &mut found)).unwrap();
    assert!(leaves(&store, &root).len() > 3);
    for limit in [1, 2, 3, 700, 1500, 2499, 2500, NUMBER_MAX] {
        let seen = limit.min(2500);
        let bits = if seen == 1 { 1021 } else { 64 * seen + 1 };
        let layers = [Layer { tree: root, limit }];
        assert_eq!(pieces(&store, &layers, 21, 22), [format!("1 from {bits} birth {seen}")]);
    }
    assert_eq!(pieces(&store, &[Layer { tree: root, limit: 0 }], 0, 40).len(), 3);
    assert_eq!(pieces(&store, &[top_layer(root)], 10, 26).len(), 3);
}

#[test]
fn changes_keep_versions_that_snapshots_see_and_no_others() {
    let mut changes = Changes::new(4, 1);
    let mut found = Found::default();
    changes.write(data(10, 10, 100, 1, 1), &mut found);
    changes.write(data(12, 2, 200, 1, 1), &mut found);
    changes.write(data(13, 4, 300, 5, 5), &mut found);
    let dead = |bits, blocks, death| Overwritten {
        address: Address::from_bits(bits),
        blocks,
        birth: 1,
        death,
    };
    assert_eq!(found.blocks, [dead(102, 2, 1), dead(201, 1, 5), dead(104, 3, 5)]);
    let at = |block, limit| match changes.find(block, 100, limit) {
        Changed::Run(RunChange { run: Run { address, blocks, .. }, .. }) => {
            (address.bits(), blocks)
        }
        Changed::Gap(end) => (0, end - block),
    };
    assert_eq!(at(13, 4), (201, 1));
    assert_eq!(at(14, 4), (104, 3));
    assert_eq!(at(14, 5), (301, 3));
    assert_eq!(at(14, 0), (0, 3));
    assert_eq!(at(25, 9), (0, 75));
    let newest: Vec<_> =
        changes.newest().map(|it| (it.run.block, it.run.birth, it.run.first)).collect();
    assert_eq!(newest, [(10, 1, 1), (12, 1, 1), (13, 5, 1), (14, 5, 1), (17, 1, 1)]);
}

#[test]
fn run_of_unknown_kind_is_kept_and_fails_reads() {
    let store = TestStore::default();
    let base = Root::empty(Form::runs(TreeKind::Base, 7, SumKind::Crc32c));
    let of_kind = |bits| {
        let mut change = data(5, 1, 9, 1, 1);
        change.run.kind = RunKind::from_bits(bits);
        vec![change, data(50, 1, 19, 1, 1)]
    };
    let mut found = Found::default();
    let kept = merge(&store, &base, of_kind(2), &mut found);
    let kept = merge(&store, &kept, vec![data(60, 1, 29, 2, 2)], &mut found);
    assert_eq!(kept.items, 3);
    let layers = [top_layer(kept)];
    let mut reader = Reader::new(&store, &layers).unwrap();
    assert!(block_on(reader.piece(5, 6)).is_err());
    assert!(block_on(reader.piece(50, 51)).is_ok());
    let read_only = merge(&store, &base, of_kind(0x42), &mut found);
    let runs = FromIter([RunChange { sums: Sums::NONE, ..hole(50, 1, 2, 2) }].into_iter());
    let merged = merge_runs(&store, &read_only, runs, false, options(3), &mut found);
    assert_eq!(block_on(merged).unwrap_err().kind(), block::ErrorKind::ReadOnly);
    let closed = merge(&store, &base, of_kind(0x82), &mut found);
    let layers = [top_layer(closed)];
    let mut reader = Reader::new(&store, &layers).unwrap();
    let error = block_on(reader.piece(50, 51)).err().unwrap();
    assert_eq!(error.kind(), block::ErrorKind::Unsupported);
}

#[test]
fn settled_tree_reads_like_trees_that_it_joins() {
    let store = TestStore::default();
    let mut changes = Changes::new(4, 1);
    let mut found = Found::default();
    for birth in 1..40 {
        changes.write(data(birth * 7 % 30 * 10, 15, birth << 10, birth, birth), &mut found);
        changes.write(hole(birth * 11 % 30 * 10, 4, birth, birth), &mut found);
    }
    let form = Form::runs(TreeKind::Interval, 1, SumKind::Crc32c);
    let interval = block_on(write_interval(&store, form, &changes, 1, 39, &mut found)).unwrap();
    let blocks = |layers: &[Layer]| {
        let mut reader = Reader::new(&store, layers).unwrap();
        let one = |block| match block_on(reader.piece(block, block + 1)).unwrap().content {
            Content::Data { address, birth, .. } => (address.bits(), birth),
            Content::Hole { birth } => (0, birth),
            Content::Absent => (0, 0),
        };
        (0..320).map(one).collect::<Vec<_>>()
    };
    let base = Root::empty(Form::runs(TreeKind::Base, 2, SumKind::Crc32c));
    let under: Vec<_> = (0..40).map(|n| data(n * 8, 5, (n + 1) << 12, 1, 1)).collect();
    let base = merge(&store, &base, under, &mut found);
    for number in [1, 2, 20, 38, 39] {
        let all = [Layer { tree: interval, limit: number }, Layer { tree: base, limit: 1 }];
        let form = |kind| Form::runs(kind, 7, SumKind::Crc32c);
        let part = block_on(settle(&store, &all[..1], form(TreeKind::Change), number)).unwrap();
        assert!(part.items < interval.items);
        assert_eq!(blocks(&[top_layer(part)]), blocks(&all[..1]), "snapshot {number}");
        let joined = block_on(settle(&store, &all, form(TreeKind::Base), number)).unwrap();
        let without_holes = |content: Vec<(u64, u64)>| {
            let shown = |(address, birth)| if address == 0 { (0, 0) } else { (address, birth) };
            content.into_iter().map(shown).collect::<Vec<_>>()
        };
        let expected = without_holes(blocks(&all));
        assert_eq!(blocks(&[top_layer(joined)]), expected, "snapshot {number} with its origin");
    }
}
