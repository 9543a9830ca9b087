//! Phases of a job, as far as they can be distinguished from outside, and the measurements of each.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, Precision};
use serde::{Deserialize, Serialize};

use super::curve::{LayoutKey, MeasuredSetting, SettingCurve, round_to_six_digits};
use super::knob::SeekKnob;

/// Phases remembered; beyond them the one that lasted least in all is forgotten.
const PHASES_MAX: usize = 8;
/// Points remembered of one phase; beyond them the ones with the fewest windows of other layouts go.
const POINTS_MAX: usize = 24;
/// Windows that must disagree with what is expected before another phase is taken to have begun. The first one may hold
/// some of either and is not used.
const DOUBTS: usize = 3;

/// Phases of a shorter mean length are brief.
const BRIEF_SECONDS: f64 = 1200.0;

/// The measurements of one usable window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct SeekObservation {
    pub samples_per_second: f64,
    pub watts: f64,
    /// The quantity that the knob limits.
    pub reading: f64,
    /// Memory activity per sample: bytes that a sample moves, in the board's unit. It depends on the work, and hardly on
    /// caps, clocks and layouts.
    pub dram_seconds_per_sample: Option<f64>,
}

/// The layout and the setting of the knob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OperatingPoint {
    pub layout_key: LayoutKey,
    pub setting: f64,
}

/// The settings that the job changes by itself on request: they change what a step costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<Precision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frozen_prefix_layers: Option<u32>,
}

impl JobSettings {
    pub fn of_layout(layout: &Layout) -> Self {
        let (precision, frozen_prefix_layers) = layout.asked_of_job();
        Self { precision, frozen_prefix_layers: frozen_prefix_layers.filter(|layers| *layers > 0) }
    }

    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// One phase of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobPhase {
    /// See [`SeekObservation::dram_seconds_per_sample`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_seconds_per_sample: Option<f64>,
    pub points: Vec<MeasuredSetting>,
    /// Start of its present visit.
    pub entered: EventTime,
    /// Length of its past visits.
    pub seconds: f64,
    pub visits: u32,
    /// Time of the last measurement of the starting setting in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "start_seen")]
    pub start_measured_at: Option<EventTime>,
    /// Settings of the job with which all of it was measured.
    #[serde(skip_serializing_if = "JobSettings::is_unset")]
    job_settings: JobSettings,
}

impl JobPhase {
    pub fn measured_setting(&self, operating_point: OperatingPoint) -> Option<&MeasuredSetting> {
        self.points
            .iter()
            .find(|p| p.layout_key == operating_point.layout_key && (p.setting - operating_point.setting).abs() < 0.5)
    }

