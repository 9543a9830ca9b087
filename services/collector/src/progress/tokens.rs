//! Manages bearer tokens of jobs that report progress. Pure except [`read`] and [`change`], which access the file.
//!
//! A token is `eadt_ID_SECRET`. The secret is 256 random bits, so its SHA-256 can be kept: there is no dictionary to try, and a
//! slow hash would only slow the collector. The file holds hashes, never secrets, so its readers cannot report progress.

use std::fmt::{self, Write};
use std::io::Write as _;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use eadt_schemas::EventTime;
use eadt_service::files;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Prefix of every token in a file; no JWT begins with it.
pub const PREFIX: &str = "eadt_";
/// Random bytes of the id, and of the secret.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;
/// Random bytes that a token needs.
pub const CHANCE_BYTES: usize = ID_BYTES + SECRET_BYTES;
/// Every namespace.
const ALL: &str = "*";
/// A file of more bytes is no tokens file.
const FILE_BYTES: u64 = 16 << 20;

/// SHA-256 of a secret, in hexadecimal on file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hexadecimal(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let byte = |at: usize| text.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let mut bytes = [0; 32];
        for (at, slot) in bytes.iter_mut().enumerate() {
            *slot = byte(at).ok_or_else(|| de::Error::custom("not a SHA-256 in hexadecimal"))?;
        }
        if text.len() == 64 { Ok(Self(bytes)) } else { Err(de::Error::custom("not a SHA-256 in hexadecimal")) }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// Stored part of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// Names the token in logs and commands; no secret.
    pub id: String,
    /// SHA-256 of the secret.
    pub sha256: TokenHash,
    /// Namespaces that it may report for; `*` is every one.
    pub namespaces: Vec<String>,
    pub created: EventTime,
    /// Worth nothing from then on; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<EventTime>,
}

/// Every token that is worth something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenStore {
    pub tokens: Vec<TokenEntry>,
}

/// Rights of the bearer of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    /// Id of the token, or the user name of a service account.
    pub id: String,
    namespaces: Vec<String>,
}

impl TokenGrant {
    /// Returns the rights of `id` for one namespace. The caller checks that it is a namespace, and not [`ALL`].
    pub(super) fn of_namespace(id: &str, namespace: &str) -> Self {
        Self { id: id.to_owned(), namespaces: vec![namespace.to_owned()] }
    }

    /// Returns whether the bearer may report for this workload, `namespace/name`.
    pub fn allows(&self, workload: &str) -> bool {
        let namespace = workload.split_once('/').map(|(namespace, _)| namespace);
        namespace.is_some_and(|namespace| self.namespaces.iter().any(|own| own == ALL || own == namespace))
    }
}

/// A new token. It is shown once, by [`NewToken::reveal`], and printed nowhere else.
pub struct NewToken(String);

impl NewToken {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewToken")
    }
}

/// A tokens file that cannot be used, or a change that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    #[error("cannot use tokens file {path}: {detail}")]
    File { path: String, detail: String },
    #[error("{0}")]
    Change(String),
}

impl TokenStore {
    /// Returns a new token made of `chance`, which must be unpredictable.
    pub fn create(
        &mut self,
        chance: &[u8; CHANCE_BYTES],
        namespaces: &[String],
        now: EventTime,
        expires: Option<EventTime>,
    ) -> Result<(NewToken, &TokenEntry), TokensError> {
        check_namespaces(namespaces).map_err(TokensError::Change)?;
        namespaces.iter().try_for_each(|name| check_characters(name)).map_err(TokensError::Change)?;
        let (id, secret) = chance.split_at(ID_BYTES);
        let (id, secret) = (hexadecimal(id), URL_SAFE_NO_PAD.encode(secret));
        if self.tokens.iter().any(|entry| entry.id == id) {
            return Err(TokensError::Change(format!("there is a token {id} already: try again")));
        }
        let token = NewToken(format!("{PREFIX}{id}_{secret}"));
        let sha256 = TokenHash::of(&secret);
        self.tokens.push(TokenEntry { id, sha256, namespaces: namespaces.to_vec(), created: now, expires });
        Ok((token, self.tokens.last().expect("just pushed")))
    }

    /// Takes a token's worth away.
    pub fn revoke(&mut self, id: &str) -> Result<(), TokensError> {
        let before = self.tokens.len();
        self.tokens.retain(|entry| entry.id != id);
        if self.tokens.len() == before {
            return Err(TokensError::Change(format!("there is no token {id}: eadt token list names them")));
        }
        Ok(())
    }

