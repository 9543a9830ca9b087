//! What an error of the client library means to the caller.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::rights::{Operation, Resource};
use crate::{BusError, Remedy};

/// A newer member or producer of the same name has taken over.
pub fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced | Code::ProducerFenced | Code::FencedInstanceId | Code::FencedMemberEpoch | Code::InvalidProducerEpoch
    )
}

/// Trying again cannot help, somebody has to change something.
pub fn is_final(code: Code) -> bool {
    is_fenced(code)
        || is_denied(code)
        || matches!(
            code,
            Code::MessageSizeTooLarge
                | Code::InvalidRecord
                | Code::InvalidTopic
                | Code::InvalidTransactionTimeout
                | Code::UnsupportedVersion
                | Code::UnsupportedFeature
                | Code::InvalidConfig
                | Code::Fatal
        )
}

pub fn is_denied(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
    )
}

/// Begins what [`lacks`] says.
const DENIED: &str = "denied: ";

/// Who lacks which right, and how to grant it.
pub fn lacks(who: &str, operation: Operation, resource: &Resource) -> String {
    format!("{DENIED}{who} lacks the right {operation} on {resource}: grant it, see `eadt topics acls`")
}

/// Words for a code, with what to do where that is known.
pub fn explain(code: Code, said: &str) -> String {
    if is_fenced(code) {
        return format!(
            "fenced: a newer member of the same instance has taken over ({said}); where both are to run, give each an instance name of its own"
        );
    }
    if said.starts_with(DENIED) {
        return said.to_owned();
    }
    if is_denied(code) {
        return format!("denied by the broker ({said}): check user, password, certificates and access rights");
    }
    match code {
        Code::MessageSizeTooLarge => format!("a record is larger than the topic allows ({said})"),
        Code::InvalidRecord => {
            format!("the broker refused a record ({said}); a compacted topic takes no record without a key")
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic => {
            format!("there is no such topic or partition ({said}): run `eadt topics apply`")
        }
        Code::UnknownPartition => {
            format!(
                "there is no such partition, or every broker that has it is away ({said}): start them, or run `eadt topics apply`"
            )
        }
        _ => said.to_owned(),
    }
}

/// An error whose remedy follows from its code: final ones stop, `otherwise` for all others.
pub fn from_code(what: impl Into<String>, code: Code, said: &str, otherwise: Remedy) -> BusError {
    BusError::new(if is_final(code) { Remedy::Stop } else { otherwise }, what, explain(code, said))
}

pub fn from_error(what: impl Into<String>, error: &KafkaError, otherwise: Remedy) -> BusError {
    let code = match error {
        KafkaError::Transaction(error) => Some(error.code()),
        other => other.rdkafka_error_code(),
    };
    match (error, code) {
        (KafkaError::ClientConfig(_, description, name, value), _) => {
            let shown = if super::is_secret(name) { "…" } else { value };
            BusError::new(Remedy::Stop, what, format!("the Kafka property {name}={shown} is not possible: {description}"))
        }
        (_, Some(code)) => from_code(what, code, &error.to_string(), otherwise),
        (_, None) => BusError::new(otherwise, what, error),
    }
}
