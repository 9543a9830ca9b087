use eadt_simulator::gpu::{Phase, PhaseSchedule, WorkloadProfile};
use eadt_simulator::{Scenario, WorkloadScenario};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const KINDS: [&str; 4] = ["host", "compute", "memory", "mid"];
/// A phase lasts between these, in minutes.
const MINUTES: std::ops::RangeInclusive<u32> = 120..=480;

/// A job on 3 A100s whose work changes at random: phases of 2 to 8 hours, each bound by the host, the SMs, the memory or by
/// none of them, no two alike in a row. The seed chooses them and the noise.
pub fn random_days(seed: u64, days: f64) -> Scenario {
    let mut chance = Pcg64Mcg::seed_from_u64(seed ^ 0x6461_7973);
    let mut phases: Vec<Phase> = Vec::new();
    let mut left = days * 1440.0;
    while left > 0.0 || phases.is_empty() {
        let before = phases.last().map(|phase| phase.name.clone());
        let others: Vec<&str> = KINDS.into_iter().filter(|kind| Some(*kind) != before.as_deref()).collect();
        let Some((kind, profile)) = others.choose(&mut chance).and_then(|kind| Some((*kind, WorkloadProfile::named(kind)?)))
        else {
            unreachable!("every kind has a profile")
        };
        let minutes = f64::from(chance.random_range(MINUTES));
        left -= minutes;
        phases.push(Phase { name: kind.into(), seconds: minutes * 60.0, profile });
    }
    let schedule = PhaseSchedule { phases, repeat: false };
    let job = WorkloadScenario { name: "eadt/random-days".into(), schedule, ..WorkloadScenario::default() };
    let mut scenario = Scenario { workloads: vec![job], ..Scenario::default() };
    scenario.noise.seed = seed;
    scenario
}
