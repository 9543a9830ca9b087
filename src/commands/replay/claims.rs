//! Workloads that claim the same board at the same time: windows of each count its energy.

use std::collections::{BTreeMap, HashMap};

use eadt_recordings::DEFAULT_POWER_GAP_SECONDS;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{GpuTelemetry, Meter};

/// A share of a board from which on it is all of it.
const WHOLE_SHARE: f64 = 0.999;
/// Claims that overlap by fewer readings may be of one workload that follows the other.
const READINGS_OF_A_HANDOVER: f64 = 2.5;
/// Independent of the reading interval: the log of a job that has ended may continue for so long.
const HANDOVER_SECONDS: f64 = 10.0;
/// Times of claims that are kept of one log: a bound of memory.
const MOST_SPANS: usize = 1_000_000;
/// Boards that are named; the rest is counted.
const BOARDS_SHOWN: usize = 10;

/// A time in which a workload has a board, without a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ClaimSpan {
    from: EventTime,
    to: EventTime,
    readings: u32,
    /// The workload has left the board.
    has_ended: bool,
}

impl ClaimSpan {
    fn joins(&self, next: &Self) -> bool {
        !self.has_ended && next.from.seconds_since(self.to) <= DEFAULT_POWER_GAP_SECONDS
    }

    fn join(&mut self, next: &Self) {
        self.to = self.to.max(next.to);
        self.readings += next.readings;
        self.has_ended = next.has_ended;
    }

    /// Returns the mean distance of two readings.
    fn step_seconds(&self) -> f64 {
        self.seconds() / f64::from(self.readings.max(2) - 1)
    }

    fn seconds(&self) -> f64 {
        self.to.seconds_since(self.from)
    }

    /// Returns the time that two claims have in common, if it is more than a handover.
    fn overlap(&self, other: &Self) -> Option<(EventTime, EventTime)> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        let readings = READINGS_OF_A_HANDOVER * self.step_seconds().max(other.step_seconds());
        let is_more = from < to && to.seconds_since(from) > readings.max(HANDOVER_SECONDS);
        is_more.then_some((from, to))
    }
}

/// Meter and name of a board.
type BoardKey = (Meter, String);

/// Claimant of a board. Claims of one workload may alternate: they are kept apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    workload: String,
    tenure: Option<u64>,
    /// It has all of the board.
    is_whole: bool,
}

/// The boards that the events of one log name, and whose they are when.
#[derive(Debug, Default)]
pub struct BoardClaims {
    /// Spans of claims, by board and claimant.
    by_board: HashMap<BoardKey, BTreeMap<Claimant, Vec<ClaimSpan>>>,
    /// Spans in all.
    spans: usize,
}

impl BoardClaims {
    /// Takes the claim of an event, which follows those before in time.
    pub fn add(&mut self, event: &GpuTelemetry) {
        let Some(workload) = event.workload.as_deref() else { return };
        let span = ClaimSpan { from: event.time, to: event.time, readings: 1, has_ended: event.last };
        // A short name is one of its node.
        let is_unique = event.device.starts_with("GPU-");
        let node = event.node.as_deref().filter(|_| !is_unique).unwrap_or_default();
        let name = if node.is_empty() { event.device.clone() } else { format!("{node}:{}", event.device) };
        let claimant = Claimant {
            workload: workload.to_owned(),
            tenure: event.tenure,
            is_whole: event.share.is_none_or(|share| share >= WHOLE_SHARE),
        };
        self.push((event.meter, name), claimant, &[span]);
    }

    /// Takes the claims of the log's next events.
    pub fn append(&mut self, other: &mut Self) {
        other.spans = 0;
        for (board, claims) in other.by_board.drain() {
            for (claimant, spans) in claims {
                self.push(board.clone(), claimant, &spans);
            }
        }
    }

    fn push(&mut self, board: BoardKey, claimant: Claimant, next: &[ClaimSpan]) {
        let is_known = || self.by_board.get(&board).is_some_and(|claims| claims.contains_key(&claimant));
        if self.spans >= MOST_SPANS && !is_known() {
            return;
        }
        let spans = self.by_board.entry(board).or_default().entry(claimant).or_default();
        for next in next {
            let is_followed = spans.len() > 1;
            match spans.last_mut() {
                Some(last) if last.joins(next) => last.join(next),
                // No more than a handover, whatever it overlaps. The first may join the log's events before.
                Some(last) if is_followed && last.seconds() <= HANDOVER_SECONDS => *last = *next,
                _ if self.spans < MOST_SPANS => {
                    spans.push(*next);
                    self.spans += 1;
                }
                _ => {}
            }
        }
    }
}

/// A time in which a workload has a board, and the log that records it.
#[derive(Debug, Clone, Copy)]
struct LoggedClaim<'l> {
    workload: &'l str,
    log: &'l str,
    is_whole: bool,
    span: ClaimSpan,
}

/// Two workloads on one board.
#[derive(Debug)]
struct ContestedBoard<'l> {
    board: &'l str,
    claims: [LoggedClaim<'l>; 2],
    from: EventTime,
    to: EventTime,
}

