//! Tests the attribution of shared GPUs: parts, the unattributed part, unknown parts, and many nodes.

use eadt_dashboard::{AttributionBasis, DashboardModel, SharingQuery};
use eadt_schemas::v1::{
    DeviceHolders, DeviceIntent, DeviceReport, DeviceSetting, DeviceState, EfficiencyWindow, GpuTelemetry, HeldDevice, Layout,
    Origin, PodName, SettingOutcome, ShareMethod,
};

use crate::support::{HOSTILE, at, model, serve, story, take, window};

fn sample(device: &str, workload: Option<&str>, share: Option<f64>, method: Option<ShareMethod>, minute: i64) -> GpuTelemetry {
    GpuTelemetry {
        time: at(minute),
        workload: workload.map(str::to_owned),
        device: device.to_owned(),
        collector: "nvml/a".to_owned(),
        origin: Origin::Simulated,
        node: Some("node-a".to_owned()),
        gpu_index: Some(0),
        share,
        share_method: method,
        tenants: share.map(|_| 2),
        power_watts: Some(400.0),
        ..GpuTelemetry::default()
    }
}

fn shared(model: &mut DashboardModel, minute: i64) {
    let method = Some(ShareMethod::MpsPercentage);
    model.telemetry(&sample("GPU-1", Some("team/a"), Some(0.5), method, minute));
    model.telemetry(&sample("GPU-1", Some("team/b"), Some(0.3), method, minute));
    model.telemetry(&sample("GPU-1", None, Some(0.2), method, minute));
}

#[test]
fn power_that_no_gpu_draws_is_no_reading() {
    let mut model = model();
    let of = |device: &str, power: Option<f64>, average: Option<f64>| GpuTelemetry {
        gpu_index: device.trim_start_matches("GPU-").parse().ok(),
        power_watts: power,
        power_average_watts: average,
        ..sample(device, Some("team/a"), None, None, 30)
    };
    for sample in [
        of("GPU-1", Some(300.0), None),
        of("GPU-2", Some(12_345.6), None),
        of("GPU-3", Some(0.0), None),
        of("GPU-4", Some(4_294_967.0), Some(310.0)),
    ] {
        model.telemetry(&sample);
    }
    let page = model.sharing(&SharingQuery::default());
    let power: Vec<Option<f64>> = page.devices.iter().map(|device| device.power_watts).collect();
    assert_eq!(power, [Some(300.0), None, None, Some(310.0)]);
    let totals = &page.totals;
    assert_eq!((totals.power_watts, totals.power_known, totals.metered_power_watts), (Some(610.0), 2, 610.0), "{totals:?}");
    assert!(page.devices[1].unknown.iter().any(|why| why.contains("no such device draws")), "{:?}", page.devices[1]);
    let map = serde_json::to_value(model.gpu_map()).unwrap().to_string();
    assert!(map.contains("[300,null,null,310]"), "{map}");
}

