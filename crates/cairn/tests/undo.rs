//! `cairn undo`: returns a graph to an earlier spec from its history in the labels.
#![allow(clippy::disallowed_methods, reason = "tests look at the world from outside")]

mod common;

use api::{Applied, GraphView, History};
use common::machine::noise;
use common::{Dir, Serve, tool, until};

const A_B: &str = "a = { file = \"a.img\", size = \"32MiB\", create = true, label = true }\n\
                   b = { file = \"b.img\", size = \"32MiB\", create = true, label = true }\n";
const PAIR: &str = "pair = { kind = \"mirror\", on = [\"a\", \"b\"] }\n";
const THREE: &str = "pair = { kind = \"mirror\", on = [\"a\", \"b\", \"c\"] }\n";
const C: &str = "c = { file = \"c.img\", size = \"32MiB\", create = true, label = true }\n";
const SAFE: &str = "safe = { kind = \"crypt\", on = \"pair\", key = \"file:key\", kdf_memory = \
                    \"1MiB\", kdf_passes = 1 }\n";

fn spec(disks: &str, devices: &str, on: &str) -> String {
    format!(
        "name = \"home\"\n[disk]\n{A_B}{disks}[device]\n{devices}[export]\nvol = {{ on = \"{on}\" }}\n"
    )
}

fn served(disks: &str, pair: &str) -> (Dir, Serve) {
    let dir = Dir::new();
    dir.write("key", "correct horse battery staple");
    dir.write("home.toml", &spec(disks, pair, "pair"));
    let serve = dir.serve(&["home.toml"]);
    std::fs::write(dir.path("image"), noise(32 << 20, 7)).unwrap();
    (dir, serve)
}

fn fill(dir: &Dir, uri: &str) {
    let part = ["bs=1M", "count=29", "if=image", "of=part", "status=none"];
    tool(dir, "dd", &part).ok();
    tool(dir, "nbdcopy", &["part", uri]).ok();
}

/// Checks that the export `uri` has the bytes that [`fill`] wrote.
fn is_whole(dir: &Dir, uri: &str) {
    tool(dir, "nbdcopy", &[uri, "read"]).ok();
    let (part, read) = (std::fs::read(dir.path("part")), std::fs::read(dir.path("read")));
    let (part, read) = (part.unwrap(), read.unwrap());
    assert!(read[..part.len()] == part[..], "clients read something else than they wrote");
}

fn in_sync(dir: &Dir) {
    until("all members are in sync", || dir.cairn(&["status"]).code == 0);
}

fn devices(dir: &Dir) -> Vec<String> {
    let graph: GraphView = dir.json(0, &["graph", "-o", "json"]);
    graph.nodes.into_iter().map(|node| node.name).collect()
}

fn history(dir: &Dir) -> History {
    dir.json(0, &["undo", "--list", "-o", "json"])
}

#[test]
fn undo_removes_added_member_and_next_undo_restores_member() {
    let (dir, serve) = served("", PAIR);
    let nothing = dir.cairn(&["undo"]);
    assert!(
        nothing.code == 4 && nothing.err.contains("has not changed since the graph was created"),
        "{}",
        nothing.err
    );
    fill(&dir, serve.uri());
    dir.cairn(&["create", "c.img", "32M"]).ok();
    dir.cairn(&["device", "insert", "home/c", "c.img"]).ok();
    in_sync(&dir);
    let at = history(&dir);
    assert_eq!(at.past[0].then, ["c added", "pair changed"]);
    assert!(dir.text(&["undo", "--list"]).contains("then c added, pair changed"));

    let would: Applied = dir.json(0, &["undo", "--dry-run", "-o", "json"]);
    assert!(would.changes.iter().any(|line| line.verb == "remove" && line.name == "c"));
    assert_eq!(devices(&dir), ["a", "b", "c", "pair"]);
    let undone = dir.cairn(&["undo", "home"]);
    undone.ok();
    assert!(undone.err.contains("the next start reads your spec file"), "{}", undone.err);
    assert_eq!(devices(&dir), ["a", "b", "pair"]);
    is_whole(&dir, serve.uri());

    // Undoes the undo. The label of the removed member says so, and only `--wipe` takes it in again.
    let refused = dir.cairn(&["undo"]);
    assert!(refused.code == 5 && refused.err.contains("--wipe c"), "{}", refused.err);
    dir.cairn(&["undo", "--wipe", "c"]).ok();
    assert_eq!(devices(&dir), ["a", "b", "c", "pair"]);
    in_sync(&dir);
    is_whole(&dir, serve.uri());
    let to = at.past[0].change.to_string();
    dir.cairn(&["undo", "--to", &to]).ok();
    assert_eq!(devices(&dir), ["a", "b", "pair"]);
    let unknown = dir.cairn(&["undo", "--to", "1000"]);
    assert!(unknown.code == 4 && unknown.err.contains(&to), "{}", unknown.err);
    serve.stop().ok();
}

