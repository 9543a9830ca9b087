//! Event logs: written, read back, cut and damaged.

use base64::Engine as _;
use eadt_recordings::{Compression, LogChunk, LogChunks, LogReader, LogWriter};
use eadt_schemas::{EventTime, LoggedEvent, Topic};
use eadt_testing::cases;
use proptest::prelude::*;
use serde_json::value::RawValue;

fn event(number: i64) -> LoggedEvent {
    LoggedEvent {
        specversion: "1.0".to_owned(),
        kind: "io.eadt.gpu.telemetry.v1".to_owned(),
        // With an escape, and without: two ways to read it.
        source: if number % 3 == 0 { "/collector/n1" } else { "/collector/n\"1" }.to_owned(),
        id: format!("id-{number}"),
        time: EventTime::from_micros(1_700_000_000_000_000 + number),
        subject: "lab/bert".to_owned(),
        datacontenttype: "application/json".to_owned(),
        key: Some("lab/bert".to_owned()),
        topic: (number % 2 == 0).then_some(Topic::GpuTelemetry),
        partition: Some(3),
        offset: Some(number),
        stamp: None,
        is_sent_again: false,
        input_positions: None,
        settings: None,
        reason: None,
        detail: None,
        data: Some(RawValue::from_string(format!("{{\"power_watts\":\n {number}.5}}")).unwrap()),
    }
}

fn log(count: i64, compression: Compression) -> Vec<u8> {
    let mut writer = LogWriter::new(Vec::new(), compression).unwrap();
    for number in 0..count {
        writer.write(&event(number)).unwrap();
    }
    assert_eq!(writer.events(), count as u64);
    writer.finish().unwrap()
}

#[test]
fn a_mark_of_a_record_that_was_sent_again_comes_back() {
    for is_sent_again in [false, true] {
        let mut writer = LogWriter::new(Vec::new(), Compression::None).unwrap();
        writer.write(&LoggedEvent { is_sent_again, ..event(2) }).unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes).contains("\"eadtsentagain\":true"), is_sent_again);
        let mut reader = LogReader::new("a.jsonl", bytes.as_slice()).unwrap();
        let got = reader.next_event().unwrap().unwrap();
        assert_eq!((got.is_sent_again, got.to_logged().unwrap().is_sent_again), (is_sent_again, is_sent_again));
    }
}

#[test]
fn comes_back_as_it_was_written() {
    for compression in [Compression::None, Compression::Zstd] {
        let bytes = log(500, compression);
        let mut reader = LogReader::new("a.jsonl", bytes.as_slice()).unwrap();
        for number in 0..500 {
            let expected = event(number);
            let got = reader.next_event().unwrap().unwrap();
            assert_eq!(got.topic(), Some(Topic::GpuTelemetry));
            assert_eq!((got.id.as_ref(), got.source.as_ref()), (expected.id.as_str(), expected.source.as_str()));
            assert_eq!((got.time, got.offset, got.key.as_deref()), (expected.time, Some(number), Some("lab/bert")));
            let owned = got.to_logged().unwrap();
            // The line break inside the data is a blank now; nothing else changed.
            assert_eq!(owned.data.unwrap().get(), expected.data.unwrap().get().replace('\n', " "));
        }
        assert!(reader.next_event().unwrap().is_none());
        assert_eq!(reader.events(), 500);
    }
    assert_eq!(Compression::of_name("a/b.jsonl.zst"), Compression::Zstd);
    assert_eq!(Compression::of_name("a.zst/b.jsonl"), Compression::None);
}

#[test]
fn a_cut_log_is_reported_with_the_place_and_what_is_good() {
    let bytes = log(10, Compression::None);
    let cut = &bytes[..bytes.len() - 20];
    let mut reader = LogReader::new("cut.jsonl", cut).unwrap();
    for _ in 0..9 {
        reader.next_event().unwrap().unwrap();
    }
    let error = reader.next_event().unwrap_err();
    let lines: usize = cut.split(|byte| *byte == b'\n').take(9).map(|line| line.len() + 1).sum();
    assert_eq!((error.line, error.good, error.offset), (10, 9, lines as u64));
    assert!(error.to_string().contains("ends in the middle of an event"), "{error}");
    assert!(error.cut && !error.can_go_on);
    assert!(reader.next_event().unwrap().is_none());
    // A last line that lacks only its line break is whole.
    let mut reader = LogReader::new("whole.jsonl", &bytes[..bytes.len() - 1]).unwrap();
    while reader.next_event().unwrap().is_some() {}
    assert_eq!(reader.events(), 10);
}

