//! Text that may be shown: no character that steers a terminal or reorders text, and no secret.
//!
//! In: any text, such as a name or key that another program wrote. Out: the same text, with such characters as JSON escapes
//! (`\u001b`) and with secrets as `…`. A JSON document keeps its meaning.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use eadt_schemas::secret_names::{is_secret_name, is_secret_parameter};
use eadt_schemas::visible_text::escape;
pub use eadt_schemas::visible_text::{escape_line, escape_lines};

/// Text in place of a secret.
pub const HIDDEN: &str = "…";
/// A secret shorter than this is not searched for in texts: it would hide parts of ordinary words.
const SHORTEST: usize = 4;

/// The secrets of a process, hidden wherever a text leaves it. Clones share them.
#[derive(Clone, Default)]
pub struct SecretRedactor(Arc<[String]>);

impl fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretRedactor({})", self.0.len())
    }
}

impl SecretRedactor {
    /// Secrets with these texts; those of less than four bytes are left out.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|text| text.len() >= SHORTEST).collect();
        // The form in which errors quote them.
        let quoted: Vec<String> = secrets.iter().map(|text| text.escape_debug().to_string()).collect();
        secrets.extend(quoted);
        // The longest first: one may contain another.
        secrets.sort_by_key(|text| std::cmp::Reverse(text.len()));
        secrets.dedup();
        Self(secrets.into())
    }

    /// Replaces every secret, and what [`hide_credentials`] finds.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // Whole secrets first: of one with a quote in it, its form shows a part only.
        let mut shown = Cow::Borrowed(text);
        for secret in self.0.iter().filter(|secret| text.contains(secret.as_str())) {
            shown = Cow::Owned(shown.replace(secret.as_str(), HIDDEN));
        }
        match shown {
            Cow::Borrowed(text) => hide_credentials(text),
            Cow::Owned(text) => Cow::Owned(hide_credentials(&text).into_owned()),
        }
    }
}

/// Returns the secrets within the value of a setting, as it is written and with its percent encoding decoded: passwords of URLs and
/// hosts, and values behind names of secrets. Other programs quote and decode them as they like.
pub fn secrets_within(value: &str) -> Vec<String> {
    let mut secrets = Vec::new();
    for word in std::iter::once(value).chain(value.split(',')) {
        let authority = word.split_once("://").map_or(word, |(_, rest)| rest);
        if let Some((user, _)) = authority.rsplit_once('@')
            && let Some((_, password)) = user.split_once(':')
        {
            secrets.push(password.to_owned());
        }
        for pair in word.split(['?', '&', ';', '#', ',']) {
            if let Some((name, value)) = pair.trim().split_once('=')
                && is_secret_parameter(name)
            {
                secrets.push(value.trim_matches(['"', '\'', ' ']).to_owned());
            }
        }
    }
    let decoded: Vec<String> = secrets.iter().filter_map(|text| percent_decoded(text)).collect();
    secrets.extend(decoded);
    secrets
}

/// Decodes a percent encoding. Returns `None` if that changes nothing, or gives no UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('%') {
        decoded.extend_from_slice(before.as_bytes());
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.unwrap_or(b'%'));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded.extend_from_slice(rest.as_bytes());
    String::from_utf8(decoded).ok().filter(|decoded| decoded != text)
}

/// Characters that end a value, or a URL.
const END: &[char] = &[' ', '\t', '\n', '\r', '"', '\'', '<', '>', '`', '|', '\\'];

/// Replaces parts of a text that are secret by their form: user and password of every URL, also of one without its scheme, and
/// the values of its secret parameters. Replaces every value behind the name of a secret, as in `host:9092?password=VALUE`.
pub fn hide_credentials(text: &str) -> Cow<'_, str> {
    let steps: [fn(&str) -> Option<String>; 4] = [hide_url_secrets, hide_users_of_hosts, hide_named_values, hide_json_values];
    steps.iter().fold(Cow::Borrowed(text), |shown, hide| match hide(&shown) {
        Some(hidden) => Cow::Owned(hidden),
        None => shown,
    })
}

