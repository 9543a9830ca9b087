//! Prometheus' answers and texts as they come: whose GPU, no value, repeated series, foreign lines.

use std::collections::BTreeMap;
use std::fmt::Write;

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFile, RecordingFormat, import};
use eadt_schemas::decode::decode;
use eadt_schemas::v1::{GpuTelemetry, ShareMethod, TrainingProgress};
use eadt_schemas::{EventType, LoggedEvent};

const START: i64 = 1_738_576_800;

fn read(files: &[&str], workload: Option<&str>) -> Result<ImportedRecording, String> {
    let inputs = files.iter().map(|text| RecordingFile::new("p", text.as_bytes())).collect();
    let options = ImportOptions { workload: workload.map(str::to_owned), ..ImportOptions::default() };
    import(RecordingFormat::Prometheus, inputs, &options).map_err(|error| error.to_string())
}

fn telemetry(imported: &ImportedRecording) -> Vec<GpuTelemetry> {
    let events = imported.events().filter(|event| event.kind == EventType::GpuTelemetry.name());
    events.map(|event| data(&event)).collect()
}

fn data<T: eadt_schemas::decode::DecodableEvent + for<'de> serde::Deserialize<'de>>(event: &LoggedEvent) -> T {
    decode(event.data.as_ref().unwrap().get().as_bytes()).unwrap()
}

/// Power, an average on boards whose model is not known.
fn watts(event: &GpuTelemetry) -> Option<f64> {
    event.power_watts.or(event.power_average_watts)
}

/// A series of 11 samples every 15 s from `first` on, each `step` more than the one before.
fn series(name: &str, labels: &str, first: f64, step: f64) -> String {
    let labels: Vec<String> = labels
        .split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| format!("{name:?}:{value:?}"))
        .collect();
    let values: Vec<_> = (0..11).map(|i| format!("[{},\"{}\"]", START + 15 * i, first + step * i as f64)).collect();
    format!("{{\"metric\":{{\"__name__\":{name:?},{}}},\"values\":[{}]}}", labels.join(","), values.join(","))
}

fn answer(series: &[String]) -> String {
    format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{}]}}}}", series.join(","))
}

const POWER: &str = "DCGM_FI_DEV_POWER_USAGE";
const ENERGY: &str = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION";
const OWN: &str = "namespace=gpu-operator,pod=nvidia-dcgm-exporter-abcde";

/// Returns joules by power and share of each workload, `-` for the unattributed part.
fn joules(imported: &ImportedRecording) -> BTreeMap<String, f64> {
    let mut last: BTreeMap<(String, String, Option<u64>), GpuTelemetry> = BTreeMap::new();
    let mut joules = BTreeMap::new();
    for event in telemetry(imported) {
        let workload = event.workload.clone().unwrap_or_else(|| "-".to_owned());
        let known = last.insert((workload.clone(), event.device.clone(), event.tenure), event.clone());
        let part = |event: &GpuTelemetry| watts(event).unwrap_or(0.0) * event.share.unwrap_or(1.0);
        let before = known.map_or(0.0, |known| event.time.seconds_since(known.time) * f64::midpoint(part(&known), part(&event)));
        *joules.entry(workload).or_default() += before;
    }
    for value in joules.values_mut() {
        *value = f64::round(*value);
    }
    joules
}

#[test]
fn a_board_of_several_pods_is_one_board_of_the_report() {
    let pod = |name: &str| format!("gpu=0,UUID=GPU-s,{OWN},exported_namespace=lab,exported_pod={name}");
    let imported = read(&[&answer(&[series(POWER, &pod("a"), 100.0, 1.0), series(POWER, &pod("b"), 100.0, 1.0)])], None).unwrap();
    let boards = &imported.report.boards;
    assert_eq!((boards.len(), boards[0].readings, boards[0].mean_power_watts), (1, 11, Some(105.0)), "{boards:?}");
}

