//! The tokens and the certificate in force, followed as their files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use eadt_schemas::EventTime;
use eadt_service::Shutdown;

use super::serve::Tls;
use super::tokens::{self, Grant, Tokens};
use crate::metrics::CollectorMetrics;
use crate::settings::Progress;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Clones share it.
#[derive(Debug, Clone)]
pub struct Secrets {
    tokens: Option<(PathBuf, Arc<RwLock<Tokens>>)>,
    certificate: Option<(PathBuf, PathBuf, Tls)>,
}

impl Secrets {
    /// Reads everything that the settings name; the error says which file cannot be used.
    pub fn load(settings: &Progress) -> Result<Self, String> {
        let tokens = settings.tokens_file.as_ref().map(|path| {
            let read = tokens::read(path).map_err(|error| format!("{error}; make it with eadt token create"))?;
            Ok((path.clone(), Arc::new(RwLock::new(read))))
        });
        let certificate = settings
            .certificate
            .as_ref()
            .map(|(certificate, key)| Tls::load(certificate, key).map(|tls| (certificate.clone(), key.clone(), tls)));
        Ok(Self { tokens: tokens.transpose().map_err(|error: String| error)?, certificate: certificate.transpose()? })
    }

    pub fn tls(&self) -> Option<Tls> {
        self.certificate.as_ref().map(|(_, _, tls)| tls.clone())
    }

    /// Whether senders need a token.
    pub fn asks(&self) -> bool {
        self.tokens.is_some()
    }

    /// What the bearer of a token may do; `None` where it is worth nothing.
    pub fn verify(&self, token: &str, now: EventTime) -> Option<Grant> {
        let (_, tokens) = self.tokens.as_ref()?;
        tokens.read().unwrap_or_else(PoisonError::into_inner).verify(token, now)
    }

    /// Follows the files until `shutdown`. What was in force stays so while one cannot be used.
    pub async fn follow(self, metrics: CollectorMetrics, shutdown: Shutdown) {
        let mut seen = self.state();
        let mut failed = [false; 2];
        while !shutdown.is_cancelled() {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let state = self.state();
            if let Some((path, in_force)) = self.tokens.as_ref().filter(|_| state.0 != seen.0) {
                let read = tokens::read(path).map(|read| {
                    let count = read.tokens.len();
                    *in_force.write().unwrap_or_else(PoisonError::into_inner) = read;
                    tracing::info!(path = %path.display(), count, "tokens read");
                });
                failed[0] = report(read.map_err(|error| error.to_string()));
            }
            if let Some((certificate, key, tls)) = self.certificate.as_ref().filter(|_| state.1 != seen.1) {
                let read = tls.reload(certificate, key).map(|()| {
                    tracing::info!(path = %certificate.display(), "certificate read");
                });
                failed[1] = report(read);
            }
            metrics.secrets_failed.set(i64::from(failed.contains(&true)));
            seen = state;
        }
    }

    fn state(&self) -> (Stamp, [Stamp; 2]) {
        let tokens = self.tokens.as_ref().and_then(|(path, _)| stamp(path));
        let files = self.certificate.as_ref().map(|(certificate, key, _)| [stamp(certificate), stamp(key)]);
        (tokens, files.unwrap_or_default())
    }
}

/// Time of the last change, and size.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    std::fs::metadata(path).and_then(|metadata| Ok((metadata.modified()?, metadata.len()))).ok()
}

/// True where it failed.
fn report(read: Result<(), String>) -> bool {
    match read {
        Ok(()) => false,
        Err(error) => {
            tracing::warn!(error, "the former one stays in force");
            true
        }
    }
}
