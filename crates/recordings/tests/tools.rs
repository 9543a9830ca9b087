//! Tables as other tools write them: which columns `--explain` proposes, which maps count a board twice, and rows that end early.

use std::collections::BTreeMap;

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFile, RecordingFormat, SameTimeRule, TimeFormat, sketch_table};
use eadt_schemas::v1::{GpuTelemetry, Meter};

use crate::support::{maps, near, read_texts as read, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// What `--explain` prints of a table without a map.
fn explained(text: &str) -> String {
    sketch_table(RecordingFile::new("t", text.as_bytes())).unwrap_or_else(|error| panic!("{error}: {text}")).to_string()
}

/// The maps that it proposes, without quotes.
fn proposals(text: &str) -> Vec<String> {
    let map = |line: &str| line.split_once("; if so: --map ").map(|(_, map)| map.replace('\'', ""));
    explained(text).lines().filter_map(map).collect()
}

/// Joules of all devices, by the trapezoid over their readings.
fn joules(imported: &ImportedRecording) -> f64 {
    let mut last: BTreeMap<String, GpuTelemetry> = BTreeMap::new();
    let mut joules = 0.0;
    for row in telemetry(imported) {
        let watts = |row: &GpuTelemetry| row.power_watts.unwrap_or(0.0);
        if let Some(before) = last.insert(row.device.clone(), row.clone()) {
            joules += row.time.seconds_since(before.time) * f64::midpoint(watts(&before), watts(&row));
        }
    }
    joules
}

/// A table of 20 rows, one a second, with the cells of `row`.
fn table(header: &str, row: fn(u32) -> String) -> String {
    let rows = (0..20).map(|second| format!("2025-02-03 10:00:{second:02},{}\n", row(second)));
    format!("time,{header}\n{}", rows.collect::<String>())
}

const NVITOP: &str = "m/cuda:0 (gpu:0)/power_usage (W)/mean,m/cuda:0 (gpu:0)/power_usage (W)/min,m/cuda:0 (gpu:0)/power_usage (W)/max,\
                      m/cuda:0 (gpu:0)/power_usage (W)/last,m/cuda:1 (gpu:1)/power_usage (W)/mean,m/cuda:1 (gpu:1)/power_usage (W)/min,\
                      m/cuda:1 (gpu:1)/power_usage (W)/max,m/cuda:1 (gpu:1)/power_usage (W)/last";
const HWINFO: &str = "CPU Package Power [W],GPU Power [W],GPU Core (NVVDD) Input Power (avg) [W],GPU FBVDD Input Power [W],\
                      GPU 16-pin HVPWR Power [W],GPU Rail Powers (avg) [W],Total GPU Power [% of TDP]";
const GPU_Z: &str = "GPU Load [%],Board Power Draw [W],GPU Chip Power Draw [W],Power Consumption (%) [% TDP]";
const EAR: &str = "DC_NODE_POWER_W,DRAM_POWER_W,PCK_POWER_W,GPU0_POWER_W,GPU1_POWER_W";
const ILO: &str = "Average Power (Watts),Peak Power (Watts),Minimum Power (Watts),Power Cap (Watts)";
const REDFISH: &str = "PowerControl.PowerConsumedWatts,PowerSupplies.0.PowerInputWatts,PowerSupplies.1.PowerInputWatts,\
                       PowerSupplies.0.PowerOutputWatts";
const JETSON: &str = "GPU,Power VDD_CPU_CV,Power VDD_GPU_SOC,Power VDD_SYS_5V0,Power TOT";
const ORIN: &str = "GPU,Power VDD_IN,Power VDD_CPU_GPU_CV,Power VDD_SOC,Power TOT";

#[test]
fn one_figure_of_each_board_is_proposed() {
    for (header, cells, expected) in [
        (
            NVITOP,
            "250,241,259,251,330,321,339,331",
            &[
                "power_watts[gpu0]=m/cuda:0 (gpu:0)/power_usage (W)/mean",
                "power_watts[gpu1]=m/cuda:1 (gpu:1)/power_usage (W)/mean",
            ][..],
        ),
        (HWINFO, "65,250,150,50,242,100,85", &["power_watts=GPU Power [W]"]),
        (GPU_Z, "98,250,200,85", &["power_watts=Board Power Draw [W]"]),
        (EAR, "1250,40,300,250,330", &["power_watts[gpu0]=GPU0_POWER_W", "power_watts[gpu1]=GPU1_POWER_W"]),
        (ILO, "1000,1250,750,0", &["power_watts=Average Power (Watts)", "power_limit_watts=Power Cap (Watts)"]),
        (REDFISH, "2328,1000,1321,940", &["power_watts=PowerControl.PowerConsumedWatts"]),
        (JETSON, "97,3000,20000,5000,28000", &["power_watts=Power TOT:mW --meter module"]),
        (ORIN, "97,11500,8000,2000,11500", &["power_watts=Power VDD_IN:mW --meter module"]),
        (
            "Processor Power_0(Watt),Cumulative Processor Energy_0(Joules),Cumulative Processor Energy_0(mWh)",
            "50,5,1.389",
            &["power_watts=Processor Power_0(Watt)", "energy_joules_total=Cumulative Processor Energy_0(Joules)"],
        ),
        (
            "iteration,consumed samples,elapsed time per iteration (ms)",
            "0,0,500.1",
            &["steps_total=iteration", "samples_total=consumed samples"],
        ),
        (
            "gpu.3.powerWatts,gpu.5.powerWatts",
            "1,2",
            &["power_watts[gpu3]=gpu.3.powerWatts", "power_watts[gpu5]=gpu.5.powerWatts"],
        ),
        (
            "PSU1 Input Power,PSU2 Input Power",
            "1,2",
            &["power_watts[psu1]=PSU1 Input Power", "power_watts[psu2]=PSU2 Input Power"],
        ),
        ("alpha power,beta power", "1,2", &["power_watts=alpha power"]),
        ("gtemp,mtemp", "50,60", &["temperature_celsius=gtemp", "memory_temperature_celsius=mtemp"]),
        ("power [W],power 5 min [W]", "50,60", &["power_watts=power [W]"]),
    ] {
        let text = format!("time,{header}\n2025-02-03 10:00:00,{cells}\n");
        assert_eq!(proposals(&text), expected, "{header}: {}", explained(&text));
    }
}

#[test]
fn tables_of_dmon_are_explained_without_a_map() {
    let dmon = "# gpu    pwr  gtemp  mtemp     sm\n# Idx      W      C      C      %\n".to_owned()
        + &"    0    250     45      -     80\n    1    330     46      -     81\n".repeat(20);
    let pmon = "# gpu         pid   type     sm    mem    command\n# Idx           #    C/G      %      %    name\n".to_owned()
        + &"    0    1234567     C     97     40    python\n".repeat(20);
    let dated = "#Date       Time        gpu    pwr\n#YYYYMMDD   HH:MM:SS    Idx      W\n".to_owned()
        + &" 20250304   10:00:00      0    250\n 20250304   10:00:00      1    330\n".repeat(20);
    for (text, expected, has_times) in [
        (dmon, &["device=gpu", "power_watts=pwr", "temperature_celsius=gtemp"][..], false),
        (pmon, &["device=gpu"], false),
        (dated, &["device=gpu", "power_watts=pwr"], true),
    ] {
        let shown = explained(&text);
        assert_eq!(proposals(&text), expected, "{shown}");
        assert!(shown.contains("separator: ' '") && shown.contains("header: line 1"), "{shown}");
        assert_eq!(!shown.contains("or --interval if it has none"), has_times, "{shown}");
    }
}

#[test]
fn no_map_is_proposed_of_a_unit_that_the_import_refuses() {
    for (cells, what) in [(["600K", "700K"], "600K"), (["600K", "1.20M"], "600K")] {
        let text =
            format!("JobID|End|ConsumedEnergy\n100|2025-03-04T10:28:00|{}\n101|2025-03-04T10:58:00|{}\n", cells[0], cells[1]);
        let shown = explained(&text);
        assert!(!shown.contains("=ConsumedEnergy") && shown.contains("take its column ConsumedEnergyRaw"), "{shown}");
        assert!(shown.contains(&format!("such as \"{what}\"")) && !shown.contains("326.85"), "{shown}");
    }
    let warm = explained("time,temperature\n2025-02-03T10:00:00Z,300K\n");
    assert!(warm.contains("--map temperature_celsius=temperature"), "{warm}");
}

#[test]
fn columns_of_one_board_that_are_mapped_as_several_are_refused() {
    let of = |meter: Meter, texts: &[&str]| ImportOptions { meter: Some(meter), ..maps(texts) };
    let nvitop = |_: u32| "250,241,259,251,330,321,339,331".to_owned();
    let nvitop = table(NVITOP, nvitop);
    let hwinfo = table(HWINFO, |second| format!("65,{},150,50,242,100,85", 250 + second));
    let gpu_z = table(GPU_Z, |second| format!("98,{},200,85", 250 + second));
    let redfish = table(REDFISH, |second| format!("{},1000,1321,940", 2328 + second));
    let orin = table(ORIN, |second| format!("97,{},8000,2000,11500", 11_500 + second));
    let jetson = table(JETSON, |second| format!("97,3000,20000,{},28000", 5000 + second));
    let cpu = table("cpu_power,gpu_power", |second| format!("100,{}", 300 + second));
    let mean = "power_watts[gpu0]=m/cuda:0 (gpu:0)/power_usage (W)/mean";
    for (text, options, problem) in [
        (&nvitop, of(Meter::Gpu, &[mean, "power_watts[gpu1]=m/cuda:0 (gpu:0)/power_usage (W)/max"]), "another figure of what"),
        (
            &hwinfo,
            of(Meter::Gpu, &["power_watts[gpu0]=GPU Power [W]", "power_watts[gpu1]=GPU 16-pin HVPWR Power [W]"]),
            "of a part of what \"GPU Power [W]\"",
        ),
        (
            &gpu_z,
            of(Meter::Gpu, &["gpu0=Board Power Draw [W]", "gpu1=GPU Chip Power Draw [W]"]),
            "of a part of what \"Board Power Draw [W]\"",
        ),
        (
            &redfish,
            of(
                Meter::Wall,
                &[
                    "power_watts[a]=PowerControl.PowerConsumedWatts",
                    "power_watts[b]=PowerSupplies.0.PowerInputWatts",
                    "power_watts[c]=PowerSupplies.1.PowerInputWatts",
                ],
            ),
            "leave out --map 'power_watts[b]=PowerSupplies.0.PowerInputWatts'",
        ),
        (&orin, of(Meter::Module, &["power_watts=Power {x}:mW"]), "\"TOT\", by its name what the other boards have together"),
        (&orin, of(Meter::Module, &["power_watts=Power VDD_{x}:mW"]), "by its name"),
        (&jetson, of(Meter::Module, &["power_watts=Power {x}:mW"]), "alone if the others are parts of it"),
        (&cpu, of(Meter::Gpu, &["power_watts[c]=cpu_power", "power_watts[g]=gpu_power"]), "use --meter node"),
        (&orin, of(Meter::Module, &["power_watts=Power VDD_IN+Power VDD_SOC:mW"]), "the sum has it twice"),
    ] {
        let error = read(CSV, &[("t.csv", text)], &options).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains(problem), "{problem}: {error}");
    }
    for (text, options) in [
        (&nvitop, of(Meter::Gpu, &[mean, "power_watts[gpu1]=m/cuda:1 (gpu:1)/power_usage (W)/mean"])),
        (&redfish, of(Meter::Wall, &["power_watts=PowerControl.PowerConsumedWatts"])),
        (&orin, of(Meter::Module, &["power_watts=Power VDD_IN:mW"])),
        (&jetson, of(Meter::Module, &["power_watts=Power VDD_CPU_CV+Power VDD_GPU_SOC+Power VDD_SYS_5V0:mW"])),
        (&cpu, of(Meter::Node, &["power_watts[c]=cpu_power", "power_watts[g]=gpu_power"])),
    ] {
        assert!(read(CSV, &[("t.csv", text)], &options).is_ok(), "{:?}", options.maps);
    }
}

