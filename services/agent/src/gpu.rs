//! One open GPU: its power cap and the bound of its SM clock, held as wished.

use eadt_nvml::set::{ApplicationClocks, ClockMechanism, ClockReading, GpuSettingError, SettableGpu};
use eadt_nvml::{GpuIdentity, GpuLost};
use eadt_schemas::v1::{DeviceReport, SettingOutcome};

use crate::apply_setting::{EnforcementState, SettingKnob, SettingStatus, apply_setting};
use crate::decide::SettingReading;
use crate::desired::{DesiredDeviceSettings, RequestedValue};
use crate::ledger::{ClockOriginal, Ledger, LedgerRecord, RecordedSetting};
use crate::metrics::AgentMetrics;

/// Devices round power caps to whole watts.
const POWER_TOLERANCE_MILLIWATTS: u32 = 999;
/// Clocks step by 15 MHz or less, and a clock may pass its bound by a step for a moment.
const CLOCK_MARGIN_MHZ: u32 = 30;
/// Looks in a row that must find the clock above its bound.
const MAX_CLOCK_OVERSHOOTS: u32 = 3;

/// Settings of a node's GPUs that its operator allows to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedSettings {
    pub power: bool,
    pub clocks: bool,
}

/// Holds the settings of one GPU.
#[derive(Debug)]
pub(crate) struct GpuEnforcer<'a> {
    ledger: &'a Ledger,
    metrics: &'a AgentMetrics,
    allowed: AllowedSettings,
    /// `Err` if the changes of this agent are unknown, so that nothing is touched.
    record: Result<LedgerRecord, String>,
    power: EnforcementState,
    clock: EnforcementState,
    overshoots_in_a_row: u32,
}

impl<'a> GpuEnforcer<'a> {
    pub fn new(ledger: &'a Ledger, metrics: &'a AgentMetrics, allowed: AllowedSettings, identity: &GpuIdentity) -> Self {
        let record = ledger.load(&identity.uuid).map_err(|error| error.to_string());
        let (power, clock) = (EnforcementState::default(), EnforcementState::default());
        Self { ledger, metrics, allowed, record, power, clock, overshoots_in_a_row: 0 }
    }

