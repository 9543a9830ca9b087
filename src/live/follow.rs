//! Follows the outputs: for the view, or for a line a minute.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use eadt_bus::{PartitionReader, PollEvent, TopicPartition};
use eadt_schemas::v1::{ControllerAction, Decision};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::Shutdown;

use super::exporter::Exporter;
use super::frame::{RunProgress, ViewFrame};
use super::keys::ViewState;
use super::line_view::{self, MinuteTimer};
use super::screen::TerminalScreen;
use super::tally::LiveTally;
use super::{layout_text, wire_name};
use crate::commands::topic_of;

/// Frames a second: enough for the eye, little for the processor.
const FRAME: Duration = Duration::from_millis(250);
/// A key is answered this fast.
const KEYS: Duration = Duration::from_millis(40);

/// Length of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    Endless,
    /// Its record has ended.
    Over,
    /// Seconds of simulated time.
    Simulated(f64),
    /// Seconds of real time.
    Real(f64),
}

/// The followed record, and the form in which it is shown.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct LiveViewOptions {
    pub prefix: String,
    pub headline: String,
    pub simulated: bool,
    pub viewing: bool,
    /// Only the end of the record is read.
    pub partial: bool,
    pub length: RunLength,
    pub state: ViewState,
    /// Offsets at which this run's events begin; none: the plain form shows only sums.
    pub run_offsets: Option<HashMap<TopicPartition, i64>>,
    /// Read every partition to its end before ending.
    pub drains: bool,
    /// End when everything that is there has been read; to be stopped before is an error.
    pub once: bool,
    /// Partitions that are read.
    pub partitions: usize,
    /// Records that they held at the start; 0 if that is unknown.
    pub records: u64,
    /// Has the events, too.
    pub exporter: Option<Exporter>,
}

/// The start of a run that has a length.
#[derive(Debug)]
struct RunClock {
    begun: Instant,
    /// Event time at the start of this run.
    from: Option<EventTime>,
    /// Records that were read of those that were there at the start; `None` once every partition was read to its end.
    read: Option<u64>,
}

impl RunClock {
    fn progress(&self, length: RunLength, now: Option<EventTime>) -> Option<RunProgress> {
        let elapsed = self.begun.elapsed().as_secs_f64();
        let part = match length {
            RunLength::Endless | RunLength::Over => return None,
            RunLength::Real(seconds) => elapsed / seconds,
            RunLength::Simulated(seconds) => now.zip(self.from).map_or(0.0, |(now, from)| now.seconds_since(from) / seconds),
        };
        Some(Self::progress_after(elapsed, part))
    }

    /// Returns the part of the record that was read, if `records` are known; `None` once it was read.
    fn reading(&self, records: u64) -> Option<RunProgress> {
        let read = self.read.filter(|_| records > 0)?;
        Some(Self::progress_after(self.begun.elapsed().as_secs_f64(), read as f64 / records as f64))
    }

    fn progress_after(elapsed_seconds: f64, part: f64) -> RunProgress {
        let part = part.clamp(0.0, 1.0);
        let left_seconds = (part > 0.0).then(|| elapsed_seconds * (1.0 - part) / part);
        RunProgress { part, left_seconds }
    }
}