/// Returns whether a text between `:` and `@` may be a password, and no port and path: an image's `host:5000/name@sha256` has none.
fn is_password(text: &str) -> bool {
    let end = text.find('/').unwrap_or(text.len());
    let is_number = text[..end].bytes().all(|byte| byte.is_ascii_digit());
    !is_number || end == text.len() && end >= SHORTEST
}

/// Replaces `USER:PASSWORD` before `@HOST`, as in a URL whose scheme was forgotten. A user has no `/`, as names of workloads have.
fn hide_users_of_hosts(text: &str) -> Option<String> {
    let (mut shown, mut rest, mut found) = (String::new(), text, false);
    let is_user = |user: &str| {
        user.starts_with(|first: char| first.is_ascii_alphabetic())
            && user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.+%-".contains(&byte))
    };
    while let Some(at) = rest.find('@') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        // A key in base64 ends in `=`.
        let padded = before.trim_end_matches('=');
        let start = padded.trim_end_matches(|character| !"=,".contains(character) && !END.contains(&character)).len();
        let is_of_host = before[start..].split_once(':').is_some_and(|(user, password)| is_user(user) && is_password(password))
            && after.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
            // The digest of an image.
            && !after.starts_with("sha256:");
        let mut end = at;
        if is_of_host {
            let url =
                rest[start..].split(|character: char| character == ',' || END.contains(&character)).next().unwrap_or_default();
            // The password may have an `@`, too.
            end = end.max(url[..authority_end(url)].rfind('@').map_or(at, |last| start + last));
            shown.push_str(&before[..start]);
            shown.push_str(HIDDEN);
        } else {
            shown.push_str(before);
        }
        shown.push('@');
        (rest, found) = (&rest[end + 1..], found || is_of_host);
    }
    shown.push_str(rest);
    found.then_some(shown)
}

/// Returns where a value begins in the text behind its `=`, and its length. It is quoted as a log or JSON quotes it, `"VALUE"` or
/// `\"VALUE\"`; a quote that its line does not close ends nothing.
fn value_place(after: &str) -> (usize, usize) {
    let escapes = after.len() - after.trim_start_matches('\\').len();
    let quote = if after[escapes..].starts_with(['"', '\'']) { &after[..=escapes] } else { "" };
    let value = &after[quote.len()..];
    let line = value.split('\n').next().unwrap_or_default();
    let closing = if quote.is_empty() { None } else { line.find(quote) };
    let end = || value.find(|character| END.contains(&character) || character == '&');
    (quote.len(), closing.or_else(end).unwrap_or(value.len()))
}

/// Replaces values behind a separator of one byte. `secret_at` gets the text before it, up to the value before, and the text behind
/// it, and returns where in the latter a secret value begins.
fn hide_values(text: &str, separator: char, secret_at: impl Fn(&str, &str) -> Option<usize>) -> Option<String> {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(separator) {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        shown.push_str(&rest[..=at]);
        rest = after;
        if let Some(start) = secret_at(before, after) {
            let (opening, length) = value_place(&after[start..]);
            if length > 0 {
                shown.push_str(&after[..start + opening]);
                shown.push_str(HIDDEN);
                rest = &after[start + opening + length..];
            }
        }
    }
    if shown.is_empty() {
        return None;
    }
    shown.push_str(rest);
    Some(shown)
}

/// Replaces the values of `NAME=VALUE` and `NAME="VALUE"` if the name is one of a secret.
fn hide_named_values(text: &str) -> Option<String> {
    hide_values(text, '=', |before, _| {
        let is_of_name = |character: char| character.is_alphanumeric() || "_-.".contains(character);
        let start = before.trim_end_matches(is_of_name).len();
        let is_parameter = before[..start].ends_with(['?', '&', ';']);
        let name = &before[start..];
        (is_secret_name(name) || is_parameter && is_secret_parameter(name)).then_some(0)
    })
}

/// Replaces the values of `"NAME": "VALUE"` in JSON and YAML if the name is one of a secret. A name without quotes is left alone: it
/// may be a word of a sentence.
fn hide_json_values(text: &str) -> Option<String> {
    hide_values(text, ':', |before, after| {
        let value = after.trim_start_matches([' ', '\t']);
        let quotes = value.len() - value.trim_start_matches('\\').len();
        let quote = if value[quotes..].starts_with('"') { &value[..=quotes] } else { "" };
        let named = before.strip_suffix(quote).filter(|_| !quote.is_empty());
        let name = named.and_then(|named| named.rsplit_once(quote)).map(|(_, name)| name);
        name.is_some_and(is_secret_name).then(|| after.len() - value.len())
    })
}

