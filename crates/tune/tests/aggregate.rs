//! Profiling series into operating points.

use std::fmt::Write;
use std::time::Duration;

use eadt_recordings::{ImportOptions, RecordingFormat};
use eadt_testing::shared_data;
use eadt_tune::aggregate::{FileNamePattern, points, read, to_csv};
use eadt_tune::points::GroupKey;

#[test]
fn names_show_what_was_run() {
    let pattern = FileNamePattern::new("{gpu_model}-{workload}-{sm_clock_mhz}-{run}").unwrap();
    let read = |name: &str| pattern.read(name).map(|key| key.into_values().collect::<Vec<_>>().join("|"));
    assert_eq!(read("GA100-bfs-1410-1").unwrap(), "GA100|1|1410|bfs");
    assert_eq!(read("GA100-resnet-50-1410-1").unwrap(), "GA100|1|1410|resnet-50", "text may hold the separator before a number");
    assert_eq!(read("GA100-bfs-1410"), None);
    assert_eq!(read("notes"), None);
    assert_eq!(pattern.knob(), Some("sm_clock_mhz"));
    for (text, part) in [
        ("{workload}-{run}", "neither {sm_clock_mhz}"),
        ("{workload-{sm_clock_mhz}", "neither {sm_clock_mhz}"),
        ("{sm_clock_mhz}-{sm_clock_mhz}", "twice"),
        ("{sm_clock_mhz", "unclosed"),
        ("sm_clock_mhz}", "unclosed"),
    ] {
        let message = FileNamePattern::new(text).unwrap_err().to_string();
        assert!(message.contains(part) || message.contains("brace"), "{text}: {message}");
    }
}

/// Returns a run with idle time around it: `seconds` of work at 300 W, a row every 100 ms.
fn series(start: u32, seconds: u32) -> String {
    let mut text = String::from("time,watts,util\n");
    for row in 0..(seconds + 4) * 10 {
        let busy = (20..(seconds + 2) * 10).contains(&row);
        let (watts, util) = if busy { (300, 90) } else { (60, 0) };
        let seconds = f64::from(1_000_000 + start) + f64::from(row) / 10.0;
        writeln!(text, "{seconds:.1},{watts},{util}").unwrap();
    }
    text
}

fn options() -> ImportOptions {
    let maps = ["time=time", "power_watts=watts", "utilization_ratio=util:%"];
    ImportOptions {
        maps: maps.iter().map(|map| map.parse().unwrap()).collect(),
        time_format: Some("unix".parse().unwrap()),
        ..ImportOptions::default()
    }
}

#[test]
fn idle_time_cold_runs_and_outliers_do_not_count() {
    let pattern = FileNamePattern::new("{workload}-{sm_clock_mhz}-{run}").unwrap();
    let mut profiles = Vec::new();
    for (name, start, seconds) in [
        ("a-1410-1", 0, 30),
        ("a-1410-2", 1000, 20),
        ("a-1410-3", 2000, 20),
        ("a-1200-1", 3000, 22),
        ("a-1200-2", 4000, 22),
        ("a-1200-3", 5000, 22),
        ("a-1200-4", 6000, 40),
    ] {
        let columns = pattern.read(name).unwrap();
        profiles.push(read(name, series(start, seconds).as_bytes(), columns, RecordingFormat::Csv, &options()).unwrap());
    }
    assert_eq!((profiles[1].rows, profiles[1].active_rows), (240, 200));
    assert!((profiles[1].duration_seconds - 20.0).abs() < 1e-6, "{:?}", profiles[1]);
    assert_eq!(profiles[1].active_power_watts, 300.0);
    let found = points(profiles, "sm_clock_mhz");
    let settings: Vec<_> = found.points.iter().map(|p| (p.columns["sm_clock_mhz"].as_str(), p.runs, p.runs_dropped)).collect();
    assert_eq!(settings, [("1200", 3, 1), ("1410", 2, 1)]);
    assert!((found.points[1].duration_seconds - 20.0).abs() < 1e-6, "the cold run is not in it");
    let dropped: Vec<_> = found.dropped.iter().map(|left| left.file.as_str()).collect();
    assert_eq!(dropped, ["a-1200-4", "a-1410-1"]);
    let table = to_csv(&found.points).unwrap();
    assert!(table.starts_with("sm_clock_mhz,workload,duration_seconds,energy_joules,"), "{table}");
    assert_eq!(table.lines().count(), 3);
}

