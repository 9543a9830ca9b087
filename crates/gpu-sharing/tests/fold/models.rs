//! Tests learned models of boards, and their effect.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eadt_core::joint::JointFold;
use eadt_gpu_sharing::published::SharingModelDocument;
use eadt_gpu_sharing::{CoRun, CoRunTenant, GpuMeasurements, MetricValues, ProfileMetric, SlowdownModel, SoloPoint, SoloProfile};
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, Model};

use super::site::{IDLE_WATTS, Site, at, in_turn};

/// Jobs with large shares hold each other up: adding up does not know that.
pub fn crowding(shares: &[u32]) -> f64 {
    if shares.iter().any(|share| *share >= 80) { 0.6 } else { 0.97 }
}

/// Returns a model learned from other pairs.
pub fn learned() -> Model {
    let exponents: [f64; 6] = [0.02, 0.1, 0.3, 0.6, 0.9, 1.0];
    let part = |share: u32, i: usize| (f64::from(share) / 100.0).powf(exponents[i]);
    let point = |share: u32, i: usize| SoloPoint {
        mps_thread_percentage: share,
        sm_clock_mhz: None,
        samples_per_second: 10.0 * part(share, i),
        power_watts: IDLE_WATTS + 100.0 * part(share, i),
        counters: MetricValues::of(|metric| (metric == ProfileMetric::SmActiveRatio).then_some(f64::from(share) / 100.0)),
    };
    let profile = |i: usize| {
        let points = [20, 50, 100].map(|share| point(share, i)).to_vec();
        SoloProfile::new(format!("t/{i}"), "board".into(), points).unwrap()
    };
    let run = |a: usize, b: usize, share: u32| {
        let shares = [share, 100 - share];
        let tenant = |i: usize, share: u32| CoRunTenant {
            workload: format!("t/{i}"),
            mps_thread_percentage: share,
            samples_per_second: 10.0 * part(share, i) * crowding(&shares),
        };
        let power_watts = IDLE_WATTS + 100.0 * (part(shares[0], a) + part(shares[1], b));
        CoRun { tenants: vec![tenant(a, shares[0]), tenant(b, shares[1])], sm_clock_mhz: None, power_watts }
    };
    let pairs = (0..6).flat_map(|a| (0..6).filter(move |b| *b != a).map(move |b| (a, b)));
    let runs = pairs.flat_map(|(a, b)| [20, 30, 40, 50, 60, 70, 80].map(|share| run(a, b, share))).collect();
    let measured = GpuMeasurements::new(IDLE_WATTS, (0..6).map(profile).collect(), runs).unwrap();
    let model = SlowdownModel::train(&measured, &SlowdownModel::FOREST).unwrap();
    let mut parameters = serde_json::to_value(SharingModelDocument::new(model)).unwrap();
    parameters["origin"] = "simulated".into();
    Model { time: at(0), name: "partition/board".into(), version: "7".into(), parameters, ..Model::default() }
}

#[test]
fn a_learned_model_knows_what_adding_up_has_to_find_out() {
    let site = |model: Option<&Model>| {
        let mut site = Site::new(in_turn());
        (site.contention, site.profiled) = (crowding, true);
        if let Some(model) = model {
            site.learn(model);
        }
        site.run(120);
        site
    };
    let added = site(None);
    assert_eq!((added.shares(), added.changes().len()), (vec![50, 50], 6 + 4), "80 % was tried and taken back");
    assert_eq!(added.changes().last().unwrap().action, ControllerAction::Revert);

    let knows = site(Some(&learned()));
    assert_eq!((knows.shares(), knows.changes().len()), (vec![70, 30], 6 + 2), "{:#?}", knows.changes().last());
    let change = knows.changes()[7];
    assert_eq!(change.model_version.as_deref(), Some("partition/board@7"));
    assert!(change.reason.ends_with("work per watt, as predicted by partition/board@7"), "{}", change.reason);
    assert!(knows.decisions.iter().any(|decision| decision.validation == ChangeValidation::Kept));
    // Decisions to keep a layout are from the model, too.
    let stays = |decision: &&Decision| decision.action == ControllerAction::Maintain && decision.model_version.is_some();
    let stay = knows.decisions.iter().find(stays).expect("a/steep waits until b/flat was reduced");
    assert_eq!((&*stay.workload, stay.model_version.as_deref()), ("a/steep", Some("partition/board@7")));
    assert!(stay.reason.ends_with("reductions are made first"), "{}", stay.reason);
    assert_eq!(knows.stage.tally().models, 1);
    // Decisions about a workload that is alone use no model.
    assert!(knows.changes()[..6].iter().all(|change| change.model_version.is_none()));
}

