//! SASL of a connection: PLAIN, and SCRAM (RFC 5802) by SHA-256 and SHA-512.

use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rdkafka::config::ClientConfig;
use ring::rand::SecureRandom;
use ring::{digest, hmac, pbkdf2};

use super::connection::{BrokerConnection, ConnectionError, Result};
use super::messages::ApiKey;
use super::wire::{WireReader, WireWriter};
use crate::kafka::{SaslMechanism, Secret};

/// The broker names its rounds of hashing; more would only cost time.
const MOST_ROUNDS: u32 = 1_000_000;

/// User of a connection, and the credentials.
#[derive(Debug, Clone)]
pub struct SaslUser {
    mechanism: SaslMechanism,
    username: String,
    password: Secret,
}

fn refused(detail: impl Into<String>) -> ConnectionError {
    ConnectionError::Refused(detail.into())
}

impl SaslUser {
    pub fn read(properties: &ClientConfig) -> std::result::Result<Self, String> {
        let text = |name: &str| properties.get(name).unwrap_or_default();
        let mechanism = properties.get("sasl.mechanism").or_else(|| properties.get("sasl.mechanisms")).unwrap_or_default();
        let mechanism = match mechanism {
            "PLAIN" => SaslMechanism::Plain,
            "SCRAM-SHA-256" => SaslMechanism::ScramSha256,
            "SCRAM-SHA-512" => SaslMechanism::ScramSha512,
            other => return Err(format!("sasl.mechanism={other} is the client library's alone: set bus.fetch=librdkafka")),
        };
        Ok(Self { mechanism, username: text("sasl.username").to_owned(), password: Secret::new(text("sasl.password")) })
    }

    /// Authenticates; returns the time for which the broker accepts it, if it is limited.
    pub fn authenticate(&self, connection: &mut BrokerConnection) -> Result<Option<Duration>> {
        let name = self.mechanism.name();
        let answer = connection.exchange(ApiKey::SaslHandshake, 1, |body| body.put_short_text(name))?;
        if WireReader::new(answer).i16()? != 0 {
            return Err(refused(format!("the broker does not know the SASL mechanism {name}")));
        }
        if self.mechanism == SaslMechanism::Plain {
            let message = format!("\0{}\0{}", self.username, self.password.expose());
            return Ok(self.send(connection, message.as_bytes())?.1);
        }
        let nonce = random_nonce().ok_or_else(|| refused("the system gives no random bytes"))?;
        let scram = ScramClient::new(self.mechanism, &self.username, nonce);
        let (first, _) = self.send(connection, scram.first_message().as_bytes())?;
        let (proof, expected) = scram.final_message(self.password.expose(), &first).map_err(refused)?;
        let (last, lifetime) = self.send(connection, proof.as_bytes())?;
        if !is_signed(&last, &expected) {
            return Err(refused("the broker does not know the password either: it is not the one that it claims to be"));
        }
        Ok(lifetime)
    }

    fn send(&self, connection: &mut BrokerConnection, message: &[u8]) -> Result<(Vec<u8>, Option<Duration>)> {
        let answer = connection.exchange(ApiKey::SaslAuthenticate, 1, |body| {
            body.put_i32(message.len() as i32);
            body.extend_from_slice(message);
        })?;
        let mut reader = WireReader::new(answer);
        let error = reader.i16()?;
        let detail = String::from_utf8_lossy(reader.short_bytes()?.unwrap_or_default()).into_owned();
        if error != 0 {
            return Err(refused(format!("the broker refused User:{}: check user and password ({detail})", self.username)));
        }
        let answer = reader.long_bytes()?.to_vec();
        let lifetime = u64::try_from(reader.i64()?).ok().filter(|millis| *millis > 0);
        Ok((answer, lifetime.map(Duration::from_millis)))
    }
}

