//! The API server's side: generations, marks, rollouts.

use eadt_cluster::{
    AppliedDecision, ApprovedDecision, ClusterError, ClusterRemedy, ManagedWorkload, PolicyEdit, RollbackRecord, RollbackRequest,
    WorkloadChange,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, UpdateMode};

use super::TrainingScenario;
use super::job::{RecommendationApproval, SimulatedJob};

const DAY_SECONDS: f64 = 86_400.0;

/// The effect of a change on the processes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ProcessDisruption {
    /// They go on, and the change applies at once.
    None,
    /// They go on, and the change applies after so many seconds.
    TakesUp(f64),
    Restart,
}

impl SimulatedJob {
    pub fn apply(
        &mut self,
        change: &WorkloadChange,
        now: EventTime,
        never_ready: bool,
        training: Option<&TrainingScenario>,
    ) -> Result<ManagedWorkload, ClusterError> {
        let state = &self.managed.state;
        if self.managed.applied.as_ref().is_some_and(|applied| applied.decision_id == change.decision_id) {
            return Ok(self.managed.clone());
        }
        fence(change.generation, state.generation)?;
        if state.ready_time.is_none() {
            return Err(ClusterError::new(
                ClusterRemedy::Conflict,
                format!("generation {} is still rolling out", state.generation),
            ));
        }
        if change.layout.replicas == Some(0) {
            return Err(ClusterError::new(ClusterRemedy::Refused, "replicas: 0 is not a training job"));
        }
        let mut down = if change.restarts { ProcessDisruption::Restart } else { ProcessDisruption::None };
        if change.layout.asked_of_job() != state.layout.asked_of_job() {
            let Some(training) = training else {
                let detail = "this simulated job has no precision and no layers to freeze: its scenario gives it no training";
                return Err(ClusterError::new(ClusterRemedy::Refused, detail));
            };
            if let Some(detail) = training.refusal(&state.layout, &change.layout) {
                return Err(ClusterError::new(ClusterRemedy::Refused, detail));
            }
            if !change.restarts {
                down = ProcessDisruption::TakesUp(training.take_up_seconds);
            }
        }
        let before = state.layout.clone();
        let generation = self.replace(&change.layout, Some(&change.decision_id), down, now, !never_ready);
        self.managed.applied = Some(AppliedDecision {
            decision_id: change.decision_id.clone(),
            decision_time: change.decision_time,
            generation,
            time: now,
            layout: change.layout.clone(),
            before,
            ready_by: now.plus_seconds(change.ready_within_seconds),
            ready_time: None,
            rolled_back: None,
            approved_by: change.approved_by.clone(),
        });
        // An approval is for once.
        self.approval = self.approval.take().filter(|approval| approval.decision_id != change.decision_id);
        self.update_readiness(now);
        Ok(self.managed.clone())
    }

    pub fn roll_back(&mut self, back: &RollbackRequest, now: EventTime) -> Result<ManagedWorkload, ClusterError> {
        let conflict = |detail: String| Err(ClusterError::new(ClusterRemedy::Conflict, detail));
        let Some(applied) = self.managed.applied.as_ref().filter(|applied| applied.decision_id == back.decision_id) else {
            return conflict(format!("decision {} is not the last one applied", back.decision_id));
        };
        if applied.rolled_back.is_some() {
            return Ok(self.managed.clone());
        }
        fence(back.generation, self.managed.state.generation)?;
        if applied.ready_time.is_some() && !back.by_job {
            return conflict(format!("decision {} became ready meanwhile", back.decision_id));
        }
        let before = applied.layout_to_restore();
        // Only settings requested of a job are reverted without a restart.
        let is_job_request = applied.job_request().is_some();
        let generation = self.replace(
            &before,
            None,
            if is_job_request { ProcessDisruption::None } else { ProcessDisruption::Restart },
            now,
            true,
        );
        if let Some(applied) = &mut self.managed.applied {
            applied.rolled_back = Some(RollbackRecord { generation, time: now, reason: back.reason.clone() });
        }
        self.update_readiness(now);
        Ok(self.managed.clone())
    }

