//! Turning one setting: look, decide, record, act, look again.

use eadt_bus::chaos;
use eadt_nvml::GpuLost;
use eadt_nvml::set::GpuSettingError;
use eadt_schemas::v1::SettingOutcome;

use crate::decide::{OriginalValue, SettingHistory, SettingReading, SettingStep, StepVerdict, decide};
use crate::ledger::{ExternalSetting, LedgerEntry, RecordedSetting};

/// One setting of one device.
pub(crate) trait SettingKnob<O> {
    /// Returns the name of the device, as in log lines and metrics.
    fn unit(&self) -> String;
    fn read(&mut self) -> Result<SettingReading, GpuSettingError>;
    /// Returns the value to put back later, as last observed.
    fn original_setting(&self) -> O;
    fn set(&mut self, value: u32) -> Result<(), GpuSettingError>;
    fn put_back(&mut self, original: &O) -> Result<(), GpuSettingError>;
    /// Returns whether a call that failed has changed nothing, and will not.
    fn all_or_nothing(&self) -> bool;
    /// Returns whether the device may round a value. If it does not, another value was set by another program meanwhile.
    fn rounds(&self) -> bool;
    /// Returns a value in words.
    fn describe(&self, value: u32) -> String;
}

/// An action on a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeResult {
    Set,
    PutBack,
    GaveUp,
}

/// The outcome of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SettingStatus {
    pub outcome: SettingOutcome,
    pub reason: String,
    pub done: Option<ChangeResult>,
    /// The value in force, if it can be seen.
    pub value: Option<u32>,
}

/// State of a setting between two checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct EnforcementState {
    pub history: SettingHistory,
    /// The value that an earlier process left alone was compared.
    begun: bool,
    reason: String,
}

impl EnforcementState {
    /// Also leaves alone a value that another program set and earlier processes left alone, as long as it is in force: after a
    /// reset a device has another one.
    fn begin(&mut self, left_alone: Option<ExternalSetting>, reading: SettingReading, tolerance: u32) {
        let still = |left: &ExternalSetting| match (reading, left.theirs) {
            (SettingReading::Value(value), Some(theirs)) => value.abs_diff(theirs) <= tolerance,
            (SettingReading::Hidden { .. }, None) => true,
            _ => false,
        };
        if let Some(left) = left_alone.filter(still).filter(|_| !self.begun) {
            self.history.taken_away = Some(left.requested);
            "another program changed it after an earlier agent had; left as it is until another value is requested"
                .clone_into(&mut self.reason);
        }
        self.begun = true;
    }
}

/// Saves a record, and returns once it is durable.
pub(crate) type SaveRecordFn<'a, O> = dyn FnMut(&RecordedSetting<O>) -> Result<(), String> + 'a;

