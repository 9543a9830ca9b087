//! Decides the next step for one setting of one device. Pure.
//!
//! In: the requested value, the ledger's entry, the observed value. Out: one [`SettingStep`], and the outcome. A value is
//! *ours* if the ledger has it: it is written there before it is set, so that a value which is neither ours nor the original
//! was set by another program.

use eadt_schemas::v1::SettingOutcome;

use crate::ledger::LedgerEntry;

/// The observed value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingReading {
    /// The value in force.
    Value(u32),
    /// The device does not report the value. `escaped`: it behaves as if our value were no longer in force.
    Hidden { escaped: bool },
}

/// History of a setting while its device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SettingHistory {
    /// Our value was seen in force since the device was opened: what differs now was changed, not reset with the device.
    pub confirmed: bool,
    /// The requested value when another program changed the setting: it is not set again.
    pub taken_away: Option<u32>,
    /// The original was put back, and nothing was asked since.
    pub restored: bool,
}

/// The next step for a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingStep {
    Nothing,
    /// Set this value, once the ledger names it.
    Set(u32),
    /// Put the original back, then forget it.
    PutBack,
    /// The original is in force already: forget it.
    Forget,
    /// Another program changed it: forget the original, and change nothing.
    GiveUp,
}

/// The next step, and the outcome if it succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepVerdict {
    pub step: SettingStep,
    pub outcome: SettingOutcome,
}

/// Decides about a setting whose values count as equal within `tolerance`. `asked` is within the device's bounds.
pub fn decide<O: OriginalValue>(
    requested: Option<u32>,
    entry: Option<&LedgerEntry<O>>,
    reading: SettingReading,
    history: SettingHistory,
    tolerance: u32,
) -> StepVerdict {
    let is = |step, outcome| StepVerdict { step, outcome };
    let same = |a: u32, b: u32| a.abs_diff(b) <= tolerance;
    let ours = |entry: &LedgerEntry<O>, value: u32| entry.ours.iter().any(|ours| same(*ours, value));
    let original = |entry: &LedgerEntry<O>, value: u32| entry.original.value().is_some_and(|original| same(original, value));
    let Some(requested) = requested else {
        return match (entry, reading) {
            (None, _) if history.taken_away.is_some() => is(SettingStep::Nothing, SettingOutcome::ChangedByOthers),
            (None, _) if history.restored => is(SettingStep::Nothing, SettingOutcome::Restored),
            (None, _) => is(SettingStep::Nothing, SettingOutcome::Untouched),
            (Some(entry), SettingReading::Value(value)) if original(entry, value) => {
                is(SettingStep::Forget, SettingOutcome::Restored)
            }
            (Some(entry), SettingReading::Value(value)) if !ours(entry, value) => {
                is(SettingStep::GiveUp, SettingOutcome::ChangedByOthers)
            }
            (Some(_), SettingReading::Hidden { escaped: true }) if history.confirmed => {
                is(SettingStep::GiveUp, SettingOutcome::ChangedByOthers)
            }
            (Some(_), _) => is(SettingStep::PutBack, SettingOutcome::Restored),
        };
    };
    let Some(entry) = entry else {
        let taken_away = history.taken_away.is_some_and(|then| then == requested);
        return if taken_away {
            is(SettingStep::Nothing, SettingOutcome::ChangedByOthers)
        } else {
            is(SettingStep::Set(requested), SettingOutcome::Held)
        };
    };
    match reading {
        SettingReading::Value(value) if same(value, requested) && ours(entry, value) => {
            is(SettingStep::Nothing, SettingOutcome::Held)
        }
        SettingReading::Value(value) if ours(entry, value) => is(SettingStep::Set(requested), SettingOutcome::Held),
        // Recorded, and killed before it was set; or the device was reset.
        SettingReading::Value(value) if original(entry, value) && !history.confirmed => {
            is(SettingStep::Set(requested), SettingOutcome::Held)
        }
        SettingReading::Value(_) => is(SettingStep::GiveUp, SettingOutcome::ChangedByOthers),
        SettingReading::Hidden { escaped: true } if history.confirmed => is(SettingStep::GiveUp, SettingOutcome::ChangedByOthers),
        SettingReading::Hidden { .. } if history.confirmed && entry.ours.as_slice() == [requested] => {
            is(SettingStep::Nothing, SettingOutcome::Held)
        }
        SettingReading::Hidden { .. } => is(SettingStep::Set(requested), SettingOutcome::Held),
    }
}

/// The original value of a setting, which is put back.
pub trait OriginalValue {
    /// Returns it as a value of the setting; `None` if it is no value.
    fn value(&self) -> Option<u32>;
}