#[test]
fn undo_reads_history_from_labels_after_restart() {
    let (dir, serve) = served(C, THREE);
    fill(&dir, serve.uri());
    dir.write("new.toml", &spec(C, &format!("{THREE}{SAFE}"), "safe"));
    dir.cairn(&["apply", "new.toml", "--move", "--wait"]).ok();
    until("the move has left", || devices(&dir) == ["a", "b", "c", "pair", "safe"]);
    serve.stop().ok();

    // Only the disks are left, and a member that was removed since.
    let serve = dir.import(&["home", "--key", "safe=file:key"]);
    is_whole(&dir, serve.uri());
    dir.cairn(&["device", "remove", "home/c", "--yes"]).ok();
    serve.stop().ok();
    let serve = dir.import(&["home", "--key", "safe=file:key"]);
    let words: Vec<_> = history(&dir).past.into_iter().map(|past| past.then.join(", ")).collect();
    assert_eq!(words, ["c gone, pair changed", "safe added, vol changed"]);
    std::fs::rename(dir.path("c.img"), dir.path("elsewhere.img")).unwrap();
    let would = dir.cairn(&["undo", "--dry-run", "--wipe", "c"]);
    would.ok();
    dir.cairn(&["undo", "--wipe", "c"]).ok();
    in_sync(&dir);
    is_whole(&dir, serve.uri());

    // Before that change it was not encrypted, so its bytes must be migrated.
    let first = history(&dir).past.last().unwrap().change.to_string();
    // The disk has another label by now. Only `--disk` identifies it as the former disk.
    let refused = dir.cairn(&["undo", "--to", &first]);
    assert!(refused.code == 4 && refused.err.contains("--disk c=PATH"), "{}", refused.err);
    let refused = dir.cairn(&["undo", "--to", &first, "--disk", "c=elsewhere.img"]);
    assert!(refused.code == 9 && refused.err.contains("--move"), "{}", refused.err);
    dir.cairn(&["undo", "--to", &first, "--disk", "c=elsewhere.img", "--move", "--wait"]).ok();
    until("the move has left", || devices(&dir) == ["a", "b", "c", "pair"]);
    is_whole(&dir, serve.uri());
    // The way forward again needs a key, which is lost after the restart.
    serve.stop().ok();
    let serve = dir.import(&["home"]);
    let refused = dir.cairn(&["undo", "--dry-run"]);
    assert!(refused.code == 4 && refused.err.contains("--key safe=file:PATH"), "{}", refused.err);
    serve.stop().ok();
}

#[test]
fn undo_refuses_graph_without_labelled_disks() {
    let dir = Dir::new();
    dir.cairn(&["create", "raw.img", "8M"]).ok();
    let serve = dir.serve(&["raw.img"]);
    let refused = dir.cairn(&["undo"]);
    assert!(refused.code == 9 && refused.err.contains("no labelled disks"), "{}", refused.err);
    serve.stop().ok();
    let refused = dir.cairn(&["undo", "gone"]);
    assert_eq!(refused.code, 4, "{}", refused.err);
}
