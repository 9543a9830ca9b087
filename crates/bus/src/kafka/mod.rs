//! Apache Kafka through rdkafka.
//!
//! Atomic steps are transactions that include the positions under the group's generation (KIP-447). Partitions are assigned
//! by `range`, so that topics with equal partition counts stay co-partitioned, and keys are placed as the JVM clients do it.
//! Settings that these promises rest on cannot be overridden.

mod acls;
mod admin;
#[cfg(test)]
mod brokerless_tests;
mod client_watch;
mod context;
mod delivery_epochs;
mod errors;
mod events;
mod fetch;
mod fetcher;
mod group_subscription;
#[cfg(feature = "conformance")]
mod left_open;
mod library_fetcher;
mod member;
#[cfg(test)]
mod mock;
mod packing;
mod producer;
mod reader;
mod secret;
mod security;
mod silence_watchdog;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eadt_schemas::EventTime;
use rdkafka::admin::AdminClient;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::groups::{GroupInfo, GroupMemberInfo};
use rdkafka::metadata::Metadata;
use rdkafka::producer::BaseProducer;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use crate::rights::{AclOperation, AclResource};
use crate::{
    Bus, BusError, GroupMember, GroupMemberDescription, IsolationLevel, MemberOptions, Membership, PartitionReader, Producer,
    Remedy, Result, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};
use client_watch::{MetadataClient, RequestResult};
use context::KafkaContext;
use errors::{explain, from_error, missing_right_message};
use events::ConsumerQueue;
use fetch::{FetchOptions, HangingParts, NativeFetcher, OpenTransactionEnd};
use fetcher::Fetcher;
use library_fetcher::LibraryFetcher;
use member::{SESSION_TIMEOUT, TRANSACTION_TIMEOUT};

pub(crate) use fetch::header_ranges;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use fetch::put_varint;
#[cfg(feature = "conformance")]
pub use fetch::read_foreign_bytes;
pub use fetcher::FetchPath;
#[cfg(feature = "conformance")]
pub use left_open::LeftOpen;
pub use secret::{Secret, hide, is_secret_variable, property_of_variable, secret_in_file};
pub use security::{SaslMechanism, SecurityProtocol, SecuritySettings, TLS};

/// Longest time of one attempt to connect; there are several within [`CONNECT`].
const ATTEMPT: Duration = Duration::from_secs(2);
/// Longest time until a broker answers the first request.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest time until a broker answers any later request.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest time of a readiness probe's request.
const PROBE: Duration = Duration::from_secs(4);
/// A broker that does not answer for so long may be gone: it is time to ask another one.
const ONE_BROKER: Duration = Duration::from_secs(5);
/// Pause before a broker is asked again that knew no broker, itself included: the cluster has not taken it back yet.
const BROKERLESS_PAUSE: Duration = Duration::from_millis(200);
/// Pause before the ends of a partition are asked for again.
const ENDS_PAUSE: Duration = Duration::from_millis(20);

/// Properties that the promises of this module rest on, or that are set by other means.
const RESERVED: [&str; 17] = [
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "isolation.level",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "partitioner",
    "transaction.timeout.ms",
    "transactional.id",
];

/// Connection to the brokers.
#[derive(Clone)]
pub struct KafkaOptions {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// Further properties of librdkafka by their names, for example `security.protocol`, `sasl.username`, `linger.ms`.
    pub properties: BTreeMap<String, String>,
    /// Appears in the brokers' logs.
    pub client_id: String,
    /// Client that reads records.
    pub fetch: FetchPath,
}

// Properties hold passwords: their values are never shown.
impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .field("client_id", &self.client_id)
            .field("fetch", &self.fetch)
            .finish()
    }
}

impl KafkaOptions {
    /// Options with a secured connection; refuses a property that both of them set.
    pub fn secured(
        brokers: impl Into<String>,
        properties: &BTreeMap<String, String>,
        security: &SecuritySettings,
        client_id: impl Into<String>,
    ) -> Result<Self> {
        let mut all = security.properties()?;
        for (name, value) in properties {
            // The client library reads files without a bound.
            let is_device = |file: std::fs::Metadata| !file.is_file() && !file.is_dir();
            if name.ends_with(".location") && std::fs::metadata(value).is_ok_and(is_device) {
                let detail = format!("bus.properties.{name}={value} is no plain file: name another one");
                return Err(BusError::new(Remedy::Stop, "securing the connection to Kafka", detail));
            }
            if all.insert(name.clone(), value.clone()).is_some() {
                let detail = format!("bus.properties.{name} sets what bus.security sets, too: leave one out");
                return Err(BusError::new(Remedy::Stop, "securing the connection to Kafka", detail));
            }
        }
        Ok(Self { brokers: brokers.into(), properties: all, client_id: client_id.into(), fetch: FetchPath::default() })
    }

