//! `eadt dashboard`: the web page of an archive, or of a pipeline that runs on Kafka.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_dashboard::{
    ArchivedIds, Limits, Model, Records, Server, SharedModel, SourceFacts, SourceKind, WhatIf, load_archive, load_log,
};
use eadt_service::{Clock, Shutdown, Supervisor, tasks};

use crate::cli::Dashboard;
use crate::services;
use crate::settings::Settings;

/// Serves until interrupted.
pub async fn run(args: Dashboard, mut settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    if let Some(address) = args.address {
        settings.dashboard.address = address;
        settings.dashboard.check().map_err(anyhow::Error::msg)?;
    }
    let mut supervisor = Supervisor::new(shutdown.clone());
    let server = match args.path {
        Some(path) => {
            let limits = Limits { windows: settings.dashboard.windows, ..Limits::default() };
            let (names, place) = (settings.topics.prefix.clone(), path.clone());
            let records = Records::Folder { path: path.clone(), prefix: names.clone() };
            let what_if = WhatIf::new(records, settings.processor.controller_settings.clone());
            let model = tokio::task::spawn_blocking(move || load(&place, &names, limits)).await??;
            Server::bind(&settings.dashboard, 0, SharedModel::new(model), Some(what_if), shutdown).await?
        }
        None if settings.bus.brokers.is_empty() => bail!(
            "name an archive or a data folder to show, or a Kafka with --kafka BROKERS; a running `eadt up` serves the page itself"
        ),
        None => {
            let bus = crate::bus::connect(&settings)?;
            let server = services::spawn_dashboard(&mut supervisor, &settings, &bus, 0, &shutdown).await?;
            match &args.kubernetes {
                Some(context) => {
                    let clock = Arc::new(|| Clock::wall().now());
                    server.with_editor(services::policy_editor(&settings, context, clock).await?)
                }
                None => server,
            }
        }
    };
    crate::output::say!("the web page is at {}", server.url());
    supervisor.spawn(&tasks::DASHBOARD, server.run());
    supervisor.join().await?;
    Ok(())
}

/// Everything under a path, as `eadt report` takes it.
fn load(path: &Path, prefix: &str, limits: Limits) -> anyhow::Result<Model> {
    if !path.is_dir() {
        bail!("{} is no folder: name a data folder, an archive or the output of `eadt replay`", path.display());
    }
    let source = SourceFacts {
        kind: SourceKind::Archive,
        place: path.display().to_string(),
        window_seconds: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut model = Model::new(source, limits);
    let log = path.join("log");
    let archived = load_archive(path, &mut model).map_err(anyhow::Error::from);
    if log.is_dir() {
        // What the archive does not hold yet is in the log; what both hold counts once.
        let ids = archived.unwrap_or_else(|error| {
            tracing::debug!(%error, "no archive yet");
            ArchivedIds::default()
        });
        match EmbeddedLog::open(&log, EmbeddedOptions::default()) {
            Ok(bus) => load_log(&bus, prefix, &ids, &mut model)?,
            Err(error) => crate::output::note!("warning: only what is archived is shown: {error}"),
        }
    } else {
        archived.with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(model)
}
