//! `eadt top`: the live view of a pipeline that runs elsewhere.

use std::io::IsTerminal;

use eadt_bus::{Isolation, Reader};
use eadt_service::Shutdown;

use super::get;
use crate::cli::Top;
use crate::live::follow::{Follow, RunLength};
use crate::live::http_log::{HttpLog, Page};
use crate::live::keys::ViewState;
use crate::live::source::{self, TOPICS};
use crate::settings::Settings;

/// Whether the view takes the terminal.
pub fn wants_view(args: &Top) -> bool {
    !args.plain && !args.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// What is followed.
struct Followed {
    reader: Box<dyn Reader>,
    headline: String,
    /// Of the names of its topics.
    prefix: String,
    partitions: usize,
    /// Nobody can append to it meanwhile.
    is_complete: bool,
}

impl Followed {
    /// The log behind a page.
    fn page(args: &Top, page: Page) -> anyhow::Result<Self> {
        let headline = format!("the web page at {page}");
        let log = HttpLog::open(page, args.since)?;
        let partitions = log.partitions();
        Ok(Self { reader: Box::new(log), headline, prefix: String::new(), partitions, is_complete: false })
    }

    /// The log of the settings.
    fn log(args: &Top, settings: &Settings) -> anyhow::Result<Self> {
        let bus = crate::bus::open(settings).map_err(|error| source::name_page(error, settings))?;
        let from = source::starts(&*bus, &settings.topics, &TOPICS, get::span(args.since))?;
        let embedded = settings.bus.brokers.is_empty();
        let headline = if embedded {
            format!("embedded log in {}, which nobody writes now", settings.bus.data_dir.display())
        } else {
            format!("Kafka {} · topics {}*", settings.bus.brokers, settings.topics.prefix)
        };
        let reader = bus.reader(&from, Isolation::ReadCommitted)?;
        Ok(Self { reader, headline, prefix: settings.topics.prefix.clone(), partitions: from.len(), is_complete: embedded })
    }
}

/// Follows until somebody ends it; a log to which nobody can append meanwhile until it has been read, if there is no view.
pub fn run(args: &Top, settings: &Settings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let followed = match args.page.page()? {
        Some(page) => Followed::page(args, page)?,
        None => Followed::log(args, settings)?,
    };
    let viewing = wants_view(args);
    let follow = Follow {
        prefix: followed.prefix,
        headline: followed.headline,
        simulated: false,
        viewing,
        partial: args.since.is_some(),
        length: RunLength::Endless,
        state: ViewState::sorted_by(args.sort),
        news: None,
        drains: false,
        once: args.once || followed.is_complete && !viewing,
        partitions: followed.partitions,
        exporter: None,
    };
    follow.run(followed.reader, shutdown, shutdown)?;
    Ok(())
}