/// Returns what is wrong with the logs if two workloads have the same board at the same time, the first two of each board.
pub fn describe_contested_boards(logs: &[(String, BoardClaims)]) -> Vec<String> {
    let mut boards: BTreeMap<&BoardKey, Vec<LoggedClaim<'_>>> = BTreeMap::new();
    for (log, claims) in logs {
        for (board, by_claimant) in &claims.by_board {
            let of_log = by_claimant.iter().flat_map(|(Claimant { workload, is_whole, .. }, spans)| {
                spans.iter().map(|span| LoggedClaim { workload, log, is_whole: *is_whole, span: *span })
            });
            boards.entry(board).or_default().extend(of_log);
        }
    }
    let contested: Vec<ContestedBoard<'_>> =
        boards.into_iter().filter_map(|((_, board), claims)| find_contest(board, claims)).collect();
    let mut lines: Vec<String> = contested.iter().take(BOARDS_SHOWN).map(describe).collect();
    if contested.len() > BOARDS_SHOWN {
        lines.push(format!("so are {} more boards", contested.len() - BOARDS_SHOWN));
    }
    lines
}

/// Returns the first two claims of a board by different workloads at the same time, of which one is of all of it.
fn find_contest<'l>(board: &'l str, mut claims: Vec<LoggedClaim<'l>>) -> Option<ContestedBoard<'l>> {
    claims.sort_by_key(|claim| claim.span.from);
    // Those that have not ended where the sweep is; shares are compared only with claims of all of the board.
    let (mut wholes, mut shares): (Vec<LoggedClaim<'l>>, Vec<LoggedClaim<'l>>) = (Vec::new(), Vec::new());
    for claim in claims {
        wholes.retain(|open| open.span.to > claim.span.from);
        if claim.is_whole {
            shares.retain(|open| open.span.to > claim.span.from);
        }
        let shares_beside = if claim.is_whole { shares.as_slice() } else { &[] };
        let found = wholes.iter().chain(shares_beside).filter(|open| open.workload != claim.workload).find_map(|open| {
            let (from, to) = open.span.overlap(&claim.span)?;
            Some(ContestedBoard { board, claims: [*open, claim], from, to })
        });
        if found.is_some() {
            return found;
        }
        if claim.is_whole { &mut wholes } else { &mut shares }.push(claim);
    }
    None
}

fn describe(contested: &ContestedBoard<'_>) -> String {
    let ContestedBoard { board, claims: [first, second], from, to } = contested;
    let logs = if first.log == second.log { first.log.to_owned() } else { format!("{} and {}", first.log, second.log) };
    format!(
        "{board} works for {} and for {} from {from} to {to} in {logs}, and not each with a share of it: the windows of both count its \
         energy; keep the events of one of them, import for each job only the rows of its own GPUs and times, or give each event its share",
        first.workload, second.workload
    )
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

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

    fn every(step: usize, workload: &str, seconds: RangeInclusive<u32>, share: Option<f64>) -> Vec<(&str, u32, Option<f64>)> {
        seconds.step_by(step).map(|second| (workload, second, share)).collect()
    }

    fn every_ten(workload: &str, seconds: RangeInclusive<u32>, share: Option<f64>) -> Vec<(&str, u32, Option<f64>)> {
        every(10, workload, seconds, share)
    }

    #[test]
    fn two_tenures_of_one_workload_hide_no_other() {
        let mut log = BoardClaims::default();
        for second in 0..=100_u32 {
            for (workload, tenure) in [("lab/a", u64::from(second % 2)), ("lab/b", 7)] {
                log.add(&GpuTelemetry {
                    time: EventTime::from_seconds(f64::from(second)),
                    workload: Some(workload.to_owned()),
                    device: "GPU-1".to_owned(),
                    tenure: Some(tenure),
                    ..GpuTelemetry::default()
                });
            }
        }
        assert_eq!(describe_contested_boards(&[("a".to_owned(), log)]).len(), 1);
    }

    #[test]
    fn many_workloads_with_shares_are_compared_at_once() {
        let names: Vec<String> = (0..1500).map(|workload| format!("lab/{workload}")).collect();
        let readings = |second: u32| names.iter().map(move |name| (name.as_str(), second, Some(0.001)));
        let shared: Vec<(&str, u32, Option<f64>)> = (0..=10).flat_map(|step| readings(step * 10)).collect();
        assert_eq!(describe_contested_boards(&[("a".to_owned(), claims(&shared))]), Vec::<String>::new());
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
            (
                "a logger that goes on for ten seconds",
                every(1, "lab/a", 0..=110, None),
                every(1, "lab/b", 100..=200, None),
                false,
            ),
            ("a logger that goes on for longer", every(1, "lab/a", 0..=111, None), every(1, "lab/b", 100..=200, None), true),
            (
                "shares of one that alternate",
                [every(2, "lab/a", 0..=100, None), every(2, "lab/a", 1..=101, Some(0.5))].concat(),
                every(1, "lab/b", 0..=100, None),
                true,
            ),
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
