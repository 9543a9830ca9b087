//! Leader election by a Lease, as Kubernetes' own controllers do it: 15 s without a renewal and another one leads.
//!
//! A leader trusts itself for less time than the others wait, and measures both with clocks of its own process: wall clocks that
//! differ do no harm. Late writes of a leader that was paused are fenced at the object: by the resource version of its last read,
//! and by the term on the object's mark. The term is the number of changes of leadership.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;

/// A leader that has not renewed its Lease for this long is replaced.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader trusts its leadership for this long after the start of its last renewal.
const LEADER_TRUST: Duration = Duration::from_secs(10);
const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// Interval in which waits for another term check again.
const TERM_POLL: Duration = Duration::from_secs(1);
/// One request; several fit into `TRUST`.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// The present leadership, as this process knows it.
#[derive(Debug)]
pub struct Leadership {
    inner: Mutex<LeaseHold>,
    changed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct LeaseHold {
    until: Option<Instant>,
    /// Time since which this process has led without a gap.
    since: Option<Instant>,
    term: u64,
}

impl Default for Leadership {
    fn default() -> Self {
        Self { inner: Mutex::default(), changed: watch::channel(false).0 }
    }
}

impl Leadership {
    /// Returns the term in which this process leads now; `None` if it does not lead.
    pub fn term(&self) -> Option<u64> {
        let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        held.until.filter(|until| Instant::now() < *until).map(|_| held.term)
    }

    /// Returns how long this process has led without a gap; `None` if it does not lead.
    pub fn led_for(&self) -> Option<Duration> {
        let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        held.until.filter(|until| Instant::now() < *until).and_then(|_| held.since).map(|since| since.elapsed())
    }

    /// Returns a channel that reports the begin and end of leadership.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.changed.subscribe()
    }

    fn set(&self, until: Option<Instant>, term: u64) {
        let now = Instant::now();
        let mut held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = held.until.is_some_and(|until| now < until) && held.term == term;
        let since = if going_on { held.since } else { Some(now) };
        *held = LeaseHold { until, since: until.and(since), term };
        drop(held);
        self.changed.send_if_modified(|leads| std::mem::replace(leads, until.is_some()) != until.is_some());
    }

    /// Reports the end of a leadership that is no longer trusted.
    fn end_if_expired(&self) {
        if self.term().is_none() {
            self.set(None, 0);
        }
    }
}

/// Waits until leading begins or ends, but not for long: a term that ran out and is renewed late comes back without a word.
pub async fn term_changed(leading: &mut watch::Receiver<bool>) {
    if let Ok(Err(_)) = tokio::time::timeout(TERM_POLL, leading.changed()).await {
        std::future::pending::<()>().await;
    }
}

/// A candidate for a Lease.
#[derive(Debug)]
pub struct LeaseCandidate {
    api: Api<Lease>,
    name: String,
    /// Unique among the candidates.
    identity: String,
    /// The Lease at its last change, and the time at which that was seen.
    observed: Option<(LeaseSpec, Instant)>,
}

/// The next action on the Lease. Pure.
#[derive(Debug, Clone, PartialEq)]
enum LeaseAction {
    /// Write this.
    Take(LeaseSpec),
    /// Another process leads.
    Wait { holder: String },
}