#[test]
fn the_energy_of_a_board_goes_to_its_pods_once_and_never_to_the_exporter() {
    let pod = |gpu: &str, name: &str| format!("gpu=0,UUID={gpu},{OWN},exported_namespace=lab,exported_pod={name}");
    let mig = |id: &str, profile: &str, name: &str| format!("{},GPU_I_ID={id},GPU_I_PROFILE={profile}", pod("GPU-m", name));
    let activity = "DCGM_FI_PROF_GR_ENGINE_ACTIVE";
    for (result, expected) in [
        // Time slicing.
        (
            ["a", "b", "c"]
                .iter()
                .flat_map(|name| {
                    let labels = pod("GPU-s", &format!("infer-{name}"));
                    [series(POWER, &labels, 60.0, 0.0), series(ENERGY, &labels, 5e6, 9e5)]
                })
                .collect(),
            vec![("lab/infer-a", 3000.0), ("lab/infer-b", 3000.0), ("lab/infer-c", 3000.0)],
        ),
        // The exporter's own pod.
        (
            vec![
                series(POWER, &pod("GPU-b", "bert-0"), 300.0, 0.0),
                series(POWER, &format!("gpu=1,UUID=GPU-i,{OWN}"), 50.0, 0.0),
            ],
            vec![("lab/bert-0", 45_000.0), ("-", 7500.0)],
        ),
        // MIG: each instance repeats the board's power.
        (
            vec![
                series(POWER, &mig("1", "3g.40gb", "a"), 280.1, 0.0),
                series(POWER, &mig("2", "2g.20gb", "b"), 280.2, 0.0),
                series(POWER, &format!("gpu=0,UUID=GPU-m,{OWN},GPU_I_ID=3,GPU_I_PROFILE=1g.10gb"), 280.3, 0.0),
            ],
            vec![("lab/a", 21_008.0), ("lab/b", 14_005.0), ("-", 7003.0)],
        ),
        // As far as they were busy.
        (
            vec![
                series(POWER, &mig("1", "3g.40gb", "a"), 100.0, 0.0),
                series(activity, &mig("1", "3g.40gb", "a"), 0.5, 0.0),
                series(activity, &mig("2", "1g.10gb", "b"), 0.5, 0.0),
            ],
            vec![("lab/a", 11_250.0), ("lab/b", 3750.0), ("-", 0.0)],
        ),
        // Two pods of unequal age share from when the second came.
        (
            vec![
                series(POWER, &pod("GPU-s", "a"), 100.0, 0.0),
                series(POWER, &pod("GPU-s", "b"), 100.0, 0.0).replace(&format!("[{START},\"100\"],"), ""),
            ],
            // The first 15 s end at half of it.
            vec![("lab/a", 15.0 * 75.0 + 135.0 * 50.0), ("lab/b", 135.0 * 50.0)],
        ),
        // A batch system's jobs have no namespace.
        (
            vec![
                series(POWER, "gpu=0,UUID=GPU-h,hpc_job=1", 100.0, 0.0),
                series(POWER, "gpu=0,UUID=GPU-h,hpc_job=2", 100.0, 0.0),
            ],
            vec![("imported/1", 7500.0), ("imported/2", 7500.0)],
        ),
        // An exporter of 2020.
        (
            vec![series("dcgm_power_usage", "gpu=0,uuid=GPU-o,pod_name=train-0,pod_namespace=lab", 90.0, 0.0)],
            vec![("lab/train-0", 13_500.0)],
        ),
        // No workload is named: all of it is one recording.
        (vec![series(POWER, "gpu=0,UUID=GPU-x", 100.0, 0.0)], vec![("imported/p", 15_000.0)]),
        (vec![series(POWER, &format!("gpu=0,UUID=GPU-x,{OWN}"), 100.0, 0.0)], vec![("imported/p", 15_000.0)]),
    ] {
        let result: Vec<String> = result;
        let imported = read(&[&answer(&result)], None).unwrap();
        let expected: BTreeMap<String, f64> =
            expected.into_iter().map(|(workload, joules)| (workload.to_owned(), joules)).collect();
        assert_eq!(joules(&imported), expected, "{}", imported.report);
        let named = read(&[&answer(&result)], Some("n/all")).unwrap();
        let whole: f64 = expected.values().sum();
        let all = joules(&named);
        assert_eq!(all.len(), 1, "{all:?}");
        // At a change of shares up to 15 s may be unattributed.
        assert!((-3.0..400.0).contains(&(all["n/all"] - whole)), "{all:?} is not {whole}: counted once, whoever shares it");
        assert_eq!((imported.report.same_stamp, imported.report.duplicates), (0, 0), "{}", imported.report);
    }
}