    /// Reads records by this path.
    #[must_use]
    pub fn with_fetch(self, fetch: FetchPath) -> Self {
        Self { fetch, ..self }
    }

    /// Returns the name by which the brokers know this client, as far as it can know itself: they may map certificates to other
    /// names.
    fn principal(&self) -> String {
        let of = |name: &str| self.properties.get(name).filter(|value| !value.is_empty());
        let protocol = of("security.protocol").map(|protocol| protocol.to_lowercase()).unwrap_or_default();
        match (protocol.as_str(), of("sasl.username"), of("ssl.certificate.location")) {
            ("sasl_ssl" | "sasl_plaintext", Some(user), _) => format!("User:{user}"),
            ("ssl", _, Some(file)) => format!("the user of the certificate {file}"),
            _ => "User:ANONYMOUS".to_owned(),
        }
    }
}

/// A Kafka cluster. Clones share its connection for questions about topics.
#[derive(Clone)]
pub struct KafkaBus {
    shared: Arc<KafkaBusState>,
}

struct KafkaBusState {
    options: KafkaOptions,
    metadata_client: MetadataClient,
    /// For each group the outage after which its fenced member joined again last.
    joined_again: Mutex<BTreeMap<String, Instant>>,
}

impl fmt::Debug for KafkaBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaBus").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

/// Returns whether the broker that was asked knows no such topic.
fn is_missing(code: Option<RDKafkaErrorCode>) -> bool {
    matches!(code, Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic))
}

/// Returns how long the ends of a partition are asked for again after this error; zero if that cannot help.
fn ends_retry_limit(code: Option<RDKafkaErrorCode>) -> Duration {
    use RDKafkaErrorCode as Code;
    match code {
        Some(Code::OperationTimedOut | Code::RequestTimedOut | Code::BrokerTransportFailure | Code::DestroyBroker) => ANSWER,
        // A leader is found soon after a topic is made or a broker has come back, which may not know its topics at first. To the
        // client library a partition without a leader is an unknown one.
        Some(
            Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            | Code::UnknownPartition
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopic,
        ) => CONNECT,
        _ => Duration::ZERO,
    }
}

/// Returns whether a question that was first asked at `begun` was left unanswered, and there is time to ask it of another broker.
fn may_retry_unanswered(error: &KafkaError, begun: Instant) -> bool {
    let code = if let KafkaError::AdminOp(code) = error { Some(*code) } else { error.rdkafka_error_code() };
    // The client library drops a broker that its cluster no longer has, with its requests.
    let is_unanswered = matches!(code, Some(RDKafkaErrorCode::OperationTimedOut | RDKafkaErrorCode::DestroyBroker));
    is_unanswered && begun.elapsed() < ANSWER
}

impl KafkaBusState {
    /// Makes a request with the metadata client, and replaces that client if it gets no answer.
    fn ask<T>(&self, request: impl FnOnce(&BaseConsumer<KafkaContext>) -> KafkaResult<T>) -> KafkaResult<T> {
        let (client, asked) = (self.metadata_client.get(), Instant::now());
        let answer = request(&client);
        let is_due = self.metadata_client.note(&client, asked, RequestResult::of(&answer));
        if is_due && !crate::chaos::is_off("fresh-metadata-client") {
            match make_metadata_client(&self.options, KafkaContext::new(self.options.principal().into())) {
                Ok(fresh) => self.metadata_client.replace(&client, fresh),
                Err(error) => tracing::warn!(%error, "the metadata client, which no broker answers, cannot be recreated"),
            }
        }
        answer
    }

