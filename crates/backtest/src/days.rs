use eadt_simulator::gpu::{PhaseSchedule, WorkloadPhase, WorkloadProfile};
use eadt_simulator::{JobSuspension, Scenario, WorkloadScenario};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const KINDS: [&str; 4] = ["host", "compute", "memory", "mid"];
/// A phase lasts between these, in minutes.
const MINUTES: std::ops::RangeInclusive<u32> = 120..=480;

/// Returns a job on 3 A100s whose work changes at random, in phases of 2 to 8 hours. A phase is bound by the host, the SMs, the
/// memory or by none of them; no two alike follow each other. The seed chooses them and the noise.
pub fn random_days(seed: u64, days: f64) -> Scenario {
    job("eadt/random-days", seed, random_phases(seed, days, MINUTES))
}

/// Like [`random_days`], with phases that all last so many minutes.
pub fn even_phases(seed: u64, days: f64, minutes: u32) -> Scenario {
    job("eadt/even-phases", seed, random_phases(seed, days, minutes..=minutes))
}

/// Like [`random_days`], with phases of half an hour to 4 h, of a job that is suspended every 3 to 8 h for 20 min to 3 h.
pub fn come_and_go(seed: u64, days: f64) -> Scenario {
    let mut scenario = job("eadt/come-and-go", seed, random_phases(seed, days, 30..=240));
    let mut chance = Pcg64Mcg::seed_from_u64(seed ^ 0x676f_6e65);
    let mut minutes = 0;
    while f64::from(minutes) < days * 1440.0 {
        let from = minutes + chance.random_range(180..=480);
        minutes = from + chance.random_range(20..=180);
        let absence = JobSuspension { from_seconds: f64::from(from) * 60.0, until_seconds: f64::from(minutes) * 60.0 };
        scenario.workloads[0].away.push(absence);
    }
    scenario
}

fn job(name: &str, seed: u64, schedule: PhaseSchedule) -> Scenario {
    let job = WorkloadScenario { name: name.into(), schedule, ..WorkloadScenario::default() };
    let mut scenario = Scenario { workloads: vec![job], ..Scenario::default() };
    scenario.noise.seed = seed;
    scenario
}

fn random_phases(seed: u64, days: f64, lengths: std::ops::RangeInclusive<u32>) -> PhaseSchedule {
    let mut chance = Pcg64Mcg::seed_from_u64(seed ^ 0x6461_7973);
    let mut phases: Vec<WorkloadPhase> = Vec::new();
    let mut left = days * 1440.0;
    while left > 0.0 || phases.is_empty() {
        let before = phases.last().map(|phase| phase.name.clone());
        let others: Vec<&str> = KINDS.into_iter().filter(|kind| Some(*kind) != before.as_deref()).collect();
        let Some((kind, profile)) = others.choose(&mut chance).and_then(|kind| Some((*kind, WorkloadProfile::named(kind)?)))
        else {
            unreachable!("every kind has a profile")
        };
        let minutes = f64::from(chance.random_range(lengths.clone()));
        left -= minutes;
        phases.push(WorkloadPhase { name: kind.into(), seconds: minutes * 60.0, profile });
    }
    PhaseSchedule { phases, repeat: false }
}
