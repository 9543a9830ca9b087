//! State that the threads of devices share with the rest of the agent: the intent in force, and the progress of each thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::chaos;
use eadt_schemas::EventTime;
use eadt_service::ServiceClock;

use crate::desired::DesiredNodeSettings;

/// An accepted intent.
#[derive(Debug, Clone)]
pub(crate) struct LiveIntent {
    pub desired: Arc<DesiredNodeSettings>,
    pub intent_time: EventTime,
    pub decision_id: String,
    /// End of the intent by the wall clock, which the sender roughly shares.
    pub until: EventTime,
    /// End of the intent by a monotonic clock.
    pub until_instant: Instant,
}

#[derive(Debug, Default)]
struct SharedIntentState {
    live: Option<LiveIntent>,
    /// Grows with every change, so that waiting threads see it.
    version: u64,
    stopping: bool,
}

/// The intent that all threads follow.
#[derive(Debug)]
pub(crate) struct SharedIntent {
    order: Mutex<SharedIntentState>,
    changed: Condvar,
    clock: ServiceClock,
}

/// The present task of a thread.
#[derive(Debug, Clone)]
pub(crate) struct IntentSnapshot {
    pub desired: Arc<DesiredNodeSettings>,
    /// No setting is requested any more, and this is the last step.
    pub stopping: bool,
    version: u64,
}

impl SharedIntent {
    pub fn new(clock: ServiceClock) -> Self {
        Self { order: Mutex::default(), changed: Condvar::new(), clock }
    }

    fn lock(&self) -> MutexGuard<'_, SharedIntentState> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut SharedIntentState)) {
        let mut order = self.lock();
        change(&mut order);
        order.version += 1;
        drop(order);
        self.changed.notify_all();
    }

    /// Replaces the intent; `None` if nothing is requested.
    pub fn set(&self, live: Option<LiveIntent>) {
        self.change(|order| order.live = live);
    }

    pub fn stop(&self) {
        self.change(|order| order.stopping = true);
    }

    fn still_live(&self, live: &LiveIntent) -> bool {
        chaos::is_off("time-to-live") || self.clock.now() < live.until && Instant::now() < live.until_instant
    }

    /// Returns the intent in force; the dead man's switch: past its time there is none.
    pub fn live(&self) -> Option<LiveIntent> {
        let live = self.lock().live.clone();
        live.filter(|live| self.still_live(live))
    }

    pub fn now(&self) -> IntentSnapshot {
        let order = self.lock();
        let live = order.live.as_ref().filter(|live| !order.stopping && self.still_live(live));
        IntentSnapshot {
            desired: live.map(|live| live.desired.clone()).unwrap_or_default(),
            stopping: order.stopping,
            version: order.version,
        }
    }

    /// Waits until the task differs from `now`, at most for `longest`.
    pub fn wait(&self, now: &IntentSnapshot, longest: Duration) {
        let order = self.lock();
        let left = order.live.as_ref().map_or(longest, |live| live.until_instant.saturating_duration_since(Instant::now()));
        // An intent ends with its time to live, without a message.
        let wait = if left.is_zero() { longest } else { longest.min(left) };
        let waited = self.changed.wait_timeout_while(order, wait, |order| order.version == now.version);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The progress of one thread, visible to others while it hangs in a call.
#[derive(Debug)]
pub(crate) struct WorkerSlot<R> {
    state: Mutex<SlotState<R>>,
}

#[derive(Debug)]
struct SlotState<R> {
    name: String,
    busy: Option<Instant>,
    stuck: bool,
    /// The reason why the device is not available now.
    lost: Option<String>,
    report: Option<R>,
    ended: bool,
}

/// A look at a slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotView<R> {
    pub name: String,
    pub report: Option<R>,
    /// The reason why nothing newer is known.
    pub trouble: Option<String>,
    pub ended: bool,
}

impl<R: Clone> WorkerSlot<R> {
    pub fn new(name: String) -> Self {
        let state = SlotState { name, busy: None, stuck: false, lost: None, report: None, ended: false };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn rename(&self, name: &str) -> String {
        std::mem::replace(&mut self.lock().name, name.to_owned())
    }

    pub fn begin(&self) {
        self.lock().busy = Some(Instant::now());
    }

    /// Returns true if the call had been reported as stuck.
    pub fn end(&self) -> bool {
        let mut state = self.lock();
        state.busy = None;
        std::mem::take(&mut state.stuck)
    }

    pub fn report(&self, report: R) {
        let mut state = self.lock();
        state.report = Some(report);
        state.lost = None;
    }

    pub fn lost(&self, reason: String) {
        self.lock().lost = Some(reason);
    }

    pub fn ended(&self) {
        self.lock().ended = true;
    }

    /// Looks whether a call hangs; true the first time that it is seen to.
    pub fn watch(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        let hangs = state.busy.is_some_and(|since| since.elapsed() >= timeout);
        hangs && !std::mem::replace(&mut state.stuck, true)
    }

    pub fn view(&self) -> SlotView<R> {
        let state = self.lock();
        let stuck = state.stuck.then(|| "the device does not answer".to_owned());
        SlotView {
            name: state.name.clone(),
            report: state.report.clone(),
            trouble: stuck.or_else(|| state.lost.clone()),
            ended: state.ended,
        }
    }
}
