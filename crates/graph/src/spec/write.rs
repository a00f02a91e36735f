//! Values and names as a spec takes them.

use std::fmt::Write as _;

use super::units::write_duration;
use crate::kind::Value;

/// The value as TOML; `size`: how bytes are written, for people or for programs.
pub fn value(value: &Value, size: impl Fn(u64) -> String) -> String {
    match value {
        Value::Size(bytes) => size(*bytes),
        Value::Rest => quoted("rest"),
        Value::Duration(time) => quoted(&write_duration(*time)),
        Value::Integer(number) => number.to_string(),
        Value::Share(share) => format!("{share:?}"),
        Value::Switch(switch) => switch.to_string(),
        Value::Text(text) => quoted(text),
        Value::List(words) => {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            format!("[{}]", words.join(", "))
        }
        Value::Table(texts) => {
            let texts: Vec<_> =
                texts.iter().map(|(key, text)| format!("{key} = {}", quoted(text))).collect();
            format!("{{ {} }}", texts.join(", "))
        }
    }
}

/// A TOML string that is read back as `text`, whatever is in it.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // It begins a variable.
            '$' => quoted.push_str("$$"),
            c if c.is_control() => {
                // Writing to a String does not fail.
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::plain_disks;

    #[test]
    fn text_is_quoted_as_toml_wants_it() {
        let odd = "a \"b\" \\ \u{7} \u{7f} \n ü ${HOME}";
        let text = format!("[disk]\na = {{ x = {} }}\n", quoted(odd));
        assert_eq!(plain_disks(&text).unwrap()[0].1, [("x".to_owned(), odd.to_owned())]);
    }

    #[test]
    fn sizes_are_written_for_whoever_reads_them() {
        let size = |bytes: u64| format!("{bytes} bytes");
        assert_eq!(value(&Value::Size(7), size), "7 bytes");
        assert_eq!(value(&Value::List(vec!["a".into(), "$".into()]), size), r#"["a", "$$"]"#);
        assert_eq!(value(&Value::Table(vec![("k", "v".into())]), size), r#"{ k = "v" }"#);
    }
}
