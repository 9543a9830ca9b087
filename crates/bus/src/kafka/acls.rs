//! Access lists: granting rights, and asking the broker which ones this client has.
//!
//! The safe wrapper of the client library knows neither, so its C interface is used. Everything that leaves this module is
//! owned. No operation is tried out: the broker itself returns the operations that the client may do (KIP-430). It cannot
//! be asked about transactional ids: for those a producer is started under a name that no service uses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use rdkafka::bindings as native;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::context::KafkaContext;
use super::errors::{explain, is_denied};
use super::events::text;
use super::{ANSWER, KafkaBus};
use crate::rights::{AclEntry, AclOperation, AclResource, PatternType};
use crate::{BusError, Remedy, Result};
use rdkafka::producer::Producer as _;

/// Appended to the prefix of transactional ids for the producer that finds out whether they may be used.
const PROBE: &str = "doctor";
/// Pause before a request is repeated that could not be answered yet.
const AGAIN: Duration = Duration::from_millis(200);

impl KafkaBus {
    /// Allows a principal (`User:NAME`) these operations, from every host. What is allowed already stays so. Needs the right to
    /// alter the cluster.
    pub fn grant(&self, principal: &str, rights: &[AclEntry]) -> Result<()> {
        let what = format!("granting rights to {principal}");
        let bindings = rights.iter().map(|right| AclBinding::new(principal, right, &what)).collect::<Result<Vec<_>>>()?;
        if bindings.is_empty() {
            return Ok(());
        }
        let admin = self.shared.admin()?;
        let call = AdminRequest::new(admin.inner(), native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATEACLS, false, &what)?;
        create(&call, &bindings, rights, &what).map_err(|error| BusError { detail: self.who_and(&error.detail), ..error })
    }

    /// Returns those of these rights that this client lacks. A prefix means every one of `topics` that starts with it.
    pub fn missing_rights(&self, rights: &[AclEntry], topics: &[String]) -> Result<Vec<AclEntry>> {
        let wanted: BTreeSet<AclEntry> = rights.iter().flat_map(|right| expand(right, topics)).collect();
        let names = |of: fn(&AclResource) -> Option<&String>| -> BTreeSet<String> {
            wanted.iter().filter_map(|right| of(&right.resource)).cloned().collect()
        };
        let topics = names(|resource| if let AclResource::Topic(name) = resource { Some(name) } else { None });
        let groups = names(|resource| if let AclResource::Group(name) = resource { Some(name) } else { None });
        let ids = names(|resource| if let AclResource::TransactionalId(name) = resource { Some(name) } else { None });
        let (of_topics, of_groups) = (self.allowed_on_topics(&topics)?, self.allowed_on_groups(&groups)?);
        let mut of_ids = BTreeMap::new();
        for id in &ids {
            of_ids.insert(id.clone(), self.may_use_transactional_id(id)?);
        }
        // If the client may not even describe a topic, its other rights are unknown. Only the right to describe is missing for
        // certain.
        let looks = |right: &AclEntry| right.operation.implies(AclOperation::Describe);
        let hidden = |right: &AclEntry, allowed: &BTreeSet<AclOperation>| {
            allowed.is_empty() && !looks(right) && wanted.iter().any(|other| other.resource == right.resource && looks(other))
        };
        let has = |right: &AclEntry| match &right.resource {
            AclResource::Topic(name) => {
                of_topics.get(name).is_some_and(|allowed| allows(allowed, right.operation) || hidden(right, allowed))
            }
            AclResource::Group(name) => of_groups.get(name).is_some_and(|allowed| allows(allowed, right.operation)),
            AclResource::TransactionalId(name) => of_ids.get(name).copied().unwrap_or(false),
            // Only an administrator needs any; a missing right is reported by the call that needs it.
            AclResource::Cluster => true,
        };
        Ok(wanted.iter().filter(|right| !has(right)).cloned().collect())
    }

    /// Returns the name by which the brokers know this client, as far as it can know itself.
    pub fn principal(&self) -> String {
        self.shared.options.principal()
    }

    fn who_and(&self, detail: &str) -> String {
        format!("{detail} (asked as {})", self.principal())
    }

