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
    /// Begins with the oldest kept event, so that savings count from the start of the data folder.
    pub fn start(args: &Up, settings: &Settings, bus: &Arc<dyn Bus>, simulated: bool) -> anyhow::Result<Self> {
        let stop = Shutdown::new();
        let from = partitions(&**bus, &settings.topics, &TOPICS, Start::Earliest)?;
        let old: HashMap<_, _> =
            from.iter().map(|(at, _)| Ok((at.clone(), bus.watermarks(at)?.high))).collect::<Result<_, eadt_bus::BusError>>()?;
        let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
        let (prefix, ended, viewing) = (settings.topics.prefix.clone(), stop.clone(), wants_view(args));
        let headline = if simulated {
            format!("simulated cluster · speed {} · {}", settings.simulator.speed, place(settings))
        } else {
            format!("this machine's GPUs · {}", place(settings))
        };
        let open: usize = from.len();
        let thread = std::thread::Builder::new().name("follower".into()).spawn(move || {
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
            Ok(tally)
        })?;
        Ok(Self { stop, thread })
    }

    /// Takes in what is left, gives the terminal back, returns everything.
    pub fn finish(self) -> anyhow::Result<Tally> {
        self.stop.cancel();
        self.thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the view panicked")))
    }
}

fn place(settings: &Settings) -> String {
    if settings.bus.brokers.is_empty() {
        format!("embedded log in {}", settings.bus.data_dir.display())
    } else {
        format!("Kafka {}", settings.bus.brokers)
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
                    joules_per_sample = window.joules_per_sample.map(|v| (v * 1e4).round() / 1e4),
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