#[test]
fn a_model_in_force_is_part_of_the_state() {
    let run = |crashes: bool| {
        let mut site = Site::new(in_turn());
        (site.contention, site.profiled) = (crowding, true);
        site.learn(&learned());
        for _ in 0..130 {
            if crashes {
                site.crash();
            }
            site.minute();
        }
        site.decisions
    };
    let (straight, broken) = (run(false), run(true));
    assert!(straight.iter().any(|decision| decision.model_version.is_some()));
    assert_eq!(straight, broken);
}

#[test]
fn models_that_give_no_figure_are_counted_and_adding_up_goes_on() {
    let with = |models: &[Model], profiled: bool| {
        let mut site = Site::new(in_turn());
        site.profiled = profiled;
        for model in models {
            site.learn(model);
        }
        site.run(120);
        site
    };
    let good = learned();
    let changed = |change: &dyn Fn(&mut Model)| {
        let mut model = good.clone();
        change(&mut model);
        model
    };
    let form = changed(&|model| model.parameters["format"] = "eadt.partition-model.v2".into());
    let damaged = changed(&|model| model.parameters["model"]["rates"]["trees"][0] = "AAAA".into());
    // Figures that make a comparison impossible or meaningless: their readers must not fail on them.
    let figure = |name: &str, value: f64| changed(&|model| model.parameters["model"][name] = value.into());
    let absurd = [
        figure("idle_watts", 1e300),
        figure("clock_max_mhz", 0.0),
        // It would be too large for the state's topic.
        changed(&|model| model.parameters["more"] = vec![1e9; 90_000].into()),
        changed(&|model| {
            for forest in ["rates", "power"] {
                let trees = model.parameters["model"][forest]["trees"].as_array_mut().unwrap();
                *trees = vec![trees[0].clone(); 1_001];
            }
        }),
        changed(&|model| {
            // A single leaf: no feature, 1e30 in single precision.
            let bytes = [u16::MAX.to_le_bytes().as_slice(), &1e30_f32.to_le_bytes()].concat();
            let tree: serde_json::Value = STANDARD.encode(bytes).into();
            let trees = model.parameters["model"]["rates"]["trees"].as_array_mut().unwrap();
            trees.fill(tree);
        }),
    ];
    assert_eq!(with(&absurd, true).stage.tally().models_ignored.damaged, 5);
    let elsewhere = changed(&|model| model.name = "partition/other".into());
    let older = changed(&|model| (model.time, model.version) = (at(-1), "6".into()));
    let foreign = changed(&|model| model.name = "power/board".into());
    let added = with(&[form.clone(), damaged.clone(), elsewhere, foreign], true);
    let tally = added.stage.tally();
    assert_eq!((tally.models, tally.models_ignored.version, tally.models_ignored.damaged), (0, 1, 2));
    assert_eq!(added.shares(), [80, 20]);
    assert!(added.decisions.iter().all(|decision| decision.model_version.is_none()));

    let kept = with(&[good.clone(), older, form, damaged], true);
    let ignored = kept.stage.tally().models_ignored;
    assert_eq!((ignored.older, ignored.version, ignored.damaged), (1, 1, 1));
    assert!(kept.decisions.iter().any(|decision| decision.model_version.as_deref() == Some("partition/board@7")));

    // Windows without profiling metrics: the model needs them.
    let blind = with(std::slice::from_ref(&good), false);
    assert_eq!(blind.shares(), [80, 20]);
    let words = "partition/board@7 is not used: workload a/steep was measured without sm_active_ratio";
    let shared = |decision: &&Decision| decision.reason.starts_with("sharing GPU-0 with");
    assert!(blind.decisions.iter().filter(shared).all(|decision| decision.model_version.is_none()));
    blind.assert_reason("a/steep", words);
    let change = blind.changes()[6];
    assert!(change.reason.contains("as predicted by the additive model; partition/board@7 is not used"), "{}", change.reason);

    // A board that idles at more than the jobs drew is another one.
    let idle = with(&[figure("idle_watts", 80.0)], true);
    assert_eq!(idle.shares(), [80, 20]);
    let reason = &idle.last("a/steep").reason;
    assert!(reason.contains("partition/board@7 is not used") && reason.contains("idles at 80 W"), "{reason}");

    // One that is withdrawn decides nothing any more.
    let mut withdrawn = Site::new(in_turn());
    withdrawn.profiled = true;
    withdrawn.learn(&good);
    withdrawn.run(50);
    withdrawn.withdraw("partition/board");
    withdrawn.crash();
    withdrawn.run(70);
    assert_eq!(withdrawn.shares(), [80, 20]);
    assert!(withdrawn.decisions.iter().all(|decision| decision.model_version.is_none()));
}
