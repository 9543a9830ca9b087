//! State of every version that was ever written can be read, and goes on as if nothing had happened.
//!
//! `tests/state/vN.jsonl` holds what release N's format made of [`before`]; `EADT_WRITE_STATE_SAMPLE=1 cargo test -p eadt-core
//! --test state` writes the file of the present format if it is missing, and never changes one that is there. Samples of models
//! and of the power budget's joint stage are kept by their own tests, those of GPU sharing by their crate.

use crate::support;

use eadt_core::controller::ControllerName;
use eadt_core::{FoldSettings, PartitionFold, StateError, StateRecord};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, EfficiencyWindow, GpuTelemetry, JobLifecycle, Meter, Origin, TrainingProgress};
use serde_json::{Value, json};
use support::{Bench, Stored, at, gpu, last, layout, phase, power, rank, stored};

/// The format that is written now.
const PRESENT: u32 = 8;
/// First byte of a piece of a block.
const PIECE: u8 = 3;
/// Blocks of the present format in pieces, as if a record would not hold them.
const PRESENT_PIECES: u32 = 9;
/// All formats before the present one; 3, 5 and 7 are formats 2, 4 and 6 in pieces.
const EARLIER: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];

/// Returns whether a format has the power readings that wait for the next one.
fn has_waiting_power(version: u32) -> bool {
    version >= 6
}

/// Returns whether a format has coarse energy counters.
fn has_coarse_counters(version: u32) -> bool {
    version >= 8
}

/// Everything that state of this format can hold: counters and power that come and go, gauges, shares, tenures, silences, rates,
/// spans, runs, layouts.
fn before(version: u32) -> Bench {
    // The samples contain this controller's state.
    let controller = ControllerName::Matrix;
    let mut bench = Bench::new(FoldSettings { join_grace: 0, controller, ..FoldSettings::default() });
    bench.put(layout(0.0, 1)).put(phase(1.0, 0.0, JobLifecycle::Started));
    for second in (2..=200).step_by(2) {
        let now = f64::from(second);
        let gauges = GpuTelemetry {
            utilization_ratio: Some(0.5 + now / 1000.0),
            sm_clock_mhz: Some(1400.0 - now),
            temperature_celsius: Some(40.0 + now / 7.0),
            power_watts: Some(300.1),
            origin: Origin::Simulated,
            ..gpu("a", now, now * 301.7)
        };
        bench.put(gauges);
        bench.put(GpuTelemetry {
            share: Some(0.25),
            tenure: Some(1 + u64::from(second > 100)),
            ..power("shared", now, 120.0 + now)
        });
        // Its counter has been away since second 150.
        let lost = GpuTelemetry { energy_joules_total: (second < 150).then_some(now * 10.0), ..power("lost", now, 10.5) };
        bench.put(lost);
        bench.put(GpuTelemetry { meter: Meter::Wall, power_average_watts: Some(900.0), ..power("wall", now, 950.0) });
        if has_waiting_power(version) {
            // Its power is missing since second 192.
            bench.put(GpuTelemetry { power_watts: (second % 12 == 0).then_some(90.5 + now), ..power("sparse", now, 0.0) });
        }
        if has_coarse_counters(version) {
            // It rises every 40 s.
            bench.put(GpuTelemetry { power_watts: Some(101.0), ..gpu("coarse", now, (now / 40.0).floor() * 4_000.0) });
        }
        if second < 60 {
            bench.put(gpu("silent", now + 0.5, now));
        }
        if second == 90 {
            bench.put(last(gpu("ended", now, now)));
        }
        let span = (second >= 100).then(|| format!("epoch-{}", second / 50));
        bench.put(TrainingProgress {
            span,
            loss: Some(2.0 / now),
            remaining_seconds: Some(1000.0 - now),
            checkpoint_time: (second > 150).then(|| at(150.0)),
            tokens_total: (second % 20 == 0).then_some(now * 512.0),
            ..rank(0, now + 0.25, if second < 120 { now * 10.0 } else { (now - 60.0) * 10.0 })
        });
        bench.put(TrainingProgress {
            scope: CounterScope::Rank,
            samples_total: None,
            samples_per_second: Some(10.0 + now / 100.0),
            ..rank(7, now + 0.3, 0.0)
        });
    }
    bench.put(power("GPU-alone", 200.5, 50.0));
    bench
}

