//! Published sweeps: no figure claims more than their own rows show. Skipped, with a message, if they are absent.

use eadt_models::choose::{ChoiceMethod, ChoiceObjective, RobustSettings, SettingChoice, TuningKnob};
use eadt_testing::shared_data;
use eadt_tune::points::PointGroup;
use eadt_tune::{NoteKind, TuningRequest, points, tune};

struct Set {
    folder: &'static str,
    files: &'static [&'static str],
    knob: TuningKnob,
    by: &'static [&'static str],
    maps: &'static [&'static str],
}

const SETS: [Set; 3] = [
    Set {
        folder: "zeus-nsdi23",
        files: &["summary_power_v100.csv", "summary_power_rtx6000.csv"],
        knob: TuningKnob::PowerLimitWatts,
        by: &["dataset", "network", "optimizer", "batch_size"],
        maps: &["power_limit_watts=power_limit", "duration_seconds=time_per_epoch", "mean_power_watts=average_power"],
    },
    Set {
        folder: "perseus-sosp24-freq",
        files: &["gpt3-175b+a100_sxm_bf16.csv"],
        knob: TuningKnob::SmClockMhz,
        by: &["stage", "instruction"],
        maps: &["sm_clock_mhz=frequency", "duration_seconds=time", "energy_joules=energy"],
    },
    Set {
        folder: "a100-dvfs-apps",
        files: &[
            "GA100-dvfs-LAMMPS-dcgm.csv",
            "GA100-dvfs-LSTM-dcgm.csv",
            "GA100-dvfs-dgemm-dcgm.csv",
            "GA100-dvfs-accel-dcgm__subset.csv",
        ],
        knob: TuningKnob::SmClockMhz,
        by: &["application"],
        maps: &["sm_clock_mhz=sm_app_clock", "duration_seconds=run_time", "mean_power_watts=power_usage"],
    },
];

/// Saving and slowdown of a setting in the rows themselves.
fn in_rows(group: &PointGroup, choice: &SettingChoice, reference: f64) -> (f64, f64) {
    let row = |setting: f64| group.measurements.iter().find(|m| m.setting == setting).unwrap();
    let (own, highest) = (row(choice.setting), row(reference));
    (1.0 - own.energy_joules / highest.energy_joules, own.duration_seconds / highest.duration_seconds - 1.0)
}

fn request(set: &Set, method: ChoiceMethod) -> TuningRequest {
    TuningRequest {
        maps: set.maps.iter().map(|map| map.parse().unwrap()).collect(),
        decimal: None,
        by: set.by.iter().map(|&by| by.to_owned()).collect(),
        knobs: set.knob.into(),
        reference_second_setting: None,
        max_slowdown_ratio: Some(0.10),
        min_ratio: None,
        preset: None,
        objective: ChoiceObjective::Energy,
        method,
        min_settings: 3,
        max_power_watts: 3000.0,
    }
}

#[test]
fn no_group_claims_more_than_its_rows_show_and_no_published_row_is_a_glitch() {
    for set in &SETS {
        let Some(folder) = shared_data(set.folder) else { return };
        for file in set.files {
            for method in
                [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 60, ..RobustSettings::default() })]
            {
                let request = request(set, method);
                let groups = points::read(file, std::fs::File::open(folder.join(file)).unwrap(), &request).unwrap();
                let tuning = tune(file, &groups, &request);
                assert!(
                    tuning.groups.len() >= groups.len().saturating_sub(groups.len() / 20 + 2),
                    "{file}: {:?}",
                    tuning.skipped
                );
                let odd = |note: &&eadt_tune::TableNote| {
                    matches!(note.kind, NoteKind::Glitch | NoteKind::SingleRun | NoteKind::Irregular)
                };
                assert_eq!(tuning.notes.iter().find(odd), None, "{file}");
                for group in &tuning.groups {
                    let choices = &group.choices;
                    let all = [&choices.min_energy, &choices.constrained, &choices.min_edp, &choices.min_ed2p, &choices.knee];
                    for choice in all.into_iter().chain(&choices.pareto) {
                        let (saving, slowdown) = in_rows(&groups[&group.by], choice, choices.reference.setting);
                        assert!((choice.saving_ratio - saving).abs() < 1e-9, "{file} {:?}: {choice:?}, rows: {saving}", group.by);
                        assert!((choice.slowdown_ratio - slowdown).abs() < 1e-9, "{file} {:?}: {choice:?}", group.by);
                        assert!(choice.saving_lower_ratio.is_none_or(|least| least <= saving + 1e-9));
                    }
                    assert!(choices.constrained.slowdown_ratio <= 0.10 + 1e-9);
                }
            }
        }
    }
}

/// Each row of some groups in turn, made faster, slower, or of another power: what is chosen has to hold in the rows as they were.
#[test]
fn one_wrong_row_of_a_published_group_makes_no_claim() {
    const FACTORS: [(f64, f64); 6] = [(0.4, 1.0), (0.7, 1.0), (1.6, 1.0), (1.0, 0.5), (1.0, 0.75), (1.0, 1.4)];
    let set = &SETS[0];
    let Some(folder) = shared_data(set.folder) else { return };
    let file = set.files[0];
    for method in [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 60, ..RobustSettings::default() })] {
        let request = request(set, method);
        let groups = points::read(file, std::fs::File::open(folder.join(file)).unwrap(), &request).unwrap();
        let mut answered = 0;
        for (key, group) in groups.iter().step_by(8) {
            for (place, factors) in (0..group.measurements.len()).flat_map(|place| FACTORS.map(|factors| (place, factors))) {
                let mut wrong = group.clone();
                wrong.measurements[place].duration_seconds *= factors.0;
                wrong.measurements[place].energy_joules *= factors.0 * factors.1;
                let tuning = tune(file, &[(key.clone(), wrong)].into(), &request);
                let Some(choices) = tuning.groups.first().map(|group| &group.choices) else { continue };
                answered += 1;
                let chosen = &choices.constrained;
                let (saving, slowdown) = in_rows(group, chosen, choices.reference.setting);
                let what = format!("{key:?}, row {place} times {factors:?}: {chosen:?}, in truth {saving} and {slowdown}");
                assert!(chosen.saving_ratio <= saving + 0.005, "{what}");
                assert!(slowdown <= 0.10 + 1e-9, "{what}");
            }
        }
        assert!(answered > 250, "{answered} of 378: sound rows are answered for");
    }
}