#[test]
fn what_changes_hands_has_stays_of_its_own() {
    let series = |pod: &str, range: std::ops::Range<i64>| {
        let values: Vec<_> = range.map(|i| format!("[{},\"{}\"]", START + 15 * i, 1_000_000 * (i + 1))).collect();
        format!(
            "{{\"metric\":{{\"__name__\":\"{ENERGY}\",\"UUID\":\"GPU-a\",\"namespace\":\"lab\",\"pod\":\"{pod}\"}},\"values\":[{}]}}",
            values.join(",")
        )
    };
    let imported = read(&[&answer(&[series("a", 0..3), series("b", 3..6)]), &answer(&[series("a", 6..9)])], None).unwrap();
    let events = telemetry(&imported);
    let of = |workload: &str| events.iter().filter(|e| e.workload.as_deref() == Some(workload)).collect::<Vec<_>>();
    let a = of("lab/a");
    assert_eq!(a.iter().map(|e| e.last).collect::<Vec<_>>(), [false, false, false, true, false, false, true]);
    assert_ne!(a[0].tenure, a[4].tenure, "what b used meanwhile is no difference of a's");
    assert_eq!(of("lab/b").len(), 4);
    assert!(imported.report.gaps.is_empty(), "{}", imported.report);
    assert_eq!(a[0].share_method, None::<ShareMethod>);
}

#[test]
fn several_values_of_one_reading_at_one_time_are_counted_and_reported() {
    let replica = |name: &str, watts: f64| series(POWER, &format!("gpu=0,UUID=GPU-x,prometheus_replica={name}"), watts, 0.0);
    let power = |file: &str| format!("{POWER}{{UUID=\"GPU-x\"}} {file}");
    for (files, duplicates, same_stamp, watts) in [
        (vec![answer(&[replica("a", 100.0), replica("b", 300.0)])], 0, 11, 200.0),
        (vec![answer(&[replica("a", 100.0)]), answer(&[replica("b", 300.0)])], 0, 11, 200.0),
        (vec![answer(&[replica("a", 100.0), replica("b", 100.0)])], 11, 0, 100.0),
        (vec![answer(&[replica("a", 100.0)]), answer(&[replica("a", 100.0)])], 11, 0, 100.0),
        (vec![answer(&[replica("a", 100.0), replica("b", 300.0), replica("c", 100.0)])], 11, 11, 200.0),
        (vec![power("5 1700000000000\n") + &power("7 1700000000000\n") + &power("6 1700000001000\n")], 0, 1, 6.0),
        (vec![power("5 1700000000000\n") + &power("5 1700000000000\n") + &power("5 1700000001000\n")], 1, 0, 5.0),
        // One counter is no other's mean.
        (
            vec![answer(&[
                series(POWER, "UUID=GPU-x,r=a", 9.0, 0.0),
                series("nvidia_smi_power_draw_watts", "uuid=GPU-x", 8.0, 0.0),
            ])],
            0,
            0,
            9.0,
        ),
    ] {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let imported = read(&files, Some("lab/a")).unwrap();
        let report = &imported.report;
        assert_eq!((report.duplicates, report.same_stamp), (duplicates, same_stamp), "{report}");
        assert_eq!(report.notes.iter().filter(|note| note.contains("a guess")).count(), usize::from(same_stamp > 0), "{report}");
        assert!(telemetry(&imported).iter().all(|event| self::watts(event) == Some(watts)), "{report}");
    }
}