    pub fn curve<'a>(&self, layout_key: LayoutKey, knob: &'a SeekKnob) -> Option<SettingCurve<'a>> {
        SettingCurve::fit(self.points.iter().filter(|p| p.layout_key == layout_key), knob)
    }

    /// Returns the throughput of a layout with nothing held back, if it was measured over so many windows.
    pub fn free_rate(&self, layout_key: LayoutKey, knob: &SeekKnob, windows: u32) -> Option<f64> {
        let free = self.points.iter().find(|p| p.layout_key == layout_key && p.setting >= knob.top && p.windows >= windows);
        free.map(|p| p.samples_per_second)
    }

    fn add(&mut self, operating_point: OperatingPoint, observation: &SeekObservation) {
        if let Some(intensity) = observation.dram_seconds_per_sample {
            let windows: u32 = self.points.iter().map(|p| p.windows).sum();
            let weight = 1.0 / f64::from(windows.min(59) + 1);
            let mean = self.dram_seconds_per_sample.map_or(intensity, |old| old + weight * (intensity - old));
            self.dram_seconds_per_sample = Some(round_to_six_digits(mean));
        }
        let same =
            |p: &MeasuredSetting| p.layout_key == operating_point.layout_key && (p.setting - operating_point.setting).abs() < 0.5;
        let index = self.points.iter().position(same).unwrap_or_else(|| {
            if self.points.len() >= POINTS_MAX {
                let foreign = |p: &MeasuredSetting| (p.layout_key == operating_point.layout_key, p.windows);
                let least = (0..self.points.len()).min_by_key(|i| foreign(&self.points[*i]));
                self.points.remove(least.unwrap_or(0));
            }
            let zero = MeasuredSetting {
                layout_key: operating_point.layout_key,
                setting: operating_point.setting,
                reading: 0.0,
                watts: 0.0,
                samples_per_second: 0.0,
                windows: 0,
            };
            self.points.push(zero);
            self.points.len() - 1
        });
        self.points[index].add(observation.reading, observation.watts, observation.samples_per_second);
    }

    /// Returns the distance of a window from this phase at an operating point: the largest logarithm of a ratio over the
    /// tolerance of each figure. Above 1 it does not fit. `None` if this operating point was not measured.
    fn distance_to(
        &self,
        operating_point: OperatingPoint,
        observation: &SeekObservation,
        knob: &SeekKnob,
        tolerance: f64,
    ) -> Option<f64> {
        let (rates, watts, slack) = if let Some(p) = self.measured_setting(operating_point) {
            let slack = if p.windows > 1 { 1.0 } else { 1.4 };
            ((p.samples_per_second, p.samples_per_second), (p.watts, p.watts), slack)
        } else {
            let range = self.curve(operating_point.layout_key, knob)?.possible_range(operating_point.setting);
            (range.samples_per_second, range.watts, 1.5)
        };
        // Within a range no figure is apart; outside, by its distance from the nearer end.
        let outside = |value: f64, (low, high): (f64, f64)| log_distance(value, value.max(low).min(high));
        let worst = outside(observation.samples_per_second, rates).max(outside(observation.watts, watts)) / (slack * tolerance);
        Some(self.misfit_of_intensity(observation, tolerance).map_or(worst, |intensity| intensity.max(worst)))
    }

    /// Returns the same of memory activity alone, which does not depend on the layout. `None` if it is unknown.
    fn misfit_of_intensity(&self, observation: &SeekObservation, tolerance: f64) -> Option<f64> {
        let (now, then) = observation.dram_seconds_per_sample.zip(self.dram_seconds_per_sample)?;
        // Activity and throughput are uneven both, and each in its own way.
        Some(log_distance(now, then) / (1.25 * tolerance))
    }
}

/// Returns the distance of two figures above 0, as a logarithm.
fn log_distance(a: f64, b: f64) -> f64 {
    (a / b).ln().abs()
}

/// The phases that were seen, and the present one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobPhases {
    all: Vec<JobPhase>,
    present: usize,
    /// Windows that do not fit the present phase, the last ones in a row.
    doubts: Vec<SeekObservation>,
    /// Present settings of the job: phases with other ones cannot be the present phase. `None` in state of earlier releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_settings: Option<JobSettings>,
    /// Start of the phase that a change of the job's settings went on in, if no window with the new ones has been taken in.
    #[serde(skip_serializing_if = "Option::is_none")]
    entered_before: Option<EventTime>,
}

/// The relation of a window to the known phases.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PhaseMatch {
    /// More of the same.
    Same,
    /// Perhaps something else.
    Doubtful,
    /// Another phase, which was seen before.
    Known,
    /// Another phase.
    New,
}

impl JobPhases {
    pub fn present(&self) -> Option<&JobPhase> {
        self.all.get(self.present)
    }

    /// Notes that the starting setting was measured in the present phase.
    pub fn see_start(&mut self, now: EventTime) {
        if let Some(phase) = self.all.get_mut(self.present) {
            phase.start_measured_at = Some(now);
        }
    }

    pub fn present_index(&self) -> usize {
        self.present + 1
    }

    pub fn others(&self) -> impl Iterator<Item = &JobPhase> {
        self.all.iter().enumerate().filter(|(i, _)| *i != self.present).map(|(_, phase)| phase)
    }

    /// Clears the doubts when the setting changes: those about the last setting do not apply to the new one.
    pub fn clear_doubts(&mut self) {
        self.doubts.clear();
    }