#[test]
fn the_parts_of_a_gpu_sum_to_what_its_meter_reads() {
    let mut model = model();
    story("team/a", &mut |event| take(&mut model, &event));
    while model.refresh(8) {}
    shared(&mut model, 30);
    model.telemetry(&sample("GPU-2", Some("team/c"), None, None, 30));
    model.telemetry(&sample("GPU-3", None, None, None, 30));
    let page = model.sharing(&SharingQuery::default());
    let [first, second, third] = &page.devices[..] else { panic!("{page:?}") };
    assert_eq!((first.device.as_str(), first.shared, first.tenants.len()), ("GPU-1", true, 2));
    assert_eq!(first.tenants[0].power_watts, Some(200.0));
    assert_eq!(first.tenants[0].basis, AttributionBasis::Allotment);
    let report = model.workload_detail("team/a").unwrap().report.unwrap();
    assert_eq!(first.tenants[0].energy_joules, report.energy_joules);
    assert!(report.energy_joules.is_some());
    assert_eq!(first.tenants[1].energy_joules, None, "nothing is known of team/b but its samples");
    let parts: f64 = first.tenants.iter().filter_map(|tenant| tenant.power_watts).sum();
    assert!((parts + first.unassigned_power_watts.unwrap() - 400.0).abs() < 1e-9);
    assert!(first.unknown.iter().any(|text| text.contains("given")), "{:?}", first.unknown);
    assert_eq!((second.tenants[0].basis, second.unassigned_power_watts), (AttributionBasis::Whole, Some(0.0)));
    assert_eq!((third.tenants.len(), third.unassigned_power_watts), (0, Some(400.0)));
    let totals = &page.totals;
    assert_eq!((totals.gpus, totals.shared, totals.idle), (3, 1, 1));
    let sum = totals.metered_power_watts
        + totals.modelled_power_watts
        + totals.assumed_power_watts
        + totals.unassigned_power_watts
        + totals.contradicted_power_watts;
    assert!((sum - totals.power_watts.unwrap()).abs() < 1e-9, "{totals:?}");
    assert_eq!((totals.metered_power_watts, totals.modelled_power_watts.round()), (400.0, 320.0));
    let only = model.sharing(&SharingQuery { shared: true, ..SharingQuery::default() });
    assert_eq!((only.devices.len(), only.totals.gpus), (1, 3));
    assert_eq!(model.sharing(&SharingQuery { q: "TEAM/C".into(), ..SharingQuery::default() }).devices[0].device, "GPU-2");
}

#[test]
fn who_left_is_gone_and_who_is_silent_counts_for_nothing() {
    let mut model = model();
    shared(&mut model, 0);
    model.telemetry(&GpuTelemetry { last: true, ..sample("GPU-1", Some("team/b"), Some(0.3), None, 0) });
    let row = |model: &DashboardModel| model.sharing(&SharingQuery::default()).devices.remove(0);
    assert_eq!(row(&model).tenants.len(), 1);
    // Alone from now on, without an event that ends the earlier parts.
    model.telemetry(&sample("GPU-1", Some("team/a"), None, None, 5));
    let alone = row(&model);
    assert_eq!((alone.tenants.len(), alone.tenants[0].share_ratio, alone.shared), (1, 1.0, false));
    // An exporter's shares beside NVML's are another measure.
    let other = GpuTelemetry { collector: "dcgm".into(), ..sample("GPU-1", Some("team/x"), Some(0.9), None, 5) };
    model.telemetry(&other);
    assert_eq!(row(&model).tenants.len(), 1);
    model.telemetry(&GpuTelemetry { time: at(8), ..other });
    assert_eq!(row(&model).tenants[0].workload, "team/x");
    model.telemetry(&sample("GPU-2", Some("team/c"), None, None, 60));
    let page = model.sharing(&SharingQuery::default());
    assert_eq!((page.totals.silent, page.totals.power_watts), (1, Some(400.0)));
    assert!(page.devices.iter().any(|device| device.silent), "{page:?}");
    assert!(page.unknown[0].contains("1 GPU has not reported"), "{:?}", page.unknown);
}

