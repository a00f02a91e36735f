//! The text form of a table: one line for each segment, in bytes.
//!
//! ```text
//! 0+1073741824 linear p0 4096
//! 1073741824+8388608 striped 65536 skip 0 p1:0 p2:1048576 via data@3 fast@1
//! ```
//!
//! A line has the range above, the kind of place, and the position below. If the segment passes through named tables,
//! `via` follows with their names and generations, the uppermost first. The printed text parses back to an equal
//! table.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::{Builder, Origin, Path, Place, Port, Row, Segment, Stripe, Table, TableError, TableId};

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.range, self.place)?;
        if !self.path.is_empty() {
            write!(f, " via")?;
        }
        self.path.iter().try_for_each(|id| write!(f, " {id}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(Origin { port, start }) => write!(f, "linear {port} {start}"),
            Self::Striped(stripe) => {
                write!(f, "striped {} skip {}", stripe.chunk(), stripe.skip())?;
                let mut columns = stripe.columns().iter();
                columns.try_for_each(|Origin { port, start }| write!(f, " {port}:{start}"))
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{segment}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a text is not a table, with its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// Fault at this position.
    pub problem: ParseProblem,
}

/// Fault in the text of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParseProblem {
    /// Unexpected text.
    Expected {
        /// Expected text.
        what: &'static str,
        /// Text that is there; empty at the end of a line.
        found: String,
    },
    /// A number that is too large.
    TooLarge {
        /// The number, as it is written.
        found: String,
        /// Largest permitted number.
        limit: u64,
    },
    /// A segment that does not begin at the end of the one before it.
    Start {
        /// Start of the segment.
        found: u64,
        /// Required start.
        expected: u64,
    },
    /// Well-formed lines that do not make a table.
    Table(TableError),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.problem)
    }
}

impl fmt::Display for ParseProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expected { what, found } if found.is_empty() => {
                write!(f, "expected {what}, found the end of the line")
            }
            Self::Expected { what, found } => write!(f, "expected {what}, found {found:?}"),
            Self::TooLarge { found, limit } => write!(f, "{found} is more than {limit}"),
            Self::Start { found, expected } => {
                write!(f, "the segment begins at {found}; the one before it ends at {expected}")
            }
            Self::Table(error) => error.fmt(f),
        }
    }
}

impl Error for ParseError {}

impl FromStr for Table {
    type Err = ParseError;

    /// Parses the text that [`Table`] prints. Blank lines are ignored.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut builder = Builder::new();
        let mut last = Words { text: "", line: 1, column: 1 };
        for (index, line) in text.lines().enumerate() {
            let mut words = Words { text: line, line: index + 1, column: 1 };
            if line.trim().is_empty() {
                continue;
            }
            last = words;
            let start = words;
            let row = row(&mut words, builder.size())?;
            builder.push(row).map_err(|error| start.refused(error))?;
        }
        builder.finish().map_err(|error| last.refused(error))
    }
}

/// Parses one line: `START+LEN PLACE [via ID...]`.
fn row(words: &mut Words, expected: u64) -> Result<Row, ParseError> {
    let (start, len) = words.expect("a range START+LEN")?.halves('+', "a range START+LEN")?;
    let found = start.number(u64::MAX)?;
    if found != expected {
        return Err(start.error(ParseProblem::Start { found, expected }));
    }
    let len = len.number(u64::MAX)?;
    let kind = words.expect("linear or striped")?;
    let place = match kind.text {
        "linear" => linear(words)?,
        "striped" => striped(words)?,
        _ => return Err(kind.expected("linear or striped")),
    };
    Ok(Row { len, place, path: path(words)? })
}

/// Parses `PORT START`.
fn linear(words: &mut Words) -> Result<Place, ParseError> {
    let port = port(words.expect("a port")?)?;
    let start = words.expect("the first byte below")?.number(u64::MAX)?;
    Ok(Place::Linear(Origin { port, start }))
}