    fn allowed_on_topics(&self, names: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<AclOperation>>> {
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let what = "asking for rights on topics";
        let admin = self.shared.admin()?;
        let call = AdminRequest::new(admin.inner(), native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, true, what)?;
        describe_topics(&call, names, what)
    }

    fn allowed_on_groups(&self, names: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<AclOperation>>> {
        let what = "asking for rights on groups";
        let (admin, mut all) = (self.shared.admin()?, BTreeMap::new());
        // One by one: the client library takes one denied group for a failure of the call.
        for name in names {
            let begun = Instant::now();
            let allowed = loop {
                let kind = native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
                let call = AdminRequest::new(admin.inner(), kind, true, what)?;
                match describe_group(&call, name, what) {
                    // A broker that was never asked for a group makes room for them first.
                    Err(error) if error.remedy == Remedy::Retry && begun.elapsed() < ANSWER => std::thread::sleep(AGAIN),
                    allowed => break allowed?,
                }
            };
            all.insert(name.clone(), allowed);
        }
        Ok(all)
    }

    fn may_use_transactional_id(&self, id: &str) -> Result<bool> {
        let (producer, _) = self.transactional_producer(id)?;
        match producer.init_transactions(ANSWER) {
            Ok(()) => Ok(true),
            Err(error) => match error.rdkafka_error_code() {
                Some(code) if is_denied(code) => Ok(false),
                _ => Err(super::errors::from_error(format!("starting transactions of {id}"), &error, Remedy::Retry)),
            },
        }
    }
}

fn allows(allowed: &BTreeSet<AclOperation>, wanted: AclOperation) -> bool {
    allowed.iter().any(|operation| operation.implies(wanted))
}

/// Returns the rights to check in place of `right`.
fn expand(right: &AclEntry, topics: &[String]) -> Vec<AclEntry> {
    match (&right.resource, right.pattern) {
        (AclResource::Topic(prefix), PatternType::Prefixed) => topics
            .iter()
            .filter(|topic| topic.starts_with(prefix.as_str()))
            .map(|topic| AclEntry::on(AclResource::Topic(topic.clone()), right.operation))
            .collect(),
        (AclResource::TransactionalId(prefix), PatternType::Prefixed) => {
            vec![AclEntry::on(AclResource::TransactionalId(format!("{prefix}{PROBE}")), right.operation)]
        }
        // Probing with another producer's id would end its transactions. For a group prefix, the group is unknown.
        (AclResource::TransactionalId(_), PatternType::Literal) | (AclResource::Group(_), PatternType::Prefixed) => Vec::new(),
        _ => vec![right.clone()],
    }
}

fn native_operation(operation: AclOperation) -> native::rd_kafka_AclOperation_t {
    use native::rd_kafka_AclOperation_t as N;
    match operation {
        AclOperation::Read => N::RD_KAFKA_ACL_OPERATION_READ,
        AclOperation::Write => N::RD_KAFKA_ACL_OPERATION_WRITE,
        AclOperation::Create => N::RD_KAFKA_ACL_OPERATION_CREATE,
        AclOperation::Alter => N::RD_KAFKA_ACL_OPERATION_ALTER,
        AclOperation::Describe => N::RD_KAFKA_ACL_OPERATION_DESCRIBE,
        AclOperation::AlterConfigs => N::RD_KAFKA_ACL_OPERATION_ALTER_CONFIGS,
        AclOperation::DescribeConfigs => N::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS,
    }
}

const OPERATIONS: [AclOperation; 7] = [
    AclOperation::Read,
    AclOperation::Write,
    AclOperation::Create,
    AclOperation::Alter,
    AclOperation::Describe,
    AclOperation::AlterConfigs,
    AclOperation::DescribeConfigs,
];

fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| BusError::new(Remedy::Stop, what, format!("the name {text:?} holds a zero byte")))
}

/// One entry, destroyed when it goes out of scope.
struct AclBinding(NonNull<native::rd_kafka_AclBinding_t>);

