//! Columns that are not mapped, but distinguish the boards of a table: rows of several boards would be averaged into one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use eadt_schemas::EventTime;

use crate::absent::is_absent_text;
use crate::recording::SourceId;
use crate::rounds::{
    MOST_ROWS_OF_TEXTS, MOST_TEXTS, find_rounds, find_unnamed_rounds, may_name_board, names_a_state, names_a_step,
};
use crate::units::lowercase_words;

/// Words of columns that name a board.
const BOARD_WORDS: [&str; 28] = [
    "gpu",
    "device",
    "card",
    "board",
    "accelerator",
    "index",
    "idx",
    "uuid",
    "serial",
    "bus",
    "minor",
    "ordinal",
    "slot",
    "rank",
    "id",
    "dev",
    "bdf",
    "chip",
    "die",
    "hpu",
    "npu",
    "pci",
    "sensor",
    "socket",
    "tile",
    "topic",
    "tpu",
    "xpu",
];
/// Words of columns that name a node, or what else a meter of more than a board may be of.
const NODE_WORDS: [&str; 13] =
    ["host", "hostname", "node", "nodename", "server", "machine", "instance", "nodelist", "fqdn", "ip", "outlet", "pdu", "plug"];
/// Words of both lists that may also name a state or another reading: each text has to be one that may name a board.
const LOOSE_WORDS: [&str; 10] = ["chip", "die", "ip", "outlet", "pci", "plug", "sensor", "socket", "tile", "topic"];
/// Words whose numbers may be temperatures, and the greatest number that names a board.
const WORDS_OF_TEMPERATURES: [&str; 4] = ["chip", "die", "sensor", "tile"];
const MOST_BESIDE_TEMPERATURES: f64 = 15.0;
/// Words of columns that name a rank of a job.
const RANK_WORDS: [&str; 2] = ["rank", "worker"];
/// Words that may be beside those.
const WORDS_BESIDE_RANKS: [&str; 14] =
    ["ddp", "dp", "global", "id", "idx", "index", "local", "mpi", "no", "node", "num", "number", "process", "world"];
/// Words that may be beside them.
const FURTHER_WORDS: [&str; 11] =
    ["name", "number", "num", "no", "local", "physical", "cuda", "nvidia", "entity", "meter", "module"];
/// First words of board model names.
const MAKERS: [&str; 7] = ["NVIDIA", "Tesla", "GeForce", "Quadro", "AMD", "Instinct", "Intel"];

/// Rows of a source that are looked at.
const MOST_ROWS: usize = 100_000;
/// More values name no boards.
const MOST_VALUES: usize = 1024;

/// The things that a column distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdScope {
    Board,
    Node,
}