impl OriginalValue for u32 {
    fn value(&self) -> Option<u32> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Events that can happen to one setting.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask(u32),
        Release,
        /// Another program sets a value.
        Other(u32),
        /// The agent dies after the ledger is written and before the step is done, or after it, and starts again.
        DieBefore,
        DieAfter,
        /// The device begins at its default; the agent opens it again.
        Reset,
        /// The next step fails at the device.
        Fails,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (1..5_u32).prop_map(|v| Event::Ask(v * 100)),
            2 => Just(Event::Release),
            1 => (5..8_u32).prop_map(|v| Event::Other(v * 100)),
            1 => Just(Event::DieBefore),
            1 => Just(Event::DieAfter),
            1 => Just(Event::Reset),
            1 => Just(Event::Fails),
        ]
    }

    const DEFAULT: u32 = 1000;

    /// A device with one setting, and an agent as `gpu.rs` runs it.
    #[derive(Debug)]
    struct World {
        value: u32,
        entry: Option<LedgerEntry<u32>>,
        history: SettingHistory,
        asked: Option<u32>,
        /// Values that may be in force once nothing is requested: the default, or the last one that another program set. After
        /// a reset of the device both are, since foreign values are lost with it.
        rightful: Vec<u32>,
    }

    impl World {
        /// One step; `die`: before (false) or after (true) the device is touched.
        fn step(&mut self, die: Option<bool>, fails: bool) -> SettingOutcome {
            let StepVerdict { step, outcome } =
                decide(self.asked, self.entry.as_ref(), SettingReading::Value(self.value), self.history, 0);
            match step {
                SettingStep::Nothing => {}
                SettingStep::Forget => self.entry = None,
                SettingStep::GiveUp => {
                    self.entry = None;
                    self.history.taken_away = self.asked.or(Some(0));
                }
                SettingStep::PutBack => {
                    if die != Some(false) && !fails {
                        self.value = self.entry.as_ref().unwrap().original;
                    }
                    if die.is_none() && !fails {
                        self.entry = None;
                        self.history = SettingHistory { restored: true, ..SettingHistory::default() };
                    }
                }
                SettingStep::Set(value) => {
                    let entry = self.entry.get_or_insert(LedgerEntry { original: self.value, ours: Vec::new() });
                    entry.ours.push(value);
                    if die != Some(false) && !fails {
                        self.value = value;
                    }
                    if die.is_none() && !fails {
                        entry.ours = vec![value];
                        self.history = SettingHistory { confirmed: true, ..SettingHistory::default() };
                    }
                }
            }
            if outcome == SettingOutcome::Held && die.is_none() && !fails {
                assert_eq!(Some(self.value), self.asked);
            }
            if die.is_some() {
                self.history = SettingHistory::default();
                // The start after a crash puts back before it hears of any intent.
                let asked = self.asked.take();
                self.step(None, false);
                self.asked = asked;
            }
            outcome
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_what_is_left_is_the_original_or_what_others_set(events in proptest::collection::vec(event(), 0..40)) {
            let mut world = World { value: DEFAULT, entry: None, history: SettingHistory::default(), asked: None, rightful: vec![DEFAULT] };
            let mut fails = false;
            for event in events {
                let mut die = None;
                match event {
                    Event::Ask(value) => world.asked = Some(value),
                    Event::Release => world.asked = None,
                    Event::Other(value) => {
                        world.value = value;
                        world.rightful = vec![value];
                    }
                    Event::DieBefore => die = Some(false),
                    Event::DieAfter => die = Some(true),
                    Event::Reset => {
                        world.value = DEFAULT;
                        world.history.confirmed = false;
                        world.rightful.push(DEFAULT);
                    }
                    Event::Fails => fails = true,
                }
                let before = world.value;
                let outcome = world.step(die, std::mem::take(&mut fails));
                if outcome == SettingOutcome::ChangedByOthers {
                    prop_assert_eq!(world.value, before, "what others set is not touched");
                }
                if let (SettingOutcome::Held, None) = (outcome, die) {
                    prop_assert!(world.entry.is_some(), "nothing is held without a record of the original");
                }
            }
            world.asked = None;
            world.step(None, false);
            prop_assert!(world.entry.is_none());
            prop_assert!(world.rightful.contains(&world.value), "{:?}", world);
        }
    }

    #[test]
    fn a_lock_that_cannot_be_read_is_set_once_and_given_up_when_clocks_pass_it() {
        #[derive(Debug, Clone, PartialEq)]
        struct Unlocked;
        impl OriginalValue for Unlocked {
            fn value(&self) -> Option<u32> {
                None
            }
        }
        let hidden = |escaped| SettingReading::Hidden { escaped };
        let entry = LedgerEntry { original: Unlocked, ours: vec![1410] };
        let confirmed = SettingHistory { confirmed: true, ..SettingHistory::default() };
        let step = |asked, entry: Option<&LedgerEntry<Unlocked>>, seen, history| decide(asked, entry, seen, history, 0).step;
        assert_eq!(step(Some(1410), None, hidden(true), SettingHistory::default()), SettingStep::Set(1410));
        assert_eq!(step(Some(1410), Some(&entry), hidden(false), confirmed), SettingStep::Nothing);
        assert_eq!(step(Some(1200), Some(&entry), hidden(false), confirmed), SettingStep::Set(1200));
        assert_eq!(step(Some(1410), Some(&entry), hidden(true), confirmed), SettingStep::GiveUp);
        // After a crash it is unknown whether the value was set.
        assert_eq!(step(Some(1410), Some(&entry), hidden(true), SettingHistory::default()), SettingStep::Set(1410));
        assert_eq!(step(None, Some(&entry), hidden(true), SettingHistory::default()), SettingStep::PutBack);
        assert_eq!(step(None, Some(&entry), hidden(false), confirmed), SettingStep::PutBack);
    }
}