#[test]
fn runs_that_started_together_are_all_kept() {
    let pattern = FileNamePattern::new("{workload}-{sm_clock_mhz}-{run}").unwrap();
    let found = |starts: [u32; 6]| {
        let names = ["a-1410-1", "a-1410-2", "a-1410-3", "a-1200-1", "a-1200-2", "a-1200-3"];
        let of = |(name, start): (&str, u32)| {
            let columns = pattern.read(name).unwrap();
            read(name, series(start, 20).as_bytes(), columns, RecordingFormat::Csv, &options()).unwrap()
        };
        let found = points(names.into_iter().zip(starts).map(of).collect(), "sm_clock_mhz");
        found.points.iter().map(|p| (p.columns["sm_clock_mhz"].clone(), p.runs, p.runs_dropped)).collect::<Vec<_>>()
    };
    let expected =
        |low: (usize, usize), high: (usize, usize)| vec![("1200".to_owned(), low.0, low.1), ("1410".to_owned(), high.0, high.1)];
    assert_eq!(found([0, 0, 0, 1000, 1000, 1000]), expected((3, 0), (3, 0)), "in parallel, a setting after the other");
    assert_eq!(found([0; 6]), expected((3, 0), (3, 0)), "all at once");
    assert_eq!(found([0, 1000, 2000, 0, 1000, 2000]), expected((3, 0), (3, 0)), "both settings at once");
    assert_eq!(found([0, 1000, 2000, 3000, 4000, 5000]), expected((3, 0), (2, 1)), "the first one is cold");
}

#[test]
fn silences_and_refused_rows_of_a_run_are_reported() {
    let run = series(0, 200);
    let read = |text: &str| read("a.csv", text.as_bytes(), GroupKey::new(), RecordingFormat::Csv, &options());
    assert_eq!(read(&run).unwrap().refused, None);
    let torn = read(&run.replacen("300,90", "x,90", 1)).unwrap();
    let refused = "1 line is in no figure, the first at 22: column \"watts\": \"x\" is not a number for power_watts";
    assert_eq!(torn.refused.as_deref(), Some(refused));
    // The header, and all but the rows between 50 s and 180 s.
    let silent: Vec<&str> =
        run.lines().enumerate().filter(|(line, _)| !(500..1800).contains(line)).map(|(_, line)| line).collect();
    let error = read(&silent.join("\n")).unwrap_err().to_string();
    assert!(error.contains("no power is known for 130.1 s within the run (at most 120 s)"), "{error}");
    let paused: Vec<&str> =
        run.lines().enumerate().filter(|(line, _)| !(500..900).contains(line)).map(|(_, line)| line).collect();
    assert!((read(&paused.join("\n")).unwrap().energy_joules - 60_000.0).abs() < 100.0, "a short one is bridged");
    // A row in five minutes is how often this run was recorded.
    let table = |minutes: &[u32]| -> String {
        let row = |minute: &u32| format!("{},300,90\n", 1_000_000 + 60 * minute);
        "time,watts,util\n".to_owned() + &minutes.iter().map(row).collect::<String>()
    };
    for (minutes, joules) in [(&[0, 5][..], Some(90_000.0)), (&[0, 5, 10, 15], Some(270_000.0)), (&[0, 5, 10, 30], None)] {
        assert_eq!(read(&table(minutes)).map(|profile| profile.energy_joules).ok(), joules, "{minutes:?}");
    }
    // A board that ends long before the other, and one whose counter alone is left out.
    let maps = ["time=time", "device=gpu", "power_watts=w", "energy_joules_total=j"];
    let boards = ImportOptions { maps: maps.iter().map(|map| map.parse().unwrap()).collect(), ..options() };
    let of = |row: &dyn Fn(u32) -> String| {
        let text = "time,gpu,w,j\n".to_owned() + &(0..400).map(row).collect::<String>();
        eadt_tune::aggregate::read("b.csv", text.as_bytes(), GroupKey::new(), RecordingFormat::Csv, &boards)
    };
    let second = |second: u32, gpu: u32, joules: &str| format!("{},gpu{gpu},300,{joules}\n", 1_000_000 + second);
    let ends = of(&|at| second(at, 0, "") + &if at < 200 { second(at, 1, "") } else { String::new() });
    assert!(ends.unwrap_err().to_string().contains("no power is known for 200 s within the run"));
    let stuck = of(&|at| second(at, 0, "5000")).unwrap();
    assert_eq!(stuck.energy_joules, 399.0 * 300.0);
    let reason = stuck.refused.unwrap();
    assert!(reason.contains("the counter is left out") && !reason.contains("in no figure"), "{reason}");
}

#[test]
fn files_without_a_figure_are_errors() {
    let refused =
        |text: &str| read("x.csv", text.as_bytes(), GroupKey::new(), RecordingFormat::Csv, &options()).unwrap_err().to_string();
    assert!(
        refused("time,watts,util\n1,60,0\n2,60,0\n3,60,0\n").contains("no work"),
        "{}",
        refused("time,watts,util\n1,60,0\n2,60,0\n")
    );
    assert!(refused("time,watts,util\n1,300000,90\n2,300000,90\n").contains("x.csv"));
    assert!(refused("time,watts\n1,2\n").contains("util"));
    assert!(refused("").contains("x.csv: the file is empty"));
}

/// Six rows of a second at 200 W, with this header, name and power cell.
fn smi(header: &str, row: impl Fn(usize) -> String) -> String {
    let rows: Vec<String> = (0..6).map(|second| format!("2026/01/01 00:00:0{second}.000, {}", row(second))).collect();
    format!("timestamp, {header}\n{}\n", rows.join("\n"))
}