fn after(bench: &mut Bench, version: u32) {
    bench.put(layout(200.6, 2));
    for second in (202..=330).step_by(4) {
        let now = f64::from(second);
        for device in ["a", "lost", "silent"] {
            bench.put(gpu(device, now, now * 301.7));
        }
        if has_waiting_power(version) {
            bench.put(power("sparse", now, 90.5 + now));
        }
        if has_coarse_counters(version) {
            bench.put(GpuTelemetry { power_watts: Some(101.0), ..gpu("coarse", now, (now / 40.0).floor() * 4_000.0) });
        }
        bench.put(power("shared", now, 300.0)).put(power("GPU-alone", now, 50.0)).put(rank(0, now + 0.25, now * 10.0));
        bench.put(TrainingProgress {
            scope: CounterScope::Rank,
            samples_per_second: Some(11.0),
            ..rank(7, now + 0.3, 7.0 * now)
        });
    }
    bench.finish();
}

fn of_version(version: u32) -> Stored {
    let present = || before(version).partition.take_changes();
    stored(&format!("v{version}"), || if version == PRESENT_PIECES { in_pieces(present()) } else { present() })
}

/// Returns the same in pieces that are small, so that the sample is.
fn in_pieces(records: Vec<StateRecord>) -> Vec<StateRecord> {
    let of_workload = |record: &StateRecord| record.value.as_ref().is_some_and(|value| value[0] == PRESENT as u8);
    let (blocks, mut records): (Vec<_>, Vec<_>) = records.into_iter().partition(of_workload);
    for StateRecord { key, value } in blocks {
        let value = value.unwrap();
        let (workload, of) = (key.strip_suffix("#0").expect("one block each"), value.len().div_ceil(700));
        for (number, bytes) in value.chunks(700).enumerate() {
            let begun = vec![PIECE];
            let value = postcard::to_extend(&(workload, number as u32, of as u32, number + 1 == of, bytes), begun).unwrap();
            records.push(StateRecord { key: format!("{workload}#{number}"), value: Some(value) });
        }
    }
    records
}

