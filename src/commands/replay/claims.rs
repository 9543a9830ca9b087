//! Workloads that claim the same board at the same time: windows of each count its energy.

use std::collections::{BTreeMap, HashMap};

use eadt_recordings::DEFAULT_POWER_GAP_SECONDS;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{GpuTelemetry, Meter};

/// A share of a board from which on it is all of it.
const WHOLE_SHARE: f64 = 0.999;
/// Claims that overlap by fewer readings may be of one workload that follows the other.
const READINGS_OF_A_HANDOVER: f64 = 2.5;
/// Boards that are named; the rest is counted.
const BOARDS_SHOWN: usize = 10;

/// A time in which a workload has a board, without a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ClaimSpan {
    from: EventTime,
    to: EventTime,
    readings: u32,
    tenure: Option<u64>,
    /// It is of all of the board.
    is_whole: bool,
    /// The workload has left the board.
    has_ended: bool,
}

impl ClaimSpan {
    fn joins(&self, next: &Self) -> bool {
        let is_same = (self.tenure, self.is_whole) == (next.tenure, next.is_whole);
        is_same && !self.has_ended && next.from.seconds_since(self.to) <= DEFAULT_POWER_GAP_SECONDS
    }

    fn join(&mut self, next: &Self) {
        self.to = self.to.max(next.to);
        self.readings += next.readings;
        self.has_ended = next.has_ended;
    }

    /// Returns the mean distance of two readings.
    fn step_seconds(&self) -> f64 {
        self.to.seconds_since(self.from) / f64::from(self.readings.max(2) - 1)
    }

    /// Returns the time that two claims have in common, if it is more than a handover and one of them is of all of the board.
    fn overlap(&self, other: &Self) -> Option<(EventTime, EventTime)> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        let least = READINGS_OF_A_HANDOVER * self.step_seconds().max(other.step_seconds());
        let is_more = from < to && to.seconds_since(from) > least;
        (is_more && (self.is_whole || other.is_whole)).then_some((from, to))
    }
}

/// What is metered, and its name.
type BoardKey = (Meter, String);

/// The boards that the events of one log name, and whose they are when.
#[derive(Debug, Default)]
pub struct BoardClaims {
    /// By what is metered and its name, and by workload.
    by_board: HashMap<BoardKey, BTreeMap<String, Vec<ClaimSpan>>>,
}

impl BoardClaims {
    /// Takes the claim of an event, which follows those before in time.
    pub fn add(&mut self, event: &GpuTelemetry) {
        let Some(workload) = event.workload.as_deref() else { return };
        let span = ClaimSpan {
            from: event.time,
            to: event.time,
            readings: 1,
            tenure: event.tenure,
            is_whole: event.share.is_none_or(|share| share >= WHOLE_SHARE),
            has_ended: event.last,
        };
        // A short name is one of its node.
        let is_unique = event.device.starts_with("GPU-");
        let node = event.node.as_deref().filter(|_| !is_unique).unwrap_or_default();
        let name = if node.is_empty() { event.device.clone() } else { format!("{node}:{}", event.device) };
        let claims = self.by_board.entry((event.meter, name)).or_default();
        match claims.get_mut(workload) {
            Some(spans) => push(spans, span),
            None => drop(claims.insert(workload.to_owned(), vec![span])),
        }
    }

    /// Takes the claims of the log's next events.
    pub fn append(&mut self, other: &mut Self) {
        for (board, claims) in other.by_board.drain() {
            let own = self.by_board.entry(board).or_default();
            for (workload, spans) in claims {
                let of_workload = own.entry(workload).or_default();
                for span in spans {
                    push(of_workload, span);
                }
            }
        }
    }
}

fn push(spans: &mut Vec<ClaimSpan>, next: ClaimSpan) {
    match spans.last_mut() {
        Some(last) if last.joins(&next) => last.join(&next),
        _ => spans.push(next),
    }
}

/// A workload, its log, and when it has a board there.
#[derive(Debug, Clone, Copy)]
struct LoggedClaims<'l> {
    workload: &'l str,
    log: &'l str,
    spans: &'l [ClaimSpan],
}

/// Two workloads on one board.
#[derive(Debug)]
struct ContestedBoard<'l> {
    board: &'l str,
    claimants: [LoggedClaims<'l>; 2],
    from: EventTime,
    to: EventTime,
}

