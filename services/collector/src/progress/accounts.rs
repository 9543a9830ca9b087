//! Tokens of Kubernetes service accounts: what one says of itself, what the API server's word is worth, and how long. Pure.
//!
//! Such a token is a JWT that the API server signed, and only the API server is asked whether it is worth something (`TokenReview`):
//! it alone knows of accounts and pods that are gone. What a token says of itself is believed where it speaks against its bearer,
//! so that nobody is bothered with what cannot be accepted, and never where it speaks for him.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use eadt_schemas::EventTime;
use serde::Deserialize;

use super::tokens::{Grant, Hash};

/// A projected token has a thousand or two.
const TOKEN_BYTES: usize = 8 << 10;
/// How the name of every service account's user begins.
const USER: &str = "system:serviceaccount:";
/// Longest namespace, a DNS label.
const NAMESPACE_BYTES: usize = 63;
/// Longest name of an account, a DNS subdomain.
const NAME_BYTES: usize = 253;

/// Accepted tokens that are remembered, each some 300 bytes: of so many jobs one collector hears in a minute at most.
const ACCEPTED: usize = 4096;
/// Refused and unanswered ones; more only cost another question.
const OTHERS: usize = 4096;
/// How long a refused token is not asked for again, in seconds: a sender that goes on with it costs six questions a minute.
const REFUSED_SECONDS: f64 = 10.0;
/// How long one is not that the API server said nothing of, in seconds.
const UNANSWERED_SECONDS: f64 = 1.0;

/// What a token says of itself, and nobody has checked.
#[derive(Debug, PartialEq)]
pub struct Claims {
    /// Worth nothing from then on.
    pub expires: Option<EventTime>,
    audiences: Vec<String>,
    subject: String,
}

#[derive(Deserialize)]
struct Payload {
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

impl Claims {
    /// `None`: no token of a service account, whoever would say so.
    pub fn read(token: &str) -> Option<Self> {
        if token.len() > TOKEN_BYTES {
            return None;
        }
        let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).ok().filter(|bytes| !bytes.is_empty()));
        let (_header, payload, _signature) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() {
            return None;
        }
        let Payload { aud, exp, sub } = serde_json::from_slice(&payload).ok()?;
        let audiences = match aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Many(audiences) => audiences,
        };
        Some(Self { expires: exp.map(EventTime::from_seconds), audiences, subject: sub })
    }

    /// Whether there is something to ask: it says that it is a service account's, for this audience, and still good.
    pub fn are_worth_asking(&self, audience: &str, now: EventTime) -> bool {
        self.subject.starts_with(USER)
            && self.audiences.iter().any(|own| own == audience)
            && self.expires.is_none_or(|expires| now < expires)
    }
}

/// Whom the API server takes the bearer of a token for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// The name of the user.
    pub user: String,
    /// Those of the audiences asked for that the token is good for; none where the API server does not know of audiences.
    pub audiences: Vec<String>,
}

impl Bearer {
    /// What this bearer may do: report for the account's own namespace, where the token is for this audience.
    pub fn grant(&self, audience: &str) -> Option<Grant> {
        let (namespace, name) = self.user.strip_prefix(USER)?.split_once(':')?;
        let is_name = |text: &str, bytes: usize, dots: bool| {
            let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || (dots && byte == b'.');
            (1..=bytes).contains(&text.len()) && text.bytes().all(good)
        };
        let known = is_name(namespace, NAMESPACE_BYTES, false) && is_name(name, NAME_BYTES, true);
        (known && self.audiences.iter().any(|own| own == audience)).then(|| Grant::of_namespace(&self.user, namespace))
    }
}

/// What is remembered of a token.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Accepted lately.
    Accepted(Grant),
    /// Refused lately.
    Refused,
    /// Asked for lately, without an answer.
    Unanswered,
    /// Accepted once, and to be asked for again.
    Lapsed,
    /// Nothing.
    Nothing,
}