impl LiveViewOptions {
    /// Follows until `stop`; `leave` is cancelled when the user ends the view.
    pub fn run(mut self, mut reader: Box<dyn PartitionReader>, stop: &Shutdown, leave: &Shutdown) -> anyhow::Result<LiveTally> {
        let mut tally = LiveTally::default();
        tally.has_ended = self.length == RunLength::Over;
        let mut screen = if self.viewing { Some(TerminalScreen::open()?) } else { None };
        let mut clock = RunClock { begun: Instant::now(), from: None, read: (self.partitions > 0).then_some(0) };
        let mut minutes = MinuteTimer::new(Instant::now());
        let (mut batch, mut drawn, mut picture) = (Vec::new(), None::<Instant>, ViewFrame::default());
        let (mut ends, mut read_once) = (HashSet::new(), HashSet::new());
        let mut caught_up = false;
        loop {
            // After the stop only existing records count: up to the end of every partition.
            if stop.is_cancelled() && (!self.drains || ends.len() == self.partitions) {
                break;
            }
            reader.poll(4096, if screen.is_some() { KEYS } else { Duration::from_millis(100) }, &mut batch)?;
            for polled in batch.drain(..) {
                match polled {
                    PollEvent::Record(record) => {
                        ends.remove(&record.at);
                        clock.read = clock.read.map(|read| read + 1);
                        let Some(topic) = topic_of(&record, &self.prefix) else { continue };
                        if let Some(exporter) = &self.exporter {
                            exporter.on_record(topic, &record);
                        }
                        let Some(value) = &record.value else { continue };
                        tally.take(topic, value);
                        let is_new = self
                            .run_offsets
                            .as_ref()
                            .is_some_and(|old| record.offset >= old.get(&record.at).copied().unwrap_or(0));
                        if is_new && clock.from.is_none() && topic == Topic::EfficiencyWindows {
                            clock.from = first_start(value);
                        }
                        // Events of an earlier run were logged then.
                        if screen.is_none() && is_new {
                            log_event(topic, value);
                        }
                    }
                    PollEvent::End { at, .. } => {
                        if let Some(exporter) = &self.exporter {
                            exporter.on_end(&at, &self.prefix);
                        }
                        read_once.insert(at.clone());
                        clock.read = clock.read.filter(|_| read_once.len() < self.partitions);
                        ends.insert(at);
                    }
                    _ => {}
                }
            }
            if let Some(exporter) = &self.exporter {
                exporter.refresh();
            }
            let first = !caught_up && ends.len() == self.partitions;
            caught_up |= first;
            if screen.is_some() && TerminalScreen::is_closed() {
                screen = None;
            }
            let Some(screen) = &mut screen else {
                let is_of_whole = clock.read.is_none() || self.run_offsets.is_some();
                if minutes.is_over(Instant::now()) && is_of_whole || first && self.run_offsets.is_none() {
                    tally.refresh_all();
                    let line = line_view::line(&self.picture(&tally, &clock));
                    match &self.run_offsets {
                        Some(_) => tracing::info!("{line}"),
                        None => crate::output::print(&format!("{line}\n"))?,
                    }
                }
                if self.once && caught_up {
                    break;
                }
                continue;
            };
            match self.refresh_screen(screen, &mut tally, &clock, (&mut drawn, &mut picture)) {
                Ok(true) => leave.cancel(),
                Ok(false) => {}
                // It was closed in between.
                Err(_) if TerminalScreen::is_closed() => {}
                Err(error) => return Err(error),
            }
        }
        if self.once && !caught_up {
            return Err(super::source::interrupted());
        }
        if let Some(exporter) = &self.exporter {
            // The last figures are sent after this.
            while exporter.refresh() {}
        }
        Ok(tally)
    }

    /// Handles keys, and draws after a key or if it is time. Returns whether the user ended the view.
    fn refresh_screen(
        &mut self,
        screen: &mut TerminalScreen,
        tally: &mut LiveTally,
        clock: &RunClock,
        (drawn, picture): (&mut Option<Instant>, &mut ViewFrame),
    ) -> anyhow::Result<bool> {
        let (happened, ended) = screen.take_keys(&mut self.state, Duration::ZERO)?;
        if happened || drawn.is_none_or(|at| at.elapsed() >= FRAME) {
            if !self.state.paused || picture.rows.is_empty() {
                tally.refresh();
                *picture = self.picture(tally, clock);
            } else if picture.details.as_ref().map(|details| &details.name) != self.state.selected.as_ref() {
                // The figures are held, and whose details are shown is not.
                picture.details = self.picture(tally, clock).details;
            }
            screen.draw(picture, &mut self.state)?;
            *drawn = Some(Instant::now());
        }
        Ok(ended)
    }