/// Returns the words of the name of a column, in small letters.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_small = false;
    for character in name.chars() {
        if !character.is_alphanumeric() || was_small && character.is_uppercase() {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if character.is_alphanumeric() {
            word.extend(character.to_lowercase());
        }
        was_small = character.is_lowercase();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Returns the scope within which the values of a column of this name are distinct.
fn scope_of_name(name: &str) -> Option<IdScope> {
    let words = words_of_name(name);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let is_known =
        |word: &String| [&BOARD_WORDS[..], &NODE_WORDS, &FURTHER_WORDS].iter().any(|list| list.contains(&word.as_str()));
    if words.is_empty() || !words.iter().all(is_known) {
        return None;
    }
    if has(&NODE_WORDS) {
        return Some(IdScope::Node);
    }
    has(&BOARD_WORDS).then_some(IdScope::Board)
}

/// Returns the word of a name of a board or node that has no other such word than one that may also be of a state.
fn loose_word(name: &str) -> Option<&'static str> {
    let words = words_of_name(name);
    let is_loose = |word: &String| LOOSE_WORDS.contains(&word.as_str());
    let is_firm =
        |word: &String| !is_loose(word) && (BOARD_WORDS.contains(&word.as_str()) || NODE_WORDS.contains(&word.as_str()));
    if words.iter().any(is_firm) {
        return None;
    }
    LOOSE_WORDS.into_iter().find(|loose| words.iter().any(|word| word == loose))
}

/// Returns whether a text may name a board in a column of which a loose word is the name.
fn may_name_loosely(word: &str, text: &str) -> bool {
    if is_bus_id(text) || text.parse::<IpAddr>().is_ok() || is_unique_id(text) {
        return true;
    }
    let is_number_of_board = text.parse::<f64>().is_ok_and(|number| {
        !(matches!(word, "ip" | "pci") || WORDS_OF_TEMPERATURES.contains(&word) && number > MOST_BESIDE_TEMPERATURES)
    });
    // A topic of a broker has a digit or a separator; a topic of a text has not.
    let is_topic = || word != "topic" || text.contains(|letter: char| letter.is_ascii_digit() || "_/.".contains(letter));
    may_name_board(text) && if text.parse::<f64>().is_ok() { is_number_of_board } else { is_topic() }
}

/// A column that may distinguish boards.
#[derive(Debug)]
struct IdColumn {
    column: usize,
    /// `None` if the values and not the name decide it.
    scope: Option<IdScope>,
    /// All values so far identify boards, in any column.
    has_ids: bool,
    /// The name is one of a state, another reading or a time.
    is_of_states: bool,
    /// The word of the name that names boards, if it may also be of a state.
    loose: Option<&'static str>,
    /// Rows that are looked at, of all sources.
    noted: usize,
    values: HashMap<String, u16>,
    rows: BTreeMap<SourceId, Vec<(EventTime, u64, u16)>>,
}

/// The columns of a table that may distinguish boards, with their values in the rows of each source.
#[derive(Debug, Default)]
pub(crate) struct IdColumns {
    candidates: Vec<IdColumn>,
}

/// Rows of one source that are of several boards by a column.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SeveralBoards {
    pub(crate) source: SourceId,
    pub(crate) column: usize,
    pub(crate) scope: IdScope,
    /// The first row of another board than the first.
    pub(crate) line: u64,
    /// Number of boards.
    pub(crate) boards: usize,
}

impl IdColumn {
    fn new(column: usize, scope: Option<IdScope>) -> Self {
        let (values, rows) = (HashMap::new(), BTreeMap::new());
        Self { column, scope, has_ids: true, is_of_states: false, loose: None, noted: 0, values, rows }
    }

    /// Returns whether neither the name nor a value by itself shows that it names boards: only what all rows have together may.
    const fn is_of_texts(&self) -> bool {
        self.scope.is_none() && !self.has_ids
    }

    /// Returns the first source in which this finds the line of a second board, and the number of boards. It is asked of sources
    /// with more than one value only.
    fn find_in_sources(
        &self,
        find: impl Fn(SourceId, &[(EventTime, u64, u16)]) -> Option<(u64, usize)>,
    ) -> Option<SeveralBoards> {
        let has_several = |rows: &[(EventTime, u64, u16)]| rows.iter().any(|row| row.2 != rows[0].2);
        self.rows.iter().filter(|(_, rows)| has_several(rows)).find_map(|(source, rows)| {
            let (line, boards) = find(*source, rows)?;
            Some(SeveralBoards { source: *source, column: self.column, scope: IdScope::Board, line, boards })
        })
    }

    /// Takes in whether a text may be the name of a board; returns whether the column may still hold such names.
    fn note_text(&mut self, text: &str) -> bool {
        self.has_ids &= is_id(text);
        if let Some(word) = self.loose {
            return self.has_ids || may_name_loosely(word, text);
        }
        self.scope.is_some() || self.has_ids || !self.is_of_states && may_name_board(text)
    }
}

/// Returns whether a column has the rank of each row, such as `local_rank`.
pub(crate) fn names_a_rank(name: &str) -> bool {
    let words = lowercase_words(name);
    let has = |list: &[&str], word: &String| list.contains(&word.as_str());
    words.iter().any(|word| has(&RANK_WORDS, word))
        && words.iter().all(|word| has(&RANK_WORDS, word) || has(&WORDS_BESIDE_RANKS, word))
}

