//! Windows of a workload in little memory: each as its difference from the one before it.
//!
//! A window has [`WORDS`] words of 64 bits, and most are those of the window before. Written are a mask of the words that differ, and of each of
//! these the bytes that do. Every figure is read back as it was given, to the last bit.

use std::collections::BTreeMap;
use std::sync::Arc;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, Meter, Origin};

use crate::reporter::ReportWindow;

/// Words of a window.
const WORDS: usize = 34;
/// Bytes of a mask with a bit for each word.
const MASK_BYTES: usize = WORDS.div_ceil(8);
/// Windows of a block: to add one, the others of its block are read.
const BLOCK: usize = 32;
/// Memory is reserved for so many more bytes, or for an eighth of the present ones.
const GROWTH: usize = 96;
/// Layouts at the end of the list among which one is looked for.
const RECENT_LAYOUTS: usize = 16;
/// Bits of a number that is not known: a NaN that no computation gives.
const UNKNOWN: u64 = u64::MAX;

/// Places of the words that a difference to the window before concerns.
const START: usize = 0;
const LAYOUT: usize = 23;
const ID: usize = 24;

const ORIGINS: [Origin; 3] = [Origin::Measured, Origin::Imported, Origin::Simulated];
const METERS: [Meter; 4] = [Meter::Gpu, Meter::Module, Meter::Node, Meter::Wall];

type Words = [u64; WORDS];

/// Sort key of windows: start and id; `None` is the usual id of that start.
type WindowKey = (EventTime, Option<Box<str>>);

/// Windows, by start and id.
#[derive(Debug, Default, Clone)]
pub(crate) struct StoredWindows {
    /// Blocks by the key of their first window, or by one before it.
    blocks: BTreeMap<WindowKey, WindowBlock>,
    layouts: Vec<Arc<Layout>>,
    /// Ids that are not the usual ones.
    ids: Vec<Box<str>>,
    count: usize,
}

/// Windows that follow each other.
#[derive(Debug, Default, Clone)]
struct WindowBlock {
    bytes: Vec<u8>,
    count: usize,
}

impl WindowBlock {
    fn words(&self) -> Vec<Words> {
        let mut all = Vec::with_capacity(self.count);
        let (mut rest, mut words) = (&self.bytes[..], [0; WORDS]);
        while !rest.is_empty() {
            read_difference(&mut rest, &mut words);
            all.push(words);
        }
        all
    }

    fn push(&mut self, before: &Words, words: &Words) {
        if self.bytes.capacity() - self.bytes.len() < GROWTH / 2 {
            self.bytes.reserve_exact(GROWTH.max(self.bytes.len() / 8));
        }
        write_difference(before, words, &mut self.bytes);
        self.count += 1;
    }

    fn of(all: &[Words]) -> Self {
        let mut block = Self::default();
        let mut before = &[0; WORDS];
        for words in all {
            block.push(before, words);
            before = words;
        }
        block.bytes.shrink_to_fit();
        block
    }
}

/// Writes which words differ from those before, and their bytes that do.
fn write_difference(before: &Words, words: &Words, bytes: &mut Vec<u8>) {
    let differences = || words.iter().zip(before).enumerate().map(|(place, (word, before))| (place, word ^ before));
    let mask = differences().fold(0_u64, |mask, (place, bits)| mask | u64::from(bits != 0) << place);
    bytes.extend(&mask.to_le_bytes()[..MASK_BYTES]);
    for (_, bits) in differences().filter(|(_, bits)| *bits != 0) {
        let (leading, trailing) = (bits.leading_zeros() / 8, bits.trailing_zeros() / 8);
        bytes.push((leading << 4 | trailing) as u8);
        bytes.extend(&bits.to_le_bytes()[trailing as usize..8 - leading as usize]);
    }
}

