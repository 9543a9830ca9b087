//! Progress in tables of several boards and nodes: whether it is that of the whole job, or that of each of them.

use eadt_recordings::{FileSetKind, ImportOptions, RecordingFormat};

use crate::support::{maps, progress, read_texts as read};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// A table of two boards at the same times, each row with an id of the board and a figure of the job.
fn table(header: &str, ids: [&str; 2], figure: impl Fn(usize, u32) -> f64) -> String {
    let row = |row: u32, board: usize| {
        let (minute, second) = (row / 12, row % 12 * 5);
        format!("2025-02-03T10:{minute:02}:{second:02}Z,{},{},{}\n", ids[board], 250 + 70 * board, figure(board, row))
    };
    let rows = (0..60).flat_map(|number| [row(number, 0), row(number, 1)]);
    format!("{header}\n{}", rows.collect::<String>())
}

#[test]
fn progress_of_each_board_in_one_table_is_not_that_of_the_job() {
    let columns: [(&str, &[&str], [&str; 2]); 4] = [
        ("gpu", &["device=gpu"], ["0", "1"]),
        ("uuid", &["device=uuid"], ["GPU-0a4f", "GPU-1b5e"]),
        ("host,gpu", &["node=host", "device=gpu"], ["n0,0", "n1,0"]),
        ("host", &["node=host"], ["n0", "n1"]),
    ];
    for (header, ids, values) in columns {
        for field in ["samples_per_second", "tokens_per_second", "samples_total", "tokens_total", "steps_total"] {
            let is_rate = field.ends_with("second");
            let of = |factor: f64| {
                move |board: usize, row: u32| {
                    let own = if board == 0 { 1.0 } else { factor };
                    own * if is_rate { f64::from(100 + row % 3) } else { f64::from(320 * row) }
                }
            };
            let options = maps(&[ids, &["power_watts=power:W", &format!("{field}=x")]].concat());
            let import = |factor: f64| {
                let text = table(&format!("time,{header},power,x"), values, of(factor));
                read(CSV, &[("t.csv", &text)], &options)
            };
            for factor in [1.01, 1.25, 2.0] {
                let error = import(factor).unwrap_err();
                assert!(error.contains("have progress of their own") && error.contains("--files-are nodes"), "{header}: {error}");
            }
            let imported = import(1.0).unwrap_or_else(|error| panic!("{header} {field}: {error}"));
            let notes = imported.report.notes;
            assert!(notes.iter().any(|note| note.contains("all have the same progress")), "{header} {field}: {notes:?}");
        }
    }
}

#[test]
fn progress_in_the_rows_of_one_board_is_that_of_the_job() {
    let text = table("time,gpu,power,n", ["0", "1"], |_, row| f64::from(64 * row));
    let of_one: String = text
        .lines()
        .map(|line| if line.contains(",1,") { format!("{},\n", line.rsplit_once(',').unwrap().0) } else { format!("{line}\n") })
        .collect();
    let imported = read(CSV, &[("t.csv", &of_one)], &maps(&["device=gpu", "power_watts=power:W", "samples_total=n"])).unwrap();
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(64.0 * 59.0));
    assert!(!imported.report.notes.iter().any(|note| note.contains("progress")), "{:?}", imported.report.notes);
}

#[test]
fn boards_that_add_the_same_in_each_row_are_noted() {
    let import = |other: f64| {
        let text =
            table("time,gpu,power,n", ["0", "1"], |board, row| if board == 0 { 64.0 } else { 64.0 + other * f64::from(row % 5) });
        read(CSV, &[("t.csv", &text)], &maps(&["device=gpu", "power_watts=power:W", "samples=n"])).unwrap().report.notes
    };
    let is_noted = |notes: &[String]| notes.iter().any(|note| note.contains("rows of all add the same samples"));
    assert!(is_noted(&import(0.0)), "{:?}", import(0.0));
    assert!(!is_noted(&import(1.0)));
}

#[test]
fn a_pattern_takes_one_column_for_a_figure_of_the_job() {
    let text = "time,gpu0_w,gpu1_w,gpu0_x,gpu1_x\n2025-02-03T10:00:00Z,250,320,1,2\n2025-02-03T10:00:05Z,250,320,3,5\n";
    let import = |map: &[&str]| read(CSV, &[("t.csv", text)], &maps(&[&["power_watts=gpu{n}_w:W"], map].concat()));
    for field in ["samples_total", "tokens_total", "steps_total", "samples_per_second", "tokens_per_second"] {
        let error = import(&[&format!("{field}=gpu{{n}}_x")]).unwrap_err();
        assert!(error.contains(&format!("map their sum: --map {field}=gpu0_x+gpu1_x")), "{error}");
        let error = import(&[&format!("{field}=gpu0_x"), &format!("{field}=gpu1_x")]).unwrap_err();
        assert!(error.contains(&format!("--map {field}=gpu0_x+gpu1_x")), "{error}");
    }
    let error = import(&["loss=gpu{n}_x"]).unwrap_err();
    assert!(error.ends_with("map one of them: --map loss=gpu0_x"), "{error}");
    let imported = import(&["samples_total=gpu0_x+gpu1_x"]).unwrap();
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(8.0));
    let imported = import(&["samples=gpu{n}_x"]).unwrap();
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(11.0), "what rows add is summed");
}

#[test]
fn rates_of_several_files_are_of_ranks_or_of_one_job() {
    let log = |millis: u32, rate: u32| {
        let row = |row: u32| format!("2025-02-03T10:00:{:02}.{millis:03}Z,{}\n", row * 5, rate + row % 3);
        format!("time,x\n{}", (0..12).map(row).collect::<String>())
    };
    let import = |a: &str, b: &str, files_are| {
        let options = ImportOptions { files_are, ..maps(&["samples_per_second=x"]) };
        read(CSV, &[("n0.csv", a), ("n1.csv", b)], &options)
    };
    for millis in [0, 300] {
        let error = import(&log(0, 100), &log(millis, 200), None).unwrap_err();
        assert!(error.starts_with("n1.csv:2: samples_per_second is counted over the same time in n0.csv"), "{error}");
        let ranks = progress(&import(&log(0, 100), &log(millis, 200), Some(FileSetKind::Nodes)).unwrap());
        let mean = |rank: u32| {
            let own: Vec<f64> = ranks.iter().filter(|row| row.rank == rank).filter_map(|row| row.samples_per_second).collect();
            own.iter().sum::<f64>() / own.len() as f64
        };
        assert_eq!([mean(0), mean(1)], [101.0, 201.0], "{millis}");
        for files_are in [None, Some(FileSetKind::Nodes)] {
            let one = progress(&import(&log(0, 100), &log(millis, 100), files_are).unwrap());
            assert!(one.iter().all(|row| row.rank == 0 && row.samples_per_second < Some(103.0)), "{millis} {files_are:?}");
        }
    }
}

#[test]
fn a_rank_that_rises_by_a_percent_more_counts_on_its_own() {
    let text = table("time,rank,power,n", ["0", "1"], |board, row| f64::from(320 * row) * [1.0, 1.01][board]);
    let error = read(CSV, &[("t.csv", &text)], &maps(&["device=rank", "power_watts=power:W", "samples_total=n"])).unwrap_err();
    assert!(error.contains("--files-are nodes"), "{error}");
}
