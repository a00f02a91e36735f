//! Opening and closing of volumes by NBD clients.

use std::time::Duration;

use block::ErrorKind;

use crate::rig::{BLOCK, Rig, connect, spec};

/// The devices below the device with volumes: none, tables, a mirror and hooks. Each with the name of the top one.
const BELOW: [(&str, &str); 5] = [
    ("", "a"),
    ("s = { kind = \"stripe\", on = [\"a\", \"b\"], chunk = \"16KiB\" }\n", "s"),
    ("m = { kind = \"mirror\", on = [\"a\", \"b\"], trust = \"a\" }\n", "m"),
    ("c = { kind = \"concat\", on = [\"a\", \"b\"] }\nt = { kind = \"pass\", on = \"c\" }\n", "t"),
    (
        "m = { kind = \"mirror\", on = [\"a\", \"b\"], trust = \"a\" }\n\
         l = { kind = \"linear\", on = \"m\", start = \"64KiB\" }\np = { kind = \"pass\", on = \"l\" }\n",
        "p",
    ),
];

#[test]
fn volumes_on_one_device_keep_separate_bytes() {
    for (below, on) in BELOW {
        let rig = Rig::new(&spec(below, on));
        let (left, right) = (rig.connect("vms/left").unwrap(), rig.connect("vms/right").unwrap());
        let last = left.session().facts.size_bytes - BLOCK as u64;
        for at in [0, last] {
            rig.write(&left, at, 1);
            rig.write(&right, at, 2);
        }
        let other = rig.connect("vms/left").unwrap();
        for at in [0, last] {
            assert_eq!((rig.read(&other, at), rig.read(&right, at)), (1, 2));
        }
    }
}

#[test]
fn volume_stays_open_from_first_client_to_last_client() {
    let rig = Rig::new(&spec("", "a"));
    let begin = rig.world.env().now();
    let first = rig.connect("vms/left").unwrap();
    assert!(rig.world.env().now().since(begin) >= Duration::from_millis(300), "it opens first");
    let second = rig.connect("vms/left").unwrap();
    assert_eq!((rig.count("open"), rig.count("opened")), (1, 1), "both share the volume");
    first.close();
    rig.pass(Duration::from_secs(2));
    rig.write(&second, 0, 7);
    second.close();
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.count("open"), 0, "no client has it");
    assert!(rig.live.volumes().open_nodes().is_empty());
    let third = rig.connect("vms/left").unwrap();
    assert_eq!(rig.read(&third, 0), 7);
}

#[test]
fn concurrent_opens_of_new_name_create_one_volume() {
    let rig = Rig::new(&spec("", "a"));
    let left = rig.connect("vms/left").unwrap();
    rig.write(&left, 0, 9);
    rig.snap("left", "left@v1");
    let before = rig.count("created");
    let connecting = (0..8).map(|_| {
        let opened = connect(rig.world.env(), rig.at.clone(), "vms/left@v1+job".to_owned());
        Box::pin(opened) as block::env::LocalFuture<block::Result<net::nbd::Client>>
    });
    let connected = rig.world.block_on(block::all(connecting.collect())).unwrap();
    let clients: Vec<_> = connected.into_iter().map(|client| client.unwrap()).collect();
    assert_eq!(rig.count("created") - before, 1);
    assert_eq!(rig.read(&clients[0], 0), 9, "a clone has the bytes of its origin");
    rig.write(&clients[3], 0, 4);
    assert_eq!(rig.read(&clients[7], 0), 4, "all clients have the same volume");
    assert_eq!(rig.read(&left, 0), 9);
}

#[test]
fn slow_opening_of_volume_delays_no_other_client() {
    let text = spec("", "a").replace("300ms", "5s") + "[export]\nvol = { on = \"b\" }\n";
    let rig = Rig::new(&text);
    let begun = rig.world.env().now();
    let slow = connect(rig.world.env(), rig.at.clone(), "vms/left".to_owned());
    let (env, done) = (rig.world.env(), std::rc::Rc::new(std::cell::Cell::new(false)));
    let ended = done.clone();
    env.spawn("a slow client", async move {
        slow.await.unwrap();
        ended.set(true);
    });
    let vol = rig.connect("vol").unwrap();
    rig.write(&vol, 0, 3);
    assert_eq!(rig.read(&vol, 0), 3);
    assert!(rig.world.env().now().since(begun) < Duration::from_secs(1) && !done.get());
    rig.pass(Duration::from_secs(6));
    assert!(done.get());
}

/// The handshake of a client ends at its deadline, and the opening of its volume goes on. The volume is closed then.
#[test]
fn volume_closes_after_client_gave_up_during_opening() {
    let rig = Rig::new(&spec("", "a").replace("300ms", "15s"));
    rig.connect("vms/left").err().expect("the handshake has a time limit");
    assert_eq!(rig.count("opened"), 0, "it is still being opened");
    rig.pass(Duration::from_secs(10));
    assert_eq!((rig.count("opened"), rig.count("open")), (1, 0));
}

#[test]
fn removed_volume_answers_gone_with_next_step() {
    let rig = Rig::new(&spec("", "a"));
    rig.snap("left", "left@v1");
    let clone = rig.connect("vms/left@v1+job").unwrap();
    let refused = rig.remove("left@v1+job").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    clone.close();
    rig.pass(Duration::from_secs(2));
    rig.remove("left@v1+job").unwrap();
    let created = rig.count("created");
    let gone = rig.connect("vms/left@v1+job").err().expect("it was removed").to_string();
    assert!(gone.contains("was removed") && gone.contains("Next: create it again"), "{gone}");
    assert_eq!(rig.count("created"), created, "a removed name creates nothing");
    rig.create("left@v1+job");
    assert_eq!(rig.read(&rig.connect("vms/left@v1+job").unwrap(), 0), 0, "it is another volume");
}

#[test]
fn server_reports_reason_if_volume_cannot_be_opened() {
    let rig = Rig::new(&spec("", "a"));
    for name in ["vms/middle", "vms/", "/left", "other/left", "vms", "vms/left@v2+job"] {
        let unknown = rig.connect(name).err().expect("there is no such volume").to_string();
        assert!(unknown.contains(&format!("no export named {name:?}")), "{unknown}");
    }
    let invalid = rig.connect("vms/a/b").err().expect("the name is invalid").to_string();
    assert!(invalid.contains("a volume's name has no slash"), "{invalid}");
    let unnamed = rig.connect("").err().expect("two volumes, and neither is the default one");
    assert!(unnamed.to_string().contains("no export named"), "{unnamed}");
    assert_eq!(rig.count("opened"), 0);
}