impl LeaseCandidate {
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.to_owned(), identity: identity.to_owned(), observed: None }
    }

    /// Runs the leader election until `stop`; then releases the Lease, so that the next leader need not wait.
    pub async fn run(mut self, leadership: &Leadership, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut logged_holder = String::new();
        loop {
            // A process that was paused stands by at once, not only after the API server's answer.
            leadership.end_if_expired();
            let began = Instant::now();
            let outcome = tokio::time::timeout(CALL_TIMEOUT, self.renew_or_acquire()).await;
            match outcome {
                Ok(Ok(Ok(term))) => {
                    if leadership.term().is_none() {
                        tracing::info!(lease = self.name, identity = self.identity, term, "leader election: this process leads");
                    }
                    leadership.set(Some(began + LEADER_TRUST), term);
                    logged_holder.clear();
                }
                Ok(Ok(Err(holder))) => {
                    leadership.set(None, 0);
                    if logged_holder != holder {
                        tracing::info!(lease = self.name, %holder, "leader election: another process leads");
                        logged_holder = holder;
                    }
                }
                Ok(Err(error)) => self.on_renewal_failed(leadership, &crate::api::client::error_text(&error)),
                Err(_) => self.on_renewal_failed(leadership, "no answer in time"),
            }
            tokio::select! {
                () = tokio::time::sleep(RENEW_PERIOD) => {}
                () = &mut stop => break,
            }
        }
        let led = leadership.term().is_some();
        leadership.set(None, 0);
        if led {
            let error = match tokio::time::timeout(CALL_TIMEOUT, self.release()).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => crate::api::client::error_text(&error),
                Err(_) => format!("no answer within {} s", CALL_TIMEOUT.as_secs()),
            };
            tracing::warn!(error, "the lease could not be released; the next leader waits 15 s");
        }
    }

    fn on_renewal_failed(&self, leadership: &Leadership, error: &str) {
        tracing::warn!(lease = self.name, error, "the lease could not be renewed");
        leadership.end_if_expired();
    }

    /// Does one round. Returns the term in which this candidate leads now, or the present leader.
    async fn renew_or_acquire(&mut self) -> Result<Result<u64, String>, Error> {
        let present = self.api.get_opt(&self.name).await?;
        let spec = present.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
        if self.observed.as_ref().is_none_or(|(observed, _)| *observed != spec) {
            self.observed = Some((spec.clone(), Instant::now()));
        }
        let unchanged = self.observed.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let new = match next_move(&self.identity, present.is_some().then_some(&spec), unchanged, now()) {
            LeaseAction::Wait { holder } => return Ok(Err(holder)),
            LeaseAction::Take(new) => new,
        };
        let written = if let Some(mut lease) = present {
            lease.spec = Some(new);
            self.api.replace(&self.name, &PostParams::default(), &lease).await
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            self.api.create(&PostParams::default(), &Lease { metadata, spec: Some(new) }).await
        };
        match written {
            Ok(lease) => {
                let spec = lease.spec.unwrap_or_default();
                let term = spec.lease_transitions.unwrap_or(0).unsigned_abs().into();
                self.observed = Some((spec, Instant::now()));
                Ok(Ok(term))
            }
            // Another candidate was faster.
            Err(Error::Api(status)) if status.code == 409 => Ok(Err("another candidate, just now".into())),
            Err(error) => Err(error),
        }
    }

    async fn release(&mut self) -> Result<(), Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity)) else {
            return Ok(());
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
    }
}

fn now() -> MicroTime {
    MicroTime(k8s_openapi::jiff::Timestamp::now())
}

