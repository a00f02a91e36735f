//! Every kind that this binary has.

use kind::{Kind, Registry};

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

#[cfg(test)]
mod tests {
    use kind::{Lowers, Scope, ValueType};

    use super::*;

    /// Every option of every kind. Options in labels are believed from any disk, so they name no path, program, address or
    /// secret. An import asks for the others if they are required.
    const SCOPES: &str = "\
file local: file create size cache read_only timeout
path local: path cache read_only timeout
memory local: memory
null local: null
linear graph: start size
partition graph: start size
stripe graph: chunk
error graph: op start size after schedule rate count with when
delay graph: time read write flush jitter
limit graph: iops bytes read_iops read_bytes write_iops write_bytes burst
trace graph: size queue
trace local: file
mirror graph: timeout speed spares scrub region settle
mirror local: trust
crypt graph: plain unit discards kdf_memory kdf_passes
crypt secret: key
migrate graph: speed leave
remap graph: size block policy meta cache pack speed
nbd local: nbd tls timeout reconnect replay connections unsafe_replica
";

    #[test]
    fn options_declare_where_they_are_kept() {
        let mut found = String::new();
        for kind in REGISTRY.0 {
            for (scope, word) in
                [(Scope::Graph, "graph"), (Scope::Local, "local"), (Scope::Secret, "secret")]
            {
                let options = kind.options.iter().filter(|option| option.scope == scope);
                let names: Vec<_> = options.map(|option| option.name).collect();
                if !names.is_empty() {
                    found.push_str(&format!("{} {word}: {}\n", kind.name, names.join(" ")));
                }
            }
        }
        assert_eq!(found, SCOPES, "{found}");
    }

    #[test]
    fn scopes_fit_their_options() {
        for kind in REGISTRY.0 {
            for option in kind.options {
                let name = format!("{}.{}", kind.name, option.name);
                let is_path = matches!(option.value, ValueType::Path | ValueType::Table(_));
                match option.scope {
                    // Labels identify a disk, and do not describe how to reach it.
                    Scope::Graph => assert!(!is_path && kind.lowers != Lowers::None, "{name}"),
                    Scope::Local => {}
                    Scope::Secret => assert_eq!(option.value, ValueType::Text, "{name}"),
                }
            }
            let secrets = kind.options.iter().filter(|option| option.scope == Scope::Secret);
            assert!(secrets.count() <= 1, "{}: --key DEVICE=SOURCE means one option", kind.name);
        }
    }
}
