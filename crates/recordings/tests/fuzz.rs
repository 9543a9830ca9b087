//! Nothing that a file may hold makes the readers panic, and what they accept is in order and within the schema.

use std::time::Duration;

use eadt_recordings::{ImportOptions, LogReader, RecordingFile, RecordingFormat, TimeFormat, import};
use eadt_testing::cases;
use proptest::prelude::*;

fn options(format: RecordingFormat) -> ImportOptions {
    let maps = ["power_watts=w:mW", "samples=*", "tokens=n", "loss=#1"];
    ImportOptions {
        maps: if format == RecordingFormat::Csv { maps.iter().map(|map| map.parse().unwrap()).collect() } else { Vec::new() },
        interval: (format == RecordingFormat::Dcgmi).then_some(Duration::from_millis(20)),
        time_format: (format == RecordingFormat::Csv).then_some(TimeFormat::Unix),
        ..ImportOptions::default()
    }
}

fn survives(format: RecordingFormat, bytes: &[u8]) {
    if let Ok(imported) = import(format, vec![RecordingFile::new("f", bytes)], &options(format)) {
        let events: Vec<_> = imported.events().collect();
        assert_eq!(events.len() as u64, imported.report.events);
        assert!(events.is_sorted_by_key(|event| event.time));
        assert!(!imported.report.to_string().is_empty());
    }
}

fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("time,w,n\n".to_owned()),
        Just("timestamp, index, power.draw [W]\n".to_owned()),
        Just("# Entity POWER TOTEC\n".to_owned()),
        Just("GPU 0 ".to_owned()),
        Just(":::MLLOG ".to_owned()),
        Just("{\"time_ms\": 1700000000000, \"key\": \"run_start\"}\n".to_owned()),
        Just("{\"time_ms\": 1700000000001, \"key\": \"run_stop\"}\n".to_owned()),
        Just("{\"time_ms\": 1e300, \"key\": \"power_reading\", \"value\": 5}\n".to_owned()),
        Just("{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[]}}".to_owned()),
        Just("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\\\"\",x=".to_owned()),
        Just("Time,07-12-2024 23:12:12.830,Watts,".to_owned()),
        Just("1700000000,".to_owned()),
        Just("\n".to_owned()),
        Just("\"".to_owned()),
        Just("}".to_owned()),
        "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e[0-9]{1,3})?",
        "[ -~]{0,12}",
        "\\PC{0,4}",
    ]
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for format in RecordingFormat::ALL {
            survives(format, &bytes);
        }
        let Ok(mut reader) = LogReader::new("l", bytes.as_slice()) else { return Ok(()) };
        for _ in 0..1000 {
            if let Ok(None) = reader.next_event() {
                return Ok(());
            }
        }
        prop_assert!(false, "the reader does not end");
    }

    #[test]
    fn likely_texts(parts in proptest::collection::vec(fragment(), 0..40)) {
        let text = parts.concat();
        for format in RecordingFormat::ALL {
            survives(format, text.as_bytes());
        }
    }
}