/// Parses `CHUNK skip BYTES PORT:START...`.
fn striped(words: &mut Words) -> Result<Place, ParseError> {
    let start = *words;
    let chunk = words.expect("a chunk")?.number(u32::MAX)?;
    let keyword = words.expect("skip")?;
    if keyword.text != "skip" {
        return Err(keyword.expected("skip"));
    }
    let skip = words.expect("the bytes to skip")?.number(u64::MAX)?;
    let mut columns = Vec::new();
    while let Some(word) = words.peek().filter(|word| word.text != "via") {
        words.next();
        let (name, start) = word.halves(':', "a column PORT:START")?;
        columns.push(Origin { port: port(name)?, start: start.number(u64::MAX)? });
    }
    let stripe = Stripe::new(chunk, skip, columns).map_err(|error| start.refused(error))?;
    Ok(Place::Striped(Box::new(stripe)))
}

/// Parses `via NAME@GENERATION...`, or nothing, up to the end of the line.
fn path(words: &mut Words) -> Result<Path, ParseError> {
    let Some(via) = words.next() else {
        return Ok(Path::default());
    };
    if via.text != "via" {
        return Err(via.expected("via or the end of the line"));
    }
    let mut ids = vec![id(words.expect("a table NAME@GENERATION")?)?];
    while let Some(word) = words.next() {
        ids.push(id(word)?);
    }
    Ok(ids.into())
}

fn id(word: Word) -> Result<TableId, ParseError> {
    let (name, generation) = word.halves('@', "a table NAME@GENERATION")?;
    TableId::new(name.text, generation.number(u64::MAX)?)
        .map_err(|error| word.error(ParseProblem::Table(error)))
}

fn port(word: Word) -> Result<Port, ParseError> {
    let digits = word.text.strip_prefix('p').ok_or_else(|| word.expected("a port p0, p1, ..."))?;
    Ok(Port(Word { text: digits, column: word.column + 1, ..word }.number(u16::MAX)?))
}

/// The unread words of a line.
#[derive(Clone, Copy)]
struct Words<'t> {
    text: &'t str,
    line: usize,
    column: usize,
}

/// A word and its position.
#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    line: usize,
    column: usize,
}

impl<'t> Words<'t> {
    fn peek(mut self) -> Option<Word<'t>> {
        self.next()
    }

    fn next(&mut self) -> Option<Word<'t>> {
        let text = self.text.trim_start();
        self.column += chars(self.text) - chars(text);
        let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        let word = Word { text: word, line: self.line, column: self.column };
        self.text = rest;
        self.column += chars(word.text);
        (!word.text.is_empty()).then_some(word)
    }

    fn expect(&mut self, what: &'static str) -> Result<Word<'t>, ParseError> {
        let end = Word { text: "", line: self.line, column: self.column + chars(self.text) };
        self.next().ok_or_else(|| end.expected(what))
    }

    fn refused(&self, error: TableError) -> ParseError {
        ParseError { line: self.line, column: self.column, problem: ParseProblem::Table(error) }
    }
}

impl<'t> Word<'t> {
    fn error(&self, problem: ParseProblem) -> ParseError {
        ParseError { line: self.line, column: self.column, problem }
    }

    fn expected(&self, what: &'static str) -> ParseError {
        self.error(ParseProblem::Expected { what, found: self.text.to_owned() })
    }

    /// Splits the word at the last `separator`; a name may contain it too.
    fn halves(self, separator: char, what: &'static str) -> Result<(Self, Self), ParseError> {
        let (left, right) = self.text.rsplit_once(separator).ok_or_else(|| self.expected(what))?;
        let column = self.column + chars(left) + 1;
        Ok((Self { text: left, ..self }, Self { text: right, column, ..self }))
    }