/// Values count as equal within `tolerance`.
pub(crate) fn apply_setting<O: OriginalValue + Clone>(
    requested: Option<u32>,
    recorded: &mut RecordedSetting<O>,
    remembered: &mut EnforcementState,
    tolerance: u32,
    knob: &mut dyn SettingKnob<O>,
    save: &mut SaveRecordFn<'_, O>,
) -> Result<SettingStatus, GpuLost> {
    let failed = |reason: String| Ok(SettingStatus { outcome: SettingOutcome::Failed, reason, ..SettingStatus::default() });
    let reading = match knob.read() {
        Ok(reading) => reading,
        Err(GpuSettingError::Lost(lost)) => return Err(lost),
        Err(error) if requested.is_some() || recorded.entry.is_some() => return failed(error.to_string()),
        Err(_) => return Ok(SettingStatus::default()),
    };
    let value = |reading| if let SettingReading::Value(value) = reading { Some(value) } else { None };
    remembered.begin(recorded.left_alone, reading, tolerance);
    let StepVerdict { mut step, outcome } = decide(requested, recorded.entry.as_ref(), reading, remembered.history, tolerance);
    if step == SettingStep::GiveUp && chaos::is_off("own-values") {
        step = requested.map_or(SettingStep::PutBack, SettingStep::Set);
    }
    let mut status = SettingStatus { outcome, reason: String::new(), done: None, value: value(reading) };
    match step {
        SettingStep::Nothing => {
            if outcome == SettingOutcome::Held {
                remembered.history.confirmed = true;
            }
            if outcome == SettingOutcome::ChangedByOthers {
                status.reason.clone_from(&remembered.reason);
            }
        }
        SettingStep::Forget => {
            if let Err(reason) = save_record(recorded, RecordedSetting { entry: None, left_alone: None }, save) {
                return failed(reason);
            }
            remembered.history = SettingHistory { restored: true, ..SettingHistory::default() };
        }
        SettingStep::GiveUp => {
            let ours = recorded.entry.as_ref().and_then(|entry| entry.ours.last().copied());
            let left = ExternalSetting { requested: requested.or(ours).unwrap_or_default(), theirs: value(reading) };
            if let Err(reason) = save_record(recorded, RecordedSetting { entry: None, left_alone: Some(left) }, save) {
                return failed(reason);
            }
            remembered.history = SettingHistory { taken_away: Some(left.requested), ..SettingHistory::default() };
            let ours = ours.map_or_else(|| "it".to_owned(), |ours| knob.describe(ours));
            remembered.reason = match value(reading) {
                Some(value) => {
                    let value = knob.describe(value);
                    format!(
                        "another program set {value} after the agent had set {ours}; left as it is until another value is requested"
                    )
                }
                None => format!("another program removed the bound of {ours}; left as it is until another value is requested"),
            };
            status.reason.clone_from(&remembered.reason);
            status.done = Some(ChangeResult::GaveUp);
        }
        SettingStep::PutBack => {
            let original = recorded.entry.as_ref().expect("there is something to put back").original.clone();
            match knob.put_back(&original) {
                Ok(()) => {}
                Err(GpuSettingError::Lost(lost)) => return Err(lost),
                Err(error) => return failed(format!("the original cannot be restored: {error}; retrying")),
            }
            chaos::reach("setting.put_back");
            status.value = match read_again(knob)? {
                Some(now) if original.value().is_some_and(|original| now.abs_diff(original) > tolerance) => {
                    let (now, original) = (knob.describe(now), knob.describe(original.value().unwrap_or_default()));
                    return failed(format!("the original of {original} was restored, but the device reports {now}; retrying"));
                }
                now => now,
            };
            if let Err(reason) = save_record(recorded, RecordedSetting { entry: None, left_alone: None }, save) {
                return failed(reason);
            }
            remembered.history = SettingHistory { restored: true, ..SettingHistory::default() };
            status.done = Some(ChangeResult::PutBack);
        }
        SettingStep::Set(wanted) => {
            let before = recorded.clone();
            let mut next =
                recorded.entry.clone().unwrap_or_else(|| LedgerEntry { original: knob.original_setting(), ours: Vec::new() });
            next.ours.retain(|ours| *ours != wanted);
            next.ours.push(wanted);
            let next = RecordedSetting { entry: Some(next), left_alone: None };
            let changes_first = chaos::is_off("original-first");
            if changes_first {
                *recorded = next;
            } else if let Err(reason) = save_record(recorded, next, save) {
                return failed(format!("{reason}; nothing is changed without a record of the original"));
            }
            chaos::reach("setting.recorded");
            match knob.set(wanted) {
                Ok(()) => chaos::reach("setting.made"),
                Err(GpuSettingError::Lost(lost)) => return Err(lost),
                Err(error) => {
                    let unsupported = matches!(error, GpuSettingError::Unsupported { .. });
                    // Without a change there is nothing to restore. If there may have been one, the record distinguishes our
                    // value from others'.
                    if before.entry.is_none() && (unsupported || knob.all_or_nothing()) {
                        *recorded = before;
                        if let Err(reason) = save(recorded) {
                            let device = knob.unit();
                            tracing::warn!(device, reason, "the record of an unchanged setting could not be removed");
                        }
                    }
                    let outcome = if unsupported { SettingOutcome::Refused } else { SettingOutcome::Failed };
                    return Ok(SettingStatus { outcome, reason: error.to_string(), done: None, value: value(reading) });
                }
            }
            if changes_first && let Err(reason) = save(recorded) {
                return failed(reason);
            }
            let entry = recorded.entry.as_mut().expect("just put there");
            let now = read_again(knob)?;
            let actual = now.filter(|now| now.abs_diff(wanted) > tolerance);
            if let Some(actual) = actual {
                // Some devices round. Rounded values of ours are ours, too.
                if knob.rounds() && Some(actual) != entry.original.value() && !entry.ours.contains(&actual) {
                    entry.ours.insert(0, actual);
                    if let Err(reason) = save(recorded) {
                        return failed(reason);
                    }
                }
                let (wanted, actual) = (knob.describe(wanted), knob.describe(actual));
                return failed(format!("the device accepted {wanted} but reports {actual}"));
            }
            if entry.ours.len() > 1 {
                entry.ours = vec![wanted];
                if let Err(reason) = save(recorded) {
                    return failed(reason);
                }
            }
            remembered.history = SettingHistory { confirmed: true, ..SettingHistory::default() };
            status.done = Some(ChangeResult::Set);
            status.value = now;
        }
    }
    Ok(status)
}

/// Records the next state of a setting.
fn save_record<O>(
    known: &mut RecordedSetting<O>,
    next: RecordedSetting<O>,
    save: &mut SaveRecordFn<'_, O>,
) -> Result<(), String> {
    save(&next)?;
    *known = next;
    Ok(())
}

