//! A test bench for `seek`: remembered measurements are set by hand, and the next step is planned from them.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, EfficiencyWindow, Layout, Model, Workload};
use serde_json::json;

use super::knob::SeekKnob;
use super::phase::JobPhases;
use super::{LayoutKey, OperatingPoint, SeekChange, SeekPlanner, SeekState, SeekStep, StartingLayout, TabuLayout, cap_curve};
use crate::controller::testing::{ControllerBench, layout};
use crate::controller::{ControllerContext, ControllerName, ControllerObjective, ControllerState};
use crate::models::ModelRegistry;

/// A controller bench with measurements that are set by hand.
pub(super) struct SeekFixture {
    pub bench: ControllerBench,
    pub seek: SeekState,
    pub operating_point: OperatingPoint,
}

pub(super) const HERE: LayoutKey = LayoutKey { replicas: 6, threads: 50 };
pub(super) const OTHER: LayoutKey = LayoutKey { replicas: 6, threads: 100 };
pub(super) const THIRD: LayoutKey = LayoutKey { replicas: 9, threads: 30 };
/// The setting without a limit.
pub(super) const FREE: f64 = 400.0;

/// Layout, setting, power of all GPUs, throughput and windows of a point; three GPUs draw a third of the power each.
pub(super) type SettingFigures = (LayoutKey, f64, f64, f64, u32);

pub(super) fn phases(present: usize, all: &[&[SettingFigures]]) -> JobPhases {
    let point = |(layout_key, setting, watts, rate, windows): &SettingFigures| {
        json!([layout_key.replicas, layout_key.threads, setting, watts / 3.0, watts, rate, windows])
    };
    let all: Vec<_> = all.iter().map(|points| json!({"points": points.iter().map(point).collect::<Vec<_>>()})).collect();
    serde_json::from_value(json!({"all": all, "present": present})).unwrap()
}

impl SeekFixture {
    /// Builds a fixture in the starting layout at this cap, in the first of these phases.
    pub fn new(setting: f64, all: &[&[SettingFigures]]) -> Self {
        let base = Some(StartingLayout { layout_key: HERE, own: None });
        let seek = SeekState { base, phases: phases(0, all), began: EventTime::from_seconds(0.0), ..SeekState::default() };
        Self {
            bench: ControllerBench::new(ControllerName::Hybrid),
            seek,
            operating_point: OperatingPoint { layout_key: HERE, setting },
        }
    }

    /// Puts the workload into another layout.
    pub fn at(mut self, layout_key: LayoutKey) -> Self {
        self.operating_point.layout_key = layout_key;
        let set = layout(layout_key.replicas, layout_key.threads, 3);
        self.bench.workload.layout =
            Layout { power_limit_watts: Some(self.operating_point.setting).filter(|watts| *watts < FREE), ..set };
        self
    }

    pub fn knob(&self) -> SeekKnob {
        SeekKnob::power_limit(&self.bench.workload, None, &self.bench.settings).unwrap()
    }

