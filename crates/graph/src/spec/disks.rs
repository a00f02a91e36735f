//! Reads the disks of a spec that a label contains, without a check of their options.

use super::fault::Log;
use super::tree::{self, Raw};

/// The name of a disk in a spec, and its fields as pairs of key and value.
pub(crate) type PlainDisk = (String, Vec<(String, String)>);

/// Returns the disks in the spec `text`, with the values as text.
///
/// # Errors
/// The faults of the text, if it is not TOML.
pub(crate) fn plain_disks(text: &str) -> Result<Vec<PlainDisk>, String> {
    let mut log = Log::new("label");
    let fields = tree::read(text, &|_| None, &mut log);
    if let Err(faults) = log.finish() {
        return Err(faults.to_string());
    }
    let fields = fields.unwrap_or_default();
    let section = fields.into_iter().find(|field| field.key.text == "disk");
    let Some(Raw::Table(disks)) = section.map(|field| field.item.raw) else {
        return Ok(Vec::new());
    };
    let plain = |disk: tree::Field| {
        let fields = match disk.item.raw {
            Raw::Table(fields) => fields,
            _ => Vec::new(),
        };
        let text = |field: tree::Field| match field.item.raw {
            Raw::Text(text) => (field.key.text, text),
            raw => (field.key.text, raw.show()),
        };
        (disk.key.text, fields.into_iter().map(text).collect())
    };
    Ok(disks.into_iter().map(plain).collect())
}
