//! Rows that add energy and have a time of their own: it counts in that time, and nothing is known of the time between.

use eadt_recordings::{AcceptedFinding, ImportOptions, ImportedRecording, RecordingFormat};
use eadt_schemas::v1::Meter;

use crate::support::{maps, near, progress, read_texts as read, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// Joules of the counter, and the seconds of which they are known.
fn known(imported: &ImportedRecording) -> (f64, f64) {
    let rows = telemetry(imported);
    let pairs = rows.windows(2).filter(|pair| pair[0].tenure == pair[1].tenure && pair[0].device == pair[1].device);
    pairs.fold((0.0, 0.0), |(joules, seconds), pair| {
        let counted = pair[1].energy_joules_total.zip(pair[0].energy_joules_total).map_or(0.0, |(after, before)| after - before);
        (joules + counted, seconds + pair[1].time.seconds_since(pair[0].time))
    })
}

fn unix(options: ImportOptions) -> ImportOptions {
    ImportOptions { time_format: Some("unix".parse().unwrap()), ..options }
}

fn of_node(options: ImportOptions) -> ImportOptions {
    ImportOptions { meter: Some(Meter::Node), ..options }
}

#[test]
fn energy_counts_in_the_time_of_its_row() {
    let windows = (0..5).map(|row| format!("{},epoch,60.0,18000.0\n", 1_741_082_400 + 660 * row)).collect::<Vec<_>>().concat();
    let zeus = format!("start_time,window_name,elapsed_time,gpu0_energy\n{windows}");
    let run = "2025-03-04T10:10:00,590.5,254.1,0.04\n";
    let emissions = "timestamp,duration,gpu_power,gpu_energy";
    let runs = ["2025-03-04T10:30:00", "2025-03-04T11:00:00", "2025-03-06T11:00:00"].map(|time| format!("{time},1500.5,0.12\n"));
    let slurm = "JobID|Start|End|ElapsedRaw|NodeList|ConsumedEnergyRaw\n\
                 100|2025-03-04T10:00:00|2025-03-04T10:28:00|1680|n7|1500000\n";
    let both = "start_time,end_time,j\n2025-03-04T10:00:00Z,2025-03-04T10:05:00Z,90000\n2025-03-04T11:00:00Z,2025-03-04T11:01:00Z,6000\n";
    let begun =
        "timestamp,duration,j\n2025-03-04T10:00:00Z,60,9000\n2025-03-04T10:01:10Z,100,9000\n2025-03-04T10:03:00Z,10,1000\n";
    let since_start =
        "timestamp,duration,j\n2025-03-04T10:00:10Z,10,3000\n2025-03-04T10:00:20Z,20,3100\n2025-03-04T10:00:30Z,30,2900\n";
    let zeus_map = ["time=start_time", "energy_joules=gpu0_energy"];
    for (what, text, options, (joules, seconds), first) in [
        ("windows apart", &zeus, unix(maps(&zeus_map)), (90_000.0, 300.0), "2025-03-04T10:00:00"),
        (
            "a run",
            &format!("{emissions}\n{run}"),
            maps(&["energy_joules=gpu_energy:kWh"]),
            (144_000.0, 590.5),
            "2025-03-04T10:00:09.5",
        ),
        (
            "runs days apart",
            &format!("timestamp,duration,gpu_energy\n{}", runs.concat()),
            maps(&["energy_joules=gpu_energy:kWh"]),
            (1_296_000.0, 4_501.5),
            "2025-03-04T10:04:59.5",
        ),
        (
            "a job",
            &slurm.to_owned(),
            of_node(maps(&["time=End", "energy_joules=ConsumedEnergyRaw"])),
            (1_500_000.0, 1_680.0),
            "2025-03-04T10:00:00",
        ),
        (
            "start and end",
            &both.to_owned(),
            maps(&["time=start_time", "energy_joules=j"]),
            (96_000.0, 360.0),
            "2025-03-04T10:00:00",
        ),
        ("times that are starts", &begun.to_owned(), maps(&["energy_joules=j"]), (19_000.0, 170.0), "2025-03-04T10:00:00"),
        // As without a duration: since the row before.
        (
            "since the start of the job",
            &since_start.to_owned(),
            maps(&["energy_joules=j"]),
            (9_000.0, 30.0),
            "2025-03-04T10:00:00",
        ),
    ] {
        let imported = read(CSV, &[("t.csv", text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = known(&imported);
        near(found.0, joules, what);
        near(found.1, seconds, what);
        let rows = telemetry(&imported);
        assert!(rows[0].time.to_string().starts_with(first), "{what}: {}", rows[0].time);
        assert!(rows.iter().all(|row| row.workload.is_some()), "{what}");
    }
}

#[test]
fn a_long_row_has_points_between() {
    let text = "start_time,elapsed_time,j\n2025-03-04T10:00:00Z,172800,50000000\n";
    let imported = read(CSV, &[("t.csv", text)], &maps(&["time=start_time", "energy_joules=j"])).unwrap();
    let (joules, seconds) = known(&imported);
    near(joules, 5e7, "joules");
    near(seconds, 172_800.0, "seconds");
    let rows = telemetry(&imported);
    assert!(
        rows.windows(2).all(|pair| pair[1].time.seconds_since(pair[0].time) <= 21_600.0),
        "a source that is silent has ended"
    );
}

#[test]
fn a_lone_row_without_a_time_of_its_own_is_refused() {
    for text in [
        "time,j\n2025-02-03T10:02:00Z,60000\n",
        "time,j\n2025-02-03T10:02:00Z,60000\n2025-02-03T10:02:00Z,50000\n",
        "time,duration,j\n2025-02-03T10:02:00Z,0,60000\n",
    ] {
        let error = read(CSV, &[("s.csv", text)], &maps(&["energy_joules=j"])).unwrap_err();
        assert!(error.contains("over how long it was used") && error.contains("duration"), "{text}: {error}");
    }
}

#[test]
fn few_rows_in_another_unit_are_refused_with_the_unit() {
    let rows = ["10:30", "11:00", "11:30"].iter().zip([0.12, 0.13, 0.14]);
    let rows: Vec<String> = rows.map(|(clock, kwh)| format!("2025-03-04T{clock}:00,1700.5,254.1,{kwh}\n")).collect();
    for (count, map) in [
        (1, "energy_joules=gpu_energy"),
        (2, "energy_joules=gpu_energy"),
        (3, "energy_joules=gpu_energy"),
        (2, "energy_joules_total=gpu_energy"),
        (3, "energy_joules_total=gpu_energy"),
    ] {
        let text = format!("timestamp,duration,gpu_power,gpu_energy\n{}", rows[..count].concat());
        let error = read(CSV, &[("emissions.csv", &text)], &maps(&[map])).unwrap_err();
        assert!(error.contains(&format!("--map {map}:kWh")), "{count} rows, {map}: {error}");
        assert!(read(CSV, &[("emissions.csv", &text)], &maps(&[&format!("{map}:kWh")])).is_ok(), "{count} rows, {map}");
    }
    let few = "time,w\n2025-03-04T10:00:00Z,0.3\n2025-03-04T10:00:01Z,0.31\n";
    let error = read(CSV, &[("w.csv", few)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("--map power_watts=w:kW"), "{error}");
}

#[test]
fn a_window_that_contains_others_is_none_of_them() {
    let rows = [
        "1738576800,step,10.0,3000",
        "1738576810.1,step,9.5,2900",
        "1738576819.8,step,10.0,3010",
        "1738576800,epoch,30.0,9000",
        "1738576830,step,10,3000",
    ];
    let text = format!("start_time,window_name,elapsed_time,gpu0_energy\n{}\n", rows.join("\n"));
    for counted in ["samples=*", "steps=*"] {
        let options = unix(maps(&["time=start_time", "energy_joules[gpu0]=gpu0_energy:J", counted]));
        let imported = read(CSV, &[("z.csv", &text)], &options).unwrap();
        near(known(&imported).0, 12_000.0, counted);
        let most = |count: fn(&eadt_schemas::v1::TrainingProgress) -> Option<f64>| {
            progress(&imported).iter().filter_map(count).fold(0.0, f64::max)
        };
        let count = if counted == "samples=*" { most(|row| row.samples_total) } else { most(|row| row.steps_total) };
        near(count, 4.0, counted);
    }
}

/// A window of Zeus: its start, name, length in seconds, and joules.
type Window = (f64, &'static str, f64, f64);

/// Imports windows of one board, whose energy is mapped as given.
fn import_windows(windows: &[Window], map: &str, accept: &[AcceptedFinding]) -> Result<ImportedRecording, String> {
    let row = |(start, name, seconds, joules): &Window| format!("{},{name},{seconds},{joules}\n", 1_738_576_800.0 + start);
    let rows = windows.iter().map(row).collect::<String>();
    let text = format!("start_time,window_name,elapsed_time,gpu0_energy\n{rows}");
    let options = ImportOptions { accept: accept.to_vec(), ..unix(maps(&["time=start_time", map])) };
    read(CSV, &[("z.csv", &text)], &options)
}

/// The map of energy that names the board, and the one that does not.
const NAMED: &str = "energy_joules[gpu0]=gpu0_energy:J";
const UNNAMED: &str = "energy_joules=gpu0_energy:J";

#[test]
fn windows_that_run_at_one_time_count_once() {
    let one_inner: [Window; 4] =
        [(0.0, "epoch", 60.0, 18e3), (40.0, "eval", 10.0, 3e3), (60.0, "epoch", 60.0, 18e3), (100.0, "eval", 10.0, 3e3)];
    let epochs = (0..6).map(f64::from).flat_map(|epoch| {
        let start = 60.0 * epoch;
        [(start + 45.0, "eval", 10.0, 2500.0 + epoch), (start, "epoch", 59.5, 17.8e3 + 7.0 * epoch)]
    });
    let steps = (0..12).map(|step| (10.0 * f64::from(step), "step", 10.0, 3000.0 + f64::from(step)));
    let train: Vec<Window> = steps.chain([(-2.0, "train", 125.0, 37e3)]).collect();
    let at_once = (0..12).map(|step| (10.0 * f64::from(step), "step", 12.0, 3600.0 + f64::from(step % 3)));
    for (what, windows, map, joules, note) in [
        ("a window within each", one_inner.to_vec(), NAMED, 36e3, "is taken off it"),
        ("of a board without a name", one_inner.to_vec(), UNNAMED, 36e3, "is taken off it"),
        ("a single one", one_inner[..2].to_vec(), NAMED, 18e3, "is taken off it"),
        ("a single one, maybe of two boards", one_inner[..2].to_vec(), UNNAMED, 21e3, "rows overlap"),
        ("in the order of Zeus", epochs.collect(), NAMED, 106_905.0, "is taken off it"),
        ("growing steps and their sum", train.clone(), NAMED, 37e3, "is taken off it"),
        ("in part, with the same power", at_once.collect(), NAMED, 36_610.0, "counts once"),
        (
            "in part, two of one start",
            vec![(0.0, "step", 20.0, 6e3), (0.0, "step", 10.0, 3e3), (15.0, "step", 15.0, 4500.0)],
            NAMED,
            9e3,
            "counts once",
        ),
    ] {
        let imported = import_windows(&windows, map, &[]).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(known(&imported).0, joules, what);
        assert!(imported.report.notes.iter().any(|found| found.contains(note)), "{what}: {:?}", imported.report.notes);
    }
    let grown = import_windows(&train, NAMED, &[AcceptedFinding::GrowingSteps]).unwrap();
    near(known(&grown).0, 37e3, "what rows add may grow, and still counts once");
    let twice = import_windows(&train, NAMED, &[AcceptedFinding::NestedRows]).unwrap();
    near(known(&twice).0, 73_066.0, "each window counts in full");
}

#[test]
fn windows_that_overlap_in_part_with_another_power_stop_the_import() {
    let in_turn = (0..10).map(|at| {
        let start = 10.0 * f64::from(at);
        if at % 2 == 0 { (start, "compute", 15.0, 4500.0) } else { (start, "allreduce", 10.0, 2500.0) }
    });
    let at_once = (0..12).map(|step| (10.0 * f64::from(step), "step", 12.0, 3600.0));
    for (what, windows, map, overlap, twice) in [
        ("another power", in_turn.collect::<Vec<Window>>(), NAMED, "25 s of 100 s", 35e3),
        ("maybe of two boards", at_once.collect(), UNNAMED, "22 s of 122 s", 43.2e3),
    ] {
        let error = import_windows(&windows, map, &[]).unwrap_err();
        assert!(error.starts_with("z.csv:3: ") && error.contains("first that of line 2"), "{what}: {error}");
        assert!(error.contains(overlap) && error.ends_with("--accept nested-rows"), "{what}: {error}");
        near(known(&import_windows(&windows, map, &[AcceptedFinding::NestedRows]).unwrap()).0, twice, what);
    }
    // Starts in whole seconds.
    let rounded: Vec<Window> = (0..12).map(|step| ((10.4 * f64::from(step)).floor(), "step", 10.4, 3000.0)).collect();
    near(known(&import_windows(&rounded, NAMED, &[]).unwrap()).0, 36e3, "rounded");
}

#[test]
fn energy_since_the_start_of_a_job_is_a_total_that_begins_there() {
    for flushes in [2, 4, 10] {
        let row = |run: u32, flush: u32| {
            let (hour, seconds, kwh) = (10 + run, 60 * flush, 0.005 * f64::from(flush));
            format!("2025-02-03T{hour}:{flush:02}:00,p,run-{run},{seconds},{kwh:.8}\n")
        };
        let rows = (0..2).flat_map(|run| (1..=flushes).map(move |flush| row(run, flush))).collect::<String>();
        let text = format!("timestamp,project_name,run_id,duration,gpu_energy\n{rows}");
        let error = read(CSV, &[("emissions.csv", &text)], &maps(&["energy_joules=gpu_energy:kWh"])).unwrap_err();
        assert!(error.contains("durations that count since the start of a job"), "{flushes}: {error}");
        assert!(error.contains("use --map energy_joules_total=gpu_energy:kWh"), "{flushes}: {error}");
        let imported = read(CSV, &[("emissions.csv", &text)], &maps(&["energy_joules_total=gpu_energy:kWh"])).unwrap();
        let (joules, seconds) = known(&imported);
        near(joules, 36e3 * f64::from(flushes), "joules");
        near(seconds, 120.0 * f64::from(flushes), "seconds");
        assert!(telemetry(&imported)[0].time.to_string().starts_with("2025-02-03T10:00:00"), "{flushes}");
    }
    let of_driver = "timestamp,duration,j\n2025-02-03T10:01:00Z,60,5018000\n2025-02-03T10:02:00Z,120,5036000\n";
    let imported = read(CSV, &[("t.csv", of_driver)], &maps(&["energy_joules_total=j:J"])).unwrap();
    near(known(&imported).0, 18e3, "a counter that began before the job");
}

#[test]
fn runs_that_start_at_one_time_are_no_running_total() {
    let table = |runs: [&str; 4]| {
        let row = |(run, at): (&str, u32)| {
            let (minute, kwh) = (10 * at, 0.05 * f64::from(at));
            format!("2025-02-03T10:{minute}:00,p,{run},{}.{at},{kwh:.8}\n", 600 * at)
        };
        let rows = runs.into_iter().zip(1..).map(row).collect::<String>();
        format!("timestamp,project_name,run_id,duration,gpu_energy\n{rows}")
    };
    let (added, total) = (maps(&["energy_joules=gpu_energy:kWh"]), maps(&["energy_joules_total=gpu_energy:kWh"]));
    let as_total = "of one process, use --map energy_joules_total=gpu_energy:kWh --accept growing-steps";
    for runs in [["r0", "r1", "r2", "r3"], ["17", "4", "5", "6"]] {
        let imported = read(CSV, &[("emissions.csv", &table(runs))], &added).unwrap();
        near(known(&imported).0, 1.8e6, "a row each");
        let notes = &imported.report.notes;
        let overlap = "rows overlap in time, by 3601 s of 2400 s; all count, as each has another run";
        assert!(notes.iter().any(|note| note.contains(overlap) && note.ends_with(as_total)), "{notes:?}");
        let error = read(CSV, &[("emissions.csv", &table(runs))], &total).map(|imported| known(&imported)).unwrap_err();
        assert!(error.starts_with("emissions.csv:3: ") && error.contains("of another run than that of line 2"), "{error}");
        assert!(error.contains("use --map energy_joules=gpu_energy:kWh"), "{error}");
        assert!(error.ends_with("--accept growing-steps"), "{error}");
        let accepted = ImportOptions { accept: vec![AcceptedFinding::GrowingSteps], ..total.clone() };
        let imported = read(CSV, &[("emissions.csv", &table(runs))], &accepted).unwrap();
        near(known(&imported).0, 720e3, "the total of one process");
    }
    for runs in [["r0"; 4], ["r0", "r1", "r0", "r1"]] {
        let error = read(CSV, &[("emissions.csv", &table(runs))], &added).map(|imported| known(&imported)).unwrap_err();
        assert!(error.contains("durations that count since the start of a job"), "{runs:?}: {error}");
    }
    near(known(&read(CSV, &[("emissions.csv", &table(["r0"; 4]))], &total).unwrap()).0, 720e3, "one run");
    // Trials that overlap, with energy that does not grow with their durations; and trials in turn, which do not.
    let trials = |distance: u32| {
        let row = |at: u32| format!("2025-02-03T10:{:02}:00,{at},600.5,{}\n", distance * at, 180_000 - 20_000 * (at % 3));
        format!("timestamp,trial,duration,j\n{}", (1..=5).map(row).collect::<String>())
    };
    for (distance, is_noted) in [(4, true), (11, false)] {
        let imported = read(CSV, &[("t.csv", &trials(distance))], &maps(&["energy_joules=j:J"])).unwrap();
        near(known(&imported).0, 780e3, "trials");
        let notes = &imported.report.notes;
        assert_eq!(notes.iter().any(|note| note.contains("as each has another run")), is_noted, "{distance}: {notes:?}");
        assert!(notes.iter().all(|note| !note.contains("total of one process")), "{distance}: {notes:?}");
    }
}

#[test]
fn amounts_of_energy_that_grow_slowly_or_with_the_length_of_rows_are_no_running_total() {
    let epochs = |joules: &dyn Fn(u32) -> f64| {
        let row = |at: u32| format!("2025-02-03T{:02}:{:02}:00Z,{at},{}\n", 10 + at / 6, 10 * at % 60, joules(at));
        format!("timestamp,epoch,j\n{}", (1..=12).map(row).collect::<String>())
    };
    let runs = |seconds: &dyn Fn(u32) -> u32, joules: &dyn Fn(u32) -> u32| {
        let ends = (1..=9).scan(0, |end, at| {
            *end += 5 + seconds(at);
            Some((*end, at))
        });
        let row = |(end, at): (u32, u32)| {
            let (hour, minute, second) = (10 + end / 3600, end / 60 % 60, end % 60);
            format!("2025-02-03T{hour}:{minute:02}:{second:02}Z,{},{}\n", seconds(at), joules(at))
        };
        format!("timestamp,duration,j\n{}", ends.map(row).collect::<String>())
    };
    let longer = |at: u32| 100 * at;
    for (what, text, joules) in [
        ("boards that warm up", epochs(&|at| 180e3 + 360.0 * f64::from(at)), 2_188_080.0),
        ("longer runs", runs(&longer, &|at| 30_000 * at), 1.35e6),
        ("longer runs of other power", runs(&longer, &|at| (30_000 + 500 * (at % 3)) * at), 1.371e6),
    ] {
        let imported =
            read(CSV, &[("t.csv", &text)], &maps(&["energy_joules=j:J"])).unwrap_or_else(|error| panic!("{what}: {error}"));
        let last = telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).fold(0.0, f64::max);
        near(last, joules, what);
        let notes = &imported.report.notes;
        let is_noted = notes.iter().any(|note| note.contains("if it is a running total, use --map energy_joules_total=j:J"));
        assert_eq!(is_noted, what == "boards that warm up", "{what}: {notes:?}");
    }
    for (what, text) in [
        ("a counter of a rail below 1 W", epochs(&|at| 30.0 * f64::from(at))),
        ("a counter of a board", epochs(&|at| 180e3 + 7_200.0 * f64::from(at))),
        ("a counter of a board that idles", epochs(&|at| 180e3 + 6_000.0 * f64::from(at))),
        ("a counter with a base", epochs(&|at| 18e6 + 18e3 * f64::from(at))),
        ("a counter over rows of one length", runs(&|_| 100, &|at| 30_000 * at)),
        ("a counter over longer rows", runs(&longer, &|at| 15_000 * at * (at + 1))),
    ] {
        let error = read(CSV, &[("t.csv", &text)], &maps(&["energy_joules=j:J"])).map(|imported| known(&imported)).unwrap_err();
        assert!(error.contains("as a running total does"), "{what}: {error}");
    }
}

/// Returns a clock of 3 February, so many seconds after 10:00.
fn clock(seconds: f64) -> String {
    let (minutes, rest) = ((seconds / 60.0).floor(), seconds % 60.0);
    format!("2025-02-03T{:02}:{:02}:{rest:09.6}Z", 10 + minutes as u32 / 60, minutes as u32 % 60)
}

#[test]
fn amounts_of_rows_with_a_power_of_their_own_are_read_and_noted() {
    // Epochs of 120 s at 300 W, each with more energy than the one before.
    let energy = |rise: f64, at: u32| 36e3 * (1.0 + rise).powi(at as i32);
    let sum = |rise: f64| (0..10).map(|at| energy(rise, at)).sum::<f64>();
    let own = |rise: f64| {
        let row = |at: u32| {
            let start = 150.0 * f64::from(at);
            format!("{},{},{}\n", clock(start), clock(start + energy(rise, at) / 300.0), energy(rise, at))
        };
        format!("start_time,end_time,j\n{}", (0..10).map(row).collect::<String>())
    };
    let none = |rise: f64| {
        let row = |at: u32| format!("{},{}\n", clock(150.0 * f64::from(at + 1)), energy(rise, at));
        format!("time,j\n{}", (0..10).map(row).collect::<String>())
    };
    let hour = |at: f64| clock(60.0 * at);
    let runs = |at: u32| {
        let (minutes, watts) = (20.0 + 5.0 * f64::from(at) / 3.0, 300.0 + 10.0 * f64::from(at));
        format!("{},r{at},{},{}\n", hour(20.0 + 10.0 * f64::from(at)), 60.0 * minutes, 60.0 * minutes * watts)
    };
    let of_runs = (0..6).map(|at| 60.0 * (20.0 + 5.0 * f64::from(at) / 3.0) * (300.0 + 10.0 * f64::from(at))).sum::<f64>();
    let code_carbon = format!("timestamp,run_id,duration,j\n{}", (0..6).map(runs).collect::<String>());
    let run = |at: u32| format!("{},{},{}\n", clock(700.0 * f64::from(at)), 600 + at, 180_000 + 3_600 * at);
    let eco = format!("start_time,duration(s),j\n{}", (0..12).map(run).collect::<String>());
    for (what, time, text, joules) in [
        ("epochs", "time=end_time", own(0.0), sum(0.0)),
        ("epochs that rise by 0.1 %", "time=end_time", own(0.001), sum(0.001)),
        ("epochs that rise by 0.5 %", "time=start_time", own(0.005), sum(0.005)),
        ("epochs that rise by 2 %", "time=end_time", own(0.02), sum(0.02)),
        ("epochs without a time of their own", "time=time", none(0.001), sum(0.001)),
        ("the same that rise by 0.5 %", "time=time", none(0.005), sum(0.005)),
        ("overlapping runs", "time=timestamp", code_carbon, of_runs),
        ("runs one after the other", "time=start_time", eco, 2_397_600.0),
    ] {
        let imported =
            read(CSV, &[("t.csv", &text)], &maps(&[time, "energy_joules=j:J"])).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).fold(0.0, f64::max), joules, what);
    }
    // As a total it would be next to nothing.
    let imported = read(CSV, &[("t.csv", &none(0.005))], &maps(&["energy_joules_total=j:J"])).unwrap();
    let little = "little for one GPU board: if each row adds so much, use --map energy_joules=j:J";
    assert!(imported.report.notes.iter().any(|note| note.contains(little)), "{:?}", imported.report.notes);
    // A counter from 0 on, read after each run, and after each epoch.
    let counter = |header: &str, name: &dyn Fn(u32) -> String| {
        let row = |at: u32| {
            let start = 130.0 * f64::from(at);
            format!("{},{}{},{}\n", clock(start), name(at), clock(start + 120.0), 36_000 * (at + 1))
        };
        format!("{header}\n{}", (0..10).map(row).collect::<String>())
    };
    for text in
        [counter("start_time,end_time,j", &|_| String::new()), counter("start_time,run_id,end_time,j", &|at| format!("r{at},"))]
    {
        let options = maps(&["time=end_time", "energy_joules=j:J"]);
        let error = read(CSV, &[("t.csv", &text)], &options).map(|imported| known(&imported)).unwrap_err();
        assert!(error.contains("as a running total does"), "{error}");
    }
    // Each row may have more power than the one before; a counter may have a base.
    let row = |at: u32| {
        let start = 130.0 * f64::from(at);
        format!("{},{},{}\n", clock(start), clock(start + 120.0), 120 * (100 + 25 * at))
    };
    let text = format!("start_time,end_time,j\n{}", (0..10).map(row).collect::<String>());
    let options = maps(&["time=end_time", "energy_joules=j:J"]);
    let error = read(CSV, &[("t.csv", &text)], &options).map(|imported| known(&imported)).unwrap_err();
    assert!(error.contains("100 to 325 W in its time, --accept growing-steps; if it is a running total, use"), "{error}");
}

#[test]
fn trials_of_optuna_are_runs_with_times_of_their_own() {
    let trial = |at: u32| {
        let (start, seconds) = (350.0 * f64::from(at / 4), 300.0 + f64::from(7 * at % 13) + f64::from(at));
        let joules = 80_000 + 1_500 * at + 700 * (at % 2);
        (format!("{at},{},{},{seconds},{joules},COMPLETE\n", clock(start), clock(start + seconds)), f64::from(joules))
    };
    let trials: Vec<(String, f64)> = (0..16).map(trial).collect();
    let rows = trials.iter().map(|(row, _)| row.as_str()).collect::<String>();
    let text = format!("number,datetime_start,datetime_complete,duration_s,j,state\n{rows}");
    for time in ["time=datetime_start", "time=datetime_complete"] {
        let imported = read(CSV, &[("t.csv", &text)], &maps(&[time, "energy_joules=j:J"])).unwrap();
        near(known(&imported).0, trials.iter().map(|(_, joules)| joules).sum(), time);
        let notes = &imported.report.notes;
        assert!(notes.iter().any(|note| note.contains("all count, as each has another run")), "{notes:?}");
    }
}

/// A run: its name, start and end in seconds, joules, and the run that contains it.
type Run<'r> = (String, f64, f64, f64, &'r str);

#[test]
fn runs_within_the_run_that_started_them_count_once() {
    let family = |parent: &'static str, start: f64, children: u32, ratio: f64| {
        let child =
            |at: u32| (start + 1.0 + 320.0 * f64::from(at), 310.0 + f64::from(3 * at), 80e3 + 2e3 * f64::from(7 * at % 5));
        let runs = (0..children).map(child).map(move |(start, seconds, joules)| (start, start + seconds, joules));
        let sum: f64 = runs.clone().map(|(.., joules)| joules).sum();
        let own = [(parent.to_owned(), start, start + 4.0 + 322.0 * f64::from(children), ratio * sum, "")];
        let named =
            runs.enumerate().map(move |(at, (start, end, joules))| (format!("{parent}-{at}"), start, end, joules, parent));
        (own.into_iter().chain(named).collect::<Vec<Run<'static>>>(), ratio * sum, sum)
    };
    let table = |runs: &[Run<'_>], has_parents: bool| {
        let row = |(name, start, end, joules, parent): &Run<'_>| {
            let parent = if has_parents { *parent } else { "" };
            format!("{name},0,FINISHED,{},{},{joules},{parent}\n", clock(*start), clock(*end))
        };
        let rows = runs.iter().map(row).collect::<String>();
        format!("run_id,experiment_id,status,start_time,end_time,metrics.j,tags.mlflow.parentRunId\n{rows}")
    };
    let options = maps(&["time=end_time", "energy_joules=metrics.j:J"]);
    let import = |text: &str| {
        let imported = read(CSV, &[("t.csv", text)], &options).unwrap();
        (known(&imported).0, imported.report.notes.join("\n"))
    };
    let ((a, a_joules, a_sum), (b, b_joules, _)) = (family("p", 0.0, 5, 1.004), family("q", 2000.0, 3, 1.01));
    let both = [a.clone(), b.clone()].concat();
    let (single, single_joules, _) = family("p", 0.0, 1, 1.01);
    let off = "is taken off it";
    for (what, runs, has_parents, joules, note) in [
        ("two parents", &both, true, a_joules + b_joules, off),
        ("two without a column of parents", &both, false, a_joules + b_joules, off),
        ("one parent", &a, true, a_joules, off),
        ("one child", &single, true, single_joules, off),
        ("one, maybe by chance", &a, false, a_joules + a_sum, "it counts twice"),
    ] {
        let (found, notes) = import(&table(runs, has_parents));
        near(found, joules, what);
        assert!(notes.contains(note), "{what}: {notes}");
        assert_eq!(notes.contains("all count"), note != off, "{what}: {notes}");
    }
    // Runs of another board: a long one, and those of another parent.
    let found = [family("p", 0.0, 5, 1.6).0, family("q", 2000.0, 3, 1.6).0].concat();
    let joules = found.iter().map(|(.., joules, _)| joules).sum::<f64>();
    near(import(&table(&found, false)).0, joules, "runs of two boards");
    let mut others = a.clone();
    others.iter_mut().skip(1).for_each(|run| run.4 = "elsewhere");
    near(import(&table(&others, true)).0, a_joules + a_sum, "children of another run");
}

#[test]
fn numbers_of_requests_and_trials_distinguish_rows_that_overlap() {
    let table = |column: &str, number: &dyn Fn(u32) -> u32| {
        let row = |at: u32| {
            let joules = 1000 + 370 * (7 * at % 5);
            format!("2025-02-03T10:00:{:02}Z,5.0,{},{joules}\n", 2 * at, number(at))
        };
        format!("start_time,duration_s,{column},j\n{}", (0..12).map(row).collect::<String>())
    };
    let options = maps(&["time=start_time", "energy_joules=j:J"]);
    let joules: u32 = (0..12).map(|at| 1000 + 370 * (7 * at % 5)).sum();
    for column in ["request", "trial", "request_id"] {
        let text = table(column, &|at| 40 + at);
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{column}: {error}"));
        near(known(&imported).0, f64::from(joules), column);
        let overlap = "rows overlap in time, by 33 s of 27 s; all count, as each has another run";
        assert!(imported.report.notes.iter().any(|note| note.contains(overlap)), "{column}: {:?}", imported.report.notes);
    }
    let users = table("user", &|at| at % 2).replace("5.0,0,", "5.0,ann,").replace("5.0,1,", "5.0,bob,");
    let pairs = (0..12).map(|at| format!("2025-02-03T10:00:{:02}Z,5.0,{at},{}\n", 4 * (at / 2), 1000 + 370 * (7 * at % 5)));
    let pairs = format!("start_time,duration_s,request,j\n{}", pairs.collect::<String>());
    for (what, text, note) in [
        ("two users", users, "33 s of 27 s; all count, as other columns distinguish them"),
        ("two requests at a time", pairs, "35 s of 25 s; all count, as each has another run"),
    ] {
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(known(&imported).0, f64::from(joules), what);
        assert!(imported.report.notes.iter().any(|found| found.contains(note)), "{what}: {:?}", imported.report.notes);
    }
    let numbers: [(&str, &dyn Fn(u32) -> u32); 3] = [("trial", &|_| 3), ("step", &|at| at), ("tokens", &|at| 500 + 7 * at)];
    for (column, number) in numbers {
        let error = read(CSV, &[("t.csv", &table(column, number))], &options).map(|imported| known(&imported)).unwrap_err();
        assert!(error.contains("rows overlap in time"), "{column}: {error}");
    }
    // The run of an epoch and its steps is one.
    let rows = ["00,step,10,3000", "10,step,10,2900", "20,step,10,3010", "00,epoch,30,9000"];
    let rows = rows.map(|row| format!("17385768{row},7\n")).concat();
    let text = format!("start_time,window_name,elapsed_time,gpu0_energy,run\n{rows}");
    let imported = read(CSV, &[("z.csv", &text)], &unix(maps(&["time=start_time", NAMED]))).unwrap();
    near(known(&imported).0, 9_000.0, "an epoch with its steps");
}

#[test]
fn rows_that_follow_each_other_are_no_jobs() {
    let header = "timestamp,duration,j,gpu\n2025-02-03T10:00:01Z,1,300,0\n";
    let ends = ["10:01:41", "10:03:21", "10:05:01", "10:06:41", "10:08:21"];
    let rows = |joules: fn(u32) -> u32| {
        let row = |(end, row)| format!("2025-02-03T{end}Z,100,{},0\n", joules(row));
        ends.iter().zip(1..).map(row).collect::<String>()
    };
    let (total, added) = (rows(|row| 300 + 30_000 * row), rows(|_| 30_000));
    let goes_on = "2025-02-03T10:01:00Z,60,18000,0\n2025-02-03T11:01:00Z,60,36000,0\n2025-02-03T11:02:00Z,120,54000,0\n";
    for (what, text, map, joules) in [
        ("a warm-up, and a total", format!("{header}{total}"), "energy_joules_total=j:J", 150e3),
        ("a warm-up, and what rows add", format!("{header}{added}"), "energy_joules=j:J", 150.3e3),
        ("a total over jobs", format!("timestamp,duration,j,gpu\n{goes_on}"), "energy_joules_total=j:J", 36e3),
    ] {
        let imported =
            read(CSV, &[("t.csv", &text)], &maps(&[map, "device=gpu"])).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(known(&imported).0, joules, what);
        let notes = &imported.report.notes;
        assert!(!notes.iter().any(|note| note.contains("start of a job")), "{what}: {notes:?}");
    }
}

#[test]
fn the_start_of_a_job_is_no_row_out_of_order() {
    let row = |at: u32| {
        let joules = if at.is_multiple_of(12) { (1500 * at).to_string() } else { String::new() };
        format!("2025-02-03T10:{:02}:{:02}Z,{},{joules},300\n", at / 12, at % 12 * 5, 5 * at)
    };
    let rows: Vec<String> = (1..=60).map(row).collect();
    let swapped = [&rows[..30], &rows[31..32], &rows[30..31], &rows[32..]].concat();
    for (what, rows, out_of_order) in [("in order", rows.clone(), 0), ("two rows swapped", swapped, 1)] {
        let text = format!("timestamp,duration,j,w\n{}", rows.concat());
        let options = maps(&["energy_joules_total=j:J", "power_watts=w:W"]);
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(imported.report.out_of_order, out_of_order, "{what}");
        let totals: Vec<f64> = telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).collect();
        assert_eq!(totals, [0.0, 18e3, 36e3, 54e3, 72e3, 90e3], "{what}");
    }
}

