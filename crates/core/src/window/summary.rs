//! Output of a closed interval: totals over slices and sources, then the window event.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, EnergyMethod, Meter, Origin, WindowKind, Workload};
use serde::{Deserialize, Serialize};

use super::energy::{self, EnergyBasis, GAUGES, GpuSums};
use super::progress::{COUNTERS, RankSums, SAMPLES};

/// Energy of some devices in some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnergySums {
    pub joules: f64,
    /// Microseconds of device time with known energy, by [`EnergyBasis`].
    pub known: [i64; 3],
    /// Microseconds of device time.
    pub expected: i64,
    /// Microseconds of the interval.
    pub time: i64,
    /// Joules of the devices with known energy, each extrapolated over its own time.
    pub filled: f64,
    /// Microseconds of device time of those devices.
    pub filled_device_time: i64,
    /// Microseconds of the intervals that have any.
    pub filled_time: i64,
}

impl EnergySums {
    fn known_micros(&self) -> i64 {
        self.known.iter().sum()
    }

    fn coverage(&self) -> f64 {
        ratio(self.known_micros(), self.expected)
    }

    fn joules(&self) -> Option<f64> {
        (self.known_micros() > 0).then_some(self.joules)
    }

    /// Extrapolates each device's energy over its time, never from one device to another.
    fn extrapolate<'a>(&mut self, devices: impl Iterator<Item = &'a Self>) {
        for device in devices.filter(|device| device.known_micros() > 0) {
            self.filled += device.joules * (device.expected as f64 / device.known_micros() as f64);
            self.filled_device_time += device.expected;
            self.filled_time = self.time;
        }
    }

    /// Returns the mean watts of all devices with known energy together.
    fn mean_watts(&self) -> Option<f64> {
        (self.filled_time > 0).then(|| self.filled / (self.filled_time as f64 / 1e6))
    }

    fn watts_per_device(&self) -> Option<f64> {
        (self.filled_device_time > 0).then(|| self.filled / (self.filled_device_time as f64 / 1e6))
    }

    fn add(&mut self, other: &Self) {
        self.joules += other.joules;
        for (mine, theirs) in self.known.iter_mut().zip(other.known) {
            *mine += theirs;
        }
        self.expected += other.expected;
        self.time += other.time;
        self.filled += other.filled;
        self.filled_device_time += other.filled_device_time;
        self.filled_time += other.filled_time;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(micros: &i64) -> bool {
    *micros == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero_joules(joules: &f64) -> bool {
    *joules == 0.0
}

fn ratio(part: i64, whole: i64) -> f64 {
    if whole > 0 { (part as f64 / whole as f64).clamp(0.0, 1.0) } else { 0.0 }
}

/// Everything summed over an interval. Totals of neighbouring intervals add up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IntervalTotals {
    pub energy: EnergySums,
    pub run: EnergySums,
    pub energy_gap: i64,
    pub amounts: [f64; COUNTERS],
    pub redone: [f64; COUNTERS],
    pub covered: [i64; COUNTERS],
    pub progress_known: i64,
    pub progress_expected: i64,
    pub progress_gap: i64,
    /// Microseconds of ranks that were silent while others reported.
    #[serde(skip_serializing_if = "is_zero")]
    pub progress_silent: i64,
    pub sums: [f64; GAUGES],
    pub counts: [u64; GAUGES],
    pub hottest: Option<f64>,
    pub loss: f64,
    pub losses: u64,
    pub events: u64,
    pub origin: Origin,
    pub meter: Meter,
    pub devices: u32,
    pub ranks: u32,
    pub fell: bool,
    /// Microseconds of device time in which an energy counter contradicts power or the board.
    #[serde(skip_serializing_if = "is_zero")]
    pub contradicted: i64,
    /// Joules of energy counters less those of power, of waits that count by power.
    #[serde(skip_serializing_if = "is_zero_joules")]
    pub counter_difference: f64,
    /// Time from the first to the last moment for which any source has figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<(EventTime, EventTime)>,
}

/// A slice of time.
#[derive(Debug, Clone, Copy)]
pub struct WindowSlice {
    pub from: EventTime,
    pub to: EventTime,
    pub in_run: bool,
}

impl WindowSlice {
    fn micros(self) -> i64 {
        self.to.micros() - self.from.micros()
    }
}

impl IntervalTotals {
    /// Counts the time of a slice, once.
    pub fn add_slice(&mut self, slice: WindowSlice) {
        self.energy.time += slice.micros();
        if slice.in_run {
            self.run.time += slice.micros();
        }
    }

    /// Adds a device's part of a slice, expected up to `until`; also to the device's own, of the interval and of its run.
    pub fn add_device(&mut self, slice: WindowSlice, sums: Option<&GpuSums>, until: EventTime, own: &mut [EnergySums; 2]) {
        let expected = (until.min(slice.to).micros() - slice.from.micros()).max(0);
        let mut part = EnergySums { expected, ..EnergySums::default() };
        let mut gap = expected;
        if let Some(sums) = sums {
            part.joules = sums.joules;
            part.known = sums.covered;
            self.contradicted = self.contradicted.saturating_add(sums.contradicted);
            self.counter_difference += sums.counter_difference;
            if sums.from < sums.to {
                let ahead = sums.from.micros() - slice.from.micros();
                let behind = (until.min(slice.to).micros() - sums.to.micros()).max(0);
                gap = sums.largest.max(ahead).max(behind);
            }
            for i in 0..GAUGES {
                self.sums[i] += sums.sums[i];
                self.counts[i] += u64::from(sums.counts[i]);
            }
            self.hottest = match (self.hottest, sums.hottest) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        }
        self.energy_gap = self.energy_gap.max(gap);
        if slice.in_run {
            self.run.add(&part);
            own[1].add(&part);
        }
        self.energy.add(&part);
        own[0].add(&part);
    }

    /// Adds the sums of every device over the interval and its run.
    pub fn add_devices(&mut self, devices: &[[EnergySums; 2]]) {
        self.energy.extrapolate(devices.iter().map(|device| &device[0]));
        self.run.extrapolate(devices.iter().map(|device| &device[1]));
    }

    /// Adds a rank's part of a slice.
    pub fn add_rank(&mut self, slice: WindowSlice, sums: Option<&RankSums>) {
        let mut gap = slice.micros();
        if let Some(sums) = sums {
            for i in 0..COUNTERS {
                self.amounts[i] += sums.amounts[i];
                self.redone[i] += sums.redone[i];
                self.covered[i] += sums.covered[i];
            }
            self.progress_known += sums.known_micros();
            if sums.from < sums.to {
                let ahead = sums.from.micros() - slice.from.micros();
                let behind = slice.to.micros() - sums.to.micros();
                gap = sums.largest.max(ahead).max(behind);
            }
            self.loss += sums.loss;
            self.losses += u64::from(sums.losses);
            self.fell |= sums.fell;
        }
        self.progress_expected += slice.micros();
        self.progress_gap = self.progress_gap.max(gap);
    }

    /// Marks this time as observed.
    pub fn mark_observed(&mut self, from: EventTime, to: EventTime) {
        self.observed = Some(self.observed.map_or((from, to), |(first, last)| (first.min(from), last.max(to))));
    }

    /// Takes in the totals of a neighbouring interval.
    pub fn merge(&mut self, other: &Self) {
        self.energy.add(&other.energy);
        self.run.add(&other.run);
        self.energy_gap = self.energy_gap.max(other.energy_gap);
        for i in 0..COUNTERS {
            self.amounts[i] += other.amounts[i];
            self.redone[i] += other.redone[i];
            self.covered[i] += other.covered[i];
        }
        self.progress_known += other.progress_known;
        self.progress_expected += other.progress_expected;
        self.progress_gap = self.progress_gap.max(other.progress_gap);
        self.progress_silent += other.progress_silent;
        for i in 0..GAUGES {
            self.sums[i] += other.sums[i];
            self.counts[i] += other.counts[i];
        }
        self.hottest = match (self.hottest, other.hottest) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        self.loss += other.loss;
        self.losses += other.losses;
        self.events += other.events;
        self.origin = self.origin.max(other.origin);
        self.meter = self.meter.max(other.meter);
        self.devices = self.devices.max(other.devices);
        self.ranks = self.ranks.max(other.ranks);
        self.fell |= other.fell;
        self.contradicted = self.contradicted.saturating_add(other.contradicted);
        self.counter_difference += other.counter_difference;
        if let Some((from, to)) = other.observed {
            self.mark_observed(from, to);
        }
    }

    fn method(&self) -> EnergyMethod {
        let known = self.energy.known;
        let integral = known[EnergyBasis::Instant as usize] + known[EnergyBasis::Average as usize] > 0;
        match (known[EnergyBasis::Counter as usize] > 0, integral) {
            (true, true) => EnergyMethod::Mixed,
            (true, false) => EnergyMethod::Counter,
            (false, true) => EnergyMethod::Integral,
            (false, false) => EnergyMethod::None,
        }
    }

    fn mean(&self, gauge: usize) -> Option<f64> {
        (self.counts[gauge] > 0).then(|| self.sums[gauge] / self.counts[gauge] as f64)
    }

    fn amount(&self, counter: usize) -> Option<f64> {
        (self.covered[counter] > 0).then_some(self.amounts[counter])
    }

    /// Units of a counter per second of all ranks together, over the time with known progress.
    fn rate(&self, counter: usize) -> Option<f64> {
        let ranks = self.progress_expected as f64 / self.energy.time as f64;
        self.amount(counter).map(|amount| amount / (self.covered[counter] as f64 / 1e6) * ranks)
    }
}

/// Name of an interval, and the layout in force.
#[derive(Debug, Clone, Copy)]
pub struct IntervalContext<'a> {
    pub id_prefix: &'a str,
    pub workload: &'a str,
    pub kind: WindowKind,
    pub span: Option<&'a str>,
    pub start: EventTime,
    pub end: EventTime,
    pub table: Option<&'a Workload>,
    pub run_declared: bool,
    /// See [`crate::FoldSettings::window_rules`].
    pub rules: u32,
}

