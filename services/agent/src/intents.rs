//! Sources of intents: the node's partition of `device-intents.v1`, or a file.
//!
//! An intent is accepted if it is for this node, readable, not older than the last one, not from the future, and still live. Any
//! other one is counted by the reason, and written to the dead letters if it came from the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use eadt_bus::{
    Bus, BusError, ConsumerRecord, IsolationLevel, PollEvent, Remedy, StartOffset, TopicPartition, partition_for_key,
};
use eadt_schemas::v1::{DeadLetterReason, DeviceIntent};
use eadt_schemas::{DecodeError, EventTime, EventType, Topic, decode, envelope};
use eadt_service::{ServiceClock, Shutdown, files};

use crate::desired::DesiredNodeSettings;
use crate::log::LazyBus;
use crate::metrics::AgentMetrics;
use crate::publish::ReportOutbox;
use crate::worker::{LiveIntent, SharedIntent};

/// Further ahead of its stamp than this, an intent is not believed.
const MAX_FUTURE_SECONDS: f64 = 60.0;
const POLL: Duration = Duration::from_millis(50);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The reason why an intent is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntentRefusal {
    #[error("{0}")]
    Invalid(DecodeError),
    #[error("it is for node {0:?}")]
    OtherNode(String),
    #[error("it is older than the one before it")]
    Stale,
    #[error("its time is more than a minute ahead of the log's")]
    Future,
    #[error("its time to live was over when it was read")]
    Expired,
}

impl IntentRefusal {
    /// Returns the kind as in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::OtherNode(_) => "other_node",
            Self::Stale => "stale",
            Self::Future => "future",
            Self::Expired => "expired",
        }
    }
}

/// Accepts an intent, or returns the refusal, and until when it is live. `stamp` is its append time in the log.
pub fn accept(
    intent: &DeviceIntent,
    node: &str,
    newest: Option<EventTime>,
    stamp: EventTime,
    now: EventTime,
) -> Result<EventTime, IntentRefusal> {
    if intent.node != node {
        return Err(IntentRefusal::OtherNode(intent.node.clone()));
    }
    if intent.time.seconds_since(stamp) > MAX_FUTURE_SECONDS {
        return Err(IntentRefusal::Future);
    }
    if newest.is_some_and(|newest| intent.time < newest) {
        return Err(IntentRefusal::Stale);
    }
    let until = EventTime::from_micros(intent.time.micros().saturating_add((intent.time_to_live_seconds * 1e6) as i64));
    if until <= now { Err(IntentRefusal::Expired) } else { Ok(until) }
}

/// Takes intents and has them followed.
#[derive(Debug)]
pub(crate) struct IntentInbox {
    pub node: String,
    pub orders: Arc<SharedIntent>,
    pub clock: ServiceClock,
    pub metrics: AgentMetrics,
    newest: Option<EventTime>,
}

impl IntentInbox {
    pub fn new(node: String, orders: Arc<SharedIntent>, clock: ServiceClock, metrics: AgentMetrics) -> Self {
        Self { node, orders, clock, metrics, newest: None }
    }

    fn take(&mut self, intent: &DeviceIntent, stamp: EventTime) -> Result<(), IntentRefusal> {
        let now = self.clock.now();
        let accepted = accept(intent, &self.node, self.newest, stamp, now);
        if matches!(accepted, Ok(_) | Err(IntentRefusal::Expired)) {
            self.newest = Some(intent.time);
        }
        if accepted == Err(IntentRefusal::Expired) {
            // It replaces the one before it all the same: that is no longer wished for.
            self.orders.set(None);
        }
        let until = accepted?;
        let desired = Arc::new(DesiredNodeSettings::of(intent));
        let named: Vec<&str> = desired.named_devices().collect();
        tracing::info!(
            decision = intent.decision_id,
            devices = named.join(","),
            time_to_live_seconds = intent.time_to_live_seconds,
            "intent accepted"
        );
        self.metrics.intent("followed");
        self.orders.set(Some(LiveIntent {
            desired,
            intent_time: intent.time,
            decision_id: intent.decision_id.clone(),
            until,
            until_instant: Instant::now() + Duration::from_secs_f64(intent.time_to_live_seconds),
        }));
        Ok(())
    }