#[test]
fn rows_of_turbostat_that_end_before_the_power_are_passed_over() {
    let (first, second) = (|at: u32| 100 + at * 7 % 23, |at: u32| 60 + at * 5 % 19);
    let moment = |at: u32| {
        let time = format!("2025-02-03T10:00:{at:02}Z");
        let (a, b) = (first(at), second(at));
        let full = [format!("-\t-\t-\t90\t{}", a + b), format!("0\t0\t0\t90\t{a}"), format!("1\t0\t3\t90\t{b}")];
        let short = ["0\t0\t1\t90", "0\t1\t2\t90", "1\t0\t4\t90", "1\t1\t5\t90"].map(str::to_owned);
        let row = |row: &String| format!("{time}\t{row}\n");
        full.iter().chain(&short).map(row).collect::<String>()
    };
    let header = "time\tPackage\tCore\tCPU\tBusy%\tPkgWatt\n";
    let text = format!("{header}{}", (0..20).map(moment).collect::<String>());
    let options = ImportOptions { meter: Some(Meter::Node), ..maps(&["device=Package", "power_watts=PkgWatt"]) };
    let imported = read(CSV, &[("t.tsv", &text)], &options).unwrap();
    let watts = |at: u32| f64::from(first(at) + second(at));
    let expected: f64 = (0..19).map(|at| f64::midpoint(watts(at), watts(at + 1))).sum();
    near(joules(&imported), expected, "both packages");
    assert_eq!(imported.report.refused.iter().map(|refused| refused.lines).sum::<u64>(), 20, "rows of both packages");
    assert_eq!(imported.report.skipped.iter().map(|skipped| skipped.lines).sum::<u64>(), 80);
    // A row that alone is short is damaged, as is one that has a figure.
    let torn = (0..20).map(|at| format!("2025-02-03T10:00:{at:02}Z\t0{}\n", if at == 7 { "" } else { "\t100" }));
    let torn = format!("time\tgpu\tw\n{}", torn.collect::<String>());
    let imported = read(CSV, &[("t.tsv", &torn)], &maps(&["device=gpu", "power_watts=w"])).unwrap();
    assert_eq!(imported.report.refused.iter().map(|refused| refused.lines).sum::<u64>(), 1);
}

