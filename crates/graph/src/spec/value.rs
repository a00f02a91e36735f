//! Checks of values against the types of their options.

use std::time::Duration;

use block::units;
use kind::{Effect, OptionSpec, Scope, Value, ValueType};

use super::fault::Log;
use super::near;
use super::parse::unknown_key;
use super::tree::{Field, Item, Raw, Word};

/// Checks the value `item` of `option` in a spec, and returns the value. Reports a wrong value in `log`, and returns
/// `None`. `members` are the names of the device's lowers.
pub(super) fn check(
    option: &OptionSpec,
    item: &Item,
    members: &[Word],
    log: &mut Log,
) -> Option<Value> {
    match option.value {
        ValueType::Choices(words) => return choices(option.name, words, item, log),
        ValueType::Table(keys) => return table(option.name, keys, item, log),
        _ => {}
    }
    let checked = match option.value {
        ValueType::Size(least, most) => size(&item.raw, least, most).map(Value::Size),
        ValueType::SizeOrRest => size_or_rest(&item.raw),
        ValueType::Duration(most) => duration(&item.raw, most).map(Value::Duration),
        ValueType::Integer(least, most) => integer(&item.raw, least, most).map(Value::Integer),
        ValueType::Share => share(&item.raw).map(Value::Share),
        ValueType::Switch => switch(&item.raw).map(Value::Switch),
        ValueType::Choice(words) => one_of(&item.raw, words, "").map(Value::Text),
        ValueType::Member => member(&item.raw, members).map(Value::Text),
        ValueType::Path => path(&item.raw).map(Value::Text),
        ValueType::Text | ValueType::Choices(_) | ValueType::Table(_) => {
            text(&item.raw).map(Value::Text)
        }
    };
    checked.map_err(|why| log.wrong(option.name, item, &why)).ok()
}

/// Whether the value `item` of the switch `option` is `true`. Reports a value that is no switch in `log`.
pub(super) fn is_on(option: &OptionSpec, item: &Item, log: &mut Log) -> bool {
    check(option, item, &[], log) == Some(Value::Switch(true))
}

/// Returns the description of an optional setting that belongs to this machine: labels do not contain it.
pub(super) const fn setting(
    name: &'static str,
    value: ValueType,
    help: &'static str,
) -> OptionSpec {
    let (effect, scope) = (Effect::Behaviour, Scope::Local);
    OptionSpec { name, value, required: false, effect, scope, help }
}

type Parsed<T> = Result<T, String>;

fn size(raw: &Raw, least: u64, most: u64) -> Parsed<u64> {
    let bytes = match raw {
        Raw::Text(text) => units::parse_size(text)?,
        Raw::Integer(number) => units::parse_size(&number.to_string())?,
        _ => return Err("a size is needed, such as 4096 or \"64KiB\"".to_owned()),
    };
    if bytes < least {
        return Err(format!("at least \"{}\" is needed", units::write_size(least)));
    }
    if bytes > most {
        return Err(format!("at most \"{}\" is possible", units::write_size(most)));
    }
    Ok(bytes)
}

fn size_or_rest(raw: &Raw) -> Parsed<Value> {
    match raw {
        Raw::Text(text) if text == "rest" => Ok(Value::Rest),
        Raw::Text(text) if text.starts_with(char::is_alphabetic) => {
            Err("a size such as \"64KiB\" is needed, or \"rest\"".to_owned())
        }
        _ => size(raw, 1, u64::MAX).map(Value::Size),
    }
}

fn duration(raw: &Raw, most: Duration) -> Parsed<Duration> {
    let time = match raw {
        Raw::Text(text) => units::parse_duration(text)?,
        Raw::Integer(number) => units::parse_duration(&number.to_string())?,
        _ => units::parse_duration("")?,
    };
    if time > most {
        return Err(format!("at most \"{}\" is possible", units::write_duration(most)));
    }
    Ok(time)
}

fn integer(raw: &Raw, least: u64, most: u64) -> Parsed<u64> {
    let number = match raw {
        Raw::Integer(number) => Some(*number),
        Raw::Text(text) => text.trim().parse().ok(),
        _ => None,
    };
    let within = number.and_then(|number| u64::try_from(number).ok());
    within
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("a whole number from {least} to {most} is needed"))
}

fn share(raw: &Raw) -> Parsed<f64> {
    match raw {
        Raw::Text(text) => units::parse_share(text),
        Raw::Integer(number) => units::parse_share(&number.to_string()),
        Raw::Float(number) => units::parse_share(&number.to_string()),
        _ => units::parse_share(""),
    }
}

fn switch(raw: &Raw) -> Parsed<bool> {
    match raw {
        Raw::Switch(switch) => Ok(*switch),
        Raw::Text(text) if text == "true" => Ok(true),
        Raw::Text(text) if text == "false" => Ok(false),
        _ => Err("true or false is needed".to_owned()),
    }
}

/// Returns the word among `words` that `raw` is. The error message puts `which` after the list of words.
fn one_of(raw: &Raw, words: &[&str], which: &str) -> Parsed<String> {
    let mut guess = String::new();
    if let Raw::Text(text) = raw {
        if words.contains(&text.as_str()) {
            return Ok(text.clone());
        }
        guess = near::guess(text, words).unwrap_or_default();
    }
    Err(format!("one of {}{which} is needed{guess}", words.join(", ")))
}

fn member(raw: &Raw, members: &[Word]) -> Parsed<String> {
    let names: Vec<&str> = members.iter().map(|member| member.text.as_str()).collect();
    one_of(raw, &names, ", the lower devices,")
}

fn choices(name: &str, words: &[&str], item: &Item, log: &mut Log) -> Option<Value> {
    let items = item.items();
    let mut chosen = Vec::new();
    for one in items {
        match one_of(&one.raw, words, "") {
            Ok(word) if !chosen.contains(&word) => chosen.push(word),
            Ok(word) => log.error(one.at, format!("{name} {word:?}: the value is given twice")),
            Err(why) => log.wrong(name, one, &why),
        }
    }
    (chosen.len() == items.len()).then_some(Value::List(chosen))
}

fn table(name: &str, keys: &'static [&'static str], item: &Item, log: &mut Log) -> Option<Value> {
    let Raw::Table(fields) = &item.raw else {
        log.wrong(name, item, &format!("a table is needed: {{ {} = \"...\" }}", keys[0]));
        return None;
    };
    let mut texts = Vec::new();
    for Field { key, item } in fields {
        let Some(known) = keys.iter().find(|known| **known == key.text) else {
            unknown_key(key, name, keys.iter().copied(), log);
            continue;
        };
        match path(&item.raw) {
            Ok(text) => texts.push((*known, text)),
            Err(why) => log.wrong(known, item, &why),
        }
    }
    (texts.len() == fields.len()).then_some(Value::Table(texts))
}

fn text(raw: &Raw) -> Parsed<String> {
    match raw {
        Raw::Text(text) => Ok(text.clone()),
        _ => Err("text is needed, in quotes".to_owned()),
    }
}

fn path(raw: &Raw) -> Parsed<String> {
    match raw {
        Raw::Text(text) if !text.is_empty() && !text.contains('\0') => Ok(text.clone()),
        _ => Err("a path is needed, in quotes".to_owned()),
    }
}
