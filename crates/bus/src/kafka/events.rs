//! The consumer's event queue, read directly.
//!
//! Unsafe code, as in `acls.rs` and nowhere else in the crate. The safe wrapper reports the end of a partition without its topic
//! and offset. Both are needed: from the offset of the end, control records included, the processor knows that its state is
//! complete. Everything that leaves this module is owned.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use eadt_schemas::EventTime;
use rdkafka::bindings as native;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::context::KafkaContext;
use super::packing::{RecordContent, RecordPacker};
use crate::{ConsumerRecord, TopicPartition, chaos};

/// Replaces the value of an event that is to be refused with its fields, if a test of that is run.
pub const REFUSED: &[u8] = b"fields that are not known";

/// An event of the client library.
#[derive(Debug)]
pub enum ConsumerEvent {
    Record(ConsumerRecord),
    End { at: TopicPartition, position: i64 },
    Assign(Vec<TopicPartition>),
    Revoke(Vec<TopicPartition>),
    Failed { code: Code, detail: String, fatal: bool, at: Option<TopicPartition> },
}

/// A consumer and its queue.
pub struct ConsumerQueue {
    queue: NonNull<native::rd_kafka_queue_t>,
    /// Taken by [`Drop`]. Unanswered requests share it.
    consumer: Option<Arc<BaseConsumer<KafkaContext>>>,
    topics: Vec<Arc<str>>,
    /// Topic of the last message.
    topic: Option<Arc<str>>,
    packer: RecordPacker,
}

impl std::fmt::Debug for ConsumerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerQueue").field("topics", &self.topics).finish_non_exhaustive()
    }
}

// SAFETY: librdkafka's queues may be used from any thread; nothing here is bound to the one that made it.
#[allow(unsafe_code)]
unsafe impl Send for ConsumerQueue {}

/// Destroys the event when it goes out of scope.
struct RdKafkaEvent(NonNull<native::rd_kafka_event_t>);