    /// Returns the rights of the bearer of this token; `None` if it is not valid. The time that this takes reveals no secret.
    pub fn verify(&self, token: &str, now: EventTime) -> Option<TokenGrant> {
        let (id, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
        let hash = TokenHash::of(secret);
        let entry = self.tokens.iter().find(|entry| entry.id == id)?;
        let right: bool = hash.0.ct_eq(&entry.sha256.0).into();
        let valid = right && entry.expires.is_none_or(|expires| now < expires);
        valid.then(|| TokenGrant { id: entry.id.clone(), namespaces: entry.namespaces.clone() })
    }

    fn check(&self) -> Result<(), String> {
        for (index, entry) in self.tokens.iter().enumerate() {
            if self.tokens[..index].iter().any(|other| other.id == entry.id) {
                return Err(format!("two tokens have the id {}", entry.id));
            }
            check_namespaces(&entry.namespaces).map_err(|detail| format!("token {}: {detail}", entry.id))?;
        }
        Ok(())
    }
}

fn check_namespaces(namespaces: &[String]) -> Result<(), String> {
    if namespaces.is_empty() {
        return Err("no namespace is named".to_owned());
    }
    let odd = namespaces.iter().find(|name| name.is_empty() || name.contains('/') || name.chars().any(char::is_control));
    odd.map_or(Ok(()), |name| Err(format!("{name:?} is no namespace: name what is before the slash of a workload, or *")))
}

/// Returns an error if a token cannot be for a namespace.
pub fn check_namespace(namespace: &str) -> Result<(), String> {
    check_namespaces(&[namespace.to_owned()])?;
    check_characters(namespace)
}

/// Refuses a namespace that no workload has: a token for it would be worth nothing without a word.
fn check_characters(namespace: &str) -> Result<(), String> {
    let odd = namespace.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)).filter(|_| namespace != ALL);
    odd.map_or(Ok(()), |odd| {
        Err(format!(
            "{namespace:?} is no namespace: it has {odd:?}, and a namespace has letters, digits, '-', '_' and '.' only; name one such \
             as team-a, several with one --namespace each, or * for every one"
        ))
    })
}

/// Reads a tokens file.
pub fn read(path: &Path) -> Result<TokenStore, TokensError> {
    let failed = |detail: String| TokensError::File { path: path.display().to_string(), detail };
    let text = files::read_bytes(path, FILE_BYTES).map_err(|error| failed(error.to_string()))?;
    parse(&text).map_err(failed)
}

/// Parses a tokens file. Errors give the position but no text, which may be tokens written into it by mistake.
pub fn parse(text: &[u8]) -> Result<TokenStore, String> {
    let tokens: TokenStore = serde_json::from_slice(text).map_err(|error| {
        let kind = if error.is_data() { "another content than" } else { "no JSON, as" };
        format!("line {}, column {}: it has {kind} eadt token create writes", error.line(), error.column())
    })?;
    tokens.check()?;
    Ok(tokens)
}