#[test]
fn state_of_every_version_goes_on_as_if_nothing_had_happened() {
    for version in EARLIER.into_iter().chain([PRESENT, PRESENT_PIECES]) {
        let mut straight = before(version);
        let settings = straight.partition.settings().clone();
        let (windows, decisions) = (straight.windows.len(), straight.decisions.len());
        after(&mut straight, version);
        assert!(windows > 0 && straight.windows.len() > windows + 2, "{windows} of {}", straight.windows.len());
        let mut bench = Bench::new(settings.clone());
        bench.partition = PartitionFold::restore(settings, of_version(version)).unwrap();
        after(&mut bench, version);
        // Before format 4 there is no evidence on counters: their next rise is the first one.
        let without_evidence = |mut window: EfficiencyWindow| {
            window.counter_contradicted_seconds *= f64::from(u8::from(version >= 4));
            window
        };
        let json = |windows: &[EfficiencyWindow]| {
            serde_json::to_string(&windows.iter().cloned().map(without_evidence).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(json(&bench.windows), json(&straight.windows[windows..]), "version {version}");
        assert_eq!(bench.decisions, straight.decisions[decisions..], "version {version}");
        assert_eq!(bench.refused, straight.refused, "version {version}");
    }
}

#[test]
fn state_of_a_newer_release_is_refused_and_damaged_state_too() {
    let (key, value) = of_version(PRESENT).into_iter().find(|(key, _)| key == "team/job#0").unwrap();
    let value = value.unwrap();
    let restore = |value: &[u8]| PartitionFold::restore(FoldSettings::default(), [(key.clone(), Some(value.to_vec()))]).map(drop);
    restore(&value).unwrap();
    let newer = restore(&[&[10], &value[1..]].concat()).unwrap_err();
    assert!(matches!(newer, StateError::Newer { form: 10, .. }), "{newer}");
    assert!(newer.to_string().contains("\"team/job#0\" has form 10"), "{newer}");
    for length in 0..value.len() {
        let error = restore(&value[..length]).unwrap_err();
        assert!(matches!(error, StateError::Unreadable { .. }), "{length}: {error}");
    }
    let error = restore(&[&value[..], &[0]].concat()).unwrap_err();
    assert!(error.to_string().contains("1 bytes are left over"), "{error}");
    // Other damage is reported or accepted, and nothing panics.
    for i in 1..value.len() {
        let mut damaged = value.clone();
        damaged[i] ^= 1 << (i % 8);
        if let Err(error) = restore(&damaged) {
            assert!(matches!(error, StateError::Unreadable { .. } | StateError::Incomplete { .. }), "byte {i}: {error}");
        }
    }
}

/// 300 GPUs with every gauge, of which everything waits for a rank that spoke once.
fn large() -> Bench {
    let mut bench = Bench::new(FoldSettings { controller: ControllerName::Matrix, ..FoldSettings::default() });
    bench.put(rank(0, 0.0, 0.0));
    for second in 0..100 {
        for device in 0..300 {
            bench.put(GpuTelemetry {
                utilization_ratio: Some(0.5),
                dram_active_ratio: Some(0.25),
                sm_active_ratio: Some(0.75),
                sm_clock_mhz: Some(1400.0),
                memory_clock_mhz: Some(1200.0),
                temperature_celsius: Some(40.0),
                power_watts: Some(300.0),
                ..gpu(&format!("GPU-{device}"), f64::from(second), f64::from(second) * 300.0)
            });
        }
    }
    bench
}

/// As [`large`] goes on: the rank catches up, and the job ends.
fn shrinks(bench: &mut Bench) {
    bench.put(rank(0, 99.0, 990.0)).put(TrainingProgress { last: true, ..rank(0, 130.0, 1300.0) });
    for device in 0..300 {
        bench.put(last(gpu(&format!("GPU-{device}"), 130.0, 39_000.0)));
    }
}

/// Size limit of a state record in Kafka by default, in bytes.
const RECORD_BYTES: usize = 1_048_576;

#[test]
fn state_of_any_size_is_in_records_that_the_log_takes_and_goes_on_as_if_nothing_had_happened() {
    let mut straight = large();
    let settings = straight.partition.settings().clone();
    let records: Vec<_> = straight.partition.take_changes().into_iter().map(|record| (record.key, record.value)).collect();
    let sizes: Vec<usize> = records.iter().filter_map(|(_, value)| Some(value.as_ref()?.len())).collect();
    assert!(sizes.iter().sum::<usize>() > 3 * RECORD_BYTES / 2 && sizes.iter().all(|size| *size < RECORD_BYTES), "{sizes:?}");
    let mut bench = Bench::new(settings.clone());
    bench.partition = PartitionFold::restore(settings.clone(), records.clone()).unwrap();
    shrinks(&mut straight);
    shrinks(&mut bench);
    assert!(!straight.windows.is_empty() && straight.refused.is_empty());
    assert_eq!((&bench.windows, &bench.decisions), (&straight.windows, &straight.decisions));
    // Missing entries are deleted, in any form.
    let after: Vec<_> = bench.partition.take_changes().into_iter().map(|record| (record.key, record.value)).collect();
    let left = |records: &[(String, Option<Vec<u8>>)]| records.iter().filter(|(_, value)| value.is_some()).count();
    assert!(left(&after) < left(&records) && after.len() == records.len(), "{} of {}", left(&after), left(&records));
    PartitionFold::restore(settings.clone(), records.iter().chain(&after).cloned()).unwrap();
    // A piece that is missing is noticed, and so is one that is cut off.
    for (i, (key, value)) in records.iter().enumerate().skip(1) {
        let without = records.iter().enumerate().filter(|(other, _)| *other != i).map(|(_, record)| record.clone());
        let error = PartitionFold::restore(settings.clone(), without).unwrap_err();
        assert!(matches!(error, StateError::Incomplete { .. }), "without {key}: {error}");
        let mut short = records.clone();
        short[i].1 = value.as_ref().map(|value| value[..value.len() - 1].to_vec());
        let error = PartitionFold::restore(settings.clone(), short).unwrap_err();
        assert!(matches!(error, StateError::Unreadable { .. }), "{key} cut off: {error}");
    }
}

#[test]
fn state_whose_windows_cannot_be_closed_is_refused() {
    let (key, value) = of_version(1).into_iter().find(|(key, _)| key == "team/job#0").unwrap();
    let block: Value = serde_json::from_slice(&value.unwrap()).unwrap();
    let restore = |windows: Value, cuts: &[EventTime]| {
        let mut block = block.clone();
        (block["head"]["windows"], block["head"]["cuts"]) = (windows, json!(cuts));
        PartitionFold::restore(FoldSettings::default(), [(key.clone(), Some(block.to_string()))]).map(drop)
    };
    let minutes = |windows: i64| json!({"size": windows * 60_000_000, "origin": at(0.0)});
    restore(minutes(1), &[at(0.0), at(60.0), at(120.0)]).unwrap();
    for cuts in [&[at(60.0), at(0.0), at(120.0)][..], &[at(0.0), at(30.0)], &[at(0.0)]] {
        let text = restore(minutes(1), cuts).unwrap_err().to_string();
        assert!(text.contains("\"team/job#0\"") && text.contains("its open windows do not follow each other"), "{text}");
    }
    // An hour becomes sixty; a year would be cut into half a million each.
    restore(minutes(60), &[at(0.0), at(3600.0)]).unwrap();
    let year = 525_600;
    let text = restore(minutes(year), &[at(0.0), at(60.0 * year as f64)]).unwrap_err().to_string();
    assert!(text.contains("would become 1051200 of the present length, at most 1000000 can be"), "{text}");
}

#[test]
fn a_newer_form_of_any_key_is_refused_and_a_key_of_a_newer_kind_too() {
    let restore = |key: &str, value: &[u8]| {
        let state = of_version(PRESENT).into_iter().chain([(key.to_owned(), Some(value.to_vec()))]);
        PartitionFold::restore(FoldSettings::default(), state).map(drop)
    };
    let partition = of_version(PRESENT).into_iter().find(|(key, _)| key == "#").unwrap().1.unwrap();
    restore("#", &partition).unwrap();
    for key in ["#", "#models//power/A100", "team/job#0", "team/new#0"] {
        let error = restore(key, &[&[9], &partition[..]].concat()).unwrap_err();
        assert!(matches!(error, StateError::Newer { form: 9, .. }), "{key}: {error}");
        assert!(error.to_string().ends_with("was written by a newer release, start that one"), "{error}");
        assert!(error.to_string().contains(&format!("{key:?} has form 9")), "{error}");
        assert!(matches!(restore(key, b"").unwrap_err(), StateError::Unreadable { .. }), "{key}");
    }
    let error = restore("#later//x", b"{}").unwrap_err();
    assert!(matches!(error, StateError::NewKind { .. }), "{error}");
    assert!(error.to_string().contains("\"#later//x\" is of a kind"), "{error}");
    // Those of the joint stages are read by these.
    for key in ["#cluster//", "#cluster//later//x", "#gpu//", "#gpu//later//x"] {
        restore(key, &[9]).unwrap();
    }
}
