//! How fast an event log is read: `cargo bench -p eadt-recordings`.
#![allow(clippy::disallowed_methods, reason = "a benchmark looks at the clock")]

use std::time::Instant;

use eadt_recordings::{Compression, LogReader, LogWriter};
use eadt_schemas::{EventTime, LoggedEvent};
use serde_json::value::RawValue;

const EVENTS: i64 = 500_000;

fn main() {
    for (name, compression) in [("jsonl", Compression::None), ("jsonl.zst", Compression::Zstd)] {
        let began = Instant::now();
        let mut writer = LogWriter::new(Vec::new(), compression).expect("a writer");
        for number in 0..EVENTS {
            writer.write(&event(number)).expect("written");
        }
        let log = writer.finish().expect("complete");
        let written = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let mut reader = LogReader::new(name, log.as_slice()).expect("a reader");
        let mut bytes = 0;
        while let Some(event) = reader.next_event().expect("good") {
            bytes += event.value().map_or(0, <[u8]>::len);
        }
        let read = began.elapsed().as_secs_f64();
        println!(
            "{name}: write {:.2} M events/s, read {:.2} M events/s ({} bytes of values, {} bytes of log)",
            EVENTS as f64 / written / 1e6,
            EVENTS as f64 / read / 1e6,
            bytes,
            log.len()
        );
    }
}

fn event(number: i64) -> LoggedEvent {
    let time = EventTime::from_micros(1_700_000_000_000_000 + number * 12_500);
    let data = format!(
        "{{\"time\":\"{time}\",\"workload\":\"eadt/llm-training\",\"device\":\"GPU-{:08x}-1111-2222-3333-444455556666\",\
         \"collector\":\"node-1\",\"meter\":\"gpu\",\"origin\":\"simulated\",\"power_watts\":{}.25,\
         \"energy_joules_total\":{}.125,\"utilization_ratio\":0.93,\"sm_clock_mhz\":1410.0,\"temperature_celsius\":61.0}}",
        number % 8,
        250 + number % 50,
        number
    );
    LoggedEvent {
        specversion: "1.0".to_owned(),
        kind: "io.eadt.gpu.telemetry.v1".to_owned(),
        source: "/collector/node-1".to_owned(),
        id: format!("node-1:{number}"),
        time,
        subject: "eadt/llm-training".to_owned(),
        datacontenttype: "application/json".to_owned(),
        key: Some("eadt/llm-training".to_owned()),
        topic: None,
        partition: Some(3),
        offset: Some(number),
        stamp: Some(time),
        is_sent_again: false,
        input_positions: None,
        settings: None,
        reason: None,
        detail: None,
        data: Some(RawValue::from_string(data).expect("JSON")),
    }
}
