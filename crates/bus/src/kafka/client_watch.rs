//! Detects library clients that get no answer although the cluster answers others.
//!
//! The library (2.12) gives up its brokers when one of them answers that it knows none, as a broker does that was paused and is not
//! taken back yet. It may then never ask the configured brokers again. A fresh client begins with these.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::KafkaBus;
use super::context::KafkaContext;
use super::silence_watchdog::SilenceWatchdog;
use crate::Bus;

/// Time without an answer after which the client for metadata is replaced.
const UNANSWERED: Duration = Duration::from_secs(10);
/// Shortest time between two replacements. A broker that knows no broker answers at once, again and again.
const LEAST_LIFE: Duration = Duration::from_secs(1);
/// Longest time until a request of the watched client is answered.
const OWN_ANSWER: Duration = Duration::from_secs(1);
/// Shortest time without answers that counts as an outage.
const LEAST_OUTAGE: Duration = Duration::from_secs(3);
/// Longest time after an outage in which a group takes a member for its own successor.
const OUTAGE_MEMORY: Duration = Duration::from_mins(1);

/// Result of a request, as far as it concerns the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestResult {
    Answered,
    Unanswered,
    /// The broker that answered knows no broker.
    Brokerless,
}

impl RequestResult {
    pub fn of<T>(answer: &KafkaResult<T>) -> Self {
        match answer.as_ref().err().map(KafkaError::rdkafka_error_code) {
            None => Self::Answered,
            Some(Some(Code::AllBrokersDown)) => Self::Brokerless,
            // The codes of brokers are positive, those of the library negative.
            Some(Some(code)) if code as i32 > 0 => Self::Answered,
            Some(_) => Self::Unanswered,
        }
    }
}

/// Decides when a client is replaced. Pure: the caller has the clock.
#[derive(Debug, Default)]
struct ReplacementPolicy {
    unanswered_since: Option<Instant>,
    /// A broker returned no brokers. One more unanswered request is enough to replace the client.
    has_lost_brokers: bool,
    replaced_at: Option<Instant>,
}

impl ReplacementPolicy {
    /// Notes a request that was made at `asked` and ended at `now`. Returns whether the client is to be replaced.
    fn note(&mut self, asked: Instant, now: Instant, result: RequestResult) -> bool {
        let is_due = match result {
            RequestResult::Answered => {
                (self.unanswered_since, self.has_lost_brokers) = (None, false);
                return false;
            }
            RequestResult::Unanswered => {
                let since = *self.unanswered_since.get_or_insert(asked);
                self.has_lost_brokers || now.duration_since(since) >= UNANSWERED
            }
            RequestResult::Brokerless => {
                self.has_lost_brokers = true;
                true
            }
        };
        let is_due = is_due && self.replaced_at.is_none_or(|at| now.duration_since(at) >= LEAST_LIFE);
        if is_due {
            *self = Self { replaced_at: Some(now), ..Self::default() };
        }
        is_due
    }
}

/// The client for metadata requests. It is replaced if it gets no answer.
pub struct MetadataClient {
    present: Mutex<PresentClient>,
}

struct PresentClient {
    client: Arc<BaseConsumer<KafkaContext>>,
    policy: ReplacementPolicy,
    /// Number of replacements since the last answer.
    replacements: u64,
}

impl MetadataClient {
    pub fn new(client: BaseConsumer<KafkaContext>) -> Self {
        let present = PresentClient { client: Arc::new(client), policy: ReplacementPolicy::default(), replacements: 0 };
        Self { present: Mutex::new(present) }
    }

    fn lock(&self) -> MutexGuard<'_, PresentClient> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client. Its events have no other reader, so they are discarded here.
    pub fn get(&self) -> Arc<BaseConsumer<KafkaContext>> {
        let client = Arc::clone(&self.lock().client);
        while client.poll(Duration::ZERO).is_some() {}
        client
    }

    /// Notes a request of this client that was made at `asked`. Returns whether the client is to be replaced.
    pub fn note(&self, client: &Arc<BaseConsumer<KafkaContext>>, asked: Instant, result: RequestResult) -> bool {
        let mut present = self.lock();
        if !Arc::ptr_eq(&present.client, client) {
            return false;
        }
        if result == RequestResult::Answered && present.replacements > 0 {
            tracing::info!(clients = present.replacements, "brokers answer again after the metadata client was recreated");
            present.replacements = 0;
        }
        present.policy.note(asked, Instant::now(), result)
    }

