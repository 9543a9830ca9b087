//! Names that become ids: whatever is accepted as a name makes windows and decisions that their readers accept.

use crate::support;

use eadt_core::FoldSettings;
use eadt_schemas::decode::{DecodableEvent, MAX_NAME_BYTES};
use eadt_schemas::v1::{DeadLetterReason, TrainingProgress};
use eadt_testing::cases;
use proptest::prelude::*;
use support::{Bench, gpu, rank};

/// Names from one byte to the longest and beyond, of plain letters and of what takes several bytes, now and then of what is
/// refused.
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

#[test]
fn the_longest_names_make_windows_of_jobs_and_spans() {
    let workload = format!("{}/{}", "n".repeat(100), "w".repeat(MAX_NAME_BYTES - 101));
    let (windows, spans) = told(&workload, &"s".repeat(MAX_NAME_BYTES), &"d".repeat(MAX_NAME_BYTES));
    assert!(windows > 0 && spans > 0, "{windows} windows, {spans} spans");
}

/// What is accepted of a job of these names is in windows; how many there are of both kinds.
fn told(workload: &str, span: &str, device: &str) -> (usize, usize) {
    let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
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
            bench.put(report);
        }
    }
    for refusal in &bench.refused {
        assert_ne!(refusal.reason, DeadLetterReason::InvalidValue, "{refusal}");
    }
    bench.finish();
    for window in bench.windows.iter().chain(&bench.spans) {
        window.check().unwrap();
    }
    for decision in &bench.decisions {
        decision.check().unwrap();
    }
    (bench.windows.len(), bench.spans.len())
}

proptest! {
    #![proptest_config(cases(64))]
    #[test]
    fn accepted_names_make_accepted_outputs(namespace in names(), name in names(), span in names(), device in names()) {
        told(&format!("{namespace}/{name}"), &span, &device);
    }
}
