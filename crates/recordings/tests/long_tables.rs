//! Tables whose rows are of several boards or quantities by a column that is not mapped, whatever it is called.

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFormat, SameTimeRule};
use eadt_schemas::v1::Meter;

use crate::support::{maps, near, read_texts, telemetry};

fn read(text: &str, options: &ImportOptions) -> Result<ImportedRecording, String> {
    read_texts(RecordingFormat::Csv, &[("t.csv", text)], options)
}

/// The integral of power of all rows, which are of one device.
fn joules(imported: &ImportedRecording) -> f64 {
    let rows = telemetry(imported);
    let of_pair = |pair: &[eadt_schemas::v1::GpuTelemetry]| {
        let watts = f64::midpoint(pair[0].power_watts.unwrap_or(0.0), pair[1].power_watts.unwrap_or(0.0));
        watts * pair[1].time.seconds_since(pair[0].time)
    };
    rows.windows(2).map(of_pair).sum()
}

/// A table of ten rounds, one a second: each row is the texts of its place, with a time of its own in the round.
fn rounds(header: &str, rows: &[&str]) -> String {
    rounds_of(10, header, rows)
}

fn rounds_of(number: usize, header: &str, rows: &[&str]) -> String {
    let step = 1000 / rows.len();
    let row = |second: usize, place: usize| format!("2025-02-03T10:00:{second:02}.{:03}Z,{}\n", place * step, rows[place]);
    let all = (0..number).flat_map(|second| (0..rows.len()).map(move |place| (second, place)));
    format!("{header}\n{}", all.map(|(second, place)| row(second, place)).collect::<String>())
}

#[test]
fn boards_that_take_turns_by_a_column_of_boards_are_refused() {
    let power = maps(&["power_watts=w"]);
    for (what, header, rows, column) in [
        ("a known name", "time,bdf,w", &["0000:17:00.0,300", "0000:65:00.0,100"][..], "bdf"),
        ("a tile", "time,tile,w", &["0,300", "1,100"], "tile"),
        ("beside a state", "time,pstate,socket,w", &["P0,0,300", "P2,1,100"], "socket"),
    ] {
        let text = rounds(header, rows);
        let error = read(&text, &power).map(|imported| joules(&imported)).unwrap_err();
        assert!(
            error.starts_with(&format!("t.csv:3: column {column:?}: rows without the id of a board take turns")),
            "{what}: {error}"
        );
        assert!(error.contains("--map") && error.contains("device="), "{what}: {error}");
        let mapped = maps(&["power_watts=w", &format!("device={column}")]);
        assert!(read(&text, &mapped).is_ok(), "{what}: as it is mapped");
        let mean = ImportOptions { same_time: Some(SameTimeRule::Mean), ..power.clone() };
        assert!(read(&text, &mean).is_ok(), "{what}: one board");
    }
    let plugs = rounds("time,socket,w", &["1,300", "2,100"]);
    let error = read(&plugs, &ImportOptions { meter: Some(Meter::Wall), ..power }).unwrap_err();
    assert!(error.contains("take turns between 2 boards"), "{error}");
}

