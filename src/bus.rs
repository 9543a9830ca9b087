//! Which log the settings mean.

use std::sync::Arc;

use eadt_bus::embedded::Stamps;
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, BusError};

use crate::settings::Settings;

/// The name of this program's clients.
pub const CLIENT: &str = "eadt";

/// The Kafka of the settings.
pub fn connect(settings: &Settings) -> anyhow::Result<Arc<dyn Bus>> {
    Ok(Arc::new(kafka(settings)?))
}

/// The same, with what only a Kafka can be asked.
pub fn kafka(settings: &Settings) -> Result<KafkaBus, BusError> {
    let bus = &settings.bus;
    KafkaBus::connect(KafkaOptions::secured(&*bus.brokers, &bus.properties, &bus.security, CLIENT)?)
}

/// Kafka where brokers are set, else the embedded log of the data folder.
pub fn open(settings: &Settings) -> anyhow::Result<Arc<dyn Bus>> {
    if settings.bus.brokers.is_empty() {
        let dir = &settings.bus.data_dir;
        if !dir.join("log").exists() {
            anyhow::bail!(
                "no Kafka is set and {} holds no embedded log: give --kafka BROKERS, or --data-dir of an `eadt up`",
                dir.display()
            );
        }
        return Ok(Arc::new(crate::up::open_embedded(settings, Stamps::Wall)?));
    }
    connect(settings)
}

/// The Kafka of the settings, for services that are processes of their own.
pub fn shared(settings: &Settings) -> anyhow::Result<Arc<dyn Bus>> {
    if settings.bus.brokers.is_empty() {
        anyhow::bail!(
            "separate services need a Kafka: give --kafka BROKERS or set KAFKA_BROKERS; `eadt up` runs everything in one process"
        );
    }
    connect(settings)
}
