//! The text of a spec as a tree: TOML with the position of each key and value, in the order of the file, and with
//! variables replaced by their values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Log, Position};
use super::vars;

/// Maximum number of bytes of the text that an error message about TOML syntax quotes.
const NEAR_MAX_BYTES: usize = 40;

/// A word in the text of a spec, with its position.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) at: Position,
}

/// A key in the text of a spec, and its value.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) key: Word,
    pub(super) item: Item,
}

/// A value in the text of a spec, with its position.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) at: Position,
    pub(super) raw: Raw,
}

impl Word {
    /// Returns a word without a position, because the program made it.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), at: Position::NONE }
    }
}

impl Field {
    /// Returns a field without a position, because the program made it.
    pub(super) fn new(key: &str, raw: Raw) -> Self {
        Self { key: Word::new(key), item: Item::new(raw) }
    }

    /// Returns a field with a text value and without a position, because the program made it.
    pub(super) fn text(key: &str, text: &str) -> Self {
        Self::new(key, Raw::Text(text.to_owned()))
    }
}

impl Item {
    /// Returns a value without a position, because the program made it.
    pub(super) fn new(raw: Raw) -> Self {
        Self { at: Position::NONE, raw }
    }

    /// Returns the values of this list. A value that is no list counts as a list of one value.
    pub(super) fn items(&self) -> &[Self] {
        match &self.raw {
            Raw::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }
}

/// A value in the text of a spec, not yet checked against the type of its option.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Text(String),
    Integer(i128),
    Float(f64),
    Switch(bool),
    Date(String),
    List(Vec<Item>),
    Table(Vec<Field>),
    /// A value with a fault that is reported already. Later checks report no further fault of this value.
    Broken,
}

impl Raw {
    /// Formats the value for messages, as it would be written in a spec.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => format!("{number:?}"),
            Self::Switch(switch) => switch.to_string(),
            Self::Date(date) => date.clone(),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(|item| item.raw.show()).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Table(_) | Self::Broken => "{…}".to_owned(),
        }
    }
}

/// Parses the text of a spec, and returns its top-level fields. Returns `None` if the text is not TOML: an incomplete
/// tree would cause further faults that are not real.
pub(super) fn read(
    text: &str,
    vars: &dyn Fn(&str) -> Option<String>,
    log: &mut Log,
) -> Option<Vec<Field>> {
    let lines = Lines::new(text);
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut line = None;
    for error in &errors {
        let span = error.span().unwrap_or_default();
        let at = lines.position(span.start);
        // Only the first error of a line is reported: further ones are guesswork of the parser.
        if line.replace(at.line) != Some(at.line) {
            let near =
                text.get(span).filter(|near| (1..=NEAR_MAX_BYTES).contains(&near.trim().len()));
            let near = near.map_or(String::new(), |near| format!(", at {near:?}"));
            log.error(at, format!("not TOML: {}{near}", error.message()));
        }
    }
    errors.is_empty().then(|| Reader { lines, vars, log }.fields(root.get_ref()))
}

struct Reader<'r> {
    lines: Lines<'r>,
    vars: &'r dyn Fn(&str) -> Option<String>,
    log: &'r mut Log,
}

impl Reader<'_> {
    fn fields(&mut self, table: &DeTable<'_>) -> Vec<Field> {
        let field = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let at = self.lines.position(key.span().start);
            let key = Word { text: String::from(AsRef::<str>::as_ref(key.get_ref())), at };
            Field { key, item: self.item(value) }
        };
        let mut fields: Vec<Field> = table.iter().map(field).collect();
        fields.sort_by_key(|field| field.key.at);
        fields
    }

    fn item(&mut self, value: &Spanned<DeValue<'_>>) -> Item {
        let at = self.lines.position(value.span().start);
        let raw = match value.get_ref() {
            DeValue::String(text) => self.text(text, at),
            DeValue::Integer(integer) => {
                let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
                let why = "is larger than the largest possible number";
                self.number(number.map(Raw::Integer), integer.as_str(), why, at)
            }
            DeValue::Float(float) => {
                let number = float.as_str().parse().ok();
                self.number(number.map(Raw::Float), float.as_str(), "is not a number", at)
            }
            DeValue::Boolean(switch) => Raw::Switch(*switch),
            DeValue::Datetime(date) => Raw::Date(date.to_string()),
            DeValue::Array(items) => Raw::List(items.iter().map(|item| self.item(item)).collect()),
            DeValue::Table(table) => Raw::Table(self.fields(table)),
        };
        Item { at, raw }
    }

    fn text(&mut self, text: &str, at: Position) -> Raw {
        match vars::expand(text, self.vars) {
            Ok(text) => Raw::Text(text),
            Err(wrong) => {
                for sentence in wrong {
                    self.log.error(at, sentence);
                }
                Raw::Broken
            }
        }
    }

    /// Returns the number, or reports that `text` is no number. `text` is escaped, because it may hold any character.
    fn number(&mut self, number: Option<Raw>, text: &str, why: &str, at: Position) -> Raw {
        number.unwrap_or_else(|| {
            self.log.error(at, format!("{} {why}", text.escape_debug()));
            Raw::Broken
        })
    }
}

/// Conversion of a byte offset in the text to a line and column.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { text, starts: std::iter::once(0).chain(after).collect() }
    }

    fn position(&self, byte: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= byte);
        let before = self.text.get(self.starts[line - 1]..byte).unwrap_or_default();
        Position { line: line as u32, column: before.chars().count() as u32 + 1 }
    }
}
