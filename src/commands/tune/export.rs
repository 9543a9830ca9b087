//! `eadt tune export`: settings for production.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use eadt_tune::export::{ExportFormat, PolicyTarget, export};

use super::{read_result, write};
use crate::output::{print, print_line};

#[derive(Debug, Args)]
pub struct TuneExportArgs {
    /// What `eadt tune … --json` printed.
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// What to make: `EnergyPolicy` objects (YAML), a table for a node agent (TOML), or the chosen settings alone (JSON).
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: FormName,
    /// Only groups with this value in this column; may be repeated.
    #[arg(long, value_name = "COLUMN=VALUE", value_parser = column_and_value)]
    pub only: Vec<(String, String)>,
    /// Namespace of the policies, where the workload names none.
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// API version of the workloads that the policies target.
    #[arg(long, default_value = "apps/v1")]
    pub target_api_version: String,
    /// Kind of the workloads that the policies target.
    #[arg(long, default_value = "StatefulSet")]
    pub target_kind: String,
    /// Name of the workload [default: the group's `workload`].
    #[arg(long)]
    pub target_name: Option<String>,
    /// Write to a file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormName {
    EnergyPolicy,
    NodeAgent,
    Json,
}

/// Reads `COLUMN=VALUE`.
fn column_and_value(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(column, value)| (column.to_owned(), value.to_owned()));
    parts.ok_or_else(|| "give COLUMN=VALUE, for example workload=bert".to_owned())
}

pub fn run(args: &TuneExportArgs) -> anyhow::Result<()> {
    let name = args.result.display();
    let mut tuning = read_result(&args.result)?;
    for only in &args.only {
        let (column, value) = only;
        tuning.groups.retain(|group| group.by.get(column).is_some_and(|own| own == value));
    }
    if tuning.groups.is_empty() {
        bail!("{name} has no such group");
    }
    let form = match args.form {
        FormName::EnergyPolicy => ExportFormat::EnergyPolicy,
        FormName::NodeAgent => ExportFormat::NodeAgent,
        FormName::Json => ExportFormat::Json,
    };
    let target = PolicyTarget {
        namespace: args.namespace.clone(),
        api_version: args.target_api_version.clone(),
        kind: args.target_kind.clone(),
        name: args.target_name.clone(),
    };
    let text = export(&tuning, form, &target)?;
    match &args.out {
        None => print(&text),
        Some(file) => {
            write(file, std::slice::from_ref(&args.result), &text, args.force)?;
            print_line!("written to {}", file.display());
            Ok(())
        }
    }
}
