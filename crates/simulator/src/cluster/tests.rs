use eadt_cluster::{ClusterRemedy, PolicyEdit, RollbackRequest, WorkloadChange};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, GpuTelemetry, JobLifecycle, Layout, TrainingProgress, UpdateMode};
use eadt_testing::cases;
use proptest::prelude::*;

use super::{ClusterSimulation, FastForwardTotals, Fault, JobSuspension, Scenario, SimulatedEvent, WorkloadScenario};
use crate::gpu::{SimulationNoise, WorkloadProfile};

const LLM: &str = "eadt/llm-training";

fn start() -> EventTime {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn at(seconds: f64) -> EventTime {
    start().plus_seconds(seconds)
}

fn scenario(faults: Vec<Fault>) -> Scenario {
    Scenario { faults, ..Scenario::default() }
}

fn run(cluster: &mut ClusterSimulation, to: f64) -> Vec<SimulatedEvent> {
    let mut events = Vec::new();
    cluster.step(at(to), &mut events);
    events
}

fn telemetry<'a>(events: &'a [SimulatedEvent], workload: &'a str, gpu: u32) -> Vec<&'a GpuTelemetry> {
    let of = |event: &'a SimulatedEvent| match event {
        SimulatedEvent::Telemetry(t) if t.workload.as_deref() == Some(workload) && t.gpu_index == Some(gpu) => Some(&**t),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn progress<'a>(events: &'a [SimulatedEvent], workload: &str) -> Vec<&'a TrainingProgress> {
    let of = |event: &'a SimulatedEvent| match event {
        SimulatedEvent::Progress(p) if p.workload == workload => Some(&**p),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn change(cluster: &ClusterSimulation, id: &str, replicas: u32, percentage: u32) -> WorkloadChange {
    let state = &cluster.managed()[0].state;
    WorkloadChange {
        workload: LLM.into(),
        decision_id: id.into(),
        decision_time: at(60.0),
        generation: state.generation,
        layout: Layout {
            replicas: Some(replicas),
            mps_thread_percentage: Some(percentage),
            world_size: Some(replicas),
            local_world_size: Some(replicas / 3),
            ..state.layout.clone()
        },
        restarts: true,
        reverts: false,
        ready_within_seconds: 600.0,
        approved_by: None,
    }
}

#[test]
fn the_default_is_the_seeds_initial_configuration() {
    let cluster = ClusterSimulation::new(Scenario::default(), start()).unwrap();
    let managed = cluster.managed();
    let state = &managed[0].state;
    assert_eq!((state.workload.as_str(), state.kind.as_str(), state.gpus), (LLM, "StatefulSet", Some(3)));
    let layout = &state.layout;
    assert_eq!((layout.replicas, layout.mps_thread_percentage), (Some(6), Some(50)));
    assert_eq!((layout.world_size, layout.local_world_size), (Some(6), Some(2)));
    assert_eq!((state.global_batch_size, state.backend.as_deref()), (Some(576), Some("gloo")));
    assert_eq!(state.bounds.oversubscription_percentage_max, Some(200));
    assert_eq!(managed.len(), 2);
}

#[test]
fn a_scenario_is_a_toml_file_and_a_misspelt_key_is_refused() {
    let text =
        toml::to_string(&scenario(vec![Fault::Gap { workload: LLM.into(), from_seconds: 1.0, until_seconds: 2.0 }])).unwrap();
    let read: Scenario = toml::from_str(&text).unwrap();
    assert_eq!(toml::to_string(&read).unwrap(), text);
    read.check().unwrap();
    for wrong in ["sample_intervall_seconds = 1.0", "[[workloads]]\nname = \"a/b\"\nreplica = 3", "[[faults]]\nkind = \"gapp\""] {
        assert!(toml::from_str::<Scenario>(wrong).is_err(), "{wrong}");
    }
    // Declared controller settings are in the workload's events; others are absent there.
    let declared =
        "[[workloads]]\nname = \"a/b\"\n[workloads.controller_settings]\nmedian_windows = 3\n[[workloads]]\nname = \"a/c\"";
    let declared: Scenario = toml::from_str(declared).unwrap();
    let cluster = ClusterSimulation::new(declared, start()).unwrap();
    let declared: Vec<_> = cluster.managed().into_iter().map(|managed| managed.state.controller_settings.clone()).collect();
    assert_eq!(serde_json::to_value(declared).unwrap(), serde_json::json!([{ "median_windows": 3 }, null]));
    let wrong =
        Scenario { workloads: vec![WorkloadScenario { replicas: 0, ..WorkloadScenario::default() }], ..Scenario::default() };
    assert_eq!(
        wrong.check().unwrap_err().to_string(),
        "scenario: workload eadt/training: replicas is 0, but must be within 1 and 100000"
    );
}

#[test]
fn samples_and_progress_lie_on_the_edges_of_windows() {
    let mut cluster = ClusterSimulation::new(Scenario::default(), start()).unwrap();
    let events = run(&mut cluster, 121.0);
    let gpu = telemetry(&events, LLM, 0);
    assert_eq!(gpu.iter().map(|t| t.time).collect::<Vec<_>>(), (0..=120).map(|s| at(f64::from(s))).collect::<Vec<_>>());
    let job = progress(&events, LLM);
    assert_eq!(job.iter().map(|p| p.time).collect::<Vec<_>>(), (0..=24).map(|n| at(f64::from(n) * 5.0)).collect::<Vec<_>>());
    assert_eq!((job[0].phase, job[0].samples_total), (JobLifecycle::Started, Some(0.0)));
    assert!(job.windows(2).all(|pair| pair[0].samples_total < pair[1].samples_total));
    assert!(events.windows(2).all(|pair| pair[0].time() <= pair[1].time()), "in order of time");
}

#[test]
fn the_energy_counter_is_the_integral_of_what_is_drawn() {
    let mut cluster = ClusterSimulation::new(Scenario::default(), start()).unwrap();
    let events = run(&mut cluster, 601.0);
    for gpu in 0..3 {
        let samples = telemetry(&events, LLM, gpu);
        let counted = samples.last().unwrap().energy_joules_total.unwrap() - samples[0].energy_joules_total.unwrap();
        let integral: f64 = samples
            .windows(2)
            .map(|pair| f64::midpoint(pair[0].power_average_watts.unwrap(), pair[1].power_average_watts.unwrap()))
            .sum();
        assert!((counted / integral - 1.0).abs() < 1e-3, "{counted} {integral}");
        assert!(samples.last().unwrap().temperature_celsius.unwrap() > 45.0, "it warms up");
    }
}

#[test]
fn a_restart_stops_work_draws_idle_power_and_loses_some_work() {
    let mut cluster =
        ClusterSimulation::new(Scenario { noise: SimulationNoise::none(), ..Scenario::default() }, start()).unwrap();
    let before = run(&mut cluster, 310.0);
    let written = cluster.apply(&change(&cluster, "d1", 6, 40)).unwrap();
    assert_eq!((written.state.generation, written.state.time, written.state.ready_time), (2, at(310.0), None));
    assert_eq!(cluster.next_transition(), Some(at(430.0)));
    let down = run(&mut cluster, 430.0);
    assert_eq!(cluster.managed()[0].state.ready_time, Some(at(430.0)));
    assert_eq!(cluster.managed()[0].applied.as_ref().unwrap().ready_time, Some(at(430.0)));
    let after = run(&mut cluster, 461.0);

    let watts = |events: &[SimulatedEvent]| telemetry(events, LLM, 0).iter().map(|t| t.power_watts.unwrap()).collect::<Vec<_>>();
    let busy = watts(&before)[300];
    // The instant at the change still shows the old processes.
    assert!((watts(&down)[0] - busy).abs() < 1.0);
    assert!(watts(&down)[1..].iter().all(|w| *w < 0.5 * busy), "{:?}", watts(&down));
    assert_eq!(telemetry(&down, LLM, 0)[1].processes, Some(0));
    // The last event of the old processes, then silence.
    assert_eq!(progress(&down, LLM).iter().map(|p| p.time).collect::<Vec<_>>(), [at(310.0)]);
    assert_eq!(telemetry(&after, LLM, 0)[1].processes, Some(2));

    let done = progress(&down, LLM)[0].samples_total.unwrap();
    let again = progress(&after, LLM)[0];
    let rate = done / 310.0;
    assert_eq!(again.time, at(435.0));
    let lost = done - (again.samples_total.unwrap() - 5.0 * rate);
    assert!((lost / rate - 60.0).abs() < 5.0, "about a minute of work is redone: {lost} at {rate}/s");
    assert_eq!(again.checkpoint_time, Some(at(250.0)));
    assert_eq!(again.mps_thread_percentage, Some(40));
}

#[test]
fn a_cap_turns_while_the_job_runs() {
    let mut cluster = ClusterSimulation::new(scenario(vec![]), start()).unwrap();
    run(&mut cluster, 70.0);
    let layout = Layout { power_limit_watts: Some(200.0), ..cluster.managed()[0].state.layout.clone() };
    let written = cluster.apply(&WorkloadChange { layout, restarts: false, ..change(&cluster, "d1", 6, 50) }).unwrap();
    assert_eq!((written.state.ready_time, written.restarts.len()), (Some(at(70.0)), 0));
    let events = run(&mut cluster, 80.0);
    let gpu = telemetry(&events, LLM, 0);
    assert!(gpu[0].power_average_watts.unwrap() > 210.0);
    assert!(gpu[1..].iter().all(|t| t.power_average_watts.unwrap() < 206.0 && t.power_limit_watts == Some(200.0)));
    assert_eq!(gpu[1].throttle_reasons.as_deref(), Some("sw_power_cap"));
    assert_eq!(progress(&events, LLM).len(), 2);
}

#[test]
fn a_change_is_written_once_and_only_for_its_generation() {
    let mut cluster = ClusterSimulation::new(Scenario::default(), start()).unwrap();
    run(&mut cluster, 70.0);
    let good = change(&cluster, "d1", 6, 40);
    let written = cluster.apply(&good).unwrap();
    run(&mut cluster, 80.0);
    assert_eq!(cluster.apply(&good), Ok(written), "asked again, it is the same");
    let refused = |cluster: &mut ClusterSimulation, change: &WorkloadChange| cluster.apply(change).unwrap_err().remedy;
    assert_eq!(refused(&mut cluster, &WorkloadChange { decision_id: "d2".into(), ..good.clone() }), ClusterRemedy::Conflict);
    let rolling = WorkloadChange { decision_id: "d2".into(), generation: 2, ..good.clone() };
    assert_eq!(refused(&mut cluster, &rolling), ClusterRemedy::Conflict, "one rollout at a time");
    assert_eq!(refused(&mut cluster, &WorkloadChange { workload: "a/b".into(), ..good }), ClusterRemedy::Refused);
    assert_eq!(cluster.managed()[0].state.generation, 2);
}

#[test]
fn what_never_becomes_ready_can_be_taken_back() {
    let fault = Fault::NeverReady { workload: LLM.into(), from_seconds: 0.0, until_seconds: 100.0 };
    let mut cluster = ClusterSimulation::new(scenario(vec![fault]), start()).unwrap();
    run(&mut cluster, 70.0);
    cluster.apply(&change(&cluster, "d1", 9, 35)).unwrap();
    assert_eq!(cluster.next_transition(), Some(at(670.0)), "its deadline");
    run(&mut cluster, 670.0);
    assert_eq!(cluster.managed()[0].state.ready_time, None);
    let back =
        RollbackRequest { workload: LLM.into(), decision_id: "d1".into(), generation: 2, by_job: false, reason: "late".into() };
    let restored = cluster.roll_back(&back).unwrap();
    assert_eq!((restored.state.generation, restored.state.layout.replicas), (3, Some(6)));
    assert_eq!(cluster.roll_back(&back), Ok(restored), "asked again, it is the same");
    let events = run(&mut cluster, 796.0);
    assert_eq!(cluster.managed()[0].state.ready_time, Some(at(790.0)));
    assert!(!progress(&events, LLM).is_empty(), "the old layout runs again");
    assert_eq!(cluster.next_transition(), None);
}

#[test]
fn faults_silence_sensors_and_reset_counters_but_stop_no_work() {
    let mut cluster = ClusterSimulation::new(
        scenario(vec![
            Fault::DeviceLost { workload: LLM.into(), gpu: 1, from_seconds: 20.0, until_seconds: None },
            Fault::CounterReset { workload: LLM.into(), gpu: 0, at_seconds: 30.0 },
            Fault::Gap { workload: "eadt/vision-pretraining".into(), from_seconds: 10.0, until_seconds: 40.0 },
        ]),
        start(),
    )
    .unwrap();
    let mut healthy = ClusterSimulation::new(scenario(vec![]), start()).unwrap();
    let (events, reference) = (run(&mut cluster, 61.0), run(&mut healthy, 61.0));
    assert_eq!(telemetry(&events, LLM, 1).len(), 20);
    let counter = |second: usize| telemetry(&events, LLM, 0)[second].energy_joules_total.unwrap();
    assert!(counter(30) > counter(29) && counter(31) < counter(30) && counter(32) > counter(31));
    assert_eq!(telemetry(&events, "eadt/vision-pretraining", 0).len(), 31);
    assert_eq!(progress(&events, "eadt/vision-pretraining").len(), 7);
    assert_eq!(progress(&events, LLM).last(), progress(&reference, LLM).last());
}

/// Returns a GPU of two jobs, the second of which comes after a minute; the first is away from the third to the fourth.
fn shared_gpu() -> Scenario {
    let one = WorkloadScenario { gpus: 1, replicas: 1, ..WorkloadScenario::constant("a/one", WorkloadProfile::COMPUTE) };
    let other = WorkloadScenario {
        shares_gpus_of: Some("a/one".into()),
        away: vec![JobSuspension { from_seconds: 0.0, until_seconds: 60.0 }],
        schedule: WorkloadScenario::constant("", WorkloadProfile::MEMORY).schedule,
        ..WorkloadScenario { name: "a/other".into(), ..one.clone() }
    };
    let one = WorkloadScenario { away: vec![JobSuspension { from_seconds: 180.0, until_seconds: 240.0 }], ..one };
    Scenario { workloads: vec![one, other], noise: SimulationNoise::none(), ..Scenario::default() }
}

#[test]
fn jobs_that_share_a_gpu_slow_each_other_down_and_its_power_is_divided() {
    let mut cluster = ClusterSimulation::new(shared_gpu(), start()).unwrap();
    let events = run(&mut cluster, 300.0);
    let (one, other) = (telemetry(&events, "a/one", 0), telemetry(&events, "a/other", 0));
    let second = |sample: &GpuTelemetry| sample.time.seconds_since(start());
    let at = |of: &[&GpuTelemetry], when: f64| -> Option<GpuTelemetry> {
        of.iter().find(|sample| second(sample) == when).map(|sample| (*sample).clone())
    };
    let (alone, mine, theirs) = (at(&one, 50.0).unwrap(), at(&one, 100.0).unwrap(), at(&other, 100.0).unwrap());
    assert_eq!((alone.tenants, alone.share), (None, None));
    assert_eq!((mine.tenants, theirs.tenants), (Some(2), Some(2)));
    assert_eq!(
        (&mine.device, mine.energy_joules_total, mine.power_watts),
        (&theirs.device, theirs.energy_joules_total, theirs.power_watts)
    );
    assert!((mine.share.unwrap() + theirs.share.unwrap() - 1.0).abs() < 1e-9);
    assert!(mine.power_watts > alone.power_watts, "{:?} W together, {:?} W alone", mine.power_watts, alone.power_watts);
    let rate = |of: &str, from: f64, to: f64| {
        let total = |when: f64| {
            let report = progress(&events, of).into_iter().find(|p| p.time.seconds_since(start()) == when).unwrap();
            report.samples_total.unwrap()
        };
        (total(to) - total(from)) / (to - from)
    };
    assert!(rate("a/one", 100.0, 150.0) < 0.99 * rate("a/one", 10.0, 50.0));
    assert!(rate("a/other", 200.0, 230.0) > 1.01 * rate("a/other", 100.0, 150.0));

    // A node that goes reports it once; who comes back begins another stay.
    assert!(at(&other, 60.0).is_none() && at(&other, 61.0).is_some() && at(&one, 200.0).is_none());
    assert!(one.iter().filter(|sample| sample.last).map(|sample| second(sample)).eq([181.0]));
    assert_eq!(at(&one, 250.0).unwrap().tenure, Some(2));
    assert_eq!(at(&other, 200.0).unwrap().tenants, None);
}

/// A fault is one of the GPU, whichever of its jobs it names.
#[test]
fn a_shared_gpu_resets_one_counter_for_all_its_jobs() {
    for named in ["a/one", "a/other"] {
        let fault = Fault::CounterReset { workload: named.into(), gpu: 0, at_seconds: 100.0 };
        let mut cluster = ClusterSimulation::new(Scenario { faults: vec![fault], ..shared_gpu() }, start()).unwrap();
        let events = run(&mut cluster, 150.0);
        let counters = |of: &str| -> Vec<f64> {
            let samples = telemetry(&events, of, 0);
            let late = samples.iter().filter(|sample| sample.time.seconds_since(start()) >= 90.0);
            late.map(|sample| sample.energy_joules_total.unwrap()).collect()
        };
        let one = counters("a/one");
        assert_eq!(one, counters("a/other"), "{named}");
        assert_eq!(one.windows(2).filter(|pair| pair[1] < pair[0]).count(), 1, "{named}");
    }
}

#[test]
fn who_shares_with_whom_is_checked() {
    let with = |change: fn(&mut Scenario)| {
        let mut scenario = shared_gpu();
        change(&mut scenario);
        scenario.check().map_err(|error| error.to_string())
    };
    assert_eq!(with(|_| {}), Ok(()));
    let refused = |change, part: &str| {
        let error = with(change).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    refused(|s| s.workloads[1].shares_gpus_of = Some("a/none".into()), "names a/none, which is no workload before it");
    refused(|s| s.workloads[1].gpus = 2, "give both the same board and gpus");
    refused(|s| s.workloads[0].shares_gpus_of = Some("a/other".into()), "no workload before it");
    refused(|s| s.workloads[1].away[0].until_seconds = 0.0, "away from 0 until 0 s");
}

#[test]
fn a_planned_job_ends_once_and_its_gpus_go_idle() {
    let job = WorkloadScenario { planned_samples: Some(2000.0), ..WorkloadScenario::constant("a/b", WorkloadProfile::MID) };
    let mut cluster = ClusterSimulation::new(Scenario { workloads: vec![job], ..Scenario::default() }, start()).unwrap();
    let events = run(&mut cluster, 120.0);
    let job = progress(&events, "a/b");
    let ends: Vec<_> = job.iter().filter(|p| p.phase == JobLifecycle::Finished).collect();
    assert_eq!((ends.len(), ends[0].last, ends[0].samples_total), (1, true, Some(2000.0)));
    assert_eq!(job.last(), Some(ends[0]));
    assert_eq!(telemetry(&events, "a/b", 0).last().unwrap().processes, Some(0));
    assert!(job[1].remaining_seconds.is_some());
}

proptest! {
    #![proptest_config(cases(12))]

    /// However time is cut into steps and wherever the state is saved and read again, the events are the same, byte for byte.
    #[test]
    fn steps_and_restarts_change_nothing(cuts in prop::collection::vec(1_u32..120, 1..12), seed: u64) {
        let mut scenario = Scenario { noise: SimulationNoise { seed, ..SimulationNoise::default() }, ..Scenario::default() };
        scenario.workloads.extend(shared_gpu().workloads);
        let bytes = |events: &[SimulatedEvent]| {
            events.iter().flat_map(|event| match event {
                SimulatedEvent::Telemetry(t) => serde_json::to_vec(t).unwrap(),
                SimulatedEvent::Progress(p) => serde_json::to_vec(p).unwrap(),
            }).collect::<Vec<u8>>()
        };
        let mut whole = ClusterSimulation::new(scenario.clone(), start()).unwrap();
        let mut cut = ClusterSimulation::new(scenario, start()).unwrap();
        let mut pieces = Vec::new();
        let mut now = 70.0;
        let mut expected = run(&mut whole, now);
        whole.apply(&change(&whole, "d1", 9, 35)).unwrap();
        pieces.append(&mut run(&mut cut, now));
        cut.apply(&change(&cut, "d1", 9, 35)).unwrap();
        for cut_seconds in cuts {
            now += f64::from(cut_seconds);
            pieces.append(&mut run(&mut cut, now));
            cut = serde_json::from_str(&serde_json::to_string(&cut).unwrap()).unwrap();
        }
        expected.append(&mut run(&mut whole, now));
        prop_assert!(bytes(&pieces) == bytes(&expected));
        prop_assert_eq!(whole.managed(), cut.managed());
    }
}

/// Passing over time without samples, and what samples report, are two ways through the same days: restarts, a power cap,
/// changes of phase and lost work included.
#[test]
fn gliding_and_sampling_come_to_the_same() {
    let quiet = || Scenario { noise: SimulationNoise { gain_ratio: 0.0, ..SimulationNoise::default() }, ..Scenario::default() };
    let (mut sampled, mut glided) =
        (ClusterSimulation::new(quiet(), start()).unwrap(), ClusterSimulation::new(quiet(), start()).unwrap());
    let mut events = Vec::new();
    let mut sums = [FastForwardTotals::default(); 2];
    // Changes at 20 and 40 minutes and after two hours; the first phases end after 60 and 75 minutes.
    for (until, id, replicas, percentage, watts) in [
        (1210.0, "a", 9, 50, None),
        (2410.0, "b", 9, 50, Some(250.0)),
        (7210.0, "c", 3, 100, Some(300.0)),
        (12_000.0, "", 0, 0, None),
    ] {
        sampled.step(at(until), &mut events);
        glided.fast_forward(at(until), &mut sums);
        assert_eq!(sampled.now(), glided.now());
        if !id.is_empty() {
            let mut change = change(&glided, id, replicas, percentage);
            change.restarts = watts.is_none() || replicas == 3;
            change.layout.power_limit_watts = watts;
            sampled.apply(&change).unwrap();
            glided.apply(&change).unwrap();
        }
    }
    for (workload, gpus, sum) in [(LLM, 3, sums[0]), ("eadt/vision-pretraining", 2, sums[1])] {
        let metered: f64 =
            (0..gpus).map(|gpu| telemetry(&events, workload, gpu).last().unwrap().energy_joules_total.unwrap()).sum();
        // The temperature moves within a minute, and with it a little power.
        assert!(
            (sum.energy_joules / metered - 1.0).abs() < 2e-3,
            "{workload}: {} J glided, {metered} J sampled",
            sum.energy_joules
        );
        let done = progress(&events, workload).last().unwrap().samples_total.unwrap();
        assert!((sum.samples / done - 1.0).abs() < 2e-3, "{workload}: {} samples glided, {done} sampled", sum.samples);
        assert!((sum.seconds - 12_000.0).abs() < 1e-6);
    }
    assert_eq!(sampled.managed(), glided.managed());
}

#[test]
fn how_a_glide_is_cut_changes_nothing_but_the_temperature() {
    let (mut whole, mut cut) = (
        ClusterSimulation::new(Scenario::default(), start()).unwrap(),
        ClusterSimulation::new(Scenario::default(), start()).unwrap(),
    );
    let (mut once, mut often) = ([FastForwardTotals::default(); 2], [FastForwardTotals::default(); 2]);
    whole.fast_forward(at(7200.0), &mut once);
    for end in (0..7200).step_by(45) {
        cut.fast_forward(at(f64::from(end) + 45.0), &mut often);
    }
    for (once, often) in once.iter().zip(&often) {
        assert!((once.energy_joules / often.energy_joules - 1.0).abs() < 2e-3);
        assert!((once.samples / often.samples - 1.0).abs() < 2e-3);
    }
}

fn set_mode(shown: UpdateMode, mode: UpdateMode) -> PolicyEdit {
    PolicyEdit::SetMode { mode, shown }
}

#[test]
fn people_change_the_terms_and_their_name_stays() {
    let mut cluster = ClusterSimulation::new(Scenario::default(), at(0.0)).unwrap();
    let by_alice = |cluster: &mut ClusterSimulation, change: PolicyEdit| cluster.change_terms(LLM, &change, "alice");
    assert_eq!(by_alice(&mut cluster, PolicyEdit::Pause), Ok(true));
    assert_eq!(cluster.change_terms(LLM, &PolicyEdit::Pause, "bob"), Ok(false), "it was so already");
    let state = |cluster: &ClusterSimulation| cluster.managed()[0].state.clone();
    let paused = state(&cluster);
    assert_eq!((paused.paused, paused.pause_set_by.as_deref(), paused.mode_set_by.as_deref()), (true, Some("alice"), None));
    assert_eq!(cluster.change_terms(LLM, &set_mode(UpdateMode::Enforce, UpdateMode::Recommend), "bob"), Ok(true));
    let state = state(&cluster);
    assert_eq!((state.mode, state.mode_set_by.as_deref()), (UpdateMode::Recommend, Some("bob")));
    assert_eq!(state.generation, paused.generation, "the layout is as it was");
    let stale = set_mode(UpdateMode::Enforce, UpdateMode::Observe);
    let refused = cluster.change_terms(LLM, &stale, "alice").unwrap_err();
    assert!(refused.remedy == ClusterRemedy::Refused && refused.detail.contains("changed meanwhile"), "{refused}");
    let refused = cluster.change_terms("a/b", &PolicyEdit::Pause, "alice").unwrap_err();
    assert_eq!(refused.remedy, ClusterRemedy::Refused);
}

#[test]
fn an_approval_is_of_the_present_recommendation_and_for_once() {
    let mut cluster = ClusterSimulation::new(Scenario::default(), at(0.0)).unwrap();
    let approve = |cluster: &mut ClusterSimulation, id: &str| cluster.change_terms(LLM, &PolicyEdit::Approve(id.into()), "alice");
    let refused = |cluster: &mut ClusterSimulation, id: &str, words: &str| {
        let error = approve(cluster, id).unwrap_err();
        assert!(error.remedy == ClusterRemedy::Refused && error.detail.contains(words), "{error}");
    };
    refused(&mut cluster, "d1", "nothing is recommended");
    let decision =
        |id: &str, expires: f64| Decision { id: id.into(), workload: LLM.into(), expires: at(expires), ..Decision::default() };
    cluster.recommend(&decision("d1", 300.0)).unwrap();
    refused(&mut cluster, "d1", "not in mode recommend");
    cluster.change_terms(LLM, &set_mode(UpdateMode::Enforce, UpdateMode::Recommend), "bob").unwrap();
    cluster.change_terms(LLM, &PolicyEdit::Pause, "bob").unwrap();
    refused(&mut cluster, "d1", "paused");
    cluster.change_terms(LLM, &PolicyEdit::Resume, "bob").unwrap();
    refused(&mut cluster, "d0", "the current recommendation is d1");
    assert_eq!(approve(&mut cluster, "d1"), Ok(true));
    assert_eq!(approve(&mut cluster, "d1"), Ok(false), "it was so already");
    let approved = cluster.approved();
    assert_eq!((approved.len(), &*approved[0].decision.id, approved[0].by.as_deref()), (1, "d1", Some("alice")));
    let kept: ClusterSimulation = serde_json::from_value(serde_json::to_value(&cluster).unwrap()).unwrap();
    assert_eq!(kept.approved(), approved, "it survives a restart");
    cluster.recommend(&decision("d2", 300.0)).unwrap();
    assert!(cluster.approved().is_empty(), "something else is recommended by now");
    approve(&mut cluster, "d2").unwrap();
    let applied = cluster.apply(&WorkloadChange { approved_by: Some("alice".into()), ..change(&cluster, "d2", 6, 50) }).unwrap();
    assert_eq!(applied.applied.unwrap().approved_by.as_deref(), Some("alice"));
    assert!(cluster.approved().is_empty(), "for once");
    assert_eq!(approve(&mut cluster, "d2"), Ok(false), "it was approved and applied before");
    assert!(cluster.approved().is_empty(), "nothing is left to apply");
    cluster.recommend(&decision("d3", -1.0)).unwrap();
    refused(&mut cluster, "d3", "expired");
}