#[test]
fn a_column_that_may_be_one_of_boards_by_the_power_only_is_noted() {
    let power = maps(&["power_watts=w"]);
    for (what, number, header, rows, column) in [
        ("a name that shows nothing", 10, "time,which,w", &["left,300", "right,100"][..], Some("which")),
        ("small numbers", 30, "time,x,w", &["0,300", "1,100", "2,250"], Some("x")),
        ("small numbers, few rounds", 10, "time,x,w", &["0,300", "1,100", "2,250"], None),
        ("a blank name", 10, "time,,w", &["a7,300", "b3,100"], Some("#2")),
        ("beside a state", 10, "time,pstate,place,w", &["P0,a,300", "P2,b,100"], Some("place")),
        ("beside a constant", 10, "time,which,job,w", &["left,train,300", "right,train,100"], Some("which")),
        ("iterations", 30, "time,it,w", &["0,300", "1,100"], None),
        ("parts of a batch", 30, "time,minibatch,w", &["0,300", "1,100"], None),
        ("even and odd", 30, "time,x,w", &["even,300", "odd,100"], None),
        ("a generation of PCI", 30, "time,pci,w", &["4,300", "1,100"], None),
        ("temperatures", 30, "time,die,w", &["45,300", "46,100"], None),
        ("topics of texts", 30, "time,topic,w", &["math,300", "law,100"], None),
    ] {
        let imported = read(&rounds_of(number, header, rows), &power).unwrap_or_else(|error| panic!("{what}: {error}"));
        let notes = &imported.report.notes;
        let found = notes.iter().find(|note| note.starts_with("the power takes turns with the "));
        assert_eq!(found.is_some(), column.is_some(), "{what}: {notes:?}");
        if let (Some(note), Some(column)) = (found, column) {
            assert!(note.contains(&format!("values of column {column:?}")) && note.contains("--map"), "{what}: {note}");
        }
    }
    let text = rounds("time,gpu,tag,w", &["0,a,300", "0,b,100"]);
    let imported = read(&text, &maps(&["power_watts=w", "device=gpu"])).unwrap();
    assert!(!imported.report.notes.iter().any(|note| note.contains("takes turns")), "{:?}", imported.report.notes);
}

#[test]
fn states_that_change_are_no_boards() {
    for (what, header, rows) in [
        ("performance states", "time,s,w", &["P0,300", "P2,100"][..]),
        ("phases", "time,s,w", &["train,300", "eval,100"]),
        ("by the name", "time,phase,w", &["a,300", "b,100"]),
        ("reasons", "time,s,w", &["0x0000000000000004,300", "0x0000000000000001,100"]),
        ("warnings", "time,s,w", &["ok,300", "warn,100"]),
        ("a level that is the same", "time,s,w", &["a,300", "b,301"]),
        ("two rows each", "time,s,w", &["a,300", "a,300", "b,100"]),
        ("another reading", "time,util,w", &["97,300", "12,100"]),
    ] {
        let imported = read(&rounds(header, rows), &maps(&["power_watts=w"]));
        assert!(imported.is_ok(), "{what}: {:?}", imported.err());
    }
}

#[test]
fn a_column_of_units_is_known_by_its_cells() {
    for name in ["Maßeinheit", "unité", "Unit of measure", "ReadingUnits"] {
        let imported = read(&rounds(&format!("time,w,{name}"), &["3000,mW"]), &maps(&["power_watts=w"]));
        near(joules(&imported.unwrap_or_else(|error| panic!("{name}: {error}"))), 27.0, name);
    }
    // Letters that are a place or a phase of the mains.
    for letters in [["A", "B", "C"], ["MW", "MW", "MW"], ["J", "J", "J"]] {
        let rows = letters.map(|letter| format!("300,{letter}"));
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        let options = ImportOptions { same_time: Some(SameTimeRule::Mean), ..maps(&["power_watts=w"]) };
        let imported = read(&rounds("time,w,region", &rows), &options);
        near(joules(&imported.unwrap_or_else(|error| panic!("{letters:?}: {error}"))), 2_899.8, letters[0]);
    }
}

