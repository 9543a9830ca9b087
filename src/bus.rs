//! Which log the settings mean.

use std::sync::Arc;

use eadt_bus::embedded::Stamps;
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, BusError};
use eadt_service::Clock;

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
    let options = KafkaOptions::secured(&*bus.brokers, &bus.properties, &bus.security, CLIENT)?;
    KafkaBus::connect(options.with_fetch(bus.fetch))
}

/// Kafka where brokers are set, else the embedded log of the data folder.
pub fn open(settings: &Settings) -> anyhow::Result<Arc<dyn Bus>> {
    Ok(open_with_clock(settings)?.0)
}

/// The same, and what time it is there: an embedded log of simulated time stands still at its newest record, so that a simulation that
/// goes on meets what is appended now, and not when it gets to the wall clock's time.
pub fn open_with_clock(settings: &Settings) -> anyhow::Result<(Arc<dyn Bus>, Clock)> {
    if !settings.bus.brokers.is_empty() {
        return Ok((connect(settings)?, Clock::wall()));
    }
    let dir = &settings.bus.data_dir;
    if !dir.join("log").exists() {
        anyhow::bail!(
            "no Kafka is set and {} holds no embedded log: give --kafka BROKERS, or --data-dir of an `eadt up`",
            dir.display()
        );
    }
    let simulated = crate::up::is_simulated(dir)?;
    let log = crate::up::open_embedded(settings, if simulated { Stamps::Held } else { Stamps::Wall })?;
    let of = log.clone();
    let clock = if simulated { Clock::new(move || of.time()) } else { Clock::wall() };
    Ok((Arc::new(log), clock))
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