    fn refuse(&self, why: &IntentRefusal) {
        tracing::warn!(reason = %why, "intent rejected");
        self.metrics.intent(why.kind());
    }

    fn clear(&mut self) {
        if self.orders.live().is_some() {
            tracing::info!("intent withdrawn; all original settings are restored");
            self.metrics.intent("withdrawn");
        }
        self.orders.set(None);
    }
}

/// Follows the log until `stop`. `seen` is called once the log was read to its end.
pub(crate) fn follow_log(
    log: &LazyBus,
    prefix: &str,
    inbox: &mut IntentInbox,
    outbox: &ReportOutbox,
    stop: &Shutdown,
    on_caught_up: &dyn Fn(),
) {
    let mut pause = RETRY_MIN;
    while !stop.is_cancelled() {
        let began = Instant::now();
        // After any failure of the log the agent continues: without live intents it holds nothing, and it follows the next
        // ones.
        match log.bus().and_then(|bus| follow_session(&*bus, prefix, inbox, outbox, stop, on_caught_up)) {
            Ok(()) => break,
            Err(error) => {
                if began.elapsed() > RETRY_MAX {
                    pause = RETRY_MIN;
                }
                inbox.metrics.log_reachable.set(0);
                tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "intents cannot be read; the intent in force holds until its time to live ends");
                let until = Instant::now() + pause;
                while !stop.is_cancelled() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(10));
                }
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

fn follow_session(
    bus: &dyn Bus,
    prefix: &str,
    inbox: &mut IntentInbox,
    outbox: &ReportOutbox,
    stop: &Shutdown,
    on_caught_up: &dyn Fn(),
) -> Result<(), BusError> {
    let topic: Arc<str> = format!("{prefix}{}", Topic::DeviceIntents).into();
    let spec = bus.topics(prefix)?.into_iter().find(|spec| spec.name == topic).ok_or_else(|| {
        let what = format!("reading topic {topic}");
        BusError::new(Remedy::Stop, what, "the topic does not exist; create the topics with eadt topics apply")
    })?;
    let at = TopicPartition::new(topic, partition_for_key(inbox.node.as_bytes(), spec.partitions));
    let mut reader = bus.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadCommitted)?;
    let (mut polled, mut latest, mut caught_up) = (Vec::new(), None, false);
    while !stop.is_cancelled() {
        reader.poll(1000, POLL, &mut polled)?;
        inbox.metrics.log_reachable.set(1);
        for item in polled.drain(..) {
            match item {
                // Other nodes share the partition.
                PollEvent::Record(record) if record.key.as_deref() == Some(inbox.node.as_bytes()) => latest = Some(record),
                PollEvent::End { .. } => caught_up = true,
                _ => {}
            }
        }
        // The last record of the node is all there is; older ones are not even tried.
        if caught_up {
            if let Some(record) = latest.take() {
                take_record(&record, inbox, outbox);
            }
            on_caught_up();
        }
    }
    Ok(())
}

fn take_record(record: &ConsumerRecord, inbox: &mut IntentInbox, outbox: &ReportOutbox) {
    let Some(value) = &record.value else { return inbox.clear() };
    let kind = record.header(envelope::header::TYPE);
    let decoded = match kind {
        Some(kind) if kind != EventType::DeviceIntent.name() => Err(DecodeError {
            reason: DeadLetterReason::UnexpectedType,
            field: None,
            detail: format!("{kind} is not {}", EventType::DeviceIntent.name()),
        }),
        _ => decode::<DeviceIntent>(value),
    };
    let result = decoded.map_err(IntentRefusal::Invalid).and_then(|intent| inbox.take(&intent, record.stamp));
    if let Err(why) = result {
        inbox.refuse(&why);
        if let IntentRefusal::Invalid(refusal) = &why {
            // Its requests are unknown, and the former ones end.
            inbox.orders.set(None);
            outbox.dead_letter(record, refusal);
        }
    }
}

