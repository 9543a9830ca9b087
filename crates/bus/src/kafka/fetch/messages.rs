//! The requests that reading needs, and their answers: `ApiVersions`, `Metadata` and `Fetch`; and those by which a transaction is
//! ended: `FindCoordinator`, `InitProducerId`, `AddPartitionsToTxn`, `AddOffsetsToTxn` and `EndTxn`.
//!
//! Each is known in the versions of Kafka 3.0 to today's; of these the newest that the broker knows, too, is used.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::wire::{WireError, WireReader, WireWriter};
use crate::TopicPartition;

type Result<T> = std::result::Result<T, WireError>;

/// Means that there is no topic id: the broker, or the version in use, knows none.
pub const NO_TOPIC_ID: [u8; 16] = [0; 16];

/// A request that this client can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKey {
    Fetch = 1,
    Metadata = 3,
    FindCoordinator = 10,
    #[cfg_attr(not(feature = "kafka-tls"), allow(dead_code, reason = "SASL needs the build with TLS"))]
    SaslHandshake = 17,
    ApiVersions = 18,
    InitProducerId = 22,
    AddPartitionsToTxn = 24,
    AddOffsetsToTxn = 25,
    EndTxn = 26,
    #[cfg_attr(not(feature = "kafka-tls"), allow(dead_code, reason = "SASL needs the build with TLS"))]
    SaslAuthenticate = 36,
}

impl ApiKey {
    /// Returns the versions that are written and read here.
    pub const fn versions(self) -> RangeInclusive<i16> {
        match self {
            Self::Fetch => 12..=13,
            Self::Metadata => 9..=12,
            Self::SaslHandshake | Self::SaslAuthenticate => 1..=1,
            Self::ApiVersions | Self::FindCoordinator | Self::AddPartitionsToTxn | Self::AddOffsetsToTxn | Self::EndTxn => 3..=3,
            Self::InitProducerId => 2..=2,
        }
    }

    /// Returns whether requests and answers have tagged fields.
    pub const fn is_flexible(self) -> bool {
        !matches!(self, Self::SaslHandshake | Self::SaslAuthenticate)
    }
}

/// The newest versions of the requests that a broker and this client know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiatedVersions {
    pub fetch: i16,
    pub metadata: i16,
}

/// Appends the body of an `ApiVersions` request.
pub fn write_api_versions(body: &mut Vec<u8>) {
    body.put_compact_text("eadt");
    body.put_compact_text(env!("CARGO_PKG_VERSION"));
    body.put_no_tags();
}

/// Reads which versions to use. Returns an error that names the request if the broker knows it only in other versions.
pub fn read_api_versions(body: &[u8]) -> Result<std::result::Result<NegotiatedVersions, String>> {
    let mut reader = WireReader::new(body);
    let error = reader.i16()?;
    if error != 0 {
        return Ok(Err(format!("it does not report its supported requests (error {error}): it is older than Kafka 2.4")));
    }
    let (mut fetch, mut metadata) = (None, None);
    for _ in 0..reader.compact_count()? {
        let (key, least, most) = (reader.i16()?, reader.i16()?, reader.i16()?);
        reader.skip_tags()?;
        let common = |api: ApiKey| {
            Some(*api.versions().end()).map(|ours| ours.min(most)).filter(|v| *v >= least.max(*api.versions().start()))
        };
        match key {
            _ if key == ApiKey::Fetch as i16 => fetch = common(ApiKey::Fetch),
            _ if key == ApiKey::Metadata as i16 => metadata = common(ApiKey::Metadata),
            _ => {}
        }
    }
    let needs =
        |api: ApiKey| format!("it supports no version of {api:?} of {:?}, which Kafka 3.0 to 4.4 support", api.versions());
    Ok(match (fetch, metadata) {
        (Some(fetch), Some(metadata)) => Ok(NegotiatedVersions { fetch, metadata }),
        (None, _) => Err(needs(ApiKey::Fetch)),
        (_, None) => Err(needs(ApiKey::Metadata)),
    })
}

/// A broker in an answer to `Metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    pub node: i32,
    pub host: String,
    pub port: u16,
}

