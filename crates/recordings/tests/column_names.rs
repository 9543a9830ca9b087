//! Names of columns and sensors: whose power they are of, and in which unit.

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFormat};
use eadt_schemas::v1::Meter;

use crate::support::{maps, near, progress, read_texts as read, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// Columns of power in watts as nvidia-smi, DCGM, `ROCm`, wandb, power distribution units, BMCs and Home Assistant name them.
const COLUMNS_IN_WATTS: [&str; 77] = [
    "power.draw [W]",
    "power.draw.average [W]",
    "power.draw.instant [W]",
    "enforced.power.draw [W]",
    "power_usage_watts",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_POWER_USAGE_INSTANT",
    "POWER",
    "pwr",
    "Average Graphics Package Power (W)",
    "Current Socket Graphics Package Power (W)",
    "socket_power",
    "current_socket_power",
    "average_socket_power",
    "GPU Power (W)",
    "Power (W)",
    "gpu.0.powerWatts",
    "system.gpu.0.powerWatts",
    "system/gpu.0.powerWatts",
    "cuda:0 (gpu:0)/power_usage (W)",
    "gpu_0_power_usage_watts",
    "nv_gpu_power_usage",
    "nvidia_smi_power_draw_watts",
    "amd_gpu_average_package_power",
    "rocm_power",
    "xpum_power_watts",
    "ActivePower",
    "Active Power",
    "active_power_w",
    "Active Power L1",
    "Outlet 4 Active Power (W)",
    "outlet_power_va1",
    "Pwr Consumption",
    "PW Consumption",
    "Total_Power",
    "TotalPower",
    "PowerConsumedWatts",
    "PowerControl.PowerConsumedWatts",
    "DC_NODE_POWER_W",
    "AC_POWER_W",
    "PSU1_PIN",
    "PSU1 Input Power",
    "node_power_watts",
    "sensor.shelly_plug_power",
    "sensor.server_power",
    "sensor.tasmota_energy_power",
    "apower",
    "Leistung",
    "Leistung (W)",
    "Wirkleistung",
    "potencia",
    "puissance",
    "moc",
    "hw_power",
    "power_hw",
    "power_gw",
    "power_ma",
    "power_ev",
    "va01_power",
    "nw-rack-power",
    "kv-node power",
    "hp_server_power",
    "PDU A Power",
    "power_avg",
    "power_mean_5s",
    "total_power_W",
    "powerW",
    "CPUGPUPowerW",
    "board_power_draw",
    "chip_power_W",
    "node1.power",
    "wattage",
    "watts",
    "Watt",
    "W",
    "power_sum",
    "ps_power",
];

/// Twenty rows, one a second, of the figures of a row number.
fn table(header: &str, row: impl Fn(u32) -> String) -> String {
    let rows = (0..20).map(|second| format!("2025-02-03T10:00:{second:02}Z,{}\n", row(second)));
    format!("time,{header}\n{}", rows.collect::<String>())
}

fn watts(least: u32, second: u32) -> u32 {
    least + second * 7 % 11
}

fn metered(meter: Meter, mapped: &[&str]) -> ImportOptions {
    ImportOptions { meter: Some(meter), ..maps(mapped) }
}

/// Joules of all devices, by the trapezoid over their power.
fn joules(imported: &ImportedRecording) -> f64 {
    let rows = telemetry(imported);
    let boards = imported.report.boards.iter();
    let of_board = |device: &str| {
        let points: Vec<_> =
            rows.iter().filter(|row| row.device == device).filter_map(|row| Some((row.time, row.power_watts?))).collect();
        points.windows(2).map(|pair| f64::midpoint(pair[0].1, pair[1].1) * pair[1].0.seconds_since(pair[0].0)).sum::<f64>()
    };
    boards.map(|board| of_board(&board.device)).sum()
}

/// Joules of the power that [`watts`] gives.
fn joules_of(least: u32) -> f64 {
    (0..19).map(|second| f64::midpoint(f64::from(watts(least, second)), f64::from(watts(least, second + 1)))).sum()
}

#[test]
fn columns_of_power_are_read_in_watts_as_tools_name_them() {
    for name in COLUMNS_IN_WATTS {
        let text = table(name, |second| watts(300, second).to_string());
        let map = format!("power_watts={name}");
        let imported = read(CSV, &[("w.csv", &text)], &metered(Meter::Wall, &[map.as_str()]));
        let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
        near(joules(&imported), joules_of(300), name);
    }
}

#[test]
fn columns_in_another_unit_or_of_another_quantity_stop() {
    for (field, name, part) in [
        ("power_watts", "power_va", "the header gives va"),
        ("power_watts", "power_cw", "the header gives cw"),
        ("power_watts", "power_dbm", "the header gives dbm"),
        ("power_watts", "PowerHundredthsKW", "the header gives Hundredths"),
        ("power_watts", "watt_hours", "the header gives Wh"),
        ("power_watts", "apparent_power", "by its name it is no power_watts"),
        ("power_watts", "ApparentPower", "by its name it is no power_watts"),
        ("power_watts", "reactive_power", "by its name it is no power_watts"),
        ("energy_joules_total", "energy_vah", "the header gives vah"),
        ("energy_joules_total", "energy_10wh", "the header gives 10wh"),
        ("energy_joules_total", "charge_ah", "the header gives ah"),
        ("energy_joules_total", "apparent_energy", "by its name it is no energy_joules_total"),
        ("energy_joules_total", "ReactiveEnergy", "by its name it is no energy_joules_total"),
        ("tokens_total", "tokens_seen_M", "the header gives M, a multiple"),
        ("tokens_total", "mtokens", "the header gives m, a multiple"),
        ("tokens_total", "tokens_b", "the header gives b, a multiple"),
    ] {
        let text = table(name, |second| (3000 + 300 * second).to_string());
        let map = format!("{field}={name}");
        let error = read(CSV, &[("w.csv", &text)], &metered(Meter::Wall, &[map.as_str()])).unwrap_err();
        assert!(error.contains(part), "{name}: {error}");
    }
    let apparent = table("apparent_power", |second| watts(300, second).to_string());
    let stated = metered(Meter::Wall, &["power_watts=apparent_power:W"]);
    near(joules(&read(CSV, &[("w.csv", &apparent)], &stated).unwrap()), joules_of(300), "the unit of the map counts");
    let kilojoules = table("energy_Kj", |second| (0.3 * f64::from(second)).to_string());
    let imported = read(CSV, &[("e.csv", &kilojoules)], &maps(&["energy_joules_total=energy_Kj"])).unwrap();
    near(telemetry(&imported)[1].energy_joules_total.unwrap(), 300.0, "kilojoules");
}

#[test]
fn a_letter_that_distinguishes_columns_is_no_multiple() {
    let text = table("samples_a,samples_b", |second| format!("{},{}", 10 * second, 20 * second));
    let imported = read(CSV, &[("s.csv", &text)], &maps(&["samples_total=samples_b"])).unwrap();
    near(progress(&imported).last().unwrap().samples_total.unwrap(), 380.0, "of b");
}

#[test]
fn apparent_power_beside_power_is_none_of_a_second_device() {
    let sensor = |second: u32| if second.is_multiple_of(2) { "sensor.plug_power" } else { "sensor.plug_apparent_power" };
    let text = table("entity_id,state", |second| format!("{},{}", sensor(second), watts(300, second)));
    let error = read(CSV, &[("h.csv", &text)], &metered(Meter::Wall, &["power_watts=state", "device=entity_id"])).unwrap_err();
    assert!(error.contains("several kinds"), "{error}");
}

#[test]
fn a_superchip_counts_once() {
    let module = [("Module Power", 900), ("GPU Power", 600), ("CPU Power", 230), ("SysIO Power", 40)];
    let grace = [("Grace Power Socket 0", 300), ("CPU Power Socket 0", 230), ("SysIO Power Socket 0", 40)];
    for (sensors, meter, least) in [
        (&module[..], Meter::Module, 900),
        (&module[..2], Meter::Module, 900),
        (&module[..2], Meter::Node, 900),
        (&module[..2], Meter::Gpu, 600),
        (&module[..], Meter::Gpu, 600),
        (&grace[..], Meter::Node, 300),
    ] {
        let mut text = "time,sensor,W\n".to_owned();
        for second in 0..20 {
            let row = |(name, least): &(&str, u32)| format!("2025-02-03T10:00:{second:02}Z,{name},{}\n", watts(*least, second));
            text.extend(sensors.iter().map(row));
        }
        let imported = read(CSV, &[("g.csv", &text)], &metered(meter, &["device=sensor", "power_watts=W"])).unwrap();
        near(joules(&imported), joules_of(least), &format!("{sensors:?} {meter:?}"));
        assert!(!imported.report.refused.is_empty(), "{sensors:?} {meter:?}");
    }
    let wide = table("GPU Power Draw W,Module Power Draw W", |second| format!("{},{}", watts(300, second), watts(600, second)));
    for (meter, part) in [
        (Meter::Module, "\"GPU Power Draw W\" is by its name of a part of what \"Module\" is of"),
        (Meter::Gpu, "\"Module Power Draw W\" is by its name of another part of the machine than \"GPU\""),
    ] {
        let error = read(CSV, &[("g.csv", &wide)], &metered(meter, &["power_watts={x} Power Draw W"])).unwrap_err();
        assert!(error.contains(part), "{meter:?}: {error}");
    }
    let alone = metered(Meter::Module, &["power_watts=Module Power Draw W"]);
    near(joules(&read(CSV, &[("g.csv", &wide)], &alone).unwrap()), joules_of(600), "the module alone");
    let sum = metered(Meter::Module, &["power_watts=GPU Power Draw W+Module Power Draw W"]);
    assert!(read(CSV, &[("g.csv", &wide)], &sum).unwrap_err().contains("the sum has it twice"));
}

#[test]
fn a_pattern_takes_no_column_of_times_in() {
    for (header, mapped) in [("a,b", &["power_watts={x}:W"][..]), ("ts,a,b", &["power_watts={x}:W", "time=ts"])] {
        let row = |second: u32| {
            let time = if mapped.len() > 1 { format!("2025-02-03T11:00:{second:02}Z,") } else { String::new() };
            format!("{time}{},{}", watts(100, second), watts(300, second * 3))
        };
        let imported = read(CSV, &[("w.csv", &table(header, row))], &maps(mapped)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(imported.report.boards.len(), 2, "{header}");
    }
}