    /// Asks one broker for the metadata of the cluster, or of a topic. An answer without any broker is an error: the library gives
    /// up those that it knew.
    fn fetch_metadata(&self, topic: Option<&str>, timeout: Duration) -> KafkaResult<Metadata> {
        self.ask(|client| {
            let metadata = client.fetch_metadata(topic, timeout)?;
            if metadata.brokers().is_empty() {
                return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::AllBrokersDown));
            }
            Ok(metadata)
        })
    }

    /// Returns the metadata of the cluster, or of a topic. The client asks one broker, even if that one has gone meanwhile.
    fn metadata(&self, topic: Option<&str>) -> KafkaResult<Metadata> {
        let begun = Instant::now();
        loop {
            match self.fetch_metadata(topic, ONE_BROKER) {
                Err(error) if may_retry_unanswered(&error, begun) => {}
                Err(KafkaError::MetadataFetch(RDKafkaErrorCode::AllBrokersDown)) if begun.elapsed() < ANSWER => {
                    std::thread::sleep(BROKERLESS_PAUSE);
                }
                answer => return answer,
            }
        }
    }

    /// Notes that a fenced member of this group joins again after an outage. Returns false if one has done so after that outage
    /// already.
    fn note_joined_again(&self, group: &str, outage: Instant) -> bool {
        let mut joined_again = self.joined_again.lock().unwrap_or_else(PoisonError::into_inner);
        if joined_again.get(group).is_some_and(|last| outage <= *last) {
            return false;
        }
        joined_again.insert(group.to_owned(), Instant::now());
        true
    }

    /// Returns a client for one administrative call. It sends the request to the broker that it first knew as the controller, and
    /// goes on waiting for that one after it has gone; it finds another one only at the next of its rare looks for changes.
    fn admin(&self) -> Result<AdminClient<KafkaContext>> {
        AdminClient::from_config_and_context(&base_config(&self.options), KafkaContext::new(self.options.principal().into()))
            .map_err(|error| from_error(format!("connecting to Kafka at {}", self.options.brokers), &error, Remedy::Stop))
    }
}

impl KafkaBus {
    /// Connects, and fails within ten seconds if no broker answers.
    pub fn connect(options: KafkaOptions) -> Result<Self> {
        let what = format!("connecting to Kafka at {}", options.brokers);
        if let Some(reserved) = options.properties.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(BusError::new(
                Remedy::Stop,
                what,
                format!("the property {reserved} cannot be changed: exactly-once processing and the placing of keys rest on it"),
            ));
        }
        let context = KafkaContext::new(options.principal().into());
        let asking = make_metadata_client(&options, context.clone()).map_err(|error| from_error(&what, &error, Remedy::Stop))?;
        let begun = Instant::now();
        while let Err(error) = asking.fetch_metadata(None, ATTEMPT) {
            // Serves the queue, so that the context hears what went wrong.
            let mut detail = error.to_string();
            for _ in 0..16 {
                if let Some(Err(error)) = asking.poll(Duration::ZERO) {
                    detail = error.to_string();
                }
            }
            // Once may be a broker that is just starting.
            if let Some(refused) = context.connection_refusal().filter(|_| begun.elapsed() > ATTEMPT) {
                return Err(BusError::new(Remedy::Stop, what, refused));
            }
            if begun.elapsed() < CONNECT {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            // That all brokers are down means no more than that none answered.
            let why = context.last_error().unwrap_or(detail);
            let why = if why.contains("brokers are down") { String::new() } else { format!(" ({why})") };
            return Err(BusError::new(
                Remedy::Stop,
                what,
                format!("no broker answered at {} within {} s: is Kafka running there?{why}", options.brokers, CONNECT.as_secs()),
            ));
        }
        let (metadata_client, joined_again) = (MetadataClient::new(asking), Mutex::default());
        Ok(Self { shared: Arc::new(KafkaBusState { options, metadata_client, joined_again }) })
    }

    /// Returns a context for a new client of this bus.
    fn context(&self) -> KafkaContext {
        KafkaContext::new(self.shared.options.principal().into())
    }

    fn client_id(&self) -> &str {
        &self.shared.options.client_id
    }