#[test]
fn a_newer_sample_of_the_whole_gpu_ends_the_earlier_attributions() {
    let seconds = |sample: GpuTelemetry, seconds: f64| GpuTelemetry { time: at(0).plus_seconds(seconds), ..sample };
    let of = |workload: Option<&str>, share: Option<f64>, time: f64| seconds(sample("GPU-1", workload, share, None, 0), time);
    let shown = |samples: &[GpuTelemetry]| {
        let mut model = model();
        for sample in samples {
            model.telemetry(sample);
        }
        let page = model.sharing(&SharingQuery::default());
        let tenants = page.devices[0].tenants.iter().map(|tenant| (tenant.workload.clone(), tenant.share_ratio));
        (tenants.collect::<Vec<_>>(), page.totals.contradicted_power_watts)
    };
    let (killed, next) = (of(Some("t/killed"), None, 0.0), of(Some("t/next"), None, 10.0));
    let alone = (vec![("t/next".to_owned(), 1.0)], 0.0);
    assert_eq!(shown(&[killed.clone(), next.clone()]), alone, "no event ends the first job");
    assert_eq!(shown(&[next, killed.clone()]), alone, "its last sample is read later, of another partition");
    assert_eq!(shown(&[killed.clone(), of(None, None, 10.0)]), (vec![], 0.0), "nobody's");
    let half = of(Some("t/next"), Some(0.5), 10.0);
    let both = (vec![("t/killed".to_owned(), 0.5), ("t/next".to_owned(), 0.5)], 0.0);
    assert_eq!(shown(&[killed, half.clone()]), both, "what the newer sample leaves");
    assert_eq!(shown(&[of(Some("t/killed"), Some(0.5), 0.0), half]), both, "tenants that are sampled one after the other");
    let (_, contradicted) = shown(&[of(Some("t/a"), None, 0.0), of(Some("t/b"), None, 0.0)]);
    assert!(contradicted > 0.0, "both at one moment");
}

#[test]
fn a_gpu_that_its_node_names_and_that_sends_no_samples_is_silent() {
    let mut model = model();
    shared(&mut model, 0);
    let report = |device: &str| DeviceReport { device: device.into(), gpu_index: Some(1), ..DeviceReport::default() };
    let state = |devices: &[&str]| DeviceState {
        time: at(0),
        node: "node-a".into(),
        devices: devices.iter().map(|device| report(device)).collect(),
        ..DeviceState::default()
    };
    model.device_state(&state(&["GPU-1", "GPU-9"]));
    let pod = PodName { namespace: "team".into(), name: "b-0".into(), workload: Some("team/b".into()) };
    model.device_holders(&DeviceHolders {
        time: at(0),
        node: "node-b".into(),
        devices: vec![HeldDevice { device: "GPU-8".into(), pods: vec![pod], ..HeldDevice::default() }],
        ..DeviceHolders::default()
    });
    let page = model.sharing(&SharingQuery::default());
    assert_eq!((page.totals.gpus, page.totals.silent, page.matching, page.totals.power_watts), (3, 2, 3, Some(400.0)));
    let [_, named, held] = &page.devices[..] else { panic!("{page:?}") };
    assert_eq!((named.device.as_str(), named.gpu_index, named.silent), ("GPU-9", Some(1), true));
    assert_eq!((named.time_ms, named.origin, named.unassigned_ratio), (None, None, None));
    assert_eq!((held.device.as_str(), held.node.as_deref(), held.pods.len()), ("GPU-8", Some("node-b"), 1));
    assert!(page.unknown[0].contains("2 GPUs are named by their nodes"), "{:?}", page.unknown);
    assert_eq!(model.sharing(&SharingQuery { shared: true, ..SharingQuery::default() }).matching, 1);
    model.telemetry(&sample("GPU-9", None, None, None, 1));
    let totals = model.sharing(&SharingQuery::default()).totals;
    assert_eq!((totals.gpus, totals.silent, totals.idle), (3, 1, 1));
    // An agent that has stopped names nothing any more, nor does a kubelet of long ago.
    model.device_state(&DeviceState { stopped: true, ..state(&["GPU-1", "GPU-7"]) });
    model.telemetry(&sample("GPU-9", None, None, None, 20));
    let page = model.sharing(&SharingQuery::default());
    assert_eq!((page.totals.gpus, page.totals.silent), (2, 1), "{page:?}");
}

