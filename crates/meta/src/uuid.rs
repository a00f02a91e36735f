//! UUIDs of disks and graphs.

use std::fmt;
use std::str::FromStr;

use block::Env;

/// A UUID of version 4 (RFC 9562): 122 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns a new random UUID, from the randomness of `env`.
    pub fn draw(env: &Env) -> Self {
        let mut bytes = [0; 16];
        for half in bytes.chunks_exact_mut(8) {
            half.copy_from_slice(&env.random("uuid").to_le_bytes());
        }
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }
}

/// Indices of the bytes before which the text form has a dash.
const DASHES: [usize; 4] = [4, 6, 8, 10];

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            if DASHES.contains(&n) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a UUID");
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        if digits.len() != 32 {
            return Err(wrong());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |n: usize| char::from(pair[n]).to_digit(16).ok_or_else(wrong);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_parses_displayed_uuid_and_rejects_malformed_text() {
        let uuid =
            Uuid([0x01, 0x90, 0xf5, 0xa0, 0x62, 0xd8, 0x4b, 0x1c, 0x9a, 0x50, 1, 2, 3, 4, 5, 6]);
        assert_eq!(uuid.to_string(), "0190f5a0-62d8-4b1c-9a50-010203040506");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert!("0190f5a0-62d8".parse::<Uuid>().is_err());
        assert!("zz90f5a0-62d8-4b1c-9a50-010203040506".parse::<Uuid>().is_err());
    }
}