#[test]
fn power_is_read_under_each_name_that_nvidia_smi_has_for_it() {
    let named = |name: &'static str| move |_: usize| format!("{name}, 200.00 W, 90 %");
    let head = "name, power.draw [W], utilization.gpu [%]";
    for (what, text) in [
        ("A100", smi(head, named("NVIDIA A100-SXM4-80GB"))),
        ("H100", smi(head, named("NVIDIA H100 80GB HBM3"))),
        ("H200", smi(head, named("NVIDIA H200"))),
        ("B200", smi(head, named("NVIDIA B200"))),
        ("L40S", smi(head, named("NVIDIA L40S"))),
        ("GH200", smi(head, named("NVIDIA GH200 480GB"))),
        ("no name", smi("power.draw [W], utilization.gpu [%]", |_| "200.00 W, 90 %".to_owned())),
        ("average", smi("name, power.draw.average [W], utilization.gpu [%]", named("NVIDIA H100 PCIe"))),
        ("instant", smi("name, power.draw.instant [W], utilization.gpu [%]", named("NVIDIA H100 PCIe"))),
        ("instant without name", smi("power.draw.instant [W], utilization.gpu [%]", |_| "200.00 W, 90 %".to_owned())),
        (
            "both, one of them not supported",
            smi("name, power.draw.instant [W], power.draw.average [W]", |_| "NVIDIA H100 PCIe, [N/A], 200.00 W".to_owned()),
        ),
        ("nounits", smi("name, power.draw [W], utilization.gpu [%]", |_| "NVIDIA H100 PCIe, 200.00, 90".to_owned())),
    ] {
        let profile = read("x.csv", text.as_bytes(), GroupKey::new(), RecordingFormat::NvidiaSmi, &ImportOptions::default());
        let profile = profile.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((profile.energy_joules, profile.duration_seconds, profile.active_rows), (1000.0, 5.0, 6), "{what}");
    }
}

#[test]
fn boards_of_one_file_are_added_up_and_what_lacks_power_comes_with_how_to_record_it() {
    let two = smi("index, power.draw [W]", |second| format!("0, 200.00 W\n2026/01/01 00:00:0{second}.000, 1, 100.00 W"));
    let profile = read("x.csv", two.as_bytes(), GroupKey::new(), RecordingFormat::NvidiaSmi, &ImportOptions::default()).unwrap();
    assert_eq!((profile.energy_joules, profile.duration_seconds, profile.active_power_watts), (1500.0, 5.0, 300.0));
    let refused = |text: &str, format| {
        read("x.csv", text.as_bytes(), GroupKey::new(), format, &ImportOptions::default()).unwrap_err().to_string()
    };
    let none = refused(&smi("index, utilization.gpu [%]", |_| "0, 90 %".to_owned()), RecordingFormat::NvidiaSmi);
    assert!(none.contains("power.draw") && !none.contains("--map"), "{none}");
    for format in [RecordingFormat::NvidiaSmi, RecordingFormat::Csv, RecordingFormat::Dcgmi] {
        assert!(refused("", format).contains("the file is empty"), "{format:?}");
    }
}

#[test]
fn dcgmi_logs_of_an_a100() {
    let Some(folder) = shared_data("a100-dcgmi-raw") else { return };
    let pattern = FileNamePattern::new("{gpu_model}-{workload}-{sm_clock_mhz}-{run}").unwrap();
    let options = ImportOptions { interval: Some(Duration::from_millis(20)), ..ImportOptions::default() };
    let mut profiles = Vec::new();
    for name in ["bfs-1410-1", "bfs-1005-0", "bfs-510-0", "lud-1410-0", "lud-1005-0", "lud-510-0"] {
        let stem = format!("GA100-{name}");
        let file = std::fs::File::open(folder.join(format!("{stem}.txt"))).unwrap();
        profiles.push(read(&stem, file, pattern.read(&stem).unwrap(), RecordingFormat::Dcgmi, &options).unwrap());
    }
    // Rows, active rows and mean active power that were computed independently.
    assert_eq!((profiles[0].rows, profiles[0].active_rows), (592, 213));
    assert!((profiles[0].active_power_watts - 140.3478).abs() < 5e-5, "{:?}", profiles[0]);
    assert_eq!(profiles[3].active_rows, 401);
    assert!((profiles[3].active_power_watts - 274.4126).abs() < 5e-5, "{:?}", profiles[3]);
    for profile in &profiles {
        let ratio = profile.counter_ratio.unwrap();
        assert!((0.985..=1.035).contains(&ratio), "{}: {ratio}", profile.file);
    }
    let found = points(profiles, "sm_clock_mhz");
    assert_eq!(found.points.len(), 6);
    let of = |workload: &str, mhz: &str| {
        found.points.iter().find(|p| p.columns["workload"] == workload && p.columns["sm_clock_mhz"] == mhz).unwrap().clone()
    };
    assert!(of("lud", "510").duration_seconds > 1.5 * of("lud", "1410").duration_seconds);
    assert!(of("lud", "1005").energy_joules < of("lud", "1410").energy_joules);
}