    fn picture(&self, tally: &LiveTally, clock: &RunClock) -> ViewFrame {
        // A run writes its log itself, and shows its own progress.
        let is_reading = self.run_offsets.is_none() && clock.read.is_some();
        let picture = ViewFrame {
            headline: self.headline.clone(),
            simulated: self.simulated,
            progress: if is_reading { clock.reading(self.records) } else { clock.progress(self.length, tally.now) },
            is_reading,
            ..ViewFrame::of(tally, self.state.selected.as_deref())
        };
        if self.partial { picture.without_savings() } else { picture }
    }
}

fn first_start(window: &[u8]) -> Option<EventTime> {
    decode::<eadt_schemas::v1::EfficiencyWindow>(window).ok().map(|window| window.window_start)
}

/// Logs an event in plain form: one line a decision that is more than `maintain`, one a change. Windows are on level debug: there
/// is one for each workload and minute.
fn log_event(topic: Topic, value: &[u8]) {
    match topic {
        Topic::Decisions => {
            if let Ok(Decision { workload, time, action, reason, validation, origin, .. }) = decode::<Decision>(value) {
                let (action, validation, origin) = (wire_name(&action), wire_name(&validation), wire_name(&origin));
                if action == wire_name(&ControllerAction::Maintain) && validation == "none" {
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
                    outcome = wire_name(&event.outcome),
                    layout = layout_text(&event.layout),
                    origin = wire_name(&event.origin),
                    "{}",
                    if event.reason.is_empty() { "actuation" } else { &event.reason }
                );
            }
        }
        Topic::EfficiencyWindows => {
            if let Ok(window) = decode::<eadt_schemas::v1::EfficiencyWindow>(value) {
                tracing::debug!(
                    workload = window.workload,
                    end = %window.window_end,
                    power_watts = window.mean_power_watts.map(|v| (v * 10.0).round() / 10.0),
                    samples_per_second = window.samples_per_second.map(|v| (v * 100.0).round() / 100.0),
                    joules_per_sample = window.energy_per_sample().map(|v| (v * 1e4).round() / 1e4),
                    restarted = window.has_restart(),
                    origin = wire_name(&window.origin),
                    "window"
                );
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use eadt_bus::BusError;

    use super::*;

    /// A log that gives nothing and has no end.
    #[derive(Debug)]
    struct EndlessLog;

    impl PartitionReader for EndlessLog {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<PollEvent>) -> Result<(), BusError> {
            Ok(())
        }
        fn pause(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
            Ok(())
        }
        fn resume(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
            Ok(())
        }
    }

    fn options(once: bool) -> LiveViewOptions {
        LiveViewOptions {
            prefix: "eadt.".to_owned(),
            headline: "a test".to_owned(),
            simulated: false,
            viewing: false,
            partial: false,
            length: RunLength::Endless,
            state: ViewState::default(),
            run_offsets: None,
            drains: false,
            once,
            partitions: 1,
            records: 200,
            exporter: None,
        }
    }

    #[test]
    fn one_line_of_a_record_that_was_not_read_to_its_end_is_an_error() {
        let stop = Shutdown::new();
        stop.cancel();
        for once in [true, false] {
            let read = options(once).run(Box::new(EndlessLog), &stop, &stop);
            let expected = once.then(|| crate::live::source::interrupted().to_string());
            assert_eq!(read.err().map(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn a_picture_shows_that_the_record_is_being_read_and_how_far() {
        let mut clock = RunClock { begun: Instant::now(), from: None, read: Some(50) };
        let picture = options(false).picture(&LiveTally::default(), &clock);
        assert_eq!((picture.is_reading, picture.progress.map(|progress| progress.part)), (true, Some(0.25)));
        clock.read = None;
        let picture = options(false).picture(&LiveTally::default(), &clock);
        assert_eq!((picture.is_reading, picture.progress), (false, None));
    }
}
