//! Event logs: written, read back, cut and damaged.

use eadt_recordings::{Chunk, Compression, LogChunks, LogReader, LogWriter};
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
fn a_cut_log_says_where_and_what_is_good() {
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
    assert!(reader.next_event().unwrap().is_none());
    // A last line that lacks only its line break is whole.
    let mut reader = LogReader::new("whole.jsonl", &bytes[..bytes.len() - 1]).unwrap();
    while reader.next_event().unwrap().is_some() {}
    assert_eq!(reader.events(), 10);
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

/// What a log says: its events, and its errors as text.
type Said = Vec<Result<LoggedEvent, String>>;

fn one_by_one(bytes: &[u8]) -> Said {
    let mut said = Vec::new();
    let mut reader = LogReader::new("l", bytes).unwrap();
    loop {
        match reader.next_event() {
            Ok(None) => return said,
            Ok(Some(event)) => said.push(Ok(event.to_logged().unwrap())),
            Err(error) => said.push(Err(error.to_string())),
        }
    }
}

/// The same through chunks, each event first as it seems to be.
fn in_chunks(reader: impl std::io::Read) -> (Said, usize) {
    let mut said = Vec::new();
    let mut chunks = LogChunks::new("l", reader).unwrap();
    let mut chunk = Chunk::default();
    let (mut lines, mut good, mut count) = (0, 0, 0);
    loop {
        match chunks.next(&mut chunk) {
            Ok(true) => count += 1,
            Ok(false) => return (said, count),
            Err(error) => {
                said.push(Err(error.after(lines, good).to_string()));
                continue;
            }
        }
        while chunk.advance() {
            let likely = chunk
                .likely_event()
                .and_then(|event| event.to_logged().ok())
                .filter(|event| event.data.as_ref().is_some_and(|data| data.get().starts_with('{')));
            if let Some(event) = likely {
                chunk.accept();
                said.push(Ok(event));
                continue;
            }
            match chunk.event() {
                Ok(event) => said.push(Ok(event.to_logged().unwrap())),
                Err(error) => said.push(Err(error.after(lines, good).to_string())),
            }
        }
        lines += chunk.lines();
        good += chunk.good();
    }
}

/// `LoggedEvent` compares by what it would be written as.
fn written(said: &Said) -> Vec<String> {
    said.iter().map(|said| said.as_ref().map_or_else(Clone::clone, |event| serde_json::to_string(event).unwrap())).collect()
}

#[test]
fn a_log_of_many_chunks_reads_the_same() {
    for compression in [Compression::None, Compression::Zstd] {
        let bytes = log(5_000, compression);
        let (said, chunks) = in_chunks(bytes.as_slice());
        assert!(chunks > 3, "{chunks}");
        assert_eq!(said.len(), 5_000);
        assert_eq!(written(&said), written(&one_by_one(&bytes)));
    }
    // Damage behind the first chunk is told with what was good before it, over all chunks.
    let mut text = log(5_000, Compression::None);
    let at = text.len() - 100;
    text.truncate(at);
    let (said, _) = in_chunks(text.as_slice());
    assert_eq!(written(&said), written(&one_by_one(&text)));
    let error = said.last().unwrap().as_ref().unwrap_err();
    assert!(error.contains("the 4999 event(s) before it are good") && error.contains("l:5000 "), "{error}");
    let mut packed = log(20_000, Compression::Zstd);
    packed.truncate(packed.len() / 2);
    let (said, _) = in_chunks(packed.as_slice());
    assert_eq!(written(&said), written(&one_by_one(&packed)));
    assert!(said.last().unwrap().as_ref().unwrap_err().contains("truncated or damaged"));
}

proptest! {
    #![proptest_config(cases(40))]

    /// However the bytes arrive and whatever stands between the events.
    #[test]
    fn chunks_say_what_the_reader_says(
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
