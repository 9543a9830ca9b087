use std::fmt;

/// A table that cannot be used. Displayed as `file:row: column "x": what happened; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableError {
    pub file: String,
    /// Line in the file, counted from 1; the header is line 1.
    pub line: Option<u64>,
    pub column: Option<String>,
    pub problem: String,
    pub remedy: String,
}

impl TableError {
    pub(crate) fn new(file: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, column: None, problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }

    pub(crate) fn column(self, column: &str) -> Self {
        Self { column: Some(column.to_owned()), ..self }
    }
}

impl From<eadt_recordings::ImportError> for TableError {
    fn from(error: eadt_recordings::ImportError) -> Self {
        let eadt_recordings::ImportError { file, line, column, problem, remedy } = error;
        Self { file, line, column, problem, remedy }
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ": column {column:?}")?;
        }
        write!(f, ": {}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for TableError {}

/// Quotes a text for an error, shortened to a limit.
pub(crate) fn quote(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("\"{short}{more}\"")
}
