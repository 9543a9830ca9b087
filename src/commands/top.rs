//! `eadt top`: the live view of a pipeline that runs elsewhere.

use std::io::IsTerminal;

use eadt_bus::{IsolationLevel, PartitionReader};
use eadt_service::Shutdown;

use crate::cli::TopArgs;
use crate::live::dashboard_log::{DashboardClient, DashboardLogReader};
use crate::live::follow::{LiveViewOptions, RunLength};
use crate::live::keys::ViewState;
use crate::live::source::{self, ReadRange, TOPICS};
use crate::settings::ProgramSettings;

/// Returns whether the view takes the terminal.
pub fn wants_view(args: &TopArgs) -> bool {
    !args.plain && !args.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Input of the view.
struct LiveViewInput {
    reader: Box<dyn PartitionReader>,
    headline: String,
    /// Prefix of the topics' names.
    prefix: String,
    partitions: usize,
    /// Records that it holds at the start; 0 if that is unknown.
    records: u64,
    /// No other process can append to it meanwhile.
    is_complete: bool,
}

impl LiveViewInput {
    /// Returns the log behind a page.
    fn page(args: &TopArgs, page: DashboardClient) -> anyhow::Result<Self> {
        let headline = format!("the web page at {page}");
        let log = DashboardLogReader::open(page, args.since)?;
        let (partitions, records) = (log.partitions(), log.left());
        Ok(Self { reader: Box::new(log), headline, prefix: String::new(), partitions, records, is_complete: false })
    }

    /// Returns the log of the settings.
    fn log(args: &TopArgs, settings: &ProgramSettings) -> anyhow::Result<Self> {
        let bus = crate::bus::open(settings).map_err(|error| source::name_page(error, settings))?;
        let (span, _) = source::resolve_log_range(&*bus, settings, &TOPICS, ReadRange::last(args.since))?;
        let from = source::starts(&*bus, &settings.topics, &TOPICS, span)?;
        let embedded = settings.bus.brokers.is_empty();
        let headline = if embedded {
            format!("embedded log in {}, which no process writes now", settings.bus.data_dir.display())
        } else {
            format!("Kafka {} · topics {}*", settings.bus.brokers, settings.topics.prefix)
        };
        let records = crate::commands::records_of_log(&*bus, &from)?;
        let reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let (prefix, partitions) = (settings.topics.prefix.clone(), from.len());
        Ok(Self { reader, headline, prefix, partitions, records, is_complete: embedded })
    }
}

/// Follows until the user ends it. Without a view, a log that no other process can append to is followed only to its end.
pub fn run(args: &TopArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let followed = match args.page.page()? {
        Some(page) => LiveViewInput::page(args, page)?,
        None => LiveViewInput::log(args, settings)?,
    };
    let viewing = wants_view(args);
    let follow = LiveViewOptions {
        prefix: followed.prefix,
        headline: followed.headline,
        simulated: false,
        viewing,
        partial: args.since.is_some(),
        length: if followed.is_complete { RunLength::Over } else { RunLength::Endless },
        state: ViewState::sorted_by(args.sort),
        run_offsets: None,
        drains: false,
        once: args.once || followed.is_complete && !viewing,
        partitions: followed.partitions,
        records: followed.records,
        exporter: None,
    };
    follow.run(followed.reader, shutdown, shutdown)?;
    Ok(())
}