#[test]
fn a_gpu_whose_jobs_have_ended_is_shared_by_nobody() {
    let mut model = model();
    for workload in ["team/a", "team/b"] {
        for (minute, run_seconds) in [(28, 60.0), (29, 0.0)] {
            model.window(&EfficiencyWindow {
                run_declared: true,
                run_seconds,
                ..window(workload, minute, 6_000.0, &Layout::default())
            });
        }
        model.telemetry(&sample("GPU-1", Some(workload), Some(0.5), Some(ShareMethod::Equal), 30));
    }
    let page = model.sharing(&SharingQuery::default());
    let totals = &page.totals;
    assert_eq!((totals.gpus, totals.shared, totals.idle, totals.unassigned_power_watts), (1, 0, 1, 400.0));
    assert_eq!(page.unknown, Vec::<String>::new());
    let device = &page.devices[0];
    assert_eq!((device.shared, device.tenants.len(), device.unassigned_ratio), (false, 0, Some(1.0)));
    assert!(device.unknown.len() == 2 && device.unknown.iter().all(|text| text.contains("has ended")), "{device:?}");
    assert_eq!(model.gpu_map().nodes[0].workloads, [Some(0)]);
    let shared = model.sharing(&SharingQuery { shared: true, ..SharingQuery::default() });
    assert_eq!(shared.matching, 0);
    // One of them is started again.
    model.window(&EfficiencyWindow { run_declared: true, ..window("team/a", 30, 6_000.0, &Layout::default()) });
    let page = model.sharing(&SharingQuery::default());
    assert_eq!((page.totals.shared, page.totals.idle, page.devices[0].tenants.len()), (0, 0, 1));
    assert_eq!(model.gpu_map().nodes[0].workloads, [Some(1)]);
}