/// Changes a tokens file: as a whole or not at all, one at a time. A file that is not there is made, for its owner's eyes only.
pub fn change<T>(path: &Path, change: impl FnOnce(&mut TokenStore) -> Result<T, TokensError>) -> Result<T, TokensError> {
    let failed = |error: std::io::Error| TokensError::File { path: path.display().to_string(), detail: error.to_string() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    // Other writers wait for this lock. It is on the folder, since the file itself is replaced.
    let lock = std::fs::File::open(folder).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut tokens = if path.try_exists().map_err(failed)? { read(path)? } else { TokenStore::default() };
    let changed = change(&mut tokens)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    serde_json::to_writer_pretty(&mut file, &tokens).map_err(|error| failed(error.into()))?;
    file.write_all(b"\n").map_err(failed)?;
    if let Ok(metadata) = std::fs::metadata(path) {
        // Keeps the file's permissions, for readers such as the collector.
        file.as_file().set_permissions(metadata.permissions()).map_err(failed)?;
    }
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    const NOW: EventTime = EventTime::from_micros(1_767_225_600_000_000);

    fn namespaces(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn chance(seed: u8) -> [u8; CHANCE_BYTES] {
        std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(seed))
    }

    #[test]
    fn a_namespace_that_no_workload_has_gets_no_token() {
        for (name, odd) in
            [("A B", "' '"), ("team-*", "'*'"), ("a,b", "','"), ("tab\u{a0}", "\\u{a0}"), ("ümlaut", "'ü'"), ("a:b", "':'")]
        {
            let error = TokenStore::default().create(&chance(1), &namespaces(&["ok", name]), NOW, None).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?} is no namespace")) && error.contains(odd), "{error}");
        }
        for name in ["team-a", "Team_A", "a.b", "0", "*"] {
            assert!(TokenStore::default().create(&chance(1), &namespaces(&[name]), NOW, None).is_ok(), "{name}");
        }
        // Entries of an existing file stay in force.
        let kept = r#"{"tokens":[{"id":"a","sha256":"HASH","namespaces":["A B"],"created":"2026-01-02T03:04:05Z"}]}"#;
        assert!(parse(kept.replace("HASH", &"0".repeat(64)).as_bytes()).is_ok());
    }

    #[test]
    fn a_token_is_worth_its_namespaces_until_it_expires_or_is_revoked() {
        let mut tokens = TokenStore::default();
        let later = NOW.plus_seconds(60.0);
        let (token, entry) = tokens.create(&chance(1), &namespaces(&["team-a", "team-b"]), NOW, Some(later)).unwrap();
        let id = entry.id.clone();
        let (all, _) = tokens.create(&chance(2), &namespaces(&["*"]), NOW, None).unwrap();
        let grant = tokens.verify(token.reveal(), NOW).unwrap();
        for (workload, allowed) in [
            ("team-a/x", true),
            ("team-b/x", true),
            ("team-c/x", false),
            ("team-a", false),
            ("team-a-2/x", false),
            ("*/x", false),
        ] {
            assert_eq!(grant.allows(workload), allowed, "{workload}");
        }
        assert!(tokens.verify(all.reveal(), later).unwrap().allows("team-c/x"));
        assert_eq!(tokens.verify(token.reveal(), later), None, "expired");
        tokens.revoke(&id).unwrap();
        assert_eq!(tokens.verify(token.reveal(), NOW), None, "revoked");
        assert!(tokens.revoke(&id).unwrap_err().to_string().contains("no token"));
    }

    #[test]
    fn neither_the_file_nor_any_debug_text_has_the_secret() {
        let (dir, mut output) = (tempfile::tempdir().unwrap(), String::new());
        let path = dir.path().join("tokens.json");
        let token = change(&path, |tokens| {
            let (token, _) = tokens.create(&chance(3), &namespaces(&["n"]), NOW, None)?;
            write!(output, "{token:?} {tokens:?}").unwrap();
            Ok(token)
        })
        .unwrap();
        output.push_str(&std::fs::read_to_string(&path).unwrap());
        let secret = token.reveal().splitn(3, '_').nth(2).unwrap();
        assert!(secret.len() > 20 && !output.contains(secret), "{output}");
        assert!(read(&path).unwrap().verify(token.reveal(), NOW).is_some());
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777, 0o600);
    }

    #[test]
    fn changes_at_once_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    change(path, |tokens| tokens.create(&chance(seed), &namespaces(&["n"]), NOW, None).map(drop)).unwrap();
                });
            }
        });
        assert_eq!(read(&path).unwrap().tokens.len(), 8);
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let entry = |id: &str, hash: &str, names: &str| {
            format!("{{\"id\":\"{id}\",\"sha256\":\"{hash}\",\"namespaces\":{names},\"created\":\"2026-01-01T00:00:00Z\"}}")
        };
        let (good, hash) = (entry("a", &"0".repeat(64), "[\"n\"]"), "0".repeat(64));
        for (text, part) in [
            ("nonsense".to_owned(), "it has no JSON, as eadt token create writes"),
            ("[\"hunter2\"]".to_owned(), "it has another content than eadt token create writes"),
            ("\"hunter2\"".to_owned(), "another content"),
            ("{\"hunter2\":1}".to_owned(), "another content"),
            ("{\"tokens\":\"hunter2\"}".to_owned(), "another content"),
            ("{\"tokens\":[\"hunter2\"]}".to_owned(), "another content"),
            ("{\"tokens\":[{\"id\":\"a\",\"sha256\":\"hunter2\"}]}".to_owned(), "another content"),
            ("{\"tokens\":[{\"id\":\"a\",\"created\":\"hunter2\"}]}".to_owned(), "another content"),
            ("{\"tokens\":[{\"id\":\"a\"}]}".to_owned(), "another content"),
            ("hunter2\nhunter2\n".to_owned(), "no JSON"),
            (format!("{{\"tokens\":[{good},{good}]}}"), "two tokens have the id a"),
            (format!("{{\"tokens\":[{}]}}", entry("a", "00", "[\"n\"]")), "another content"),
            (format!("{{\"tokens\":[{}]}}", entry("a", &format!("{hash}00"), "[\"n\"]")), "another content"),
            (format!("{{\"tokens\":[{}]}}", entry("a", &hash, "[]")), "no namespace"),
            (format!("{{\"tokens\":[{}]}}", entry("a", &hash, "[\"n/a\"]")), "is no namespace"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("tokens.json") && !error.contains("hunter2"), "{text}: {error}");
        }
        assert!(change(&path, |_| Ok(())).is_err(), "what cannot be read is not replaced");
    }

    proptest! {
        #![proptest_config(cases(256))]
        #[test]
        fn nothing_else_than_the_token_is_worth_anything(text in "(eadt_)?[0-9a-f_]{0,13}_?[A-Za-z0-9_-]{0,44}", at in 0usize..64, flip in 1u8..128) {
            let mut tokens = TokenStore::default();
            let token = tokens.create(&chance(9), &namespaces(&["*"]), NOW, None).unwrap().0;
            prop_assert_eq!(tokens.verify(&text, NOW).is_some(), text == token.reveal());
            let mut changed = token.reveal().as_bytes().to_vec();
            let at = at % changed.len();
            changed[at] ^= flip;
            prop_assert_eq!(tokens.verify(&String::from_utf8_lossy(&changed), NOW), None);
        }
    }
}