/// Returns the next action. `present`: the Lease, if there is one; `unchanged`: for how long it has been like this.
fn next_move(identity: &str, present: Option<&LeaseSpec>, unchanged: Duration, now: MicroTime) -> LeaseAction {
    let holder = present.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let mine = holder == identity;
    let patience = present
        .and_then(|spec| spec.lease_duration_seconds)
        .map_or(LEASE_DURATION, |seconds| Duration::from_secs(seconds.max(1).unsigned_abs().into()).min(LEASE_DURATION));
    if !mine && !holder.is_empty() && unchanged < patience {
        return LeaseAction::Wait { holder: holder.to_owned() };
    }
    let transitions = present.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    let acquired = present.filter(|_| mine).and_then(|spec| spec.acquire_time.clone());
    LeaseAction::Take(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE_DURATION.as_secs() as i32),
        // Every taking is another term, also by the same identity after it gave the Lease back or was replaced.
        lease_transitions: Some(if mine { transitions } else { transitions.saturating_add(1) }),
        acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
        renew_time: Some(now),
        ..LeaseSpec::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(step: LeaseAction) -> LeaseSpec {
        match step {
            LeaseAction::Take(spec) => spec,
            LeaseAction::Wait { holder } => panic!("waits for {holder}"),
        }
    }

    #[tokio::test]
    async fn a_term_that_is_renewed_late_is_noticed_without_a_word() {
        let (leadership, soon) = (Leadership::default(), Duration::from_millis(20));
        let mut leading = leadership.subscribe();
        leadership.set(Some(Instant::now() + soon), 1);
        leading.borrow_and_update();
        tokio::time::sleep(2 * soon).await;
        assert_eq!(leadership.term(), None, "it ran out");
        leadership.set(Some(Instant::now() + LEASE_DURATION), 1);
        assert!(!leading.has_changed().unwrap(), "it never reported its end");
        tokio::time::timeout(10 * TERM_POLL, term_changed(&mut leading)).await.expect("it is looked at again");
        assert_eq!(leadership.term(), Some(1));
    }

    #[test]
    fn a_lease_changes_hands_only_after_it_went_unrenewed() {
        let first = taken(next_move("a", None, Duration::ZERO, now()));
        assert_eq!((first.holder_identity.as_deref(), first.lease_transitions), (Some("a"), Some(1)));
        let wait = next_move("b", Some(&first), Duration::from_secs(14), now());
        assert_eq!(wait, LeaseAction::Wait { holder: "a".into() });
        let second = taken(next_move("b", Some(&first), Duration::from_secs(15), now()));
        assert_eq!((second.holder_identity.as_deref(), second.lease_transitions), (Some("b"), Some(2)));
        let renewed = taken(next_move("b", Some(&second), Duration::ZERO, now()));
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(2), &second.acquire_time));
    }

    #[test]
    fn a_lease_that_was_given_back_is_free_at_once() {
        let mut given = taken(next_move("a", None, Duration::ZERO, now()));
        given.holder_identity = Some(String::new());
        assert_eq!(taken(next_move("b", Some(&given), Duration::ZERO, now())).lease_transitions, Some(2));
        // A restarted process with the same identity has a new term.
        assert_eq!(taken(next_move("a", Some(&given), Duration::ZERO, now())).lease_transitions, Some(2));
    }

    #[test]
    fn a_leader_stops_trusting_itself_before_anybody_else_may_lead() {
        assert!(LEADER_TRUST + CALL_TIMEOUT < LEASE_DURATION);
        let leadership = Leadership::default();
        leadership.set(Some(Instant::now() + Duration::from_secs(30)), 7);
        assert_eq!(leadership.term(), Some(7));
        leadership.set(Some(Instant::now()), 7);
        assert_eq!((leadership.term(), leadership.led_for()), (None, None));
    }

    #[test]
    fn the_end_of_a_leadership_that_expired_is_reported_and_of_no_other() {
        let (leadership, soon) = (Leadership::default(), Duration::from_millis(20));
        let leading = leadership.subscribe();
        leadership.set(Some(Instant::now() + Duration::from_mins(1)), 7);
        leadership.end_if_expired();
        assert!(*leading.borrow());
        leadership.set(Some(Instant::now() + soon), 7);
        std::thread::sleep(soon);
        leadership.end_if_expired();
        assert!(!*leading.borrow());
    }

    #[test]
    fn a_gap_in_leading_begins_it_anew() {
        let (leadership, soon) = (Leadership::default(), || Some(Instant::now() + Duration::from_mins(1)));
        leadership.set(soon(), 7);
        let first = leadership.inner.lock().unwrap().since;
        leadership.set(soon(), 7);
        assert!(leadership.inner.lock().unwrap().since == first && leadership.led_for().is_some());
        leadership.set(None, 0);
        assert_eq!(leadership.led_for(), None);
        leadership.set(soon(), 7);
        assert!(leadership.inner.lock().unwrap().since > first, "the same term, after a gap");
    }
}
