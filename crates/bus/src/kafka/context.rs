//! Callbacks of the client library: logs, errors, deliveries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers as _, Message as _};
use rdkafka::producer::ProducerContext;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::delivery_epochs::DeliveryEpochs;
use super::errors::{from_code, missing_right_message};
use super::events::may_be_in_log;
use crate::rights::{AclOperation, AclResource};
use crate::{BusError, ProducerRecord, Remedy};

/// Outcome of the deliveries of records.
#[derive(Debug, Default)]
pub struct DeliveryTracker {
    pub acknowledged: AtomicU64,
    pub failed: AtomicU64,
    first_failure: Mutex<Option<DeliveryFailure>>,
    epochs: Mutex<DeliveryEpochs>,
    /// Records that a producer gives back as it is made anew; `None` while none is.
    unconfirmed: Mutex<Option<UnconfirmedRecords>>,
}

/// Records that were taken and are not known to be in the log, in the order in which they were sent.
#[derive(Debug, Default)]
pub struct UnconfirmedRecords {
    /// They were on their way: the log may have them.
    pub in_flight: Vec<ProducerRecord>,
    pub unsent: Vec<ProducerRecord>,
    /// Number of all of them that the log may have: some of the unsent ones were sent, and wait to be sent again.
    pub unanswered: usize,
}

impl DeliveryTracker {
    /// Returns the records on their way, by when they were sent.
    pub fn epochs(&self) -> MutexGuard<'_, DeliveryEpochs> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps purged records from now on, and does not count them as failed.
    pub fn keep_purged(&self) {
        *self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(UnconfirmedRecords::default());
    }

    pub fn take_back(&self) -> UnconfirmedRecords {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Returns whether this record was purged and is kept.
    fn keep_if_purged(&self, code: Code, message: &BorrowedMessage<'_>) -> bool {
        let mut given_back = self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(records) = given_back.as_mut() else { return false };
        match code {
            Code::PurgeInflight => records.in_flight.push(detached(message)),
            Code::PurgeQueue => records.unsent.push(detached(message)),
            _ => return false,
        }
        records.unanswered += usize::from(code == Code::PurgeInflight || may_be_in_log(message));
        true
    }
}

fn detached(message: &BorrowedMessage<'_>) -> ProducerRecord {
    let bytes = |bytes: &[u8]| bytes::Bytes::copy_from_slice(bytes);
    let headers = message
        .headers()
        .map(|headers| headers.iter().map(|header| (header.key.into(), bytes(header.value.unwrap_or_default()))).collect());
    ProducerRecord {
        topic: message.topic().into(),
        // Without a partition, the key determines it again.
        partition: Some(message.partition()).filter(|partition| *partition >= 0),
        key: message.key().map(bytes),
        value: message.payload().map(bytes),
        headers: headers.unwrap_or_default(),
    }
}

/// A record that was not delivered.
#[derive(Debug)]
struct DeliveryFailure {
    code: Code,
    topic: String,
    detail: String,
}

/// Shared by all clients of the crate; each has its own.
#[derive(Debug, Clone, Default)]
pub struct KafkaContext {
    /// The name by which the brokers know the client.
    client_name: Arc<str>,
    refused: Arc<Mutex<Option<String>>>,
    pub deliveries: Arc<DeliveryTracker>,
    last_error: Arc<Mutex<Option<String>>>,
    /// Topic that the last transaction could not write to.
    denied: Arc<Mutex<Option<String>>>,
    disconnects: Arc<AtomicU64>,
}

impl KafkaContext {
    pub fn new(who: Arc<str>) -> Self {
        Self { client_name: who, ..Self::default() }
    }

    pub fn client_name(&self) -> &str {
        &self.client_name
    }