/// Characters of a URL in which credentials are looked for behind a quote.
const LONGEST_URL: usize = 4_096;

/// Returns the length of the URL at the start of `after`; `before` ends with its `://`. It goes on behind a quote and the like if
/// these are in its password: up to the quote that closes it, or else to a space or a double quote.
fn url_length(before: &str, after: &str) -> usize {
    let plain = after.find(END).unwrap_or(after.len());
    let end = after[..plain].find(['/', '?', '#']).unwrap_or(plain);
    let port = after[..end].rsplit_once(':').map(|(_, port)| port);
    let is_open = !after[..plain].contains('@') && port.is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit()));
    if end < plain && !is_open {
        return plain;
    }
    let scheme = before
        .trim_end_matches("://")
        .trim_end_matches(|character: char| character.is_ascii_alphanumeric() || "+-.".contains(character));
    let opening = scheme.trim_end_matches(['"', '\'', '`']);
    let opening = opening.trim_end_matches('\\').len();
    let quote = &scheme[opening..];
    let reach = after.char_indices().nth(LONGEST_URL).map_or(after.len(), |(at, _)| at);
    let line = after[..reach].split('\n').next().unwrap_or_default();
    // One behind a backslash is within the text.
    let is_closing = |at: &usize| !line[..*at].ends_with('\\');
    let closing = if quote.is_empty() { None } else { line.match_indices(quote).map(|(at, _)| at).find(is_closing) };
    let limit = closing.or_else(|| line.find([' ', '\t', '"'])).unwrap_or(line.len());
    if limit <= plain || !is_open && after[plain..].starts_with([' ', '\t']) {
        return plain;
    }
    match after[plain..limit].rfind('@') {
        Some(at) => after[plain + at..limit].find(END).map_or(limit, |length| plain + at + length),
        None => plain,
    }
}

/// Returns where the authority of a URL ends, `://` left out. A password with a `/` in it, as keys of object stores have, is
/// part of it: what follows a colon there is no port. If there is an `@` before the `/`, a host without a port is behind it, or
/// more of the password: up to the last `@`, then.
fn authority_end(url: &str) -> usize {
    let end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let authority = &url[..end];
    let has_password = match authority.rsplit_once('@') {
        Some((user, host)) => user.contains(':') && !host.contains(':'),
        None => authority.rsplit_once(':').is_some_and(|(_, port)| !is_port(port)) && !authority.contains('['),
    };
    match url.rfind('@').filter(|at| has_password && *at > end) {
        Some(at) => url[at..].find(['/', '?', '#']).map_or(url.len(), |length| at + length),
        None => end,
    }
}

/// Replaces user and password of every URL in a text, and the values of its secret parameters.
fn hide_url_secrets(text: &str) -> Option<String> {
    if !text.contains("://") {
        return None;
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let (url, next) = after.split_at(url_length(before, after));
        let (authority, path) = url.split_at(authority_end(url));
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let has_user = authority.contains('@');
        // Each of several URLs in a list has its own credentials. A part that has neither host nor user belongs to a password.
        for (number, part) in authority.split(',').enumerate() {
            if number > 0 {
                shown.push(',');
            }
            match part.rsplit_once('@') {
                Some((_, host)) => {
                    shown.push_str(HIDDEN);
                    shown.push('@');
                    shown.push_str(host);
                }
                None if has_user && part.rsplit_once(':').is_some_and(|(_, port)| !is_port(port)) => shown.push_str(HIDDEN),
                None => shown.push_str(part),
            }
        }
        match path.split_once('?') {
            Some((path, query)) => {
                shown.push_str(path);
                let (query, fragment) = query.split_at(query.find('#').unwrap_or(query.len()));
                for (number, pair) in query.split('&').enumerate() {
                    shown.push(if number == 0 { '?' } else { '&' });
                    match pair.split_once('=') {
                        Some((name, _)) if is_secret_parameter(name) => {
                            shown.push_str(name);
                            shown.push('=');
                            shown.push_str(HIDDEN);
                        }
                        _ => shown.push_str(pair),
                    }
                }
                shown.push_str(fragment);
            }
            None => shown.push_str(path),
        }
        rest = next;
    }
    shown.push_str(rest);
    Some(shown)
}

