//! Puts tokens of service accounts to the API server: one question for all who come with one token, and no more of strangers than
//! the API server is meant to bear.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_schemas::EventTime;
use eadt_service::ServiceClock;
use tokio::sync::watch;

use super::rate::RateLimiter;
pub use super::service_accounts::ReviewedUser;
use super::service_accounts::{ReviewCache, ReviewCacheLookup, TokenClaims};
use super::tokens::{TokenGrant, TokenHash};
use crate::metrics::{CollectorMetrics, OutcomeLabel};
use crate::settings::ServiceAccounts;
use crate::source::BoxFuture;

/// Unknown tokens that are asked for at once. An API server that answers needs milliseconds, so this is reached if it does not.
const STRANGERS: usize = 32;
/// Time after which a request that found as many may be tried again.
const PUT_OFF: Duration = Duration::from_secs(1);

/// Asks the API server about tokens.
pub trait TokenReviewer: Send + Sync + fmt::Debug {
    /// Returns the user of a token, if it has one; the implementation bounds the time. The error states why there is no answer,
    /// without any part of the token.
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Option<ReviewedUser>, String>>;
}

/// Reason that a report is refused, or not accepted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    /// The token is worth nothing.
    Worthless,
    /// The API server does not answer.
    Unanswered,
    /// Too many unknown tokens; there is room again after this time.
    PutOff(Duration),
}

type GrantResult = Result<TokenGrant, TokenRefusal>;
/// `None` if there is no answer yet.
type GrantReceiver = watch::Receiver<Option<GrantResult>>;

/// Knows service accounts by their tokens.
#[derive(Debug)]
pub(crate) struct ServiceAccountVerifier {
    audience: String,
    reviewer: Arc<dyn TokenReviewer>,
    clock: ServiceClock,
    metrics: CollectorMetrics,
    state: Mutex<VerifierState>,
    /// The last question had no answer.
    away: AtomicBool,
}

#[derive(Debug)]
struct VerifierState {
    memory: ReviewCache,
    /// Questions under way.
    asking: HashMap<TokenHash, GrantReceiver>,
    /// Number of them that are about unknown tokens.
    strangers: usize,
    rate: RateLimiter,
}

/// Next step for a token.
enum ReviewStep<'a> {
    Done(GrantResult),
    AwaitAnswer(GrantReceiver),
    Ask(PendingReview<'a>),
}

/// A question under way; dropped without an answer, the next one asks.
struct PendingReview<'a> {
    accounts: &'a ServiceAccountVerifier,
    token: TokenHash,
    stranger: bool,
    sender: watch::Sender<Option<GrantResult>>,
}

impl Drop for PendingReview<'_> {
    fn drop(&mut self) {
        let mut state = self.accounts.state();
        state.asking.remove(&self.token);
        state.strangers -= usize::from(self.stranger);
    }
}

impl ServiceAccountVerifier {
    pub fn new(
        settings: &ServiceAccounts,
        reviewer: Arc<dyn TokenReviewer>,
        clock: ServiceClock,
        metrics: CollectorMetrics,
    ) -> Self {
        let state = VerifierState {
            memory: ReviewCache::new(settings.remember_seconds),
            asking: HashMap::new(),
            strangers: 0,
            rate: RateLimiter::new(settings.reviews_per_second),
        };
        let (audience, state) = (settings.audience.clone(), Mutex::new(state));
        Self { audience, reviewer, clock, metrics, state, away: AtomicBool::new(false) }
    }

    /// Returns the audience that tokens must be for.
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// Returns the rights of the bearer of this token.
    pub async fn verify(&self, token: &str) -> GrantResult {
        let claims = TokenClaims::read(token).ok_or(TokenRefusal::Worthless)?;
        let hash = TokenHash::of(token);
        loop {
            let now = self.clock.now();
            if !claims.are_worth_asking(&self.audience, now) {
                return Err(TokenRefusal::Worthless);
            }
            match self.next(hash, now, Instant::now()) {
                ReviewStep::Done(verdict) => return verdict,
                ReviewStep::Ask(question) => return self.review_token(question, token, claims.expires).await,
                ReviewStep::AwaitAnswer(mut hearing) => {
                    // The client may have disconnected before the answer.
                    let answer = hearing.wait_for(Option::is_some).await.ok().and_then(|verdict| verdict.clone());
                    if let Some(verdict) = answer {
                        return verdict;
                    }
                }
            }
        }
    }

