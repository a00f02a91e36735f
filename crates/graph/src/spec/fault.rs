//! The faults of a spec, each with its position in the text. All faults are reported together.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::tree::{Item, Raw};

/// A position in the text of a spec.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// Line in the text of the spec, counted from 1.
    pub line: u32,
    /// Character in the line, counted from 1.
    pub column: u32,
}

impl Position {
    /// No position: the text has no place for the fault, or there is no text.
    pub const NONE: Self = Self { line: 0, column: 0 };
}

/// Whether a fault makes a spec unusable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The spec cannot be used because of the fault.
    Error,
    /// The spec can be used, but the user should know about the fault.
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

/// One fault of a spec: its position, its severity, and a message with the value, the limit and the next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    file: Arc<str>,
    position: Position,
    severity: Severity,
    message: String,
}

impl Fault {
    /// Returns the name of the spec's file, as the caller passed it to the parser.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the position of the fault in the spec.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the severity of the fault.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Returns the message about the fault: a description and the next step.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.position != Position::NONE {
            write!(f, ":{}:{}", self.position.line, self.position.column)?;
        }
        write!(f, "  {}  {}", self.severity, self.message)
    }
}

/// Maximum number of faults of one spec that are kept with a message; further errors are only counted.
const FAULTS_MAX: usize = 100;

/// All faults of a spec, in the order of the text. At least one is an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    told: Vec<Fault>,
    /// Number of further errors, which are only counted.
    more: usize,
}

impl Faults {
    /// Returns the faults that have a message, including warnings: the first 100 that were found.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Fault> {
        self.told.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.told {
            writeln!(f, "{fault}")?;
        }
        if self.more > 0 {
            writeln!(f, "and {} more faults", self.more)?;
        }
        let told = self.told.iter().filter(|fault| fault.severity == Severity::Error).count();
        let errors = told + self.more;
        let s = if errors == 1 { "" } else { "s" };
        write!(f, "{errors} fault{s}, nothing done.")
    }
}

impl Error for Faults {}

/// A collector of the faults of one spec.
#[derive(Clone)]
pub(super) struct Log {
    file: Arc<str>,
    faults: Vec<Fault>,
    /// Number of errors beyond the first [`FAULTS_MAX`] faults, which are only counted.
    more: usize,
}

impl Log {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.into(), faults: Vec::new(), more: 0 }
    }

    pub(super) fn error(&mut self, position: Position, message: impl Into<String>) {
        self.error_with(position, || message.into());
    }

    /// Adds an error to the faults. Calls `message` only if the number of faults is still below [`FAULTS_MAX`].
    pub(super) fn error_with(&mut self, position: Position, message: impl FnOnce() -> String) {
        match self.faults.len() < FAULTS_MAX {
            true => self.add(position, Severity::Error, message()),
            false => self.more += 1,
        }
    }

    /// Adds an error about a wrong value of the option or key `name`, unless that value has a reported fault already.
    pub(super) fn wrong(&mut self, name: &str, item: &Item, why: &str) {
        if !matches!(item.raw, Raw::Broken) {
            self.error(item.at, format!("{name} {}: {why}", item.raw.show()));
        }
    }

    pub(super) fn warning(&mut self, position: Position, message: impl Into<String>) {
        if self.faults.len() < FAULTS_MAX {
            self.add(position, Severity::Warning, message.into());
        }
    }

    pub(super) fn has_errors(&self) -> bool {
        self.more > 0 || self.faults.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// Returns the warnings if there is no error, else all faults.
    pub(super) fn finish(mut self) -> Result<Vec<Fault>, Faults> {
        self.faults.sort_by_key(|fault| fault.position);
        match self.has_errors() {
            true => Err(Faults { told: self.faults, more: self.more }),
            false => Ok(self.faults),
        }
    }

    fn add(&mut self, position: Position, severity: Severity, message: String) {
        self.faults.push(Fault { file: self.file.clone(), position, severity, message });
    }
}