#[test]
fn a_log_of_tegrastats_is_named_with_the_way_to_a_table() {
    let line = |second: u32| {
        format!(
            "03-04-2025 10:00:{second:02} RAM 2448/7620MB (lfb 4x4MB) CPU [12%@1510,off] EMC_FREQ 0% GR3D_FREQ 45%@[624] VDD_IN \
             5000mW/5000mW VDD_SOC 1500mW/1490mW\n"
        )
    };
    let text: String = (0..20).map(line).collect();
    let explained = sketch_table(RecordingFile::new("t.log", text.as_bytes())).unwrap_err().to_string();
    let imported = read(CSV, &[("t.log", &text)], &maps(&["power_watts=VDD_IN"])).map(|imported| joules(&imported)).unwrap_err();
    for error in [explained, imported] {
        assert!(error.contains("it is the text of tegrastats, and no table") && error.contains("--meter module"), "{error}");
    }
}

#[test]
fn tiles_have_no_mean_beside_the_rows_of_their_device() {
    let rows = (0..20).map(|second| {
        let time = format!("2025-02-03 10:00:{second:02}");
        format!("{time},0,,{}\n{time},0,0,120\n{time},0,1,{}\n", 240 + second, 120 + second)
    });
    let text = format!("time,DeviceId,TileId,GPU Power (W)\n{}", rows.collect::<String>());
    let options = maps(&["device=DeviceId", "power_watts=GPU Power (W)"]);
    for same_time in [None, Some(SameTimeRule::Mean)] {
        let options = ImportOptions { same_time, ..options.clone() };
        let error = read(CSV, &[("t.csv", &text)], &options).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains("--map node=DeviceId --map device=TileId") && !error.contains("--same-time mean"), "{error}");
    }
}