    /// Compares the settings with the requested ones, and makes the next changes.
    pub fn step(&mut self, gpu: &mut dyn SettableGpu, desired: &DesiredDeviceSettings) -> Result<DeviceReport, GpuLost> {
        let limits = gpu.limits().clone();
        let identity = gpu.identity().clone();
        let mut report = DeviceReport {
            device: identity.uuid,
            gpu_index: Some(identity.index),
            gpu_model: identity.model,
            decision_id: desired.decision_id.clone(),
            power_limit_watts_min: limits.power.map(|range| watts(range.min_milliwatts)),
            power_limit_watts_max: limits.power.map(|range| watts(range.max_milliwatts)),
            default_power_limit_watts: limits.power.and_then(|range| range.default_milliwatts).map(watts),
            sm_clock_mhz_min: limits.clock.as_ref().and_then(|range| range.supported_mhz.first()).map(|mhz| f64::from(*mhz)),
            sm_clock_mhz_max: limits.clock.as_ref().and_then(|range| range.supported_mhz.last()).map(|mhz| f64::from(*mhz)),
            ..DeviceReport::default()
        };
        let mut record = match &self.record {
            Ok(record) => record.clone(),
            Err(reason) => {
                (report.power_limit_outcome, report.sm_clock_outcome) = (SettingOutcome::Failed, SettingOutcome::Failed);
                (report.power_limit_reason, report.sm_clock_reason) = (reason.clone(), reason.clone());
                return Ok(report);
            }
        };

        let (requested, refused) = split(self.power_milliwatts(&desired.power_limit_watts, gpu));
        let mut recorded =
            RecordedSetting { entry: record.power_limit_milliwatts.take(), left_alone: record.power_limit_left_alone.take() };
        let result = {
            let mut save = |recorded: &RecordedSetting<_>| {
                record.power_limit_milliwatts.clone_from(&recorded.entry);
                record.power_limit_left_alone = recorded.left_alone;
                self.ledger.store(&record).map_err(|error| error.to_string())
            };
            let knob = &mut PowerKnob { gpu: &mut *gpu, last_reading: 0 };
            apply_setting(requested, &mut recorded, &mut self.power, POWER_TOLERANCE_MILLIWATTS, knob, &mut save)
        };
        report.original_power_limit_watts = recorded.entry.as_ref().map(|entry| watts(entry.original));
        (record.power_limit_milliwatts, record.power_limit_left_alone) = (recorded.entry, recorded.left_alone);
        // The record on disk is known even if the GPU was lost meanwhile.
        self.record = Ok(record.clone());
        let status = result?;
        self.metrics.count(&report.device, "power_limit", &status);
        report.power_limit_watts = status.value.map(watts);
        (report.power_limit_outcome, report.power_limit_reason) = report_outcome(status, refused);

        let (requested, refused) = split(self.clock_mhz(&desired.sm_clock_mhz, gpu));
        let mut recorded = RecordedSetting { entry: record.sm_clock_mhz.take(), left_alone: record.sm_clock_left_alone.take() };
        let result = {
            let mut save = |recorded: &RecordedSetting<_>| {
                record.sm_clock_mhz.clone_from(&recorded.entry);
                record.sm_clock_left_alone = recorded.left_alone;
                self.ledger.store(&record).map_err(|error| error.to_string())
            };
            let bound = recorded.entry.as_ref().and_then(|entry| entry.ours.iter().copied().max());
            let knob = &mut ClockKnob { gpu, bound, overshoots_in_a_row: &mut self.overshoots_in_a_row, last_reading: None };
            apply_setting(requested, &mut recorded, &mut self.clock, 0, knob, &mut save)
        };
        report.sm_clock_mhz = recorded.entry.as_ref().and_then(|entry| entry.ours.last()).map(|mhz| f64::from(*mhz));
        (record.sm_clock_mhz, record.sm_clock_left_alone) = (recorded.entry, recorded.left_alone);
        self.record = Ok(record);
        let status = result?;
        self.metrics.count(&report.device, "sm_clock", &status);
        if status.outcome != SettingOutcome::Held {
            report.sm_clock_mhz = None;
        }
        (report.sm_clock_outcome, report.sm_clock_reason) = report_outcome(status, refused);
        Ok(report)
    }

    fn power_milliwatts(&self, requested: &RequestedValue, gpu: &dyn SettableGpu) -> Option<Result<u32, String>> {
        let requested = requested.as_ref()?;
        Some(requested.clone().and_then(|requested| {
            if !self.allowed.power {
                return Err("power caps are switched off on this node (agent.power_limits)".to_owned());
            }
            let Some(range) = gpu.limits().power else { return Err("this GPU takes no power cap".to_owned()) };
            let milliwatts = (requested * 1000.0).floor();
            if !(f64::from(range.min_milliwatts)..=f64::from(range.max_milliwatts)).contains(&milliwatts) {
                let (min, max) = (watts(range.min_milliwatts), watts(range.max_milliwatts));
                return Err(format!("{requested} W is not between {min} and {max} W, which this GPU takes"));
            }
            Ok(milliwatts as u32)
        }))
    }

    fn clock_mhz(&self, requested: &RequestedValue, gpu: &dyn SettableGpu) -> Option<Result<u32, String>> {
        let requested = requested.as_ref()?;
        Some(requested.clone().and_then(|requested| {
            if !self.allowed.clocks {
                return Err("clocks are switched off on this node (agent.clocks)".to_owned());
            }
            let Some(range) = &gpu.limits().clock else { return Err("this GPU's clocks cannot be bounded".to_owned()) };
            let (min, max) = (range.supported_mhz[0], range.supported_mhz[range.supported_mhz.len() - 1]);
            if !(f64::from(min)..=f64::from(max)).contains(&requested) {
                return Err(format!("{requested} MHz is not between {min} and {max} MHz, which this GPU takes"));
            }
            // The greatest clock that does not exceed the request.
            Ok(range.supported_mhz.iter().copied().filter(|mhz| f64::from(*mhz) <= requested).max().unwrap_or(min))
        }))
    }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

/// Returns the value to hold, and why another one is not.
pub(crate) fn split(requested: Option<Result<u32, String>>) -> (Option<u32>, Option<String>) {
    match requested {
        None => (None, None),
        Some(Ok(value)) => (Some(value), None),
        Some(Err(reason)) => (None, Some(reason)),
    }
}

/// A refusal takes precedence over the outcome of the former value, and a failure over both.
pub(crate) fn report_outcome(status: SettingStatus, refused: Option<String>) -> (SettingOutcome, String) {
    match refused {
        Some(reason) if status.outcome != SettingOutcome::Failed => (SettingOutcome::Refused, reason),
        _ => (status.outcome, status.reason),
    }
}

struct PowerKnob<'g> {
    gpu: &'g mut dyn SettableGpu,
    last_reading: u32,
}

