//! Windows: their arithmetic, the sums of their sources, and their closing.

pub mod coarse_counter;
pub mod counter;
pub mod energy;
pub mod progress;
pub mod summary;

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

/// Tumbling windows: number `n` is `[origin + n·size, origin + (n+1)·size)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TumblingWindows {
    /// Microseconds, positive.
    pub size: i64,
    /// Start of window 0: the epoch, or a job's start.
    pub origin: EventTime,
}

impl TumblingWindows {
    /// Returns the start of the window that holds `time`; right for times before the origin, too.
    pub fn start(self, time: EventTime) -> EventTime {
        time.plus_micros(-(time.micros() - self.origin.micros()).rem_euclid(self.size))
    }

    /// Returns the end of the window that holds `time`; a window's end belongs to the next one.
    pub fn end(self, time: EventTime) -> EventTime {
        self.start(time).plus_micros(self.size)
    }

    /// Returns whether both ends of the window of `time` are times that can be written; if one is not, it would be another
    /// window.
    pub fn is_representable(self, time: EventTime) -> bool {
        let start = time.micros() - (time.micros() - self.origin.micros()).rem_euclid(self.size);
        start >= EventTime::MIN.micros() && start.saturating_add(self.size) <= EventTime::MAX.micros()
    }
}

/// The edges of the slices of one workload's open windows: window edges, and the ends of runs and of spans. Times ascend;
/// slice `i` goes from edge `i` to edge `i + 1`.
pub type SliceEdges = VecDeque<EventTime>;

/// Returns whether a slice represents many windows without data: they are neither held nor emitted.
pub fn is_gap(windows: TumblingWindows, from: EventTime, to: EventTime) -> bool {
    to.micros() - from.micros() > windows.size
}

/// Returns whether the windows of these edges can be closed one after the other, which ends at the last edge.
pub fn are_whole(slice_edges: &SliceEdges, windows: TumblingWindows) -> bool {
    if windows.size <= 0 || slice_edges.len() == 1 || !slice_edges.iter().is_sorted_by(|a, b| a < b) {
        return false;
    }
    let mut i = 0;
    while let (Some(&from), Some(&to)) = (slice_edges.get(i), slice_edges.get(i + 1)) {
        let end = if is_gap(windows, from, to) { to } else { windows.end(from) };
        let Ok(next) = slice_edges.binary_search(&end) else { return false };
        i = next;
    }
    true
}

/// Calls `put(i, from, to)` for each slice that `[from, to]` crosses and returns the microseconds before the first edge.
pub fn spread_over_slices(
    slice_edges: &SliceEdges,
    from: EventTime,
    to: EventTime,
    mut put: impl FnMut(usize, EventTime, EventTime),
) -> i64 {
    let Some(&first) = slice_edges.front() else { return to.micros() - from.micros() };
    let before = (first.min(to).micros() - from.micros()).max(0);
    // Nearly always the step lies in the newest slice.
    let mut i = slice_edges.partition_point(|edge| *edge <= from).saturating_sub(1);
    let mut at = from.max(first);
    while at < to && i + 1 < slice_edges.len() {
        let until = slice_edges[i + 1].min(to);
        put(i, at, until);
        at = until;
        i += 1;
    }
    before
}

/// Returns the sums of slice `i` of a source.
pub fn slice_mut<T: Default>(slices: &mut VecDeque<T>, i: usize) -> &mut T {
    if slices.len() <= i {
        // Most invented sources send one event, and the first allocation of the library has room for four.
        if slices.is_empty() {
            slices.reserve_exact(i + 1);
        }
        slices.resize_with(i + 1, T::default);
    }
    &mut slices[i]
}

