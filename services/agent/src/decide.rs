//! What to do about one setting of one device. Pure.
//!
//! In: what is asked, what the ledger says was changed, what is seen now. Out: one [`Step`], and where the setting
//! stands. A value is *ours* when the ledger names it: it is written there before it is set, so that a value which is
//! neither ours nor the original can only be somebody else's.

use eadt_schemas::v1::SettingOutcome;

use crate::ledger::Entry;

/// What is seen of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The value in force.
    Value(u32),
    /// The device does not tell. `escaped`: it behaves as if our value were no longer in force.
    Hidden { escaped: bool },
}

/// What is remembered of a setting while its device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Our value was seen in force since the device was opened: what differs now was changed, not reset with the device.
    pub confirmed: bool,
    /// The value that was asked for when somebody else changed the setting: it is not set again.
    pub taken_away: Option<u32>,
    /// The original was put back, and nothing was asked since.
    pub restored: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Set this value, once the ledger names it.
    Set(u32),
    /// Put the original back, then forget it.
    PutBack,
    /// The original is in force already: forget it.
    Forget,
    /// Somebody else changed it: forget the original, touch nothing.
    GiveUp,
}

/// What to do, and where the setting stands if that succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub step: Step,
    pub outcome: SettingOutcome,
}

/// Decides about a setting whose values count as equal within `tolerance`. `asked` is within the device's bounds.
pub fn decide<O: Original>(asked: Option<u32>, entry: Option<&Entry<O>>, seen: Seen, memory: Memory, tolerance: u32) -> Verdict {
    let is = |step, outcome| Verdict { step, outcome };
    let same = |a: u32, b: u32| a.abs_diff(b) <= tolerance;
    let ours = |entry: &Entry<O>, value: u32| entry.ours.iter().any(|ours| same(*ours, value));
    let original = |entry: &Entry<O>, value: u32| entry.original.value().is_some_and(|original| same(original, value));
    let Some(asked) = asked else {
        return match (entry, seen) {
            (None, _) if memory.taken_away.is_some() => is(Step::Nothing, SettingOutcome::ChangedByOthers),
            (None, _) if memory.restored => is(Step::Nothing, SettingOutcome::Restored),
            (None, _) => is(Step::Nothing, SettingOutcome::Untouched),
            (Some(entry), Seen::Value(value)) if original(entry, value) => is(Step::Forget, SettingOutcome::Restored),
            (Some(entry), Seen::Value(value)) if !ours(entry, value) => is(Step::GiveUp, SettingOutcome::ChangedByOthers),
            (Some(_), Seen::Hidden { escaped: true }) if memory.confirmed => is(Step::GiveUp, SettingOutcome::ChangedByOthers),
            (Some(_), _) => is(Step::PutBack, SettingOutcome::Restored),
        };
    };
    let Some(entry) = entry else {
        let taken_away = memory.taken_away.is_some_and(|then| then == asked);
        return if taken_away {
            is(Step::Nothing, SettingOutcome::ChangedByOthers)
        } else {
            is(Step::Set(asked), SettingOutcome::Held)
        };
    };
    match seen {
        Seen::Value(value) if same(value, asked) && ours(entry, value) => is(Step::Nothing, SettingOutcome::Held),
        Seen::Value(value) if ours(entry, value) => is(Step::Set(asked), SettingOutcome::Held),
        // Recorded, and killed before it was set; or the device was reset.
        Seen::Value(value) if original(entry, value) && !memory.confirmed => is(Step::Set(asked), SettingOutcome::Held),
        Seen::Value(_) => is(Step::GiveUp, SettingOutcome::ChangedByOthers),
        Seen::Hidden { escaped: true } if memory.confirmed => is(Step::GiveUp, SettingOutcome::ChangedByOthers),
        Seen::Hidden { .. } if memory.confirmed && entry.ours.as_slice() == [asked] => is(Step::Nothing, SettingOutcome::Held),
        Seen::Hidden { .. } => is(Step::Set(asked), SettingOutcome::Held),
    }
}

/// What is put back.
pub trait Original {
    /// As a value of the setting; `None`: it was not a value.
    fn value(&self) -> Option<u32>;
}

impl Original for u32 {
    fn value(&self) -> Option<u32> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What can happen to one setting.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask(u32),
        Release,
        /// Somebody else sets a value.
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
        entry: Option<Entry<u32>>,
        memory: Memory,
        asked: Option<u32>,
        /// What may be in force once nothing is asked: the default, or what somebody else set last. After a reset of the
        /// device either: what others had set went with it.
        rightful: Vec<u32>,
    }

    impl World {
        /// One step; `die`: before (false) or after (true) the device is touched.
        fn step(&mut self, die: Option<bool>, fails: bool) -> SettingOutcome {
            let Verdict { step, outcome } = decide(self.asked, self.entry.as_ref(), Seen::Value(self.value), self.memory, 0);
            match step {
                Step::Nothing => {}
                Step::Forget => self.entry = None,
                Step::GiveUp => {
                    self.entry = None;
                    self.memory.taken_away = self.asked.or(Some(0));
                }
                Step::PutBack => {
                    if die != Some(false) && !fails {
                        self.value = self.entry.as_ref().unwrap().original;
                    }
                    if die.is_none() && !fails {
                        self.entry = None;
                        self.memory = Memory { restored: true, ..Memory::default() };
                    }
                }
                Step::Set(value) => {
                    let entry = self.entry.get_or_insert(Entry { original: self.value, ours: Vec::new() });
                    entry.ours.push(value);
                    if die != Some(false) && !fails {
                        self.value = value;
                    }
                    if die.is_none() && !fails {
                        entry.ours = vec![value];
                        self.memory = Memory { confirmed: true, ..Memory::default() };
                    }
                }
            }
            if outcome == SettingOutcome::Held && die.is_none() && !fails {
                assert_eq!(Some(self.value), self.asked);
            }
            if die.is_some() {
                self.memory = Memory::default();
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
            let mut world = World { value: DEFAULT, entry: None, memory: Memory::default(), asked: None, rightful: vec![DEFAULT] };
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
                        world.memory.confirmed = false;
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
        impl Original for Unlocked {
            fn value(&self) -> Option<u32> {
                None
            }
        }
        let hidden = |escaped| Seen::Hidden { escaped };
        let entry = Entry { original: Unlocked, ours: vec![1410] };
        let confirmed = Memory { confirmed: true, ..Memory::default() };
        let step = |asked, entry: Option<&Entry<Unlocked>>, seen, memory| decide(asked, entry, seen, memory, 0).step;
        assert_eq!(step(Some(1410), None, hidden(true), Memory::default()), Step::Set(1410));
        assert_eq!(step(Some(1410), Some(&entry), hidden(false), confirmed), Step::Nothing);
        assert_eq!(step(Some(1200), Some(&entry), hidden(false), confirmed), Step::Set(1200));
        assert_eq!(step(Some(1410), Some(&entry), hidden(true), confirmed), Step::GiveUp);
        // After a crash nobody knows whether it was set.
        assert_eq!(step(Some(1410), Some(&entry), hidden(true), Memory::default()), Step::Set(1410));
        assert_eq!(step(None, Some(&entry), hidden(true), Memory::default()), Step::PutBack);
        assert_eq!(step(None, Some(&entry), hidden(false), confirmed), Step::PutBack);
    }
}