impl SettingKnob<u32> for PowerKnob<'_> {
    fn unit(&self) -> String {
        self.gpu.identity().uuid.clone()
    }

    fn read(&mut self) -> Result<SettingReading, GpuSettingError> {
        self.last_reading = self.gpu.power_limit_milliwatts()?;
        Ok(SettingReading::Value(self.last_reading))
    }

    fn original_setting(&self) -> u32 {
        self.last_reading
    }

    fn set(&mut self, milliwatts: u32) -> Result<(), GpuSettingError> {
        self.gpu.set_power_limit_milliwatts(milliwatts)
    }

    fn put_back(&mut self, original: &u32) -> Result<(), GpuSettingError> {
        self.gpu.set_power_limit_milliwatts(*original)
    }

    fn all_or_nothing(&self) -> bool {
        true
    }

    fn rounds(&self) -> bool {
        true
    }

    fn describe(&self, milliwatts: u32) -> String {
        format!("{} W", watts(milliwatts))
    }
}

struct ClockKnob<'g> {
    gpu: &'g mut dyn SettableGpu,
    /// The highest of our bounds.
    bound: Option<u32>,
    overshoots_in_a_row: &'g mut u32,
    last_reading: Option<ApplicationClocks>,
}

impl SettingKnob<ClockOriginal> for ClockKnob<'_> {
    fn unit(&self) -> String {
        self.gpu.identity().uuid.clone()
    }

    fn read(&mut self) -> Result<SettingReading, GpuSettingError> {
        if self.gpu.limits().clock.is_none() {
            return Err(GpuSettingError::Unsupported { call: "bounding clocks" });
        }
        match self.gpu.clock()? {
            ClockReading::Application(clocks) => {
                self.last_reading = Some(clocks);
                Ok(SettingReading::Value(clocks.graphics_mhz))
            }
            ClockReading::Locked { sm_clock_mhz } => {
                let above = self.bound.zip(sm_clock_mhz).is_some_and(|(bound, now)| now > bound + CLOCK_MARGIN_MHZ);
                *self.overshoots_in_a_row = if above { *self.overshoots_in_a_row + 1 } else { 0 };
                Ok(SettingReading::Hidden { escaped: *self.overshoots_in_a_row >= MAX_CLOCK_OVERSHOOTS })
            }
        }
    }

    fn original_setting(&self) -> ClockOriginal {
        match (self.gpu.limits().clock.as_ref().map(|range| range.mechanism), self.last_reading) {
            (Some(ClockMechanism::Application), Some(ApplicationClocks { memory_mhz, graphics_mhz })) => {
                ClockOriginal::Application { memory_mhz, graphics_mhz }
            }
            _ => ClockOriginal::Unlocked,
        }
    }

    fn set(&mut self, mhz: u32) -> Result<(), GpuSettingError> {
        *self.overshoots_in_a_row = 0;
        self.gpu.bound_clock(mhz)
    }

    fn put_back(&mut self, original: &ClockOriginal) -> Result<(), GpuSettingError> {
        self.gpu.restore_clock(original.clocks())
    }

    fn all_or_nothing(&self) -> bool {
        true
    }

    fn rounds(&self) -> bool {
        true
    }

    fn describe(&self, mhz: u32) -> String {
        format!("{mhz} MHz")
    }
}
