//! The name under which the supervisor holds the mount of an attached device. The name contains all facts that the
//! next process needs.

use std::fmt;
use std::str::FromStr;

use attach::Name;

/// First part of the name: it marks a descriptor as the mount of an attached device.
const SORT: &str = "attached";

/// Length in bytes of the longest name of an export that may be attached: the descriptor's name contains it.
pub const EXPORT_MAX_BYTES: usize = 160;

/// The parts of a name `attached/NAME/EXPORT/BYTES`. NAME has no slash; EXPORT has one if it is a volume
/// (`DEVICE/VOLUME`). Neither has a colon: a colon separates the names of descriptors from each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Name of the device in `/dev/cairn`.
    pub name: Name,
    /// Name of the export that is attached.
    pub export: String,
    /// Length of the longest message on which this process and the kernel have agreed, in bytes.
    pub max_bytes: u32,
}

const _: () = assert!(
    SORT.len() + 3 + attach::NAME_MAX_BYTES + EXPORT_MAX_BYTES + 10 <= runtime::NAME_MAX_BYTES,
    "the longest descriptor name of an attached device must fit"
);

impl Kept {
    /// Whether the descriptor called `text` is the mount of an attached device.
    pub fn is_meant(text: &str) -> bool {
        text.split('/').next() == Some(SORT)
    }

    /// Whether an export of this name may be attached.
    pub fn fits(export: &str) -> bool {
        let is_known = |c: char| c.is_ascii_graphic() && c != ':';
        export.len() <= EXPORT_MAX_BYTES && export.chars().all(is_known)
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, export, max_bytes } = self;
        write!(f, "{SORT}/{name}/{export}/{max_bytes}")
    }
}

impl FromStr for Kept {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (front, max_bytes) = text.rsplit_once('/').ok_or(())?;
        let parts: Vec<_> = front.splitn(3, '/').collect();
        let [SORT, name, export] = parts[..] else { return Err(()) };
        let name = name.parse().map_err(|_| ())?;
        let max_bytes = max_bytes.parse().map_err(|_| ())?;
        Ok(Self { name, export: export.to_owned(), max_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_descriptor_name_round_trips_through_text() {
        let long = "x".repeat(attach::NAME_MAX_BYTES);
        let volume = format!("vms/{}@v1+job", "y".repeat(EXPORT_MAX_BYTES - 11));
        for (name, export) in [("home", "vol-1.a_b"), (&*long, &*long), (&*long, &*volume)] {
            assert!(Kept::fits(export), "{export}");
            let kept =
                Kept { name: name.parse().unwrap(), export: export.to_owned(), max_bytes: 1 << 20 };
            let text = kept.to_string();
            assert!(text.len() <= runtime::NAME_MAX_BYTES && !text.contains(':'));
            assert!(Kept::is_meant(&text));
            assert_eq!(text.parse(), Ok(kept));
        }
        assert_eq!("attached/home/vol/1048576".parse::<Kept>().unwrap().max_bytes, 1 << 20);
        let wrong =
            ["listener", "attached", "attached/a/b", "attached/a/b/c", "attached/../b/4096"];
        for wrong in wrong {
            assert_eq!(wrong.parse::<Kept>(), Err(()), "{wrong}");
        }
    }
}