/// Follows a file: one `DeviceIntent`, in which `time` (the file's modification time), `node` and `decision_id` may be omitted.
/// Without the file nothing is requested; touch it to extend an intent.
pub(crate) fn follow_file(path: &Path, every: Duration, inbox: &mut IntentInbox, stop: &Shutdown, on_caught_up: &dyn Fn()) {
    let mut last: Option<(SystemTime, Vec<u8>)> = None;
    while !stop.is_cancelled() {
        match read_file(path) {
            Ok(now) if last.as_ref() == Some(&now) => {}
            Ok(now) => {
                if let Err(why) = parse(&now.1, now.0, &inbox.node).map_err(IntentRefusal::Invalid).and_then(|intent| {
                    let stamp = ServiceClock::of(now.0);
                    inbox.take(&intent, stamp)
                }) {
                    inbox.refuse(&why);
                    if matches!(why, IntentRefusal::Invalid(_)) {
                        inbox.orders.set(None);
                    }
                }
                last = Some(now);
            }
            Err(error) => {
                if last.take().is_some() {
                    if error.kind() != std::io::ErrorKind::NotFound {
                        tracing::warn!(%error, path = %path.display(), "the intents file cannot be read");
                    }
                    inbox.clear();
                    // A new file may have an older time.
                    inbox.newest = None;
                }
            }
        }
        on_caught_up();
        let until = Instant::now() + every;
        while !stop.is_cancelled() && Instant::now() < until {
            std::thread::sleep(every.min(Duration::from_millis(20)));
        }
    }
}

fn read_file(path: &Path) -> std::io::Result<(SystemTime, Vec<u8>)> {
    let modified = std::fs::metadata(path)?.modified()?;
    Ok((modified, files::read_bytes(path, files::SMALL_BYTES)?))
}

fn parse(text: &[u8], modified: SystemTime, node: &str) -> Result<DeviceIntent, DecodeError> {
    let malformed = |detail: String| DecodeError { reason: DeadLetterReason::Malformed, field: None, detail };
    let mut value: serde_json::Value = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
    let object = value.as_object_mut().ok_or_else(|| malformed("not a JSON object".to_owned()))?;
    for (field, otherwise) in
        [("time", ServiceClock::of(modified).to_string()), ("node", node.to_owned()), ("decision_id", "file".to_owned())]
    {
        object.entry(field).or_insert_with(|| otherwise.into());
    }
    decode(value.to_string().as_bytes())
}

/// The source of intents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntentSource {
    Log,
    File(PathBuf),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_for_this_node_newest_and_live_is_followed() {
        let at = |seconds: f64| EventTime::from_seconds(1_000_000.0 + seconds);
        let intent = |time| DeviceIntent { time, node: "n".into(), time_to_live_seconds: 60.0, ..DeviceIntent::default() };
        let try_it = |time, newest, stamp, now| accept(&intent(time), "n", newest, stamp, now);
        assert_eq!(try_it(at(0.0), None, at(1.0), at(2.0)), Ok(at(60.0)));
        assert_eq!(try_it(at(0.0), Some(at(0.0)), at(1.0), at(2.0)), Ok(at(60.0)), "the same one, read again");
        assert_eq!(try_it(at(0.0), Some(at(1.0)), at(1.0), at(2.0)), Err(IntentRefusal::Stale));
        assert_eq!(try_it(at(0.0), None, at(1.0), at(60.0)), Err(IntentRefusal::Expired));
        assert_eq!(try_it(at(62.0), None, at(1.0), at(2.0)), Err(IntentRefusal::Future));
        assert_eq!(accept(&intent(at(0.0)), "m", None, at(0.0), at(0.0)), Err(IntentRefusal::OtherNode("n".into())));
    }

    #[test]
    fn a_file_may_leave_out_what_is_known() {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let intent = parse(br#"{"power_limit_watts": 300, "time_to_live_seconds": 60}"#, modified, "n").unwrap();
        assert_eq!((intent.node.as_str(), intent.time, intent.power_limit_watts), ("n", ServiceClock::of(modified), Some(300.0)));
        for text in ["", "[]", "{}", r#"{"power_limit_watts": -1, "time_to_live_seconds": 60}"#] {
            assert!(parse(text.as_bytes(), modified, "n").is_err(), "{text}");
        }
    }
}