/// What the API server said of tokens, by their hashes; bounded, and each answer for its time.
#[derive(Debug)]
pub struct Memory {
    remember_seconds: f64,
    /// Kept beyond their time: whoever was accepted once is no stranger.
    accepted: Book<Grant>,
    refused: Book<()>,
    unanswered: Book<()>,
}

impl Memory {
    pub fn new(remember_seconds: f64) -> Self {
        Self::bounded(remember_seconds, ACCEPTED, OTHERS)
    }

    fn bounded(remember_seconds: f64, accepted: usize, others: usize) -> Self {
        Self { remember_seconds, accepted: Book::new(accepted), refused: Book::new(others), unanswered: Book::new(others) }
    }

    pub fn look(&self, token: &Hash, now: EventTime) -> Known {
        let accepted = self.accepted.0.get(token);
        match accepted {
            Some(entry) if entry.holds(now) => Known::Accepted(entry.value.clone()),
            _ if self.refused.holds(token, now) => Known::Refused,
            _ if self.unanswered.holds(token, now) => Known::Unanswered,
            Some(_) => Known::Lapsed,
            None => Known::Nothing,
        }
    }

    /// `asked`: when the question was put; what the answer says may have ended since then.
    pub fn accept(&mut self, token: Hash, grant: Grant, asked: EventTime, expires: Option<EventTime>) {
        let until = asked.plus_seconds(self.remember_seconds);
        let until = expires.map_or(until, |expires| until.min(expires));
        self.refused.0.remove(&token);
        self.unanswered.0.remove(&token);
        self.accepted.put(token, Entry { since: asked, until, value: grant });
    }

    pub fn refuse(&mut self, token: Hash, asked: EventTime) {
        self.accepted.0.remove(&token);
        self.refused.put(token, Entry { since: asked, until: asked.plus_seconds(REFUSED_SECONDS), value: () });
    }

    /// `now`, not when it was asked: what takes longer than the pause would have none.
    pub fn no_answer(&mut self, token: Hash, now: EventTime) {
        self.unanswered.put(token, Entry { since: now, until: now.plus_seconds(UNANSWERED_SECONDS), value: () });
    }
}

#[derive(Debug)]
struct Entry<T> {
    since: EventTime,
    until: EventTime,
    value: T,
}

impl<T> Entry<T> {
    /// A clock that was set back is before `since`, and makes nothing last longer.
    fn holds(&self, now: EventTime) -> bool {
        self.since <= now && now < self.until
    }
}

/// Entries by the hash of a token, at most so many: those that end first go first.
#[derive(Debug)]
struct Book<T>(HashMap<Hash, Entry<T>>, usize);

impl<T> Book<T> {
    fn new(capacity: usize) -> Self {
        Self(HashMap::new(), capacity)
    }

    fn holds(&self, token: &Hash, now: EventTime) -> bool {
        self.0.get(token).is_some_and(|entry| entry.holds(now))
    }

