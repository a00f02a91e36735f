//! The kinds of devices that this binary can build.

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

/// All kinds of the crate `kinds`, and the NBD disk of the crate `net`.
pub const REGISTRY: Registry = Registry(&KINDS);

#[cfg(test)]
mod tests {
    use kind::{Effect, Lowers, OptionSpec, Scope, ValueType};

    use super::*;

    /// The scope of every option of every kind. Labels are trusted on any disk, so options in labels name no path,
    /// program, address or secret. An import asks for the others if they are required.
    const SCOPES: &str = "\
file local: file create size cache read_only timeout
path local: path cache read_only timeout
memory local: memory
null local: null
linear graph: start size
partition graph: start size
stripe graph: chunk
mirror graph: timeout speed spares scrub region clear_delay store
mirror local: trust
delay graph: time read write flush jitter
limit graph: iops bytes read_iops read_bytes write_iops write_bytes burst
trace graph: size queue
trace local: file
error graph: op start size after schedule rate count with when
crypt graph: plain unit discards kdf_memory kdf_passes
crypt secret: key
migrate graph: speed leave
remap graph: size block policy meta cache pack speed
checksum graph: crash meta cache speed
wear graph: meta
pool graph: cache discard
versioned graph: size cache discard
nbd local: nbd tls timeout reconnect replay connections unsafe_replica
";

    /// The effect of every option of every kind. A live change that gives another value to an option with an effect on
    /// bytes is refused where an export shows the device. Tables are compared segment by segment, and disks by their
    /// labels or places.
    const EFFECTS: &str = "\
file bytes: file
file behaviour: cache read_only timeout
file start: create
file making: size
path bytes: path
path behaviour: cache read_only timeout
memory bytes: memory
null bytes: null
linear bytes: start size
partition bytes: start size
stripe bytes: chunk
mirror behaviour: timeout speed spares scrub region clear_delay store
mirror start: trust
delay behaviour: time read write flush jitter
limit behaviour: iops bytes read_iops read_bytes write_iops write_bytes burst
trace behaviour: file size queue
error behaviour: op start size after schedule rate count with when
crypt bytes: key plain unit discards
crypt behaviour: kdf_memory kdf_passes
migrate behaviour: speed leave
remap bytes: size block meta
remap behaviour: policy cache pack speed
checksum bytes: meta
checksum behaviour: crash cache speed
wear bytes: meta
pool behaviour: cache discard
versioned bytes: size
versioned behaviour: cache discard
nbd bytes: nbd
nbd behaviour: tls timeout reconnect replay connections unsafe_replica
";

    /// Lists the options of all kinds by one of their properties.
    fn listed<T: PartialEq>(words: &[(T, &str)], of: impl Fn(&OptionSpec) -> T) -> String {
        let mut found = String::new();
        for kind in REGISTRY.0 {
            for (value, word) in words {
                let options = kind.options.iter().filter(|option| of(option) == *value);
                let names: Vec<_> = options.map(|option| option.name).collect();
                if !names.is_empty() {
                    found.push_str(&format!("{} {word}: {}\n", kind.name, names.join(" ")));
                }
            }
        }
        found
    }

    #[test]
    fn kind_options_declare_expected_scopes() {
        let words = [(Scope::Graph, "graph"), (Scope::Local, "local"), (Scope::Secret, "secret")];
        let found = listed(&words, |option| option.scope);
        assert_eq!(found, SCOPES, "{found}");
    }

    #[test]
    fn kind_options_declare_expected_effects() {
        let words = [
            (Effect::Bytes, "bytes"),
            (Effect::Behaviour, "behaviour"),
            (Effect::Start, "start"),
            (Effect::Making, "making"),
        ];
        let found = listed(&words, |option| option.effect);
        assert_eq!(found, EFFECTS, "{found}");
    }

    #[test]
    fn kind_has_at_most_one_start_and_creation_option() {
        for kind in REGISTRY.0 {
            let of = |effect| kind.options.iter().filter(move |option| option.effect == effect);
            assert!(of(Effect::Start).count() <= 1, "{}", kind.name);
            assert!(of(Effect::Making).count() <= 1, "{}", kind.name);
        }
    }

    #[test]
    fn option_scope_fits_type_of_option() {
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