#[test]
fn a_line_that_cannot_be_used_costs_that_line() {
    let mut good = String::new();
    for i in 0..6 {
        writeln!(good, "{POWER}{{gpu=\"0\",UUID=\"GPU-u\"}} 250 {}.5", START + 15 * i).unwrap();
        writeln!(
            good,
            "training_samples_total{{job=\"x\",note=\"a }} \\\" , b\"}} {} {}.5 # {{\"k.b\"=\"v\"}} 1.0",
            1000 * i,
            START + 15 * i
        )
        .unwrap();
    }
    for (unusable, reason, lines) in [
        ("{\"k8s.node.cpu.usage\",\"k8s.node.name\"=\"n1\"} 0.5 1738576800.5\n".repeat(2), "k8s.node.cpu.usage", 2),
        ("node_load1 0.5 1738576800\n".to_owned(), "node_load1", 1),
        ("node_load1 0.5\n".to_owned(), "node_load1", 1),
        (format!("{POWER}{{gpu=\"0\",UUID=\"GP\n"), "not a sample", 1),
        ("curl: (28) timeout\n".to_owned(), "not a sample", 1),
        (format!("{POWER}{{gpu=\"0\",UUID=\"GPU-u\"}} 250\n"), "has no time stamp", 1),
        (format!("{POWER}{{gpu=\"0\",UUID=\"GPU-u\"}} 250 -7\n"), "not a time", 1),
        (format!("{POWER}{{gpu=\"0\",UUID=\"GPU-u\"}} watts 1738576800\n"), "not a sample", 1),
    ] {
        let imported = read(&[&format!("# TYPE x gauge\n{good}{unusable}# EOF\n")], Some("lab/a")).unwrap();
        // Series of others are none of ours; a line that is no sample may have been.
        let is_foreign = reason.starts_with("k8s") || reason.starts_with("node_load1");
        let report = &imported.report;
        let (found, none) = if is_foreign { (&report.skipped, &report.refused) } else { (&report.refused, &report.skipped) };
        let lines_of =
            |reason: &str| found.iter().filter(|some| some.reason.contains(reason)).map(|some| some.lines).sum::<u64>();
        assert_eq!((lines_of(reason), none.len()), (lines, 0), "{unusable}: {report}");
        assert_eq!(report.check_refused().is_ok(), is_foreign, "{unusable}");
        assert_eq!(joules(&imported), BTreeMap::from([("lab/a".to_owned(), 18_750.0)]), "{unusable}");
        assert_eq!(imported.report.progress_events, 6);
    }
    // A quoted name of ours is ours, and without an end the stamps are still seconds.
    let quoted = good.replace(&format!("{POWER}{{"), &format!("{{\"{POWER}\","));
    for text in [format!("{quoted}# EOF\n"), good.replace(".5\n", "\n").replace(".5 #", " #")] {
        let imported = read(&[&text], Some("lab/a")).unwrap();
        assert_eq!(joules(&imported)["lab/a"], 18_750.0, "{text}");
    }
}

