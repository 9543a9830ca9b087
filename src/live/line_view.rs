//! The view if there is no terminal: one line a minute, however many workloads there are.

use std::time::{Duration, Instant};

use eadt_report::{SavingSummary, SavingVerdict, units};
use eadt_schemas::counts::counted;
use eadt_schemas::figures::format_signed_percent;

use super::frame::{ViewCounts, ViewFrame};
use super::origin_word;

const EVERY: Duration = Duration::from_mins(1);

/// Tracks when the next line is due.
#[derive(Debug)]
pub struct MinuteTimer {
    last: Instant,
}

impl MinuteTimer {
    pub fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// Returns whether a minute is over; then the next one begins.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let over = now.duration_since(self.last) >= EVERY;
        if over {
            self.last = now;
        }
        over
    }
}

/// Returns everything in one line; the origin first.
pub fn line(picture: &ViewFrame) -> String {
    let ViewCounts { windows, changes, reverts, dead_letters, .. } = picture.counts;
    let origin = match picture.origin {
        Some(origin) => origin_word(origin),
        None if picture.mixed => "origins differ",
        None if picture.simulated => "simulated",
        None => "no figures yet",
    };
    let time = picture.now.map_or_else(|| "before the first window".to_owned(), |now| format!("{}Z", &now.to_string()[..19]));
    let [workloads, power] = picture.load();
    let mut parts = vec![
        format!("[{origin}] {time}"),
        workloads,
        power,
        saved(&picture.summary, picture.partial),
        format!("{}, {}", counted(changes, "change"), counted(reverts, "revert")),
        counted(windows, "window"),
        counted(dead_letters, "dead letter"),
    ];
    if let Some(progress) = picture.progress {
        let left = progress.left_seconds.map_or_else(String::new, |left| format!(", {} left", units::format_duration(left)));
        parts.push(format!("{:.0} % of the duration{left}", 100.0 * progress.part));
    }
    parts.join(" · ")
}

fn saved(summary: &SavingSummary, partial: bool) -> String {
    if partial {
        return "savings not shown: only the end of the record was read".to_owned();
    }
    let (Some(ratio), Some(part)) = (summary.saving_ratio(), summary.compared_ratio()) else {
        let is_unchanged = summary.energy_joules.is_some() && summary.verdict() == SavingVerdict::Unchanged;
        let text = if is_unchanged { "nothing was changed, so nothing was saved" } else { "no saving known" };
        return text.to_owned();
    };
    let error = summary.ratio_error().map_or_else(String::new, |error| format!(" ± {:.1}", 100.0 * error));
    let rest = if summary.is_whole() { "" } else { ", the rest not known" };
    let part = format!("{:.0} % of the energy{rest}", 100.0 * part);
    if ratio < 0.0 {
        return format!("used {:.1} %{error} more in {part}", -100.0 * ratio);
    }
    format!("saved {}{error} of {part}", format_signed_percent(ratio, 1))
}

#[cfg(test)]
mod tests {
    use eadt_report::WorkloadReport;
    use eadt_schemas::v1::Origin;

    use super::*;
    use crate::live::frame::WorkloadRow;

    #[test]
    fn a_thousand_workloads_are_one_line_with_the_origin_and_what_is_not_known() {
        let report =
            serde_json::json!({"energy_joules": 1e6, "compared_energy_joules": 590e3, "expected_energy_joules": 567_300.0});
        let report: WorkloadReport = serde_json::from_value(report).unwrap();
        let mut picture = ViewFrame {
            rows: vec![WorkloadRow { power_watts: Some(400.0), ..WorkloadRow::default() }; 1000],
            power_watts: Some(400_000.0),
            summary: SavingSummary::of([&report]),
            origin: Some(Origin::Simulated),
            ..ViewFrame::default()
        };
        let text = line(&picture);
        assert!(
            text.starts_with(
                "[simulated] before the first window · 1000 workloads · 400 kW · used 4.0 % more in 59 % of the energy, the rest not known"
            ),
            "{text}"
        );
        assert!(text.ends_with("0 changes, 0 reverts · 0 windows · 0 dead letters"), "{text}");
        picture.partial = true;
        assert!(!line(&picture).contains("4.0 %"), "{}", line(&picture));
        picture.rows.truncate(1);
        picture.power_watts = None;
        assert!(line(&picture).contains(" · 1 workload · power unknown · "), "{}", line(&picture));
        // Without a change the saving is zero, and known.
        picture.partial = false;
        let unchanged: WorkloadReport = serde_json::from_value(serde_json::json!({"energy_joules": 1e6})).unwrap();
        for (summary, text) in [
            (SavingSummary::default(), " · no saving known · "),
            (SavingSummary::of([&unchanged]), " · nothing was changed, so nothing was saved · "),
        ] {
            picture.summary = summary;
            assert!(line(&picture).contains(text), "{}", line(&picture));
        }
        let start = Instant::now();
        let mut minutes = MinuteTimer::new(start);
        let over: Vec<bool> = (0..180).map(|second| minutes.is_over(start + Duration::from_secs(second))).collect();
        assert_eq!(over.iter().filter(|over| **over).count(), 2);
    }
}