    /// Returns the settings of a consumer.
    fn consumer_config(&self, group: &str, membership: &Membership, isolation: IsolationLevel) -> ClientConfig {
        let mut config = base_config(&self.shared.options);
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("partition.assignment.strategy", "range")
            .set(
                "isolation.level",
                match isolation {
                    IsolationLevel::ReadCommitted => "read_committed",
                    IsolationLevel::ReadUncommitted => "read_uncommitted",
                },
            );
        if let Some(name) = membership.name() {
            config.set("group.instance.id", name);
        }
        // The end of a partition is known to the client library only from a fetch that found nothing, and the broker holds that
        // one back for so long. A member that merges inputs waits for their ends before it can continue; others save requests.
        if !self.shared.options.properties.contains_key("fetch.wait.max.ms") {
            let is_merging = membership.is_transactional() && self.shared.options.fetch == FetchPath::Librdkafka;
            config.set("fetch.wait.max.ms", if is_merging { "10" } else { "100" });
        }
        config
    }

    fn consumer(&self, config: &ClientConfig, what: impl Fn() -> String) -> Result<BaseConsumer<KafkaContext>> {
        BaseConsumer::from_config_and_context(config, self.context()).map_err(|error| from_error(what(), &error, Remedy::Stop))
    }

    fn fetcher(&self, group: &str, membership: &Membership, isolation: IsolationLevel) -> Result<Fetcher> {
        let config = self.consumer_config(group, membership, isolation);
        let what = || format!("reading from Kafka for group {group}");
        let events = ConsumerQueue::new(self.consumer(&config, what)?)
            .ok_or_else(|| BusError::new(Remedy::Stop, what(), "the client library gave no queue"))?;
        Ok(match self.shared.options.fetch {
            FetchPath::Librdkafka => Fetcher::Library(Box::new(LibraryFetcher::new(events, group))),
            FetchPath::Native => {
                let options = FetchOptions::read(&config).map_err(|detail| {
                    BusError::new(
                        Remedy::Stop,
                        what(),
                        format!("bus.fetch = \"native\" cannot follow the settings: {detail}; set bus.fetch = \"librdkafka\""),
                    )
                })?;
                Fetcher::Native(Box::new(NativeFetcher::new(events, group, options)))
            }
        })
    }

    fn transactional_producer(&self, instance: &str) -> Result<(BaseProducer<KafkaContext>, KafkaContext)> {
        let mut config = self.producer_config();
        let timeout = TRANSACTION_TIMEOUT.as_millis().to_string();
        config
            .set("transactional.id", transactional_id(instance))
            .set("transaction.timeout.ms", &timeout)
            .set("message.timeout.ms", &timeout);
        if !self.shared.options.properties.contains_key(QUEUE) {
            // A step waits for its deliveries anyway, and is in memory already.
            config.set(QUEUE, "4096");
        }
        // Lost connections are reported there, and a step must know of them.
        let debug =
            self.shared.options.properties.get("debug").map_or_else(|| "broker".to_owned(), |more| format!("{more},broker"));
        config.set("debug", debug).set_log_level(RDKafkaLogLevel::Debug);
        make_producer(&config, instance, self.context())
    }

    /// Ends the open transaction of a killed process, so that the client library need not wait for it. Failures are left to the
    /// library, which makes the same requests. Returns whether a request may still reach the broker.
    fn end_open_transaction(&self, instance: &str) -> bool {
        let FetchPath::Native = self.shared.options.fetch else { return false };
        let Ok(options) = FetchOptions::read(&self.producer_config()) else { return false };
        let name = transactional_id(instance);
        match fetch::end_open_transaction(&options, &name, TRANSACTION_TIMEOUT) {
            OpenTransactionEnd::Answered { error, requests } => {
                tracing::debug!(name, requests, error, "asked to end an open transaction");
                false
            }
            OpenTransactionEnd::NotAsked(error) => {
                tracing::debug!(name, %error, "the client library ends an open transaction");
                false
            }
            OpenTransactionEnd::Unanswered(error) => {
                tracing::info!(name, %error, "no answer to a request that ends an open transaction: it may come to the broker later");
                true
            }
        }
    }

    /// Asks for the ends of a partition, and retries if no answer comes or the leader is unknown, for `most` in all, if given.
    fn ask_for_ends(&self, at: &TopicPartition, most: Option<Duration>) -> Result<WatermarkOffsets> {
        let begun = Instant::now();
        let left = || most.map_or(ONE_BROKER, |most| most.saturating_sub(begun.elapsed()));
        loop {
            let error = match self.shared.ask(|client| client.fetch_watermarks(&at.topic, at.partition, left())) {
                Ok((low, high)) => return Ok(WatermarkOffsets { low, high }),
                Err(error) => error,
            };
            let code = error.rdkafka_error_code();
            if begun.elapsed() + ENDS_PAUSE >= ends_retry_limit(code).min(most.unwrap_or(Duration::MAX)) {
                // Within a caller's short time a topic may not be known again yet.
                return Err(self.ends_error(at, &error, is_missing(code) && most.is_none()));
            }
            // The client library asks the leader that it remembers, even one that is gone, and keeps for minutes the answer of
            // a broker that was coming back.
            if !is_missing(code)
                && let Err(error) = self.shared.fetch_metadata(Some(&at.topic), left())
            {
                tracing::debug!(%at, %error, "requesting the leader of the partition");
            }
            std::thread::sleep(ENDS_PAUSE);
        }
    }

