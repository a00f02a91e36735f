//! Variables in the strings of a spec: `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.

/// Replaces every variable in a string of a spec by its value. Returns the new string, or one sentence for each fault.
/// A variable with an empty value counts as unset, as in a shell.
pub(super) fn expand(
    text: &str,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Vec<String>> {
    let mut out = String::new();
    let mut wrong = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((inner, after)) = braced(rest) {
            match value(inner, vars) {
                Ok(value) => out.push_str(&value),
                Err(sentence) => wrong.push(sentence),
            }
            rest = after;
        } else {
            wrong.push(format!("{text:?}: a lone $; write ${{NAME}}, or $$ for a dollar sign"));
        }
    }
    out.push_str(rest);
    if wrong.is_empty() { Ok(out) } else { Err(wrong) }
}

/// Returns the text between the braces at the start of `text`, and the text after the closing brace.
fn braced(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('{')?.split_once('}')
}

fn value(inner: &str, vars: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !letters || name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("${{{inner}}}: {name:?} is no variable; use letters, digits and _"));
    }
    let value = vars(name).filter(|value| !value.is_empty());
    value.or_else(|| default.map(str::to_owned)).ok_or_else(|| {
        format!("${{{name}}}: {name} is not set; set it, or write ${{{name}:-default}}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, Vec<String>> {
        expand(text, &|name| match name {
            "A" => Some("alpha".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn spec_expansion_replaces_variables() {
        assert_eq!(expanded("no dollar").unwrap(), "no dollar");
        assert_eq!(expanded("<${A}${B:-beta}>$$").unwrap(), "<alphabeta>$");
        assert_eq!(expanded("${EMPTY:-x}${B:-}").unwrap(), "x");
        assert_eq!(expanded("${A:-x:-y}${B:-x:-y}").unwrap(), "alphax:-y");
    }

    #[test]
    fn spec_expansion_reports_every_variable_fault() {
        let wrong = expanded("${B} $HOME ${1} ${EMPTY}").unwrap_err();
        let starts =
            ["${B}: B is not set", "\"${B} $HOME", "${1}: \"1\" is no", "${EMPTY}: EMPTY is"];
        assert_eq!(wrong.len(), starts.len());
        for (sentence, start) in wrong.iter().zip(starts) {
            assert!(sentence.starts_with(start), "{sentence}");
        }
        assert_eq!(expanded("${A").unwrap_err().len(), 1, "no closing brace");
    }
}
