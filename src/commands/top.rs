//! `eadt top`: the live view of a pipeline that runs elsewhere.

use std::io::IsTerminal;

use eadt_bus::{Bus, Isolation};
use eadt_service::Shutdown;

use super::get;
use crate::cli::Top;
use crate::live::follow::{Follow, RunLength};
use crate::live::keys::ViewState;
use crate::live::source::{self, TOPICS};
use crate::settings::Settings;

/// Whether the view takes the terminal.
pub fn wants_view(args: &Top) -> bool {
    !args.plain && !args.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Follows until somebody ends it; on the embedded log, to which nobody can append meanwhile, until it has been read where there is no view.
pub fn run(args: &Top, bus: &dyn Bus, settings: &Settings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let span = get::span(args.since);
    let from = source::starts(bus, &settings.topics, &TOPICS, span)?;
    let embedded = settings.bus.brokers.is_empty();
    let viewing = wants_view(args);
    let place = if embedded {
        format!("embedded log in {}, which nobody writes now", settings.bus.data_dir.display())
    } else {
        format!("Kafka {} · topics {}*", settings.bus.brokers, settings.topics.prefix)
    };
    let follow = Follow {
        prefix: settings.topics.prefix.clone(),
        headline: place,
        simulated: false,
        viewing,
        partial: args.since.is_some(),
        length: RunLength::Endless,
        state: ViewState::sorted_by(args.sort),
        news: None,
        drains: false,
        once: args.once || embedded && !viewing,
        partitions: from.len(),
        exporter: None,
    };
    let reader = bus.reader(&from, Isolation::ReadCommitted)?;
    follow.run(reader, shutdown, shutdown)?;
    Ok(())
}
