//! What is wrong with a spec: each fault with its place in the file, all of them at once.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A place in the text, counted from 1 in lines and characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The character in it.
    pub column: u32,
}

impl Position {
    /// No place in a text: what is meant was not written, or there is no text.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };
}

/// Whether a fault stops everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Nothing is done.
    Error,
    /// Worth knowing; it goes on.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One fault: where, how bad, and a sentence with the value, the limit and the next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    file: Arc<str>,
    position: Position,
    severity: Severity,
    message: String,
}

impl Fault {
    /// The name of the file, as it was given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Where in the file.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// What is wrong and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.position != Position::NOWHERE {
            write!(f, ":{}:{}", self.position.line, self.position.column)?;
        }
        write!(f, "  {}  {}", self.severity, self.message)
    }
}

/// Everything that is wrong with a spec, in the order of the text; at least one fault is an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// The faults, warnings among them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Fault> {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.0 {
            writeln!(f, "{fault}")?;
        }
        let errors = self.0.iter().filter(|fault| fault.severity == Severity::Error).count();
        let s = if errors == 1 { "" } else { "s" };
        write!(f, "{errors} fault{s}, nothing done.")
    }
}

impl Error for Faults {}

/// Where faults are gathered.
#[derive(Clone)]
pub(super) struct Log {
    file: Arc<str>,
    faults: Vec<Fault>,
}

impl Log {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.into(), faults: Vec::new() }
    }

    pub(super) fn error(&mut self, position: Position, message: impl Into<String>) {
        self.add(position, Severity::Error, message.into());
    }

    pub(super) fn warning(&mut self, position: Position, message: impl Into<String>) {
        self.add(position, Severity::Warning, message.into());
    }

    pub(super) fn has_errors(&self) -> bool {
        self.faults.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// The warnings, if there is nothing worse.
    pub(super) fn finish(mut self) -> Result<Vec<Fault>, Faults> {
        self.faults.sort_by_key(|fault| fault.position);
        if self.has_errors() { Err(Faults(self.faults)) } else { Ok(self.faults) }
    }

    fn add(&mut self, position: Position, severity: Severity, message: String) {
        self.faults.push(Fault { file: self.file.clone(), position, severity, message });
    }
}