    /// Returns why the brokers, or we, refused the connection: it is tried again for ever, and cannot succeed.
    pub fn connection_refusal(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the last error, for an error message.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Discards the failures so far; they are not reported any more.
    pub fn forget_failures(&self) {
        *self.deliveries.first_failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.denied.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the error of the first failed delivery since the last call. `fatal`: the error of the producer as a whole, if it
    /// failed; its records are purged then, and their deliveries report nothing but that.
    pub fn take_failure(
        &self,
        what: impl FnOnce() -> String,
        fatal: impl FnOnce() -> Option<(Code, String)>,
        otherwise: Remedy,
    ) -> Option<BusError> {
        let DeliveryFailure { code, topic, detail } =
            self.deliveries.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (what, purged) = (what(), matches!(code, Code::PurgeQueue | Code::PurgeInflight));
        let (code, detail) = if purged { fatal() } else { None }.unwrap_or((code, detail));
        // A client that may write to no topic at all gets no producer id, and its error is about the cluster.
        let lacking = code == Code::TopicAuthorizationFailed || purged && code == Code::ClusterAuthorizationFailed;
        Some(match denied.or_else(|| lacking.then(|| topic.clone())) {
            Some(topic) => BusError::new(
                Remedy::Stop,
                what,
                missing_right_message(&self.client_name, AclOperation::Write, &AclResource::Topic(topic)),
            ),
            None => from_code(what, code, &format!("{detail}, topic {topic}"), otherwise),
        })
    }

    /// Returns the connections lost so far on which a request may have been on its way. Only for a client with the property
    /// `debug=broker`: it logs the loss before it resends anything that was in flight there, and logs every loss, which its
    /// errors do not.
    pub fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::SeqCst)
    }
}

/// Returns whether a line about a broker's state reports a connection lost with requests on it. Requests travel on established
/// connections only. The first ones, to the brokers as they are configured, are for finding the cluster, and the library closes
/// them itself when it has.
fn is_loss(line: &str) -> bool {
    let changed = line.strip_suffix(" -> DOWN").and_then(|line| line.split_once(": Broker changed state "));
    changed.is_some_and(|(broker, from)| matches!(from, "UP" | "REAUTH") && !broker.ends_with("/bootstrap"))
}

/// Returns the topic of a line about a topic that a transaction may not write to. The library throws away what was to be written
/// there, and gives the reason in its log only.
fn denied_topic(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("Failed to add partition \"")?;
    let (topic, why) = rest.split_once('"')?;
    why.ends_with("to transaction: Broker: Topic authorization failed").then_some(topic)
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "STATE" && is_loss(message) {
            self.disconnects.fetch_add(1, Ordering::SeqCst);
        }
        if facility == "ADDPARTS"
            && let Some(topic) = denied_topic(message)
        {
            *self.denied.lock().unwrap_or_else(PoisonError::into_inner) = Some(topic.to_owned());
        }
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                // Lost connections are restored by the library; other errors are returned by a call.
                tracing::warn!(target: "librdkafka", facility, "{message}");
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.to_owned());
            }
            // One set of settings serves producers and consumers; each warns of those that it does not use.
            RDKafkaLogLevel::Warning if facility == "CONFWARN" => tracing::debug!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => tracing::info!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        // A lost connection is in the log already, once; here it is repeated for every attempt.
        let code = error.rdkafka_error_code();
        let refused = match code {
            Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
                Some(format!("the broker refused {}: check user and password ({reason})", self.client_name))
            }
            Some(Code::SSL) => Some(format!(
                "the TLS connection was refused: check the authority's certificate, the broker's name in its certificate, and this client's certificate ({reason})"
            )),
            _ => None,
        };
        if let Some(refused) = refused {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
        }
        if matches!(code, Some(Code::BrokerTransportFailure | Code::AllBrokersDown)) {
            tracing::debug!(target: "librdkafka", %error, "{reason}");
        } else {
            tracing::warn!(target: "librdkafka", %error, "{reason}");
        }
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
    }
}

impl ConsumerContext for KafkaContext {}