    /// Changes the policy in the name of a user. Returns `false` if it was so already.
    pub fn change_terms(&mut self, change: &PolicyEdit, by: &str, now: EventTime) -> Result<bool, ClusterError> {
        let refused = |detail: String| Err(ClusterError::new(ClusterRemedy::Refused, detail));
        let state = &mut self.managed.state;
        match change {
            PolicyEdit::Pause | PolicyEdit::Resume => {
                let pause = *change == PolicyEdit::Pause;
                if state.paused == pause {
                    return Ok(false);
                }
                (state.paused, state.pause_set_by) = (pause, Some(by.to_owned()));
            }
            PolicyEdit::SetMode { mode, shown } => {
                if state.mode == *mode {
                    return Ok(false);
                }
                if state.mode != *shown {
                    return refused(format!("the mode of {} changed meanwhile: reload it, then try again", state.workload));
                }
                (state.mode, state.mode_set_by) = (*mode, Some(by.to_owned()));
            }
            PolicyEdit::Approve(id) => {
                let workload = &state.workload;
                let Some(recommended) = self.recommendation.as_ref() else {
                    return refused(format!("nothing is recommended for {workload} at present, so there is nothing to approve"));
                };
                if recommended.id != *id {
                    let (id, reason) = (&recommended.id, &recommended.reason);
                    return refused(format!("the current recommendation is {id} ({reason}): review it, then approve that one"));
                }
                // Its approval is used up.
                if self.managed.applied.as_ref().is_some_and(|applied| applied.decision_id == *id) {
                    return Ok(false);
                }
                if recommended.expires != EventTime::default() && now >= recommended.expires {
                    let expires = recommended.expires;
                    return refused(format!("recommendation {id} expired at {expires}: wait for the next one"));
                }
                if state.mode != UpdateMode::Recommend {
                    return refused(format!("{workload} is not in mode recommend: there is nothing to approve in any other"));
                }
                if state.paused {
                    return refused(format!("{workload} is paused, so nothing would be applied: resume it first"));
                }
                let approval = RecommendationApproval { decision_id: id.clone(), by: by.to_owned() };
                let is_new = self.approval.as_ref().is_none_or(|before| before.decision_id != *id);
                if is_new {
                    self.approval = Some(approval);
                }
                return Ok(is_new);
            }
        }
        state.time = now;
        Ok(true)
    }

    /// Returns the recommendation that a user approved, if it is still recommended.
    pub fn approved(&self) -> Option<ApprovedDecision> {
        let approval = self.approval.as_ref()?;
        let decision = self.recommendation.as_ref().filter(|recommended| recommended.id == approval.decision_id)?;
        Some(ApprovedDecision { decision: (**decision).clone(), by: Some(approval.by.clone()) })
    }

    /// Puts a layout in force from now on, without a restart.
    pub fn substitute(&mut self, layout: &Layout, now: EventTime) -> ManagedWorkload {
        self.replace(layout, None, ProcessDisruption::None, now, true);
        self.update_readiness(now);
        self.managed.clone()
    }

    /// Puts a layout in force from now on; gives its generation.
    fn replace(
        &mut self,
        layout: &Layout,
        decision: Option<&str>,
        down: ProcessDisruption,
        now: EventTime,
        gets_ready: bool,
    ) -> u64 {
        let restarts = down == ProcessDisruption::Restart;
        let down_seconds = match down {
            ProcessDisruption::Restart => self.restart_seconds,
            ProcessDisruption::TakesUp(seconds) => seconds,
            ProcessDisruption::None => 0.0,
        };
        let ready = now.plus_seconds(down_seconds);
        self.runs.retain(|(from, _)| *from <= now);
        if restarts {
            self.runs.push((now, None));
            self.managed.restarts.retain(|time| now.seconds_since(*time) < DAY_SECONDS);
            self.managed.restarts.push(now);
        }
        if gets_ready {
            self.runs.push((ready, Some(layout.clone())));
        }
        self.ready_at = gets_ready.then_some(ready);
        let state = &mut self.managed.state;
        state.time = now;
        state.generation += 1;
        state.layout = layout.clone();
        state.decision_id = decision.map(str::to_owned);
        state.ready_time = None;
        state.generation
    }

    /// Notes readiness that has come by `now`.
    pub fn update_readiness(&mut self, now: EventTime) {
        let Some(ready) = self.ready_at.take_if(|ready| *ready <= now) else { return };
        let state = &mut self.managed.state;
        state.time = ready;
        state.ready_time = Some(ready);
        if let Some(applied) = self.managed.applied.as_mut().filter(|applied| applied.generation == state.generation) {
            applied.ready_time = Some(ready);
        }
    }

    /// Returns the times at which the object changes by itself, and at which its rollout runs out of time.
    pub fn transitions(&self) -> impl Iterator<Item = EventTime> {
        self.ready_at.into_iter().chain(self.managed.rolling_out().map(|applied| applied.ready_by))
    }
}

fn fence(expected: u64, present: u64) -> Result<(), ClusterError> {
    if expected == present {
        return Ok(());
    }
    Err(ClusterError::new(ClusterRemedy::Conflict, format!("generation {present} is in force, the change is for {expected}")))
}
