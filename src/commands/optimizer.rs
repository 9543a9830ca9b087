//! `eadt optimizer --once`: reads the archive once, and prints the result.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use eadt_lake::Archive;
use eadt_optimizer::{ModelProposal, ModelVerdict, OptimizerDependencies};
use eadt_schemas::Topic;
use eadt_schemas::counts::{counted, counted_as};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown};
use serde_json::json;

use crate::cli::OptimizerArgs;
use crate::output::print_line;
use crate::progress;
use crate::settings::ProgramSettings;

/// Returns why nothing can be learned from a folder that does not exist; `None` if there is one, or at an object store.
pub fn missing(location: &str) -> Option<String> {
    let folder = match location.split_once("://") {
        None => location,
        Some(("file", path)) => path,
        Some(_) => return None,
    };
    let advice = "name the data folder of an `eadt up` with --data-dir, or an archive with optimizer.location";
    (!Path::new(folder).exists()).then(|| format!("there is no archive at {location}: {advice}"))
}

pub fn run(args: &OptimizerArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    settings.optimizer.check().map_err(anyhow::Error::msg)?;
    if let Some(missing) = missing(&settings.optimizer.location) {
        bail!("{missing}");
    }
    let topics = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::Workloads];
    let (archive, meter) = progress::over_archive(Archive::open(&settings.optimizer.location)?, &topics)?;
    let (proposals, sent) = if args.dry_run {
        let (training, refused) = eadt_optimizer::read(&archive)?;
        meter.finish();
        if refused > 0 {
            crate::output::note!(
                "warning: {}; nothing is learned from them",
                counted_as(refused, "record of the archive is not a valid event", "records of the archive are not valid events")
            );
        }
        let now = ServiceClock::machine().now();
        (eadt_optimizer::learn(&training, &BTreeMap::new(), &settings.optimizer, now), 0)
    } else {
        let (bus, clock) = crate::bus::open_with_clock(settings)?;
        let round = eadt_optimizer::run(&OptimizerDependencies {
            settings: settings.optimizer.clone(),
            archive: Some(archive),
            prefix: settings.topics.prefix.clone(),
            bus,
            clock,
            shutdown: shutdown.clone(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("optimizer"),
            once: true,
        })?;
        meter.finish();
        (round.proposals, round.sent)
    };
    if args.json {
        print_line!("{}", json!({"proposals": proposals, "records_sent": sent}));
        return Ok(());
    }
    if proposals.is_empty() {
        print_line!("{} holds no usable windows: nothing can be learned from it", settings.optimizer.location);
    }
    for ModelProposal { name, verdict, reason, model, .. } in &proposals {
        let (what, origin) = match (verdict, model) {
            (ModelVerdict::Publish, Some(model)) => (format!("version {}", model.version), model.parameters["origin"].as_str()),
            (ModelVerdict::Publish, None) => ("publish".to_owned(), None),
            (ModelVerdict::Keep, _) => ("keep".to_owned(), None),
            (ModelVerdict::CannotTell, _) => ("cannot tell".to_owned(), None),
        };
        let origin = origin.map(|origin| format!(" ({origin})")).unwrap_or_default();
        print_line!("{name}: {what}{origin}: {reason}");
    }
    if !args.dry_run {
        print_line!("{} written to {}models.v1", counted(sent, "record"), settings.topics.prefix);
    }
    Ok(())
}
