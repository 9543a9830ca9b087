//! Reads the claims of Kubernetes service account tokens, and remembers the API server's answers and how long they are valid.
//! Pure.
//!
//! Such a token is a JWT that the API server signed, and only the API server is asked whether it is valid (`TokenReview`): only
//! it has the current accounts and pods. A token's own claims are used only to refuse it, which saves requests to the API
//! server, and never to accept it.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use eadt_schemas::EventTime;
use serde::Deserialize;

use super::tokens::{TokenGrant, TokenHash};

/// A projected token has a thousand or two.
const TOKEN_BYTES: usize = 8 << 10;
/// Prefix of every service account's user name.
const USER: &str = "system:serviceaccount:";
/// Longest namespace, a DNS label.
const NAMESPACE_BYTES: usize = 63;
/// Longest name of an account, a DNS subdomain.
const NAME_BYTES: usize = 253;

/// Accepted tokens that are remembered, each some 300 bytes: of so many jobs one collector hears in a minute at most.
const ACCEPTED: usize = 4096;
/// Refused and unanswered ones; more only cost another question.
const OTHERS: usize = 4096;
/// Time during which a refused token is not verified again, in seconds: a sender that keeps sending it costs six requests a
/// minute.
const REFUSED_SECONDS: f64 = 10.0;
/// Time for which a token is not asked for again if the API server did not answer, in seconds.
const UNANSWERED_SECONDS: f64 = 1.0;

/// The token's own claims, which are not verified.
#[derive(Debug, PartialEq)]
pub struct TokenClaims {
    /// Worth nothing from then on.
    pub expires: Option<EventTime>,
    audiences: Vec<String>,
    subject: String,
}

#[derive(Deserialize)]
struct JwtPayload {
    aud: Audiences,
    exp: Option<f64>,
    sub: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl TokenClaims {
    /// Reads the claims. Returns `None` if it is no service account token, whatever it claims.
    pub fn read(token: &str) -> Option<Self> {
        if token.len() > TOKEN_BYTES {
            return None;
        }
        let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).ok().filter(|bytes| !bytes.is_empty()));
        let (_header, payload, _signature) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() {
            return None;
        }
        let JwtPayload { aud, exp, sub } = serde_json::from_slice(&payload).ok()?;
        let audiences = match aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Many(audiences) => audiences,
        };
        Some(Self { expires: exp.map(EventTime::from_seconds), audiences, subject: sub })
    }

    /// Returns whether there is something to ask: the token claims to be a service account's, for this audience, and still good.
    pub fn are_worth_asking(&self, audience: &str, now: EventTime) -> bool {
        self.subject.starts_with(USER)
            && self.audiences.iter().any(|own| own == audience)
            && self.expires.is_none_or(|expires| now < expires)
    }
}

/// Whom the API server takes the bearer of a token for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewedUser {
    /// The name of the user.
    pub user: String,
    /// Requested audiences for which the token is valid; none if the API server does not know audiences.
    pub audiences: Vec<String>,
}

impl ReviewedUser {
    /// Returns the rights of this bearer: reports for the account's own namespace, if the token is for this audience.
    pub fn grant(&self, audience: &str) -> Option<TokenGrant> {
        let (namespace, name) = self.user.strip_prefix(USER)?.split_once(':')?;
        let is_name = |text: &str, bytes: usize, dots: bool| {
            let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || (dots && byte == b'.');
            (1..=bytes).contains(&text.len()) && text.bytes().all(good)
        };
        let known = is_name(namespace, NAMESPACE_BYTES, false) && is_name(name, NAME_BYTES, true);
        (known && self.audiences.iter().any(|own| own == audience)).then(|| TokenGrant::of_namespace(&self.user, namespace))
    }
}

/// Cached result of a token's review.
#[derive(Debug, Clone, PartialEq)]
pub enum ReviewCacheLookup {
    /// Accepted lately.
    Accepted(TokenGrant),
    /// Refused lately.
    Refused,
    /// Asked for lately, without an answer.
    Unanswered,
    /// Accepted once, and to be asked for again.
    Lapsed,
    /// Nothing.
    Nothing,
}

