//! Columns of one figure of which a table has several: the figure of each board, and other figures and parts of these boards.

use std::cmp::Reverse;

use super::board_names::{BoardName, names_gpu, names_no_part};
use crate::units::{Unit, lowercase_words};

/// Role of one of several columns that may have the same figure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ColumnRole {
    /// The figure, of a board that no number names.
    Figure,
    /// The figure of the board of this name.
    FigureOfBoard(String),
    /// Another figure, or one of another part, than the column at this place.
    Beside(usize),
}

/// Words behind a number that is none of a board: `power 5 min`, `12 V`, `16-pin`.
const WORDS_BEHIND_SIZES: [&str; 12] = ["h", "hour", "hours", "hr", "min", "mins", "minutes", "ms", "pin", "s", "sec", "v"];
/// Words before such a number: `p95`.
const WORDS_BEFORE_SIZES: [&str; 2] = ["p", "percentile"];

/// Returns the role of each column. Columns are those of boards if their names differ by numbers only. Of several such groups,
/// the one that is by its names nearest to the whole of a board, and to its plain figure, has the figure.
pub(crate) fn find_column_roles(names: &[&str]) -> Vec<ColumnRole> {
    let names: Vec<ColumnNameTemplate<'_>> = names.iter().map(|name| ColumnNameTemplate::new(name)).collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, name) in names.iter().enumerate() {
        match groups.iter_mut().find(|group| names[group[0]].template == name.template) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    let rank = |group: &&Vec<usize>| (names[group[0]].name.distance_from_board(), Reverse(group.len()));
    let Some(chosen) = groups.iter().min_by_key(rank) else { return Vec::new() };
    let mut roles: Vec<ColumnRole> = names.iter().map(|_| ColumnRole::Beside(chosen[0])).collect();
    for (place, role) in chosen.iter().zip(roles_of_group(&names, chosen)) {
        roles[*place] = role;
    }
    roles
}

/// Returns the roles of columns whose names differ by numbers only.
fn roles_of_group(names: &[ColumnNameTemplate<'_>], group: &[usize]) -> Vec<ColumnRole> {
    let first = &names[group[0]];
    let is_alike = |a: usize, b: usize| group.iter().all(|place| names[*place].numbers[a].0 == names[*place].numbers[b].0);
    let differs = |at: &usize| group.iter().any(|place| names[*place].numbers[*at].0 != first.numbers[*at].0);
    // `cuda:0 (gpu:0)` has one number twice.
    let is_new = |at: &usize| !(0..*at).any(|before| is_alike(before, *at));
    let telling: Vec<usize> = (0..first.numbers.len()).filter(|at| differs(at) && is_new(at)).collect();
    let are_boards = !telling.is_empty() && !telling.iter().any(|at| first.is_size(*at));
    let mut known: Vec<(String, usize)> = Vec::new();
    let role = |place: &usize| {
        let board = match (group.len(), are_boards) {
            (1, _) => return ColumnRole::Figure,
            (_, true) => names[*place].board(&telling),
            (_, false) => String::new(),
        };
        if let Some((_, before)) = known.iter().find(|(have, _)| *have == board) {
            return ColumnRole::Beside(*before);
        }
        known.push((board.clone(), *place));
        if are_boards { ColumnRole::FigureOfBoard(board) } else { ColumnRole::Figure }
    };
    group.iter().map(role).collect()
}

/// The name of a column, without its unit.
struct ColumnNameTemplate<'n> {
    name: BoardName<'n>,
    /// Its words, with a sign in place of each number.
    template: Vec<String>,
    /// The numbers, and their places among the words.
    numbers: Vec<(String, usize)>,
}

impl<'n> ColumnNameTemplate<'n> {
    fn new(text: &'n str) -> Self {
        let plain = without_unit(text);
        let mut template = lowercase_words(plain);
        let mut numbers = Vec::new();
        for (place, word) in template.iter_mut().enumerate() {
            if word.bytes().all(|byte| byte.is_ascii_digit()) {
                numbers.push((std::mem::replace(word, "#".to_owned()), place));
            }
        }
        Self { name: BoardName::new(plain), template, numbers }
    }

    fn word_beside(&self, number: usize, step: isize) -> Option<&str> {
        let place = self.numbers[number].1.checked_add_signed(step)?;
        self.template.get(place).map(String::as_str)
    }