impl AclBinding {
    #[allow(unsafe_code)]
    fn new(principal: &str, right: &AclEntry, what: &str) -> Result<Self> {
        use native::{rd_kafka_ResourcePatternType_t as P, rd_kafka_ResourceType_t as R};
        let kind = match right.resource {
            AclResource::Topic(_) => R::RD_KAFKA_RESOURCE_TOPIC,
            AclResource::Group(_) => R::RD_KAFKA_RESOURCE_GROUP,
            AclResource::TransactionalId(_) => R::RD_KAFKA_RESOURCE_TRANSACTIONAL_ID,
            // The protocol has one number for both.
            AclResource::Cluster => R::RD_KAFKA_RESOURCE_BROKER,
        };
        let pattern = match right.pattern {
            PatternType::Literal => P::RD_KAFKA_RESOURCE_PATTERN_LITERAL,
            PatternType::Prefixed => P::RD_KAFKA_RESOURCE_PATTERN_PREFIXED,
        };
        let (name, principal) = (c_string(right.resource.name(), what)?, c_string(principal, what)?);
        let mut detail: [c_char; 512] = [0; 512];
        // SAFETY: all texts are C strings that outlive the call, which copies them; the buffer has the length that is passed.
        let made = unsafe {
            native::rd_kafka_AclBinding_new(
                kind,
                name.as_ptr(),
                pattern,
                principal.as_ptr(),
                c"*".as_ptr(),
                native_operation(right.operation),
                native::rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW,
                detail.as_mut_ptr(),
                detail.len(),
            )
        };
        NonNull::new(made).map(Self).ok_or_else(|| {
            // SAFETY: the library has written a C string into the buffer, which begins as one.
            let detail = unsafe { CStr::from_ptr(detail.as_ptr()) }.to_string_lossy();
            BusError::new(Remedy::Stop, what, format!("{right} is no possible right: {detail}"))
        })
    }
}

impl Drop for AclBinding {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here.
        unsafe { native::rd_kafka_AclBinding_destroy(self.0.as_ptr()) }
    }
}

/// One question to the brokers: its queue and its options.
struct AdminRequest<'a> {
    client: &'a rdkafka::client::Client<KafkaContext>,
    queue: NonNull<native::rd_kafka_queue_t>,
    options: NonNull<native::rd_kafka_AdminOptions_t>,
}

impl<'a> AdminRequest<'a> {
    /// Builds a request. `operations`: whether the answer should contain the operations that the client may do.
    #[allow(unsafe_code)]
    fn new(
        client: &'a rdkafka::client::Client<KafkaContext>,
        kind: native::rd_kafka_admin_op_t,
        operations: bool,
        what: &str,
    ) -> Result<Self> {
        let failed = || BusError::new(Remedy::Stop, what, "the client library gave no memory");
        // SAFETY: the client outlives the call; each pointer is destroyed once, in `drop`.
        unsafe {
            let queue = NonNull::new(native::rd_kafka_queue_new(client.native_ptr())).ok_or_else(failed)?;
            let Some(options) = NonNull::new(native::rd_kafka_AdminOptions_new(client.native_ptr(), kind)) else {
                native::rd_kafka_queue_destroy(queue.as_ptr());
                return Err(failed());
            };
            let call = Self { client, queue, options };
            let timeout = c_int::try_from(ANSWER.as_millis()).unwrap_or(c_int::MAX);
            native::rd_kafka_AdminOptions_set_request_timeout(options.as_ptr(), timeout, ptr::null_mut(), 0);
            if operations {
                let error = native::rd_kafka_AdminOptions_set_include_authorized_operations(options.as_ptr(), 1);
                if !error.is_null() {
                    native::rd_kafka_error_destroy(error);
                    return Err(BusError::new(Remedy::Stop, what, "the client library cannot ask for rights"));
                }
            }
            Ok(call)
        }
    }