    fn ends_error(&self, at: &TopicPartition, error: &KafkaError, is_final: bool) -> BusError {
        let (what, code) = (format!("asking for the ends of {at}"), error.rdkafka_error_code());
        if code == Some(RDKafkaErrorCode::TopicAuthorizationFailed) {
            let topic = AclResource::Topic(at.topic.to_string());
            let detail = missing_right_message(&self.principal(), AclOperation::Describe, &topic);
            return BusError::new(Remedy::Stop, what, detail);
        }
        from_error(what, error, if is_final { Remedy::Stop } else { Remedy::Retry })
    }

    /// Ends what hangs of an instance's transactions. Returns an error, and whether a request may still come to the broker that
    /// takes the instance's id away.
    fn end_hanging_transaction(&self, instance: &str, parts: HangingParts<'_>) -> std::result::Result<(), (BusError, bool)> {
        let failed = |detail| BusError::new(Remedy::Retry, format!("ending an open transaction of {instance}"), detail);
        // Whichever path reads: the client library makes no transaction without records.
        let options = FetchOptions::read(&self.producer_config()).map_err(|error| (failed(error), false))?;
        fetch::end_hanging_transaction(&options, &transactional_id(instance), parts)
            .map_err(|(error, is_late)| (failed(error.to_string()), is_late))
    }

    fn producer_config(&self) -> ClientConfig {
        let mut config = base_config(&self.shared.options);
        let is_idempotent = !crate::chaos::is_off("idempotence");
        config.set("enable.idempotence", is_idempotent.to_string()).set("partitioner", "murmur2_random");
        config
    }

    /// Returns the topics with how many partitions they have, by name; refuses if one is missing.
    fn require_topics(&self, topics: &[Arc<str>]) -> Result<Vec<(Arc<str>, i32)>> {
        // Names only: of other people's topics the settings may not be shown.
        let present = admin::layout(&self.shared, "")?;
        let mut found: Vec<(Arc<str>, i32)> = Vec::with_capacity(topics.len());
        for topic in topics {
            let Some((_, partitions, _)) = present.iter().find(|(present, ..)| present.as_str() == &**topic) else {
                let absent = || format!("the topic does not exist at {}: run `eadt topics apply`", self.shared.options.brokers);
                return Err(BusError::new(
                    Remedy::Stop,
                    format!("using topic {topic}"),
                    self.missing_right(topic).unwrap_or_else(absent),
                ));
            };
            found.push((Arc::clone(topic), *partitions));
        }
        found.sort();
        Ok(found)
    }
}

fn make_metadata_client(options: &KafkaOptions, context: KafkaContext) -> KafkaResult<BaseConsumer<KafkaContext>> {
    let mut config = base_config(options);
    // The end of a partition is where the next append goes, committed or not.
    config.set("isolation.level", "read_uncommitted");
    BaseConsumer::from_config_and_context(&config, context)
}

fn make_producer(config: &ClientConfig, name: &str, context: KafkaContext) -> Result<(BaseProducer<KafkaContext>, KafkaContext)> {
    let producer = BaseProducer::from_config_and_context(config, context.clone())
        .map_err(|error| from_error(format!("making producer {name}"), &error, Remedy::Stop))?;
    Ok((producer, context))
}

fn transactional_id(instance: &str) -> String {
    // A new name fences no producer.
    if crate::chaos::is_off("fencing") { format!("{instance}-{}", std::process::id()) } else { instance.to_owned() }
}

/// Longest time until a broker answers with the ids of topics: without them a recreated topic is not noticed.
const IDS_TIMEOUT: Duration = Duration::from_secs(2);
/// Property for the most kilobytes of undelivered records that a producer holds.
const QUEUE: &str = "queue.buffering.max.kbytes";

