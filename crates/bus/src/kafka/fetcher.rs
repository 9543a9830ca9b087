//! Partitions being read, by either path: the client library's, or the one of our own.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::context::KafkaContext;
use super::errors::{explain, from_error, is_denied, is_fenced, missing_right_message};
use super::fetch::NativeFetcher;
use super::library_fetcher::LibraryFetcher;
use crate::rights::{AclOperation, AclResource};
use crate::{BusError, PollEvent, Remedy, Result, TopicPartition};

/// Asking for watermarks in an error message.
const ASK: Duration = Duration::from_secs(5);

/// The path by which records are read from Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FetchPath {
    /// The client library.
    Librdkafka,
    /// The fetch path of our own.
    #[default]
    Native,
}

impl FromStr for FetchPath {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "librdkafka" => Ok(Self::Librdkafka),
            "native" => Ok(Self::Native),
            other => Err(format!("there is no fetch path {other}: there are native and librdkafka")),
        }
    }
}

/// Rebalance that [`Fetcher::poll`] leaves to its caller.
#[derive(Debug)]
pub enum RebalanceEvent {
    Assign(Vec<TopicPartition>),
    Revoke(Vec<TopicPartition>),
}

#[derive(Debug)]
pub enum Fetcher {
    Library(Box<LibraryFetcher>),
    Native(Box<NativeFetcher>),
}

impl Fetcher {
    pub fn consumer(&self) -> &Arc<BaseConsumer<KafkaContext>> {
        match self {
            Self::Library(fetcher) => fetcher.consumer(),
            Self::Native(fetcher) => fetcher.events().consumer(),
        }
    }

    /// Returns whether the consumer of the client library fetches the records.
    pub fn is_of_library(&self) -> bool {
        matches!(self, Self::Library(_))
    }

    /// Returns the partitions, and the next offset of those that were started.
    pub fn positions(&self) -> Vec<(TopicPartition, Option<i64>)> {
        let cloned = |(at, next): (&TopicPartition, Option<i64>)| (at.clone(), next);
        match self {
            Self::Library(fetcher) => fetcher.positions().map(cloned).collect(),
            Self::Native(fetcher) => fetcher.positions().map(cloned).collect(),
        }
    }

    /// Replaces the partitions; nothing of them is delivered before [`Self::start`].
    pub fn set_partitions(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        match self {
            Self::Library(fetcher) => fetcher.set_partitions(partitions),
            Self::Native(fetcher) => {
                fetcher.set_partitions(partitions);
                // Confirms the assignment to the group; the consumer itself gets nothing to fetch.
                let none = rdkafka::TopicPartitionList::new();
                let assigned = fetcher.events().consumer().assign(&none);
                assigned.map_err(|error| from_error("starting partitions", &error, Remedy::Restart))
            }
        }
    }

    /// Gives everything away.
    pub fn clear(&mut self) -> Result<()> {
        match self {
            Self::Library(fetcher) => fetcher.clear(),
            Self::Native(fetcher) => {
                fetcher.set_partitions(&[]);
                let result = fetcher.events().consumer().unassign();
                result.map_err(|error| from_error("giving partitions away", &error, Remedy::Restart))
            }
        }
    }

    pub fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        match self {
            Self::Library(fetcher) => fetcher.start(at, offset),
            Self::Native(fetcher) => fetcher.start(at, offset),
        }
    }

    pub fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        match self {
            Self::Library(fetcher) => fetcher.pause(at),
            Self::Native(fetcher) => fetcher.set_paused(at, true),
        }
    }

    pub fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        match self {
            Self::Library(fetcher) => fetcher.resume(at),
            Self::Native(fetcher) => fetcher.set_paused(at, false),
        }
    }

    /// Returns for how long no broker has answered, if this path knows it.
    pub fn unanswered(&self) -> Option<Duration> {
        match self {
            Self::Library(_) => None,
            Self::Native(fetcher) => fetcher.unanswered(),
        }
    }

    /// Returns for how long one of the brokers that are read from has not answered, if this path knows it.
    pub fn silent_broker(&self) -> Option<Duration> {
        match self {
            Self::Library(_) => None,
            Self::Native(fetcher) => fetcher.silent_broker(),
        }
    }

    /// Accepts batches of records from now on, if the path has them.
    pub fn accept_batches(&mut self) {
        match self {
            Self::Library(_) => {}
            Self::Native(fetcher) => fetcher.accept_batches(),
        }
    }

    /// Appends at most `max` items; a rebalance ends the call at once.
    pub fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<Option<RebalanceEvent>> {
        match self {
            Self::Library(fetcher) => fetcher.poll(max, timeout, into),
            Self::Native(fetcher) => fetcher.poll(max, timeout, into),
        }
    }
}

