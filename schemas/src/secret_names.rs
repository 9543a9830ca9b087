//! Names whose values are secrets. One rule for whatever shows settings, variables, properties, errors or log lines.
//!
//! In: the name of a setting, a variable, a property of a client library or a parameter, in any case and with any separators.
//! Out: whether its value may be a secret. A misspelt name counts as the one that it resembles.

/// Parts that make a name secret, without separators.
const SECRET_PARTS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "credential",
    "signature",
    "accesskey",
    "accountkey",
    "apikey",
    "privatekey",
    "keypem",
    "sslkey",
    "keystorekey",
    // The whole configuration of a login, as one text.
    "jaasconfig",
];
/// Words that are misspelt and still recognised: long ones, so that no other word is close.
const MISSPELT: [&str; 5] = ["password", "passphrase", "secret", "credential", "credentials"];
/// Last words of names whose value is where a secret is, or what it is called.
const PLACES: [&str; 4] = ["file", "files", "location", "name"];

fn words(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    name.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

/// Returns whether a name is one of a place, such as `password_file` or `ssl.key.location`: its value is no secret.
pub fn is_place_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    words(&name).next_back().is_some_and(|last| PLACES.contains(&last) || last.ends_with("secretname"))
}

/// Returns whether the value beside this name is a secret, also if the name is misspelt: `sasl.pasword`, `AccountKey`,
/// `access_token`. `tokens` are counted, and `tokens=3` is no secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if is_place_name(&name) {
        return false;
    }
    let joined: String = words(&name).collect();
    let is_secret_word = |word: &str| {
        word.ends_with("token")
            || word == "pwd"
            || MISSPELT.iter().any(|right| is_one_edit_away(word.as_bytes(), right.as_bytes()))
    };
    SECRET_PARTS.iter().any(|part| joined.contains(part))
        || joined.ends_with("oauthbearerconfig")
        || words(&name).any(is_secret_word)
}

/// Returns whether a parameter of a URL or of a connection string holds a secret, such as a signature of a shared link. There, also
/// short names are secret.
pub fn is_secret_parameter(name: &str) -> bool {
    let short = ["sig", "key", "auth", "pass", "jwt", "bearer"];
    is_secret_name(name) || short.iter().any(|short| name.eq_ignore_ascii_case(short))
}

/// Returns whether one letter that is added, left out or changed, or two neighbours that are exchanged, make one word the other.
fn is_one_edit_away(word: &[u8], right: &[u8]) -> bool {
    let same = word.iter().zip(right).take_while(|(a, b)| a == b).count();
    let (word, right) = (&word[same..], &right[same..]);
    let same = word.iter().rev().zip(right.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&word[..word.len() - same], &right[..right.len() - same]) {
        ([] | [_], [] | [_]) => true,
        ([one, two], [first, second]) => one == second && two == first,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every property that librdkafka or Kafka's own clients mark as sensitive and whose value is the secret itself.
    const SECRETS: [&str; 27] = [
        "ssl.key.password",
        "ssl.key.pem",
        "ssl_key",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "ssl.keystore.key",
        "sasl.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "EADT_BUS__SECURITY__KEY_PASSWORD",
        "bus.security.password",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AccountKey",
        "SharedAccessKey",
        "X-Amz-Signature",
        "access_token",
        "access-key",
        "apiKey",
        "api-key",
        "credentials",
        "passwd",
        "pwd",
    ];

    #[test]
    fn names_of_secrets_are_known_in_every_spelling() {
        for name in SECRETS {
            for spelt in [name.to_owned(), name.to_uppercase(), name.replace(['.', '_', '-'], "__"), format!("x.{name}")] {
                assert!(is_secret_name(&spelt) && is_secret_parameter(&spelt), "{spelt}");
            }
            assert!(!is_secret_name(&format!("{name}_file")) && !is_secret_name(&format!("{name}.location")), "{name}");
        }
    }

    #[test]
    fn a_misspelt_name_is_the_one_that_it_resembles() {
        for right in ["password", "passphrase", "secret", "credential"] {
            for at in 0..right.len() {
                let (head, tail) = right.split_at(at);
                let mut swapped = right.as_bytes().to_vec();
                swapped.swap(at, (at + 1).min(right.len() - 1));
                let swapped = String::from_utf8(swapped).unwrap();
                for word in [format!("{head}{}", &tail[1..]), format!("{head}x{tail}"), format!("{head}x{}", &tail[1..]), swapped]
                {
                    assert!(is_secret_name(&format!("sasl.{word}")), "{word}");
                }
            }
        }
    }

    #[test]
    fn other_names_are_no_secrets() {
        for name in [
            "",
            "linger.ms",
            "key",
            "tokens",
            "tokens_total",
            "tokens_per_second",
            "tokens_file",
            "password_file",
            "ssl.key.location",
            "sasl.oauthbearer.assertion.private.key.file",
            "collector.progress.tls.secretName",
            "ssl.sigalgs.list",
            "sasl.username",
            "passed",
            "secured",
            "second",
            "progress",
            "monkey",
            "AWS_REGION",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
        assert!(is_secret_parameter("Key") && is_secret_parameter("sig") && !is_secret_parameter("keys"));
    }
}
