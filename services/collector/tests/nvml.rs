//! Sampling through the real NVML binding, against a library of our own.

use crate::support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::EventTime;
use eadt_schemas::latest::{GpuTelemetry, Meter, Origin};
use support::{Running, start};

/// Returns a collector of the library's GPUs, some of which have workloads.
fn start_on(fake: &FakeLibrary, more: &str) -> Running {
    start(&format!(
        "{}\n[progress]\nenabled = false\n[nvml]\nenabled = true\nlibrary_path = \"{}\"\n{more}",
        "assignments = [{ device = \"GPU-fake-0\", workload = \"n/a\" }, { device = \"1\", workload = \"n/b\", share = 0.25 }, \
         { device = \"1\", workload = \"n/c\" }]",
        fake.library().display()
    ))
}

const FAST: &str = "rate_hertz = 20\ncall_timeout_seconds = 0.4\nretry_seconds = 0.2\nslow_seconds = 0.2\n";
const UNCHECKED: &str = "counter_check_seconds = 0\n";

fn by_device(events: &[GpuTelemetry]) -> BTreeMap<&str, Vec<&GpuTelemetry>> {
    let mut devices: BTreeMap<&str, Vec<&GpuTelemetry>> = BTreeMap::new();
    for event in events {
        devices.entry(&event.device).or_default().push(event);
    }
    devices
}

fn of<'a>(events: &'a [GpuTelemetry], device: &str) -> Vec<&'a GpuTelemetry> {
    events.iter().filter(|event| event.device == device).collect()
}

/// Waits until each of these GPUs has so many more samples.
async fn until_more(running: &Running, devices: &[&str], samples: usize) {
    let events = running.bus.telemetry();
    let enough: Vec<_> = devices.iter().map(|device| (*device, of(&events, device).len() + samples)).collect();
    let all = |events: &[GpuTelemetry]| enough.iter().all(|(device, count)| of(events, device).len() >= *count);
    running.until(&format!("{samples} more samples of each of {devices:?}"), all).await;
}