/// Leader of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionMetadata {
    pub partition: i32,
    pub error: i16,
    /// Node id of the leader, or −1 if there is no leader.
    pub node: i32,
    pub epoch: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMetadata {
    pub error: i16,
    pub name: String,
    pub id: [u8; 16],
    pub partitions: Vec<PartitionMetadata>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMetadata {
    pub brokers: Vec<BrokerAddress>,
    pub topics: Vec<TopicMetadata>,
}

/// Appends the body of a `Metadata` request for these topics.
pub fn write_metadata<'a>(body: &mut Vec<u8>, version: i16, topics: impl ExactSizeIterator<Item = &'a str>) {
    body.put_compact_count(topics.len());
    for topic in topics {
        if version >= 10 {
            body.extend_from_slice(&NO_TOPIC_ID);
        }
        body.put_compact_text(topic);
        body.put_no_tags();
    }
    // Topics are made by `eadt topics apply` only.
    body.put_i8(0);
    if version <= 10 {
        body.put_i8(0);
    }
    body.put_i8(0);
    body.put_no_tags();
}

pub fn read_metadata(body: &[u8], version: i16) -> Result<ClusterMetadata> {
    let mut reader = WireReader::new(body);
    reader.i32()?;
    let mut brokers = Vec::new();
    for _ in 0..reader.compact_count()? {
        let node = reader.i32()?;
        let host = reader.compact_text()?.unwrap_or_default().to_owned();
        let port = u16::try_from(reader.i32()?).map_err(|_| WireError("a port is not one"))?;
        reader.compact_bytes()?;
        reader.skip_tags()?;
        brokers.push(BrokerAddress { node, host, port });
    }
    reader.compact_bytes()?;
    reader.i32()?;
    let mut topics = Vec::new();
    for _ in 0..reader.compact_count()? {
        topics.push(read_topic_leaders(&mut reader, version)?);
    }
    Ok(ClusterMetadata { brokers, topics })
}

fn read_topic_leaders(reader: &mut WireReader<'_>, version: i16) -> Result<TopicMetadata> {
    let error = reader.i16()?;
    let name = reader.compact_text()?.unwrap_or_default().to_owned();
    let id = if version >= 10 { reader.uuid()? } else { NO_TOPIC_ID };
    reader.take(1)?;
    let mut partitions = Vec::new();
    for _ in 0..reader.compact_count()? {
        let (error, partition, node, epoch) = (reader.i16()?, reader.i32()?, reader.i32()?, reader.i32()?);
        for _ in 0..3 {
            let replicas = reader.compact_count()?;
            reader.take(replicas * 4)?;
        }
        reader.skip_tags()?;
        partitions.push(PartitionMetadata { partition, error, node, epoch });
    }
    reader.i32()?;
    reader.skip_tags()?;
    Ok(TopicMetadata { error, name, id, partitions })
}

/// The kind of coordinator that has transactions.
const TRANSACTION_COORDINATOR: i8 = 1;

/// Appends the body of a `FindCoordinator` request, version 3.
pub fn write_find_coordinator(body: &mut Vec<u8>, transactional_id: &str) {
    body.put_compact_text(transactional_id);
    body.put_i8(TRANSACTION_COORDINATOR);
    body.put_no_tags();
}

/// Reads the coordinator of the transactions of the name, or the error's code.
pub fn read_find_coordinator(body: &[u8]) -> Result<std::result::Result<BrokerAddress, i16>> {
    let mut reader = WireReader::new(body);
    reader.i32()?;
    let error = reader.i16()?;
    reader.compact_bytes()?;
    let node = reader.i32()?;
    let host = reader.compact_text()?.unwrap_or_default().to_owned();
    let port = reader.i32()?;
    if error != 0 {
        return Ok(Err(error));
    }
    let port = u16::try_from(port).map_err(|_| WireError("a port is not one"))?;
    Ok(Ok(BrokerAddress { node, host, port }))
}

/// Appends the body of an `InitProducerId` request, version 2.
pub fn write_init_producer_id(body: &mut Vec<u8>, transactional_id: &str, timeout_ms: i32) {
    body.put_compact_text(transactional_id);
    body.put_i32(timeout_ms);
    body.put_no_tags();
}