#[test]
fn days_of_a_spreadsheet_are_no_seconds() {
    let rows = |seconds: u32| {
        let row = |row| format!("{:.9},300\n", 45_720.416_666_667 + f64::from(seconds * row) / 86_400.0);
        (0..20).map(row).collect::<Vec<_>>().concat()
    };
    let options = unix(maps(&["power_watts=w"]));
    let error = read(CSV, &[("x.csv", &format!("time,w\n{}", rows(1)))], &options).unwrap_err();
    assert!(error.contains("as a day of a spreadsheet it is of 2025-03-04"), "{error}");
    let hourly = read(CSV, &[("x.csv", &format!("time,w\n{}", rows(3600)))], &options).unwrap();
    assert!(hourly.report.notes.iter().any(|note| note.contains("as a day of a spreadsheet")), "{:?}", hourly.report.notes);
}

#[test]
fn what_rows_count_is_done_in_their_own_time_if_its_unit_is_plausible() {
    let table = |column: &str, length: &dyn Fn(u32) -> String| {
        let row = |at: u32| format!("{},{},{}\n", clock(0.5 * f64::from(at)), length(80 + at % 10), 100 + at % 7);
        format!("start_time,{column},n\n{}", (0..200).map(row).collect::<String>())
    };
    let (millis, seconds) = (|length: u32| format!("{length}0"), |length: u32| format!("0.{length}"));
    for (what, text, note, last) in [
        ("a unit", table("duration_ms", &millis), "in its own time, usually 0.85 s", "2025-02-03T10:01:40.39"),
        ("none", table("duration", &seconds), "usually 0.85 s; its name has no unit", "2025-02-03T10:01:40.39"),
        ("a wrong one", table("duration", &millis), "it is not used, and what a row counts", "2025-02-03T10:01:39.5"),
    ] {
        let imported = read(CSV, &[("t.csv", &text)], &maps(&["time=start_time", "tokens=n"])).unwrap();
        let rows = progress(&imported);
        let last_row = rows.last().unwrap();
        assert!(last_row.time.to_string().starts_with(last), "{what}: {}", last_row.time);
        assert!(last_row.tokens_total > Some(20_000.0), "{what}: {:?}", last_row.tokens_total);
        let notes = imported.report.notes;
        assert!(notes.iter().any(|found| found.contains(note)), "{what}: {notes:?}");
        assert!(!notes.iter().any(|found| found.contains("columns left out")), "{what}: {notes:?}");
    }
}

#[test]
fn tokens_of_clients_that_start_together_are_no_running_total() {
    let row = |round: u32, tenths: u32| {
        let end = 5.1 * f64::from(round) + 0.1 * f64::from(tenths);
        format!("{},{}.{},{}\n", clock(end), tenths / 10, tenths % 10, 4 * tenths)
    };
    let rounds = (0..20).flat_map(|round| [row(round, 30 + round % 10), row(round, 40 + 2 * (round % 4))]);
    let text = format!("timestamp,duration,n\n{}", rounds.collect::<String>());
    let imported = read(CSV, &[("t.csv", &text)], &maps(&["tokens=n"])).unwrap();
    let tokens: u32 = (0..20).map(|round| 4 * (70 + round % 10 + 2 * (round % 4))).sum();
    near(progress(&imported).last().unwrap().tokens_total.unwrap(), f64::from(tokens), "tokens");
}