    /// Follows the settings of the job: with other ones the last phase that was measured with them is the present one, or a new
    /// phase if there is none. Returns whether they changed.
    pub fn follow_job_settings(&mut self, settings: JobSettings) -> bool {
        let Some(former) = self.job_settings.replace(settings) else {
            // What an earlier release has measured was measured with them, as far as is known.
            self.all.iter_mut().for_each(|phase| phase.job_settings = settings);
            return false;
        };
        if former == settings {
            return false;
        }
        self.doubts.clear();
        // The job itself goes on as before: its phase has neither ended nor begun.
        let entered = self.present().map(|phase| phase.entered).or(self.entered_before.take());
        let known = self.all.iter().enumerate().filter(|(_, phase)| phase.job_settings == settings);
        if let Some((index, _)) = known.max_by_key(|(_, phase)| phase.entered) {
            self.present = index;
            self.all[index].entered = entered.unwrap_or(self.all[index].entered);
        } else {
            (self.present, self.entered_before) = (self.all.len(), entered);
        }
        true
    }

    /// Takes in a window. `tolerance` is a logarithm.
    pub fn observe_window(
        &mut self,
        operating_point: OperatingPoint,
        observation: SeekObservation,
        knob: &SeekKnob,
        tolerance: f64,
        now: EventTime,
    ) -> PhaseMatch {
        let Some(phase) = self.all.get_mut(self.present) else {
            self.begin(operating_point, &[observation], now);
            return PhaseMatch::New;
        };
        // If this layout was not measured in the phase yet, only figures that do not depend on the layout can be compared.
        let misfit = phase
            .distance_to(operating_point, &observation, knob, tolerance)
            .or_else(|| phase.misfit_of_intensity(&observation, tolerance));
        if misfit.is_none_or(|misfit| misfit <= 1.0) {
            self.doubts.clear();
            phase.add(operating_point, &observation);
            return PhaseMatch::Same;
        }
        self.doubts.push(observation);
        if self.doubts.len() < DOUBTS {
            return PhaseMatch::Doubtful;
        }
        let doubts = std::mem::take(&mut self.doubts);
        let clean = &doubts[1..];
        let mean = |of: fn(&SeekObservation) -> f64| clean.iter().map(of).sum::<f64>() / clean.len() as f64;
        let intensities: Vec<f64> = clean.iter().filter_map(|observation| observation.dram_seconds_per_sample).collect();
        let typical = SeekObservation {
            samples_per_second: mean(|s| s.samples_per_second),
            watts: mean(|s| s.watts),
            reading: mean(|s| s.reading),
            dram_seconds_per_sample: (intensities.len() == clean.len())
                .then(|| intensities.iter().sum::<f64>() / intensities.len() as f64),
        };
        let job_settings = self.job_settings.unwrap_or_default();
        let candidates = self.all.iter().enumerate().filter(|(_, phase)| phase.job_settings == job_settings);
        let misfits = candidates.filter_map(|(i, phase)| {
            phase
                .distance_to(operating_point, &typical, knob, tolerance)
                .filter(|misfit| *misfit <= 1.0)
                .map(|misfit| (i, misfit))
        });
        let Some((known, _)) = misfits.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
            self.leave(now);
            self.begin(operating_point, clean, now);
            return PhaseMatch::New;
        };
        let same = known == self.present;
        if !same {
            self.leave(now);
            self.present = known;
            self.all[known].entered = now;
        }
        let phase = &mut self.all[known];
        for observation in clean {
            phase.add(operating_point, observation);
        }
        if same { PhaseMatch::Same } else { PhaseMatch::Known }
    }

    fn leave(&mut self, now: EventTime) {
        if let Some(phase) = self.all.get_mut(self.present) {
            phase.seconds += now.seconds_since(phase.entered).max(0.0);
            phase.visits += 1;
        }
    }

    fn begin(&mut self, operating_point: OperatingPoint, observations: &[SeekObservation], now: EventTime) {
        if self.all.len() >= PHASES_MAX
            && let Some(least) = (0..self.all.len()).min_by(|a, b| self.all[*a].seconds.total_cmp(&self.all[*b].seconds))
        {
            self.all.remove(least);
        }
        let entered = self.entered_before.take().unwrap_or(now);
        let mut phase = JobPhase { entered, job_settings: self.job_settings.unwrap_or_default(), ..JobPhase::default() };
        for observation in observations {
            phase.add(operating_point, observation);
        }
        self.all.push(phase);
        self.present = self.all.len() - 1;
    }

    /// Returns the expected rest of the present phase in seconds: as long as its past visits, or else as those of all
    /// phases; beyond that, as long again as half of what it has lasted. `None` before any phase has ended.
    pub fn dwell_seconds(&self, now: EventTime) -> Option<f64> {
        let phase = self.present()?;
        let (seconds, visits) = if phase.visits > 0 {
            (phase.seconds, phase.visits)
        } else {
            (self.all.iter().map(|p| p.seconds).sum(), self.all.iter().map(|p| p.visits).sum())
        };
        if visits == 0 {
            return None;
        }
        let lasted = now.seconds_since(phase.entered).max(0.0);
        Some((seconds / f64::from(visits) - lasted).max(0.5 * lasted))
    }

    /// Returns the number of windows in a row that do not fit the present phase.
    pub fn doubts(&self) -> usize {
        self.doubts.len()
    }

    /// Returns whether phases last so briefly that another one is over before it is known.
    pub fn are_brief(&self) -> bool {
        let (seconds, visits) = self.all.iter().fold((0.0, 0), |(s, v), phase| (s + phase.seconds, v + phase.visits));
        visits > 0 && seconds / f64::from(visits) < BRIEF_SECONDS
    }

    /// Returns the part of the time so far that a phase made up.
    pub fn time_share(&self, phase: &JobPhase, now: EventTime) -> f64 {
        let lasted = |p: &JobPhase| {
            let visit =
                if self.present().is_some_and(|present| std::ptr::eq(present, p)) { now.seconds_since(p.entered) } else { 0.0 };
            p.seconds + visit.max(0.0)
        };
        let all: f64 = self.all.iter().map(lasted).sum();
        if all > 0.0 { lasted(phase) / all } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Workload;

    use super::*;
    use crate::controller::ControllerSettings;

    const TOLERANCE: f64 = 0.077;

    fn knob() -> SeekKnob {
        let workload = Workload { gpu_power_limit_watts: Some(400.0), ..Workload::default() };
        SeekKnob::power_limit(&workload, None, &ControllerSettings::default()).unwrap()
    }

    /// Windows of a minute at 400 W.
    struct Job {
        phases: JobPhases,
        knob: SeekKnob,
        now: EventTime,
    }

    impl Job {
        fn new() -> Self {
            Self { phases: JobPhases::default(), knob: knob(), now: EventTime::from_seconds(1_767_225_600.0) }
        }

        fn observe(&mut self, samples_per_second: f64) -> PhaseMatch {
            self.now = self.now.plus_seconds(60.0);
            let seen = SeekObservation { samples_per_second, watts: 900.0, reading: 300.0, dram_seconds_per_sample: None };
            let point = OperatingPoint { layout_key: LayoutKey { replicas: 6, threads: 50 }, setting: 400.0 };
            self.phases.observe_window(point, seen, &self.knob, TOLERANCE, self.now)
        }

        fn observe_times(&mut self, count: usize, samples_per_second: f64) -> Vec<PhaseMatch> {
            (0..count).map(|_| self.observe(samples_per_second)).collect()
        }
    }

    #[test]
    fn three_windows_running_are_another_phase_and_are_known_when_they_come_again() {
        let mut job = Job::new();
        assert_eq!(job.observe_times(3, 100.0), [PhaseMatch::New, PhaseMatch::Same, PhaseMatch::Same]);
        // One or two are noise.
        assert_eq!(job.observe_times(2, 130.0), [PhaseMatch::Doubtful, PhaseMatch::Doubtful]);
        assert_eq!(job.observe_times(1, 100.0), [PhaseMatch::Same]);
        assert_eq!(job.observe_times(4, 130.0), [PhaseMatch::Doubtful, PhaseMatch::Doubtful, PhaseMatch::New, PhaseMatch::Same]);
        assert_eq!((job.phases.present_index(), job.phases.others().count()), (2, 1));
        assert_eq!(job.observe_times(3, 100.0), [PhaseMatch::Doubtful, PhaseMatch::Doubtful, PhaseMatch::Known]);
        assert_eq!(job.phases.present_index(), 1);
    }

    #[test]
    fn other_settings_of_the_job_are_another_phase_and_the_former_one_is_found_again() {
        let frozen = JobSettings { precision: None, frozen_prefix_layers: Some(1) };
        let mut job = Job::new();
        job.observe_times(10, 100.0);
        assert!(!job.phases.follow_job_settings(JobSettings::default()), "as the state of an earlier release");
        assert!(job.phases.follow_job_settings(frozen) && !job.phases.follow_job_settings(frozen));
        // Within the tolerance, and yet of other work.
        assert_eq!(job.observe_times(2, 104.0), [PhaseMatch::New, PhaseMatch::Same]);
        let points: Vec<_> =
            job.phases.all.iter().map(|phase| (phase.points[0].samples_per_second, phase.points[0].windows)).collect();
        assert_eq!(points, [(100.0, 10), (104.0, 2)]);
        assert_eq!(job.phases.dwell_seconds(job.now), None, "the job's own phase has not ended");
        // Another phase of the job with the same figures as the one before the freeze is none of that one.
        let other = [PhaseMatch::Doubtful, PhaseMatch::Doubtful, PhaseMatch::New];
        job.observe_times(10, 120.0);
        assert_eq!(job.phases.present_index(), 3);
        assert_eq!(job.observe_times(3, 90.0), other);
        assert!(job.phases.follow_job_settings(JobSettings::default()));
        assert_eq!((job.observe_times(1, 100.0), job.phases.present_index()), (vec![PhaseMatch::Same], 1));
    }

    #[test]
    fn doubts_do_not_outlast_a_turn() {
        let mut job = Job::new();
        job.observe_times(3, 100.0);
        job.observe_times(2, 130.0);
        job.phases.clear_doubts();
        assert_eq!(job.observe_times(3, 130.0), [PhaseMatch::Doubtful, PhaseMatch::Doubtful, PhaseMatch::New]);
    }

    #[test]
    fn a_phase_is_expected_to_last_as_long_as_it_did_and_then_half_as_long_again() {
        let mut job = Job::new();
        job.observe_times(10, 100.0);
        assert_eq!(job.phases.dwell_seconds(job.now), None, "no phase has ended");
        // The third window of 130/s, 13 minutes after the first one, ends it: 12 minutes after it began.
        job.observe_times(3, 130.0);
        assert_eq!(job.phases.dwell_seconds(job.now), Some(720.0));
        job.observe_times(2, 130.0);
        assert_eq!(job.phases.dwell_seconds(job.now), Some(600.0), "two minutes are over");
        assert_eq!(job.phases.dwell_seconds(job.now.plus_seconds(780.0)), Some(450.0), "of 15 minutes half");
    }

    const HERE: LayoutKey = LayoutKey { replicas: 6, threads: 50 };
    const OTHER: LayoutKey = LayoutKey { replicas: 6, threads: 100 };

    fn at(spot: LayoutKey, setting: f64) -> OperatingPoint {
        OperatingPoint { layout_key: spot, setting }
    }

    fn seen(samples_per_second: f64, watts: f64, dram_seconds_per_sample: Option<f64>) -> SeekObservation {
        SeekObservation { samples_per_second, watts, reading: watts / 3.0, dram_seconds_per_sample }
    }

    /// Returns a phase of 100/s at 900 W without a cap, and of 90/s at 720 W at 240 W a GPU, over so many windows each.
    fn phase(windows: u32) -> JobPhase {
        let mut phase = JobPhase::default();
        for _ in 0..windows {
            phase.add(at(HERE, 400.0), &seen(100.0, 900.0, Some(0.003)));
            phase.add(at(HERE, 240.0), &seen(90.0, 720.0, Some(0.003)));
        }
        phase
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn settings_less_than_half_apart_in_one_layout_are_one_point() {
        let mut phase = phase(1);
        assert_eq!(phase.measured_setting(at(HERE, 240.4)).map(|point| point.setting), Some(240.0));
        assert!(phase.measured_setting(at(HERE, 240.5)).is_none() && phase.measured_setting(at(OTHER, 240.0)).is_none());
        phase.add(at(HERE, 240.4), &seen(90.0, 720.0, None));
        phase.add(at(HERE, 240.5), &seen(90.0, 720.0, None));
        phase.add(at(OTHER, 240.0), &seen(90.0, 720.0, None));
        let points: Vec<_> = phase.points.iter().map(|point| (point.layout_key, point.setting, point.windows)).collect();
        assert_eq!(points, [(HERE, 400.0, 1), (HERE, 240.0, 2), (HERE, 240.5, 1), (OTHER, 240.0, 1)]);
    }

    #[test]
    fn a_throughput_without_a_limit_is_one_at_the_top_over_enough_windows() {
        let (phase, knob) = (phase(3), knob());
        assert_eq!(phase.free_rate(HERE, &knob, 3), Some(100.0));
        assert_eq!((phase.free_rate(HERE, &knob, 4), phase.free_rate(OTHER, &knob, 1)), (None, None));
        let capped = JobPhase { points: phase.points[1..].to_vec(), ..JobPhase::default() };
        assert_eq!(capped.free_rate(HERE, &knob, 3), None);
    }

    #[test]
    fn memory_activity_is_a_mean_over_the_last_hour() {
        let mut phase = JobPhase::default();
        let mut mean = |intensity| {
            phase.add(at(HERE, 400.0), &seen(100.0, 900.0, intensity));
            phase.dram_seconds_per_sample.unwrap()
        };
        assert_eq!(mean(Some(0.002)), 0.002);
        assert_eq!(mean(Some(0.004)), 0.003);
        assert_eq!(mean(None), 0.003, "nothing is no figure");
        assert_eq!(mean(Some(0.007)), 0.004, "a fourth of four windows");
        for _ in 0..100 {
            mean(Some(0.004));
        }
        assert_eq!(mean(Some(0.01)), 0.0041, "a sixtieth of sixty");
    }

    #[test]
    fn of_24_points_the_ones_of_other_layouts_with_the_fewest_windows_go_first() {
        let mut phase = JobPhase::default();
        let mut windows = |spot, setting: u32, count: u32| {
            for _ in 0..count {
                phase.add(at(spot, f64::from(setting)), &seen(100.0, 900.0, None));
            }
            phase.points.iter().map(|point| (point.layout_key, point.setting as u32)).collect::<Vec<_>>()
        };
        for setting in 300..320 {
            windows(HERE, setting, 1);
        }
        windows(OTHER, 300, 3);
        windows(OTHER, 310, 2);
        windows(OTHER, 320, 4);
        assert_eq!(windows(OTHER, 330, 5).len(), 24);
        let points = windows(HERE, 340, 1);
        assert!(points.len() == 24 && !points.contains(&(OTHER, 310)) && points.contains(&(HERE, 340)), "{points:?}");
        let points = windows(HERE, 350, 1);
        assert!(points.len() == 24 && !points.contains(&(OTHER, 300)), "{points:?}");
    }

    #[test]
    fn a_window_fits_a_point_within_the_tolerance_of_each_figure() {
        let knob = knob();
        let misfit = |phase: &JobPhase, setting, seen: SeekObservation| {
            phase.distance_to(at(HERE, setting), &seen, &knob, TOLERANCE).unwrap()
        };
        let known = phase(2);
        for (rate, watts, apart) in [
            (100.0, 900.0, 0.0),
            (105.0, 900.0, 1.05_f64.ln()),
            (100.0 / 1.05, 900.0, 1.05_f64.ln()),
            (100.0, 990.0, 1.1_f64.ln()),
            (105.0, 900.0 / 1.1, 1.1_f64.ln()),
        ] {
            let found = misfit(&known, 400.0, seen(rate, watts, None));
            assert!(near(found, apart / TOLERANCE), "{rate}/s, {watts} W: {found}");
            // A single window is a figure with a noise of its own.
            let found = misfit(&phase(1), 400.0, seen(rate, watts, None));
            assert!(near(found, apart / (1.4 * TOLERANCE)), "{rate}/s, {watts} W: {found}");
        }
        assert_eq!(misfit(&known, 400.0, seen(0.0, 900.0, None)), f64::INFINITY);
        // Memory activity may differ by a quarter more, and counts if it is the largest.
        let found = misfit(&known, 400.0, seen(105.0, 900.0, Some(0.003 * 1.1)));
        assert!(near(found, 1.1_f64.ln() / (1.25 * TOLERANCE)), "{found}");
        let found = misfit(&known, 400.0, seen(110.0, 900.0, Some(0.003 / 1.05)));
        assert!(near(found, 1.1_f64.ln() / TOLERANCE), "{found}");
        assert!(known.distance_to(at(OTHER, 400.0), &seen(100.0, 900.0, None), &knob, TOLERANCE).is_none());
    }

    #[test]
    fn at_a_setting_that_was_not_measured_a_window_may_be_anything_that_is_possible() {
        let (known, knob) = (phase(2), knob());
        let misfit =
            |setting, rate, watts| known.distance_to(at(HERE, setting), &seen(rate, watts, None), &knob, TOLERANCE).unwrap();
        // It draws 300 W a GPU by itself. Halfway down to 240 W, in logarithms, it has the means of both.
        let halfway = (300.0_f64 * 240.0).sqrt();
        let (rate, watts) = (9_000.0_f64.sqrt(), (900.0_f64 * 720.0).sqrt());
        assert!(near(misfit(halfway, rate, watts), 0.0));
        assert!(near(misfit(halfway, rate * 1.05, watts), 1.05_f64.ln() / (1.5 * TOLERANCE)));
        // At 200 W anything down to the power of 1.6, and no more than at 240 W.
        let far = (200.0_f64 / 240.0).powf(1.6);
        for (rate, watts) in [(90.0, 720.0), (90.0 * far, 720.0 * far), (80.0, 650.0)] {
            assert!(near(misfit(200.0, rate, watts), 0.0), "{rate}/s, {watts} W");
        }
        assert!(near(misfit(200.0, 90.0 * far / 1.05, 650.0), 1.05_f64.ln() / (1.5 * TOLERANCE)));
        assert!(near(misfit(200.0, 80.0, 720.0 * 1.1), 1.1_f64.ln() / (1.5 * TOLERANCE)));
    }

    #[test]
    fn in_a_layout_that_was_not_measured_memory_activity_alone_distinguishes_phases() {
        let fits = |known: JobPhase, intensity| {
            let mut phases = JobPhases { all: vec![known], ..JobPhases::default() };
            phases.observe_window(at(OTHER, 400.0), seen(1.0, 1.0, intensity), &knob(), TOLERANCE, EventTime::default())
                == PhaseMatch::Same
        };
        let most = (1.25 * TOLERANCE).exp();
        for factor in [0.999 * most, 1.001 / most] {
            assert!(fits(phase(2), Some(0.003 * factor)), "{factor}");
        }
        for factor in [1.001 * most, 0.999 / most] {
            assert!(!fits(phase(2), Some(0.003 * factor)), "{factor}");
        }
        assert!(fits(phase(2), None));
        assert!(fits(JobPhase { dram_seconds_per_sample: None, ..phase(2) }, Some(1.0)));
    }

    #[test]
    fn a_new_phase_begins_with_the_windows_after_the_first_doubtful_one() {
        let mut job = Job::new();
        job.observe_times(3, 100.0);
        for rate in [120.0, 140.0, 150.0] {
            job.observe(rate);
        }
        let phase = job.phases.present().unwrap();
        assert_eq!((phase.points.len(), phase.points[0].windows, phase.points[0].samples_per_second), (1, 2, 145.0));
        assert_eq!(phase.entered, job.now);
        let before = job.phases.others().next().unwrap();
        assert_eq!((before.points[0].windows, before.visits, before.seconds), (3, 1, 300.0));
    }

    #[test]
    fn doubts_that_cancel_out_are_more_of_the_same() {
        let mut job = Job::new();
        job.observe_times(3, 100.0);
        // Each is 10 % off, and both together are not.
        assert_eq!(
            [130.0, 110.0, 90.0].map(|rate| job.observe(rate)),
            [PhaseMatch::Doubtful, PhaseMatch::Doubtful, PhaseMatch::Same]
        );
        let phase = job.phases.present().unwrap();
        assert_eq!((phase.points[0].windows, phase.visits, phase.seconds), (5, 0, 0.0));
    }

    #[test]
    fn of_the_phases_that_were_seen_the_nearest_one_is_recognised() {
        let mut job = Job::new();
        job.observe_times(3, 100.0);
        job.observe_times(3, 140.0);
        job.observe_times(3, 155.0);
        job.observe_times(3, 100.0);
        // 146/s are 4 % from 140/s and 6 % from 155/s.
        assert_eq!(job.observe_times(3, 146.0)[2], PhaseMatch::Known);
        assert_eq!(job.phases.present_index(), 2);
        let phase = job.phases.present().unwrap();
        assert_eq!((phase.points[0].windows, phase.entered, phase.visits), (4, job.now, 1));
    }

    #[test]
    fn a_phase_is_recognised_by_its_memory_activity_where_both_clean_windows_had_one() {
        let matched = |intensities: [Option<f64>; 3]| {
            let (mut phases, knob, now) = (JobPhases::default(), knob(), EventTime::from_seconds(0.0));
            let mut hear =
                |rate, intensity| phases.observe_window(at(HERE, 400.0), seen(rate, 900.0, intensity), &knob, TOLERANCE, now);
            for (rate, intensity) in [(100.0, 0.001), (100.0, 0.001), (150.0, 0.002), (150.0, 0.002), (150.0, 0.002)] {
                hear(rate, Some(intensity));
            }
            intensities.map(|intensity| hear(100.0, intensity))[2].clone()
        };
        assert_eq!(matched([Some(0.004); 3]), PhaseMatch::New, "as fast as the first one, and it is not");
        assert_eq!(matched([Some(0.009), Some(0.0005), Some(0.0015)]), PhaseMatch::Known, "by the mean of the last two");
        assert_eq!(matched([Some(0.001), Some(0.001), Some(0.004)]), PhaseMatch::New);
        assert_eq!(matched([Some(0.004), Some(0.004), None]), PhaseMatch::Known, "by all else");
    }

    #[test]
    fn of_eight_phases_the_one_that_lasted_least_is_forgotten() {
        let mut job = Job::new();
        // The third one lasts for the shortest time.
        for n in 0..8 {
            job.observe_times(if n == 2 { 4 } else { 6 }, 100.0 * 1.3_f64.powi(n));
        }
        assert_eq!(job.phases.others().count(), 7);
        job.observe_times(6, 100.0 * 1.3_f64.powi(8));
        let rates: Vec<_> =
            job.phases.all.iter().map(|phase| (phase.points[0].samples_per_second / 100.0).log(1.3).round()).collect();
        assert_eq!(rates, [0.0, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(job.phases.present_index(), 8);
    }

    #[test]
    fn a_phase_that_comes_again_is_expected_to_last_as_long_as_its_own_visits_did() {
        let mut job = Job::new();
        job.observe_times(10, 100.0);
        job.observe_times(20, 130.0);
        job.observe_times(3, 100.0);
        // It began at minute 1 and ended at 13; the other one from then to 33.
        assert_eq!(job.phases.dwell_seconds(job.now), Some(720.0));
        assert_eq!(job.phases.dwell_seconds(job.now.plus_seconds(240.0)), Some(480.0));
        assert_eq!(job.phases.dwell_seconds(job.now.plus_seconds(600.0)), Some(300.0));
        job.observe_times(3, 170.0);
        // A new one: as long as the visits of all, 12, 20 and 3 minutes.
        assert_eq!(job.phases.dwell_seconds(job.now), Some(700.0));
    }

    #[test]
    fn shares_of_phases_are_those_of_the_time_so_far() {
        let mut job = Job::new();
        assert_eq!(job.phases.time_share(&JobPhase::default(), job.now), 0.0, "no time has passed");
        job.observe_times(10, 100.0);
        job.observe_times(3, 130.0);
        // 12 minutes of the first one, and then 4 of the second.
        let now = job.now.plus_seconds(240.0);
        let [first, second] = [&job.phases.all[0], &job.phases.all[1]];
        assert_eq!((job.phases.time_share(first, now), job.phases.time_share(second, now)), (0.75, 0.25));
    }
}
