//! Follows the outputs for the live view, the log lines and the closing report, on a thread of its own.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use eadt_bus::{Bus, IsolationLevel, StartOffset};
use eadt_schemas::Topic;
use eadt_service::Shutdown;
use eadt_service::tasks::FOLLOWER;

use crate::cli::UpArgs;
use crate::commands::partitions;
use crate::live::exporter::Exporter;
use crate::live::follow::{LiveViewOptions, RunLength};
use crate::live::keys::ViewState;
use crate::live::source::TOPICS;
use crate::live::tally::LiveTally;
use crate::settings::ProgramSettings;

/// The running thread.
pub struct LiveViewThread {
    stop: Shutdown,
    thread: JoinHandle<anyhow::Result<LiveTally>>,
}

/// Returns whether the live view takes the terminal.
pub fn wants_view(args: &UpArgs) -> bool {
    !args.no_view && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

impl LiveViewThread {
    /// Begins with the oldest kept event, so that savings count from the start of the data folder. If it fails, or if the user
    /// ends the view, `shutdown` drains everything.
    #[allow(clippy::too_many_arguments, reason = "called from one place")]
    pub fn start(
        args: &UpArgs,
        settings: &ProgramSettings,
        bus: &Arc<dyn Bus>,
        simulated: bool,
        page: &str,
        length: RunLength,
        exporter: Option<Exporter>,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let stop = Shutdown::new();
        let mut from = partitions(&**bus, &settings.topics, &TOPICS, StartOffset::Earliest)?;
        if exporter.is_some() {
            from.extend(partitions(&**bus, &settings.topics, &[Topic::GpuTelemetry], StartOffset::Latest)?);
        }
        let old: HashMap<_, _> =
            from.iter().map(|(at, _)| Ok((at.clone(), bus.watermarks(at)?.high))).collect::<Result<_, eadt_bus::BusError>>()?;
        if let Some(exporter) = &exporter {
            exporter.announce(&from, &settings.topics.prefix);
        }
        let reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let headline = if simulated {
            format!("{page} · simulated cluster · speed {} · {}", settings.simulator.speed, place(settings))
        } else if args.gpus == crate::cli::TelemetrySource::None {
            format!("{page} · jobs that report, no GPU is read · {}", place(settings))
        } else {
            format!("{page} · this machine's GPUs · {}", place(settings))
        };
        let follow = LiveViewOptions {
            prefix: settings.topics.prefix.clone(),
            headline,
            simulated,
            viewing: wants_view(args),
            partial: false,
            length,
            state: ViewState::default(),
            run_offsets: Some(old),
            drains: true,
            once: false,
            partitions: from.len(),
            records: 0,
            exporter,
        };
        let ended = stop.clone();
        let thread = FOLLOWER.thread(move || {
            let tally = match FOLLOWER.watch(|| follow.run(reader, &ended, &shutdown)) {
                Ok(tally) => tally.inspect_err(|error| FOLLOWER.failed(&format!("{error:#}"))),
                Err(panic) => Err(anyhow::Error::msg(panic)),
            };
            if tally.is_err() {
                shutdown.cancel();
            }
            tally
        })?;
        Ok(Self { stop, thread })
    }

    /// Reads the rest, restores the terminal, and returns all figures.
    pub fn finish(self) -> anyhow::Result<LiveTally> {
        self.stop.cancel();
        let tally = self.thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")));
        tally.context("the task that follows the outputs failed")
    }
}

/// Returns the place of the log.
pub fn place(settings: &ProgramSettings) -> String {
    if settings.bus.brokers.is_empty() {
        format!("embedded log in {}", settings.bus.data_dir.display())
    } else {
        format!("Kafka {} · topics {}*", settings.bus.brokers, settings.topics.prefix)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use clap::Parser;
    use eadt_bus::embedded::StampSource;
    use eadt_bus::{
        GroupMember, MemberOptions, PartitionReader, PollEvent, Producer, Result, TopicPartition, TopicSpec, WatermarkOffsets,
    };

    use super::*;
    use crate::cli::{Cli, CliCommand};

    /// A log whose readers panic.
    #[derive(Debug)]
    struct Panics(Arc<dyn Bus>);

    #[derive(Debug)]
    struct PanickingReader(Box<dyn PartitionReader>);

    impl PartitionReader for PanickingReader {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<PollEvent>) -> Result<()> {
            panic!("on purpose")
        }
        fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
            self.0.pause(at)
        }
        fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
            self.0.resume(at)
        }
    }

    impl Bus for Panics {
        fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
            self.0.topics(prefix)
        }
        fn create_topic(&self, topic: &TopicSpec) -> Result<()> {
            self.0.create_topic(topic)
        }
        fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
            self.0.alter_topic(name, settings)
        }
        fn add_partitions(&self, name: &str, partitions: i32) -> Result<()> {
            self.0.add_partitions(name, partitions)
        }
        fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
            self.0.watermarks(at)
        }
        fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
            self.0.producer(name)
        }
        fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
            Ok(Box::new(PanickingReader(self.0.reader(from, isolation)?)))
        }
        fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
            self.0.member(options)
        }
        fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
            self.0.committed(group, of)
        }
    }

    #[test]
    fn a_panic_drains_everything_at_once_and_is_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = crate::settings::load(None, &crate::settings::EnvVariables::new(), &[]).unwrap();
        settings.bus.data_dir = dir.path().to_owned();
        let log: Arc<dyn Bus> = Arc::new(crate::bus::open_embedded(&settings, StampSource::Wall).unwrap());
        super::super::apply_topics(&*log, &settings).unwrap();
        let CliCommand::Up(args) = Cli::try_parse_from(["eadt", "up", "--no-view"]).unwrap().command else { panic!("up") };
        for (bus, panics) in [(log.clone(), false), (Arc::new(Panics(log)) as Arc<dyn Bus>, true)] {
            let (shutdown, before) = (Shutdown::new(), FOLLOWER.failures());
            let page = "http://127.0.0.1:9580/";
            let follower =
                LiveViewThread::start(&args, &settings, &bus, true, page, RunLength::Endless, None, shutdown.clone()).unwrap();
            while panics && !shutdown.is_cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let ended = follower.finish().map(drop).map_err(|error| format!("{error:#}"));
            let message = "the task that follows the outputs failed: panicked: on purpose".to_owned();
            assert_eq!(ended, if panics { Err(message) } else { Ok(()) });
            assert_eq!(FOLLOWER.failures() - before, u64::from(panics));
            assert_eq!(shutdown.is_cancelled(), panics);
        }
    }
}
