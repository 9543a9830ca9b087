//! The tokens and the certificate in force, followed as their files change.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use eadt_schemas::EventTime;
use eadt_service::Shutdown;

use super::serve::ServerCertificate;
use super::tokens::{self, TokenGrant, TokenStore};
use crate::files::WatchedFiles;
use crate::metrics::CollectorMetrics;
use crate::settings::ProgressSettings;

/// Interval between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Tokens and certificate of the endpoint.
#[derive(Debug)]
pub struct EndpointSecrets {
    tokens: Option<Arc<RwLock<TokenStore>>>,
    certificate: Option<ServerCertificate>,
}

impl EndpointSecrets {
    /// Reads everything that the settings name; the error names the file that cannot be used.
    pub fn load(settings: &ProgressSettings) -> Result<(Self, SecretsReloader), String> {
        let tokens = settings.tokens_file.clone().map(|path| {
            let mut files = WatchedFiles::new([path]);
            let read = files.read(|[path]| tokens::read(path));
            let read = read.map_err(|error| format!("{error}; make it with eadt token create"))?;
            Ok::<_, String>((files, Arc::new(RwLock::new(read))))
        });
        let certificate = settings.certificate.clone().map(|(certificate, key)| {
            let mut files = WatchedFiles::new([certificate, key]);
            let tls = files.read(|[certificate, key]| ServerCertificate::load(certificate, key))?;
            Ok::<_, String>((files, tls))
        });
        let follower = SecretsReloader { tokens: tokens.transpose()?, certificate: certificate.transpose()? };
        let tokens = follower.tokens.as_ref().map(|(_, tokens)| tokens.clone());
        let certificate = follower.certificate.as_ref().map(|(_, tls)| tls.clone());
        Ok((Self { tokens, certificate }, follower))
    }

    pub fn tls(&self) -> Option<ServerCertificate> {
        self.certificate.clone()
    }

    /// Returns whether senders need a token.
    pub fn asks(&self) -> bool {
        self.tokens.is_some()
    }

    /// Returns the rights of the bearer of a token; `None` if the token is not valid.
    pub fn verify(&self, token: &str, now: EventTime) -> Option<TokenGrant> {
        let tokens = self.tokens.as_ref()?;
        tokens.read().unwrap_or_else(PoisonError::into_inner).verify(token, now)
    }
}

/// Keeps [`EndpointSecrets`] to what their files hold.
#[derive(Debug)]
pub struct SecretsReloader {
    tokens: Option<(WatchedFiles<1>, Arc<RwLock<TokenStore>>)>,
    certificate: Option<(WatchedFiles<2>, ServerCertificate)>,
}

impl SecretsReloader {
    /// Follows the files until `shutdown`. While one is invalid, its former content stays in force.
    pub async fn follow(mut self, metrics: CollectorMetrics, shutdown: Shutdown) {
        loop {
            metrics.secrets_failed.set(i64::from(!self.reload_changed()));
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Reloads changed files. Returns whether all files in force are those on the disk.
    fn reload_changed(&mut self) -> bool {
        let tokens = self.tokens.as_mut().is_none_or(|(files, in_force)| {
            files.reload_if_changed(|[path]| {
                let read = tokens::read(path).map_err(|error| error.to_string())?;
                let count = read.tokens.len();
                *in_force.write().unwrap_or_else(PoisonError::into_inner) = read;
                tracing::info!(path = %path.display(), count, "tokens read");
                Ok(())
            })
        });
        let certificate = self.certificate.as_mut().is_none_or(|(files, tls)| {
            files.reload_if_changed(|[certificate, key]| {
                tls.reload(certificate, key)?;
                tracing::info!(path = %certificate.display(), "certificate read");
                Ok(())
            })
        });
        tokens && certificate
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const NOW: EventTime = EventTime::from_micros(1_767_225_600_000_000);

    fn settings() -> ProgressSettings {
        crate::RawSettings::default().validate("h").unwrap().progress.unwrap()
    }

    /// Returns a token of the file, and its id.
    fn token(path: &Path) -> (String, String) {
        let made = tokens::change(path, |tokens| {
            let (token, entry) = tokens.create(&std::array::from_fn(|at| at as u8), &["n".to_owned()], NOW, None)?;
            Ok((token.reveal().to_owned(), entry.id.clone()))
        });
        made.unwrap()
    }

    #[test]
    fn a_token_that_is_revoked_before_its_file_is_followed_is_worth_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let (token, id) = token(&path);
        let (secrets, mut follower) =
            EndpointSecrets::load(&ProgressSettings { tokens_file: Some(path.clone()), ..settings() }).unwrap();
        assert!(secrets.verify(&token, NOW).is_some());
        tokens::change(&path, |tokens| tokens.revoke(&id)).unwrap();
        assert!(follower.reload_changed());
        assert_eq!(secrets.verify(&token, NOW), None);
    }

    #[test]
    fn what_cannot_be_used_changes_nothing_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let certify = |certificate: &str, key: &str| {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            std::fs::write(at(certificate), made.cert.pem()).unwrap();
            std::fs::write(at(key), made.signing_key.serialize_pem()).unwrap();
        };
        certify("tls.crt", "tls.key");
        certify("next.crt", "next.key");
        let (token, _) = token(&at("tokens.json"));
        let (certificate, tokens_file) = (Some((at("tls.crt"), at("tls.key"))), Some(at("tokens.json")));
        let (secrets, mut follower) =
            EndpointSecrets::load(&ProgressSettings { certificate, tokens_file, ..settings() }).unwrap();
        assert!(follower.reload_changed());
        std::fs::rename(at("next.crt"), at("tls.crt")).unwrap();
        assert!(!follower.reload_changed(), "the certificate of another key");
        std::fs::rename(at("next.key"), at("tls.key")).unwrap();
        assert!(follower.reload_changed());
        std::fs::write(at("tokens.json"), "nonsense").unwrap();
        assert!(!follower.reload_changed() && !follower.reload_changed(), "not used is not used, however often it is looked at");
        assert!(secrets.verify(&token, NOW).is_some(), "the former ones");
        std::fs::write(at("tokens.json"), r#"{"tokens":[]}"#).unwrap();
        assert!(follower.reload_changed());
        assert_eq!(secrets.verify(&token, NOW), None);
    }
}