impl IdColumns {
    /// `names` of the columns that are not mapped, with their index; a name is empty if the table has no header.
    pub(crate) fn new<'n>(names: impl Iterator<Item = (usize, &'n str)>) -> Self {
        let candidate = |(column, name): (usize, &str)| {
            let plain = name.split(['[', '(']).next().unwrap_or(name);
            let scope = scope_of_name(plain);
            IdColumn {
                is_of_states: names_a_state(name) || names_a_step(plain),
                loose: scope.and_then(|_| loose_word(plain)),
                ..IdColumn::new(column, scope)
            }
        };
        Self { candidates: names.map(candidate).collect() }
    }

    /// Returns the columns among these that name the ranks of a job.
    pub(crate) fn of_ranks<'n>(names: impl Iterator<Item = (usize, &'n str)>) -> Self {
        let candidate = |(column, _): (usize, &str)| IdColumn::new(column, Some(IdScope::Board));
        Self { candidates: names.filter(|(_, name)| names_a_rank(name)).map(candidate).collect() }
    }

    /// Notes the ids in a row of a source.
    pub(crate) fn observe<'c>(&mut self, source: SourceId, time: EventTime, line: u64, cell: impl Fn(usize) -> Option<&'c str>) {
        self.candidates.retain_mut(|candidate| {
            let Some(text) = cell(candidate.column).map(str::trim).filter(|text| !text.is_empty()) else { return true };
            if (candidate.scope.is_none() || candidate.loose.is_some()) && is_absent_text(text) {
                return true;
            }
            let key = spelling_key(text);
            let known = candidate.values.get(key.as_ref()).copied();
            if known.is_none() && !candidate.note_text(text) {
                return false;
            }
            let (most_rows, most_values) =
                if candidate.is_of_texts() { (MOST_ROWS_OF_TEXTS, MOST_TEXTS) } else { (usize::MAX, MOST_VALUES) };
            let rows = candidate.rows.entry(source).or_default();
            if rows.len() >= MOST_ROWS || candidate.noted >= most_rows {
                return true;
            }
            let next = candidate.values.len();
            let value = match known {
                Some(value) => value,
                None if next >= most_values => return false,
                None => *candidate.values.entry(key.into_owned()).or_insert(next as u16),
            };
            rows.push((time, line, value));
            candidate.noted += 1;
            true
        });
    }

    /// Returns the first source whose rows take turns by a column of one of these scopes.
    pub(crate) fn several_boards(&self, scopes: &[IdScope]) -> Option<SeveralBoards> {
        let found = self.candidates.iter().filter(|candidate| !candidate.is_of_texts()).filter_map(|candidate| {
            let scope = candidate.scope.unwrap_or(IdScope::Board);
            let is_numbers = candidate.values.keys().all(|text| text.parse::<f64>().is_ok());
            let takes_turns = |(source, rows): (&SourceId, &Vec<(EventTime, u64, u16)>)| {
                let (line, boards) = find_alternation(rows, is_numbers)?;
                Some(SeveralBoards { source: *source, column: candidate.column, scope, line, boards })
            };
            candidate.rows.iter().find_map(takes_turns).filter(|_| scopes.contains(&scope))
        });
        found.min_by_key(|found| (found.scope == IdScope::Board, found.column))
    }

    /// Returns the first source whose rows take turns in rounds by a column of boards that `several_boards` of these scopes
    /// leaves out, as each may repeat what its node draws. Power must have another level at one value than at another. `watts_of`
    /// has the power of a source by its lines.
    pub(crate) fn boards_in_rounds(
        &self,
        scopes: &[IdScope],
        watts_of: impl Fn(SourceId) -> HashMap<u64, f64>,
    ) -> Option<SeveralBoards> {
        let is_open = |candidate: &&IdColumn| {
            let is_left_out = !scopes.contains(&candidate.scope.unwrap_or(IdScope::Board));
            candidate.values.len() > 1 && !candidate.is_of_texts() && is_left_out
        };
        self.candidates.iter().filter(is_open).find_map(|candidate| {
            let is_numbers = candidate.values.keys().all(|text| text.parse::<f64>().is_ok());
            candidate.find_in_sources(|source, rows| find_rounds(rows, &watts_of(source), is_numbers))
        })
    }

    /// Like [`Self::boards_in_rounds`], by a column whose name shows nothing: the job's own phases may alternate as well.
    pub(crate) fn unnamed_in_rounds(&self, watts_of: impl Fn(SourceId) -> HashMap<u64, f64>) -> Option<SeveralBoards> {
        let is_open = |candidate: &&IdColumn| candidate.values.len() > 1 && candidate.is_of_texts();
        self.candidates.iter().filter(is_open).find_map(|candidate| {
            let mut numbers = Some(vec![0; candidate.values.len()]);
            for (text, value) in &candidate.values {
                let number = text.parse::<i64>().ok();
                numbers = numbers.zip(number).map(|(mut numbers, number)| {
                    numbers[usize::from(*value)] = number;
                    numbers
                });
            }
            candidate.find_in_sources(|source, rows| find_unnamed_rounds(rows, &watts_of(source), numbers.as_deref()))
        })
    }
}

