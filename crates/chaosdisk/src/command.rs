//! The commands that a test sends to the control socket of chaosdisk, and their text form.

use std::str::FromStr;
use std::time::Duration;

use block::OpKind;
use block::units::{parse_duration, parse_size};
use sim::{CutPolicy, DiskConfig, Profile};

/// A command to chaosdisk on its control socket. Each command is one line of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// `powercut [POLICY] [stay]`: cuts the power of all disks at the same moment.
    PowerCut {
        /// Selects the unflushed writes that the disks keep over the power cut.
        policy: CutPolicy,
        /// Whether connections to the disks stay open over the power cut.
        stay: bool,
    },
    /// `eio DISK VERB [COUNT]`: makes the next requests of one operation fail on a disk.
    Fail {
        /// Name of the simulated disk that the command acts on.
        disk: String,
        /// Operation of the requests that fail, such as read or flush.
        verb: OpKind,
        /// Number of next requests that fail.
        count: u64,
    },
    /// `stall DISK TIME`: delays all replies of a disk.
    Stall {
        /// Name of the simulated disk that the command acts on.
        disk: String,
        /// Time for which the disk sends no replies.
        time: Duration,
    },
    /// `hang DISK`: stops all replies of a disk until `release`.
    Hang {
        /// Name of the simulated disk that the command acts on.
        disk: String,
    },
    /// `release DISK`: lets a disk reply again after `hang`.
    Release {
        /// Name of the simulated disk that the command acts on.
        disk: String,
    },
    /// `rot DISK OFFSET`: flips a bit on the medium of a disk.
    Rot {
        /// Name of the simulated disk that the command acts on.
        disk: String,
        /// Offset in bytes of the byte in which a bit flips.
        offset: u64,
    },
    /// `counts`: replies with the numbers of requests that the disks got, as JSON.
    Counts,
    /// `quit`: ends chaosdisk.
    Quit,
}

/// The forms of all commands, for error messages.
pub const FORMS: &str = "powercut [POLICY] [stay] | eio DISK VERB [COUNT] | stall DISK TIME | \
                         hang DISK | release DISK | rot DISK OFFSET | counts | quit";

const POLICIES: [(&str, CutPolicy); CutPolicy::ALL.len()] = [
    ("drop-all", CutPolicy::DropAll),
    ("keep-all", CutPolicy::KeepAll),
    ("prefix", CutPolicy::Prefix),
    ("reverse", CutPolicy::Reverse),
    ("omit-one", CutPolicy::OmitOne),
    ("keep-one", CutPolicy::KeepOne),
    ("random", CutPolicy::Random),
    ("torn", CutPolicy::Torn),
];

const PROFILES: [(&str, Profile); 6] = [
    ("4kn", Profile::Native4k),
    ("512n", Profile::Native512),
    ("512e", Profile::Emulated512),
    ("not-atomic", Profile::NotAtomic),
    ("protected", Profile::Protected),
    ("liar", Profile::Liar),
];

/// Returns the value that is called `name` in the table `all`. An error lists the valid names.
fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

fn verb(name: &str) -> Result<OpKind, String> {
    named(&OpKind::ALL.map(|verb| (verb.name(), verb)), name)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<_> = line.split_whitespace().collect();
        let owned = |word: &str| word.to_owned();
        Ok(match words[..] {
            ["powercut"] => Self::PowerCut { policy: CutPolicy::DropAll, stay: false },
            ["powercut", policy] => {
                Self::PowerCut { policy: named(&POLICIES, policy)?, stay: false }
            }
            ["powercut", policy, "stay"] => {
                Self::PowerCut { policy: named(&POLICIES, policy)?, stay: true }
            }
            ["eio", disk, op] => Self::Fail { disk: owned(disk), verb: verb(op)?, count: 1 },
            ["eio", disk, op, count] => {
                Self::Fail { disk: owned(disk), verb: verb(op)?, count: number(count)? }
            }
            ["stall", disk, time] => Self::Stall { disk: owned(disk), time: parse_duration(time)? },
            ["hang", disk] => Self::Hang { disk: owned(disk) },
            ["release", disk] => Self::Release { disk: owned(disk) },
            ["rot", disk, offset] => Self::Rot { disk: owned(disk), offset: number(offset)? },
            ["counts"] => Self::Counts,
            ["quit"] => Self::Quit,
            _ => return Err(format!("{line:?} is not one of {FORMS}")),
        })
    }
}

/// The description of a simulated disk on the command line: `NAME=SIZE` or `NAME=SIZE,PROFILE`.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// The name of the disk, which is also the name of its NBD export.
    pub name: String,
    size: u64,
    profile: Profile,
}

impl DiskSpec {
    /// Returns the configuration of the simulated disk. The disk moves no write from its cache to the medium by itself.
    /// So the content after a power cut follows from flushes and the policy alone, and a test knows which writes must
    /// be lost.
    pub(crate) fn config(&self) -> DiskConfig {
        DiskConfig { destage: 0, ..DiskConfig::new(self.size, self.profile) }
    }
}

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or("a disk is NAME=SIZE[,PROFILE]")?;
        let (size, profile) = rest.split_once(',').unwrap_or((rest, "512n"));
        let (size, profile) = (parse_size(size)?, named(&PROFILES, profile)?);
        if size == 0 || size % 4096 != 0 {
            return Err(format!(
                "the size of a disk is a multiple of 4096 bytes, and {size} is not"
            ));
        }
        Ok(Self { name: name.to_owned(), size, profile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_command_is_parsed_from_line() {
        let cut = |policy, stay| Ok(Command::PowerCut { policy, stay });
        assert_eq!("powercut".parse(), cut(CutPolicy::DropAll, false));
        assert_eq!("powercut omit-one stay".parse(), cut(CutPolicy::OmitOne, true));
        let fail = Command::Fail { disk: "a".to_owned(), verb: OpKind::Flush, count: 3 };
        assert_eq!("eio a flush 3".parse(), Ok(fail));
        let stall = Command::Stall { disk: "a".to_owned(), time: Duration::from_millis(20) };
        assert_eq!("stall a 20ms".parse(), Ok(stall));
        for wrong in ["", "powercut all", "eio a fush", "stall a 20", "hang", "rot a b", "quit now"]
        {
            assert!(wrong.parse::<Command>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn control_command_knows_every_power_cut_policy() {
        for policy in CutPolicy::ALL {
            assert!(POLICIES.iter().any(|(_, known)| *known == policy), "{policy:?}");
        }
    }
}