impl Drop for RdKafkaEvent {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the pointer came from `rd_kafka_queue_poll` and is destroyed only here.
        unsafe { native::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

impl ConsumerQueue {
    /// Builds the queue. The consumer must have a group id: only then do all its events come to one queue.
    #[allow(unsafe_code)]
    pub fn new(consumer: BaseConsumer<KafkaContext>) -> Option<Self> {
        // SAFETY: the client lives as long as `consumer`; the queue handle is released in `drop`, before it.
        let queue = unsafe { native::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
        let queue = NonNull::new(queue)?;
        Some(Self { queue, consumer: Some(Arc::new(consumer)), topics: Vec::new(), topic: None, packer: RecordPacker::new() })
    }

    pub fn consumer(&self) -> &Arc<BaseConsumer<KafkaContext>> {
        self.consumer.as_ref().expect("taken by drop only")
    }

    /// Returns the next event, or `None` after the timeout. Also returns `None` for events that need no handling.
    #[allow(unsafe_code)]
    pub fn next(&mut self, timeout: Duration) -> Option<ConsumerEvent> {
        // Rounded up, so that a wait below a millisecond is not a spin.
        let millis = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid until `drop`.
        let event = RdKafkaEvent(NonNull::new(unsafe { native::rd_kafka_queue_poll(self.queue.as_ptr(), millis) })?);
        // SAFETY: the event is valid until `event` is dropped.
        match unsafe { native::rd_kafka_event_type(event.0.as_ptr()) } {
            native::RD_KAFKA_EVENT_FETCH => {
                // SAFETY: a fetch event holds one message, valid as long as the event.
                let message = unsafe { native::rd_kafka_event_message_next(event.0.as_ptr()).as_ref()? };
                Some(self.message(message))
            }
            native::RD_KAFKA_EVENT_ERROR => Some(self.error(&event)),
            native::RD_KAFKA_EVENT_REBALANCE => Some(self.rebalance(&event)),
            _ => None,
        }
    }

    #[allow(unsafe_code)]
    fn message(&mut self, message: &native::rd_kafka_message_t) -> ConsumerEvent {
        // SAFETY: a fetched message always has its topic; the name is a C string owned by it.
        let topic = unsafe { CStr::from_ptr(native::rd_kafka_topic_name(message.rkt)) };
        let at = TopicPartition { topic: self.topic_of_run(topic), partition: message.partition };
        let code = Code::from(message.err);
        if code == Code::PartitionEOF {
            return ConsumerEvent::End { at, position: message.offset };
        }
        if code != Code::NoError {
            // SAFETY: the text is valid as long as the message.
            let detail = unsafe { text(native::rd_kafka_message_errstr(message)) };
            return ConsumerEvent::Failed { code, detail, fatal: false, at: Some(at) };
        }
        let mut kind = native::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: plain out-parameter.
        let stamp = unsafe { native::rd_kafka_message_timestamp(message, &raw mut kind) };
        // SAFETY: pointers and lengths describe the message's own bytes.
        let (key, value) = unsafe { (bytes(message.key, message.key_len), bytes(message.payload, message.len)) };
        let value = value.map(|value| if chaos::is_refused(value) { REFUSED } else { value });
        let RecordContent { key, value, headers } = self.packer.pack(key, value, headers(message));
        ConsumerEvent::Record(ConsumerRecord {
            at,
            offset: message.offset,
            stamp: EventTime::from_millis(stamp),
            key,
            value,
            headers,
        })
    }

    /// Messages come in runs of a topic.
    fn topic_of_run(&mut self, name: &CStr) -> Arc<str> {
        match &self.topic {
            Some(topic) if topic.as_bytes() == name.to_bytes() => Arc::clone(topic),
            _ => Arc::clone(self.topic.insert(intern(&mut self.topics, &name.to_string_lossy()))),
        }
    }

    #[allow(unsafe_code)]
    fn error(&mut self, event: &RdKafkaEvent) -> ConsumerEvent {
        let event = event.0.as_ptr();
        // SAFETY: the event is valid; texts live as long as it does; the partition is ours to destroy.
        unsafe {
            let code = Code::from(native::rd_kafka_event_error(event));
            let detail = text(native::rd_kafka_event_error_string(event));
            let fatal = native::rd_kafka_event_error_is_fatal(event) != 0;
            let mut at = None;
            let partition = native::rd_kafka_event_topic_partition(event);
            if let Some(found) = partition.as_ref() {
                let topic = CStr::from_ptr(found.topic).to_string_lossy();
                let of = TopicPartition { topic: intern(&mut self.topics, &topic), partition: found.partition };
                let position = found.offset;
                native::rd_kafka_topic_partition_destroy(partition);
                if code == Code::PartitionEOF {
                    return ConsumerEvent::End { at: of, position };
                }
                at = Some(of);
            }
            ConsumerEvent::Failed { code, detail, fatal, at }
        }
    }

    #[allow(unsafe_code)]
    fn rebalance(&mut self, event: &RdKafkaEvent) -> ConsumerEvent {
        let event = event.0.as_ptr();
        // SAFETY: the list belongs to the event and is only read.
        let (code, list) = unsafe {
            let list = native::rd_kafka_event_topic_partition_list(event).as_ref();
            let list = list.map_or(&[][..], |list| match usize::try_from(list.cnt) {
                Ok(count) if count > 0 => std::slice::from_raw_parts(list.elems, count),
                _ => &[],
            });
            (Code::from(native::rd_kafka_event_error(event)), list)
        };
        let partitions = list
            .iter()
            .map(|element| {
                // SAFETY: the name is a C string owned by the list.
                let topic = unsafe { CStr::from_ptr(element.topic) }.to_string_lossy();
                TopicPartition { topic: intern(&mut self.topics, &topic), partition: element.partition }
            })
            .collect();
        match code {
            Code::AssignPartitions => ConsumerEvent::Assign(partitions),
            Code::RevokePartitions => ConsumerEvent::Revoke(partitions),
            code => ConsumerEvent::Failed { code, detail: "the group could not be balanced".into(), fatal: false, at: None },
        }
    }
}

impl Drop for ConsumerQueue {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: obtained once in `new`, not used afterwards.
        unsafe { native::rd_kafka_queue_destroy(self.queue.as_ptr()) };
        let Some(consumer) = self.consumer.take() else { return };
        // Closing has been seen to hang while partitions are assigned; without any it does not, and if it ever does, only
        // this thread stays behind.
        drop(consumer.unassign());
        // Carries nothing: its end is the news.
        let (sender, receiver) = std::sync::mpsc::sync_channel::<()>(0);
        let closing = eadt_tasks::KAFKA_CLOSE.thread(move || {
            drop(consumer);
            drop(sender);
        });
        if closing.is_ok() && receiver.recv_timeout(Duration::from_secs(10)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::error!("a Kafka consumer does not close; its thread is left behind");
        }
    }
}

/// Returns the names and values in order. The client library takes a message's headers apart here, for the first time.
#[allow(unsafe_code)]
fn headers(message: &native::rd_kafka_message_t) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut list = ptr::null_mut();
    // SAFETY: plain out-parameter; the list belongs to the message.
    let found = Code::from(unsafe { native::rd_kafka_message_headers(message, &raw mut list) }) == Code::NoError;
    (0..).map_while(move |index| {
        let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the list is there, and lives as long as the message; plain out-parameters; beyond the last header an error
        // comes back.
        let got = found
            && Code::from(unsafe {
                native::rd_kafka_header_get_all(list, index, &raw mut name, &raw mut value, &raw mut length)
            }) == Code::NoError;
        // SAFETY: name is a C string and value has `length` bytes, both owned by the message.
        got.then(|| unsafe { (CStr::from_ptr(name).to_bytes(), bytes(value, length).unwrap_or_default()) })
    })
}

/// Returns whether the log may have a record that was not delivered: it was sent, and not refused.
#[allow(unsafe_code)]
pub fn may_be_in_log(message: &BorrowedMessage<'_>) -> bool {
    // SAFETY: a message of the library, which lives as long as the reference.
    let status = unsafe { native::rd_kafka_message_status(message.ptr()) };
    status != native::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED
}

/// # Safety
/// `begin` is null, or `length` bytes can be read from it for as long as `'a`.
#[allow(unsafe_code)]
unsafe fn bytes<'a>(begin: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: promised by the caller.
    (!begin.is_null()).then(|| unsafe { std::slice::from_raw_parts(begin.cast::<u8>(), length) })
}

/// Returns a text of the client library; empty if there is none.
///
/// # Safety
/// The pointer is null or a C string.
#[allow(unsafe_code)]
pub(super) unsafe fn text(message: *const std::ffi::c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// Returns one text for all records; bounded, since foreign producers may invent names without end.
fn intern(known: &mut Vec<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = known.iter().find(|known| &***known == name) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    if known.len() < 64 {
        known.push(Arc::clone(&name));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_topics_so_many_names_are_kept_once() {
        let mut known = Vec::new();
        for number in 0..200 {
            let name = format!("topic-{number}");
            assert_eq!(&*intern(&mut known, &name), name);
            let is_kept = Arc::ptr_eq(&intern(&mut known, &name), &intern(&mut known, &name));
            assert_eq!(is_kept, number < 64, "{name}");
        }
        assert_eq!(known.len(), 64);
    }
}