    /// Replaces a client, unless another thread has replaced it already.
    pub fn replace(&self, old: &Arc<BaseConsumer<KafkaContext>>, fresh: BaseConsumer<KafkaContext>) {
        let mut present = self.lock();
        if !Arc::ptr_eq(&present.client, old) {
            return;
        }
        let gone = std::mem::replace(&mut present.client, Arc::new(fresh));
        present.replacements += 1;
        tracing::debug!(clients = present.replacements, "no broker answered the metadata client: it was recreated");
        drop(present);
        // Closing waits for the threads of the library, which may be looking up a name.
        drop(eadt_tasks::KAFKA_CLOSE.thread(move || drop(gone)));
    }
}

/// The last outage that a client has noticed. Pure: the caller has the clock.
#[derive(Debug, Default)]
struct OutageRecord {
    unanswered_since: Option<Instant>,
    last: Option<Instant>,
}

impl OutageRecord {
    fn note(&mut self, now: Instant, is_answered: bool) {
        if is_answered {
            self.unanswered_since = None;
        } else if now.duration_since(*self.unanswered_since.get_or_insert(now)) >= LEAST_OUTAGE {
            self.last = Some(now);
        }
    }

    /// Returns the end of an outage that was a short time ago.
    fn recent(&self, now: Instant) -> Option<Instant> {
        self.last.filter(|last| now.duration_since(*last) < OUTAGE_MEMORY)
    }
}

/// Detects whether a consumer gets no answer although the cluster answers others.
#[derive(Debug)]
pub struct ConsumerWatch {
    bus: KafkaBus,
    /// Topic that is asked about.
    topic: Arc<str>,
    watchdog: SilenceWatchdog,
    own_answer: Duration,
    /// Number of times that a broker answered.
    signs: u64,
    outage: OutageRecord,
}

impl ConsumerWatch {
    pub fn new(bus: &KafkaBus, topic: &Arc<str>) -> Self {
        Self {
            bus: bus.clone(),
            topic: Arc::clone(topic),
            watchdog: SilenceWatchdog::new(Instant::now()),
            own_answer: OWN_ANSWER,
            signs: 0,
            outage: OutageRecord::default(),
        }
    }

    /// Returns whether the client is to be replaced. To be called after every poll; asks the brokers only if nothing was `received`
    /// for some time.
    pub fn is_replacement_due(&mut self, client: &BaseConsumer<KafkaContext>, received: bool) -> bool {
        self.signs += u64::from(received);
        let now = Instant::now();
        if received {
            self.outage.note(now, true);
        }
        if !self.watchdog.is_probe_due(now, self.signs, u64::MAX) {
            return false;
        }
        let answer = client.fetch_metadata(Some(&self.topic), self.own_answer);
        let is_answered = RequestResult::of(&answer) == RequestResult::Answered;
        self.outage.note(Instant::now(), is_answered);
        if is_answered {
            self.signs += 1;
            return false;
        }
        let is_cluster_there = self.bus.probe(&self.topic).is_ok();
        self.watchdog.is_renewal_due(Instant::now(), is_cluster_there) && !crate::chaos::is_off("fresh-silent-consumer")
    }

    /// Returns for how long no broker has answered.
    pub fn unanswered(&self) -> Option<Duration> {
        self.outage.unanswered_since.map(|since| since.elapsed())
    }

    /// Returns whether a fenced member may join its group once more. The group itself may have fenced it: it answers the second
    /// request to join, of a member whose first one was answered too late, as if a newer member had come. Once for each outage, so
    /// that of two members of one name only one stays.
    pub fn may_join_again(&self, group: &str) -> bool {
        let Some(outage) = self.outage.recent(Instant::now()) else { return false };
        self.bus.shared.note_joined_again(group, outage)
    }