    fn next(&self, token: TokenHash, now: EventTime, at: Instant) -> ReviewStep<'_> {
        let mut state = self.state();
        let stranger = match state.memory.lookup(&token, now) {
            ReviewCacheLookup::Accepted(grant) => return ReviewStep::Done(Ok(grant)),
            ReviewCacheLookup::Refused => return ReviewStep::Done(Err(TokenRefusal::Worthless)),
            ReviewCacheLookup::Unanswered => return ReviewStep::Done(Err(TokenRefusal::Unanswered)),
            ReviewCacheLookup::Lapsed => false,
            ReviewCacheLookup::Nothing => true,
        };
        if let Some(hearing) = state.asking.get(&token) {
            return ReviewStep::AwaitAnswer(hearing.clone());
        }
        if stranger {
            let admitted = if state.strangers < STRANGERS { state.rate.admit("", at) } else { Err(PUT_OFF) };
            if let Err(wait) = admitted {
                self.count("put_off");
                return ReviewStep::Done(Err(TokenRefusal::PutOff(wait)));
            }
        }
        state.strangers += usize::from(stranger);
        let (sender, receiver) = watch::channel(None);
        state.asking.insert(token, receiver);
        ReviewStep::Ask(PendingReview { accounts: self, token, stranger, sender })
    }

    async fn review_token(&self, question: PendingReview<'_>, token: &str, expires: Option<EventTime>) -> GrantResult {
        let asked_at = self.clock.now();
        let answer = self.reviewer.review(token, &self.audience).await;
        let (outcome, verdict) = match answer {
            Err(detail) => {
                if !self.away.swap(true, Ordering::Relaxed) {
                    tracing::warn!(detail, "tokens of service accounts cannot be checked; their senders get 503 and retry");
                }
                self.state().memory.no_answer(question.token, self.clock.now());
                ("unanswered", Err(TokenRefusal::Unanswered))
            }
            Ok(bearer) => {
                if self.away.swap(false, Ordering::Relaxed) {
                    tracing::info!("tokens of service accounts are checked again");
                }
                if let Some(grant) = bearer.and_then(|bearer| bearer.grant(&self.audience)) {
                    self.state().memory.accept(question.token, grant.clone(), asked_at, expires);
                    ("accepted", Ok(grant))
                } else {
                    self.state().memory.refuse(question.token, asked_at);
                    ("refused", Err(TokenRefusal::Worthless))
                }
            }
        };
        self.count(outcome);
        // It is remembered by now, so no second question begins before this one ends.
        question.sender.send_replace(Some(verdict.clone()));
        verdict
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.token_reviews.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    fn state(&self) -> MutexGuard<'_, VerifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicI64, AtomicUsize};

    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::super::service_accounts::tests::token;
    use super::*;
    use crate::sink::tests::outlet;

    /// 2026-01-02T03:04:05Z.
    const NOW_SECONDS: i64 = 1_767_323_045;
    const NOW: EventTime = EventTime::from_micros(NOW_SECONDS * 1_000_000);
    const EXPIRES: i64 = NOW_SECONDS + 90;

    /// Accepts every bearer without a check. For tests only.
    #[derive(Debug)]
    pub(in crate::progress) struct TrustingReviewer {
        pub asked: AtomicUsize,
        /// Answers are given as there are permits.
        pub answers: Semaphore,
        pub away: AtomicBool,
    }

    impl TrustingReviewer {
        pub fn new(answers: usize) -> Arc<Self> {
            let (asked, answers) = (AtomicUsize::new(0), Semaphore::new(answers));
            Arc::new(Self { asked, answers, away: AtomicBool::new(false) })
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    impl TokenReviewer for TrustingReviewer {
        fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Option<ReviewedUser>, String>> {
            Box::pin(async move {
                self.asked.fetch_add(1, Ordering::SeqCst);
                self.answers.acquire().await.unwrap().forget();
                if self.away.load(Ordering::SeqCst) {
                    return Err("nobody there".to_owned());
                }
                let payload = token.split('.').nth(1).unwrap();
                let payload = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, payload).unwrap();
                let payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                let bearer =
                    ReviewedUser { user: payload["sub"].as_str().unwrap().to_owned(), audiences: vec![audience.to_owned()] };
                Ok((payload["known"] != false).then_some(bearer))
            })
        }
    }

    pub(in crate::progress) fn of_account(namespace: &str, name: &str) -> String {
        token(&json!({"aud": ["eadt"], "exp": EXPIRES, "sub": format!("system:serviceaccount:{namespace}:{name}")}))
    }

    fn unknown(name: &str) -> String {
        token(&json!({"aud": ["eadt"], "exp": EXPIRES, "sub": format!("system:serviceaccount:n:{name}"), "known": false}))
    }

    struct VerifierFixture {
        accounts: Arc<ServiceAccountVerifier>,
        reviewer: Arc<TrustingReviewer>,
        seconds: Arc<AtomicI64>,
        metrics: CollectorMetrics,
    }

    impl VerifierFixture {
        fn new(answers: usize, reviews_per_second: f64) -> Self {
            let (_, _, metrics) = outlet();
            let (reviewer, seconds) = (TrustingReviewer::new(answers), Arc::new(AtomicI64::new(0)));
            let settings = ServiceAccounts { audience: "eadt".to_owned(), remember_seconds: 60.0, reviews_per_second };
            let time = seconds.clone();
            let clock = ServiceClock::new(move || NOW.plus_seconds(time.load(Ordering::SeqCst) as f64));
            let accounts = Arc::new(ServiceAccountVerifier::new(&settings, reviewer.clone(), clock, metrics.clone()));
            Self { accounts, reviewer, seconds, metrics }
        }

        fn pass(&self, seconds: i64) {
            self.seconds.fetch_add(seconds, Ordering::SeqCst);
        }

        /// The bearer's name.
        async fn verify(&self, token: &str) -> Result<String, TokenRefusal> {
            self.accounts.verify(token).await.map(|grant| grant.id)
        }

        fn spawn(&self, token: &str) -> tokio::task::JoinHandle<GrantResult> {
            let (accounts, token) = (self.accounts.clone(), token.to_owned());
            tokio::spawn(async move { accounts.verify(&token).await })
        }

        async fn until_asked(&self, times: usize) {
            while self.reviewer.asked() < times {
                tokio::task::yield_now().await;
            }
        }

        fn counted(&self, outcome: &'static str) -> u64 {
            self.metrics.token_reviews.get_or_create(&OutcomeLabel { outcome }).get()
        }
    }

    #[tokio::test]
    async fn an_answer_is_asked_for_again_when_its_time_is_over_and_never_after_the_token_expired() {
        let (rig, good, bad) = (VerifierFixture::new(100, 100.0), of_account("team-a", "train"), unknown("nobody"));
        let name = || Ok("system:serviceaccount:team-a:train".to_owned());
        for (pass, asked) in [(0, 1), (59, 1), (1, 2), (29, 2)] {
            rig.pass(pass);
            assert_eq!(rig.verify(&good).await, name());
            assert_eq!(rig.reviewer.asked(), asked);
        }
        rig.pass(1);
        assert_eq!(rig.verify(&good).await, Err(TokenRefusal::Worthless), "expired, though it was accepted 30 s ago");
        assert_eq!(rig.reviewer.asked(), 2);
        rig.pass(-90);
        for (pass, asked) in [(0, 3), (9, 3), (1, 4)] {
            rig.pass(pass);
            assert_eq!(rig.verify(&bad).await, Err(TokenRefusal::Worthless));
            assert_eq!(rig.reviewer.asked(), asked);
        }
        assert_eq!((rig.counted("accepted"), rig.counted("refused")), (2, 2));
    }

    #[tokio::test]
    async fn all_who_come_with_one_token_wait_for_one_answer() {
        let (rig, token) = (VerifierFixture::new(0, 100.0), of_account("team-a", "train"));
        let mut senders: Vec<_> = (0..50).map(|_| rig.spawn(&token)).collect();
        rig.until_asked(1).await;
        // The first client disconnects; another one asks in its place.
        let first = senders.remove(0);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        rig.until_asked(2).await;
        rig.reviewer.answers.add_permits(1);
        for sender in senders {
            assert!(sender.await.unwrap().unwrap().allows("team-a/x"));
        }
        assert_eq!(rig.reviewer.asked(), 2);
        assert!(rig.accounts.state().asking.is_empty() && rig.accounts.state().strangers == 0);
    }

    #[tokio::test]
    async fn strangers_do_not_flood_the_api_server_nor_keep_out_who_was_accepted() {
        let (rig, known) = (VerifierFixture::new(1, 0.1), of_account("team-a", "train"));
        assert!(rig.verify(&known).await.is_ok());
        rig.pass(61);
        for stranger in 0..100 {
            let refused = rig.verify(&unknown(&format!("s-{stranger}"))).await;
            assert!(matches!(refused, Err(TokenRefusal::PutOff(wait)) if wait > Duration::from_secs(5)), "{refused:?}");
        }
        assert_eq!((rig.reviewer.asked(), rig.counted("put_off")), (1, 100));
        rig.reviewer.answers.add_permits(1);
        assert!(rig.verify(&known).await.is_ok(), "asked for again beside the strangers");
        assert_eq!(rig.reviewer.asked(), 2);

        // The greatest number at once, without an answer from the API server.
        let rig = VerifierFixture::new(0, 1000.0);
        let senders: Vec<_> = (0..STRANGERS).map(|stranger| rig.spawn(&unknown(&format!("s-{stranger}")))).collect();
        rig.until_asked(STRANGERS).await;
        assert_eq!(rig.verify(&unknown("one-more")).await, Err(TokenRefusal::PutOff(PUT_OFF)));
        rig.reviewer.answers.add_permits(STRANGERS + 1);
        for sender in senders {
            assert_eq!(sender.await.unwrap(), Err(TokenRefusal::Worthless));
        }
        assert_eq!(rig.verify(&unknown("one-more")).await, Err(TokenRefusal::Worthless));
    }

    #[tokio::test]
    async fn without_an_answer_nobody_is_accepted_or_refused_for_long() {
        let (rig, known, new) = (VerifierFixture::new(100, 100.0), of_account("team-a", "train"), of_account("team-b", "train"));
        assert!(rig.verify(&known).await.is_ok());
        rig.reviewer.away.store(true, Ordering::SeqCst);
        assert!(rig.verify(&known).await.is_ok(), "remembered");
        assert_eq!(rig.verify(&new).await, Err(TokenRefusal::Unanswered));
        rig.pass(60);
        assert_eq!(rig.verify(&known).await, Err(TokenRefusal::Unanswered));
        assert_eq!(rig.verify(&known).await, Err(TokenRefusal::Unanswered));
        assert_eq!(rig.reviewer.asked(), 3, "not asked for with every request");
        rig.reviewer.away.store(false, Ordering::SeqCst);
        rig.pass(1);
        assert!(rig.verify(&known).await.is_ok() && rig.verify(&new).await.is_ok());
        assert_eq!((rig.counted("unanswered"), rig.counted("accepted")), (2, 3));
    }

    #[tokio::test]
    async fn no_debug_text_has_anything_of_a_token() {
        let (rig, token) = (VerifierFixture::new(0, 100.0), of_account("team-a", "train"));
        let waiting = rig.spawn(&token);
        rig.until_asked(1).await;
        let asking = format!("{:?}", rig.accounts);
        rig.reviewer.answers.add_permits(1);
        let granted = waiting.await.unwrap();
        let output = format!("{asking} {granted:?} {:?}", rig.accounts);
        assert!(output.contains("system:serviceaccount:team-a:train"), "{output}");
        for part in token.split('.') {
            assert!(!output.contains(part), "{output}");
        }
    }
}