#[test]
fn no_value_is_absent_whatever_it_is_written_as() {
    let absent = ["NaN", "+Inf", "-Inf", "0", "9223372036854775794", "2147483632", "140737488355330"];
    let values: Vec<_> = absent.iter().enumerate().map(|(i, text)| format!("[{},\"{text}\"]", START + i as i64)).collect();
    let json = format!(
        "{{\"status\":\"success\",\"isPartial\":true,\"warnings\":[\"slow store\"],\"data\":{{\"resultType\":\"matrix\",\"result\":[\
         {{\"metric\":{{\"__name__\":\"{POWER}\",\"UUID\":\"GPU-a\"}},\"values\":[{},[{},\"50\"],[{},60]]}},\
         {{\"metric\":{{\"__name__\":\"training_loss\"}},\"values\":[[{START},\"NaN\"],[{},\"0.5\"]]}}]}}}}",
        values.join(","),
        START + 20,
        START + 21,
        START + 1
    );
    let imported = read(&[&json], Some("lab/a")).unwrap();
    assert_eq!(imported.report.absent_values, absent.len() as u64 + 1);
    assert_eq!(telemetry(&imported).iter().filter_map(watts).collect::<Vec<_>>(), [50.0, 60.0]);
    let progress = imported.events().find(|event| event.kind == EventType::TrainingProgress.name()).unwrap();
    assert_eq!(data::<TrainingProgress>(&progress).loss, Some(0.5));
    assert_eq!(
        imported.report.notes.iter().filter(|note| note.contains("slow store") || note.contains("not complete")).count(),
        2
    );
}