#[test]
fn the_units_of_another_figure_are_not_those_of_power() {
    for (what, header, row, column, expected) in [
        ("of another figure", "time,w,pdu,pdu_unit", "300,1.1,kW", "w", 2_700.0),
        ("in other letters", "time,w,Limit,LimitUnits", "300,400000,mW", "w", 2_700.0),
        ("a unit in the header", "time,power [W],peak,peak_unit", "300,0.31,kW", "power", 2_700.0),
        ("a column without a name", "time,GPU W,Server,,x", "300,1.2,kW,1", "GPU W", 2_700.0),
        ("behind another number", "time,w,server,what,x", "300,1.2,kW,1", "w", 2_700.0),
        ("behind the figure", "time,w,what,server", "0.3,kW,1.2", "w", 2_700.0),
        ("the only number", "time,what,w", "kW,0.3", "w", 2_700.0),
        ("the same unit", "time,power [W],what,server", "300,Watts,1.2", "power", 2_700.0),
    ] {
        let options = ImportOptions { meter: Some(Meter::Node), ..maps(&[&format!("power_watts={column}")]) };
        let imported = read(&rounds(header, &[row]), &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(joules(&imported), expected, what);
    }
    // Phases are no units.
    let stages = rounds("time,w,stage", &["300,W", "300,C", "300,C"]);
    let options = ImportOptions { same_time: Some(SameTimeRule::Mean), ..maps(&["power_watts=w"]) };
    near(joules(&read(&stages, &options).unwrap()), 2_899.8, "stages");
}

#[test]
fn rows_of_another_quantity_are_left_out_however_many_they_are() {
    let node = |texts: &[&str]| ImportOptions { meter: Some(Meter::Node), ..maps(texts) };
    let redfish = node(&["device=Name", "power_watts=Reading"]);
    let sensors = ["PWR_IN,900,W", "Inlet,25,Cel", "Exhaust,45,Cel", "FAN1,9000,RPM", "P12V,12.1,Volts"];
    let text = rounds("time,Name,Reading,ReadingUnits", &sensors);
    let imported = read(&text, &redfish).unwrap();
    near(joules(&imported), 8_100.0, "sensors of a BMC");
    let refused: Vec<(u64, u64)> = imported.report.refused.iter().map(|refused| (refused.first_line, refused.lines)).collect();
    assert_eq!(refused, [(3, 40)]);
    assert!(imported.report.check_refused().is_err());
    // Without a header, as ipmitool writes them.
    let lines = |second: u32| {
        let time = format!("2025-02-03T10:00:0{second}Z");
        format!("{time}|Inlet|25.000|degrees C|ok\n{time}|PSU1|0x1|discrete|0x0180\n{time}|PW Consumption|220.000|Watts|ok\n")
    };
    let text = (0..10).map(lines).collect::<String>();
    let imported = read(&text, &node(&["time=#1", "device=#2", "power_watts=#3"])).unwrap();
    near(joules(&imported), 1_980.0, "ipmitool");
    // Damaged rows beside them count as they did, among the rows of the mapped quantity.
    let damaged = rounds("time,Name,Reading,Units", &["PWR_IN,9x0,W", "PWR_IN,90x,W", "PWR_IN,900,W", "Inlet,25,Cel"]);
    assert!(read(&damaged, &redfish).unwrap_err().contains("is not a number"));
    let all = rounds("time,Name,Reading,Units", &["Inlet,25,C", "Counter,45,kJ"]);
    assert!(read(&all, &redfish).unwrap_err().contains("its unit, \"C\", is not one of power_watts"));
}

#[test]
fn texts_of_several_quantities_make_a_table_long() {
    for (column, power, other) in [
        ("key", "system/gpu_0_power_usage_watts", "system/gpu_0_utilization_percentage"),
        ("key", "system/gpu_0_power_usage_watts", "system/gpu_0_memory_usage_megabytes"),
        ("topic", "rack/pdu1/power", "rack/pdu1/voltage"),
        ("entity_id", "sensor.plug_power", "sensor.plug_energy"),
        ("what", "gpu_draw_watts", "gpu_temperature"),
    ] {
        let text = rounds(&format!("time,{column},value"), &[&format!("{power},300"), &format!("{other},97")]);
        let error = read(&text, &maps(&["power_watts=value"])).unwrap_err();
        let expected = format!("t.csv:3: column {column:?}: names readings of several kinds, such as {power:?} and {other:?}");
        assert!(error.starts_with(&expected) && error.contains("keep the rows of power only"), "{error}");
    }
    for (column, texts) in [
        ("limiter", ["power", "temperature"]),
        ("bottleneck", ["power", "memory"]),
        ("reason", ["sw_power_cap", "hw_thermal_temperature"]),
        ("x", ["power brake", "temperature"]),
    ] {
        let text =
            rounds(&format!("time,{column},value"), &texts.map(|text| format!("{text},300")).each_ref().map(String::as_str));
        let imported = read(&text, &maps(&["power_watts=value"]));
        assert!(imported.is_ok(), "{column}: {:?}", imported.err());
    }
}

#[test]
fn rows_of_another_quantity_by_the_name_of_the_board_are_no_power_whatever_the_unit() {
    let mapped =
        |unit: &str| ImportOptions { meter: Some(Meter::Wall), ..maps(&["device=metric", &format!("power_watts=value{unit}")]) };
    let table = |names: [&str; 2]| rounds("time,metric,value", &[&format!("{},300", names[0]), &format!("{},97", names[1])]);
    for names in [
        ["plug_power", "plug_voltage"],
        ["plug_power", "plug_energy"],
        ["sensor.tasmota_energy_power", "sensor.tasmota_energy_today"],
        ["switch 1 power", "switch 1 energy"],
        ["ups_active_power", "ups_apparent_power"],
        ["gpu0.power", "gpu0.temperature"],
        ["gpu_0_power_watts", "gpu_0_utilization_percentage"],
        ["gpu_0_power_watts", "gpu_0_memory_usage_megabytes"],
        ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"],
        ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"],
        ["power_draw", "utilization_gpu"],
    ] {
        for unit in ["", ":W"] {
            let error = read(&table(names), &mapped(unit)).map(|imported| joules(&imported)).unwrap_err();
            let expected = format!("names readings of several kinds, such as {:?} and {:?}", names[0], names[1]);
            assert!(error.contains(&expected) && error.contains("keep the rows of power only"), "{unit}: {error}");
        }
    }
    for names in [
        ["db-server", "temp-server"],
        ["temp-server power", "db-server power"],
        ["Main power", "Energy meter 1"],
        ["shelly_power", "tapo_current_consumption"],
    ] {
        let imported = read(&table(names), &mapped(":W")).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        assert_eq!((imported.report.boards.len(), imported.report.refused.len()), (2, 0), "{names:?}");
    }
    let limit = read(&table(["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_MGMT_LIMIT"]), &mapped(":W")).unwrap();
    near(joules(&limit), 2_700.0, "the power, and not its limit");
    assert_eq!(limit.report.refused.iter().map(|refused| refused.lines).sum::<u64>(), 10);
    let wide = rounds("time,plug_power,plug_voltage", &["300,230"]);
    let error = read(&wide, &maps(&["power_watts=plug_{x}:W"])).map(|imported| joules(&imported)).unwrap_err();
    assert!(error.contains("column \"plug_voltage\" is by its name no power, as \"power\" is"), "{error}");
}

#[test]
fn a_comment_below_the_header_may_have_the_units() {
    let rows = |row: &str| {
        let of_second = |second: u32| format!("2025-02-03T10:00:0{second}Z{row}\n");
        (0..10).map(of_second).collect::<String>()
    };
    let read = |text: &str, map: &str| {
        let options = ImportOptions { meter: Some(Meter::Node), ..maps(&[map]) };
        read(text, &options).map(|imported| (joules(&imported), imported.report.skipped.clone()))
    };
    for (what, head, row, joules) in [
        ("in brackets", "# time power\n# [s] [kW]\n", " 30.5", 274_500.0),
        ("without", "#time power\n#iso mW\n", " 30500", 274.5),
        ("of a header that is none", "time,power\n# s,kW\n", ",30.5", 274_500.0),
        ("what is no unit", "time,power\n# all,good\n", ",30.5", 274.5),
        ("a note with a word", "time,power\n# start, MW\n", ",30.5", 274.5),
        ("a note of one cell", "time,power\n# ,kW\n", ",30.5", 274.5),
        ("one in brackets", "time,power\n# ,[kW]\n", ",30.5", 274_500.0),
        ("of other cells", "time,power\n# kW\n", ",30.5", 274.5),
    ] {
        let (got, skipped) =
            read(&format!("{head}{}", rows(row)), "power_watts=power").unwrap_or_else(|error| panic!("{what}: {error}"));
        near(got, joules, what);
        assert_eq!(skipped.iter().map(|skipped| skipped.lines).sum::<u64>(), 1, "{what}: {skipped:?}");
    }
    let error = read(&format!("time,power_mW\n# s,W\n{}", rows(",30500")), "power_watts=power_mW").unwrap_err();
    assert!(error.starts_with("t.csv:2: ") && error.contains("the header gives mW, the row of units below it W"), "{error}");
}
