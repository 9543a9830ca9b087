//! Measurements by others, and the model's figures beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use eadt_simulator::calibration::{
    CalibrationCheck, Sweep, SweepAxis, SweepDeviation, SweepFit, SweepPoint, equal_against_best, fit, mean_sharing_gain,
};
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, PAPER_MEMORY_GIB, SharingLab, paper_suite};

/// Every task of the source at its default batch size.
const CAPPED: [[&str; 3]; 6] = [
    ["imagenet", "256", "adadelta"],
    ["squad", "32", "adamw"],
    ["librispeech", "192", "adamw"],
    ["cifar100", "1024", "adadelta"],
    ["sentiment140", "128", "adamw"],
    ["movielens-1m", "1024", "adam"],
];

/// Returns rows of a file of plain values, by column.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().expect("a line of columns").split(',').collect();
    lines.map(|line| columns.iter().zip(line.split(',')).map(|(c, v)| ((*c).to_owned(), v.to_owned())).collect()).collect()
}

fn number(row: &BTreeMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {:?}", row[column]))
}

/// Training under power caps on a V100.
pub fn v100_caps(data: &Path) -> Vec<Sweep> {
    let rows = rows(&data.join("zeus-nsdi23/summary_power_v100.csv"));
    let sweep = |[dataset, batch, optimizer]: [&str; 3]| {
        let ours = rows.iter().filter(|r| r["dataset"] == dataset && r["batch_size"] == batch && r["optimizer"] == optimizer);
        let points = ours.map(|row| SweepPoint {
            setting: number(row, "power_limit"),
            rate: 1.0 / number(row, "time_per_epoch"),
            power_watts: number(row, "average_power"),
        });
        let points: Vec<SweepPoint> = points.collect();
        assert_eq!(points.len(), 7, "{dataset} {batch} {optimizer}");
        Sweep { name: format!("{dataset}, batch {batch}, {optimizer}"), knob: SweepAxis::PowerLimitWatts, points }
    };
    CAPPED.map(sweep).into()
}

/// Returns all of them.
pub fn v100_caps_all(data: &Path) -> Vec<Sweep> {
    let mut groups: BTreeMap<String, Vec<SweepPoint>> = BTreeMap::new();
    for row in rows(&data.join("zeus-nsdi23/summary_power_v100.csv")) {
        let name = format!("{}, batch {}, {}", row["dataset"], row["batch_size"], row["optimizer"]);
        groups.entry(name).or_default().push(SweepPoint {
            setting: number(&row, "power_limit"),
            rate: 1.0 / number(&row, "time_per_epoch"),
            power_watts: number(&row, "average_power"),
        });
    }
    groups.into_iter().map(|(name, points)| Sweep { name, knob: SweepAxis::PowerLimitWatts, points }).collect()
}

/// Returns the first stage of a language model over the clocks of an A100, as far as that board's own limit leaves the
/// clock alone: if power is within 5 % of the sweep's highest, a higher clock no longer shortens the time.
pub fn a100_clocks(data: &Path) -> Vec<Sweep> {
    let rows = rows(&data.join("perseus-sosp24-freq/gpt3-175b+a100_sxm_bf16.csv"));
    let sweep = |instruction: &str| {
        let ours = rows.iter().filter(|row| row["stage"] == "0" && row["instruction"] == instruction);
        let points: Vec<SweepPoint> = ours
            .map(|row| SweepPoint {
                setting: number(row, "frequency"),
                rate: 1.0 / number(row, "time"),
                power_watts: number(row, "energy") / number(row, "time"),
            })
            .collect();
        let highest = points.iter().map(|point| point.power_watts).fold(0.0, f64::max);
        let free: Vec<SweepPoint> = points.into_iter().filter(|point| point.power_watts < 0.95 * highest).collect();
        assert!(free.len() > 25, "{instruction}: {}", free.len());
        Sweep { name: format!("GPT-3 175B, stage 0, {instruction}"), knob: SweepAxis::SmClockMhz, points: free }
    };
    ["forward", "backward"].map(sweep).into()
}

/// Fits of each sweep, and their mean deviation.
pub fn fits(model: BoardModel, sweeps: &[Sweep]) -> (Vec<(String, SweepFit)>, SweepDeviation) {
    let fits: Vec<(String, SweepFit)> =
        sweeps.iter().map(|sweep| (sweep.name.clone(), fit(model.board(), sweep).expect("a sound sweep"))).collect();
    let all: Vec<SweepDeviation> = fits.iter().map(|(_, fitted)| fitted.deviation).collect();
    let mean = SweepDeviation::mean(&all).expect("sweeps");
    (fits, mean)
}

