//! Acting by turns: of all replicas only the one that leads is in the consumer group.

use std::time::Duration;

use tokio::sync::watch;

use crate::metrics::ActuatorMetrics;
use crate::service::run_with;
use crate::{ActuatorDependencies, ActuatorError};

/// A leader that was held up, and whose place was taken, knows that its term is over within this time.
const TAKEN_OVER: Duration = Duration::from_secs(5);

/// Waits on standby until this process leads, acts while it does, and waits again; until the service's `shutdown`. All replicas
/// have one name in the consumer group, so the next leader takes the place of the former one at once.
///
/// # Errors
///
/// As [`crate::run_actuator`], except if another process took the place.
pub async fn run_while_leading(deps: ActuatorDependencies, mut leading: watch::Receiver<bool>) -> Result<(), ActuatorError> {
    let metrics = ActuatorMetrics::new(&deps.metrics);
    // A standby is ready, although it does not lead.
    deps.ready.set(true);
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
                    if tokio::time::timeout(TAKEN_OVER, wait_for_leadership(&mut leading, false)).await.is_err() {
                        return Err(error);
                    }
                    tracing::warn!(%error, "another actuator leads: standing by");
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
