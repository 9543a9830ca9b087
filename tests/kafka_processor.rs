//! The processor on Apache Kafka: records of a size that only a cluster lets through.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_bus::conformance::{outgoing, read_count, send_all};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::topics::{PartitionGrowthPolicy, apply, desired, plan, read_topics};
use eadt_bus::{Bus, ProducerRecord};
use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorError, ProcessorSettings, run_processor};
use eadt_schemas::v1::dead_letter_header as header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_tests::Kafka;
use eadt_tests::kafka::fetch_path;

const PREFIX: &str = "eadt.";
/// Compressed by gzip it is some 20 KB, which is what the broker counts.
const LARGE: usize = 20_000_000;

fn connect(kafka: &Kafka, properties: &[(&str, &str)]) -> KafkaBus {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    KafkaBus::connect(KafkaOptions { brokers: kafka.brokers(), properties, client_id: "tests".into(), fetch: fetch_path() })
        .unwrap()
}

#[test]
fn records_that_are_small_only_while_they_are_compressed_hold_no_partition_up() {
    let kafka = Kafka::start().unwrap();
    let bus = connect(&kafka, &[]);
    apply(&bus, &plan(&[], &desired(PREFIX, 1, 1), PartitionGrowthPolicy::Refuse)).unwrap();
    let name = |topic: Topic| -> Arc<str> { format!("{PREFIX}{topic}").into() };
    let telemetry = name(Topic::GpuTelemetry);
    let large = Bytes::from(vec![b'a'; LARGE]);
    let hostile = connect(&kafka, &[("compression.type", "gzip"), ("message.max.bytes", "30000000")]);
    let in_value = ProducerRecord { value: Some(large.clone()), ..outgoing(&telemetry, "lab/a", "") };
    let in_key = ProducerRecord { key: Some(large), ..outgoing(&telemetry, "", "not json") };
    send_all(&hostile, &[in_value, in_key, outgoing(&telemetry, "lab/a", "behind them")]);

    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let service = ProcessorDependencies {
        settings: ProcessorSettings { prefix: PREFIX.to_owned(), dead_letter_seconds: 0.0, ..ProcessorSettings::default() },
        bus: Arc::new(bus.clone()),
        // It does not move: nothing is quiet.
        clock: HeartbeatClock::new(|| EventTime::from_micros(0)),
        shutdown: shutdown.clone(),
        metrics,
        ready: health.part("processor"),
    };
    let processor = std::thread::spawn(move || run_processor(&service));
    let letters = read_count(&bus, &name(Topic::DeadLetters), 1, 3);
    shutdown.cancel();
    processor.join().unwrap().unwrap();

    let [value, key, behind] = &letters[..] else { panic!("{} dead letters", letters.len()) };
    let (length, hash) = ("20000000", "aded0ea9b4d06589b13d00bab483faf479d61ed5de21f1760aa7018a28e330e5");
    assert_eq!(value.value.as_deref(), Some(&*vec![b'a'; 65_536]));
    assert_eq!((value.header(header::ORIGIN_VALUE_BYTES), value.header(header::ORIGIN_VALUE_SHA256)), (Some(length), Some(hash)));
    assert_eq!(value.header(header::ORIGIN_KEY), Some("lab/a"));
    assert_eq!(key.value.as_deref(), Some(&b"not json"[..]));
    assert_eq!((key.header(header::ORIGIN_KEY_BYTES), key.header(header::ORIGIN_KEY_SHA256)), (Some(length), Some(hash)));
    assert_eq!(key.header(header::ORIGIN_KEY).map(str::len), Some(65_536));
    assert_eq!(behind.value.as_deref(), Some(&b"behind them"[..]));
    assert!(letters.iter().all(|letter| letter.header(header::REASON) == Some("malformed")));
    assert_eq!([value, key, behind].map(|letter| letter.header(header::ORIGIN_OFFSET)), [Some("0"), Some("1"), Some("2")]);
}

struct Running {
    thread: JoinHandle<Result<(), ProcessorError>>,
    shutdown: Shutdown,
    metrics: MetricsRegistry,
    health: HealthRegistry,
}

