//! Tests events of hostile or broken senders: refused with a reason, or read without harm; never a panic.

use eadt_schemas::decode::{DecodableEvent, MAX_VALUE_BYTES};
use eadt_schemas::v1::{
    DeadLetterReason, Decision, DeviceIntent, EfficiencyWindow, GpuTelemetry, Model, TrainingProgress, Workload,
};
use eadt_schemas::{DecodeError, LoggedEvent, decode};
use eadt_testing::cases;
use proptest::prelude::*;

const GOOD: &str = r#"{"time":"2026-01-02T03:04:05.000000Z","device":"GPU-1","collector":"node-1","workload":"eadt/a""#;

fn telemetry(rest: &str) -> Result<GpuTelemetry, DecodeError> {
    decode(format!("{GOOD}{rest}}}").as_bytes())
}

fn refused(rest: &str, reason: DeadLetterReason, expected: &str) {
    let shown: String = rest.chars().take(60).collect();
    let refusal = telemetry(rest).expect_err(&shown);
    assert_eq!(refusal.reason, reason, "{shown}: {refusal}");
    assert!(refusal.detail.contains(expected), "{shown}: {refusal}");
    assert!(refusal.detail.len() < 600, "{shown}: the reason is {} bytes long", refusal.detail.len());
}

#[test]
fn the_good_event_is_good() {
    let event = telemetry(r#","power_watts":250.5,"not_known_yet":{"a":[1,2]}"#).unwrap();
    assert_eq!(event.power_watts, Some(250.5));
    assert_eq!(event.energy_joules_total, None, "absent is unknown, not zero");
}

#[test]
fn impossible_numbers() {
    for not_json in ["NaN", "Infinity", "-Infinity", "0x10", "1.", "+1", "\"250\"", "[250]", "true", "{}"] {
        refused(&format!(",\"power_watts\":{not_json}"), DeadLetterReason::Malformed, "line 1");
    }
    refused(",\"power_watts\":1e999", DeadLetterReason::Malformed, "number out of range");
    refused(",\"power_watts\":-0.5", DeadLetterReason::InvalidValue, "field power_watts: -0.5 is not between 0 and");
    refused(",\"power_watts\":1e8", DeadLetterReason::InvalidValue, "power_watts");
    refused(",\"energy_joules_total\":-1", DeadLetterReason::InvalidValue, "energy_joules_total");
    refused(",\"energy_joules_total\":9.3e18", DeadLetterReason::InvalidValue, "energy_joules_total");
    refused(",\"share\":1.2", DeadLetterReason::InvalidValue, "share");
    refused(",\"gpu_index\":-1", DeadLetterReason::Malformed, "invalid value");
    refused(",\"gpu_index\":4294967296", DeadLetterReason::Malformed, "invalid value");
    refused(",\"temperature_celsius\":-300", DeadLetterReason::InvalidValue, "temperature_celsius");
}

#[test]
fn each_plasticity_of_a_job_is_checked() {
    let progress = |entries: &str| {
        let text =
            format!(r#"{{"time":"2026-01-02T03:04:05Z","collector":"node-1","workload":"eadt/a","plasticity":[{entries}]}}"#);
        decode::<TrainingProgress>(text.as_bytes())
    };
    assert_eq!(progress("null,0,0.5").unwrap().plasticity, Some(vec![None, Some(0.0), Some(0.5)]));
    let refusal = progress("null,0.5,-0.1").unwrap_err();
    assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::InvalidValue, Some("plasticity")));
    assert_eq!(refusal.detail, "field plasticity: -0.1 is less than 0");
    let event = TrainingProgress { plasticity: Some(vec![Some(f64::NAN)]), ..progress("0").unwrap() };
    assert!(event.check().unwrap_err().detail.contains("is not a finite number"));
}