#[test]
fn what_is_not_known_is_shown() {
    let mut model = model();
    for workload in ["team/a", "team/b"] {
        let equal = sample("GPU-1", Some(workload), Some(0.5), Some(ShareMethod::Equal), 0);
        model.telemetry(&GpuTelemetry { power_watts: None, tenants: Some(3), ..equal });
        model.telemetry(&sample("GPU-2", Some(workload), Some(0.8), Some(ShareMethod::Assigned), 0));
    }
    let pod = PodName { namespace: "team".into(), name: "b-0".into(), workload: Some("team/b".into()) };
    model.device_holders(&DeviceHolders {
        time: at(0),
        node: "node-a".into(),
        devices: vec![HeldDevice { device: "GPU-1".into(), pods: vec![pod.clone()], ..HeldDevice::default() }],
        unplaced: vec![pod],
    });
    let wish = |watts| DeviceSetting { device: Some("GPU-1".into()), power_limit_watts: Some(watts), ..DeviceSetting::default() };
    let intent = DeviceIntent {
        time: at(0),
        node: "node-a".into(),
        decision_id: "d".into(),
        time_to_live_seconds: 600.0,
        devices: Some(vec![wish(250.0)]),
        ..DeviceIntent::default()
    };
    model.device_intent(&intent);
    let page = model.sharing(&SharingQuery::default());
    let text = page.unknown.join("\n");
    for wanted in ["1 GPU reports no power", "divided equally", "sum to more than all", "does not name", "has not reported"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let first = &page.devices[0];
    assert!(first.unknown.iter().any(|text| text.contains("counts 3")), "{first:?}");
    assert_eq!((first.tenants[0].power_watts, first.unassigned_power_watts), (None, None));
    assert_eq!(first.pods.len(), 1);
    assert_eq!(first.requested.as_ref().unwrap().power_limit_outcome, None);
    let second = &page.devices[1];
    assert_eq!((second.unassigned_power_watts, page.totals.contradicted_power_watts), (None, 400.0));
    model.device_state(&DeviceState {
        time: at(0),
        node: "node-a".into(),
        devices: vec![DeviceReport {
            device: "GPU-1".into(),
            power_limit_outcome: SettingOutcome::Refused,
            power_limit_reason: "below the board's least".into(),
            ..DeviceReport::default()
        }],
        ..DeviceState::default()
    });
    let asked = model.sharing(&SharingQuery::default()).devices.remove(0).requested.unwrap();
    assert_eq!((asked.power_limit_outcome, asked.reason.as_str()), (Some(SettingOutcome::Refused), "below the board's least"));
    // The request expires.
    model.telemetry(&sample("GPU-1", Some("team/a"), None, None, 11));
    assert!(model.sharing(&SharingQuery::default()).devices.iter().all(|device| device.requested.is_none()));
}

#[tokio::test]
async fn a_large_fleet_is_grouped_by_node_and_hostile_names_are_text() {
    let mut model = model();
    for number in 0..240 {
        let node = format!("node-{}", number / 8);
        let workload = (number % 3 != 0).then(|| format!("team/job-{number}"));
        let gpu = sample(&format!("GPU-{number:03}"), workload.as_deref(), None, None, 0);
        model.telemetry(&GpuTelemetry { node: Some(node), gpu_index: Some(number % 8), ..gpu });
    }
    let hostile = format!("team/{}", HOSTILE[0]);
    model.telemetry(&GpuTelemetry { node: None, ..sample("GPU-x", Some(&hostile), None, None, 0) });
    let served = serve(model, eadt_dashboard::DashboardSettings::default()).await;
    let all = served.get("/api/v1/sharing?limit=200").await.json();
    assert_eq!((&all["grouped"], &all["matching"], &all["devices"]), (&true.into(), &31.into(), &serde_json::json!([])));
    let nodes = all["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().map(|node| node["gpus"].as_u64().unwrap()).sum::<u64>(), 241);
    let watts = |node: &serde_json::Value| node["unassigned_power_watts"].as_f64().unwrap();
    assert!(nodes.windows(2).all(|pair| watts(&pair[0]) >= watts(&pair[1])));
    let one = served.get("/api/v1/sharing?node=node-3&skip=2&limit=3").await.json();
    assert_eq!((&one["grouped"], &one["matching"]), (&false.into(), &8.into()));
    assert_eq!((&one["devices"][0]["device"], one["devices"].as_array().unwrap().len()), (&"GPU-026".into(), 3));
    let none = served.get("/api/v1/sharing?node=-").await.json();
    assert_eq!(none["devices"][0]["tenants"][0]["workload"], hostile);
    assert_eq!(served.get("/api/v1/sharing?nodes=1").await.status, 400);
}

#[tokio::test]
async fn a_map_has_every_gpu_by_node_and_marks_those_that_are_silent() {
    let mut model = model();
    shared(&mut model, 30);
    // Another GPU of the node with the same index.
    model.telemetry(&sample("GPU-2", None, None, None, 30));
    let on = |device: &str, node: &str, index, minute| GpuTelemetry {
        node: Some(node.to_owned()),
        gpu_index: Some(index),
        ..sample(device, Some("team/c"), None, None, minute)
    };
    model.telemetry(&on("GPU-3", "node-10", 1, 30));
    model.telemetry(&on("GPU-4", "node-10", 0, 0));
    model.telemetry(&on("GPU-5", "node-2", 7, 30));
    model.telemetry(&GpuTelemetry { power_watts: None, ..on("GPU-6", HOSTILE[0], 0, 30) });
    let served = serve(model, eadt_dashboard::DashboardSettings::default()).await;
    let map = served.get("/api/v1/gpu-map").await.json();
    let nodes = serde_json::json!([
        { "node": HOSTILE[0], "gpus": [0], "power_watts": [null], "workloads": [1] },
        { "node": "node-2", "gpus": [7], "power_watts": [400], "workloads": [1] },
        { "node": "node-10", "gpus": [0, 1], "power_watts": [null, 400], "workloads": [null, 1] },
        { "node": "node-a", "gpus": ["GPU-1", "GPU-2"], "power_watts": [400, 400], "workloads": [2, 0] },
    ]);
    assert_eq!((&map["nodes"], &map["gpus"], &map["now_ms"]), (&nodes, &6.into(), &at(30).millis().into()));
    let one = served.get("/api/v1/sharing?node=node-10&gpu_index=1").await.json();
    assert_eq!((&one["matching"], &one["devices"][0]["device"]), (&1.into(), &"GPU-3".into()));
    for path in ["/api/v1/gpu-map?node=node-2", "/api/v1/sharing?gpu_index=first"] {
        assert_eq!(served.get(path).await.status, 400, "{path}");
    }
}
