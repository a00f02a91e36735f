//! The state file with the local state of a graph. `docs/formats/daemon-state.md` defines it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use block::{Error, ErrorKind, Result, bail};
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize};

/// Version of the state file that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Length in bytes of the longest state file. Two of the longest specs are shorter, even with every character
/// escaped.
pub const RECORD_MAX_BYTES: usize = 32 << 20;

/// The beginning of a state file.
const MAGIC: &str = "cairn-state";

/// Length in bytes of the longest first line of a state file.
const HEAD_MAX_BYTES: usize = 64;

/// The local state of a graph, kept in a state file of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Name of the graph.
    pub name: String,
    /// Directory in which relative paths in the spec begin.
    pub directory: PathBuf,
    /// The source of the present spec.
    pub source: Source,
    /// The source of the spec of a live change that has begun and not ended; `None` if there is none.
    pub next: Option<Source>,
    /// Options for serving the graph.
    pub options: Options,
}

/// The source of a graph's spec.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A spec file.
    Spec {
        /// Name of the spec file in messages.
        file: String,
        /// Text of the spec.
        text: String,
        /// Values of the variables that the spec uses. A variable without a value is left out.
        variables: BTreeMap<String, String>,
    },
    /// The labels of the graph's disks, and the facts that labels do not contain.
    Labels {
        /// The spec from the labels.
        text: String,
        /// Kind and path (or address) of each disk, by disk name.
        disks: BTreeMap<String, (String, String)>,
        /// Sources of the keys of devices, by device name.
        keys: BTreeMap<String, String>,
        /// Other options that labels do not contain, by device name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        options: BTreeMap<String, BTreeMap<String, String>>,
    },
}

/// Options for serving a graph, for every source of its spec.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Whether all exports of the graph refuse writes.
    pub read_only: bool,
    /// Whether the graph is started without its missing disks, if the other disks have all data.
    pub degraded: bool,
    /// Whether `listen` may contain unencrypted TCP addresses beyond loopback.
    pub insecure: bool,
    /// Addresses at which the server listens. If there are none, it listens at those of the spec.
    pub listen: Vec<String>,
}

impl Record {
    /// Encodes the record as the content of a state file.
    ///
    /// # Errors
    /// `Limit` if the content is longer than [`RECORD_MAX_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let body = serde_json::to_vec(self).expect("a record can be written as JSON");
        let head = format!("{MAGIC} {VERSION} {:08x} {}\n", checksum(&body), body.len());
        let bytes = [head.as_bytes(), &body].concat();
        if bytes.len() > RECORD_MAX_BYTES {
            bail!(
                Limit,
                "the record of {} would have {} bytes; at most {RECORD_MAX_BYTES} are possible",
                self.name,
                bytes.len()
            );
        }
        Ok(bytes)
    }

    /// Decodes the content of a state file.
    ///
    /// # Errors
    /// `Unsupported` for another version; `Corrupt` if the content is no record, or is damaged or truncated.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, why.to_owned());
        let line = bytes.iter().take(HEAD_MAX_BYTES).position(|byte| *byte == b'\n');
        let line = line.ok_or_else(|| corrupt("the file is not a record of a graph"))?;
        let head = std::str::from_utf8(&bytes[..line]).unwrap_or_default();
        let body = &bytes[line + 1..];
        let words: Vec<_> = head.split(' ').collect();
        let (version, sum, length) = match words[..] {
            [MAGIC, version, sum, length] => (version, sum, length),
            // The first line of a later version is unknown, except for the place of its version number.
            [MAGIC, version, ..] if version != VERSION.to_string() => (version, "", ""),
            _ => return Err(corrupt("the file is not a record of a graph")),
        };
        if version.parse() != Ok(VERSION) {
            let words = format!("the record has version {version}; Cairn reads only {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        if length.parse() != Ok(body.len()) {
            let words = format!("the record has {} of its {length} bytes", body.len());
            return Err(corrupt(&words));
        }
        if u32::from_str_radix(sum, 16) != Ok(checksum(body)) {
            return Err(corrupt("the checksum of the record does not match"));
        }
        serde_json::from_slice(body).map_err(|error| corrupt(&error.to_string()))
    }
}

fn checksum(body: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, body) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let text = "name = \"home\"\n".to_owned();
        let variables = BTreeMap::from([("DIR".to_owned(), "/srv".to_owned())]);
        let source = Source::Spec { file: "home.toml".to_owned(), text, variables };
        let (name, directory) = ("home".to_owned(), PathBuf::from("/etc/cairn"));
        Record { name, directory, source, next: None, options: Options::default() }
    }

    const GOLDEN: &str = "cairn-state 1 d6f6829e 221\n\
        {\"name\":\"home\",\"directory\":\"/etc/cairn\",\"source\":{\"spec\":{\"file\":\"home.toml\",\
        \"text\":\"name = \\\"home\\\"\\n\",\"variables\":{\"DIR\":\"/srv\"}}},\"next\":null,\
        \"options\":{\"read_only\":false,\"degraded\":false,\"insecure\":false,\"listen\":[]}}";

    #[test]
    fn record_matches_documented_bytes() {
        assert_eq!(String::from_utf8(record().encode().unwrap()).unwrap(), GOLDEN);
        assert_eq!(Record::decode(GOLDEN.as_bytes()).unwrap(), record());
        let mut of_labels = record();
        let disks = BTreeMap::from([("a".to_owned(), ("file".to_owned(), "a.img".to_owned()))]);
        let keys = BTreeMap::from([("safe".to_owned(), "file:key".to_owned())]);
        of_labels.next =
            Some(Source::Labels { text: String::new(), disks, keys, options: BTreeMap::new() });
        let encoded = of_labels.encode().unwrap();
        assert!(!String::from_utf8_lossy(&encoded).contains("\"options\":{\"t\""));
        assert_eq!(Record::decode(&encoded).unwrap(), of_labels);
        let file = BTreeMap::from([("file".to_owned(), "t.trace".to_owned())]);
        if let Some(Source::Labels { options, .. }) = &mut of_labels.next {
            options.insert("t".to_owned(), file);
        }
        assert_eq!(Record::decode(&of_labels.encode().unwrap()).unwrap(), of_labels);
    }

    #[test]
    fn decode_rejects_any_damaged_or_truncated_record() {
        let whole = record().encode().unwrap();
        for at in 0..whole.len() {
            assert!(Record::decode(&whole[..at]).is_err(), "cut at {at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            assert!(Record::decode(&damaged).is_err(), "byte {at}");
        }
        assert!(Record::decode(&[&whole[..], b" "].concat()).is_err());
    }

    #[test]
    fn decode_reports_unknown_version() {
        let newer = GOLDEN.replacen("cairn-state 1", "cairn-state 2", 1);
        let error = Record::decode(newer.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2"), "{error}");
        let error = Record::decode(b"cairn-state 12 other words of its own\nx").unwrap_err();
        assert!(error.to_string().contains("version 12"), "{error}");
    }

    #[test]
    fn decode_rejects_unknown_field() {
        let body =
            GOLDEN.split_once('\n').unwrap().1.replacen("\"next\"", "\"later\":1,\"next\"", 1);
        let sum = checksum(body.as_bytes());
        let text = format!("{MAGIC} {VERSION} {sum:08x} {}\n{body}", body.len());
        let error = Record::decode(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("later"), "{error}");
    }

    #[test]
    fn encode_rejects_record_above_limit() {
        let mut long = record();
        long.options.listen = vec!["x".repeat(RECORD_MAX_BYTES)];
        assert_eq!(long.encode().unwrap_err().kind(), ErrorKind::Limit);
    }
}