/// The producer of a transactional id, as brokers know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerId {
    pub id: i64,
    pub epoch: i16,
}

/// Reads the producer, or the error's code.
pub fn read_init_producer_id(body: &[u8]) -> Result<std::result::Result<ProducerId, i16>> {
    let mut reader = WireReader::new(body);
    reader.i32()?;
    let error = reader.i16()?;
    let producer = ProducerId { id: reader.i64()?, epoch: reader.i16()? };
    Ok(if error == 0 { Ok(producer) } else { Err(error) })
}

fn put_producer(body: &mut Vec<u8>, transactional_id: &str, producer: ProducerId) {
    body.put_compact_text(transactional_id);
    body.put_i64(producer.id);
    body.put_i16(producer.epoch);
}

/// Appends the body of an `AddPartitionsToTxn` request, version 3.
pub fn write_add_partitions(body: &mut Vec<u8>, transactional_id: &str, producer: ProducerId, partitions: &[TopicPartition]) {
    put_producer(body, transactional_id, producer);
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for at in partitions {
        topics.entry(&at.topic).or_default().push(at.partition);
    }
    body.put_compact_count(topics.len());
    for (topic, partitions) in topics {
        body.put_compact_text(topic);
        body.put_compact_count(partitions.len());
        for partition in partitions {
            body.put_i32(partition);
        }
        body.put_no_tags();
    }
    body.put_no_tags();
}

/// Reads the first error's code, if there is one.
pub fn read_add_partitions(body: &[u8]) -> Result<std::result::Result<(), i16>> {
    let mut reader = WireReader::new(body);
    reader.i32()?;
    let mut first = Ok(());
    for _ in 0..reader.compact_count()? {
        reader.compact_text()?;
        for _ in 0..reader.compact_count()? {
            reader.i32()?;
            first = first.and(from_code(reader.i16()?));
            reader.skip_tags()?;
        }
        reader.skip_tags()?;
    }
    Ok(first)
}

/// Appends the body of an `AddOffsetsToTxn` request, version 3.
pub fn write_add_offsets(body: &mut Vec<u8>, transactional_id: &str, producer: ProducerId, group: &str) {
    put_producer(body, transactional_id, producer);
    body.put_compact_text(group);
    body.put_no_tags();
}

/// Appends the body of an `EndTxn` request, version 3.
pub fn write_end_transaction(body: &mut Vec<u8>, transactional_id: &str, producer: ProducerId, is_committed: bool) {
    put_producer(body, transactional_id, producer);
    body.put_i8(i8::from(is_committed));
    body.put_no_tags();
}

/// Reads an answer to `AddOffsetsToTxn` or `EndTxn`: the error's code, if there is one.
pub fn read_transaction_error(body: &[u8]) -> Result<std::result::Result<(), i16>> {
    let mut reader = WireReader::new(body);
    reader.i32()?;
    Ok(from_code(reader.i16()?))
}

fn from_code(code: i16) -> std::result::Result<(), i16> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// A partition in a `Fetch` request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPosition {
    pub topic: Arc<str>,
    pub topic_id: [u8; 16],
    pub partition: i32,
    /// The next offset that is wanted.
    pub offset: i64,
    /// The epoch of the leader that is asked; −1: unknown.
    pub leader_epoch: i32,
    /// The epoch of the batch that was read last; −1: unknown. The broker finds by it whether its log was cut off meanwhile.
    pub last_epoch: i32,
}

/// Fields of a `Fetch` request besides its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchLimits {
    pub max_wait_ms: i32,
    pub max_bytes: i32,
    pub partition_max_bytes: i32,
    pub is_committed_only: bool,
}

/// A topic, its id, and a partition of it.
pub type PartitionName = (Arc<str>, [u8; 16], i32);