/// Returns a UUID as the driver writes it, with small letters, and any other text as it is: some tools print capitals.
pub(crate) fn driver_uuid(text: &str) -> Cow<'_, str> {
    const PREFIX: &str = "GPU-";
    const DIGITS: usize = 32;
    let is_uuid = text.split_at_checked(PREFIX.len()).filter(|(prefix, rest)| {
        prefix.eq_ignore_ascii_case(PREFIX)
            && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && rest.bytes().filter(u8::is_ascii_hexdigit).count() == DIGITS
    });
    is_uuid.map_or(Cow::Borrowed(text), |(_, rest)| Cow::Owned(format!("{PREFIX}{}", rest.to_ascii_lowercase())))
}

/// Returns a PCI bus id as nvidia-smi writes it, `00000000:0F:00.0`: other programs write it small, or with a shorter domain.
pub(crate) fn plain_bus_id(text: &str) -> String {
    let id = text.to_ascii_uppercase();
    match id.split(':').collect::<Vec<_>>().as_slice() {
        [domain, bus, place] if domain.len() < 8 => format!("{domain:0>8}:{bus}:{place}"),
        [bus, place] => format!("00000000:{bus}:{place}"),
        _ => id,
    }
}

/// Returns whether a text is a PCI bus id, with its domain or without: `0000:0f:00.0`.
fn is_bus_id(text: &str) -> bool {
    let is_hexadecimal =
        |part: &str, lengths: [usize; 3]| lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some((front, function)) = text.rsplit_once('.') else { return false };
    let mut parts = front.rsplit(':');
    let ends = [parts.next(), parts.next()].iter().all(|part| part.is_some_and(|part| is_hexadecimal(part, [2; 3])));
    let domain = parts.next();
    let is_whole = ends && parts.next().is_none() && is_hexadecimal(function, [1; 3]);
    is_whole && domain.is_none_or(|domain| is_hexadecimal(domain, [4, 5, 8]))
}

/// Returns whether a text is a UUID of 8, 4, 4, 4 and 12 hexadecimal digits.
pub(crate) fn is_bare_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Returns whether a text is a UUID of zeros only, with `GPU-` or `MIG-` before it or without: a placeholder that several boards
/// may have.
pub(crate) fn is_zero_uuid(text: &str) -> bool {
    const DIGITS: usize = 32;
    let text = text.trim();
    let has_prefix = text.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("GPU-") || start.eq_ignore_ascii_case("MIG-"));
    let digits = if has_prefix { &text[4..] } else { text };
    digits.bytes().all(|byte| matches!(byte, b'0' | b'-')) && digits.bytes().filter(|byte| *byte == b'0').count() == DIGITS
}

/// Returns whether a name is one of a board anywhere, such as a UUID, and not only in its node.
pub(crate) fn is_unique_id(text: &str) -> bool {
    let hexadecimal = text.chars().filter(char::is_ascii_hexdigit).count();
    (text.starts_with("GPU-") || text.starts_with("MIG-")) && text.len() > 8
        || text.len() >= 16 && hexadecimal * 4 >= text.len() * 3 && !is_bus_id(text)
}