    /// Looks at everything where it is full: as often as the API server answers, which is bounded.
    fn put(&mut self, token: Hash, entry: Entry<T>) {
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

    /// A token with this payload, and a signature of nobody.
    pub(in crate::progress) fn token(payload: &Value) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part(r#"{"alg":"RS256"}"#), part(&payload.to_string()), part("signed"))
    }

    fn payload() -> Value {
        json!({"aud": ["eadt"], "exp": NOW_SECONDS + 3600, "sub": "system:serviceaccount:team-a:train"})
    }

    fn is_asked(token: &str) -> bool {
        Claims::read(token).is_some_and(|claims| claims.are_worth_asking("eadt", NOW))
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
            Bearer { user: user.to_owned(), audiences }.grant("eadt")
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

    fn grant() -> Grant {
        Grant::of_namespace("system:serviceaccount:team-a:train", "team-a")
    }

    #[test]
    fn each_answer_is_remembered_for_its_time() {
        let at = |seconds: f64| NOW.plus_seconds(seconds);
        let (mut memory, token) = (Memory::new(60.0), Hash::of("a"));
        assert_eq!(memory.look(&token, NOW), Known::Nothing);
        memory.no_answer(token, NOW);
        assert_eq!([memory.look(&token, at(0.9)), memory.look(&token, at(1.0))], [Known::Unanswered, Known::Nothing]);
        memory.refuse(token, at(1.0));
        assert_eq!([memory.look(&token, at(10.9)), memory.look(&token, at(11.0))], [Known::Refused, Known::Nothing]);
        memory.accept(token, grant(), at(11.0), None);
        assert_eq!([memory.look(&token, at(70.9)), memory.look(&token, at(71.0))], [Known::Accepted(grant()), Known::Lapsed]);
        assert_eq!(memory.look(&token, at(10.9)), Known::Lapsed, "a clock that was set back");
        memory.no_answer(token, at(71.0));
        assert_eq!([memory.look(&token, at(71.9)), memory.look(&token, at(72.0))], [Known::Unanswered, Known::Lapsed]);
        memory.accept(token, grant(), at(72.0), Some(at(80.0)));
        assert_eq!([memory.look(&token, at(79.9)), memory.look(&token, at(80.0))], [Known::Accepted(grant()), Known::Lapsed]);
        memory.refuse(token, at(80.0));
        assert_eq!([memory.look(&token, at(80.0)), memory.look(&token, at(90.0))], [Known::Refused, Known::Nothing]);
    }

    #[derive(Debug, Clone)]
    enum Told {
        Accepted(Option<i64>),
        Refused,
        Unanswered,
    }

    fn told() -> impl Strategy<Value = Told> {
        prop_oneof![prop::option::of(-5i64..200).prop_map(Told::Accepted), Just(Told::Refused), Just(Told::Unanswered),]
    }

    proptest! {
        #![proptest_config(cases(256))]
        /// Whatever else was told of whichever tokens, at times that run back, too.
        #[test]
        fn a_token_is_accepted_by_its_last_answer_alone_and_no_longer_than_that_lasts(
            steps in prop::collection::vec((0u8..6, 0i64..200, told()), 0..60),
            capacity in 1usize..8,
            look_at in prop::collection::vec(0i64..300, 1..20),
        ) {
            let remember = 60;
            let at = |seconds: i64| NOW.plus_micros(seconds * 1_000_000);
            let mut memory = Memory::bounded(remember as f64, capacity, capacity);
            // Of each token the last answer: from when, and until when it is good.
            let mut last: HashMap<u8, (i64, i64)> = HashMap::new();
            for (token, seconds, told) in &steps {
                let hash = Hash::of(&token.to_string());
                match told {
                    Told::Accepted(expires) => {
                        memory.accept(hash, grant(), at(*seconds), expires.map(&at));
                        let until = seconds + remember;
                        last.insert(*token, (*seconds, expires.map_or(until, |expires| until.min(expires))));
                    }
                    Told::Refused => {
                        memory.refuse(hash, at(*seconds));
                        last.remove(token);
                    }
                    Told::Unanswered => memory.no_answer(hash, at(*seconds)),
                }
                prop_assert!(memory.accepted.0.len() <= capacity);
                prop_assert!(memory.refused.0.len() <= capacity && memory.unanswered.0.len() <= capacity);
            }
            for token in 0..6u8 {
                for seconds in &look_at {
                    let accepted = matches!(memory.look(&Hash::of(&token.to_string()), at(*seconds)), Known::Accepted(_));
                    let good = last.get(&token).is_some_and(|(since, until)| since <= seconds && seconds < until);
                    prop_assert!(good || !accepted, "{} at {}", token, seconds);
                    // With room for all nothing is forgotten.
                    prop_assert!(capacity < 6 || good == accepted, "{} at {}", token, seconds);
                }
            }
        }

        #[test]
        fn nothing_that_is_sent_makes_it_panic(text in "\\PC{0,200}", payload in "\\PC{0,100}") {
            drop(Claims::read(&text));
            drop(Claims::read(&format!("e30.{}.e30", URL_SAFE_NO_PAD.encode(payload))));
        }
    }
}