/// Appends the body of a `Fetch` request.
pub fn write_fetch(
    body: &mut Vec<u8>,
    version: i16,
    limits: FetchLimits,
    (session_id, session_epoch): (i32, i32),
    positions: &[FetchPosition],
    forgotten: &[PartitionName],
    rack: &str,
) {
    body.put_i32(-1);
    body.put_i32(limits.max_wait_ms);
    body.put_i32(1);
    body.put_i32(limits.max_bytes);
    body.put_i8(i8::from(limits.is_committed_only));
    body.put_i32(session_id);
    body.put_i32(session_epoch);
    let put_topic = |body: &mut Vec<u8>, name: &str, id: &[u8; 16]| {
        if version >= 13 { body.extend_from_slice(id) } else { body.put_compact_text(name) }
    };
    // A topic for each run of its partitions: the caller sorts.
    let runs: Vec<_> = positions.chunk_by(|a, b| a.topic == b.topic).collect();
    body.put_compact_count(runs.len());
    for run in runs {
        put_topic(body, &run[0].topic, &run[0].topic_id);
        body.put_compact_count(run.len());
        for position in run {
            body.put_i32(position.partition);
            body.put_i32(position.leader_epoch);
            body.put_i64(position.offset);
            body.put_i32(position.last_epoch);
            body.put_i64(-1);
            body.put_i32(limits.partition_max_bytes);
            body.put_no_tags();
        }
        body.put_no_tags();
    }
    body.put_compact_count(forgotten.len());
    for (topic, id, partition) in forgotten {
        put_topic(body, topic, id);
        body.put_compact_count(1);
        body.put_i32(*partition);
        body.put_no_tags();
    }
    body.put_compact_text(rack);
    body.put_no_tags();
}

/// A transaction that was taken back: the records of this producer from this offset on to its marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer: i64,
    pub first_offset: i64,
}

/// The answer for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionResponse<'a> {
    /// Empty if the version in use names topics by their ids.
    pub topic: &'a str,
    pub topic_id: [u8; 16],
    pub partition: i32,
    pub error: i16,
    pub high_watermark: i64,
    pub last_stable: i64,
    pub aborted: Vec<AbortedTransaction>,
    /// −1 if the leader is to be read from.
    pub preferred_replica: i32,
    /// Position before the asked one at which the log was cut off.
    pub diverging_offset: Option<i64>,
    pub records: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchResponse<'a> {
    pub throttle_ms: i32,
    pub error: i16,
    pub session_id: i32,
    pub partitions: Vec<PartitionResponse<'a>>,
}

pub fn read_fetch(body: &[u8], version: i16) -> Result<FetchResponse<'_>> {
    let mut reader = WireReader::new(body);
    let (throttle_ms, error, session_id) = (reader.i32()?, reader.i16()?, reader.i32()?);
    let mut partitions = Vec::new();
    for _ in 0..reader.compact_count()? {
        let (topic, topic_id) =
            if version >= 13 { ("", reader.uuid()?) } else { (reader.compact_text()?.unwrap_or_default(), NO_TOPIC_ID) };
        for _ in 0..reader.compact_count()? {
            partitions.push(read_partition(&mut reader, topic, topic_id)?);
        }
        reader.skip_tags()?;
    }
    Ok(FetchResponse { throttle_ms, error, session_id, partitions })
}

fn read_partition<'a>(reader: &mut WireReader<'a>, topic: &'a str, topic_id: [u8; 16]) -> Result<PartitionResponse<'a>> {
    let (partition, error) = (reader.i32()?, reader.i16()?);
    let (high_watermark, last_stable) = (reader.i64()?, reader.i64()?);
    reader.i64()?;
    let mut aborted = Vec::new();
    for _ in 0..reader.compact_count()? {
        aborted.push(AbortedTransaction { producer: reader.i64()?, first_offset: reader.i64()? });
        reader.skip_tags()?;
    }
    let preferred_replica = reader.i32()?;
    let records = reader.compact_bytes()?.unwrap_or_default();
    let mut diverging_offset = None;
    reader.tags(|tag, mut field| {
        if tag == 0 {
            let (epoch, end) = (field.i32()?, field.i64()?);
            diverging_offset = (epoch >= 0).then_some(end);
        }
        Ok(())
    })?;
    Ok(PartitionResponse {
        topic,
        topic_id,
        partition,
        error,
        high_watermark,
        last_stable,
        aborted,
        preferred_replica,
        diverging_offset,
        records,
    })
}
