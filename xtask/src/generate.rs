//! `cargo xtask generate`: documents that come from the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use eadt_schemas::documents;

use crate::{architecture, process, test};

/// Documents that the program prints: path and the arguments that print it.
const PRINTED: [(&str, &[&str]); 16] = [
    ("docs/reference/configuration.md", &["config", "reference"]),
    ("docs/reference/metrics.md", &["metrics"]),
    ("docs/reference/scenario.md", &["config", "scenario", "--reference"]),
    ("docs/use/sql/views.sql", &["archive", "views", "eadt-data/archive"]),
    ("deploy/crds/energypolicies.yaml", &["policy", "crd"]),
    // A chart cannot refer to a file outside of it.
    ("deploy/helm/eadt/crds/energypolicies.yaml", &["policy", "crd"]),
    ("deploy/helm/eadt/files/topics.json", &["topics", "desired", "--json"]),
    ("deploy/kafka/acls/actuator.yaml", &["topics", "acls", "actuator", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/agent.yaml", &["topics", "acls", "agent", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/archiver.yaml", &["topics", "acls", "archiver", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/collector.yaml", &["topics", "acls", "collector", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/optimizer.yaml", &["topics", "acls", "optimizer", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/processor.yaml", &["topics", "acls", "processor", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/reader.yaml", &["topics", "acls", "reader", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/simulator.yaml", &["topics", "acls", "simulator", "--strimzi", "kafka"]),
    ("deploy/kafka/acls/topics.yaml", &["topics", "acls", "topics", "--strimzi", "kafka"]),
];

/// A document with its content.
type Document = (PathBuf, String);

/// The documents to generate.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Options {
    /// Write nothing; fail where a document is out of date.
    #[arg(long)]
    pub check: bool,
    /// Only what comes from the event types; does not build the program.
    #[arg(long)]
    pub schemas: bool,
}

/// Writes all documents, or fails with the names of those that differ.
pub fn run(options: Options) -> anyhow::Result<()> {
    let program = if options.schemas { test::program()? } else { test::build_program()? };
    documents_from(options, &program)
}

/// Fails with the names of documents that differ from the output of this built program and from the event types.
pub fn check(program: &Path) -> anyhow::Result<()> {
    documents_from(Options { check: true, schemas: false }, program)
}

fn documents_from(options: Options, program: &Path) -> anyhow::Result<()> {
    let root = process::root();
    let mut wanted: Vec<Document> =
        documents::schema_files().into_iter().map(|(path, text)| (PathBuf::from("schemas").join(path), text)).collect();
    wanted.push(("docs/reference/events.md".into(), documents::events_page()));
    wanted.push(("docs/reference/tasks.md".into(), eadt_tasks::page()));
    if !options.schemas {
        wanted.push((architecture::PAGE.into(), architecture::page()?));
    }
    wanted.extend(crate::monitoring::files().into_iter().map(|(path, text)| (PathBuf::from(path), text)));
    let mut failed = Vec::new();
    for (path, arguments) in PRINTED.into_iter().filter(|_| !options.schemas) {
        match printed(program, arguments) {
            Ok(text) => wanted.push((path.into(), text)),
            Err(error) => failed.push(format!("{path}: {error:#}")),
        }
    }
    let stale = if options.check { differing(&root, &wanted) } else { write(&root, &wanted)? };
    for path in &stale {
        println!("{} {}", if options.check { "out of date:" } else { "written:" }, path.display());
    }
    if !failed.is_empty() {
        bail!("not generated: {}", failed.join("; "));
    }
    if options.check && !stale.is_empty() {
        bail!("{} generated files are out of date; run `cargo xtask generate` and commit them", stale.len());
    }
    println!("{} generated files are up to date", wanted.len());
    Ok(())
}

/// Copies the schemas to the released ones; refuses a change that breaks readers of released events.
pub fn release_schemas() -> anyhow::Result<()> {
    run(Options { check: false, schemas: true })?;
    let root = process::root().join("schemas");
    for (path, text) in documents::schema_files() {
        let released = root.join(path.replacen("json/", "released/", 1));
        if let Ok(old) = fs::read(&released) {
            let old = serde_json::from_slice(&old).with_context(|| format!("{} is not JSON", released.display()))?;
            let new = serde_json::from_str(&text).expect("generated JSON");
            if let Err(breaks) = eadt_schemas::compat::compatible(&old, &new) {
                let list: Vec<String> = breaks.iter().map(ToString::to_string).collect();
                bail!("{} breaks readers of released events: {}", released.display(), list.join("; "));
            }
        }
        fs::create_dir_all(released.parent().expect("a file in a folder"))?;
        fs::write(&released, text).with_context(|| format!("cannot write {}", released.display()))?;
        println!("released: {}", released.display());
    }
    Ok(())
}

/// Returns the program's output with these arguments.
fn printed(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(process::root());
    let text = process::shown(&command);
    let output = command.output().with_context(|| format!("cannot start {text}"))?;
    if !output.status.success() {
        bail!("{text} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("the program printed something that is not UTF-8")?;
    anyhow::ensure!(!text.trim().is_empty(), "{} printed nothing", process::shown(&command));
    Ok(text)
}

fn differing(root: &Path, wanted: &[Document]) -> Vec<PathBuf> {
    let differs = |(path, text): &&Document| fs::read_to_string(root.join(path)).ok().as_deref() != Some(text.as_str());
    wanted.iter().filter(differs).map(|(path, _)| path.clone()).collect()
}

/// Writes documents that differ, and prints their names.
fn write(root: &Path, wanted: &[Document]) -> anyhow::Result<Vec<PathBuf>> {
    let stale = differing(root, wanted);
    for (path, text) in wanted.iter().filter(|(path, _)| stale.contains(path)) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file in a folder"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_only_what_differs_and_check_sees_it() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = vec![("docs/a.md".into(), "a\n".to_owned()), ("b.json".into(), "{}\n".to_owned())];
        fs::write(folder.path().join("b.json"), "{}\n").unwrap();
        assert_eq!(differing(folder.path(), &wanted), [PathBuf::from("docs/a.md")]);
        assert_eq!(write(folder.path(), &wanted).unwrap(), [PathBuf::from("docs/a.md")]);
        assert_eq!(differing(folder.path(), &wanted), Vec::<PathBuf>::new());
        fs::write(folder.path().join("docs/a.md"), "b\n").unwrap();
        assert_eq!(differing(folder.path(), &wanted), [PathBuf::from("docs/a.md")]);
    }
}
