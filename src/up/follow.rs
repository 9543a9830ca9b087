//! Follows the outputs for the live view, the log lines and the closing report, on a thread of its own.

use std::collections::{HashMap, HashSet};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute};
use eadt_bus::{Bus, Isolation, Polled, Start};
use eadt_schemas::v1::{Action, Decision};
use eadt_schemas::{Topic, decode};
use eadt_service::Shutdown;
use eadt_service::tasks::FOLLOWER;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use super::tally::Tally;
use super::view;
use crate::cli::Up;
use crate::commands::{partitions, topic_of};
use crate::settings::Settings;

const TOPICS: [Topic; 5] = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
/// Frames a second: enough for the eye, little for the processor.
const FRAME: Duration = Duration::from_millis(250);

/// The running thread.
pub struct Follower {
    stop: Shutdown,
    thread: JoinHandle<anyhow::Result<Tally>>,
}

/// Whether the live view takes the terminal.
pub fn wants_view(args: &Up) -> bool {
    !args.no_view && !args.json && std::io::stdout().is_terminal()
}

impl Follower {
    /// Begins with the oldest kept event, so that savings count from the start of the data folder. Where it fails, everything drains by `shutdown`.
    pub fn start(
        args: &Up,
        settings: &Settings,
        bus: &Arc<dyn Bus>,
        simulated: bool,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let stop = Shutdown::new();
        let from = partitions(&**bus, &settings.topics, &TOPICS, Start::Earliest)?;
        let old: HashMap<_, _> =
            from.iter().map(|(at, _)| Ok((at.clone(), bus.watermarks(at)?.high))).collect::<Result<_, eadt_bus::BusError>>()?;
        let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
        let (prefix, ended, viewing) = (settings.topics.prefix.clone(), stop.clone(), wants_view(args));
        let headline = if simulated {
            format!("simulated cluster · speed {} · {}", settings.simulator.speed, place(settings))
        } else if args.gpus == crate::cli::Gpus::None {
            format!("jobs that report, no GPU is read · {}", place(settings))
        } else {
            format!("this machine's GPUs · {}", place(settings))
        };
        let open: usize = from.len();
        let follow = move || {
            let mut tally = Tally::default();
            let mut screen = if viewing { Some(Screen::open()?) } else { None };
            let (mut batch, mut drawn) = (Vec::new(), None::<Instant>);
            let mut ends = HashSet::new();
            loop {
                // After the stop only what is there already counts: up to the end of every partition.
                let stopping = ended.is_cancelled();
                if stopping && ends.len() == open {
                    break;
                }
                reader.poll(4096, Duration::from_millis(100), &mut batch)?;
                for polled in batch.drain(..) {
                    match polled {
                        Polled::Record(record) => {
                            ends.remove(&record.at);
                            let (Some(topic), Some(value)) = (topic_of(&record, &prefix), &record.value) else { continue };
                            tally.take(topic, value);
                            // What an earlier run said was said then.
                            if screen.is_none() && record.offset >= old.get(&record.at).copied().unwrap_or(0) {
                                say(topic, value);
                            }
                        }
                        Polled::End { at, .. } => {
                            ends.insert(at);
                        }
                        _ => {}
                    }
                }
                if let Some(screen) = &mut screen
                    && drawn.is_none_or(|at| at.elapsed() >= FRAME)
                {
                    tally.refresh();
                    screen.0.draw(|frame| view::draw(frame, &tally, &headline)).context("cannot draw the view")?;
                    drawn = Some(Instant::now());
                }
            }
            anyhow::Ok(tally)
        };
        let thread = FOLLOWER.thread(move || {
            let tally = match FOLLOWER.watch(follow) {
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

    /// Takes in what is left, gives the terminal back, returns everything.
    pub fn finish(self) -> anyhow::Result<Tally> {
        self.stop.cancel();
        let tally = self.thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")));
        tally.context("the task that follows the outputs failed")
    }
}

fn place(settings: &Settings) -> String {
    if settings.bus.brokers.is_empty() {
        format!("embedded log in {}", settings.bus.data_dir.display())
    } else {
        format!("Kafka {} · topics {}*", settings.bus.brokers, settings.topics.prefix)
    }
}

/// The plain form of the view: one line a decision, one a change.
fn say(topic: Topic, value: &[u8]) {
    match topic {
        Topic::Decisions => {
            if let Ok(Decision { workload, time, action, reason, validation, origin, .. }) = decode::<Decision>(value) {
                let (action, validation, origin) = (name(&action), name(&validation), name(&origin));
                if action == name(&Action::Maintain) && validation == "none" {
                    tracing::debug!(workload, %time, action, origin, "{reason}");
                } else {
                    tracing::info!(workload, %time, action, validation, origin, "{reason}");
                }
            }
        }
        Topic::Actuations => {
            if let Ok(event) = decode::<eadt_schemas::v1::Actuation>(value) {
                tracing::info!(
                    workload = event.workload,
                    time = %event.time,
                    outcome = name(&event.outcome),
                    layout = view::layout_text(&event.layout),
                    origin = name(&event.origin),
                    "{}",
                    if event.reason.is_empty() { "actuation" } else { &event.reason }
                );
            }
        }
        Topic::EfficiencyWindows => {
            if let Ok(window) = decode::<eadt_schemas::v1::EfficiencyWindow>(value) {
                tracing::info!(
                    workload = window.workload,
                    end = %window.window_end,
                    power_watts = window.mean_power_watts.map(|v| (v * 10.0).round() / 10.0),
                    samples_per_second = window.samples_per_second.map(|v| (v * 100.0).round() / 100.0),
                    joules_per_sample = window.energy_per_sample().map(|v| (v * 1e4).round() / 1e4),
                    restarted = window.restarted,
                    origin = name(&window.origin),
                    "window"
                );
            }
        }
        _ => {}
    }
}

/// The name of a plain enum value as it stands on the wire.
fn name<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The terminal, given back when dropped, whatever happens. Not in raw mode: Ctrl-C stays a signal.
struct Screen(Terminal<CrosstermBackend<std::io::Stdout>>);

impl Screen {
    fn open() -> anyhow::Result<Self> {
        VIEWING.store(true, Ordering::SeqCst);
        execute!(std::io::stdout(), EnterAlternateScreen, cursor::Hide).context("cannot take the terminal")?;
        Ok(Self(Terminal::new(CrosstermBackend::new(std::io::stdout()))?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_terminal_back();
    }
}

/// Set while the live view has the terminal.
static VIEWING: AtomicBool = AtomicBool::new(false);

/// Leaves the live view, where there is one: also for an end that runs no destructors.
pub fn give_terminal_back() {
    if VIEWING.swap(false, Ordering::SeqCst)
        && let Err(error) = execute!(std::io::stdout(), cursor::Show, LeaveAlternateScreen)
    {
        tracing::debug!(%error, "the terminal could not be given back");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;
    use eadt_bus::embedded::Stamps;
    use eadt_bus::{Member, MemberOptions, Polled, Producer, Reader, Result, TopicPartition, TopicSpec, Watermarks};

    use super::*;
    use crate::cli::{Cli, Command};

    /// A log whose readers panic.
    #[derive(Debug)]
    struct Panics(Arc<dyn Bus>);

    #[derive(Debug)]
    struct PanickingReader(Box<dyn Reader>);

    impl Reader for PanickingReader {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<Polled>) -> Result<()> {
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
        fn watermarks(&self, at: &TopicPartition) -> Result<Watermarks> {
            self.0.watermarks(at)
        }
        fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
            self.0.producer(name)
        }
        fn reader(&self, from: &[(TopicPartition, Start)], isolation: Isolation) -> Result<Box<dyn Reader>> {
            Ok(Box::new(PanickingReader(self.0.reader(from, isolation)?)))
        }
        fn member(&self, options: MemberOptions) -> Result<Box<dyn Member>> {
            self.0.member(options)
        }
        fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
            self.0.committed(group, of)
        }
    }

    #[test]
    fn a_panic_drains_everything_at_once_and_is_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = crate::settings::load(None, &crate::settings::Variables::new(), &[]).unwrap();
        settings.bus.data_dir = dir.path().to_owned();
        let log: Arc<dyn Bus> = Arc::new(super::super::open_embedded(&settings, Stamps::Wall).unwrap());
        super::super::apply_topics(&*log, &settings).unwrap();
        let Command::Up(args) = Cli::try_parse_from(["eadt", "up", "--no-view"]).unwrap().command else { panic!("up") };
        for (bus, panics) in [(log.clone(), false), (Arc::new(Panics(log)) as Arc<dyn Bus>, true)] {
            let (shutdown, before) = (Shutdown::new(), FOLLOWER.failures());
            let follower = Follower::start(&args, &settings, &bus, true, shutdown.clone()).unwrap();
            while panics && !shutdown.is_cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let ended = follower.finish().map(drop).map_err(|error| format!("{error:#}"));
            let said = "the task that follows the outputs failed: panicked: on purpose".to_owned();
            assert_eq!(ended, if panics { Err(said) } else { Ok(()) });
            assert_eq!(FOLLOWER.failures() - before, u64::from(panics));
            assert_eq!(shutdown.is_cancelled(), panics);
        }
    }
}
