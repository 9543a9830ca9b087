//! Translation of the client library's properties for reading without the library.

use std::time::Duration;

use rdkafka::config::ClientConfig;

use super::security::{ConnectionSecurity, read_security};

/// Options of connections to the brokers, and of reading ahead.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// `host:port`, as they are configured.
    pub bootstrap: Vec<String>,
    pub client_id: String,
    pub rack: String,
    /// Longest time that a broker holds a request back while it has no records.
    pub max_wait: Duration,
    /// Compressed bytes that are read ahead, of all partitions together.
    pub budget_bytes: usize,
    /// Compressed bytes of a partition in one answer.
    pub partition_bytes: usize,
    /// Bytes of an answer at most.
    pub answer_bytes: usize,
    /// Longest time that a broker may take to connect or to answer.
    pub timeout: Duration,
    pub is_committed_only: bool,
    pub security: ConnectionSecurity,
}

impl FetchOptions {
    /// Reads the properties of a consumer. The error names the property that cannot be followed.
    pub fn read(config: &ClientConfig) -> Result<Self, String> {
        let text = |name: &str| config.get(name).unwrap_or_default();
        let number = |name: &str, default: usize| match config.get(name) {
            None => Ok(default),
            Some(text) => text.parse::<usize>().map_err(|_| format!("the Kafka property {name} is not a number")),
        };
        let either = |name: &str, other: &str, default| number(if config.get(name).is_some() { name } else { other }, default);
        let millis = |count: usize| Duration::from_millis(count as u64);
        let bootstrap = text("bootstrap.servers").split(',').map(|address| address.trim().to_owned());
        Ok(Self {
            bootstrap: bootstrap.filter(|address| !address.is_empty()).collect(),
            client_id: text("client.id").to_owned(),
            rack: text("client.rack").to_owned(),
            max_wait: millis(number("fetch.wait.max.ms", 100)?),
            budget_bytes: number("queued.max.messages.kbytes", 4096)? << 10,
            partition_bytes: either("max.partition.fetch.bytes", "fetch.message.max.bytes", 128 << 10)?.clamp(1 << 10, 64 << 20),
            answer_bytes: number("receive.message.max.bytes", 100_000_000)?,
            timeout: millis(number("socket.timeout.ms", 10_000)?.clamp(100, 300_000)),
            is_committed_only: text("isolation.level") != "read_uncommitted",
            security: read_security(config)?,
        })
    }
}