    /// Parses decimal digits only; `u64::from_str` would accept a sign as well.
    fn number<N: TryFrom<u64> + Into<u64>>(self, max: N) -> Result<N, ParseError> {
        if self.text.is_empty() || !self.text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.expected("a number"));
        }
        let number = self.text.parse().ok().and_then(|number: u64| N::try_from(number).ok());
        let too_large =
            || ParseProblem::TooLarge { found: self.text.to_owned(), limit: max.into() };
        number.ok_or_else(|| self.error(too_large()))
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = "\
0+1073741824 linear p0 4096
1073741824+8388608 striped 65536 skip 512 p1:0 p2:1048576 via data@3 fast@1
1082130432+512 linear p0 0 via odd@name@18446744073709551615";

    #[test]
    fn table_prints_text_that_it_parses() {
        assert_eq!(THREE.parse::<Table>().unwrap().to_string(), THREE);
    }

    #[test]
    fn parse_ignores_blanks() {
        let table: Table = "\n  0+5   linear\tp0 7  \n\n".parse().unwrap();
        assert_eq!(table.to_string(), "0+5 linear p0 7");
    }

    #[test]
    fn sources_lists_tables_without_duplicates() {
        let table: Table = "0+1 linear p0 9 via b@1 a@2\n1+1 linear p0 7 via b@1".parse().unwrap();
        let names: Vec<_> = table.sources().iter().map(TableId::to_string).collect();
        assert_eq!(names, ["a@2", "b@1"]);
    }

    #[test]
    fn parse_errors_name_place_value_and_limit() {
        let cases = [
            ("", "line 1, column 1: a length of 0 bytes; at least 1 is needed"),
            ("0+0 linear p0 0", "line 1, column 1: a length of 0 bytes; at least 1 is needed"),
            ("4096", "line 1, column 1: expected a range START+LEN, found \"4096\""),
            ("0+5", "line 1, column 4: expected linear or striped, found the end of the line"),
            ("0+5 mirror p0", "line 1, column 5: expected linear or striped, found \"mirror\""),
            ("0+5 linear 0 0", "line 1, column 12: expected a port p0, p1, ..., found \"0\""),
            ("0+5 linear p65536 0", "line 1, column 13: 65536 is more than 65535"),
            ("0+5 linear p1024 0", "line 1, column 1: port p1024; the highest is p1023"),
            ("0+5 linear p0 -1", "line 1, column 15: expected a number, found \"-1\""),
            (
                "0+5 linear p0 18446744073709551616",
                "line 1, column 15: 18446744073709551616 is more than 18446744073709551615",
            ),
            (
                "0+5 linear p0 0\n6+5 linear p0 5",
                "line 2, column 1: the segment begins at 6; the one before it ends at 5",
            ),
            (
                "0+5 linear p0 0 p1",
                "line 1, column 17: expected via or the end of the line, found \"p1\"",
            ),
            (
                "0+5 linear p0 0 via ",
                "line 1, column 21: expected a table NAME@GENERATION, found the end of the line",
            ),
            ("0+5 striped 512 at 0", "line 1, column 17: expected skip, found \"at\""),
            ("0+5 striped 512 skip 0 p0:0", "line 1, column 12: 1 columns; 2 to 64 are allowed"),
            (
                "0+5 linear p0 0\n5+5 linear p0 4",
                "line 2, column 1: bytes 0+5 and 4+5 of p0 overlap",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Table>().unwrap_err().to_string(), expected, "{text:?}");
        }
    }

    #[test]
    fn table_id_rejects_invalid_names() {
        let error = TableId::new("", 1).unwrap_err();
        let expected = "the name \"\" has 0 bytes; 1 to 255 without blanks are allowed";
        assert_eq!(error.to_string(), expected);
        assert!(TableId::new("two words", 1).is_err());
        assert!(TableId::new(&"x".repeat(256), 1).is_err());
        assert_eq!(TableId::new("data", 3).unwrap().to_string(), "data@3");
    }
}