#[test]
fn a_log_that_was_cut_anywhere_is_read_up_to_its_last_whole_event() {
    let array = serde_json::to_vec_pretty(&(0..10).map(event).collect::<Vec<_>>()).unwrap();
    let plain = log(10, Compression::None);
    let whole = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).count() as u64;
    for (name, bytes) in [("a.jsonl", &plain), ("a.json", &array)] {
        for cut in (1..bytes.len()).step_by(37) {
            let mut reader = LogReader::new(name, &bytes[..cut]).unwrap();
            let ended = loop {
                match reader.next_event() {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            assert!(ended.as_ref().is_none_or(|error| error.cut), "{name} cut at {cut}: {ended:?}");
            if name == "a.jsonl" {
                let good = whole(&bytes[..cut]);
                assert!(reader.events() == good || ended.is_none() && reader.events() == good + 1, "{name} cut at {cut}");
            }
        }
    }
    let packed = log(4_000, Compression::Zstd);
    for cut in [5, 30, packed.len() / 3, packed.len() / 2, packed.len() - 1] {
        let mut reader = match LogReader::new("a.jsonl.zst", &packed[..cut]) {
            Ok(reader) => reader,
            Err(error) => {
                assert!(error.cut, "cut at {cut}: {error}");
                continue;
            }
        };
        let error = loop {
            match reader.next_event() {
                Ok(event) => assert!(event.is_some(), "cut at {cut}: the end must not be silent"),
                Err(error) => break error,
            }
        };
        assert!(error.cut, "cut at {cut}: {error}");
        assert!(cut < packed.len() / 3 || error.good > 500, "cut at {cut}: {} are good", error.good);
    }
    // Damage is another thing.
    let mut broken = packed.clone();
    let middle = broken.len() / 2;
    broken[middle..middle + 64].fill(0xa5);
    let mut reader = LogReader::new("a.jsonl.zst", broken.as_slice()).unwrap();
    let error = loop {
        match reader.next_event() {
            Ok(event) => assert!(event.is_some()),
            Err(error) if error.can_go_on => {}
            Err(error) => break error,
        }
    };
    assert!(!error.cut, "{error}");
}

#[test]
fn an_event_without_a_time_has_that_of_its_data() {
    let event =
        |data: &str| format!(r#"{{"specversion":"1.0","type":"io.eadt.gpu.telemetry.v1","source":"/s","id":"1","data":{data}}}"#);
    let with = event(r#"{"time":"2026-01-01T00:00:05Z","device":"a"}"#);
    let mut reader = LogReader::new("a", with.as_bytes()).unwrap();
    assert_eq!(reader.next_event().unwrap().unwrap().time.to_string(), "2026-01-01T00:00:05.000000Z");
    for data in ["{}", "null", "[1]", r#"{"time":"yesterday"}"#] {
        let error = LogReader::new("a", event(data).as_bytes()).unwrap().next_event().unwrap_err();
        assert!(error.problem.contains("missing field `time`"), "{data}: {error}");
    }
}

#[test]
fn blank_lines_without_end_are_no_event_log() {
    let lines = "more than 4000000 lines";
    for (text, problem) in [("\n", lines), (" \n\r\n", lines), ("[,", "blank lines"), (" ", "longer than 16 MiB")] {
        let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        let block = text.repeat((1 << 20) / text.len());
        for _ in 0..20 {
            std::io::Write::write_all(&mut packed, block.as_bytes()).unwrap();
        }
        let packed = packed.finish().unwrap();
        assert!(packed.len() < 100_000, "{}", packed.len());
        let error = LogReader::new("a.jsonl.zst", packed.as_slice()).unwrap().next_event().unwrap_err();
        assert!(error.problem.contains(problem) && !error.can_go_on, "{text:?}: {error}");
    }
}

#[test]
fn a_damaged_line_can_be_passed_a_damaged_frame_cannot() {
    let text = String::from_utf8(log(3, Compression::None)).unwrap().replace("\"id-1\"", "\"id-1");
    let mut reader = LogReader::new("a.jsonl", text.as_bytes()).unwrap();
    assert!(reader.next_event().unwrap().is_some());
    let error = reader.next_event().unwrap_err();
    assert!(error.can_go_on && error.line == 2 && error.good == 1, "{error}");
    assert_eq!(reader.next_event().unwrap().unwrap().id, "id-2");

    let mut packed = log(20_000, Compression::Zstd);
    packed.truncate(packed.len() / 2);
    let mut reader = LogReader::new("a.jsonl.zst", packed.as_slice()).unwrap();
    let error = loop {
        match reader.next_event() {
            Ok(event) => assert!(event.is_some(), "the end must not be silent"),
            Err(error) => break error,
        }
    };
    assert!(!error.can_go_on && error.good > 0 && error.problem.contains("truncated or damaged"), "{error}");
    assert!(reader.next_event().unwrap().is_none());
}

#[test]
fn reads_arrays_and_spread_objects_too() {
    let events: Vec<LoggedEvent> = (0..3).map(event).collect();
    let batch = serde_json::to_string_pretty(&events).unwrap();
    let spread: String = events.iter().map(|event| serde_json::to_string_pretty(event).unwrap() + "\n").collect();
    for text in [&batch, &spread] {
        let mut reader = LogReader::new("a.json", text.as_bytes()).unwrap();
        let mut ids = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            ids.push(event.id.to_string());
        }
        assert_eq!(ids, ["id-0", "id-1", "id-2"]);
    }
    let mut reader = LogReader::new("a.json", &batch.as_bytes()[..batch.len() - 40]).unwrap();
    reader.next_event().unwrap();
    reader.next_event().unwrap();
    assert!(reader.next_event().unwrap_err().to_string().contains("ends in the middle"));
}

#[test]
fn a_log_in_utf_16_is_read() {
    let events: Vec<LoggedEvent> = (0..3).map(event).collect();
    let lines = String::from_utf8(log(3, Compression::None)).unwrap().replace('\n', "\r\n");
    let batch = serde_json::to_string_pretty(&events).unwrap();
    for text in [&lines, &batch] {
        for (mark, big_endian) in [("\u{feff}", false), ("\u{feff}", true), ("", false), ("", true)] {
            let units = mark.encode_utf16().chain(text.encode_utf16());
            let bytes: Vec<u8> =
                units.flat_map(|unit| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect();
            let mut reader = LogReader::new("a.jsonl", bytes.as_slice()).unwrap();
            let mut ids = Vec::new();
            while let Some(event) = reader.next_event().unwrap() {
                ids.push(event.id.to_string());
            }
            assert_eq!(ids, ["id-0", "id-1", "id-2"], "{mark:?} {big_endian}");
        }
    }
}

#[test]
fn data_in_base64_is_the_value() {
    let data = "{\"power_watts\":1.5}";
    let plain = LoggedEvent { data: Some(RawValue::from_string(data.to_owned()).unwrap()), ..event(1) };
    let plain = serde_json::to_string(&plain).unwrap();
    let encoded = base64::engine::general_purpose::STANDARD.encode(data);
    let text = plain.replace(&format!("\"data\":{data}"), &format!("\"data_base64\":\"{encoded}\""));
    let value =
        |text: &str| LogReader::new("x", text.as_bytes()).unwrap().next_event().unwrap().unwrap().value().map(<[u8]>::to_vec);
    assert_eq!(value(&text), value(&plain));
    assert!(value(&plain).is_some_and(|value| value.starts_with(b"{")));
    assert_eq!(value(&text.replace(&encoded, "%")), Some(Vec::new()), "damaged, and no tombstone");
}

#[test]
fn what_programs_print_of_records_is_named() {
    let event = "{\"specversion\":\"1.0\",\"type\":\"io.eadt.gpu.telemetry.v1\",\"data\":{}}";
    for (what, text, part) in [
        ("a key", format!("lab/x\t{event}\n"), "with its key or time before its value"),
        ("a time", format!("CreateTime:1738576800000\tlab/x\t{event}\n"), "with its key or time before its value"),
        (
            "kcat",
            "{\"topic\":\"eadt.gpu.telemetry.v1\",\"partition\":0,\"offset\":1,\"key\":\"lab/x\",\"payload\":\"{}\"}\n"
                .to_owned(),
            "as kcat prints it",
        ),
        (
            "no headers",
            "{\"time\": \"2025-02-03T10:00:00Z\", \"device\": \"GPU-1\", \"collector\": \"n1\"}\n".to_owned(),
            "without its headers",
        ),
    ] {
        let error = LogReader::new("x", text.as_bytes()).unwrap().next_event().unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("eadt record"), "{what}: {error}");
    }
    let table = LogReader::new("x", "time\tpower\n".as_bytes()).unwrap().next_event().unwrap_err().to_string();
    assert!(!table.contains("eadt record"), "{table}");
}

#[test]
fn what_is_no_event_is_refused_without_eating_memory() {
    for (text, part) in
        [("{\"a\":1}\n", "not a CloudEvents"), ("\u{0}\n", "not a CloudEvents"), ("[1]", "where an event should begin")]
    {
        let error = LogReader::new("x", text.as_bytes()).unwrap().next_event().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let endless = std::io::Read::take(std::io::repeat(b'a'), 64 << 20);
    let error = LogReader::new("x", endless).unwrap().next_event().unwrap_err();
    assert!(error.problem.contains("longer than 16 MiB") && !error.can_go_on, "{error}");
    let deep = "[".repeat(100_000);
    let line = format!("{{\"type\":\"t\",\"time\":\"2023-11-16T18:17:03Z\",\"data\":{deep}\n");
    assert!(LogReader::new("x", line.as_bytes()).unwrap().next_event().is_err());
}

/// Gives its bytes in pieces of the wrong sizes.
struct Pieces<'a> {
    rest: &'a [u8],
    sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

impl std::io::Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let size = self.sizes.next().copied().unwrap_or(1).min(into.len()).min(self.rest.len());
        into[..size].copy_from_slice(&self.rest[..size]);
        self.rest = &self.rest[size..];
        Ok(size)
    }
}

/// What is read of a log: its events, and its errors as text.
type ReadResults = Vec<Result<LoggedEvent, String>>;

fn one_by_one(bytes: &[u8]) -> ReadResults {
    let mut results = Vec::new();
    let mut reader = LogReader::new("l", bytes).unwrap();
    loop {
        match reader.next_event() {
            Ok(None) => return results,
            Ok(Some(event)) => results.push(Ok(event.to_logged().unwrap())),
            Err(error) => results.push(Err(error.to_string())),
        }
    }
}

/// The same through chunks, each event first as it seems to be.
fn in_chunks(reader: impl std::io::Read) -> (ReadResults, usize) {
    let mut results = Vec::new();
    let mut chunks = LogChunks::new("l", reader).unwrap();
    let mut chunk = LogChunk::default();
    let (mut lines, mut good, mut count) = (0, 0, 0);
    loop {
        match chunks.next(&mut chunk) {
            Ok(true) => count += 1,
            Ok(false) => return (results, count),
            Err(error) => {
                results.push(Err(error.offset_by(lines, good).to_string()));
                continue;
            }
        }
        while chunk.advance() {
            let likely = chunk
                .likely_event()
                .and_then(|event| event.to_logged().ok())
                .filter(|event| event.data.as_ref().is_some_and(|data| data.get().starts_with('{')));
            if let Some(event) = likely {
                chunk.count_good();
                results.push(Ok(event));
                continue;
            }
            match chunk.event() {
                Ok(event) => results.push(Ok(event.to_logged().unwrap())),
                Err(error) => results.push(Err(error.offset_by(lines, good).to_string())),
            }
        }
        lines += chunk.lines();
        good += chunk.good_count();
    }
}

/// `LoggedEvent` compares by what it would be written as.
fn written(results: &ReadResults) -> Vec<String> {
    results
        .iter()
        .map(|result| result.as_ref().map_or_else(Clone::clone, |event| serde_json::to_string(event).unwrap()))
        .collect()
}

#[test]
fn a_log_of_many_chunks_reads_the_same() {
    for compression in [Compression::None, Compression::Zstd] {
        let bytes = log(5_000, compression);
        let (results, chunks) = in_chunks(bytes.as_slice());
        assert!(chunks > 3, "{chunks}");
        assert_eq!(results.len(), 5_000);
        assert_eq!(written(&results), written(&one_by_one(&bytes)));
    }
    // Damage behind the first chunk is reported with what was good before it, over all chunks.
    let mut text = log(5_000, Compression::None);
    let at = text.len() - 100;
    text.truncate(at);
    let (results, _) = in_chunks(text.as_slice());
    assert_eq!(written(&results), written(&one_by_one(&text)));
    let error = results.last().unwrap().as_ref().unwrap_err();
    assert!(error.contains("4999 events before it are good") && error.contains("l:5000 "), "{error}");
    let mut packed = log(20_000, Compression::Zstd);
    packed.truncate(packed.len() / 2);
    let (results, _) = in_chunks(packed.as_slice());
    assert_eq!(written(&results), written(&one_by_one(&packed)));
    assert!(results.last().unwrap().as_ref().unwrap_err().contains("truncated or damaged"));
}

proptest! {
    #![proptest_config(cases(40))]

    /// However the bytes arrive and whatever is between the events.
    #[test]
    fn chunks_return_what_the_reader_returns(
        parts in proptest::collection::vec((0..9_usize, 1..40_i64), 0..40),
        sizes in proptest::collection::vec(1..70_000_usize, 1..6),
        array in any::<bool>(),
    ) {
        let mut text = if array { b"[".to_vec() } else { Vec::new() };
        for (kind, count) in parts {
            match kind {
                0..=4 => text.extend(log(count, Compression::None)),
                5 => text.extend_from_slice(b"\n \r\n"),
                6 => text.extend_from_slice(b"{\"no\":\"event\"}\n"),
                7 => text.extend(log(1, Compression::None).iter().take(count as usize * 10)),
                _ => text.extend_from_slice(br#"{"specversion":"1.0","type":"t","source":"s","id":"i","time":"2023-11-14T22:13:20.000000Z","data":{"a":{}},"subject":"x"}"#),
            }
        }
        let pieces = Pieces { rest: &text, sizes: sizes.iter().cycle() };
        prop_assert_eq!(written(&in_chunks(pieces).0), written(&one_by_one(&text)));
    }
}