#[test]
fn wrong_shapes() {
    for (value, expected) in [
        ("", "not a JSON object"),
        ("null", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[1,2,3]", "not a JSON object"),
        (" [\"2026-01-02T03:04:05Z\",null,\"GPU-1\",\"node-1\"]", "not a JSON object"),
        ("\"text\"", "not a JSON object"),
        ("{", "EOF"),
        ("{} {}", "trailing characters"),
        ("{}", "field time: missing"),
        ("\u{feff}{}", "not a JSON object"),
    ] {
        let refusal = decode::<GpuTelemetry>(value.as_bytes()).expect_err(value);
        assert!(refusal.detail.contains(expected), "{value}: {refusal}");
    }
    assert!(decode::<GpuTelemetry>(&[0xff, 0xfe, b'{', b'}']).is_err());
    refused(",\"node\":7", DeadLetterReason::Malformed, "invalid type");
    refused(",\"meter\":\"moon\"", DeadLetterReason::Malformed, "unknown variant");
    refused(",\"last\":1", DeadLetterReason::Malformed, "invalid type");
}

#[test]
fn each_entry_of_a_nodes_intent_is_checked() {
    let intent = |entry: &str| {
        let text = format!(
            r#"{{"time":"2026-01-02T03:04:05Z","node":"n","decision_id":"d","time_to_live_seconds":60,"devices":[{{}},{entry}]}}"#
        );
        decode::<DeviceIntent>(text.as_bytes())
    };
    assert_eq!(
        intent(r#"{"device":"GPU-1","power_limit_watts":300}"#).unwrap().devices.unwrap()[1].power_limit_watts,
        Some(300.0)
    );
    for (entry, expected) in [
        (r#"{"power_limit_watts":-1}"#, "field devices.power_limit_watts: -1 is not between"),
        (r#"{"sm_clock_mhz":1e6}"#, "field devices.sm_clock_mhz"),
        (r#"{"workload":"no-slash"}"#, "is not namespace/name"),
        (r#"{"device":"a\u0000"}"#, "field devices.device: contains a control character"),
        (r#"["GPU-1",null,null,300]"#, "expected an object"),
        ("7", "expected an object"),
    ] {
        let refusal = intent(entry).expect_err(entry);
        assert!(refusal.detail.contains(expected), "{entry}: {refusal}");
    }
}

#[test]
fn nested_objects_are_not_lists() {
    let event = |layout: &str| format!(r#"{{"time":"2026-01-02T03:04:05Z","workload":"a/b","layout":{layout}}}"#);
    for list in ["[]", "[6,50]"] {
        let refusal = decode::<Workload>(event(list).as_bytes()).expect_err(list);
        assert!(refusal.detail.contains("expected an object"), "{list}: {refusal}");
    }
    assert_eq!(decode::<Workload>(event(r#"{"replicas":6}"#).as_bytes()).unwrap().layout.replicas, Some(6));
    let again = r#"{"replicas":6,"replicas":7}"#;
    assert!(decode::<Workload>(event(again).as_bytes()).unwrap_err().detail.contains("duplicate field `replicas`"));
}

#[test]
fn long_texts_are_refused_and_not_repeated() {
    let text = "x".repeat(1_000_000);
    for field in ["node", "gpu_model", "throttle_reasons"] {
        refused(&format!(",\"{field}\":\"{text}\""), DeadLetterReason::InvalidValue, "1000000 bytes, at most 253");
    }
    let event = format!(r#"{{"time":"2026-01-02T03:04:05Z","device":"{text}","collector":"c"}}"#);
    assert_eq!(decode::<GpuTelemetry>(event.as_bytes()).unwrap_err().field, Some("device"));
    refused(&format!(",\"meter\":\"{text}\""), DeadLetterReason::Malformed, "unknown variant");
    refused(&format!(",\"last\":\"{text}\""), DeadLetterReason::Malformed, "invalid type");
    let event = format!(r#"{{"time":"{text}","device":"d","collector":"c"}}"#);
    assert!(decode::<GpuTelemetry>(event.as_bytes()).unwrap_err().detail.len() < 600);
    let event = format!(r#"{{"time":"2026-01-02T03:04:05Z","workload":"a/{text}","device":"d","collector":"c"}}"#);
    assert!(decode::<GpuTelemetry>(event.as_bytes()).unwrap_err().detail.len() < 600);
    let event = format!(r#"{{"time":"2026-01-02T03:04:05Z","workload":"a","id":"b","evidence":{{"{text}":1,"{text}":2}}}}"#);
    assert!(decode::<Decision>(event.as_bytes()).unwrap_err().detail.len() < 600);
    let too_long = vec![b' '; MAX_VALUE_BYTES + 1];
    assert!(decode::<GpuTelemetry>(&too_long).unwrap_err().detail.contains("is longer than"));
    refused(&format!(",\"{text}\":1,\"power_watts\":-1"), DeadLetterReason::InvalidValue, "power_watts");
}

#[test]
fn duplicate_keys() {
    refused(",\"power_watts\":1,\"power_watts\":2", DeadLetterReason::Malformed, "duplicate field `power_watts`");
    refused(",\"time\":\"2026-01-02T03:04:05Z\"", DeadLetterReason::Malformed, "duplicate field `time`");
    let event = r#"{"time":"2026-01-02T03:04:05Z","workload":"a/b","id":"x","evidence":{"power_watts":1,"power_watts":2}}"#;
    assert!(decode::<Decision>(event.as_bytes()).unwrap_err().detail.contains("duplicate field `power_watts`"));
}

#[test]
fn control_characters_and_foreign_names() {
    refused(",\"node\":\"a\\u0000b\"", DeadLetterReason::InvalidValue, "control character");
    refused(",\"node\":\"a\\nb\"", DeadLetterReason::InvalidValue, "control character");
    refused(",\"node\":\"\\ud800\"", DeadLetterReason::Malformed, "hex escape");
    for workload in ["a", "/", "a/", "/b", "a/b/c", ""] {
        let event = format!(r#"{{"time":"2026-01-02T03:04:05Z","device":"d","collector":"c","workload":"{workload}"}}"#);
        assert_eq!(decode::<GpuTelemetry>(event.as_bytes()).unwrap_err().field, Some("workload"), "{workload}");
    }
}

#[test]
fn deep_nesting_is_survived() {
    for depth in [100, 1_000, 100_000, 400_000] {
        // In an unknown field it is skipped or refused; in a known one it has the wrong type.
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        drop(telemetry(&format!(",\"extension\":{nested}")));
        refused(&format!(",\"power_watts\":{nested}"), DeadLetterReason::Malformed, "invalid type");
        let model = format!(r#"{{"time":"2026-01-02T03:04:05Z","name":"m","version":"1","parameters":{nested}}}"#);
        assert_eq!(decode::<Model>(model.as_bytes()).is_ok(), depth < 120, "depth {depth}");
        let objects = format!("{}1{}", "{\"a\":".repeat(depth.min(150_000)), "}".repeat(depth.min(150_000)));
        drop(telemetry(&format!(",\"extension\":{objects}")));
        assert!(telemetry(&format!(",\"extension\":{}", "[".repeat(depth))).is_err(), "never closed");
    }
}

#[test]
fn times() {
    let at = |time: &str| decode::<GpuTelemetry>(format!(r#"{{"time":{time},"device":"d","collector":"c"}}"#).as_bytes());
    // Ahead of the log's stamp is refused if the stamp is known; here only what cannot be a time.
    assert!(at(r#""9999-12-31T23:59:59.999999Z""#).is_ok());
    assert!(at(r#""1970-01-01T00:00:00Z""#).is_ok(), "the epoch is a time, not a missing one");
    for bad in [
        r#""10000-01-01T00:00:00Z""#,
        r#""0000-01-01T00:00:00.000000Z""#,
        r#""+292277026596-01-01T00:00:00Z""#,
        r#""2026-13-01T00:00:00Z""#,
        r#""2026-02-30T00:00:00.000000Z""#,
        r#""2026-01-01T25:00:00Z""#,
        r#""2026-01-01 00:00""#,
        r#""now""#,
        "1767323045",
        "1e999",
        "null",
        "-1",
    ] {
        let refusal = at(bad).expect_err(bad);
        assert!(matches!(refusal.reason, DeadLetterReason::Malformed | DeadLetterReason::InvalidValue), "{bad}: {refusal}");
    }
}

/// Bytes that look like events: pieces of JSON in any order, or a good event with bytes changed.
fn nearly_events() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\"time\":\"2026-01-02T03:04:05Z\"",
        "\"device\":\"d\"",
        "\"power_watts\":",
        "1e999",
        "-1",
        "null",
        "\"workload\":\"a/b\"",
        "\"collector\":\"c\"",
        "\"evidence\":{",
        "\u{0}",
        "é",
        "\\ud800",
        "0.1",
        "true",
    ]);
    let soup = prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat().into_bytes());
    let good = format!("{GOOD},\"power_watts\":250.5,\"meter\":\"gpu\"}}").into_bytes();
    let changed = (prop::collection::vec((0..good.len(), any::<u8>()), 1..4)).prop_map(move |changes| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..64), soup, changed]
}

proptest! {
    #![proptest_config(cases(2000))]
    #[test]
    fn no_bytes_panic_and_what_is_accepted_is_possible(bytes in nearly_events()) {
        if let Ok(event) = decode::<GpuTelemetry>(&bytes) {
            prop_assert!(event.power_watts.is_none_or(|w| (0.0..=1e7).contains(&w)));
            prop_assert!(!event.device.is_empty() && !event.collector.is_empty());
            let again = decode::<GpuTelemetry>(&serde_json::to_vec(&event).unwrap()).unwrap();
            prop_assert_eq!(again, event);
        }
        drop(decode::<TrainingProgress>(&bytes));
        drop(decode::<Workload>(&bytes));
        drop(decode::<EfficiencyWindow>(&bytes));
        drop(decode::<Decision>(&bytes));
        drop(decode::<Model>(&bytes));
        drop(serde_json::from_slice::<LoggedEvent>(&bytes));
    }

    #[test]
    fn any_telemetry_written_is_read_back(
        micros in 1_i64..253_402_300_799_999_999,
        power in prop::option::of(0.0..1e7_f64),
        energy in prop::option::of(0.0..1e18_f64),
        share in prop::option::of(0.0..=1.0_f64),
        memory in prop::option::of(any::<u64>()),
        last in any::<bool>(),
    ) {
        let event = GpuTelemetry {
            time: eadt_schemas::EventTime::from_micros(micros),
            device: "GPU-1".to_owned(),
            collector: "node-1".to_owned(),
            power_watts: power,
            energy_joules_total: energy,
            share,
            memory_used_bytes: memory,
            last,
            ..GpuTelemetry::default()
        };
        prop_assert_eq!(decode::<GpuTelemetry>(&serde_json::to_vec(&event).unwrap()).unwrap(), event);
    }
}