    #[cfg(test)]
    pub fn remember_outage(&mut self) {
        self.outage.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::{ClientConfig, FromClientConfigAndContext};

    use super::super::mock::{MockBrokers, until};
    use super::*;

    #[test]
    fn only_a_request_that_no_broker_answered_counts_against_the_client() {
        let failed = |code| RequestResult::of::<()>(&Err(KafkaError::MetadataFetch(code)));
        assert_eq!(RequestResult::of(&Ok(())), RequestResult::Answered);
        for (code, expected) in [
            (Code::UnknownTopicOrPartition, RequestResult::Answered),
            (Code::TopicAuthorizationFailed, RequestResult::Answered),
            (Code::OperationTimedOut, RequestResult::Unanswered),
            (Code::BrokerTransportFailure, RequestResult::Unanswered),
            (Code::UnknownPartition, RequestResult::Unanswered),
            (Code::AllBrokersDown, RequestResult::Brokerless),
        ] {
            assert_eq!(failed(code), expected, "{code:?}");
        }
        assert_eq!(RequestResult::of::<()>(&Err(KafkaError::Canceled)), RequestResult::Unanswered);
    }

    #[test]
    fn a_client_is_replaced_after_some_time_without_an_answer_and_not_again_at_once() {
        use RequestResult::{Answered, Brokerless, Unanswered};
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        // Milliseconds at which a request was made and ended, its result, and whether the client is replaced.
        for requests in [
            &[(0, 4_000, Unanswered, false), (4_000, 9_999, Unanswered, false), (9_999, 10_000, Unanswered, true)][..],
            &[(0, 30_000, Unanswered, true), (30_000, 34_000, Unanswered, false), (34_000, 40_000, Unanswered, true)],
            &[(0, 9_000, Unanswered, false), (9_000, 9_100, Answered, false), (9_100, 19_000, Unanswered, false)],
            &[
                (0, 1, Brokerless, true),
                (1, 20, Brokerless, false),
                (20, 1_000, Brokerless, false),
                (1_000, 1_001, Brokerless, true),
            ],
            &[(0, 1, Brokerless, true), (1, 20, Brokerless, false), (20, 900, Unanswered, false), (900, 1_001, Unanswered, true)],
            &[(0, 1, Brokerless, true), (1, 20, Brokerless, false), (20, 30, Answered, false), (30, 4_030, Unanswered, false)],
            &[(0, 1, Answered, false), (1, 2, Brokerless, true), (2, 3, Answered, false), (3, 1_002, Brokerless, true)],
        ] {
            let mut policy = ReplacementPolicy::default();
            for (asked, ended, result, is_due) in requests {
                assert_eq!(policy.note(at(*asked), at(*ended), *result), *is_due, "{asked} of {requests:?}");
            }
        }
    }

    #[test]
    fn an_outage_is_remembered_for_a_minute_and_one_lost_answer_is_none() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut outage = OutageRecord::default();
        for (second, is_answered) in [(0, false), (2, true), (4, false), (6, false), (7, true)] {
            outage.note(at(second), is_answered);
        }
        assert_eq!(outage.recent(at(7)), None);
        for (second, is_answered) in [(10, false), (13, false), (14, true)] {
            outage.note(at(second), is_answered);
        }
        assert_eq!((outage.recent(at(72)), outage.recent(at(73))), (Some(at(13)), None));
    }

    #[test]
    fn a_consumer_that_nobody_answers_though_the_cluster_does_is_to_be_replaced_and_no_other() {
        let brokers = MockBrokers::start();
        let client = |address: &str| {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", address);
            BaseConsumer::from_config_and_context(&config, KafkaContext::new("".into())).unwrap()
        };
        let watch = || {
            let limit = Duration::from_millis(50);
            let watchdog = SilenceWatchdog::with_limit(Instant::now(), limit);
            ConsumerWatch { watchdog, own_answer: limit, ..ConsumerWatch::new(&brokers.bus, &"in".into()) }
        };
        // No broker listens at this address.
        let (unanswered, mut watched) = (client("127.0.0.1:1"), watch());
        until(|| watched.is_replacement_due(&unanswered, false));
        // A received response is a sign of life.
        let (mut watched, begun) = (watch(), Instant::now());
        until(|| {
            assert!(!watched.is_replacement_due(&unanswered, true));
            begun.elapsed() > Duration::from_millis(200)
        });
        let (answered, mut watched) = (client(&brokers.cluster.bootstrap_servers()), watch());
        watched.own_answer = super::super::mock::WAIT;
        let begun = Instant::now();
        until(|| {
            assert!(!watched.is_replacement_due(&answered, false));
            begun.elapsed() > Duration::from_millis(300)
        });
        assert!(watched.signs > 0);
    }

    #[test]
    fn a_fenced_member_joins_again_once_for_each_outage() {
        let brokers = MockBrokers::start();
        let mut watch = ConsumerWatch::new(&brokers.bus, &"in".into());
        assert!(!watch.may_join_again("group"), "without an outage it was another member");
        watch.remember_outage();
        assert_eq!([watch.may_join_again("group"), watch.may_join_again("group")], [true, false]);
        assert!(watch.may_join_again("other"));
        watch.remember_outage();
        assert!(watch.may_join_again("group"), "a later outage");
    }
}