fn random_nonce() -> Option<String> {
    let mut bytes = [0; 24];
    ring::rand::SystemRandom::new().fill(&mut bytes).ok()?;
    Some(BASE64.encode(bytes))
}

fn is_signed(last: &[u8], expected: &[u8]) -> bool {
    let signature = last.strip_prefix(b"v=").and_then(|text| BASE64.decode(text.split(|byte| *byte == b',').next()?).ok());
    signature.as_deref() == Some(expected)
}

/// The client's side of one SCRAM exchange.
struct ScramClient {
    hash: &'static digest::Algorithm,
    hmac: hmac::Algorithm,
    pbkdf2: pbkdf2::Algorithm,
    nonce: String,
    /// The client's first message without the GS2 header, which states that no channel is bound.
    bare: String,
}

impl ScramClient {
    fn new(mechanism: SaslMechanism, user: &str, nonce: String) -> Self {
        let (hash, hmac, pbkdf2) = match mechanism {
            SaslMechanism::ScramSha256 => (&digest::SHA256, hmac::HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256),
            SaslMechanism::ScramSha512 | SaslMechanism::Plain => (&digest::SHA512, hmac::HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512),
        };
        let bare = format!("n={},r={nonce}", user.replace('=', "=3D").replace(',', "=2C"));
        Self { hash, hmac, pbkdf2, nonce, bare }
    }

    fn first_message(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// Returns the proof, and the signature that shows that the broker knows the password, too.
    fn final_message(&self, password: &str, first: &[u8]) -> std::result::Result<(String, Vec<u8>), &'static str> {
        const ODD: &str = "the broker does not follow SCRAM";
        let first = std::str::from_utf8(first).map_err(|_| ODD)?;
        let field = |name: &str| first.split(',').find_map(|field| field.strip_prefix(name));
        let nonce = field("r=").filter(|nonce| nonce.starts_with(&self.nonce)).ok_or(ODD)?;
        let salt = field("s=").and_then(|salt| BASE64.decode(salt).ok()).ok_or(ODD)?;
        let rounds: NonZeroU32 = field("i=").and_then(|rounds| rounds.parse().ok()).ok_or(ODD)?;
        if rounds.get() > MOST_ROUNDS {
            return Err("the broker asks for more rounds of hashing than any password needs");
        }
        let mut salted = vec![0; self.hash.output_len()];
        pbkdf2::derive(self.pbkdf2, rounds, &salt, password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(self.hmac, key), text);
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest::digest(self.hash, client_key.as_ref());
        let without_proof = format!("c=biws,r={nonce}");
        let all = format!("{},{first},{without_proof}", self.bare);
        let signature = sign(stored_key.as_ref(), all.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let server_key = sign(&salted, b"Server Key");
        let expected = sign(server_key.as_ref(), all.as_bytes()).as_ref().to_vec();
        Ok((format!("{without_proof},p={}", BASE64.encode(proof)), expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange in RFC 7677.
    #[test]
    fn the_example_of_the_standard_is_followed() {
        let scram = ScramClient::new(SaslMechanism::ScramSha256, "user", "rOprNGfwEbeRWgbNEkqO".to_owned());
        assert_eq!(scram.first_message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (last, expected) = scram.final_message("pencil", first.as_bytes()).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert!(is_signed(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", &expected));
        assert!(!is_signed(b"v=AAAA", &expected));
    }

    #[test]
    fn what_does_not_follow_it_is_refused() {
        let scram = ScramClient::new(SaslMechanism::ScramSha512, "a,b=c", "mine".to_owned());
        assert_eq!(scram.first_message(), "n,,n=a=2Cb=3Dc,r=mine");
        for first in ["", "r=others,s=AAAA,i=4096", "r=mine1,s=?,i=4096", "r=mine1,s=AAAA,i=0", "r=mine1,s=AAAA,i=2000000"] {
            assert!(scram.final_message("secret", first.as_bytes()).is_err(), "{first}");
        }
    }
}
