//! Frozen blocks: less is computed, so that their saving is beside that of training for fewer steps.

use eadt_schemas::EventTime;
use eadt_schemas::v1::Decision;

/// The cost in quality of the alternative to frozen blocks: as much energy saved by training for fewer steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FewerStepsControl {
    time: EventTime,
    steps: f64,
    /// Relative rise of the validation loss, and its range.
    loss_ratio: f64,
    range: (f64, f64),
}

impl FewerStepsControl {
    /// Returns that of a decision on frozen blocks; `None` if it has none.
    pub(crate) fn of(event: &Decision) -> Option<Self> {
        let figure = |name: &str| event.evidence.get(name).copied().filter(|value| value.is_finite());
        Some(Self {
            time: event.time,
            steps: figure("control_fewer_steps")?,
            loss_ratio: figure("control_validation_loss_ratio")?,
            range: (figure("control_validation_loss_lowest_ratio")?, figure("control_validation_loss_highest_ratio")?),
        })
    }

    /// Returns the newer one.
    pub(crate) fn newer(known: Option<Self>, other: Option<Self>) -> Option<Self> {
        known.into_iter().chain(other).max_by_key(|control| control.time)
    }

    /// Returns a note on a saving, of which this part of the energy was used while blocks were frozen.
    pub(crate) fn note(control: Option<Self>, frozen_ratio: f64) -> String {
        let begin = format!(
            "blocks were frozen for {:.0} % of the energy: less was computed then, and the saving is partly of that",
            100.0 * frozen_ratio
        );
        let Some(Self { steps, loss_ratio, range: (lowest, highest), .. }) = control else {
            return format!("{begin}; no decision compares it with training for fewer steps");
        };
        format!(
            "{begin}. By the newest decision about them, training {steps:.0} steps fewer would save as much, and cost {:.2} % ({:.2} to {:.2}) \
             of validation loss",
            100.0 * loss_ratio,
            100.0 * lowest,
            100.0 * highest
        )
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{EfficiencyWindow, Layout};

    use crate::{ReportSettings, report};

    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(60_000_000 * minute)
    }

    fn window(minute: i64, frozen: u32) -> EfficiencyWindow {
        let joules = if frozen > 0 { 750.0 } else { 1_000.0 };
        EfficiencyWindow {
            id: format!("n/w/{minute}"),
            workload: "n/w".to_owned(),
            window_start: at(minute),
            window_end: at(minute + 1),
            generation: Some(u64::from(frozen > 0)),
            layout: Some(Layout { frozen_prefix_layers: Some(frozen), ..Layout::default() }),
            energy_joules: Some(joules),
            energy_coverage_ratio: 1.0,
            run_seconds: 60.0,
            run_energy_joules: Some(joules),
            run_coverage_ratio: 1.0,
            samples: Some(100.0),
            progress_coverage_ratio: 1.0,
            ..EfficiencyWindow::default()
        }
    }

    fn decision(minute: i64, steps: f64) -> Decision {
        let figures = [
            ("control_fewer_steps", steps),
            ("control_validation_loss_ratio", 0.0021),
            ("control_validation_loss_lowest_ratio", 0.001),
            ("control_validation_loss_highest_ratio", 0.004),
        ];
        let evidence = figures.map(|(name, value)| (name.to_owned(), value)).into();
        Decision { id: format!("d{minute}"), workload: "n/w".to_owned(), time: at(minute), evidence, ..Decision::default() }
    }

    #[test]
    fn a_saving_by_frozen_blocks_is_beside_training_for_fewer_steps() {
        let notes = |frozen: u32, decisions: &[Decision]| {
            let windows: Vec<EfficiencyWindow> =
                (0..20).map(|minute| window(minute, if minute < 10 { 0 } else { frozen })).collect();
            let report = report(&windows, decisions, &[], &ReportSettings::default());
            report.workloads[0].notes.iter().filter(|note| note.contains("frozen")).cloned().collect::<Vec<String>>()
        };
        assert_eq!(notes(0, &[]), [""; 0]);
        let alone = "blocks were frozen for 43 % of the energy: less was computed then, and the saving is partly of that";
        assert_eq!(notes(2, &[]), [format!("{alone}; no decision compares it with training for fewer steps")]);
        let compared = "By the newest decision about them, training 90 steps fewer would save as much, and cost 0.21 % (0.10 to 0.40) of \
                        validation loss";
        assert_eq!(notes(2, &[decision(15, 90.0), decision(11, 70.0)]), [format!("{alone}. {compared}")]);
    }
}