fn deviation(deviation: SweepDeviation) -> String {
    format!("throughput {:.1} %, power {:.1} %", 100.0 * deviation.rate_ratio, 100.0 * deviation.power_ratio)
}

fn swept(what: &str, model: BoardModel, sweeps: &[Sweep], most: SweepDeviation, each: bool, checks: &mut Vec<CalibrationCheck>) {
    let (fits, mean) = fits(model, sweeps);
    let kept = mean.rate_ratio <= most.rate_ratio && mean.power_ratio <= most.power_ratio;
    let asked = format!("throughput ≤ {} %, power ≤ {} %", 100.0 * most.rate_ratio, 100.0 * most.power_ratio);
    checks.push(CalibrationCheck {
        what: format!("{what}: mean of {}", fits.len()),
        target: asked,
        reached: deviation(mean),
        is_met: Some(kept),
    });
    for (name, fitted) in fits.into_iter().filter(|_| each) {
        checks.push(CalibrationCheck {
            what: format!("— {name}"),
            target: String::new(),
            reached: deviation(fitted.deviation),
            is_met: None,
        });
    }
}

pub const CAPS_ASKED: SweepDeviation = SweepDeviation { rate_ratio: 0.01, power_ratio: 0.03 };
pub const CLOCKS_ASKED: SweepDeviation = SweepDeviation { rate_ratio: 0.005, power_ratio: 0.005 };

/// Returns everything that is asked of the model.
pub fn checks(data: &Path) -> Vec<CalibrationCheck> {
    let mut checks = Vec::new();
    swept("V100 under power caps (Zeus, NSDI 23)", BoardModel::V100, &v100_caps(data), CAPS_ASKED, true, &mut checks);
    let all = v100_caps_all(data);
    swept("V100 under power caps, every job of that source", BoardModel::V100, &all, CAPS_ASKED, false, &mut checks);
    let noise = |sweeps: &[Sweep]| sweeps.iter().map(Sweep::rate_noise_ratio).sum::<f64>() / sweeps.len() as f64;
    checks.push(CalibrationCheck {
        what: "— noise: no rate that never falls with the cap comes nearer".into(),
        target: String::new(),
        reached: format!("throughput {:.1} %", 100.0 * noise(&all)),
        is_met: None,
    });
    let datasets: BTreeSet<&str> = all.iter().filter_map(|sweep| sweep.name.split(',').next()).collect();
    for dataset in datasets {
        let ours: Vec<Sweep> = all.iter().filter(|sweep| sweep.name.split(',').next() == Some(dataset)).cloned().collect();
        let (fits, mean) = fits(BoardModel::V100, &ours);
        let what = format!("— {dataset}: mean of {}", fits.len());
        let reached = format!("{}; noise {:.1} %", deviation(mean), 100.0 * noise(&ours));
        checks.push(CalibrationCheck { what, target: String::new(), reached, is_met: None });
    }
    swept("A100 over SM clocks (Perseus, SOSP 24)", BoardModel::A100, &a100_clocks(data), CLOCKS_ASKED, true, &mut checks);
    let (mean, largest) = pair_gains();
    checks.push(CalibrationCheck {
        what: "121 pairs at their best of nine partitions over equal shares, mean over 16 workloads".into(),
        target: "35 to 38 % (the paper measured 35 %)".into(),
        reached: format!("{:.1} %", 100.0 * mean),
        is_met: Some((0.35..=0.38).contains(&mean)),
    });
    checks.push(CalibrationCheck {
        what: "— the workload that gains most".into(),
        target: "the paper measured 60.6 %".into(),
        reached: format!("{:.1} %", 100.0 * largest),
        is_met: None,
    });
    checks.push(CalibrationCheck {
        what: "two jobs side by side without shares: summed speed over speed alone, mean over pairs of the paper's suite".into(),
        target: "Gavel measured 1.31 on a V100, but for other jobs".into(),
        reached: format!("{:.2}", mean_sharing_gain(BoardModel::V100.board(), &paper_suite())),
        is_met: None,
    });
    checks.push(CalibrationCheck {
        what: "slowdown under MPS with shares".into(),
        target: "as measured".into(),
        reached: "not checked: no measurement with counters and shares is at hand".into(),
        is_met: None,
    });
    checks
}

/// Mean over the workloads, and that of the workload which gains most.
pub fn pair_gains() -> (f64, f64) {
    let suite = paper_suite();
    let lab = SharingLab::new(BoardModel::V100, suite.clone(), LabNoise::NONE);
    let gains = equal_against_best(BoardModel::V100.board(), &suite, &lab, PAPER_MEMORY_GIB);
    assert_eq!((gains.pairs, gains.workloads.len()), (121, 16));
    (gains.mean(), gains.largest())
}