/// Returns what is wrong with the logs if two workloads have the same board at the same time, the first two of each board.
pub fn describe_contested_boards(logs: &[(String, BoardClaims)]) -> Vec<String> {
    let mut boards: BTreeMap<&BoardKey, Vec<LoggedClaims<'_>>> = BTreeMap::new();
    for (log, claims) in logs {
        for (board, by_workload) in &claims.by_board {
            let of_log = by_workload.iter().map(|(workload, spans)| LoggedClaims { workload, log, spans });
            boards.entry(board).or_default().extend(of_log);
        }
    }
    let contested: Vec<ContestedBoard<'_>> =
        boards.iter().filter_map(|((_, board), claims)| find_contest(board, claims)).collect();
    let mut lines: Vec<String> = contested.iter().take(BOARDS_SHOWN).map(describe).collect();
    if contested.len() > BOARDS_SHOWN {
        lines.push(format!("so are {} more boards", contested.len() - BOARDS_SHOWN));
    }
    lines
}

fn find_contest<'l>(board: &'l str, claims: &[LoggedClaims<'l>]) -> Option<ContestedBoard<'l>> {
    claims.iter().enumerate().find_map(|(at, claim)| {
        let mut others = claims[..at].iter().filter(|other| other.workload != claim.workload);
        others.find_map(|other| {
            let (from, to) = first_overlap(other.spans, claim.spans)?;
            Some(ContestedBoard { board, claimants: [*other, *claim], from, to })
        })
    })
}

/// Returns the first time that two lists of spans, both in order, have in common.
fn first_overlap(a: &[ClaimSpan], b: &[ClaimSpan]) -> Option<(EventTime, EventTime)> {
    let (mut at_a, mut at_b) = (0, 0);
    while let (Some(of_a), Some(of_b)) = (a.get(at_a), b.get(at_b)) {
        if let Some(found) = of_a.overlap(of_b) {
            return Some(found);
        }
        if of_a.to < of_b.to { at_a += 1 } else { at_b += 1 }
    }
    None
}

fn describe(contested: &ContestedBoard<'_>) -> String {
    let ContestedBoard { board, claimants: [first, second], from, to } = contested;
    let logs = if first.log == second.log { first.log.to_owned() } else { format!("{} and {}", first.log, second.log) };
    format!(
        "{board} works for {} and for {} from {from} to {to} in {logs}, and not each with a share of it: the windows of both count its \
         energy; keep the events of one of them, import for each job only the rows of its own GPUs and times, or give each event its share",
        first.workload, second.workload
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings of a workload on a board, at these seconds.
    fn claims(readings: &[(&str, u32, Option<f64>)]) -> BoardClaims {
        let mut claims = BoardClaims::default();
        for (workload, second, share) in readings {
            claims.add(&GpuTelemetry {
                time: EventTime::from_seconds(f64::from(*second)),
                workload: Some((*workload).to_owned()),
                device: "GPU-1".to_owned(),
                share: *share,
                ..GpuTelemetry::default()
            });
        }
        claims
    }

    fn every_ten(workload: &str, seconds: std::ops::RangeInclusive<u32>, share: Option<f64>) -> Vec<(&str, u32, Option<f64>)> {
        seconds.step_by(10).map(|second| (workload, second, share)).collect()
    }

    #[test]
    fn two_workloads_on_one_board_are_found_and_those_that_share_or_follow_each_other_are_not() {
        for (what, a, b, is_contested) in [
            ("both at once", every_ten("lab/a", 0..=100, None), every_ten("lab/b", 0..=100, None), true),
            ("both at other seconds", every_ten("lab/a", 0..=100, None), every_ten("lab/b", 5..=105, None), true),
            ("one within the other", every_ten("lab/a", 0..=300, None), every_ten("lab/b", 100..=200, None), true),
            ("all of it and a half", every_ten("lab/a", 0..=100, None), every_ten("lab/b", 0..=100, Some(0.5)), true),
            ("a half each", every_ten("lab/a", 0..=100, Some(0.5)), every_ten("lab/b", 0..=100, Some(0.5)), false),
            ("one after the other", every_ten("lab/a", 0..=100, None), every_ten("lab/b", 100..=200, None), false),
            ("a handover of two readings", every_ten("lab/a", 0..=120, None), every_ten("lab/b", 100..=200, None), false),
            ("the same workload", every_ten("lab/a", 0..=100, None), every_ten("lab/a", 0..=100, None), false),
            (
                "in the gap of the other",
                [every_ten("lab/a", 0..=100, None), every_ten("lab/a", 400..=500, None)].concat(),
                every_ten("lab/b", 110..=390, None),
                false,
            ),
        ] {
            let found = describe_contested_boards(&[("a".to_owned(), claims(&a)), ("b".to_owned(), claims(&b))]);
            assert_eq!(!found.is_empty(), is_contested, "{what}: {found:?}");
            // In one log, in two pieces.
            let mut both = [a, b].concat();
            both.sort_by_key(|(_, second, _)| *second);
            let (first, rest) = both.split_at(both.len() / 2);
            let mut log = claims(first);
            log.append(&mut claims(rest));
            let found = describe_contested_boards(&[("a".to_owned(), log)]);
            assert_eq!(!found.is_empty(), is_contested, "{what}, one log: {found:?}");
        }
    }
}