/// Returns an error of the client library if the caller must handle it; the library tries again after all others.
pub fn group_failure(
    consumer: &BaseConsumer<KafkaContext>,
    group: &str,
    code: Code,
    detail: &str,
    fatal: bool,
    at: Option<&TopicPartition>,
) -> Option<BusError> {
    let of = || at.map_or_else(|| "reading".to_owned(), |at| format!("reading {at}"));
    match code {
        Code::AutoOffsetReset => {
            Some(BusError::new(Remedy::Stop, of(), format!("retention has deleted what was there ({detail})")))
        }
        Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed => {
            let resource = match (code, at) {
                (Code::TopicAuthorizationFailed, Some(at)) => AclResource::Topic(at.topic.to_string()),
                (Code::GroupAuthorizationFailed, _) => AclResource::Group(group.to_owned()),
                _ => return Some(BusError::new(Remedy::Stop, of(), explain(code, detail))),
            };
            let who = consumer.context().client_name();
            Some(BusError::new(Remedy::Stop, of(), missing_right_message(who, AclOperation::Read, &resource)))
        }
        code if fatal || is_fenced(code) || is_denied(code) => Some(BusError::new(Remedy::Stop, of(), explain(code, detail))),
        Code::PollExceeded => Some(BusError::new(
            Remedy::Restart,
            of(),
            format!("the member was away for longer than max.poll.interval.ms and has lost its partitions ({detail})"),
        )),
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            Some(BusError::new(Remedy::Retry, of(), explain(code, detail)))
        }
        // A lost connection is in the log already, once, and comes back by itself.
        Code::BrokerTransportFailure | Code::AllBrokersDown => {
            tracing::debug!(?code, "{detail}");
            None
        }
        code => {
            tracing::warn!(?code, partition = at.map(ToString::to_string), "{detail}");
            None
        }
    }
}

/// Returns the error of a position that cannot be read: retention has deleted it, or it never existed.
pub fn lost_position(consumer: &BaseConsumer<KafkaContext>, at: &TopicPartition, position: i64, detail: &str) -> BusError {
    let detail = match consumer.fetch_watermarks(&at.topic, at.partition, ASK) {
        Ok((_, high)) if position > high => format!(
            "the partition ends at {high}: the position belongs to another log, or records were lost; was the topic recreated?"
        ),
        Ok((low, _)) => format!("retention deleted these records: continue at {low}, and treat the offsets between as a gap"),
        Err(_) => format!("retention has deleted what was there ({detail})"),
    };
    BusError::new(Remedy::Stop, format!("reading {at} from {position}"), detail)
}

#[cfg(test)]
mod tests {
    use rdkafka::config::{ClientConfig, FromClientConfigAndContext};

    use super::*;

    #[test]
    fn lost_connections_are_no_warning_and_other_errors_of_no_call_are() {
        let consumer = BaseConsumer::from_config_and_context(&ClientConfig::new(), KafkaContext::new("".into())).unwrap();
        for (code, warns) in
            [(Code::AllBrokersDown, false), (Code::BrokerTransportFailure, false), (Code::OperationTimedOut, true)]
        {
            let (lines, error) =
                eadt_testing::lines(|| group_failure(&consumer, "group", code, "0/1 brokers are down", false, None));
            assert!(error.is_none(), "{error:?}");
            assert_eq!(lines.iter().any(|line| line.contains("WARN") && line.contains("0/1")), warns, "{code:?}: {lines:?}");
        }
    }
}