#[test]
fn hwinfo_writes_times_without_leading_zeros() {
    let text = "Date,Time,GPU Power [W]\n4.3.2025,10:0:0.013,100\n4.3.2025,10:0:10.013,300\n";
    let power = maps(&["power_watts=GPU Power [W]"]);
    let pattern: TimeFormat = "%d.%m.%Y %H:%M:%S%.f".parse().unwrap();
    let both = maps(&["power_watts=GPU Power [W]", "time=Date+Time"]);
    for options in [
        power.clone(),
        ImportOptions { time_format: Some(pattern.clone()), ..power },
        both.clone(),
        ImportOptions { time_format: Some(pattern), ..both },
    ] {
        let imported = read(CSV, &[("t.csv", text)], &options).unwrap();
        assert_eq!(telemetry(&imported)[0].time.to_string(), "2025-03-04T10:00:00.013000Z");
        near(joules(&imported), 2_000.0, "ten seconds");
    }
}

#[test]
fn equal_columns_of_two_boards_are_noted() {
    let has_note = |row: fn(u32) -> String| {
        let imported = read(CSV, &[("t.csv", &table("x,y", row))], &maps(&["power_watts[a]=x", "power_watts[b]=y"])).unwrap();
        imported
            .report
            .notes
            .iter()
            .any(|note| note.contains("columns \"x\" and \"y\" have the same values in the first 20 rows"))
    };
    assert!(has_note(|second| format!("{0},{0}", 300 + second)));
    assert!(!has_note(|second| format!("{},{}", 300 + second, 300 + second % 19)));
    assert!(!has_note(|_| "300,300".to_owned()), "idle boards may draw the same");
}