    /// Returns the answer, once there is one.
    #[allow(unsafe_code)]
    fn wait_for_response(&self, what: &str) -> Result<AdminResponse> {
        let millis = c_int::try_from((ANSWER + Duration::from_secs(1)).as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is valid until `drop`.
        let event = NonNull::new(unsafe { native::rd_kafka_queue_poll(self.queue.as_ptr(), millis) })
            .map(AdminResponse)
            .ok_or_else(|| BusError::new(Remedy::Retry, what, "the brokers did not answer"))?;
        // SAFETY: the event is valid until `event` is dropped, and so is its text.
        let (code, detail) = unsafe {
            let code = Code::from(native::rd_kafka_event_error(event.0.as_ptr()));
            (code, text(native::rd_kafka_event_error_string(event.0.as_ptr())))
        };
        if code == Code::NoError {
            return Ok(event);
        }
        let remedy = if is_denied(code) { Remedy::Stop } else { Remedy::Retry };
        Err(BusError::new(remedy, what, explain(code, &detail)))
    }
}

impl Drop for AdminRequest<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here, while the client lives.
        unsafe {
            native::rd_kafka_AdminOptions_destroy(self.options.as_ptr());
            native::rd_kafka_queue_destroy(self.queue.as_ptr());
        }
    }
}

/// An event, destroyed when it goes out of scope; its contents are valid as long.
struct AdminResponse(NonNull<native::rd_kafka_event_t>);

impl Drop for AdminResponse {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: came from `rd_kafka_queue_poll`, destroyed only here.
        unsafe { native::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

#[allow(unsafe_code)]
fn create(call: &AdminRequest<'_>, bindings: &[AclBinding], rights: &[AclEntry], what: &str) -> Result<()> {
    let mut pointers: Vec<_> = bindings.iter().map(|binding| binding.0.as_ptr()).collect();
    // SAFETY: pointers and count belong together; the call copies the entries.
    unsafe {
        native::rd_kafka_CreateAcls(
            call.client.native_ptr(),
            pointers.as_mut_ptr(),
            pointers.len(),
            call.options.as_ptr(),
            call.queue.as_ptr(),
        );
    }
    let answer = call.wait_for_response(what)?;
    // SAFETY: results and their errors belong to the answer, which lives to the end of this function.
    let refused = unsafe {
        let result = native::rd_kafka_event_CreateAcls_result(answer.0.as_ptr());
        if result.is_null() {
            return Err(unexpected(what));
        }
        let mut count = 0;
        let results = native::rd_kafka_CreateAcls_result_acls(result, &raw mut count);
        items(results, count).iter().zip(rights).find_map(|(result, right)| {
            failure(native::rd_kafka_acl_result_error(*result)).map(|(code, detail)| (right, code, detail))
        })
    };
    match refused {
        None => Ok(()),
        Some((right, code, detail)) => {
            Err(BusError::new(Remedy::Stop, what, format!("{right} was not granted: {}", explain(code, &detail))))
        }
    }
}

#[allow(unsafe_code)]
fn describe_topics(
    call: &AdminRequest<'_>,
    names: &BTreeSet<String>,
    what: &str,
) -> Result<BTreeMap<String, BTreeSet<AclOperation>>> {
    let texts = names.iter().map(|name| c_string(name, what)).collect::<Result<Vec<_>>>()?;
    let mut pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    // SAFETY: the texts outlive the call, which copies them; the collection is destroyed right after it was copied.
    unsafe {
        let topics = native::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        native::rd_kafka_DescribeTopics(call.client.native_ptr(), topics, call.options.as_ptr(), call.queue.as_ptr());
        native::rd_kafka_TopicCollection_destroy(topics);
    }
    let answer = call.wait_for_response(what)?;
    let mut all = BTreeMap::new();
    // SAFETY: everything returned belongs to the answer, which lives to the end of this function.
    unsafe {
        let result = native::rd_kafka_event_DescribeTopics_result(answer.0.as_ptr());
        if result.is_null() {
            return Err(unexpected(what));
        }
        let mut count = 0;
        let described = native::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        for topic in items(described, count) {
            let name = text(native::rd_kafka_TopicDescription_name(*topic));
            let allowed = match failure(native::rd_kafka_TopicDescription_error(*topic)) {
                None => {
                    let mut count = 0;
                    let allowed = native::rd_kafka_TopicDescription_authorized_operations(*topic, &raw mut count);
                    operations(allowed, count)
                }
                // A client that may not even describe a topic gets the answer that there is none.
                Some((code, _)) if is_denied(code) || code == Code::UnknownTopicOrPartition => BTreeSet::new(),
                Some((code, detail)) => {
                    return Err(BusError::new(Remedy::Retry, format!("{what}, {name}"), explain(code, &detail)));
                }
            };
            all.insert(name, allowed);
        }
    }
    Ok(all)
}

#[allow(unsafe_code)]
fn describe_group(call: &AdminRequest<'_>, name: &str, what: &str) -> Result<BTreeSet<AclOperation>> {
    let group = c_string(name, what)?;
    let mut pointers = [group.as_ptr()];
    // SAFETY: the text outlives the call, which copies it.
    unsafe {
        native::rd_kafka_DescribeConsumerGroups(
            call.client.native_ptr(),
            pointers.as_mut_ptr(),
            pointers.len(),
            call.options.as_ptr(),
            call.queue.as_ptr(),
        );
    }
    let answer = call.wait_for_response(what)?;
    // SAFETY: everything returned belongs to the answer, which lives to the end of this function.
    unsafe {
        let result = native::rd_kafka_event_DescribeConsumerGroups_result(answer.0.as_ptr());
        if result.is_null() {
            return Err(unexpected(what));
        }
        let mut count = 0;
        let groups = native::rd_kafka_DescribeConsumerGroups_result_groups(result, &raw mut count);
        let Some(group) = items(groups, count).first() else { return Err(unexpected(what)) };
        match failure(native::rd_kafka_ConsumerGroupDescription_error(*group)) {
            None => {
                let mut count = 0;
                let allowed = native::rd_kafka_ConsumerGroupDescription_authorized_operations(*group, &raw mut count);
                Ok(operations(allowed, count))
            }
            Some((code, _)) if is_denied(code) => Ok(BTreeSet::new()),
            // The brokers' error text may be nothing but the call's name.
            Some((code, detail)) => {
                Err(BusError::new(Remedy::Retry, format!("{what}, {name}"), format!("{} ({code})", explain(code, &detail))))
            }
        }
    }
}

fn unexpected(what: &str) -> BusError {
    BusError::new(Remedy::Retry, what, "the client library gave another answer than was asked for")
}

/// # Safety
/// `array` is null, or `count` pointers can be read from it for as long as `'a`.
#[allow(unsafe_code)]
unsafe fn items<'a, T>(array: *mut *const T, count: usize) -> &'a [*const T] {
    // SAFETY: promised by the caller.
    if array.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(array, count) } }
}

