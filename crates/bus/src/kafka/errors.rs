//! Remedies for the errors of the client library.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::rights::{AclOperation, AclResource};
use crate::{BusError, FENCED, Remedy};

/// Returns true if a newer member or producer of the same name has taken over.
pub fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced | Code::ProducerFenced | Code::FencedInstanceId | Code::FencedMemberEpoch | Code::InvalidProducerEpoch
    )
}

/// Returns true if a retry cannot help, because a user has to change a setting or a right.
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

/// Prefix of the text that [`missing_right_message`] returns.
const DENIED: &str = "denied: ";

/// Returns a text that names the principal and the missing right, and how to grant it.
pub fn missing_right_message(who: &str, operation: AclOperation, resource: &AclResource) -> String {
    format!("{DENIED}{who} lacks the right {operation} on {resource}: grant it, see `eadt topics acls`")
}

/// Describes a code, with the remedy if it is known.
pub fn explain(code: Code, detail: &str) -> String {
    if is_fenced(code) {
        return format!(
            "{FENCED}a newer member of the same instance has taken over, or its group took this member for one after an outage ({detail}); \
             where two are to run, also where they read other topics, give each an instance name of its own, and where there is only this one, start it again"
        );
    }
    if detail.starts_with(DENIED) {
        return detail.to_owned();
    }
    if is_denied(code) {
        return format!("denied by the broker ({detail}): check user, password, certificates and access rights");
    }
    match code {
        Code::MessageSizeTooLarge => format!("a record is larger than the topic allows ({detail})"),
        Code::InvalidRecord => {
            format!("the broker refused a record ({detail}); a compacted topic takes no record without a key")
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic => {
            format!("the topic or partition does not exist ({detail}): run `eadt topics apply`")
        }
        Code::AllBrokersDown => {
            format!(
                "the broker that answered knows no broker, or none can be reached: one that comes back needs a moment ({detail})"
            )
        }
        Code::UnknownPartition => {
            format!(
                "the partition does not exist, or all its brokers are unavailable ({detail}): start them, or run `eadt topics apply`"
            )
        }
        _ => detail.to_owned(),
    }
}

/// Returns an error whose remedy follows from its code: final ones stop, `otherwise` for all others.
pub fn from_code(what: impl Into<String>, code: Code, detail: &str, otherwise: Remedy) -> BusError {
    BusError::new(if is_final(code) { Remedy::Stop } else { otherwise }, what, explain(code, detail))
}

pub fn from_error(what: impl Into<String>, error: &KafkaError, otherwise: Remedy) -> BusError {
    let code = match error {
        KafkaError::Transaction(error) => Some(error.code()),
        other => other.rdkafka_error_code(),
    };
    match (error, code) {
        (KafkaError::ClientConfig(_, description, name, value), _) => {
            let shown = super::secret::shown_property(name, value);
            BusError::new(Remedy::Stop, what, format!("the Kafka property {name}={shown} is not possible: {description}"))
        }
        (_, Some(code)) => from_code(what, code, &error.to_string(), otherwise),
        (_, None) => BusError::new(otherwise, what, error),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::{ClientConfig, FromClientConfig};
    use rdkafka::consumer::BaseConsumer;

    use super::*;

    #[test]
    fn what_nobody_can_wait_for_stops_and_reports_what_to_do() {
        for (code, expected) in [
            (Code::Fenced, "fenced: a newer member of the same instance has taken over, or "),
            (Code::ProducerFenced, "fenced: "),
            (Code::FencedInstanceId, "fenced: "),
            (Code::FencedMemberEpoch, "fenced: "),
            (Code::InvalidProducerEpoch, "fenced: "),
            (Code::Authentication, "denied by the broker (the detail): check user, password"),
            (Code::SaslAuthenticationFailed, "denied by the broker"),
            (Code::TopicAuthorizationFailed, "denied by the broker"),
            (Code::GroupAuthorizationFailed, "denied by the broker"),
            (Code::ClusterAuthorizationFailed, "denied by the broker"),
            (Code::TransactionalIdAuthorizationFailed, "denied by the broker"),
            (Code::MessageSizeTooLarge, "a record is larger than the topic allows (the detail)"),
            (Code::InvalidRecord, "the broker refused a record (the detail); a compacted topic takes no record without a key"),
            (Code::InvalidTopic, "the detail"),
            (Code::InvalidTransactionTimeout, "the detail"),
            (Code::UnsupportedVersion, "the detail"),
            (Code::UnsupportedFeature, "the detail"),
            (Code::InvalidConfig, "the detail"),
            (Code::Fatal, "the detail"),
        ] {
            let error = from_code("doing it", code, "the detail", Remedy::Retry);
            assert_eq!((error.remedy, error.what.as_str()), (Remedy::Stop, "doing it"), "{code:?}");
            assert!(error.detail.starts_with(expected), "{code:?}: {}", error.detail);
            assert_eq!(error.is_fenced(), is_fenced(code), "{code:?}");
        }
    }

    #[test]
    fn what_may_pass_is_left_to_whoever_asked() {
        for (code, expected) in [
            (Code::UnknownTopicOrPartition, "the topic or partition does not exist (the detail): run `eadt topics apply`"),
            (Code::UnknownTopic, "the topic or partition does not exist (the detail): run `eadt topics apply`"),
            (
                Code::UnknownPartition,
                "the partition does not exist, or all its brokers are unavailable (the detail): start them, or ",
            ),
            (Code::OperationTimedOut, "the detail"),
            (Code::NotCoordinator, "the detail"),
        ] {
            for remedy in [Remedy::Retry, Remedy::Restart] {
                let error = from_code("doing it", code, "the detail", remedy);
                assert_eq!(error.remedy, remedy, "{code:?}");
                assert!(error.detail.starts_with(expected), "{code:?}: {}", error.detail);
            }
        }
    }

    #[test]
    fn a_right_that_is_known_to_be_lacking_is_named() {
        let detail = missing_right_message("User:eadt", AclOperation::Write, &AclResource::Topic("eadt.decisions.v1".into()));
        assert_eq!(
            detail,
            "denied: User:eadt lacks the right Write on topic eadt.decisions.v1: grant it, see `eadt topics acls`"
        );
        assert_eq!(from_code("sending", Code::TopicAuthorizationFailed, &detail, Remedy::Retry).detail, detail);
    }

    #[test]
    fn the_value_of_an_impossible_property_is_shown_unless_it_may_be_secret() {
        let refused = |name: &str| {
            let mut config = ClientConfig::new();
            config.set(name, "hunter2").set("compression.type", "lz4");
            let error = BaseConsumer::from_config(&config).err().expect("a property that does not exist");
            let error = from_error("connecting", &error, Remedy::Retry);
            assert_eq!(error.remedy, Remedy::Stop);
            error.detail
        };
        assert!(refused("linger.ms").starts_with("the Kafka property linger.ms=hunter2 is not possible: "));
        for unknown in ["no.such.property", "no.such.password", "sasl.pasword"] {
            let error = refused(unknown);
            assert!(error.starts_with(&format!("the Kafka property {unknown}=… is not possible: ")), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_error_without_a_code_is_reported_and_left_to_whoever_asked() {
        let error = from_error("subscribing", &KafkaError::Subscription("no".into()), Remedy::Restart);
        assert_eq!((error.remedy, error.detail.as_str()), (Remedy::Restart, "Subscription error: no"));
        let fenced = KafkaError::MessageProduction(Code::ProducerFenced);
        assert_eq!(from_error("sending", &fenced, Remedy::Restart).remedy, Remedy::Stop);
    }
}