/// Returns a text that is the same for all spellings of one name. Spellings may differ in case, in the number of blanks, as `0`
/// and `0.0` of joined tables, in the length of a bus id's domain, and in `GPU-` before a UUID.
pub(crate) fn spelling_key(name: &str) -> Cow<'_, str> {
    if is_bus_id(name) {
        return Cow::Owned(plain_bus_id(name).to_ascii_lowercase());
    }
    let uuid = name.get(..4).filter(|prefix| prefix.eq_ignore_ascii_case("GPU-")).map(|prefix| &name[prefix.len()..]);
    if let Some(uuid) = uuid.filter(|uuid| is_bare_uuid(uuid)) {
        return spelling_key_of_text(uuid);
    }
    let whole = name.strip_suffix(".0").filter(|whole| !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit()));
    spelling_key_of_text(whole.unwrap_or(name))
}

/// Like [`spelling_key`], of names among which `1.0` and `1` are two, as there is a `1.1`.
pub(crate) fn spelling_key_of_text(name: &str) -> Cow<'_, str> {
    let has_plain_blanks = !name.contains(|letter: char| letter.is_whitespace() && letter != ' ') && !name.contains("  ");
    if has_plain_blanks && !name.contains(char::is_uppercase) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" "))
}

/// Returns whether the values of a column with this name identify boards.
pub(crate) fn names_boards(column: &str) -> bool {
    scope_of_name(column) == Some(IdScope::Board)
}

/// Returns whether a text identifies a board in whatever column it is: a UUID, or the name of a model.
fn is_id(text: &str) -> bool {
    let is_uuid = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).is_some_and(|rest| rest.len() >= 8);
    is_uuid || MAKERS.iter().any(|maker| text.starts_with(maker))
}

