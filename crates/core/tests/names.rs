//! Checks names that become ids: any accepted name makes windows and decisions that their readers accept, and its ids are
//! accepted in directives, jobs' reports, actuations and intents.

use crate::support;

use eadt_core::FoldSettings;
use eadt_core::controller::ControllerName;
use eadt_schemas::decode::{DecodableEvent, MAX_NAME_BYTES, decode};
use eadt_schemas::v1::{
    Actuation, DeadLetterReason, Decision, DeviceIntent, DeviceSetting, Directive, TrainingProgress, Workload,
};
use eadt_testing::cases;
use proptest::prelude::*;
use support::{Bench, gpu, rank};

/// Returns names from one byte to the longest and beyond, of plain letters and of what takes several bytes, now and then of
/// what is refused.
fn names() -> impl Strategy<Value = String> {
    let letter = prop::sample::select(vec!["a", "Z", "0", "-", ".", " ", "é", "漢", "🦀", "\u{202e}", "\u{200b}", "\n"]);
    let length = prop_oneof![1usize..4, 100usize..130, 200usize..260];
    (prop::collection::vec(letter, 1..4), length).prop_map(|(letters, length)| {
        let mut name = String::new();
        for letter in letters.iter().cycle() {
            if name.len() + letter.len() > length {
                break;
            }
            name.push_str(letter);
        }
        if name.is_empty() { "a".to_owned() } else { name }
    })
}

/// Controllers that decide workload by workload, those that ask the job itself included.
fn controllers() -> Vec<ControllerName> {
    ControllerName::ALL.into_iter().chain([ControllerName::Layers, ControllerName::Precision]).collect()
}

#[test]
fn the_longest_names_make_windows_of_jobs_and_spans() {
    let workload = format!("{}/{}", "n".repeat(100), "w".repeat(MAX_NAME_BYTES - 101));
    for controller in controllers() {
        let counts = count_outputs(&workload, &"s".repeat(MAX_NAME_BYTES), &"d".repeat(MAX_NAME_BYTES), controller);
        assert!(counts.iter().all(|count| *count > 0), "{controller}: {counts:?} windows, spans, decisions");
    }
}

/// Checks that an event is read as it is written.
fn assert_accepted<T: DecodableEvent + serde::Serialize>(event: &T) {
    let written = serde_json::to_vec(event).unwrap();
    decode::<T>(&written).unwrap_or_else(|refusal| panic!("{refusal}: {}", String::from_utf8_lossy(&written)));
}

/// Checks all that repeats the id of a decision.
fn assert_repeatable(decision: &Decision) {
    let (time, workload, decision_id) = (decision.time, decision.workload.clone(), decision.id.clone());
    assert_accepted(decision);
    assert_accepted(&Decision { id: decision_id.clone(), concerns: Some(decision_id.clone()), ..decision.clone() });
    assert_accepted(&Directive {
        time,
        workload: workload.clone(),
        decision_id: decision_id.clone(),
        checkpoint_now: true,
        ..Directive::default()
    });
    assert_accepted(&Actuation {
        time,
        id: format!("{decision_id}/recommended"),
        decision_id: decision_id.clone(),
        workload: workload.clone(),
        ..Actuation::default()
    });
    let setting =
        DeviceSetting { decision_id: Some(decision_id.clone()), workload: Some(workload.clone()), ..DeviceSetting::default() };
    assert_accepted(&DeviceIntent {
        time,
        node: "n".to_owned(),
        decision_id: decision_id.clone(),
        devices: Some(vec![setting]),
        time_to_live_seconds: 60.0,
        ..DeviceIntent::default()
    });
    assert_accepted(&Workload { time, workload, decision_id: Some(decision_id), ..Workload::default() });
}

/// Checks that accepted events of a job of these names are in windows. Returns the numbers of windows, spans and decisions.
fn count_outputs(workload: &str, span: &str, device: &str, controller: ControllerName) -> [usize; 3] {
    let settings = FoldSettings { max_future: None, controller_override: Some(controller), ..FoldSettings::default() };
    let mut bench = Bench::new(settings);
    for second in 0..40_u32 {
        let time = f64::from(second) * 10.0;
        let sample = eadt_schemas::v1::GpuTelemetry { workload: Some(workload.to_owned()), ..gpu(device, time, time * 100.0) };
        let report = TrainingProgress {
            workload: workload.to_owned(),
            // An empty name ends the span.
            span: (second <= 20).then(|| if second < 20 { span.to_owned() } else { String::new() }),
            ..rank(0, time, time * 5.0)
        };
        if sample.check().is_ok() {
            bench.put(sample);
        }
        if report.check().is_ok() {
            // The job answers the newest decision, as it does when it follows a directive.
            let answer = TrainingProgress { decision_id: bench.decisions.last().map(|decision| decision.id.clone()), ..report };
            assert_accepted(&answer);
            bench.put(answer);
        }
    }
    for refusal in &bench.refused {
        assert_ne!(refusal.reason, DeadLetterReason::InvalidValue, "{refusal}");
    }
    bench.finish();
    bench.windows.iter().chain(&bench.spans).for_each(assert_accepted);
    bench.decisions.iter().for_each(assert_repeatable);
    [bench.windows.len(), bench.spans.len(), bench.decisions.len()]
}

proptest! {
    #![proptest_config(cases(64))]
    #[test]
    fn accepted_names_make_accepted_outputs(
        namespace in names(), name in names(), span in names(), device in names(), controller in prop::sample::select(controllers())
    ) {
        count_outputs(&format!("{namespace}/{name}"), &span, &device, controller);
    }
}