/// Returns the event of a closed interval; refusal counts and unassigned energy are the caller's to add.
pub fn build_window_event(interval: &IntervalContext<'_>, totals: &IntervalTotals) -> EfficiencyWindow {
    let energy = totals.energy.joules();
    let run = if interval.run_declared { &totals.run } else { &totals.energy };
    // Idle time around a run gives no information on the run's efficiency.
    let watts = if run.known_micros() > 0 { run.mean_watts() } else { totals.energy.mean_watts() };
    let per_second = totals.rate(SAMPLES);
    let kwh = energy.map(|joules| joules / 3.6e6);
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b.filter(|b| *b > 0.0)?);
    let id = match interval.span {
        Some(span) => format!("{}/span/{span}/{}", interval.id_prefix, interval.start),
        None => format!("{}/tumbling/{}", interval.id_prefix, interval.start),
    };
    let mut window = EfficiencyWindow {
        id,
        workload: interval.workload.to_owned(),
        kind: interval.kind,
        span: interval.span.map(str::to_owned),
        window_start: interval.start,
        window_end: interval.end,
        origin: totals.origin,
        meter: totals.meter,
        energy_joules: energy,
        energy_method: totals.method(),
        energy_coverage_ratio: totals.energy.coverage(),
        energy_largest_gap_seconds: totals.energy_gap as f64 / 1e6,
        run_declared: interval.run_declared,
        observed_start: totals.observed.map(|(from, _)| from),
        observed_end: totals.observed.map(|(_, to)| to),
        run_seconds: run.time as f64 / 1e6,
        run_energy_joules: run.joules(),
        run_coverage_ratio: run.coverage(),
        samples: totals.amount(SAMPLES),
        samples_redone: totals.redone[SAMPLES],
        tokens: totals.amount(1),
        steps: totals.amount(2),
        progress_coverage_ratio: ratio(totals.progress_known, totals.progress_expected),
        progress_largest_gap_seconds: totals.progress_gap as f64 / 1e6,
        progress_silent_ratio: if interval.rules >= 7 { ratio(totals.progress_silent, totals.progress_expected) } else { 0.0 },
        samples_per_second: per_second,
        mean_power_watts: totals.energy.mean_watts(),
        mean_power_per_gpu_watts: totals.energy.watts_per_device(),
        cost: interval.table.and_then(|table| Some(table.price_per_kwh? * kwh?)),
        co2_grams: interval.table.and_then(|table| Some(table.carbon_grams_per_kwh? * kwh?)),
        mean_utilization_ratio: totals.mean(energy::UTILIZATION),
        mean_memory_utilization_ratio: totals.mean(energy::MEMORY_UTILIZATION),
        mean_sm_active_ratio: totals.mean(energy::SM_ACTIVE),
        mean_sm_occupancy_ratio: totals.mean(energy::SM_OCCUPANCY),
        mean_tensor_active_ratio: totals.mean(energy::TENSOR),
        mean_dram_active_ratio: totals.mean(energy::DRAM),
        mean_sm_clock_mhz: totals.mean(energy::SM_CLOCK),
        mean_temperature_celsius: totals.mean(energy::TEMPERATURE),
        max_temperature_celsius: totals.hottest,
        mean_loss: (totals.losses > 0).then(|| totals.loss / totals.losses as f64),
        layout: interval.table.map(|table| table.layout.clone()),
        generation: interval.table.map(|table| table.generation),
        gpus: totals.devices,
        ranks: totals.ranks,
        events: totals.events,
        counter_contradicted_seconds: totals.contradicted as f64 / 1e6,
        counter_difference_joules: totals.counter_difference,
        ..EfficiencyWindow::default()
    };
    // While the job runs, by mean power: the energy of the part without known progress cannot be distinguished.
    let running = over(watts, per_second);
    if interval.rules >= 2 {
        window.joules_per_sample = window.energy_per_sample();
        window.joules_per_sample_running = running.filter(|_| window.runs_throughout());
        let joules = window.energy_of_progress().map(|joules| joules * window.reported_progress_ratio());
        window.samples_per_joule = over(window.samples, joules);
        window.tokens_per_joule = over(window.tokens, joules);
    } else {
        window.joules_per_sample = running;
        window.samples_per_joule = over(per_second, watts);
        window.tokens_per_joule = over(totals.rate(1), watts);
    }
    window
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    fn slice(from: i64, to: i64, in_run: bool) -> WindowSlice {
        WindowSlice { from: at(from), to: at(to), in_run }
    }

    const SECOND: i64 = 1_000_000;

    #[test]
    fn totals_of_neighbouring_intervals_add_up() {
        let energy = |factor: f64, n: i64| EnergySums {
            joules: 10.0 * factor,
            known: [n, 2 * n, 3 * n],
            expected: 10 * n,
            time: 11 * n,
            filled: 20.0 * factor,
            filled_device_time: 12 * n,
            filled_time: 13 * n,
        };
        let one = IntervalTotals {
            energy: energy(1.0, 1),
            run: energy(2.0, 2),
            energy_gap: 5,
            amounts: [1.0, 2.0, 3.0],
            redone: [0.25, 0.5, 0.75],
            covered: [4, 5, 6],
            progress_known: 7,
            progress_expected: 9,
            progress_gap: 30,
            progress_silent: 2,
            sums: std::array::from_fn(|i| i as f64),
            counts: std::array::from_fn(|i| i as u64),
            hottest: Some(50.0),
            loss: 1.5,
            losses: 3,
            events: 20,
            origin: Origin::Simulated,
            meter: Meter::Gpu,
            devices: 2,
            ranks: 8,
            fell: false,
            contradicted: 5,
            counter_difference: 1.5,
            observed: Some((at(10), at(60))),
        };
        let other = IntervalTotals {
            energy: energy(4.0, 4),
            run: energy(8.0, 8),
            energy_gap: 3,
            amounts: [10.0, 20.0, 30.0],
            redone: [4.0, 8.0, 16.0],
            covered: [40, 50, 60],
            progress_known: 70,
            progress_expected: 90,
            progress_gap: 31,
            progress_silent: 20,
            sums: std::array::from_fn(|i| 100.0 * i as f64),
            counts: std::array::from_fn(|i| 100 * i as u64),
            hottest: Some(49.0),
            loss: 15.0,
            losses: 30,
            events: 200,
            origin: Origin::Measured,
            meter: Meter::Wall,
            devices: 3,
            ranks: 4,
            fell: true,
            contradicted: 50,
            counter_difference: -4.0,
            observed: Some((at(60), at(110))),
        };
        let both = IntervalTotals {
            energy: energy(5.0, 5),
            run: energy(10.0, 10),
            energy_gap: 5,
            amounts: [11.0, 22.0, 33.0],
            redone: [4.25, 8.5, 16.75],
            covered: [44, 55, 66],
            progress_known: 77,
            progress_expected: 99,
            progress_gap: 31,
            progress_silent: 22,
            sums: std::array::from_fn(|i| 101.0 * i as f64),
            counts: std::array::from_fn(|i| 101 * i as u64),
            hottest: Some(50.0),
            loss: 16.5,
            losses: 33,
            events: 220,
            origin: Origin::Simulated,
            meter: Meter::Wall,
            devices: 3,
            ranks: 8,
            fell: true,
            contradicted: 55,
            counter_difference: -2.5,
            observed: Some((at(10), at(110))),
        };
        for (first, second) in [(&one, &other), (&other, &one)] {
            let mut sum = first.clone();
            sum.merge(second);
            assert_eq!(sum, both);
        }
        let mut sum = IntervalTotals::default();
        sum.merge(&one);
        assert_eq!(sum, one, "to nothing yet, it is itself");
    }

    #[test]
    fn the_largest_gap_of_a_device_is_a_step_or_lies_before_or_behind_what_is_known() {
        let gap = |from, to, largest, until| {
            let sums = GpuSums { from: at(from), to: at(to), largest: largest * SECOND, events: 1, ..GpuSums::default() };
            let mut totals = IntervalTotals::default();
            totals.add_device(slice(1_000, 1_060, false), Some(&sums), at(until), &mut Default::default());
            totals.energy_gap / SECOND
        };
        assert_eq!(gap(1_005, 1_050, 20, 1_060), 20, "a step");
        assert_eq!(gap(1_030, 1_050, 20, 1_060), 30, "before");
        assert_eq!(gap(1_005, 1_035, 20, 1_060), 25, "behind");
        assert_eq!(gap(1_005, 1_035, 20, 1_040), 20, "only up to where it is expected");
        assert_eq!(gap(1_030, 1_030, 0, 1_060), 60, "one sample knows of no time");
    }

    #[test]
    fn the_largest_gap_of_a_rank_is_a_step_or_lies_before_or_behind_what_is_known() {
        let gap = |from, to, largest| {
            let sums = RankSums { from: at(from), to: at(to), largest: largest * SECOND, events: 1, ..RankSums::default() };
            let mut totals = IntervalTotals::default();
            totals.add_rank(slice(1_000, 1_060, false), Some(&sums));
            totals.progress_gap / SECOND
        };
        assert_eq!([gap(1_005, 1_050, 20), gap(1_030, 1_050, 20), gap(1_005, 1_035, 20)], [20, 30, 25]);
        assert_eq!(gap(1_030, 1_030, 0), 60, "one event knows of no time");
    }

    /// Returns a window of 60 s, of which the last 40 s are a run: 1 device with 600 J before the run and 8 kJ in it, 1
    /// rank.
    fn window(table: Option<&Workload>, declared: bool, samples: f64, rules: u32) -> EfficiencyWindow {
        let mut totals =
            IntervalTotals { origin: Origin::Imported, meter: Meter::Node, devices: 1, ranks: 1, ..IntervalTotals::default() };
        let mut device = <[EnergySums; 2]>::default();
        for (slice, joules) in [(slice(0, 20, false), 600.0), (slice(20, 60, true), 8_000.0)] {
            let known = [slice.micros(), 0, 0];
            let gpu = GpuSums { joules, covered: known, from: slice.from, to: slice.to, ..GpuSums::default() };
            totals.add_slice(slice);
            totals.add_device(slice, Some(&gpu), at(60), &mut device);
        }
        totals.add_devices(&[device]);
        let rank = RankSums {
            amounts: [samples, 40.0 * samples, 7.0],
            covered: [50 * SECOND; COUNTERS],
            from: at(0),
            to: at(50),
            largest: 4 * SECOND,
            ..RankSums::default()
        };
        totals.add_rank(slice(0, 60, false), Some(&rank));
        let interval = IntervalContext {
            id_prefix: "team/job",
            workload: "team/job",
            kind: WindowKind::Tumbling,
            span: None,
            start: at(0),
            end: at(60),
            table,
            run_declared: declared,
            rules,
        };
        build_window_event(&interval, &totals)
    }

    #[test]
    fn a_window_shows_what_a_sample_took_of_the_energy_of_the_run() {
        let seen = window(None, true, 500.0, 2);
        assert_eq!((seen.origin, seen.meter), (Origin::Imported, Meter::Node));
        // 500 samples in the 50 s that are known.
        assert_eq!((seen.samples, seen.samples_per_second), (Some(500.0), Some(10.0)));
        assert_eq!((seen.tokens, seen.steps, seen.progress_largest_gap_seconds), (Some(20_000.0), Some(7.0), 10.0));
        assert_eq!((seen.run_seconds, seen.run_energy_joules, seen.energy_joules), (40.0, Some(8_000.0), Some(8_600.0)));
        assert_eq!(
            (seen.joules_per_sample, seen.samples_per_joule, seen.tokens_per_joule),
            (Some(16.0), Some(0.0625), Some(2.5))
        );
        // 200 W in the run.
        assert_eq!(seen.joules_per_sample_running, Some(20.0));
        // If no run is declared, all of the time counts: 8,600 J, of which ten seconds are downtime.
        let whole = window(None, false, 500.0, 2);
        assert_eq!((whole.run_seconds, whole.joules_per_sample), (60.0, Some(17.2)));
        assert_eq!(whole.joules_per_sample_running, None, "progress is known for five sixths of it");
    }

    #[test]
    fn by_the_first_rules_a_window_divides_mean_power_by_the_rate() {
        let seen = window(None, true, 500.0, 1);
        assert_eq!((seen.joules_per_sample, seen.samples_per_joule, seen.tokens_per_joule), (Some(20.0), Some(0.05), Some(2.0)));
        let whole = window(None, false, 500.0, 1);
        assert_eq!((whole.run_seconds, whole.joules_per_sample), (60.0, Some(8_600.0 / 60.0 / 10.0)));
        assert_eq!((seen.joules_per_sample_running, whole.joules_per_sample_running), (None, None));
    }

    #[test]
    fn of_nothing_known_no_figure_is_made() {
        let interval = IntervalContext {
            id_prefix: "team/job",
            workload: "team/job",
            kind: WindowKind::Tumbling,
            span: None,
            start: at(0),
            end: at(60),
            table: None,
            run_declared: true,
            rules: crate::settings::WINDOW_RULES,
        };
        let seen = build_window_event(&interval, &IntervalTotals::default());
        assert_eq!((seen.energy_method, seen.energy_joules, seen.run_energy_joules), (EnergyMethod::None, None, None));
        let ratios = [seen.energy_coverage_ratio, seen.run_coverage_ratio, seen.progress_coverage_ratio];
        assert_eq!((ratios, seen.run_seconds), ([0.0; 3], 0.0));
        assert_eq!((seen.mean_power_watts, seen.mean_power_per_gpu_watts, seen.joules_per_sample), (None, None, None));
        assert_eq!((seen.samples, seen.samples_per_second, seen.tokens, seen.steps), (None, None, None, None));
        assert_eq!((seen.mean_loss, seen.mean_utilization_ratio, seen.max_temperature_celsius), (None, None, None));
    }

    #[test]
    fn nothing_is_divided_by_a_rate_of_zero() {
        let seen = window(None, true, 0.0, 2);
        assert_eq!((seen.samples, seen.samples_per_second), (Some(0.0), Some(0.0)));
        assert_eq!((seen.joules_per_sample, seen.samples_per_joule), (None, Some(0.0)));
    }

    #[test]
    fn where_the_energy_of_the_run_is_not_known_that_of_the_window_speaks() {
        let mut totals = IntervalTotals::default();
        let mut device = <[EnergySums; 2]>::default();
        for (slice, known) in [(slice(0, 20, false), 20 * SECOND), (slice(20, 60, true), 0)] {
            let gpu = GpuSums { joules: 2_000.0 * (known / SECOND) as f64 / 20.0, covered: [known, 0, 0], ..GpuSums::default() };
            totals.add_slice(slice);
            totals.add_device(slice, Some(&gpu), at(60), &mut device);
        }
        totals.add_devices(&[device]);
        let rank = RankSums { amounts: [600.0, 0.0, 0.0], covered: [60 * SECOND, 0, 0], ..RankSums::default() };
        totals.add_rank(slice(0, 60, false), Some(&rank));
        let interval = IntervalContext {
            id_prefix: "team/job",
            workload: "team/job",
            kind: WindowKind::Tumbling,
            span: None,
            start: at(0),
            end: at(60),
            table: None,
            run_declared: true,
            rules: crate::settings::WINDOW_RULES,
        };
        let seen = build_window_event(&interval, &totals);
        assert_eq!((seen.run_energy_joules, seen.run_coverage_ratio), (None, 0.0));
        // 100 W as long as anything is known, 10 samples/s.
        assert_eq!(seen.joules_per_sample, Some(10.0));
    }
}