/// Returns our defaults, then the user's properties, for every client.
fn base_config(options: &KafkaOptions) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Info);
    let session = SESSION_TIMEOUT.as_millis().to_string();
    for (name, value) in [
        ("allow.auto.create.topics", "false"),
        ("log.connection.close", "false"),
        ("socket.nagle.disable", "true"),
        ("reconnect.backoff.max.ms", "2000"),
        // A connection on which no answer comes leads nowhere: another one is made. Below the transaction timeout.
        ("socket.timeout.ms", "9000"),
        ("session.timeout.ms", &session),
        // Memory for what was fetched ahead, of all partitions together, and a partition's part of one answer, which is compressed:
        // telemetry unpacks to ten times that. Asked for again soon after there is room.
        ("queued.max.messages.kbytes", "4096"),
        ("fetch.message.max.bytes", "131072"),
        ("fetch.queue.backoff.ms", "5"),
        // More than the topic of dead letters takes: `ProducerRecord::dead_letter` keeps to that.
        ("message.max.bytes", "2200000"),
        ("linger.ms", "2"),
        ("compression.type", "lz4"),
        ("queue.buffering.max.messages", "100000"),
        (QUEUE, "32768"),
    ] {
        config.set(name, value);
    }
    for (name, value) in &options.properties {
        config.set(name, value);
    }
    if crate::chaos::is_off("answer-timeout") {
        config.set("socket.timeout.ms", TRANSACTION_TIMEOUT.as_millis().to_string());
    }
    config.set("bootstrap.servers", &options.brokers).set("client.id", &options.client_id);
    config
}

fn committed(consumer: &BaseConsumer<KafkaContext>, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = TopicPartitionList::with_capacity(of.len());
    for at in of {
        list.add_partition(&at.topic, at.partition);
    }
    let what = || format!("fetching the positions of group {group}");
    let found = consumer.committed_offsets(list, ANSWER).map_err(|error| match error.rdkafka_error_code() {
        // The broker reports it again and again, and the library does not pass it on.
        Some(RDKafkaErrorCode::OperationTimedOut) => BusError::new(
            Remedy::Retry,
            what(),
            format!(
                "no broker gave them within {ANSWER:?}: it is away, or a transaction stays open in them \
                 (see \"A transaction that stays open\" in docs/operate/operations.md)"
            ),
        ),
        _ => from_error(what(), &error, Remedy::Retry),
    })?;
    of.iter()
        .map(|at| match found.find_partition(&at.topic, at.partition).map(|element| (element.error(), element.offset())) {
            Some((Ok(()), Offset::Offset(offset))) => Ok(Some(offset)),
            Some((Ok(()), _)) => Ok(None),
            Some((Err(error), _)) => Err(from_error(format!("{}, {at}", what()), &error, Remedy::Retry)),
            None => Err(BusError::new(Remedy::Retry, format!("{}, {at}", what()), "the broker left it out")),
        })
        .collect()
}