    /// Returns whether a number is one of a time, a voltage or a percentile. That of `gpu0 min` is none.
    fn is_size(&self, number: usize) -> bool {
        let is_of = |step: isize, list: &[&str]| self.word_beside(number, step).is_some_and(|word| list.contains(&word));
        let is_of_gpu = self.word_beside(number, -1).is_some_and(names_gpu);
        !is_of_gpu && (is_of(1, &WORDS_BEHIND_SIZES) || is_of(-1, &WORDS_BEFORE_SIZES))
    }

    /// Returns the name of the board that has these numbers: `gpu0`, or `psu1` of `PSU1 Input Power`.
    fn board(&self, numbers: &[usize]) -> String {
        let label = numbers.first().and_then(|first| self.word_beside(*first, -1));
        let label = label.filter(|word| *word != "#" && !names_no_part(word)).unwrap_or("gpu");
        let numbers: Vec<&str> = numbers.iter().map(|number| self.numbers[*number].0.as_str()).collect();
        format!("{label}{}", numbers.join("-"))
    }
}

/// Returns a name without the unit in brackets at its end.
fn without_unit(name: &str) -> &str {
    let name = name.trim();
    let Some(at) = name.rfind(['(', '[']).filter(|at| *at > 0 && name.ends_with([')', ']'])) else { return name };
    let inside = &name[at + 1..name.len() - 1];
    if Unit::by_name(inside).is_some() || inside.contains('%') { name[..at].trim_end() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_boards_are_distinguished_from_other_figures_of_them() {
        for (names, expected) in [
            (&["gpu.0.powerWatts", "gpu.1.powerWatts"][..], &["gpu0", "gpu1"][..]),
            (&["gpu.3.powerWatts", "gpu.5.powerWatts"], &["gpu3", "gpu5"]),
            (&["0_power", "1_power", "mean_power"], &["gpu0", "gpu1", "<0"]),
            (&["node1 gpu0 W", "node1 gpu1 W", "node2 gpu0 W"], &["node1-0", "node1-1", "node2-0"]),
            (
                &["cuda:0 (gpu:0)/power (W)/mean", "cuda:0 (gpu:0)/power (W)/max", "cuda:1 (gpu:1)/power (W)/mean"],
                &["gpu0", "<0", "gpu1"],
            ),
            (&["GPU Power [W]", "GPU FBVDD Input Power [W]", "GPU 16-pin HVPWR Power [W]"], &["", "<0", "<0"]),
            (&["GPU Chip Power Draw [W]", "Board Power Draw [W]"], &["<1", ""]),
            (
                &["PowerControl.PowerConsumedWatts", "PowerSupplies.0.PowerInputWatts", "PowerSupplies.1.PowerInputWatts"],
                &["", "<0", "<0"],
            ),
            (&["PSU1 Input Power", "PSU2 Input Power"], &["psu1", "psu2"]),
            (&["DC_NODE_POWER_W", "PCK_POWER_W", "GPU0_POWER_W", "GPU1_POWER_W"], &["<2", "<2", "gpu0", "gpu1"]),
            (&["Peak Power (Watts)", "Average Power (Watts)", "Minimum Power (Watts)"], &["<1", "", "<1"]),
            (&["Power VDD_CPU_CV", "Power VDD_GPU_SOC", "Power TOT"], &["<2", "<2", ""]),
            (&["Power VDD_IN", "Power VDD_SOC", "Power TOT"], &["", "<0", "<0"]),
            (&["Energy_0(Joules)", "Energy_0(mWh)"], &["", "<0"]),
            (&["power 1 min", "power 5 min"], &["", "<0"]),
            (&["gpu0 min power", "gpu1 min power"], &["gpu0", "gpu1"]),
            (&["power 12V", "power 3.3V"], &["", "<0"]),
            (&["gtemp", "mtemp"], &["", "<0"]),
            (&["only"], &[""]),
            (&[], &[]),
        ] {
            let shown = |role: &ColumnRole| match role {
                ColumnRole::Figure => String::new(),
                ColumnRole::FigureOfBoard(board) => board.clone(),
                ColumnRole::Beside(place) => format!("<{place}"),
            };
            let found: Vec<String> = find_column_roles(names).iter().map(shown).collect();
            assert_eq!(found, expected, "{names:?}");
        }
    }
}
