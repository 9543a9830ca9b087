//! Acting by turns: of all replicas only the one that leads is in the consumer group.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::metrics::ActuatorMetrics;
use crate::service::run_with;
use crate::{ActuatorDependencies, ActuatorError};

/// A leader that was held up, and whose place was taken, knows that its term is over within this time.
const TAKEN_OVER: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };
/// A leader that is fenced joins once more, and not again within this time: two actuators that both lead, of different Leases, have
/// one name by mistake.
const JOIN_AGAIN: Duration = Duration::from_mins(1);

/// Waits on standby until this process leads, acts while it does, and waits again; until the service's `shutdown`. All replicas
/// have one name in the consumer group, so the next leader takes the place of the former one at once. A former leader whose request
/// to join arrives late takes it back for a moment: the one that leads then joins once more.
///
/// # Errors
///
/// As [`crate::run_actuator`], except if another process took the place, or took it once although this one leads.
pub async fn run_while_leading(deps: ActuatorDependencies, mut leading: watch::Receiver<bool>) -> Result<(), ActuatorError> {
    let metrics = ActuatorMetrics::new(&deps.metrics);
    // A standby is ready, although it does not lead.
    deps.ready.set(true);
    let mut joined_again: Option<Instant> = None;
    loop {
        tokio::select! {
            () = deps.shutdown.cancelled() => return Ok(()),
            () = wait_for_leadership(&mut leading, true) => {}
        }
        let stop = deps.shutdown.child_token();
        let (term, metrics) = (ActuatorDependencies { shutdown: stop.clone(), ..deps.clone() }, metrics.clone());
        let mut run = tokio::task::spawn_blocking(move || run_with(&term, &metrics));
        tokio::select! {
            ended = &mut run => {
                let ended = resume_panic(ended);
                if ended.is_ok() && deps.shutdown.is_cancelled() {
                    return Ok(());
                }
                if let Err(error) = ended {
                    // The next leader takes over the place in the group, which may be noticed before that it leads.
                    if tokio::time::timeout(TAKEN_OVER, wait_for_leadership(&mut leading, false)).await.is_ok() {
                        tracing::warn!(%error, "another actuator leads: standing by");
                        continue;
                    }
                    let is_fenced = matches!(&error, ActuatorError::Bus(error) if error.is_fenced());
                    if !is_fenced || joined_again.is_some_and(|at| at.elapsed() < JOIN_AGAIN) {
                        return Err(error);
                    }
                    joined_again = Some(Instant::now());
                    tracing::warn!(%error, "it leads, and was fenced, as by a former leader that came late: it joins once more");
                }
            }
            () = wait_for_leadership(&mut leading, false) => {
                tracing::warn!("another actuator may lead: standing by");
                stop.cancel();
                if let Err(error) = resume_panic(run.await) {
                    tracing::warn!(%error, "the actuator ended with an error as it stopped; the next leader reads the same records");
                }
            }
        }
    }
}

/// Resumes a panic in the caller.
fn resume_panic(ended: Result<Result<(), ActuatorError>, tokio::task::JoinError>) -> Result<(), ActuatorError> {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        // The runtime is going away.
        Err(_) => Ok(()),
    })
}

/// Waits until this process leads, or no longer leads; forever if the channel is closed.
async fn wait_for_leadership(leading: &mut watch::Receiver<bool>, leads: bool) {
    if leading.wait_for(|now| *now == leads).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use eadt_service::Shutdown;

    use super::*;
    use crate::service::tests::{Rig, WITHIN};

    #[test]
    fn a_leader_that_a_former_one_fences_joins_once_more_and_ends_if_it_is_fenced_again() {
        let (rig, shutdown) = (Rig::new(), Shutdown::new());
        let (_leads, leading) = watch::channel(true);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let acting = runtime.spawn(run_while_leading(rig.dependencies(&shutdown), leading));
        rig.decide("d-1", 1, 400.0, 350.0);
        rig.wait_until_ready("d-1");
        rig.fence();
        rig.decide("d-2", 2, 350.0, 300.0);
        rig.wait_until_ready("d-2");
        rig.fence();
        let ended = runtime.block_on(async { tokio::time::timeout(WITHIN, acting).await });
        let error = ended.expect("it ends").unwrap().unwrap_err();
        assert!(matches!(&error, ActuatorError::Bus(error) if error.is_fenced()), "{error}");
    }
}