/// Returns the line of the first row of a second value, and the number of values, if rows of several values take turns over
/// time.
///
/// A source that moves from one value to the next has been moved: it is one board at a time. Numbers may be anything, such as
/// a utilization: they must go round and round.
pub(crate) fn find_alternation(rows: &[(EventTime, u64, u16)], is_numbers: bool) -> Option<(u64, usize)> {
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    for (_, _, value) in &rows {
        *counts.entry(*value).or_default() += 1;
    }
    let boards = counts.len();
    if boards < 2 || rows.len() < 2 * boards {
        return None;
    }
    let changes = rows.windows(2).filter(|pair| pair[0].2 != pair[1].2).count();
    if changes < 3 || changes * 4 < rows.len() {
        return None;
    }
    if is_numbers {
        let (fewest, most) = (counts.values().min()?, counts.values().max()?);
        let mut followers: BTreeMap<(u16, u16), usize> = BTreeMap::new();
        for pair in rows.windows(2) {
            *followers.entry((pair[0].2, pair[1].2)).or_default() += 1;
        }
        let usual: usize = counts
            .keys()
            .map(|value| followers.range((*value, 0)..=(*value, u16::MAX)).map(|(_, count)| *count).max().unwrap_or(0))
            .sum();
        if 2 * most > 3 * fewest + 4 || usual * 5 < (rows.len() - 1) * 4 {
            return None;
        }
    }
    let first = rows.iter().min_by_key(|(_, line, _)| *line)?.2;
    let (_, line, _) = rows.iter().filter(|(_, _, value)| *value != first).min_by_key(|(_, line, _)| *line)?;
    Some((*line, boards))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_columns_show_what_they_distinguish() {
        for (name, scope) in [
            ("gpu_id", Some(IdScope::Board)),
            ("gpuId", Some(IdScope::Board)),
            ("GPU", Some(IdScope::Board)),
            ("index", Some(IdScope::Board)),
            ("pci.bus_id", Some(IdScope::Board)),
            ("local_rank", Some(IdScope::Board)),
            ("device name", Some(IdScope::Board)),
            ("host", Some(IdScope::Node)),
            ("node_id", Some(IdScope::Node)),
            ("Hostname", Some(IdScope::Node)),
            ("gpu_temp", None),
            ("gpu utilization", None),
            ("name", None),
            ("node_power", None),
            ("request_id", None),
            ("", None),
            ("bdf", Some(IdScope::Board)),
            ("pci", Some(IdScope::Board)),
            ("entity_id", Some(IdScope::Board)),
            ("module_id", Some(IdScope::Board)),
            ("meter_id", Some(IdScope::Board)),
            ("sensor", Some(IdScope::Board)),
            ("tile", Some(IdScope::Board)),
            ("outlet", Some(IdScope::Node)),
            ("fqdn", Some(IdScope::Node)),
            ("ip", Some(IdScope::Node)),
            ("meter", None),
            ("module", None),
            ("tile_power", None),
        ] {
            assert_eq!(scope_of_name(name), scope, "{name}");
        }
    }

    #[test]
    fn new_words_of_boards_take_no_states_and_readings() {
        for (name, texts, may) in [
            ("plug", ["on", "off"], false),
            ("plug", ["1", "2"], true),
            ("outlet", ["23", "24"], true),
            ("pci", ["4", "1"], false),
            ("pci", ["0000:17:00.0", "0000:65:00.0"], true),
            ("die", ["45", "46"], false),
            ("die", ["0", "1"], true),
            ("sensor", ["45.5", "46"], false),
            ("sensor", ["PSU1", "PSU2"], true),
            ("socket", ["0", "1"], true),
            ("ip", ["10.0.0.1", "10.120.130.140"], true),
            ("topic", ["math", "law"], false),
            ("topic", ["rack/pdu1", "rack/pdu2"], true),
            ("chip_id", ["45", "46"], true),
            ("gpu", ["on", "off"], true),
        ] {
            let mut columns = IdColumns::new(std::iter::once((0, name)));
            for (line, text) in (2..).zip(texts) {
                columns.observe(0, EventTime::from_seconds(line as f64), line, |_| Some(text));
            }
            assert_eq!(columns.candidates.len(), usize::from(may), "{name}: {texts:?}");
        }
    }

    #[test]
    fn a_bus_id_has_one_spelling() {
        for (text, expected) in [
            ("00000000:0F:00.0", "00000000:0F:00.0"),
            ("00000000:0f:00.0", "00000000:0F:00.0"),
            ("0000:0f:00.0", "00000000:0F:00.0"),
            ("0F:00.0", "00000000:0F:00.0"),
            ("00010000:0F:00.0", "00010000:0F:00.0"),
            ("none", "NONE"),
        ] {
            assert_eq!(plain_bus_id(text), expected, "{text}");
            assert_eq!(is_bus_id(text), text != "none", "{text}");
        }
        for text in ["10:00:00.5", "gpu:0f:00.0", "0f:00", "1.1", "0000:0000:0f:00.0"] {
            assert!(!is_bus_id(text), "{text}");
        }
    }

    #[test]
    fn a_uuid_is_unique_and_a_bus_id_is_one_of_its_node() {
        for (text, is_unique) in [
            ("GPU-6d5c0ac5-74d7", true),
            ("6d5c0ac5-74d7-3130-46f1-e93ed57f469a", true),
            ("0x1234567890abcdef", true),
            ("00000000:17:00.0", false),
            ("0000:17:00.0", false),
            ("1320221000001", false),
        ] {
            assert_eq!(is_unique_id(text), is_unique, "{text}");
        }
    }

    #[test]
    fn boards_take_turns_and_what_was_moved_does_not() {
        let found = |value: fn(u32) -> u32, time: fn(u32) -> u32, rows: u32, is_numbers: bool| {
            let row = |row| (EventTime::from_seconds(f64::from(time(row))), u64::from(row) + 2, value(row) as u16);
            find_alternation(&(0..rows).map(row).collect::<Vec<_>>(), is_numbers)
        };
        let own = |row| row;
        for (what, got, expected) in [
            ("two boards in turn", found(|row| row % 2, own, 20, true), Some((3, 2))),
            ("eight", found(|row| row % 8, own, 40, true), Some((3, 8))),
            ("eight at one time", found(|row| row % 8, |row| row / 8, 40, true), Some((3, 8))),
            ("one file behind the other", found(|row| row / 20, |row| row % 20, 40, true), Some((22, 2))),
            ("nodes in turn, two rows each", found(|row| row / 2 % 2, own, 40, false), Some((4, 2))),
            ("one board", found(|_| 7, own, 20, true), None),
            ("moved once", found(|row| row / 10, own, 20, false), None),
            ("moved there and back", found(|row| row / 10 % 2, own, 30, false), None),
            ("a number of each row", found(|row| row, own, 20, true), None),
            ("a utilization", found(|row| row * row * 7 % 31 % 5, own, 200, true), None),
        ] {
            assert_eq!(got, expected, "{what}");
        }
    }
}