    pub fn view<T>(&self, of: impl FnOnce(&mut SeekPlanner<'_>) -> T) -> T {
        let ControllerBench { workload, settings, models, remaining_seconds, state, now, .. } = &self.bench;
        let context = ControllerContext {
            workload: Some(workload),
            last_actuation: None,
            remaining_seconds: *remaining_seconds,
            checkpoint_time: None,
            training: None,
            settings,
            models: models.as_ref(),
        };
        let (knob, learned) = (self.knob(), cap_curve(ControllerName::PowerCap, workload, &context));
        let (seek, operating_point) = (&self.seek, self.operating_point);
        of(&mut SeekPlanner {
            seek,
            state,
            operating_point,
            knob: &knob,
            workload,
            context: &context,
            now: *now,
            gpus: 3,
            hot: false,
            learned,
        })
    }

    pub fn plan(&self, layouts: bool) -> SeekStep {
        self.view(|view| view.plan(layouts))
    }

    fn reference(&self) -> Option<f64> {
        self.seek.reference_throughput(self.seek.phases.present().unwrap(), HERE, &self.knob(), &self.bench.settings)
    }

    fn reference_energy(&self) -> Option<f64> {
        self.seek.reference_energy(self.seek.phases.present().unwrap(), HERE, &self.knob(), &self.bench.settings)
    }
}

#[test]
fn throughput_is_compared_with_the_starting_layouts_without_a_limit_or_with_what_replaces_it() {
    let reference = |all: &[&[SettingFigures]]| SeekFixture::new(FREE, all).reference();
    assert_eq!(reference(&[&[(HERE, FREE, 1_000.0, 100.0, 8), (OTHER, FREE, 1_000.0, 120.0, 8)]]), Some(100.0));
    assert_eq!(reference(&[&[(HERE, FREE, 1_000.0, 100.0, 7)]]), None, "not measured for long enough");
    assert_eq!(reference(&[&[(HERE, 300.0, 900.0, 95.0, 8), (OTHER, 300.0, 900.0, 110.0, 8)]]), None, "only with caps");
    // Another layout replaces it as the reference; the best one, if there are more.
    let there: &[SettingFigures] = &[(OTHER, FREE, 1_000.0, 120.0, 8)];
    assert_eq!(reference(&[there]), Some(120.0));
    assert_eq!(reference(&[&[there[0], (THIRD, FREE, 1_000.0, 130.0, 3)]]), Some(130.0));
    assert_eq!(reference(&[&[(OTHER, FREE, 1_000.0, 120.0, 7)]]), None);
    // One that had half the throughput in another phase has half of it here; one that had more of it there is not trusted to.
    let in_other = |rate| [(HERE, FREE, 1_000.0, 100.0, 8), (OTHER, FREE, 1_000.0, rate, 3)];
    assert_eq!(reference(&[there, &in_other(50.0)]), Some(240.0));
    assert_eq!(reference(&[there, &in_other(150.0)]), Some(120.0));
    assert_eq!(reference(&[there, &in_other(150.0), &in_other(80.0)]), Some(150.0));
}

#[test]
fn savings_are_reckoned_against_the_starting_layouts_energy_or_what_others_took_of_it_elsewhere() {
    let energy = |all: &[&[SettingFigures]]| SeekFixture::new(FREE, all).reference_energy();
    assert_eq!(energy(&[&[(HERE, FREE, 1_000.0, 100.0, 3), (OTHER, FREE, 900.0, 180.0, 3)]]), Some(10.0));
    let there: &[SettingFigures] = &[(HERE, FREE, 1_000.0, 100.0, 2), (OTHER, FREE, 800.0, 200.0, 3)];
    assert_eq!(energy(&[there]), None, "no phase shows what the other layout takes of it");
    // Twice and three times the energy of the other one.
    let twice: &[SettingFigures] = &[(HERE, FREE, 1_000.0, 100.0, 3), (OTHER, FREE, 900.0, 180.0, 3)];
    let thrice: &[SettingFigures] = &[(HERE, FREE, 1_200.0, 100.0, 3), (OTHER, FREE, 800.0, 200.0, 3)];
    assert_eq!(energy(&[there, twice]), Some(8.0));
    assert_eq!(energy(&[there, twice, thrice]), Some(10.0));
    // The mean of the layouts' figures, 8 and 20 J, each measured without a cap.
    let third = |setting| (THIRD, setting, 2_000.0, 100.0, 3);
    let equal = [third(FREE), (HERE, FREE, 2_000.0, 100.0, 3)];
    assert_eq!(energy(&[&[there[1], third(FREE)], twice, &equal]), Some(14.0));
    assert_eq!(energy(&[&[there[1], third(300.0)], twice, &equal]), Some(8.0));
}

/// Returns a turn of the knob and a change of the layout, both not judged yet.
fn changing() -> (SeekState, ControllerState, SeekChange) {
    let change = |id: &str, to: Layout| SeekChange {
        id: id.into(),
        from: layout(6, 50, 3),
        to,
        generation: 2,
        hold_out: false,
        revert: false,
    };
    let trial = change("moved", layout(9, 30, 3));
    let turn = change("turned", Layout { power_limit_watts: Some(300.0), ..layout(6, 50, 3) });
    let seek = SeekState { trial: Some(trial.clone()), turn: Some(turn), ..SeekState::default() };
    (seek, ControllerState::default(), trial)
}

#[test]
fn what_the_actuator_undid_is_not_tried_again_for_a_day() {
    let bench = ControllerBench::new(ControllerName::Hybrid);
    let now = bench.now;
    let until = now.plus_seconds(86_400.0);
    let after_outcome = |id: &str, outcome| {
        let (mut seek, mut state, _) = changing();
        let barred = |spot| TabuLayout { layout_key: spot, until: now, why: "before".into() };
        seek.barred = vec![barred(OTHER), barred(THIRD)];
        let actuation = Actuation { decision_id: id.into(), time: now, outcome, reason: "why".into(), ..Actuation::default() };
        let note = seek.on_actuation(&mut state, &bench.workload, &actuation, now, &bench.settings);
        (note, seek, state)
    };
    let (note, seek, _) = after_outcome("older", ActuationOutcome::RolledBack);
    assert_eq!((note, seek.trial, seek.turn), (None, changing().0.trial, changing().0.turn), "that is judged by now");
    for (id, outcome, words, restarts) in [
        ("moved", ActuationOutcome::RolledBack, "the last change was rolled back: why", vec!["moved/rolled-back"]),
        ("moved", ActuationOutcome::Failed, "the last change failed: why", vec![]),
        ("turned", ActuationOutcome::RolledBack, "the last change was rolled back: why", vec![]),
        ("turned", ActuationOutcome::Failed, "the last change failed: why", vec![]),
    ] {
        let (note, seek, state) = after_outcome(id, outcome);
        let note = note.unwrap();
        assert_eq!((note.reason.as_str(), note.concerns.as_str(), note.validation), (words, id, ChangeValidation::Failed));
        assert_eq!(note.hold_until, Some(until));
        assert_eq!((seek.trial, seek.turn, seek.restoring), (None, None, Some(layout(6, 50, 3))));
        assert_eq!(
            state.restarts.iter().map(|restart| restart.decision.as_str()).collect::<Vec<_>>(),
            restarts,
            "{id} {outcome:?}"
        );
        let barred: Vec<_> = seek.barred.iter().map(|barred| (barred.layout_key, barred.why.as_str())).collect();
        if id == "moved" {
            assert_eq!((barred, seek.knob_barred), (vec![(OTHER, "before"), (THIRD, words)], None));
            assert_eq!(seek.barred[1].until, until);
        } else {
            assert_eq!(barred, [(OTHER, "before"), (THIRD, "before")]);
            assert_eq!(seek.knob_barred.map(|barred| (barred.until, barred.why)), Some((until, words.to_owned())));
        }
    }
}

#[test]
fn a_layout_that_no_decision_made_is_from_outside_unless_it_is_what_was_before() {
    let bench = ControllerBench::new(ControllerName::Hybrid);
    let follow = |seek: &mut SeekState, layout: Layout| {
        let workload = Workload { layout, generation: 3, ..bench.workload.clone() };
        seek.follow_layout(ControllerName::Hybrid, &mut ControllerState::default(), &workload, bench.now)
    };
    let known = || SeekState {
        base: Some(StartingLayout { layout_key: HERE, own: None }),
        generation: Some(2),
        highest_mhz: Some(1_400.0),
        ..changing().0
    };
    let mut seek = known();
    assert_eq!(follow(&mut seek, layout(6, 50, 3)), None, "a roll-back");
    assert_eq!(seek.trial, changing().0.trial);
    let mut seek = known();
    let note = follow(&mut seek, layout(3, 100, 3)).unwrap();
    assert_eq!((note.concerns.as_str(), note.validation), ("moved", ChangeValidation::None));
    assert_eq!((seek.base.map(|base| base.layout_key), seek.began), (Some(LayoutKey { replicas: 3, threads: 100 }), bench.now));
    assert_eq!((seek.trial, seek.highest_mhz), (None, Some(1_400.0)), "boards stay what they are");
    // Also after the undone change is forgotten.
    let mut seek = SeekState { trial: None, turn: None, restoring: Some(layout(6, 50, 3)), ..known() };
    assert_eq!((follow(&mut seek, layout(6, 50, 3)), seek.restoring), (None, None));
}

#[test]
fn what_the_user_had_set_is_the_setting_of_the_knob_that_is_turned() {
    let own = |name, decision_id: Option<&str>| {
        let mut bench = ControllerBench::new(name);
        let set = Layout { power_limit_watts: Some(310.0), sm_clock_mhz: Some(1_200.0), ..bench.workload.layout.clone() };
        bench.workload.layout = set;
        bench.workload.decision_id = decision_id.map(str::to_owned);
        let mut seek = SeekState::default();
        assert_eq!(seek.follow_layout(name, &mut ControllerState::default(), &bench.workload, bench.now), None);
        seek.base.and_then(|base| base.own)
    };
    assert_eq!(own(ControllerName::Frequency, None), Some(1_200.0));
    assert_eq!(own(ControllerName::PowerCap, None), Some(310.0));
    assert_eq!(own(ControllerName::PowerCap, Some("a decision made it")), None);
}

#[test]
fn a_layout_is_barred_until_its_time_and_no_longer() {
    let mut bench = ControllerBench::new(ControllerName::Hybrid);
    bench.feed(390.0, 0.08);
    let next = bench.now.plus_seconds(60.0);
    let barred = |spot, seconds| TabuLayout { layout_key: spot, until: next.plus_seconds(seconds), why: String::new() };
    bench.state.seek.as_mut().unwrap().barred = vec![barred(OTHER, 0.0), barred(THIRD, 1.0), barred(HERE, -1.0)];
    bench.feed(390.0, 0.08);
    assert_eq!(bench.state.seek.unwrap().barred.iter().map(|barred| barred.layout_key).collect::<Vec<_>>(), [THIRD]);
}

#[test]
fn memory_activity_is_counted_per_sample_and_none_is_unknown() {
    let dram_seconds = |ratio| {
        let mut bench = ControllerBench::new(ControllerName::Hybrid);
        let window = EfficiencyWindow { mean_dram_active_ratio: Some(ratio), ..bench.window(400.0, 0.05) };
        bench.decide(&window);
        bench.state.seek.unwrap().phases.present().unwrap().dram_seconds_per_sample
    };
    // 60 samples/s.
    assert_eq!((dram_seconds(0.3), dram_seconds(0.0)), (Some(0.005), None));
}

#[test]
fn a_layout_whose_starting_one_was_never_measured_here_is_not_slowed_down_against_itself() {
    // It had half of the starting layout's throughput elsewhere, so that 240 samples/s would be demanded of it: of 120 those are
    // enough that it has without a limit, less 7 %.
    let here: &[SettingFigures] = &[(OTHER, FREE, 1_170.0, 120.0, 8), (OTHER, 330.0, 990.0, 112.0, 8)];
    let elsewhere: &[SettingFigures] = &[(HERE, FREE, 1_000.0, 100.0, 8), (OTHER, FREE, 1_000.0, 50.0, 3)];
    let step = SeekFixture::new(330.0, &[here, elsewhere]).at(OTHER).plan(false);
    let SeekStep::Stay(why) = &step else { panic!("{step:?}") };
    assert!(why.contains("holds 330 W: 8.839 J/sample at 93 % of the throughput"), "{why}");
}

#[test]
fn ten_settings_of_a_layout_are_enough_and_those_of_another_one_are_not_counted() {
    let of = |spot: LayoutKey, rate: f64| (0..9).map(move |n| (spot, 390.0 - f64::from(n), 1_170.0, rate, 3));
    let plan = |other: LayoutKey| {
        let mut points: Vec<SettingFigures> = vec![(HERE, FREE, 1_200.0, 100.0, 8)];
        points.extend(of(other, 100.0));
        SeekFixture::new(FREE, &[&points]).plan(false)
    };
    let why = |step: SeekStep| match step {
        SeekStep::Turn { why, .. } | SeekStep::Stay(why) => why,
        step => panic!("{step:?}"),
    };
    let (mine, others) = (why(plan(HERE)), why(plan(OTHER)));
    assert!(!mine.contains("; tries "), "{mine}");
    assert!(others.contains("; tries "), "{others}");
}

/// Returns the root of the watts in samples/s, or another power of them, scaled to 100 samples/s at 400 W.
fn law(exponent: f64, shape: [u32; 4]) -> ModelRegistry {
    let a = 100.0 / 400_f64.powf(exponent);
    let fit = json!({"a": a, "b": exponent, "offset_watts": 0.0, "r_squared": 0.9, "mape_ratio": 0.02, "peak_watts": null, "peak_measured": false});
    let power = json!({"a": a, "b": exponent, "r_squared": 0.9, "mape_ratio": 0.02});
    let curve =
        json!({"power_law": power, "offset_power_law": fit, "verdict": "informative", "watts_range": [200.0, 400.0], "count": 9});
    let parameters = json!({"format": "eadt.cap-curve.v1", "gpu_model": "A100", "layout": shape, "curve": curve});
    let mut models = ModelRegistry::default();
    models.put(&Model { name: "cap-curve/eadt/llm-training".into(), version: "3".into(), parameters, ..Model::default() });
    models
}

/// Returns the advised setting, if 100 samples/s were measured at 400 W without a limit.
fn advised(change: impl FnOnce(&mut SeekFixture)) -> Option<f64> {
    let mut desk = SeekFixture::new(FREE, &[&[(HERE, FREE, 1_200.0, 100.0, 8)]]);
    desk.bench.workload.gpu_model = Some("A100".into());
    desk.bench.models = Some(law(0.5, [6, 50, 6, 2]));
    change(&mut desk);
    match desk.plan(false) {
        SeekStep::Turn { to, why } => Some(to).filter(|_| why.contains(" expects ")),
        _ => None,
    }
}

#[test]
fn a_learned_curve_advises_the_cap_of_the_least_score_with_enough_throughput() {
    // 93 % of the throughput at 0.93² of 400 W: 346 W are the first whole ones.
    assert_eq!(advised(|_| ()), Some(346.0));
    assert_eq!(advised(|desk| desk.bench.settings.max_slowdown_ratio = 0.2), Some(256.0));
    // If throughput falls nearly as much as power, 1.8 % of power is 7 W, which is too little to be distinguished.
    let nearly = |slowdown: f64| {
        advised(|desk| {
            desk.bench.models = Some(law(0.95, [6, 50, 6, 2]));
            desk.bench.settings.max_slowdown_ratio = slowdown;
        })
    };
    assert_eq!((nearly(0.018), nearly(0.03)), (None, Some((400.0 * 0.97_f64.powf(1.0 / 0.95)).ceil())));
    // With a power of 0.6 the energy falls with the cap, and its product with time rises.
    let steep = |objective| {
        move |desk: &mut SeekFixture| {
            desk.bench.models = Some(law(0.6, [6, 50, 6, 2]));
            desk.bench.settings.objective = objective;
        }
    };
    assert_eq!(advised(steep(ControllerObjective::Energy)), Some((400.0 * 0.93_f64.powf(1.0 / 0.6)).ceil()));
    assert_eq!(advised(steep(ControllerObjective::Edp)), None);
}

#[test]
fn a_learned_curve_is_asked_only_where_nothing_else_is_known_and_nothing_is_held_back() {
    let measured = |points: &[SettingFigures]| advised(|desk| desk.seek.phases = phases(0, &[points]));
    let free = (HERE, FREE, 1_200.0, 100.0, 8);
    assert_eq!(measured(&[free]), Some(346.0));
    assert_eq!(measured(&[free, (OTHER, 300.0, 900.0, 95.0, 8)]), Some(346.0), "that is of another layout");
    assert_eq!(measured(&[free, (HERE, 300.0, 900.0, 99.0, 8)]), None);
    // Another 8 % of throughput are another work.
    assert_eq!(measured(&[(HERE, FREE, 1_200.0, 107.0, 8)]), Some(346.0));
    assert_eq!(measured(&[(HERE, FREE, 1_200.0, 109.0, 8)]), None);
    // A layout that was measured only under a cap has no known throughput without one.
    let capped = advised(|desk| {
        let points = [free, (OTHER, 390.0, 1_170.0, 100.0, 8)];
        let models = Some(law(0.5, [6, 100, 6, 2]));
        let SeekFixture { bench, .. } = SeekFixture::new(390.0, &[]).at(OTHER);
        desk.bench.workload.layout = bench.workload.layout;
        desk.bench.models = models;
        desk.operating_point = OperatingPoint { layout_key: OTHER, setting: 390.0 };
        desk.seek.phases = phases(0, &[&points]);
    });
    assert_eq!(capped, None);
}
