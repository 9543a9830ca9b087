use std::fmt;

/// A recording that cannot be imported.
///
/// Displayed as `file:line: column "x": what happened; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// Empty if the options are to blame: they name themselves.
    pub file: String,
    /// Counted from 1.
    pub line: Option<u64>,
    /// The column, field or series to blame.
    pub column: Option<String>,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

impl ImportError {
    pub(crate) fn in_file(file: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { file: file.into(), line: None, column: None, problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn in_line(file: &str, line: u64, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::in_file(file, problem, remedy) }
    }

    /// Returns whether options are to blame, and no file.
    pub fn is_about_options(&self) -> bool {
        self.file.is_empty() && self.line.is_none() && self.column.is_none()
    }

    /// Returns the problem with its column, but without file and line.
    pub(crate) fn without_place(&self) -> String {
        match &self.column {
            Some(column) => format!("column {column:?}: {}", self.problem),
            None => self.problem.clone(),
        }
    }

    pub(crate) fn with_column(mut self, column: impl Into<String>) -> Self {
        self.column = Some(column.into());
        self
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ": column {column:?}")?;
        }
        write!(f, "{}{}", if self.is_about_options() { "" } else { ": " }, self.problem)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for ImportError {}

/// Quotes a text for an error, shortened to a limit.
pub(crate) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