/// The API server's answers about tokens, by their hashes; bounded, and each answer is kept for its time.
#[derive(Debug)]
pub struct ReviewCache {
    remember_seconds: f64,
    /// Kept beyond their expiry: a client that was accepted once is not limited as unknown.
    accepted: BoundedTokenMap<TokenGrant>,
    refused: BoundedTokenMap<()>,
    unanswered: BoundedTokenMap<()>,
}

impl ReviewCache {
    pub fn new(remember_seconds: f64) -> Self {
        Self::bounded(remember_seconds, ACCEPTED, OTHERS)
    }

    fn bounded(remember_seconds: f64, accepted: usize, others: usize) -> Self {
        Self {
            remember_seconds,
            accepted: BoundedTokenMap::new(accepted),
            refused: BoundedTokenMap::new(others),
            unanswered: BoundedTokenMap::new(others),
        }
    }

    pub fn lookup(&self, token: &TokenHash, now: EventTime) -> ReviewCacheLookup {
        let accepted = self.accepted.0.get(token);
        match accepted {
            Some(entry) if entry.holds(now) => ReviewCacheLookup::Accepted(entry.value.clone()),
            _ if self.refused.holds(token, now) => ReviewCacheLookup::Refused,
            _ if self.unanswered.holds(token, now) => ReviewCacheLookup::Unanswered,
            Some(_) => ReviewCacheLookup::Lapsed,
            None => ReviewCacheLookup::Nothing,
        }
    }

    /// `asked`: time of the question. The answer may have expired since then.
    pub fn accept(&mut self, token: TokenHash, grant: TokenGrant, asked_at: EventTime, expires: Option<EventTime>) {
        let until = asked_at.plus_seconds(self.remember_seconds);
        let until = expires.map_or(until, |expires| until.min(expires));
        self.refused.0.remove(&token);
        self.unanswered.0.remove(&token);
        self.accepted.put(token, ReviewCacheEntry { since: asked_at, until, value: grant });
    }

    pub fn refuse(&mut self, token: TokenHash, asked_at: EventTime) {
        self.accepted.0.remove(&token);
        self.refused.put(token, ReviewCacheEntry { since: asked_at, until: asked_at.plus_seconds(REFUSED_SECONDS), value: () });
    }

    /// `now`, not when it was asked: what takes longer than the pause would have none.
    pub fn no_answer(&mut self, token: TokenHash, now: EventTime) {
        self.unanswered.put(token, ReviewCacheEntry { since: now, until: now.plus_seconds(UNANSWERED_SECONDS), value: () });
    }
}

#[derive(Debug)]
struct ReviewCacheEntry<T> {
    since: EventTime,
    until: EventTime,
    value: T,
}

impl<T> ReviewCacheEntry<T> {
    /// Returns whether an entry still holds. A clock that was set back is before `since`, and makes nothing last longer.
    fn holds(&self, now: EventTime) -> bool {
        self.since <= now && now < self.until
    }
}

/// Entries by the hash of a token, up to a limit: those that expire first are dropped first.
#[derive(Debug)]
struct BoundedTokenMap<T>(HashMap<TokenHash, ReviewCacheEntry<T>>, usize);

impl<T> BoundedTokenMap<T> {
    fn new(capacity: usize) -> Self {
        Self(HashMap::new(), capacity)
    }

    fn holds(&self, token: &TokenHash, now: EventTime) -> bool {
        self.0.get(token).is_some_and(|entry| entry.holds(now))
    }

