//! Columns beside that of an energy counter which state how it counts: the end of its range, and the energy of a tick.
//!
//! The counter of AMD's boards (`Energy counter` of `rocm-smi`, `energy_accumulator` of `amdsmi`) counts ticks of some 15.3 µJ. A
//! column of their resolution, or of the energy itself, distinguishes such a counter from one in joules of the same name.

use std::ops::RangeInclusive;

use crate::units::{Dimension, Unit, bracketed_unit, lowercase_words, worded_unit};

/// A column that has the energy of what another counts in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickColumn {
    /// The energy of each tick.
    Resolution(usize),
    /// The energy of all ticks.
    Energy(usize),
}

fn has(words: &[String], wanted: &str) -> bool {
    words.iter().any(|word| word == wanted)
}

fn energy_unit(name: &str) -> Option<Unit> {
    let bracketed = bracketed_unit(name).filter(|unit| unit.dimension == Dimension::Energy);
    bracketed.or_else(|| worded_unit(name, Dimension::Energy))
}

/// Returns whether the name of a column is one of a counter of ticks. Others give theirs to counters of joules.
pub(crate) fn may_count_ticks(name: &str) -> bool {
    let words = lowercase_words(name);
    let is_counter = has(&words, "accumulator") || has(&words, "counter") && has(&words, "energy");
    is_counter && energy_unit(name).is_none()
}

/// Returns the column with the energy of the ticks that the column `counter` counts; `None` if there is none.
pub(crate) fn find_tick_column(names: &[String], counter: usize) -> Option<TickColumn> {
    if !names.get(counter).is_some_and(|name| may_count_ticks(name)) {
        return None;
    }
    let find = |is_wanted: &dyn Fn(&str) -> bool| (0..names.len()).find(|index| *index != counter && is_wanted(&names[*index]));
    let is_energy = |name: &str| energy_unit(name).is_some() && has(&lowercase_words(name), "accumulated");
    let is_resolution = |name: &str| {
        let words = lowercase_words(name);
        has(&words, "resolution")
            && words.iter().all(|word| ["counter", "energy", "resolution", "u", "j", "uj"].contains(&word.as_str()))
    };
    let resolution = || find(&is_resolution).map(TickColumn::Resolution);
    find(&is_energy).map(TickColumn::Energy).or_else(resolution)
}

/// A tick of less is in joules, of more in microjoules.
const LEAST_MICROJOULES: f64 = 1e-3;

/// Returns the joules of a tick by a cell of the column of resolutions; `None` if it is no energy.
pub(super) fn joules_of_tick(value: f64, unit: Option<Unit>) -> Option<f64> {
    let joules = match unit {
        Some(unit) => (unit.dimension == Dimension::Energy).then(|| unit.to_base_unit(value))?,
        None if value < LEAST_MICROJOULES => value,
        None => value * 1e-6,
    };
    (joules > 0.0).then_some(joules)
}

/// The energy of a tick, in joules: 2^-16 J.
const TICKS: RangeInclusive<f64> = 15.0e-6..=15.6e-6;

/// Returns whether a cell of a column of resolutions is the energy of a tick, by the unit that it or its column has, or by its value.
pub(super) fn is_tick(name: &str, value: f64, unit: Option<Unit>) -> bool {
    let is_known = energy_unit(name).is_some() || unit.is_some_and(|unit| unit.dimension == Dimension::Energy);
    is_known || joules_of_tick(value, unit).is_some_and(|joules| TICKS.contains(&joules))
}

/// Returns the column of the end of a counter's range, such as `max_energy_range_uj`, and its unit.
pub(crate) fn find_range_column(names: &[String]) -> Option<(usize, Unit)> {
    names.iter().enumerate().find_map(|(index, name)| {
        let words = lowercase_words(name);
        Some(index).filter(|_| has(&words, "energy") && has(&words, "range")).zip(energy_unit(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_energy_of_ticks_is_found_beside_their_counter() {
        for (names, found) in [
            (&["Energy counter", "Accumulated Energy (uJ)"][..], Some(TickColumn::Energy(1))),
            (&["energy_accumulator", "counter_resolution"], Some(TickColumn::Resolution(1))),
            (&["Energy Counter", "resolution"], Some(TickColumn::Resolution(1))),
            (&["energy_counter", "power"], None),
            (&["energy_counter_uj", "counter_resolution"], None),
            (&["energy (J)", "counter_resolution"], None),
            (&["energy_counter", "screen_resolution"], None),
            (&["energy", "Accumulated Energy (uJ)"], None),
        ] {
            let owned: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(find_tick_column(&owned, 0), found, "{names:?}");
        }
        for (value, joules) in [(15.259, 15.259e-6), (15.3e-6, 15.3e-6)] {
            assert!((joules_of_tick(value, None).unwrap() - joules).abs() < 1e-12, "{value}");
        }
        assert_eq!(joules_of_tick(0.0, None), None);
        for (name, value, is_one) in [
            ("counter_resolution", 15.259, true),
            ("counter_resolution", 15.3e-6, true),
            ("counter_resolution_uj", 30.5, true),
            ("counter_resolution", 32.0, false),
            ("resolution", 1.0, false),
        ] {
            assert_eq!(is_tick(name, value, None), is_one, "{name} {value}");
        }
        let names = ["time", "energy_uj", "max_energy_range_uj"].map(str::to_owned);
        assert_eq!(find_range_column(&names).map(|(index, _)| index), Some(2));
    }
}
