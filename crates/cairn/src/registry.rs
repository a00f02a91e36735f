//! Every kind that this binary has.

use graph::kind::{Kind, Registry};

const COUNT: usize = kinds::REGISTRY.0.len() + 1;

const KINDS: [Kind; COUNT] = {
    let mut all = [net::nbd::KIND; COUNT];
    let mut n = 0;
    while n < kinds::REGISTRY.0.len() {
        all[n] = kinds::REGISTRY.0[n];
        n += 1;
    }
    all
};

/// The kinds of `kinds`, and those that reach other machines.
pub const REGISTRY: Registry = Registry(&KINDS);
