//! The log's clock against this machine's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_bus::{Bus, BusError, IsolationLevel, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition};
use eadt_schemas::envelope::{Envelope, header};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::ServiceClock;

use super::Findings;

/// Clocks of machines that use NTP differ by milliseconds. Above a second, one of them is not synchronised.
const MOST_MICROS: i64 = 1_000_000;
const WAIT: Duration = Duration::from_secs(10);

/// Appends a heartbeat, which every reader passes over, and reads its stamp. `max_future_seconds`: how far ahead of the stamp an
/// event may be.
pub fn compare(bus: &dyn Bus, prefix: &str, clock: &ServiceClock, max_future_seconds: Option<f64>, findings: &mut Findings) {
    let at = TopicPartition::new(format!("{prefix}{}", Topic::GpuTelemetry), 0);
    match append_probe(bus, &at, clock) {
        Ok((before, stamp, after)) => report_skew(before, stamp, after, max_future_seconds, findings),
        Err(error) => findings.unchecked("clock", format!("no stamp of the broker's: {error}")),
    }
}

/// Appends a probe. Returns the time when the record was handed over, its stamp, and the time when it was known to be there.
fn append_probe(bus: &dyn Bus, at: &TopicPartition, clock: &ServiceClock) -> Result<(EventTime, EventTime, EventTime), BusError> {
    let from = bus.watermarks(at)?.high;
    let mut reader = bus.reader(&[(at.clone(), StartOffset::At(from))], IsolationLevel::ReadCommitted)?;
    let mut producer = bus.producer("eadt-doctor")?;
    // The first record of a client also pays for its connection: that time is no measure for the stamp of a second one.
    let mut sent = None;
    for turn in 0..2 {
        let before = clock.now();
        let id = format!("doctor/{turn}/{before}");
        let envelope = Envelope {
            id: id.clone(),
            source: "/doctor".to_owned(),
            kind: EventType::Heartbeat,
            time: before,
            subject: String::new(),
        };
        producer.send(ProducerRecord {
            topic: Arc::clone(&at.topic),
            partition: Some(at.partition),
            key: None,
            value: Some(Bytes::from_static(b"{}")),
            headers: eadt_bus::headers(&envelope),
        })?;
        if !producer.flush(WAIT)? {
            return Err(BusError::new(Remedy::Retry, format!("appending to {at}"), "it was not acknowledged within 10 s"));
        }
        sent = Some((id, before, clock.now()));
    }
    let (id, before, after) = sent.expect("two were sent");
    let (begun, mut polled) = (Instant::now(), Vec::new());
    while begun.elapsed() < WAIT {
        reader.poll(1000, Duration::from_millis(100), &mut polled)?;
        for item in polled.drain(..) {
            if let PollEvent::Record(record) = item
                && record.header(header::ID) == Some(&*id)
            {
                return Ok((before, record.stamp, after));
            }
        }
    }
    Err(BusError::new(Remedy::Retry, format!("reading {at}"), "the record that was appended did not come back within 10 s"))
}

fn report_skew(before: EventTime, stamp: EventTime, after: EventTime, max_future_seconds: Option<f64>, findings: &mut Findings) {
    // The stamp has whole milliseconds and was made somewhere between the two.
    let behind = before.micros() - (stamp.micros() + 999);
    let ahead = stamp.micros() - after.micros();
    let seconds = |micros: i64| micros as f64 / 1e6;
    let apart = behind.max(ahead);
    if apart <= MOST_MICROS {
        let about = format!("this machine's and the broker's agree to {:.1} s", seconds(MOST_MICROS));
        findings.ok("clock", about);
        return;
    }
    let about = if ahead > behind {
        format!("the broker's clock is {:.1} s ahead of this machine's", seconds(ahead))
    } else {
        let refused = match max_future_seconds {
            Some(limit) if seconds(behind) > limit => ": events from here are refused as lying in the future",
            _ => "",
        };
        format!("the broker's clock is {:.1} s behind this machine's{refused}", seconds(behind))
    };
    findings.wrong("clock", about, "keep both clocks by NTP (chrony, systemd-timesyncd): windows close by the broker's stamps");
}

#[cfg(test)]
mod tests {
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
    use eadt_bus::topics::{PartitionGrowthPolicy, apply, desired, plan};

    use super::super::CheckStatus;
    use super::*;

    /// Returns the finding for a log's clock that runs so many seconds ahead of this machine's.
    fn finding(ahead_seconds: i64, max_future: Option<f64>) -> super::super::Finding {
        let dir = tempfile::tempdir().unwrap();
        let now = EventTime::from_micros(1_767_225_600_000_000);
        let stamp = EventTime::from_micros(now.micros() + ahead_seconds * 1_000_000);
        let options = EmbeddedOptions { stamps: StampSource::Injected(Arc::new(move || stamp)), ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        apply(&log, &plan(&[], &desired("eadt.", 1, 1), PartitionGrowthPolicy::Refuse)).unwrap();
        let mut findings = Findings::default();
        compare(&log, "eadt.", &ServiceClock::fixed(now), max_future, &mut findings);
        assert_eq!(findings.0.len(), 1);
        findings.0.remove(0)
    }

    #[test]
    fn clocks_that_agree_are_well() {
        assert_eq!(finding(0, Some(60.0)).state, CheckStatus::Ok);
    }

    #[test]
    fn a_clock_that_is_not_kept_is_found_in_both_directions() {
        let ahead = finding(90, Some(60.0));
        assert!(ahead.state == CheckStatus::Wrong && ahead.about.contains("90.0 s ahead"), "{ahead:?}");
        let behind = finding(-90, Some(60.0));
        assert!(
            behind.state == CheckStatus::Wrong && behind.about.contains("behind this machine's: events from here are refused"),
            "{behind:?}"
        );
        assert!(behind.remedy.unwrap().contains("NTP"));
        let little = finding(-30, Some(60.0));
        assert!(little.state == CheckStatus::Wrong && !little.about.contains("refused"), "{little:?}");
    }

    #[test]
    fn a_slow_answer_is_not_taken_for_a_wrong_clock() {
        let at = |seconds: i64| EventTime::from_micros(seconds * 1_000_000);
        let mut findings = Findings::default();
        report_skew(at(100), at(104), at(110), None, &mut findings);
        assert_eq!(findings.0[0].state, CheckStatus::Ok);
    }
}