/// Returns the value in force, if it can be seen.
fn read_again<O>(knob: &mut dyn SettingKnob<O>) -> Result<Option<u32>, GpuLost> {
    match knob.read() {
        Ok(SettingReading::Value(value)) => Ok(Some(value)),
        Err(GpuSettingError::Lost(lost)) => Err(lost),
        Ok(SettingReading::Hidden { .. }) | Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device on which a foreign writer, or the device itself, replaces the first value that is set.
    struct Quick {
        value: u32,
        becomes: Option<u32>,
        rounds: bool,
        /// It sets the value, and reports a failure.
        fails: bool,
    }

    const NOTHING: RecordedSetting<u32> = RecordedSetting { entry: None, left_alone: None };

    impl SettingKnob<u32> for Quick {
        fn unit(&self) -> String {
            "quick".to_owned()
        }

        fn read(&mut self) -> Result<SettingReading, GpuSettingError> {
            Ok(SettingReading::Value(self.value))
        }

        fn original_setting(&self) -> u32 {
            self.value
        }

        fn set(&mut self, value: u32) -> Result<(), GpuSettingError> {
            self.value = self.becomes.take().unwrap_or(value);
            let detail = "no answer".to_owned();
            if self.fails { Err(GpuSettingError::Failed { call: "setting", detail }) } else { Ok(()) }
        }

        fn put_back(&mut self, original: &u32) -> Result<(), GpuSettingError> {
            self.value = *original;
            Ok(())
        }

        fn all_or_nothing(&self) -> bool {
            !self.fails
        }

        fn rounds(&self) -> bool {
            self.rounds
        }

        fn describe(&self, value: u32) -> String {
            value.to_string()
        }
    }

    #[test]
    fn what_a_device_makes_of_a_value_is_ours_and_what_somebody_makes_of_it_is_not() {
        for (rounds, then, left) in [(true, SettingOutcome::Held, 100), (false, SettingOutcome::ChangedByOthers, 82)] {
            let (mut recorded, mut remembered) = (NOTHING, EnforcementState::default());
            let mut knob = Quick { value: 100, becomes: Some(82), rounds, fails: false };
            let mut next =
                |asked| apply_setting(asked, &mut recorded, &mut remembered, 0, &mut knob, &mut |_| Ok(())).unwrap().outcome;
            assert_eq!((next(Some(50)), next(Some(50))), (SettingOutcome::Failed, then), "rounds: {rounds}");
            next(None);
            assert_eq!((recorded.entry, knob.value), (None, left), "rounds: {rounds}");
        }
    }

    #[test]
    fn what_was_set_although_it_failed_is_put_back() {
        let (mut recorded, mut remembered) = (NOTHING, EnforcementState::default());
        let mut knob = Quick { value: 100, becomes: None, rounds: false, fails: true };
        let mut next =
            |asked| apply_setting(asked, &mut recorded, &mut remembered, 0, &mut knob, &mut |_| Ok(())).unwrap().outcome;
        let outcomes = [Some(50), Some(50), None].map(&mut next);
        assert_eq!(outcomes, [SettingOutcome::Failed, SettingOutcome::Held, SettingOutcome::Restored]);
        assert_eq!((recorded, knob.value), (NOTHING, 100));
    }

    #[test]
    fn what_somebody_else_set_is_left_alone_by_the_next_process_too_while_it_is_there() {
        let mut recorded = NOTHING;
        let mut knob = Quick { value: 100, becomes: None, rounds: false, fails: false };
        let mut next = |remembered: &mut EnforcementState, asked, theirs: Option<u32>| {
            knob.value = theirs.unwrap_or(knob.value);
            apply_setting(asked, &mut recorded, remembered, 0, &mut knob, &mut |_| Ok(())).unwrap().outcome
        };
        let mut first = EnforcementState::default();
        assert_eq!(next(&mut first, Some(50), None), SettingOutcome::Held);
        assert_eq!(next(&mut first, Some(50), Some(80)), SettingOutcome::ChangedByOthers);
        // It leaves, as in an upgrade, with nothing to put back.
        assert_eq!(next(&mut first, None, None), SettingOutcome::ChangedByOthers);
        let mut second = EnforcementState::default();
        assert_eq!([None, Some(50)].map(|asked| next(&mut second, asked, None)), [SettingOutcome::ChangedByOthers; 2]);
        assert_eq!(next(&mut second, Some(60), None), SettingOutcome::Held);
        assert_eq!(next(&mut second, None, None), SettingOutcome::Restored);
        // A device that was reset has no value of others.
        let mut third = EnforcementState::default();
        assert_eq!([Some(50), Some(50)].map(|asked| next(&mut third, asked, None)), [SettingOutcome::Held; 2]);
        assert_eq!(next(&mut third, Some(50), Some(80)), SettingOutcome::ChangedByOthers);
        assert_eq!(next(&mut EnforcementState::default(), Some(50), Some(100)), SettingOutcome::Held);
    }
}
