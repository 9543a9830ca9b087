//! Choice of the log from the settings.

use std::sync::Arc;

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, BusError, TopicPartition};
use eadt_service::ServiceClock;

use crate::settings::ProgramSettings;

/// The name of this program's clients.
pub const CLIENT: &str = "eadt";

/// Returns the Kafka of the settings.
pub fn connect(settings: &ProgramSettings) -> anyhow::Result<Arc<dyn Bus>> {
    Ok(Arc::new(kafka(settings)?))
}

/// Returns the same, for requests that only Kafka answers.
pub fn kafka(settings: &ProgramSettings) -> Result<KafkaBus, BusError> {
    let bus = &settings.bus;
    let options = KafkaOptions::secured(&*bus.brokers, &bus.properties, &bus.security, CLIENT)?;
    KafkaBus::connect(options.with_fetch(bus.fetch))
}

/// Opens Kafka if brokers are set, otherwise the embedded log of the data folder.
pub fn open(settings: &ProgramSettings) -> anyhow::Result<Arc<dyn Bus>> {
    Ok(open_with_clock(settings)?.0)
}

/// Opens the same, with its clock. The clock of an embedded log of simulated time stays at its newest record. A simulation that
/// goes on then finds new records at once, and not when it reaches the wall clock's time.
pub fn open_with_clock(settings: &ProgramSettings) -> anyhow::Result<(Arc<dyn Bus>, ServiceClock)> {
    if !settings.bus.brokers.is_empty() {
        return Ok((connect(settings)?, ServiceClock::machine()));
    }
    let dir = &settings.bus.data_dir;
    if !dir.join("log").exists() {
        anyhow::bail!(
            "no Kafka is set and {} holds no embedded log: give --kafka BROKERS, or --data-dir of an `eadt up`",
            dir.display()
        );
    }
    let simulated = crate::data_dir::is_simulated(dir)?;
    let log = open_embedded(settings, if simulated { StampSource::Held } else { StampSource::Wall })?;
    let of = log.clone();
    let clock = if simulated { ServiceClock::new(move || of.log_time()) } else { ServiceClock::machine() };
    Ok((Arc::new(log), clock))
}

/// Returns the embedded log of these settings.
pub fn open_embedded(settings: &ProgramSettings, stamps: StampSource) -> anyhow::Result<EmbeddedLog> {
    Ok(EmbeddedLog::open(&settings.bus.data_dir.join("log"), EmbeddedOptions { stamps, ..EmbeddedOptions::default() })?)
}

/// Returns whether the log in the data folder has or had a record, or something of it is archived.
pub fn holds_records(settings: &ProgramSettings) -> anyhow::Result<bool> {
    let has_files = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("topic="))
    };
    if std::fs::read_dir(settings.bus.data_dir.join("archive")).is_ok_and(|mut entries| entries.any(has_files)) {
        return Ok(true);
    }
    let log = open_embedded(settings, StampSource::Wall)?;
    for topic in log.topics("")? {
        for partition in 0..topic.partitions {
            if log.watermarks(&TopicPartition::new(topic.name.clone(), partition))?.high > 0 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the Kafka of the settings, for services that are processes of their own.
pub fn shared(settings: &ProgramSettings) -> anyhow::Result<Arc<dyn Bus>> {
    if settings.bus.brokers.is_empty() {
        anyhow::bail!(
            "separate services need a Kafka: give --kafka BROKERS or set KAFKA_BROKERS; `eadt up` runs everything in one process"
        );
    }
    connect(settings)
}