/// # Safety
/// `array` is null, or `count` operations can be read from it now.
#[allow(unsafe_code)]
unsafe fn operations(array: *const native::rd_kafka_AclOperation_t, count: usize) -> BTreeSet<AclOperation> {
    if array.is_null() {
        return BTreeSet::new();
    }
    // SAFETY: promised by the caller.
    let allowed = unsafe { std::slice::from_raw_parts(array, count) };
    OPERATIONS.into_iter().filter(|operation| allowed.contains(&native_operation(*operation))).collect()
}

/// # Safety
/// `error` is null or an error that lives now.
#[allow(unsafe_code)]
unsafe fn failure(error: *const native::rd_kafka_error_t) -> Option<(Code, String)> {
    if error.is_null() {
        return None;
    }
    // SAFETY: promised by the caller; the text lives as long as the error.
    let (code, detail) = unsafe { (Code::from(native::rd_kafka_error_code(error)), text(native::rd_kafka_error_string(error))) };
    (code != Code::NoError).then_some((code, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_asked_for_topic_by_topic_and_ids_under_a_name_of_our_own() {
        let topics = ["eadt.a".to_owned(), "eadt.b".to_owned(), "other".to_owned()];
        let all = AclEntry::on_prefix(AclResource::Topic("eadt.".into()), AclOperation::Describe);
        let asked: Vec<_> = expand(&all, &topics).iter().map(ToString::to_string).collect();
        assert_eq!(asked, ["Describe on topic eadt.a", "Describe on topic eadt.b"]);
        let ids = AclEntry::on_prefix(AclResource::TransactionalId("processor-".into()), AclOperation::Write);
        assert_eq!(expand(&ids, &[])[0].resource.name(), "processor-doctor");
        assert!(expand(&AclEntry::on(AclResource::TransactionalId("processor-0".into()), AclOperation::Write), &[]).is_empty());
    }
}