/// Reads a difference, and changes the words before to those of the next window.
fn read_difference(bytes: &mut &[u8], words: &mut Words) {
    let mut mask = [0; 8];
    mask[..MASK_BYTES].copy_from_slice(take(bytes, MASK_BYTES));
    let mask = u64::from_le_bytes(mask);
    for (_, word) in words.iter_mut().enumerate().filter(|(place, _)| mask >> place & 1 == 1) {
        let zeros = take(bytes, 1)[0];
        let (leading, trailing) = (usize::from(zeros >> 4), usize::from(zeros & 15));
        let mut bits = [0; 8];
        bits[trailing..8 - leading].copy_from_slice(take(bytes, 8 - leading - trailing));
        *word ^= u64::from_le_bytes(bits);
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// Returns whether an id is the one that the processor gives: it is not kept then.
fn is_usual(id: &str, workload: &str, start: EventTime) -> bool {
    let time = id.strip_prefix(workload).and_then(|rest| rest.strip_prefix("/tumbling/"));
    time.is_some_and(|time| time == start.to_string())
}

impl StoredWindows {
    /// Adds a window of a workload; one with the same start and id is replaced.
    pub fn insert(&mut self, workload: &str, id: &str, window: &ReportWindow) {
        let key = (window.start, (!is_usual(id, workload, window.start)).then(|| Box::from(id)));
        let mut words = words_of(window);
        words[LAYOUT] = window.layout.as_ref().map_or(0, |layout| self.layout_number(layout));
        let at = self.blocks.range(..=&key).next_back().or_else(|| self.blocks.first_key_value()).map(|(at, _)| at.clone());
        let Some(at) = at else {
            words[ID] = self.id_number(&key);
            self.blocks.insert(key, WindowBlock::of(&[words]));
            self.count += 1;
            return;
        };
        let mut all = self.blocks[&at].words();
        let place = all.binary_search_by(|known| self.key_of(known).cmp(&(key.0, key.1.as_deref())));
        if let Ok(place) = place {
            words[ID] = all[place][ID];
            all[place] = words;
            self.blocks.insert(at, WindowBlock::of(&all));
            return;
        }
        words[ID] = self.id_number(&key);
        self.count += 1;
        let place = place.unwrap_or_else(|place| place);
        if place < all.len() {
            all.insert(place, words);
            self.insert_blocks(at, key, &all);
        } else if all.len() < BLOCK {
            self.blocks.get_mut(&at).expect("found").push(&all[all.len() - 1], &words);
        } else {
            self.blocks.get_mut(&at).expect("found").bytes.shrink_to_fit();
            self.blocks.insert(key, WindowBlock::of(&[words]));
        }
    }

    /// Puts windows in the place of the block at `at`, in two blocks if they are too many for one.
    fn insert_blocks(&mut self, at: WindowKey, key: WindowKey, all: &[Words]) {
        self.blocks.remove(&at);
        let (first, second) = all.split_at(if all.len() > BLOCK { all.len() / 2 } else { all.len() });
        self.blocks.insert(at.min(key), WindowBlock::of(first));
        if let Some(begin) = second.first() {
            let (start, id) = self.key_of(begin);
            self.blocks.insert((start, id.map(Box::from)), WindowBlock::of(second));
        }
    }

    /// Returns every window, in order.
    pub fn to_vec(&self) -> Vec<ReportWindow> {
        let mut all = Vec::with_capacity(self.count);
        for block in self.blocks.values() {
            let (mut rest, mut words) = (&block.bytes[..], [0; WORDS]);
            while !rest.is_empty() {
                read_difference(&mut rest, &mut words);
                all.push(self.window_of(&words));
            }
        }
        all
    }

    fn key_of(&self, words: &Words) -> (EventTime, Option<&str>) {
        let id = (words[ID] as usize).checked_sub(1).map(|place| &*self.ids[place]);
        (EventTime::from_micros(words[START] as i64), id)
    }

    /// Returns the number of an id that is added, from 1 on; 0 is the usual one.
    fn id_number(&mut self, key: &WindowKey) -> u64 {
        let Some(id) = &key.1 else { return 0 };
        self.ids.push(id.clone());
        self.ids.len() as u64
    }

    /// Returns the number of a layout, from 1 on. Most windows have one of the newest.
    fn layout_number(&mut self, layout: &Layout) -> u64 {
        let first = self.layouts.len().saturating_sub(RECENT_LAYOUTS);
        if let Some(place) = self.layouts[first..].iter().rposition(|known| **known == *layout) {
            return (first + place + 1) as u64;
        }
        self.layouts.push(Arc::new(layout.clone()));
        self.layouts.len() as u64
    }

    fn window_of(&self, words: &Words) -> ReportWindow {
        let layout = (words[LAYOUT] as usize).checked_sub(1).map(|place| self.layouts[place].clone());
        ReportWindow { layout, ..window_of(words) }
    }
}

fn known_bits(value: Option<f64>) -> u64 {
    let bits = |value: f64| if value.to_bits() == UNKNOWN { f64::NAN.to_bits() } else { value.to_bits() };
    value.map_or(UNKNOWN, bits)
}

fn known_value(bits: u64) -> Option<f64> {
    (bits != UNKNOWN).then(|| f64::from_bits(bits))
}

/// Returns everything of a window but layout and id. A length replaces the end, since the next window has the same.
fn words_of(window: &ReportWindow) -> Words {
    let micros = |time: EventTime| time.micros();
    let count = |events: u64| events.min(u64::from(u32::MAX));
    let start = micros(window.start);
    let observed = window.observed.unwrap_or_default();
    let flags = [
        window.declared,
        window.contradicted_unknown.is_some(),
        window.contradicted_unknown == Some(true),
        window.has_energy,
        window.restarted,
        window.has_restart,
        window.redone,
        window.gap,
        window.shared,
        window.observed.is_some(),
        window.generation.is_some(),
    ];
    let flags = flags.iter().enumerate().fold(0, |bits, (place, flag)| bits | u64::from(*flag) << place);
    [
        start as u64,
        micros(window.end).wrapping_sub(start) as u64,
        micros(observed.0).wrapping_sub(start) as u64,
        micros(observed.1).wrapping_sub(start) as u64,
        window.run_seconds.to_bits(),
        known_bits(window.run_energy),
        known_bits(window.energy_per_sample),
        window.contradicted_seconds.to_bits(),
        window.run_coverage.to_bits(),
        known_bits(window.mean_power),
        window.devices_per_known.to_bits(),
        window.largest_gap.to_bits(),
        window.events,
        u64::from(window.ranks) << 32 | u64::from(window.gpus),
        window.unassigned.to_bits(),
        window.unassigned_progress.0.to_bits(),
        window.unassigned_progress.1.to_bits(),
        known_bits(window.samples),
        known_bits(window.tokens),
        window.progress_coverage.to_bits(),
        known_bits(window.cost),
        known_bits(window.co2),
        window.generation.unwrap_or_default(),
        0,
        0,
        known_bits(window.sm_active),
        known_bits(window.dram_active),
        known_bits(window.sm_clock_mhz),
        count(window.late) << 32 | count(window.stale),
        window.counter_difference.to_bits(),
        flags << 8 | (window.origin as u64) << 4 | window.meter as u64,
        known_bits(window.outside_energy),
        window.samples_redone.to_bits(),
        window.progress_silent.to_bits(),
    ]
}

fn window_of(words: &Words) -> ReportWindow {
    let time = |offset: u64| EventTime::from_micros((words[START] as i64).wrapping_add(offset as i64));
    let flag = |place: u32| words[30] >> (8 + place) & 1 == 1;
    ReportWindow {
        start: time(0),
        end: time(words[1]),
        observed: flag(9).then(|| (time(words[2]), time(words[3]))),
        run_seconds: f64::from_bits(words[4]),
        run_energy: known_value(words[5]),
        energy_per_sample: known_value(words[6]),
        contradicted_seconds: f64::from_bits(words[7]),
        run_coverage: f64::from_bits(words[8]),
        mean_power: known_value(words[9]),
        devices_per_known: f64::from_bits(words[10]),
        largest_gap: f64::from_bits(words[11]),
        events: words[12],
        ranks: (words[13] >> 32) as u32,
        gpus: words[13] as u32,
        unassigned: f64::from_bits(words[14]),
        unassigned_progress: (f64::from_bits(words[15]), f64::from_bits(words[16])),
        samples: known_value(words[17]),
        tokens: known_value(words[18]),
        progress_coverage: f64::from_bits(words[19]),
        cost: known_value(words[20]),
        co2: known_value(words[21]),
        generation: flag(10).then_some(words[22]),
        layout: None,
        sm_active: known_value(words[25]),
        dram_active: known_value(words[26]),
        sm_clock_mhz: known_value(words[27]),
        late: words[28] >> 32,
        stale: words[28] & u64::from(u32::MAX),
        counter_difference: f64::from_bits(words[29]),
        declared: flag(0),
        contradicted_unknown: flag(1).then(|| flag(2)),
        has_energy: flag(3),
        outside_energy: known_value(words[31]),
        restarted: flag(4),
        has_restart: flag(5),
        redone: flag(6),
        samples_redone: f64::from_bits(words[32]),
        progress_silent: f64::from_bits(words[33]),
        gap: flag(7),
        shared: flag(8),
        origin: ORIGINS[(words[30] >> 4 & 15) as usize],
        meter: METERS[(words[30] & 15) as usize],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAME: &str = "team/job";

    /// Returns a window of which every word is drawn.
    fn window(minute: i64, seed: u64) -> ReportWindow {
        let mut words = [0; WORDS];
        let mut state = seed;
        for word in &mut words {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some are unknown, some nought, some small, some a number with every bit.
            *word = [UNKNOWN, 0, state >> 60, state, 1.5_f64.to_bits()][(state >> 33) as usize % 5];
        }
        words[START] = (minute * 60_000_000) as u64;
        [words[1], words[2], words[3]] = [60_000_000, state >> 40, 60_000_000];
        words[30] = (words[30] & 0x7_ff00) | ((state % 3) << 4) | (state % 4);
        let layout = (!seed.is_multiple_of(3)).then(|| {
            let power_limit_watts = Some(200.0 + (seed % 40) as f64);
            Arc::new(Layout { power_limit_watts, ..Layout::default() })
        });
        ReportWindow { layout, ..window_of(&words) }
    }

    /// The same bits: numbers that are none are unlike themselves.
    fn same(a: &ReportWindow, b: &ReportWindow) -> bool {
        words_of(a) == words_of(b) && a.layout == b.layout
    }

    #[test]
    fn usual_ids_take_no_memory_and_others_are_distinguished() {
        let mut stored = StoredWindows::default();
        let at = EventTime::from_micros(60_000_000);
        stored.insert(NAME, &format!("{NAME}/tumbling/{at}"), &window(1, 1));
        assert!(stored.ids.is_empty());
        stored.insert(NAME, "gpus/GPU-1/tumbling/1", &window(1, 2));
        stored.insert(NAME, "gpus/GPU-0/tumbling/1", &window(1, 4));
        stored.insert(NAME, &format!("{NAME}/tumbling/{at}"), &window(1, 7));
        let all = stored.to_vec();
        assert_eq!((all.len(), stored.ids.len()), (3, 2));
        for (window_in_place, seed) in all.iter().zip([7, 4, 2]) {
            assert!(same(window_in_place, &window(1, seed)), "{window_in_place:?}");
        }
    }

    #[test]
    fn a_window_like_the_one_before_takes_few_bytes() {
        let mut stored = StoredWindows::default();
        for minute in 0..1_000 {
            let watts = 1_000.0 + (minute * 37 % 101) as f64 / 7.0;
            let known = ReportWindow { run_energy: Some(watts * 60.0), mean_power: Some(watts), ..window(minute, 3) };
            stored.insert(NAME, &format!("{NAME}/tumbling/{}", known.start), &known);
        }
        let bytes: usize = stored.blocks.values().map(|block| block.bytes.capacity()).sum();
        assert!(bytes < 1_000 * 48, "{bytes}");
    }

    proptest! {
        /// Checks that windows in any order, repeated or not, are read back as from a map.
        #[test]
        fn windows_are_read_back_as_they_came(
            added in prop::collection::vec((0..120_i64, any::<u64>(), prop::option::of(0..3_u8)), 0..300),
            in_order in any::<bool>(),
        ) {
            let mut added = added;
            if in_order {
                added.sort_by_key(|(minute, ..)| *minute);
            }
            let mut stored = StoredWindows::default();
            let mut wanted: BTreeMap<WindowKey, ReportWindow> = BTreeMap::new();
            for (minute, seed, id) in added {
                let window = window(minute, seed);
                let usual = format!("{NAME}/tumbling/{}", window.start);
                let other = id.map(|id| format!("gpus/{id}"));
                stored.insert(NAME, other.as_ref().unwrap_or(&usual), &window);
                wanted.insert((window.start, other.map(String::into_boxed_str)), window);
            }
            prop_assert_eq!(stored.count, wanted.len());
            let all = stored.to_vec();
            prop_assert_eq!(all.len(), wanted.len());
            for (window, wanted) in all.iter().zip(wanted.values()) {
                prop_assert!(same(window, wanted), "{:?} is not {:?}", window, wanted);
            }
            for block in stored.blocks.values() {
                prop_assert!((1..=BLOCK).contains(&block.count));
            }
        }
    }
}