/// Returns the slice that holds `time`, if one does.
pub fn slice_at(slice_edges: &SliceEdges, time: EventTime) -> Option<usize> {
    let i = slice_edges.partition_point(|edge| *edge <= time);
    (i > 0 && i < slice_edges.len()).then(|| i - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_window_that_reaches_beyond_the_times_that_can_be_written_is_none() {
        let windows = TumblingWindows { size: 60_000_000, origin: at(0) };
        let (first, last) = (EventTime::MIN, EventTime::MAX);
        assert!(
            windows.is_representable(first)
                && windows.is_representable(last.plus_micros(-60_000_000))
                && !windows.is_representable(last)
        );
        let shifted = TumblingWindows { origin: at(1), ..windows };
        assert!(!shifted.is_representable(first) && shifted.is_representable(first.plus_micros(1_000_000)));
        assert!(!TumblingWindows { size: i64::MAX, origin: at(0) }.is_representable(at(1)));
    }

    #[test]
    fn cuts_are_whole_where_each_window_ends_at_one() {
        let windows = TumblingWindows { size: 60_000_000, origin: at(0) };
        for (edges, whole) in [
            (&[][..], true),
            (&[0, 60], true),
            (&[0, 30, 60, 75, 120], true),
            // Begun if windows of another alignment were closed.
            (&[45, 60, 120], true),
            // Nothing is known from 120 to 600.
            (&[0, 60, 120, 600, 660], true),
            (&[0], false),
            (&[0, 30], false),
            (&[0, 30, 75, 120], false),
            (&[0, 120, 60], false),
            (&[0, 60, 60, 120], false),
            (&[0, 30, 600], false),
        ] {
            let edges: SliceEdges = edges.iter().copied().map(at).collect();
            assert_eq!(are_whole(&edges, windows), whole, "{edges:?}");
        }
        assert!(!are_whole(&[0, 60].map(at).into(), TumblingWindows { size: 0, ..windows }));
    }

    #[test]
    fn windows_before_the_epoch_and_before_the_origin() {
        let epoch = TumblingWindows { size: 60_000_000, origin: at(0) };
        for (time, start) in [(0, 0), (59, 0), (60, 60), (-1, -60), (-60, -60), (-61, -120)] {
            assert_eq!((epoch.start(at(time)), epoch.end(at(time))), (at(start), at(start + 60)), "{time}");
        }
        let run = TumblingWindows { size: 60_000_000, origin: at(17) };
        for (time, start) in [(17, 17), (16, -43), (77, 77), (76, 17)] {
            assert_eq!(run.start(at(time)), at(start), "{time}");
        }
    }

    #[test]
    fn a_step_is_spread_over_every_stretch_it_crosses() {
        let edges: SliceEdges = [10, 20, 25, 40].map(at).into();
        let mut seen = Vec::new();
        assert_eq!(spread_over_slices(&edges, at(5), at(30), |i, a, b| seen.push((i, a, b))), 5_000_000);
        assert_eq!(seen, [(0, at(10), at(20)), (1, at(20), at(25)), (2, at(25), at(30))]);
        assert_eq!(spread_over_slices(&edges, at(1), at(4), |_, _, _| panic!("before the first cut")), 3_000_000);
        assert_eq!((slice_at(&edges, at(10)), slice_at(&edges, at(39)), slice_at(&edges, at(40))), (Some(0), Some(2), None));
    }

    #[test]
    fn no_stretch_gets_a_part_without_length_and_what_lies_behind_the_last_cut_gets_none() {
        let edges: SliceEdges = [10, 20, 40].map(at).into();
        let parts = |from, to| {
            let mut seen = Vec::new();
            let before = spread_over_slices(&edges, at(from), at(to), |i, a, b| seen.push((i, a, b)));
            (before, seen)
        };
        assert_eq!(parts(12, 20), (0, vec![(0, at(12), at(20))]), "up to a cut");
        assert_eq!(parts(20, 30), (0, vec![(1, at(20), at(30))]), "from a cut on");
        assert_eq!(parts(15, 15), (0, vec![]));
        assert_eq!(parts(30, 50), (0, vec![(1, at(30), at(40))]));
        assert_eq!(parts(40, 50), (0, vec![]));
        assert_eq!(spread_over_slices(&SliceEdges::new(), at(5), at(30), |_, _, _| panic!("nothing is open")), 25_000_000);
    }
}
