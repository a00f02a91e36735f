//! A process for `tests/socket.rs`, which starts it with few descriptors.
#![allow(clippy::disallowed_methods, reason = "it uses descriptors up")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use block::env::Address;
use common::{Place, each_core};

fn main() {
    each_core(|core| {
        let place = Place::on_disk("few.sock");
        let env = core.env();
        let at = Address::Unix(place.path());
        core.block_on(async {
            let listener = env.listen(&at).unwrap();
            let _client = env.connect(&at).await.unwrap();
            let mut hoard = Vec::new();
            while let Ok(file) = std::fs::File::open("/dev/null") {
                hoard.push(file);
            }
            let short = env.within(Duration::from_millis(250), listener.accept()).await;
            assert!(short.is_none(), "there was no descriptor for it");
            hoard.clear();
            listener.accept().await.unwrap();
        });
    });
    println!("accepted");
}