#[test]
fn what_promtool_prints_is_read_as_the_answer_is() {
    let series = |gpu: u32, first: f64| {
        let values = (0..5).map(|at| format!("{} @[{}]\n", first + f64::from(at), START + i64::from(at) * 15));
        format!("DCGM_FI_DEV_POWER_USAGE{{UUID=\"GPU-{gpu}\", gpu=\"{gpu}\"}} =>\n{}", values.collect::<String>())
    };
    let values = |gpu: u32, first: f64| {
        let values: Vec<String> =
            (0..5).map(|at| format!("[{},\"{}\"]", START + i64::from(at) * 15, first + f64::from(at))).collect();
        format!(
            "{{\"metric\":{{\"__name__\":\"DCGM_FI_DEV_POWER_USAGE\",\"UUID\":\"GPU-{gpu}\",\"gpu\":\"{gpu}\"}},\"values\":[{}]}}",
            values.join(",")
        )
    };
    let (one, other) = (values(0, 300.0), values(1, 200.0));
    let answer = format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{one},{other}]}}}}");
    let readings = |text: &str| {
        let imported = read(&[text], Some("a/b")).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(imported.report.refused.is_empty(), "{text}");
        telemetry(&imported).iter().map(|event| (event.device.clone(), event.time, watts(event))).collect::<Vec<_>>()
    };
    let expected = readings(&answer);
    assert_eq!(expected.len(), 10);
    assert_eq!(readings(&format!("{}{}", series(0, 300.0), series(1, 200.0))), expected, "text");
    assert_eq!(readings(&format!("[{one},{other}]\n")), expected, "JSON");
    assert_eq!(readings(&format!("[{one}]\n[{other}]\n")), expected, "JSON of two queries");
    for (text, part) in [
        (series(0, 300.0).replace("DCGM_FI_DEV_POWER_USAGE", ""), "query the series themselves"),
        ("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\"} => 300 @[1738576800]\n".to_owned(), "promtool query range, not instant"),
        ("[{\"metric\":{\"__name__\":\"DCGM_FI_DEV_POWER_USAGE\"},\"value\":[1738576800,\"300\"]}]".to_owned(), "one moment"),
    ] {
        let message = read(&[&text], Some("a/b")).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_answer_of_one_moment_is_no_recording_but_several_are() {
    let moment = |at: i64, watts: u32| {
        format!(
            "{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":[{{\"metric\":{{\"__name__\":\"{POWER}\",\
             \"UUID\":\"GPU-a\"}},\"value\":[{at}.25,\"{watts}\"]}}]}}}}\n"
        )
    };
    let error = read(&[&moment(START, 100)], None).unwrap_err();
    assert!(error.contains("query_range") && error.contains("vector"), "{error}");
    let several = moment(START, 100) + &moment(START + 10, 100);
    for files in [vec![several.as_str()], vec![&moment(START, 100), &moment(START + 10, 100)]] {
        assert_eq!(joules(&read(&files, Some("n/a")).unwrap())["n/a"], 1000.0);
    }
    for (result, expected) in [
        ("{\"status\":\"error\",\"error\":\"query timed out\"}", "query timed out"),
        ("{\"status\":\"success\",\"data\":{\"resultType\":\"streams\",\"result\":[]}}", "streams"),
        (&answer(&[series("node_load1", "a=b", 1.0, 0.0), series("up", "a=b", 1.0, 0.0)]), "found: node_load1, up"),
        (&answer(&[series("x", "a=b", 1.0, 0.0).replace("\"__name__\":\"x\",", "")]), "no name"),
        (&answer(&[series(POWER, "UUID=G", 1.0, 0.0).replace("[1738", "[1738000")]), "not in seconds"),
    ] {
        let error = read(&[result], None).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // A series that cannot be used costs itself.
    let mixed = answer(&[series("x", "a=b", 1.0, 0.0).replace("\"__name__\":\"x\",", ""), series(POWER, "UUID=G", 100.0, 0.0)]);
    assert_eq!(joules(&read(&[&mixed], Some("n/a")).unwrap())["n/a"], 15_000.0);
}

#[test]
fn boards_of_one_name_in_several_places_are_several_boards() {
    let two = |a: &str, b: &str| answer(&[series(POWER, a, 100.0, 0.0), series(POWER, b, 300.0, 0.0)]);
    for (what, a, b, names) in [
        ("Hostname", "UUID=GPU-1,Hostname=n1", "UUID=GPU-1,Hostname=n2", ["n1/GPU-1", "n2/GPU-1"]),
        (
            "kubernetes_node",
            "gpu=0,instance=localhost:9400,kubernetes_node=n1",
            "gpu=0,instance=localhost:9400,kubernetes_node=n2",
            ["n1/localhost:9400/gpu0", "n2/localhost:9400/gpu0"],
        ),
        ("cluster", "gpu=0,Hostname=n1,cluster=east", "gpu=0,Hostname=n1,cluster=west", ["east/n1/gpu0", "west/n1/gpu0"]),
        ("region", "UUID=GPU-1,region=a", "UUID=GPU-1,region=b", ["a/GPU-1", "b/GPU-1"]),
        ("node", "gpu=0,instance=x:1,node=n1", "gpu=0,instance=x:1,node=n2", ["n1/x:1/gpu0", "n2/x:1/gpu0"]),
        (
            "cluster and host",
            "UUID=GPU-1,cluster=east,Hostname=n1",
            "UUID=GPU-1,cluster=west,Hostname=n1",
            ["east/GPU-1", "west/GPU-1"],
        ),
    ] {
        let imported = read(&[&two(a, b)], None).unwrap();
        let events = telemetry(&imported);
        let devices: std::collections::BTreeSet<&str> = events.iter().map(|event| event.device.as_str()).collect();
        assert_eq!(devices.into_iter().collect::<Vec<_>>(), names, "{what}");
        assert_eq!(events.iter().filter_map(watts).sum::<f64>(), 11.0 * 400.0, "{what}: nothing is averaged");
        let notes = imported.report.notes.join("; ");
        assert!(notes.contains("boards are distinguished by") && !notes.contains("is a guess"), "{what}: {notes}");
    }
    // Two servers of one pair, an exporter that moved to another pod, and the same reading twice are one board.
    for (what, a, b) in [
        ("replica", "UUID=GPU-1,replica=a", "UUID=GPU-1,replica=b"),
        ("instance", "UUID=GPU-1,instance=10.0.0.1:9400", "UUID=GPU-1,instance=10.0.0.2:9400"),
    ] {
        assert_eq!(read(&[&two(a, b)], None).unwrap().report.boards.len(), 1, "{what}");
    }
    let same = answer(&[series(POWER, "UUID=GPU-1,cluster=a", 100.0, 0.0), series(POWER, "UUID=GPU-1,cluster=b", 100.0, 0.0)]);
    assert_eq!(read(&[&same], None).unwrap().report.boards.len(), 1, "the same values");
}

#[test]
fn boards_without_a_host_are_distinguished_by_any_label_of_the_index() {
    for (one, other) in [
        ("device=nvidia0", "device=nvidia1"),
        ("device=nvidia0,UUID=N/A", "device=nvidia1,UUID=N/A"),
        ("minor_number=0", "minor_number=1"),
    ] {
        let text = answer(&[series(POWER, one, 300.0, 0.0), series(POWER, other, 100.0, 0.0)]);
        let mut boards: Vec<(String, Option<f64>)> =
            telemetry(&read(&[&text], None).unwrap()).iter().map(|event| (event.device.clone(), watts(event))).collect();
        boards.sort_by(|a, b| a.0.cmp(&b.0));
        boards.dedup();
        assert_eq!(boards, [("node/gpu0".to_owned(), Some(300.0)), ("node/gpu1".to_owned(), Some(100.0))], "{one}");
    }
}

#[test]
fn power_usage_is_an_average_for_models_that_average_it() {
    for (labels, instant, average) in [
        ("UUID=GPU-1,modelName=NVIDIA A100-SXM4-80GB", Some(300.0), None),
        ("UUID=GPU-1,modelName=NVIDIA H100 80GB HBM3", None, Some(300.0)),
        ("UUID=GPU-1", None, Some(300.0)),
    ] {
        let imported = read(&[&answer(&[series(POWER, labels, 300.0, 0.0)])], Some("lab/a")).unwrap();
        let is_right = |event: &GpuTelemetry| (event.power_watts, event.power_average_watts) == (instant, average);
        assert!(telemetry(&imported).iter().all(is_right), "{labels}");
    }
    // If an exporter gives both, each is read as named.
    let both = [
        series(POWER, "UUID=GPU-1,modelName=NVIDIA H100 PCIe", 300.0, 0.0),
        series("DCGM_FI_DEV_POWER_USAGE_INSTANT", "UUID=GPU-1,modelName=NVIDIA H100 PCIe", 310.0, 0.0),
    ];
    let imported = read(&[&answer(&both)], Some("lab/a")).unwrap();
    let is_right = |event: &GpuTelemetry| (event.power_watts, event.power_average_watts) == (Some(310.0), Some(300.0));
    assert!(telemetry(&imported).iter().all(is_right), "{}", imported.report);
}

#[test]
fn ranks_that_count_their_own_are_noted() {
    let text = |second: u32| {
        let row = |row: u32, rank: u32| {
            let (count, millis) = (row * if rank == 0 { 640 } else { second }, 1_738_576_800_000_u64 + 15_000 * u64::from(row));
            format!("training_samples_total{{job=\"x\",rank=\"{rank}\"}} {count} {millis}\n")
        };
        (0..40).flat_map(|number| [row(number, 0), row(number, 1)]).collect::<String>()
    };
    for (second, is_noted) in [(640, false), (704, true)] {
        let notes = read(&[&text(second)], Some("lab/a")).unwrap().report.notes;
        let found = notes.iter().any(|note| note.starts_with("samples_total of rank 0 and rank 1 of lab/a differs"));
        assert_eq!(found, is_noted, "{notes:?}");
    }
}

#[test]
fn one_counter_that_ranks_export_at_other_moments_is_not_noted() {
    let text = |lags: [u32; 2]| {
        let row = |row: u32, rank: usize| {
            let (count, millis) = (3000 * row + 3000 - 200 * lags[rank], 1_738_576_800_000_u64 + 15_000 * u64::from(row));
            format!("training_samples_total{{job=\"x\",rank=\"{rank}\"}} {count} {millis}\n")
        };
        (0..40).flat_map(|number| [row(number, 0), row(number, 1)]).collect::<String>()
    };
    for lags in [[1, 4], [4, 1]] {
        let notes = read(&[&text(lags)], Some("lab/a")).unwrap().report.notes;
        assert!(!notes.iter().any(|note| note.contains("differs")), "{lags:?}: {notes:?}");
    }
}