#[test]
fn messages_about_columns_of_boards_name_all_of_them() {
    let text = table("gpu0_energy,gpu1_energy", |second| format!("{},{}", 300 * second, 200 * second));
    let options = maps(&["energy_joules=gpu{n}_energy"]);
    let error = read(CSV, &[("t.csv", &text)], &options).map(|imported| joules(&imported)).unwrap_err();
    for part in [
        "column \"gpu0_energy, gpu1_energy\"",
        "--map 'energy_joules_total[gpu0]=gpu0_energy' --map 'energy_joules_total[gpu1]=gpu1_energy'",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn proposals_look_at_most_cells_and_at_the_unit_of_the_header() {
    // HWiNFO repeats the header at the end, with a row of the names of the sensors below it.
    let header = "Date,Time,\"CPU Package Power [W]\",\"GPU Power [W]\",\"GPU Temperature [°C]\",\"GPU Power [W]\",\n";
    let row = |second: u32| format!("3.2.2025,10:00:{second:02}.000,90.1,{}.5,44.0,{}.5,\n", 200 + second % 7, 280 + second % 5);
    let rows: String = (0..60).map(row).collect();
    let text =
        format!("{header}{rows}{header},,AMD: Ryzen,NVIDIA GeForce RTX 4090,NVIDIA GeForce RTX 4090,NVIDIA GeForce RTX 3090,\n");
    let shown = explained(&text);
    assert!(!shown.contains("device=") && !shown.contains("no column has whole times"), "{shown}");
    let found = proposals(&text);
    assert_eq!(found, ["power_watts[gpu0]=#4", "power_watts[gpu1]=#6"], "{shown}");
    let imported = read(CSV, &[("h.csv", &text)], &maps(&found.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    let watts: Vec<f64> = (0..60).map(|second| f64::from(481 + second % 7 + second % 5)).collect();
    near(joules(&imported), watts.windows(2).map(|pair| f64::midpoint(pair[0], pair[1])).sum(), "HWiNFO");

    // eco2AI has the energy of each row in kWh, beside how long it took.
    let row = |row: u32| format!("{row},2025-02-03 1{}:00:00,600,0.0{}\n", row, 50 + row);
    let text = format!("id,start_time,duration(s),power_consumption(kWh)\n{}", (0..9).map(row).collect::<String>());
    assert_eq!(proposals(&text), ["time=start_time", "energy_joules=power_consumption(kWh)"], "{}", explained(&text));
    let counter = "time,energy_kWh\n2025-02-03T10:00:00Z,1.5\n2025-02-03T10:00:01Z,1.6\n2025-02-03T10:00:02Z,1.7\n";
    assert_eq!(proposals(counter), ["energy_joules_total=energy_kWh"]);
    let text = "time,gpu temperature [°C],gpu\n2025-02-03T10:00:00Z,warm,a\n2025-02-03T10:00:01Z,warm,b\n";
    assert_eq!(proposals(text), ["device=gpu"]);
}