/// Returns the median of the counter's power above 250 W since `start`.
fn median_excess(counted: &[(EventTime, f64)], start: EventTime) -> f64 {
    let mut excess: Vec<_> = counted.iter().map(|(time, joules)| joules - 250.0 * time.seconds_since(start)).collect();
    excess.sort_by(f64::total_cmp);
    excess[excess.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reading_arrives_in_our_units() {
    let fake = FakeLibrary::new("0 mps_clients 3\n1 processes 0\n2 processes 1\n");
    let running = start_on(&fake, &format!("{FAST}counter_check_seconds = 2\n"));
    running
        .until("a trusted counter on every GPU", |events| {
            let devices = by_device(events);
            let counted = |list: &[&GpuTelemetry]| list.iter().filter(|e| e.energy_joules_total.is_some()).count();
            // Twenty of one GPU, for the comparison below.
            devices.len() == 4
                && devices.values().all(|list| list.last().is_some_and(|e| e.energy_joules_total.is_some()))
                && counted(&devices["GPU-fake-0"]) >= 20
        })
        .await;
    assert_eq!(running.metric("eadt_collector_energy_counter_trusted{device=\"GPU-fake-0\"}"), Some(1.0));
    let bus = running.bus.clone();
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.sampled, summary.dropped.total()), (summary.sent, 0));
    let events = bus.telemetry();
    assert_eq!(summary.sent, events.len() as u64);

    let first = of(&events, "GPU-fake-0");
    assert_eq!(first[0].energy_joules_total, None, "withheld until it was checked");
    let whole =
        first.iter().find(|e| e.mig_enabled.is_some() && e.sm_active_ratio.is_some()).expect("a sample with all readings");
    let expected = GpuTelemetry {
        time: whole.time,
        workload: Some("n/a".into()),
        device: "GPU-fake-0".into(),
        collector: "nvml/host".into(),
        meter: Meter::Gpu,
        origin: Origin::Measured,
        node: Some("host".into()),
        gpu_index: Some(0),
        gpu_model: Some("Fake H100".into()),
        tenure: Some(first[0].time.micros() as u64),
        power_watts: Some(250.0),
        power_average_watts: Some(249.0),
        energy_joules_total: whole.energy_joules_total,
        utilization_ratio: Some(0.8),
        memory_utilization_ratio: Some(0.4),
        graphics_active_ratio: Some(0.1),
        sm_active_ratio: Some(0.75),
        sm_occupancy_ratio: Some(0.1),
        tensor_active_ratio: Some(0.1),
        // One metric that this GPU lacks.
        fp32_active_ratio: None,
        dram_active_ratio: Some(0.3),
        pcie_transmit_bytes_per_second: Some(2_097_152.0),
        pcie_receive_bytes_per_second: Some(10_485_760.0),
        memory_used_bytes: Some(10 << 30),
        memory_total_bytes: Some(80 << 30),
        sm_clock_mhz: Some(1980.0),
        memory_clock_mhz: Some(2619.0),
        temperature_celsius: Some(50.0),
        memory_temperature_celsius: Some(55.0),
        power_limit_watts: Some(700.0),
        throttle_reasons: Some("sw_power_cap".into()),
        // One that is no server, and three clients of the server.
        processes: Some(4),
        mig_enabled: Some(false),
        mps_enabled: Some(true),
        ..GpuTelemetry::default()
    };
    assert_eq!(**whole, expected);
    let counted: Vec<_> = first.iter().filter_map(|e| Some((e.time, e.energy_joules_total?))).collect();
    let (earlier, later) = counted.split_at(counted.len() / 2);
    let [earlier, later] = [earlier, later].map(|half| median_excess(half, counted[0].0));
    // The counter moves in steps of a tenth of a second. Medians, since a busy machine delays some of the readings.
    assert!((later - earlier).abs() <= 26.0, "{earlier} {later}");

    let shared = of(&events, "GPU-fake-1");
    let shares: BTreeMap<_, _> = shared.iter().map(|e| (e.workload.as_deref().unwrap(), e.share.unwrap())).collect();
    assert_eq!(shares, BTreeMap::from([("n/b", 0.25), ("n/c", 0.75)]));
    assert!(shared.iter().all(|e| e.tenants == Some(2)));
    let slow: Vec<_> = shared.iter().filter(|e| e.processes.is_some()).map(|e| (e.processes, e.mps_enabled)).collect();
    assert!(slow.iter().all(|s| *s == (Some(0), Some(false))), "{slow:?}");
    assert!(of(&events, "GPU-fake-2").iter().all(|e| e.workload.is_none() && e.tenants.is_none()));

    let last: Vec<_> = events.iter().filter(|e| e.last).map(|e| (e.device.as_str(), e.workload.as_deref())).collect();
    let expected = [("GPU-fake-0", Some("n/a")), ("GPU-fake-1", Some("n/b")), ("GPU-fake-1", Some("n/c"))];
    assert!(expected.iter().all(|stay| last.contains(stay)) && last.len() == 5, "{last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_is_absent_and_never_zero() {
    let fake = FakeLibrary::new("3 unsupported 1\n");
    let running = start_on(&fake, &format!("{FAST}{UNCHECKED}gpus = [3]\n"));
    running.until("slow readings", |events| events.iter().filter(|e| e.power_limit_watts.is_some()).count() > 2).await;
    assert_eq!(running.metric("eadt_collector_readings_failed_total{"), None, "not supported is no failure");
    let bus = running.bus.clone();
    running.stop().await.unwrap();
    for e in bus.telemetry() {
        // A Turing board: what the library calls usage is instantaneous there.
        assert_eq!((e.power_watts, e.power_average_watts), (Some(400.0), None));
        assert_eq!((e.energy_joules_total, e.memory_temperature_celsius, e.mig_enabled), (None, None, None));
        assert_eq!((e.sm_active_ratio, e.dram_active_ratio, e.tensor_active_ratio), (None, None, None));
        assert_eq!(e.utilization_ratio, Some(0.8));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hanging_gpu_stops_nobody_else_and_invents_nothing() {
    let fake = FakeLibrary::new("");
    let running = start_on(&fake, &format!("rate_hertz = 5\ncall_timeout_seconds = 0.5\nslow_seconds = 0.2\n{UNCHECKED}"));
    running.until("samples of all", |events| by_device(events).len() == 4).await;
    let others = ["GPU-fake-0", "GPU-fake-1", "GPU-fake-3"];
    let stuck = "eadt_collector_device_stuck{device=\"GPU-fake-2\"}";
    let up = "eadt_collector_device_up{device=\"GPU-fake-2\"}";
    let missed = "eadt_collector_samples_missed_total{device=\"GPU-fake-2\"}";
    fake.set("2 hang 1\n");
    running.until("it is stuck", |_| running.metric(stuck) == Some(1.0) && running.metric(up) == Some(0.0)).await;
    let stuck_at = Instant::now();
    // Its earlier samples are on their way to the log.
    until_more(&running, &others, 2).await;
    let before = of(&running.bus.telemetry(), "GPU-fake-2").len();
    let missed_before = running.metric(missed).unwrap_or_default();
    until_more(&running, &others, 10).await;
    let counted = |_: &[GpuTelemetry]| running.metric(missed).is_some_and(|missed| missed >= missed_before + 8.0);
    running.until("its missing samples are counted while it hangs", counted).await;
    assert!(of(&running.bus.telemetry(), "GPU-fake-2").len() <= before + 1, "a hanging GPU sends nothing");

    let silent_for = stuck_at.elapsed();
    fake.set("");
    let seen = of(&running.bus.telemetry(), "GPU-fake-2").len();
    running.until("it answers again", |events| of(events, "GPU-fake-2").len() > seen + 3).await;
    running.until("it is not stuck", |_| running.metric(stuck) == Some(0.0)).await;

    // And once more, with a stop in the middle of it.
    fake.set("2 hang 1\n");
    running.until("it is stuck", |_| running.metric(stuck) == Some(1.0)).await;
    let stopping = Instant::now();
    let bus = running.bus.clone();
    let summary = running.stop().await.unwrap();
    assert!(stopping.elapsed() < Duration::from_mins(1), "a hanging GPU does not hold up a stop");
    assert_eq!(summary.sampled, summary.sent);
    fake.set("");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(bus.records().len() as u64, summary.sent, "nothing is sent after the last");

    let events = bus.telemetry();
    for (device, list) in by_device(&events) {
        if device == "GPU-fake-2" {
            let times: Vec<_> = list.iter().filter(|e| !e.last).map(|e| e.time).collect();
            let gap = times.windows(2).map(|pair| pair[1].seconds_since(pair[0])).fold(0.0, f64::max);
            assert!(gap >= silent_for.as_secs_f64(), "{gap}");
        }
        let index = list[0].gpu_index.unwrap();
        assert!(list.iter().all(|e| e.power_watts == Some(250.0 + 50.0 * f64::from(index))), "no value is invented");
        assert_eq!(list.iter().filter(|e| e.last).count(), if index == 1 { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_hangs_or_is_lost_at_start_joins_later() {
    let fake = FakeLibrary::new("0 hang 1\n1 lost 1\n");
    let running = start_on(&fake, &format!("rate_hertz = 5\ncall_timeout_seconds = 0.5\nslow_seconds = 0.2\n{UNCHECKED}"));
    until_more(&running, &["GPU-fake-2", "GPU-fake-3"], 6).await;
    let seen: Vec<_> = by_device(&running.bus.telemetry()).into_keys().map(str::to_owned).collect();
    assert_eq!(seen, ["GPU-fake-2", "GPU-fake-3"]);
    assert_eq!(running.metric("eadt_collector_device_up{device=\"index-1\"}"), Some(0.0));
    fake.set("");
    running.until("samples of all", |events| by_device(events).len() == 4).await;
    let up = |device: &str| running.metric(&format!("eadt_collector_device_up{{device=\"{device}\"}}"));
    running.until("it is up", |_| up("GPU-fake-1") == Some(1.0)).await;
    assert_eq!(up("index-1"), None);

    fake.set("3 lost 1\n2 failing 1\n0 xid 1\n");
    let failed =
        || running.metric("eadt_collector_readings_failed_total{device=\"GPU-fake-2\",call=\"energy\"}").unwrap_or_default();
    // The second failure is not of the sample in whose middle it began.
    let down = |_: &[GpuTelemetry]| ["GPU-fake-0", "GPU-fake-3"].iter().all(|device| up(device) == Some(0.0)) && failed() > 1.0;
    running.until("none of the three can be read", down).await;
    // Their earlier samples are on their way to the log.
    until_more(&running, &["GPU-fake-1"], 2).await;
    let counts = |running: &Running| {
        let events = running.bus.telemetry();
        ["GPU-fake-0", "GPU-fake-1", "GPU-fake-2", "GPU-fake-3"].map(|device| of(&events, device).len())
    };
    let (before, failed_before) = (counts(&running), failed());
    until_more(&running, &["GPU-fake-1"], 5).await;
    running.until("its failures are counted", |_| failed() > failed_before + 3.0).await;
    let after = counts(&running);
    assert_eq!(
        [after[0], after[2], after[3]],
        [before[0], before[2], before[3]],
        "nothing is sent for those that cannot be read"
    );
    for device in ["GPU-fake-0", "GPU-fake-3"] {
        assert_eq!(up(device), Some(0.0), "{device}");
    }
    fake.set("");
    let back = |events: &[GpuTelemetry], i: usize| of(events, &format!("GPU-fake-{i}")).len() > after[i] + 3;
    running.until("all are back", |events| [0, 2, 3].iter().all(|i| back(events, *i))).await;
    let events = running.bus.telemetry();
    for device in ["GPU-fake-0", "GPU-fake-3"] {
        let tenures: std::collections::BTreeSet<_> = of(&events, device).iter().map(|e| e.tenure).collect();
        assert_eq!(tenures.len(), 1, "a gap is not another stay");
    }
    // A sample in whose middle the failures begin or end may lack its power.
    let invented = events
        .iter()
        .find(|event| event.power_watts.is_some_and(|watts| watts != 250.0 + 50.0 * f64::from(event.gpu_index.unwrap())));
    assert!(invented.is_none(), "{invented:?}");
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_that_fall_are_reported_and_those_that_disagree_left_out() {
    let fake =
        FakeLibrary::new("0 counter_factor 0\n0 counter_offset_joules 5000\n1 counter_factor 1.9\n2 counter_factor 0.001\n");
    let running = start_on(&fake, &format!("{FAST}counter_check_seconds = 2\n"));
    let trusted = |index: u32| running.metric(&format!("eadt_collector_energy_counter_trusted{{device=\"GPU-fake-{index}\"}}"));
    running.until("a verdict on all", |_| (0..4).all(|index| trusted(index).is_some())).await;
    assert_eq!((0..4).map(|i| trusted(i).unwrap()).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 1.0]);
    let error = running.metric("eadt_collector_energy_counter_error_ratio{device=\"GPU-fake-1\"}").unwrap();
    assert!((0.7..=1.1).contains(&error), "{error}");
    fake.set("0 counter_factor 0\n0 counter_offset_joules 5000\n1 counter_factor 1.9\n2 counter_factor 0.001\n3 counter_offset_joules -200000\n");
    let resets = "eadt_collector_energy_counter_resets_total{device=\"GPU-fake-3\"}";
    running.until("the fall is counted", |_| running.metric(resets) == Some(1.0)).await;
    running
        .until("samples after it", |events| {
            let list = of(events, "GPU-fake-3");
            let joules: Vec<_> = list.iter().filter_map(|e| e.energy_joules_total).collect();
            joules.windows(2).any(|pair| pair[1] < pair[0])
        })
        .await;
    let events = running.bus.telemetry();
    for device in ["GPU-fake-0", "GPU-fake-1", "GPU-fake-2"] {
        let list = of(&events, device);
        assert!(list.len() > 20 && list.iter().all(|e| e.energy_joules_total.is_none() && e.power_watts.is_some()), "{device}");
    }
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignments_file_moves_a_gpu_between_workloads() {
    let fake = FakeLibrary::new("");
    let file = fake.folder().join("assignments.json");
    std::fs::write(&file, r#"[{"device":"GPU-fake-0","workload":"n/first"}]"#).unwrap();
    let running = start(&format!(
        "assignments_file = \"{}\"\n[progress]\nenabled = false\n[nvml]\nenabled = true\nlibrary_path = \"{}\"\ngpus = [0]\n{FAST}{UNCHECKED}",
        file.display(),
        fake.library().display()
    ));
    let at = |workload: &'static str| {
        move |events: &[GpuTelemetry]| events.iter().filter(|e| e.workload.as_deref() == Some(workload)).count() > 3
    };
    running.until("the first workload", at("n/first")).await;
    std::fs::write(&file, r#"[{"device":"GPU-fake-0","workload":"n/second"}]"#).unwrap();
    running.until("the second workload", at("n/second")).await;
    let bus = running.bus.clone();
    running.stop().await.unwrap();
    let events = bus.telemetry();
    let end = events.iter().find(|e| e.last && e.workload.as_deref() == Some("n/first")).expect("the first stay is ended");
    let begin = events.iter().find(|e| e.workload.as_deref() == Some("n/second")).unwrap();
    assert_eq!((end.time, end.energy_joules_total), (begin.time, begin.energy_joules_total), "one sample goes to both");
    assert_ne!(end.tenure, begin.tenure);
    assert!(events.iter().all(|e| e.workload.as_deref() != Some("n/first") || e.time <= end.time));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_library_or_gpu_is_an_error_with_its_remedy() {
    let fake = FakeLibrary::new("");
    for (more, expected) in [
        ("library_path = \"/nowhere/libnvidia-ml.so\"", "with collector.nvml.library_path"),
        (&format!("library_path = \"{}\"\ngpus = [7]", fake.library().display()), "names GPU 7, but there are 4"),
    ] {
        let running = start(&format!("[progress]\nenabled = false\n[nvml]\nenabled = true\n{more}"));
        let error = running.ended().await.unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source()).map(ToString::to_string);
        let causes: Vec<_> = causes.collect();
        assert!(causes.join(": ").contains(expected), "{causes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_hangs_at_start_does_not_hold_up_a_stop() {
    let fake = FakeLibrary::new("9 hang 1\n");
    let running = start_on(&fake, FAST);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stopping = Instant::now();
    assert_eq!(running.stop().await.unwrap(), eadt_collector::CollectorSummary::default());
    assert!(stopping.elapsed() < Duration::from_mins(1));
    // Lets the thread in the library go, before the library goes.
    fake.set("");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