impl Running {
    fn start(bus: &KafkaBus, group: &str, instance: &str) -> Self {
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let service = ProcessorDependencies {
            settings: ProcessorSettings {
                prefix: PREFIX.to_owned(),
                group: group.to_owned(),
                instance: instance.to_owned(),
                dead_letter_seconds: 0.0,
                ..ProcessorSettings::default()
            },
            bus: Arc::new(bus.clone()),
            // It does not move: nothing is quiet.
            clock: HeartbeatClock::new(|| EventTime::from_micros(0)),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part("processor"),
        };
        Self { thread: std::thread::spawn(move || run_processor(&service)), shutdown, metrics, health }
    }

    fn stop(self) {
        self.shutdown.cancel();
        self.thread.join().unwrap().unwrap();
    }
}

#[test]
fn beside_a_processor_no_other_one_of_another_group_begins() {
    let kafka = Kafka::start().unwrap();
    let bus = connect(&kafka, &[]);
    apply(&bus, &plan(&[], &desired(PREFIX, 1, 1), PartitionGrowthPolicy::Refuse)).unwrap();
    let name = |topic: Topic| -> Arc<str> { format!("{PREFIX}{topic}").into() };
    let refused = |value: &str| send_all(&bus, &[outgoing(&name(Topic::GpuTelemetry), "lab/a", value)]);
    let first = Running::start(&bus, "processor", "processor-0");
    refused("one");
    read_count(&bus, &name(Topic::DeadLetters), 1, 1);

    // An instance name that others have, too: names are of a group.
    let second = Running::start(&bus, "processor-v2", "processor-0");
    let begun = Instant::now();
    let restarts =
        |text: &str| text.lines().find_map(|line| line.strip_prefix("eadt_processor_restarts_total ")?.parse::<u64>().ok());
    while restarts(&second.metrics.text()).is_none_or(|restarts| restarts == 0) {
        assert!(begun.elapsed() < Duration::from_mins(1), "it does not wait: {}", second.metrics.text());
        std::thread::sleep(Duration::from_millis(50));
    }
    refused("two");
    let letters = read_count(&bus, &name(Topic::DeadLetters), 1, 2);
    assert_eq!(letters.iter().map(|letter| letter.value.as_deref()).collect::<Vec<_>>(), [Some(&b"one"[..]), Some(&b"two"[..])]);
    assert_eq!((first.health.waiting().len(), second.health.waiting().len()), (0, 1), "the second one is not ready");
    second.stop();
    first.stop();
}

#[test]
fn an_input_that_was_deleted_and_made_anew_is_read_from_its_beginning() {
    let kafka = Kafka::start().unwrap();
    let bus = connect(&kafka, &[]);
    let apply_topics = || {
        let present = read_topics(&bus, PREFIX).unwrap();
        apply(&bus, &plan(&present, &desired(PREFIX, 1, 1), PartitionGrowthPolicy::Refuse)).unwrap();
    };
    apply_topics();
    let name = |topic: Topic| -> Arc<str> { format!("{PREFIX}{topic}").into() };
    let telemetry = name(Topic::GpuTelemetry);
    let send = |values: &[&str]| {
        let records: Vec<_> = values.iter().map(|value| outgoing(&telemetry, "lab/a", value)).collect();
        send_all(&bus, &records);
    };
    let first = Running::start(&bus, "processor", "processor-0");
    send(&["one", "two"]);
    read_count(&bus, &name(Topic::DeadLetters), 1, 2);
    first.stop();

    kafka.tool("org.apache.kafka.tools.TopicCommand", &["--delete", "--topic", &telemetry]).unwrap();
    let begun = Instant::now();
    while bus.topics(PREFIX).unwrap().iter().any(|topic| topic.name == telemetry) {
        assert!(begun.elapsed() < Duration::from_mins(1), "the topic is not deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    apply_topics();
    // More than the former topic had: its position is a valid one of the new topic.
    send(&["three", "four", "five"]);
    let second = Running::start(&bus, "processor", "processor-0");
    let letters = read_count(&bus, &name(Topic::DeadLetters), 1, 5);
    let values: Vec<_> = letters.iter().map(|letter| letter.value.as_deref().map(String::from_utf8_lossy)).collect();
    assert_eq!(values, ["one", "two", "three", "four", "five"].map(|value| Some(value.into())));
    second.stop();
}