    /// Looks at everything if it is full: as often as the API server answers, which is bounded.
    fn put(&mut self, token: TokenHash, entry: ReviewCacheEntry<T>) {
        if self.0.len() >= self.1 && !self.0.contains_key(&token) {
            let first = self.0.iter().min_by_key(|(_, entry)| entry.until).map(|(token, _)| *token);
            first.and_then(|token| self.0.remove(&token));
        }
        self.0.insert(token, entry);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const NOW: EventTime = EventTime::from_micros(1_767_225_600_000_000);
    const NOW_SECONDS: i64 = 1_767_225_600;

    /// Returns a token with this payload and an invalid signature.
    pub(in crate::progress) fn token(payload: &Value) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part(r#"{"alg":"RS256"}"#), part(&payload.to_string()), part("signed"))
    }

    fn payload() -> Value {
        json!({"aud": ["eadt"], "exp": NOW_SECONDS + 3600, "sub": "system:serviceaccount:team-a:train"})
    }

    fn is_asked(token: &str) -> bool {
        TokenClaims::read(token).is_some_and(|claims| claims.are_worth_asking("eadt", NOW))
    }

    #[test]
    fn what_cannot_be_a_token_for_here_is_not_asked_for() {
        assert!(is_asked(&token(&payload())));
        let with = |name: &str, value: Value| {
            let mut payload = payload();
            payload[name] = value;
            token(&payload)
        };
        for (good, token) in [
            (true, with("aud", json!("eadt"))),
            (true, with("aud", json!(["vault", "eadt"]))),
            (true, with("exp", Value::Null)),
            (true, with("exp", json!(NOW_SECONDS as f64 + 0.5))),
            (true, with("kubernetes.io", json!({"namespace": "team-a"}))),
            (false, with("aud", json!("eadt2"))),
            (false, with("aud", json!([]))),
            (false, with("aud", Value::Null)),
            (false, with("exp", json!(NOW_SECONDS))),
            (false, with("exp", json!(-1e300))),
            (false, with("exp", json!("soon"))),
            (false, with("sub", json!("system:node:gpu-0"))),
            (false, with("sub", json!(7))),
            (false, with("more", json!("x".repeat(TOKEN_BYTES)))),
        ] {
            assert_eq!(is_asked(&token), good, "{token}");
        }
        let good = token(&payload());
        let parts: Vec<&str> = good.split('.').collect();
        for bad in [
            String::new(),
            "..".into(),
            "eadt".into(),
            format!("{}.{}", parts[0], parts[1]),
            format!("{}.{}.", parts[0], parts[1]),
            format!(".{}.{}", parts[1], parts[2]),
            format!("{good}.{}", parts[2]),
            format!("{good}="),
            format!("{good} "),
            format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode("[1]"), parts[2]),
            format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode("[".repeat(5000)), parts[2]),
        ] {
            assert!(!is_asked(&bad), "{bad}");
        }
    }

    #[test]
    fn the_api_servers_word_is_worth_the_accounts_own_namespace_for_this_audience_alone() {
        let grant = |user: &str, audiences: &[&str]| {
            let audiences = audiences.iter().map(|&audience| audience.to_owned()).collect();
            ReviewedUser { user: user.to_owned(), audiences }.grant("eadt")
        };
        let train = "system:serviceaccount:team-a:train.v2";
        let granted = grant(train, &["vault", "eadt"]).unwrap();
        assert_eq!(granted.id, train);
        for (workload, allowed) in
            [("team-a/x", true), ("team-b/x", false), ("team-a2/x", false), ("*/x", false), ("train/x", false)]
        {
            assert_eq!(granted.allows(workload), allowed, "{workload}");
        }
        assert_eq!(grant(train, &[]), None, "an API server that knows of no audiences");
        assert_eq!(grant(train, &["https://kubernetes.default.svc"]), None);
        for user in [
            "",
            "admin",
            "system:serviceaccount:team-a",
            "system:serviceaccount::train",
            "system:serviceaccount:team-a:",
            "system:serviceaccount:*:train",
            "system:serviceaccount:team-a:b:c",
            "system:serviceaccount:team/a:train",
            "system:serviceaccount:Team:train",
            "System:serviceaccount:team-a:train",
            "system:serviceaccounts:team-a:train",
            "oidc:system:serviceaccount:team-a:train",
        ] {
            assert_eq!(grant(user, &["eadt"]), None, "{user}");
        }
        assert_eq!(grant(&format!("system:serviceaccount:{}:train", "a".repeat(64)), &["eadt"]), None);
    }

    fn grant() -> TokenGrant {
        TokenGrant::of_namespace("system:serviceaccount:team-a:train", "team-a")
    }

    #[test]
    fn each_answer_is_remembered_for_its_time() {
        let at = |seconds: f64| NOW.plus_seconds(seconds);
        let (mut memory, token) = (ReviewCache::new(60.0), TokenHash::of("a"));
        assert_eq!(memory.lookup(&token, NOW), ReviewCacheLookup::Nothing);
        memory.no_answer(token, NOW);
        assert_eq!(
            [memory.lookup(&token, at(0.9)), memory.lookup(&token, at(1.0))],
            [ReviewCacheLookup::Unanswered, ReviewCacheLookup::Nothing]
        );
        memory.refuse(token, at(1.0));
        assert_eq!(
            [memory.lookup(&token, at(10.9)), memory.lookup(&token, at(11.0))],
            [ReviewCacheLookup::Refused, ReviewCacheLookup::Nothing]
        );
        memory.accept(token, grant(), at(11.0), None);
        assert_eq!(
            [memory.lookup(&token, at(70.9)), memory.lookup(&token, at(71.0))],
            [ReviewCacheLookup::Accepted(grant()), ReviewCacheLookup::Lapsed]
        );
        assert_eq!(memory.lookup(&token, at(10.9)), ReviewCacheLookup::Lapsed, "a clock that was set back");
        memory.no_answer(token, at(71.0));
        assert_eq!(
            [memory.lookup(&token, at(71.9)), memory.lookup(&token, at(72.0))],
            [ReviewCacheLookup::Unanswered, ReviewCacheLookup::Lapsed]
        );
        memory.accept(token, grant(), at(72.0), Some(at(80.0)));
        assert_eq!(
            [memory.lookup(&token, at(79.9)), memory.lookup(&token, at(80.0))],
            [ReviewCacheLookup::Accepted(grant()), ReviewCacheLookup::Lapsed]
        );
        memory.refuse(token, at(80.0));
        assert_eq!(
            [memory.lookup(&token, at(80.0)), memory.lookup(&token, at(90.0))],
            [ReviewCacheLookup::Refused, ReviewCacheLookup::Nothing]
        );
    }

    #[derive(Debug, Clone)]
    enum ReviewAnswer {
        Accepted(Option<i64>),
        Refused,
        Unanswered,
    }

    fn review_answer() -> impl Strategy<Value = ReviewAnswer> {
        prop_oneof![
            prop::option::of(-5i64..200).prop_map(ReviewAnswer::Accepted),
            Just(ReviewAnswer::Refused),
            Just(ReviewAnswer::Unanswered),
        ]
    }

    proptest! {
        #![proptest_config(cases(256))]
        /// Checks a token for any answers about any tokens, at times that run back, too.
        #[test]
        fn a_token_is_accepted_by_its_last_answer_alone_and_no_longer_than_that_lasts(
            steps in prop::collection::vec((0u8..6, 0i64..200, review_answer()), 0..60),
            capacity in 1usize..8,
            look_at in prop::collection::vec(0i64..300, 1..20),
        ) {
            let remember = 60;
            let at = |seconds: i64| NOW.plus_micros(seconds * 1_000_000);
            let mut memory = ReviewCache::bounded(remember as f64, capacity, capacity);
            // Of each token the last answer: from when, and until when it is good.
            let mut last: HashMap<u8, (i64, i64)> = HashMap::new();
            for (token, seconds, result) in &steps {
                let hash = TokenHash::of(&token.to_string());
                match result {
                    ReviewAnswer::Accepted(expires) => {
                        memory.accept(hash, grant(), at(*seconds), expires.map(&at));
                        let until = seconds + remember;
                        last.insert(*token, (*seconds, expires.map_or(until, |expires| until.min(expires))));
                    }
                    ReviewAnswer::Refused => {
                        memory.refuse(hash, at(*seconds));
                        last.remove(token);
                    }
                    ReviewAnswer::Unanswered => memory.no_answer(hash, at(*seconds)),
                }
                prop_assert!(memory.accepted.0.len() <= capacity);
                prop_assert!(memory.refused.0.len() <= capacity && memory.unanswered.0.len() <= capacity);
            }
            for token in 0..6u8 {
                for seconds in &look_at {
                    let accepted = matches!(memory.lookup(&TokenHash::of(&token.to_string()), at(*seconds)), ReviewCacheLookup::Accepted(_));
                    let good = last.get(&token).is_some_and(|(since, until)| since <= seconds && seconds < until);
                    prop_assert!(good || !accepted, "{} at {}", token, seconds);
                    // With enough capacity nothing is forgotten.
                    prop_assert!(capacity < 6 || good == accepted, "{} at {}", token, seconds);
                }
            }
        }

        #[test]
        fn nothing_that_is_sent_makes_it_panic(text in "\\PC{0,200}", payload in "\\PC{0,100}") {
            drop(TokenClaims::read(&text));
            drop(TokenClaims::read(&format!("e30.{}.e30", URL_SAFE_NO_PAD.encode(payload))));
        }
    }
}