impl ProducerContext for KafkaContext {
    /// The record's epoch, as [`DeliveryEpochs`] counts it.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, epoch: usize) {
        match result {
            Ok(_) => {
                self.deliveries.epochs().complete(epoch);
                self.deliveries.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
                if self.deliveries.keep_if_purged(code, message) {
                    self.deliveries.epochs().give_back(epoch);
                    return;
                }
                self.deliveries.epochs().complete(epoch);
                self.deliveries.failed.fetch_add(1, Ordering::Relaxed);
                let mut first = self.deliveries.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert_with(|| DeliveryFailure {
                    code,
                    topic: message.topic().to_owned(),
                    detail: error.to_string(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENIED: &str = "[thrd:main]: sasl_ssl://127.0.0.1:9092/1: Failed to add partition \"eadt.decisions.v1\" [0] to transaction: \
                          Broker: Topic authorization failed";
    const LOST: &str = "[thrd:host:9092/1]: host:9092/1: Broker changed state UP -> DOWN";

    fn context() -> KafkaContext {
        KafkaContext::new("User:eadt".into())
    }

    /// As the library reports that a record was not delivered.
    fn fails(context: &KafkaContext, topic: &str, code: Code) {
        let mut first = context.deliveries.first_failure.lock().unwrap();
        first.get_or_insert_with(|| DeliveryFailure { code, topic: topic.to_owned(), detail: "the detail".to_owned() });
    }

    fn failure(context: &KafkaContext, fatal: Option<Code>) -> Option<(Remedy, String)> {
        let fatal = || fatal.map(|code| (code, "it is over".to_owned()));
        let error = context.take_failure(|| "sending".to_owned(), fatal, Remedy::Retry)?;
        assert_eq!(error.what, "sending");
        Some((error.remedy, error.detail))
    }

    #[test]
    fn what_was_not_delivered_is_reported_once_and_only_of_this_step() {
        let context = context();
        assert_eq!(failure(&context, None), None);
        fails(&context, "a", Code::MessageTimedOut);
        fails(&context, "b", Code::MessageSizeTooLarge);
        assert_eq!(failure(&context, None), Some((Remedy::Retry, "the detail, topic a".to_owned())));
        assert_eq!(failure(&context, None), None);
        fails(&context, "a", Code::MessageTimedOut);
        context.log(RDKafkaLogLevel::Warning, "ADDPARTS", DENIED);
        context.forget_failures();
        assert_eq!(failure(&context, None), None);
        fails(&context, "a", Code::MessageTimedOut);
        assert_eq!(
            failure(&context, None),
            Some((Remedy::Retry, "the detail, topic a".to_owned())),
            "the denial was forgotten, too"
        );
    }

    #[test]
    fn records_that_were_thrown_away_give_the_reason() {
        let context = context();
        for purged in [Code::PurgeQueue, Code::PurgeInflight] {
            fails(&context, "a", purged);
            let (remedy, detail) = failure(&context, Some(Code::ProducerFenced)).unwrap();
            assert!(
                remedy == Remedy::Stop && detail.starts_with("fenced: ") && detail.contains("it is over, topic a"),
                "{detail}"
            );
            fails(&context, "a", purged);
            assert_eq!(failure(&context, None), Some((Remedy::Retry, "the detail, topic a".to_owned())));
        }
        // A message that failed by itself is reported, whatever state the producer is in.
        fails(&context, "a", Code::MessageTimedOut);
        assert_eq!(failure(&context, Some(Code::ProducerFenced)), Some((Remedy::Retry, "the detail, topic a".to_owned())));
    }

    #[test]
    fn a_right_to_write_that_is_lacking_is_named_with_its_topic() {
        let lacking = |topic: &str| {
            let detail = format!("denied: User:eadt lacks the right Write on topic {topic}: grant it, see `eadt topics acls`");
            Some((Remedy::Stop, detail))
        };
        let context = context();
        fails(&context, "a", Code::TopicAuthorizationFailed);
        assert_eq!(failure(&context, None), lacking("a"));
        // A client that may write to no topic gets no producer id.
        fails(&context, "a", Code::PurgeQueue);
        assert_eq!(failure(&context, Some(Code::ClusterAuthorizationFailed)), lacking("a"));
        fails(&context, "a", Code::ClusterAuthorizationFailed);
        assert!(failure(&context, None).unwrap().1.starts_with("denied by the broker (the detail, topic a)"));
        // In a transaction only the log shows which.
        context.log(RDKafkaLogLevel::Warning, "OTHER", DENIED);
        fails(&context, "a", Code::PurgeQueue);
        assert_eq!(failure(&context, None), Some((Remedy::Retry, "the detail, topic a".to_owned())));
        context.log(RDKafkaLogLevel::Warning, "ADDPARTS", DENIED);
        fails(&context, "a", Code::PurgeQueue);
        assert_eq!(failure(&context, None), lacking("eadt.decisions.v1"));
    }

    #[test]
    fn lost_connections_are_counted_where_the_library_reports_them() {
        let context = context();
        context.log(RDKafkaLogLevel::Debug, "STATE", LOST);
        context.log(RDKafkaLogLevel::Debug, "STATE", LOST);
        context.log(RDKafkaLogLevel::Debug, "STATE", "[thrd:host:9092/1]: host:9092/1: Broker changed state INIT -> UP");
        context.log(RDKafkaLogLevel::Debug, "BROKER", LOST);
        assert_eq!(context.disconnects(), 2);
        assert_eq!(context.last_error(), None);
        context.log(RDKafkaLogLevel::Error, "FAIL", "connection refused");
        assert_eq!(context.last_error().as_deref(), Some("connection refused"));
    }

    #[test]
    fn properties_that_a_client_does_not_use_are_logged_at_debug_only() {
        let level = |level, facility| {
            let (lines, ()) = eadt_testing::lines(|| context().log(level, facility, "message"));
            lines.join("").split_whitespace().find(|word| ["DEBUG", "INFO", "WARN"].contains(word)).map(str::to_owned)
        };
        assert_eq!(level(RDKafkaLogLevel::Warning, "CONFWARN").as_deref(), Some("DEBUG"));
        assert_eq!(level(RDKafkaLogLevel::Warning, "OTHER").as_deref(), Some("INFO"));
        assert_eq!(level(RDKafkaLogLevel::Notice, "CONFWARN").as_deref(), Some("INFO"));
        assert_eq!(level(RDKafkaLogLevel::Error, "FAIL").as_deref(), Some("WARN"));
        assert_eq!(level(RDKafkaLogLevel::Debug, "STATE").as_deref(), Some("DEBUG"));
    }

    #[test]
    fn a_refusal_that_trying_again_cannot_mend_reports_what_to_check() {
        let refused = |code: Code| {
            let context = context();
            context.error(KafkaError::Global(code), "reason");
            assert_eq!(context.last_error().as_deref(), Some("reason"));
            context.connection_refusal()
        };
        for code in [Code::Authentication, Code::SaslAuthenticationFailed] {
            assert_eq!(refused(code).unwrap(), "the broker refused User:eadt: check user and password (reason)");
        }
        assert!(refused(Code::SSL).unwrap().starts_with("the TLS connection was refused: check the authority's certificate"));
        assert_eq!(refused(Code::BrokerTransportFailure), None);
    }

    #[test]
    fn a_topic_that_is_denied_to_a_transaction_is_known_from_the_log() {
        assert_eq!(denied_topic(DENIED), Some("eadt.decisions.v1"));
        assert_eq!(denied_topic(&DENIED.replace("Topic authorization failed", "Operation not attempted")), None);
    }

    #[test]
    fn only_an_established_connection_of_use_is_a_loss() {
        let line = |broker: &str, change: &str| format!("[thrd:{broker}]: {broker}: Broker changed state {change}");
        let (learned, bootstrap) = ("sasl_ssl://127.0.0.1:9092/1", "sasl_ssl://127.0.0.1:9092/bootstrap");
        assert!(is_loss(&line(learned, "UP -> DOWN")));
        assert!(is_loss(&line(learned, "REAUTH -> DOWN")));
        assert!(is_loss(&line("TxnCoordinator", "UP -> DOWN")));
        // Found by a run in which every step had a fresh producer: log lines of the library while it connects to the cluster.
        assert!(!is_loss(&line(bootstrap, "UP -> DOWN")));
        assert!(!is_loss(&line("TxnCoordinator", "TRY_CONNECT -> DOWN")));
        assert!(!is_loss(&line(learned, "SSL_HANDSHAKE -> DOWN")));
        assert!(!is_loss(&line(learned, "DOWN -> INIT")));
    }
}