impl Bus for KafkaBus {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        admin::topics(&self.shared, prefix)
    }

    fn partition_counts(&self, prefix: &str) -> Result<BTreeMap<Arc<str>, i32>> {
        let layout = admin::layout(&self.shared, prefix)?;
        Ok(layout.into_iter().map(|(name, partitions, _)| (name.into(), partitions)).collect())
    }

    fn create_topic(&self, topic: &TopicSpec) -> Result<()> {
        admin::create(&self.shared, topic)
    }

    fn missing_right(&self, topic: &str) -> Option<String> {
        let metadata = self.shared.metadata(Some(topic)).ok()?;
        let code = RDKafkaErrorCode::from(metadata.topics().first()?.error()?);
        let topic = AclResource::Topic(topic.to_owned());
        (code == RDKafkaErrorCode::TopicAuthorizationFailed)
            .then(|| missing_right_message(&self.principal(), AclOperation::Describe, &topic))
    }

    fn topic_ids(&self, topics: &[Arc<str>]) -> BTreeMap<String, String> {
        // Whichever path reads: the client library has no request for them.
        let options = FetchOptions::read(&self.producer_config()).map(|options| {
            let timeout = options.timeout.min(IDS_TIMEOUT);
            FetchOptions { timeout, ..options }
        });
        let answer = options.and_then(|options| fetch::fetch_topic_ids(&options, topics).map_err(|error| error.to_string()));
        match answer {
            Ok(ids) => ids.into_iter().map(|(topic, id)| (topic, format!("{:032x}", u128::from_be_bytes(id)))).collect(),
            Err(error) => {
                tracing::debug!(error, "the ids of topics are not known");
                BTreeMap::new()
            }
        }
    }

    fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
        admin::alter(&self.shared, name, settings)
    }

    fn add_partitions(&self, name: &str, partitions: i32) -> Result<()> {
        admin::add_partitions(&self.shared, name, partitions)
    }

    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        self.ask_for_ends(at, None)
    }

    fn watermarks_within(&self, at: &TopicPartition, timeout: Duration) -> Result<WatermarkOffsets> {
        self.ask_for_ends(at, Some(timeout.min(ONE_BROKER)))
    }

    fn offsets_since(&self, of: &[TopicPartition], since: EventTime) -> Result<Option<Vec<Option<i64>>>> {
        if of.is_empty() {
            return Ok(Some(Vec::new()));
        }
        // Negative numbers ask for the ends of a partition.
        let asked = Offset::Offset(since.millis().max(0));
        let mut times = TopicPartitionList::new();
        for at in of {
            times
                .add_partition_offset(&at.topic, at.partition, asked)
                .map_err(|error| from_error(format!("looking for the records of {at} since {since}"), &error, Remedy::Stop))?;
        }
        let what = || format!("looking for the records since {since}");
        let begun = Instant::now();
        let found = loop {
            match self.shared.ask(|client| client.offsets_for_times(times.clone(), ONE_BROKER)) {
                Err(error) if may_retry_unanswered(&error, begun) => {}
                answer => break answer.map_err(|error| from_error(what(), &error, Remedy::Retry))?,
            }
        };
        let offset = |at: &TopicPartition| {
            let found = found.find_partition(&at.topic, at.partition);
            let found = found.ok_or_else(|| BusError::new(Remedy::Retry, what(), format!("the answer leaves out {at}")))?;
            found.error().map_err(|error| from_error(format!("{} in {at}", what()), &error, Remedy::Retry))?;
            Ok(if let Offset::Offset(offset) = found.offset() { Some(offset) } else { None })
        };
        of.iter().map(offset).collect::<Result<Vec<_>>>().map(Some)
    }

    fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
        let mut config = self.producer_config();
        // Records wait for as long as the brokers are away; `send` reports a full queue.
        config.set("client.id", name).set("message.timeout.ms", "0");
        Ok(Box::new(producer::KafkaProducer::new(self, config, name)?))
    }

    fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        Ok(Box::new(reader::KafkaReader::new(self, from, isolation)?))
    }

    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Ok(Box::new(member::KafkaMember::join(self, &options)?))
    }

    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let config = self.consumer_config(group, &Membership::Dynamic, IsolationLevel::ReadCommitted);
        let consumer = self.consumer(&config, || format!("fetching the positions of group {group}"))?;
        // Its queue belongs to it until it is closed.
        let events = ConsumerQueue::new(consumer).ok_or_else(|| {
            BusError::new(Remedy::Stop, format!("fetching the positions of group {group}"), "the client library gave no queue")
        })?;
        committed(events.consumer(), group, of)
    }

    fn probe(&self, topic: &str) -> Result<()> {
        let what = || format!("asking Kafka at {} about topic {topic}", self.shared.options.brokers);
        let failed = |error: KafkaError| from_error(what(), &error, Remedy::Retry);
        let metadata = self.shared.fetch_metadata(Some(topic), PROBE).map_err(failed)?;
        let Some(known) = metadata.topics().iter().find(|known| known.name() == topic) else {
            return Err(BusError::new(Remedy::Retry, what(), "the broker left it out"));
        };
        if let Some(error) = known.error() {
            let code = RDKafkaErrorCode::from(error);
            return Err(BusError::new(Remedy::Retry, what(), explain(code, &code.to_string())));
        }
        match known.partitions().iter().find(|partition| partition.leader() < 0) {
            Some(partition) => {
                let detail = format!("all brokers of partition {} are unavailable", partition.id());
                Err(BusError::new(Remedy::Retry, what(), detail))
            }
            None => Ok(()),
        }
    }

    fn has_spare_members(&self, group: &str, topic: &str) -> Result<bool> {
        let what = || format!("asking Kafka at {} about group {group}", self.shared.options.brokers);
        let failed = |error: KafkaError| from_error(what(), &error, Remedy::Retry);
        let metadata = self.shared.fetch_metadata(Some(topic), PROBE).map_err(failed)?;
        let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
        Ok(self.group_members(group)?.len() > partitions)
    }

    fn group_members(&self, group: &str) -> Result<Vec<GroupMemberDescription>> {
        let what = || format!("asking Kafka at {} about group {group}", self.shared.options.brokers);
        let groups = self
            .shared
            .ask(|client| client.fetch_group_list(Some(group), PROBE))
            .map_err(|error| from_error(what(), &error, Remedy::Retry))?;
        let members = groups.groups().iter().filter(|known| known.name() == group).flat_map(GroupInfo::members);
        let describe = |member: &GroupMemberInfo| GroupMemberDescription {
            name: format!("{} at {}", member.id(), member.client_host().trim_start_matches('/')),
            topics: member.metadata().and_then(group_subscription::parse).unwrap_or_default(),
        };
        Ok(members.map(describe).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::mock::{self, MockBrokers, until};
    use super::*;

    #[test]
    fn a_device_is_no_file_of_certificates() {
        let with = |file: &str| {
            let properties = BTreeMap::from([("ssl.ca.location".to_owned(), file.to_owned())]);
            KafkaOptions::secured("k:1", &properties, &SecuritySettings::default(), "tests")
        };
        let error = with("/dev/zero").unwrap_err().to_string();
        assert!(error.contains("bus.properties.ssl.ca.location=/dev/zero is no plain file"), "{error}");
        // A folder of certificates is possible, and the library reports missing files.
        assert!(with("/").is_ok() && with("/nowhere/file").is_ok());
    }

    #[test]
    fn ends_are_asked_for_again_only_if_a_later_answer_may_be_another() {
        use RDKafkaErrorCode as Code;
        for (code, limit) in [
            (Code::OperationTimedOut, ANSWER),
            (Code::BrokerTransportFailure, ANSWER),
            (Code::DestroyBroker, ANSWER),
            (Code::UnknownTopicOrPartition, CONNECT),
            (Code::UnknownPartition, CONNECT),
            (Code::FencedLeaderEpoch, CONNECT),
            (Code::TopicAuthorizationFailed, Duration::ZERO),
        ] {
            assert_eq!(ends_retry_limit(Some(code)), limit, "{code:?}");
        }
        assert_eq!(ends_retry_limit(None), Duration::ZERO);
    }

    #[test]
    fn a_question_to_a_broker_that_the_client_gave_up_is_asked_again() {
        use RDKafkaErrorCode as Code;
        let may_retry = |code| may_retry_unanswered(&KafkaError::AdminOp(code), Instant::now());
        assert_eq!(
            [Code::OperationTimedOut, Code::DestroyBroker, Code::TopicAuthorizationFailed].map(may_retry),
            [true, true, false]
        );
    }

    #[test]
    fn ends_that_nobody_answers_are_an_error_within_the_time_that_is_given() {
        let brokers = MockBrokers::start();
        let ends = |timeout| brokers.bus.watermarks_within(&mock::at(0), timeout);
        assert_eq!(ends(mock::WAIT).unwrap(), WatermarkOffsets { low: 0, high: 0 });
        brokers.cluster.broker_down(1).unwrap();
        let begun = Instant::now();
        assert_eq!(ends(Duration::from_millis(300)).unwrap_err().remedy, Remedy::Retry);
        assert!(begun.elapsed() < ANSWER, "{:?}", begun.elapsed());
        brokers.cluster.broker_up(1).unwrap();
        until(|| ends(mock::WAIT).is_ok());
    }

    #[test]
    fn a_probe_fails_within_its_time_while_no_broker_answers_and_succeeds_after() {
        let brokers = MockBrokers::start();
        brokers.bus.probe("in").unwrap();
        brokers.cluster.broker_down(1).unwrap();
        let begun = Instant::now();
        assert_eq!(brokers.bus.probe("in").unwrap_err().remedy, Remedy::Retry);
        assert!(begun.elapsed() < ANSWER, "{:?}", begun.elapsed());
        brokers.cluster.broker_up(1).unwrap();
        until(|| brokers.bus.probe("in").is_ok());
    }
}
