//! Answers that are used again, so that ten viewers of a large fleet cost little more than one.
//!
//! An answer holds as long as nothing is new. If something is, it is given for two hundred times as long as it took to make, at
//! most ten seconds: one question then takes half a percent of a core however often it is asked. What takes microseconds is
//! always made anew.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

/// An answer is given for so many times as long as it took to make, and at most for so long.
pub(crate) const REUSE: u32 = 200;
const MAX_RESPONSE_AGE: Duration = Duration::from_secs(10);
/// Cheaper answers are not worth their memory.
const MIN_CACHED_COST: Duration = Duration::from_micros(500);
/// Bytes of all answers.
const MOST_BYTES: usize = 8 << 20;

#[derive(Debug)]
struct CachedResponse {
    version: u64,
    made: Instant,
    took: Duration,
    body: Bytes,
}

/// Answers by request.
#[derive(Debug, Default)]
pub struct ResponseCache(Mutex<HashMap<String, CachedResponse>>);

impl ResponseCache {
    /// Returns the kept answer, or a new one. Questions wait for each other, so that the same one is not worked on twice.
    pub fn get<E>(&self, query: &str, version: u64, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(answer) = cache.get(query)
            && (answer.version == version || now.duration_since(answer.made) < (answer.took * REUSE).min(MAX_RESPONSE_AGE))
        {
            return Ok(answer.body.clone());
        }
        let body = make()?;
        store_response(&mut cache, query, CachedResponse { version, made: now, took: now.elapsed(), body: body.clone() });
        Ok(body)
    }
}

/// Keeps an answer that is worth it, in place of the one before.
fn store_response(cache: &mut HashMap<String, CachedResponse>, query: &str, answer: CachedResponse) {
    if answer.took < MIN_CACHED_COST {
        cache.remove(query);
        return;
    }
    let bytes: usize = cache.values().map(|answer| answer.body.len()).sum();
    if bytes + answer.body.len() > MOST_BYTES {
        cache.clear();
    }
    cache.insert(query.to_owned(), answer);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn ask(answers: &ResponseCache, asked: &str, version: u64) -> (Bytes, bool) {
        let mut made = false;
        let body = answers.get(asked, version, || {
            made = true;
            std::thread::sleep(MIN_CACHED_COST);
            Ok::<_, Infallible>(Bytes::from(format!("{asked} {version}")))
        });
        let Ok(body) = body;
        (body, made)
    }

    #[test]
    fn what_took_long_is_given_again_and_what_did_not_is_always_new() {
        let answers = ResponseCache::default();
        assert!(ask(&answers, "slow", 1).1);
        assert!(!ask(&answers, "slow", 1).1, "nothing is new");
        // On a busy machine a moment takes its time.
        answers.0.lock().unwrap().get_mut("slow").unwrap().made = Instant::now() + Duration::from_hours(1);
        let (body, made) = ask(&answers, "slow", 2);
        assert!(!made && body == "slow 1", "it was made a moment ago");
        assert!(ask(&answers, "other", 2).1);
        answers.0.lock().unwrap().get_mut("slow").unwrap().took = Duration::ZERO;
        let (body, made) = ask(&answers, "slow", 2);
        assert!(made && body == "slow 2");
        for (took, kept) in [(MIN_CACHED_COST, true), (MIN_CACHED_COST.saturating_sub(Duration::from_nanos(1)), false)] {
            let answer = CachedResponse { version: 1, made: Instant::now(), took, body: Bytes::new() };
            store_response(&mut answers.0.lock().unwrap(), "quick", answer);
            assert_eq!(ask(&answers, "quick", 1).1, !kept, "{took:?}");
        }
        let refused = answers.get("slow and refused", 1, || Err::<Bytes, _>("no"));
        assert!(refused.is_err() && !answers.0.lock().unwrap().contains_key("slow and refused"));
    }
}
