//! Sends a story to the log at a pace, until it is asked to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use eadt_bus::{Bus, Producer, ProducerRecord, Remedy};

use crate::story::{Story, StoryEvent};

/// How long records may take to be acknowledged; longer than any broker is away.
const FLUSH: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub struct Feeder {
    stop: Arc<AtomicBool>,
    hushed: Arc<AtomicBool>,
    seconds: Arc<AtomicU64>,
    thread: JoinHandle<Result<Story>>,
}

/// Hands a record over, however long the log takes none.
pub fn send(producer: &mut dyn Producer, record: &ProducerRecord) -> Result<()> {
    loop {
        match producer.send(record.clone()) {
            Ok(()) => return Ok(()),
            Err(error) if error.remedy == Remedy::Retry => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Hands these events over.
pub fn send_events<'a>(
    producer: &mut dyn Producer,
    prefix: &str,
    events: impl IntoIterator<Item = &'a StoryEvent>,
) -> Result<()> {
    events.into_iter().try_for_each(|event| send(producer, &event.outgoing(prefix)))
}

/// The same, every second one as a producer of the next minor version would write it.
pub fn send_mixed(producer: &mut dyn Producer, prefix: &str, events: &[StoryEvent]) -> Result<()> {
    for (number, story_event) in events.iter().enumerate() {
        let mut outgoing = story_event.outgoing(prefix);
        if number % 2 == 1
            && let Ok(mut event) = serde_json::from_slice(&story_event.value)
        {
            eadt_faults::next_version(&mut event);
            outgoing.value = Some(event.to_string().into());
        }
        send(producer, &outgoing)?;
    }
    Ok(())
}

impl Feeder {
    /// Sends a second of the story every `pace`, and the first one before it returns, so that every source is known before any
    /// window can close.
    pub fn start(bus: &dyn Bus, prefix: &str, story: Story, pace: Duration) -> Result<Self> {
        Self::start_with(bus, prefix, story, pace, |producer, prefix, events| send_events(producer, prefix, events))
    }

    /// The same by producers of this and of the next minor version.
    pub fn mixed(bus: &dyn Bus, prefix: &str, story: Story, pace: Duration) -> Result<Self> {
        Self::start_with(bus, prefix, story, pace, send_mixed)
    }

    fn start_with(
        bus: &dyn Bus,
        prefix: &str,
        mut story: Story,
        pace: Duration,
        send_events: fn(&mut dyn Producer, &str, &[StoryEvent]) -> Result<()>,
    ) -> Result<Self> {
        let mut producer = bus.producer("chaos-feeder")?;
        story.tick();
        send_events(&mut *producer, prefix, &story.events)?;
        ensure!(producer.flush(FLUSH)?, "the first second was not acknowledged");
        let (stop, seconds, prefix) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)), prefix.to_owned());
        let (asked, count) = (Arc::clone(&stop), Arc::clone(&seconds));
        let hushed = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&hushed);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::SeqCst) {
                let from = story.tick();
                send_events(&mut *producer, &prefix, &story.events[from..])?;
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(pace);
            }
            // Earlier events are in the log before any end.
            ensure!(producer.flush(FLUSH)?, "records were not acknowledged");
            if silent.load(Ordering::SeqCst) {
                return Ok(story);
            }
            let from = story.end();
            send_events(&mut *producer, &prefix, &story.events[from..])?;
            ensure!(producer.flush(FLUSH)?, "the last records were not acknowledged");
            Ok(story)
        });
        Ok(Self { stop, hushed, seconds, thread })
    }

    /// Seconds of the story sent so far.
    pub fn seconds(&self) -> u64 {
        self.seconds.load(Ordering::SeqCst)
    }

    /// Stops without ending its sources; returns what was sent.
    pub fn hush(self) -> Result<Story> {
        self.hushed.store(true, Ordering::SeqCst);
        self.finish()
    }

    /// Ends the story; returns the sent events.
    pub fn finish(self) -> Result<Story> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the feeder panicked"))?
    }
}