/// Writes log lines as they may be shown. Each call holds whole lines.
#[derive(Debug)]
pub(crate) struct RedactingWriter<W> {
    pub inner: W,
    pub secrets: SecretRedactor,
    /// The lines are coloured by escape sequences of their own; `tracing` has escaped those of their texts.
    pub coloured: bool,
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let hidden = self.secrets.redact(&text);
        let shown = escape(&hidden, |character| matches!(character, '\n' | '\t') || self.coloured && character == '\u{1b}');
        self.inner.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::visible_text::steers;
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped_and_everything_else_stays() {
        for (text, shown) in [
            ("team/llm-7b", "team/llm-7b"),
            ("Größe 東京 🚀 µs — “x”", "Größe 東京 🚀 µs — “x”"),
            ("\u{1b}[31mred\u{1b}[0m", "\\u001b[31mred\\u001b[0m"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007"),
            ("\u{9b}31m", "\\u009b31m"),
            ("a\rb\u{8}c\u{7f}", "a\\u000db\\u0008c\\u007f"),
            ("user\u{202e}gpj.exe\u{2066}x\u{2069}", "user\\u202egpj.exe\\u2066x\\u2069"),
            ("a\u{200b}b\u{200d}c\u{feff}d\u{2060}e\u{ad}f", "a\\u200bb\\u200dc\\ufeffd\\u2060e\\u00adf"),
            ("tag\u{e0041}", "tag\\udb40\\udc41"),
            ("n/a\u{fe0f} n/a\u{1bca0}", "n/a\\ufe0f n/a\\ud82f\\udca0"),
            ("a\u{2028}b\u{85}c", "a\\u2028b\\u0085c"),
        ] {
            assert_eq!(escape_line(text), shown);
            assert_eq!(escape_lines(text), shown);
        }
        assert_eq!(escape_lines("a\tb\nc"), "a\tb\nc");
        assert_eq!(escape_line("a\tb\nc"), "a\\u0009b\\u000ac");
    }

    proptest! {
        #![proptest_config(cases(4_000))]
        /// All but one block of tags, variation selectors and unassigned ones are about three hundred characters.
        #[test]
        fn no_format_character_and_no_ignorable_one_is_shown(
            character in r"[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\p{Bidi_Control}\p{Zl}\p{Zp}&&[^\u{E0000}-\u{E0FFF}]]",
            far in "[\u{E0000}-\u{E0FFF}]",
        ) {
            for text in [character, far] {
                prop_assert!(escape_line(&text).is_ascii(), "{:?}", text);
            }
        }
    }

    #[test]
    fn an_escaped_json_document_means_the_same() {
        let document = serde_json::json!({"name": "a\u{202e}\u{1b}[0m\u{e0041}\u{200b}\n"});
        let text = document.to_string();
        assert!(text.contains('\u{202e}'));
        let shown = escape_lines(&text);
        assert!(!shown.chars().any(steers), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), document);
    }

