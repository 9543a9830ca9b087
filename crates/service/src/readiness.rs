//! Whether the log answers: a part of every service's readiness.
//!
//! In: a question to the log. Out: the part `log` of the health, which is ready while the log answers. A service itself cannot
//! detect that: its client waits in silence for a broker that is gone.

use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

use eadt_tasks::LOG_PROBE;

use crate::Shutdown;
use crate::http::HealthRegistry;

/// Interval between two probes while the log answers. A probe takes at most four seconds, and one more is sent before the part is
/// not ready. So readiness ends 12 s after a broker's death.
const EVERY: Duration = Duration::from_secs(3);
/// Pause before a probe without an answer is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Questions without an answer after which the log counts as away: one may meet a broker that is just restarting.
const MISSES: u32 = 2;
/// Longest time until a shutdown is noticed.
const PIECE: Duration = Duration::from_millis(100);

/// State of a readiness probe after its answers so far.
#[derive(Debug, Default)]
struct ProbeState {
    misses: u32,
    /// Whether the last transition was to away.
    away: bool,
}

/// Change of state that follows from an answer.
#[derive(Debug, PartialEq, Eq)]
enum ProbeTransition {
    Same,
    Away,
    Back,
}

impl ProbeState {
    fn take(&mut self, answered: bool) -> ProbeTransition {
        if answered {
            self.misses = 0;
            return if std::mem::take(&mut self.away) { ProbeTransition::Back } else { ProbeTransition::Same };
        }
        self.misses = self.misses.saturating_add(1);
        if self.misses < MISSES || self.away {
            return ProbeTransition::Same;
        }
        self.away = true;
        ProbeTransition::Away
    }

    fn pause(&self) -> Duration {
        if self.misses == 0 { EVERY } else { AGAIN }
    }
}

/// Asks the log on a thread of its own until `shutdown`. `probe` gets the number of the question, and answers within four
/// seconds.
pub fn watch_log<E: Display>(
    health: &HealthRegistry,
    shutdown: Shutdown,
    mut probe: impl FnMut(usize) -> Result<(), E> + Send + 'static,
) -> io::Result<()> {
    let ready = health.part("log");
    LOG_PROBE.thread(move || {
        let (mut answers, mut number) = (ProbeState::default(), 0);
        LOG_PROBE.until_it_returns(AGAIN, || {
            while !shutdown.is_cancelled() {
                let answer = probe(number);
                number = number.wrapping_add(1);
                match (answers.take(answer.is_ok()), answer) {
                    (ProbeTransition::Away, Err(error)) => {
                        tracing::warn!(%error, "the log does not answer: not ready");
                        ready.set(false);
                    }
                    (ProbeTransition::Back, _) => tracing::info!("the log answers again"),
                    _ => {}
                }
                if answers.misses == 0 {
                    ready.set(true);
                }
                let until = Instant::now() + answers.pause();
                while !shutdown.is_cancelled() && Instant::now() < until {
                    std::thread::sleep(PIECE);
                }
            }
        });
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_log_is_away_after_two_questions_without_an_answer_and_back_after_one_answer() {
        let mut answers = ProbeState::default();
        for (answered, change) in [
            (true, ProbeTransition::Same),
            (false, ProbeTransition::Same),
            (true, ProbeTransition::Same),
            (false, ProbeTransition::Same),
            (false, ProbeTransition::Away),
            (false, ProbeTransition::Same),
            (true, ProbeTransition::Back),
            (false, ProbeTransition::Same),
            (false, ProbeTransition::Away),
        ] {
            assert_eq!(answers.take(answered), change);
        }
    }

    #[test]
    fn a_service_is_not_ready_before_the_log_answered_nor_within_20_s_of_its_death() {
        let limit = Duration::from_secs(4);
        assert!(EVERY + limit + AGAIN + limit < Duration::from_secs(20));
        let (health, shutdown, answers) = (HealthRegistry::default(), Shutdown::new(), Arc::new(AtomicBool::new(false)));
        let answering = answers.clone();
        let probe = move |_| if answering.load(Ordering::Relaxed) { Ok(()) } else { Err("gone") };
        watch_log(&health, shutdown.clone(), probe).unwrap();
        assert_eq!(health.waiting(), ["log"]);
        answers.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        while !health.waiting().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
        shutdown.cancel();
    }
}