    #[test]
    fn credentials_of_urls_are_hidden_wherever_they_are() {
        for (text, shown) in [
            ("no URL here, a@b.c", "no URL here, a@b.c"),
            ("http://host:9400/metrics", "http://host:9400/metrics"),
            ("GET https://user:hunter2@host/x?y=1: refused", "GET https://…@host/x?y=1: refused"),
            ("https://user@host and http://u:p@ss@h:80/@x", "https://…@host and http://…@h:80/@x"),
            ("\"s3://key:secret@bucket/p\"", "\"s3://…@bucket/p\""),
            ("az://c/p?sv=1&sig=hunter2&x=3#t", "az://c/p?sv=1&sig=…&x=3#t"),
            ("https://h/?access_token=hunter2", "https://h/?access_token=…"),
            ("kafka://u:p@a:1,u:q@b:2", "kafka://…@a:1,…@b:2"),
            ("s3://key:hunt/er2@bucket/p?x=1", "s3://…@bucket/p?x=1"),
            ("http://h:80/a@b", "http://h:80/a@b"),
            ("http://user:p@ss/w@h:1 a@b", "http://…@h:1 a@b"),
            ("'http://user:p@ss?w@[::1]:1/x'", "'http://…@[::1]:1/x'"),
            ("user:p@ss/w@h:1, user:p@ss@h, a@b", "…@h:1, …@h, a@b"),
            ("SASL://u:hunter2@h:9092", "SASL://…@h:9092"),
            ("s3://bucket/p;password=hunter2", "s3://bucket/p;password=…"),
            ("brokers=\"h:9092?password=hunter2,i:1\"", "brokers=\"h:9092?password=…\""),
            ("h?sig=hunter2&x=1", "h?sig=…&x=1"),
            ("a password=hunter2 b", "a password=… b"),
            ("https://us%40er:p%40ss%2F@host/x", "https://…@host/x"),
            ("https://h/?X-Amz-Signature=hunter2&X-Amz-Date=1", "https://h/?X-Amz-Signature=…&X-Amz-Date=1"),
            ("AccountName=a;AccountKey=hunter2==;EndpointSuffix=x", "AccountName=a;AccountKey=…"),
            ("Endpoint=sb://h/;SharedAccessKey=hunter2=", "Endpoint=sb://h/;SharedAccessKey=…"),
            ("az://c/p#access_token=hunter3", "az://c/p#access_token=…"),
            ("https://user:hun,ter2@host/x", "https://…,…@host/x"),
            // URLs without a scheme, and texts that are no URLs.
            ("user:hunter2@host:9092,user:hunt/er2@[::1]:9092", "…@host:9092,…@[::1]:9092"),
            ("location = \"key:hunter2@bucket/p\"", "location = \"…@bucket/p\""),
            (
                "registry:5000/eadt@sha256:ab, nginx:latest@sha256:ab, rank:0@node, lab/a:b@2026",
                "registry:5000/eadt@sha256:ab, nginx:latest@sha256:ab, rank:0@node, lab/a:b@2026",
            ),
            // Characters in a password that end other texts.
            ("https://user:hun'ter|2@host/x y", "https://…@host/x y"),
            ("'https://user:hun\"ter<2@host/x'", "'https://…@host/x'"),
            (r#"{"url":"https://user:hun\"ter2@host/x","a":"b@c"}"#, r#"{"url":"https://…@host/x","a":"b@c"}"#),
            (r#"\"s3://key:a/b|c@bucket/p\" and 'x@y'"#, r#"\"s3://…@bucket/p\" and 'x@y'"#),
            ("\"https://user:hunter 2@host\"", "\"https://…@host\""),
            ("'http://h:80','u@x'", "'http://h:80','u@x'"),
            ("<https://host> and <a@b>, http://h:80 is away, ask a@b", "<https://host> and <a@b>, http://h:80 is away, ask a@b"),
            ("setting x.password=\"hunter 2\" from y", "setting x.password=\"…\" from y"),
            ("sasl.password=hunter2", "sasl.password=…"),
            ("the property sasl.pasword=hunter2 is not possible", "the property sasl.pasword=… is not possible"),
            (
                "EADT_BUS__PROPERTIES__ASSERTION__PRIVATE__KEY__PASSPHRASE=hunter2",
                "EADT_BUS__PROPERTIES__ASSERTION__PRIVATE__KEY__PASSPHRASE=…",
            ),
            ("key=ns/job tokens=3 password_file=/run/x password=", "key=ns/job tokens=3 password_file=/run/x password="),
        ] {
            assert_eq!(hide_credentials(text), shown);
        }
    }

    #[test]
    fn values_behind_quoted_names_of_secrets_are_hidden() {
        for (text, shown) in [
            (r#"{"token":"hunter2","a":"b"}"#, r#"{"token":"…","a":"b"}"#),
            (r#"{"password" : 1, "password": "hunter 2"}"#, r#"{"password" : 1, "password": "…"}"#),
            (r#"{"message":"{\"client_secret\": \"hunter2\"}"}"#, r#"{"message":"{\"client_secret\": \"…\"}"}"#),
            (r#"{"tokens":"3","token_file":"/run/x","level":"INFO"}"#, r#"{"tokens":"3","token_file":"/run/x","level":"INFO"}"#),
            ("no token: run eadt token create", "no token: run eadt token create"),
            ("token: \"x\" of 10:30", "token: \"x\" of 10:30"),
        ] {
            assert_eq!(hide_credentials(text), shown);
        }
    }

    #[test]
    fn quoted_values_are_hidden_up_to_the_quote_that_closes_them() {
        for (text, shown) in [
            (r#"x.password='hunter "2' y"#, "x.password='…' y"),
            (r#"{"message":"password=\"hunter 2\" refused"}"#, r#"{"message":"password=\"…\" refused"}"#),
            (r#"{"message":"secret=\'hunter 2\' refused"}"#, r#"{"message":"secret=\'…\' refused"}"#),
            (r#"{"text":"token=\\\"hunter 2\\\" x"}"#, r#"{"text":"token=\\\"…\\\" x"}"#),
            // Quotes that nothing closes.
            (r#"{"message":"password='hunter2","level":"INFO"}"#, r#"{"message":"password='…","level":"INFO"}"#),
            (r#"{"message":"password=\"hunter2","level":"INFO"}"#, r#"{"message":"password=\"…","level":"INFO"}"#),
            ("password=\"hunter2 is\nanother \"line\"", "password=\"… is\nanother \"line\""),
            ("password=\"", "password=\""),
        ] {
            assert_eq!(hide_credentials(text), shown);
        }
    }

    #[test]
    fn known_secrets_are_hidden_also_where_an_error_quotes_them() {
        let secrets =
            SecretRedactor::new(["hunter2".to_owned(), "hunter2-long".to_owned(), "a\"b\\c".to_owned(), "abc".to_owned()]);
        assert_eq!(secrets.redact("value hunter2-long and hunter2"), "value … and …");
        assert_eq!(secrets.redact(&format!("string {:?}", "a\"b\\c")), "string \"…\"");
        let quoted = SecretRedactor::new(secrets_within("az://c/p?sig=hun'ter2%3D"));
        assert_eq!(quoted.redact("\"az://c/p?sig=hun'ter2%3D\" and hun'ter2="), "\"az://c/p?sig=…\" and …");
        assert_eq!(secrets.redact("abc is too short to hide"), "abc is too short to hide");
        assert!(!format!("{secrets:?}").contains("hunter2"));
    }

    #[test]
    fn the_secrets_within_a_value_are_found_as_written_and_decoded() {
        for (value, secrets) in [
            ("host:9092", &[][..]),
            ("https://host/x?y=1&password_file=/run/x", &[]),
            ("https://user:p%40ss%2fw@host/x", &["p%40ss%2fw", "p@ss/w"]),
            ("user:hun\"ter2@host:9092", &["hun\"ter2"]),
            ("kafka://u:hunter2@a:1,u:hunter3@b:2", &["hunter2@a:1,u:hunter3", "hunter2", "hunter3"]),
            ("az://c/p?sv=1&sig=a%2Bb'c", &["a%2Bb'c", "a+b'c"]),
            ("h:1;sasl.password=\"hunter 2\"", &["hunter 2"]),
            ("AccountKey=abcd==;x=1", &["abcd=="]),
        ] {
            let mut found = secrets_within(value);
            found.dedup();
            let missing: Vec<_> = secrets.iter().filter(|secret| !found.iter().any(|found| found == *secret)).collect();
            assert!(missing.is_empty() && (secrets.is_empty() == found.is_empty()), "{value}: {found:?}");
        }
    }

    #[test]
    fn log_lines_are_written_as_they_may_be_shown() {
        let written = |coloured| {
            let secrets = SecretRedactor::new(["hunter2".to_owned()]);
            let mut log = RedactingWriter { inner: Vec::new(), secrets, coloured };
            log.write_all("\u{1b}[32mINFO\u{1b}[0m password hunter2 at http://u:p@h \u{202e}x\n".as_bytes()).unwrap();
            String::from_utf8(log.inner).unwrap()
        };
        assert_eq!(written(true), "\u{1b}[32mINFO\u{1b}[0m password … at http://…@h \\u202ex\n");
        assert_eq!(written(false), "\\u001b[32mINFO\\u001b[0m password … at http://…@h \\u202ex\n");
    }
}
