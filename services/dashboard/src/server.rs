//! The listener of the page, and the model that it shares with whoever feeds it.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::middleware;
use axum::routing::get;
use eadt_cluster::ChangeTerms;
use eadt_service::Shutdown;
use eadt_service::connections::{self, Limits, WhenFull};
use eadt_service::http::bind_near;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::access::{self, Access, Tokens};
use crate::api::{self, Context};
use crate::assets;
use crate::log::LogSource;
use crate::model::Model;
use crate::model::overview::Overview;
use crate::past::Past;
use crate::settings::Settings;
use crate::whatif::WhatIf;

/// Viewers hold a stream of events each. It ends after an hour: the browser asks again, and its token is checked again.
const LIMITS: Limits = Limits {
    connections: 512,
    when_full: WhenFull::EndOldest,
    request: Duration::from_secs(10),
    lifetime: Duration::from_hours(1),
};

/// Shortest time between two overviews.
pub(crate) const UPDATE_PAUSE: Duration = Duration::from_millis(500);

/// Something new, as JSON.
#[derive(Debug, Serialize)]
struct Update<'a> {
    overview: &'a Overview,
}

/// The overview of one version, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub version: u64,
    pub update: Arc<str>,
    made: Instant,
}

/// A model with a bell for those who wait for its changes. Clones are the same.
#[derive(Debug, Clone)]
pub struct SharedModel {
    model: Arc<RwLock<Model>>,
    bell: Arc<watch::Sender<u64>>,
    snapshot: Arc<Mutex<Option<Snapshot>>>,
    /// Tells this process from another that served under the same address.
    pub(crate) boot: u64,
}

impl SharedModel {
    pub fn new(model: Model) -> Self {
        let bell = watch::Sender::new(model.version());
        // Without chance two processes would differ by chance of their versions only.
        let boot = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        Self { model: Arc::new(RwLock::new(model)), bell: Arc::new(bell), snapshot: Arc::default(), boot }
    }

    /// Reads the model.
    pub fn read<T>(&self, read: impl FnOnce(&Model) -> T) -> T {
        read(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the model, and rings the bell if there is something new.
    pub fn change<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut model);
        let version = model.version();
        drop(model);
        self.bell.send_if_modified(|known| std::mem::replace(known, version) != version);
        changed
    }

    /// The overview for all who follow: it is made at most once in [`UPDATE_PAUSE`], however many they are.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut kept = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.as_ref().filter(|kept| kept.made.elapsed() < UPDATE_PAUSE || kept.version == self.read(Model::version));
        if let Some(known) = known {
            return known.clone();
        }
        let overview = self.read(Model::overview);
        let update = serde_json::to_string(&Update { overview: &overview }).expect("every key is a string");
        let snapshot = Snapshot { version: overview.version, update: update.into(), made: Instant::now() };
        *kept = Some(snapshot.clone());
        snapshot
    }

    /// Waits for versions.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }
}

/// The page could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("setting {0}")]
    Settings(String),
    #[error("cannot listen on {address}; set dashboard.address (EADT_DASHBOARD__ADDRESS) to a free port, or stop what holds it")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// A bound listener.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    context: Context,
    address: SocketAddr,
}

impl Server {
    /// Binds now, so that a busy port is an error at start; of at most `further` ports that follow the first free one is taken. Without
    /// `what_if` nothing is said of other controllers.
    pub async fn bind(
        settings: &Settings,
        further: u16,
        model: SharedModel,
        what_if: Option<WhatIf>,
        shutdown: Shutdown,
    ) -> Result<Self, ListenError> {
        settings.check().map_err(ListenError::Settings)?;
        let wanted = settings.socket().map_err(ListenError::Settings)?;
        let tokens = settings.token_file.as_deref().map(Tokens::read).transpose().map_err(ListenError::Settings)?;
        let failed = |source| ListenError::Listen { address: wanted, source };
        let listener = bind_near(wanted, further).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let access = Arc::new(Access { bound: address, hosts: settings.hosts.clone(), tokens });
        Ok(Self { listener, context: Context::new(model, access, what_if, shutdown), address })
    }

    /// Lets people pause, approve and set modes through the page: whoever reaches a loopback address without tokens, and those whose
    /// token has a name.
    #[must_use]
    pub fn with_editor(mut self, editor: Arc<dyn ChangeTerms>) -> Self {
        self.context.editor = Some(editor);
        self
    }

    /// Lets people look at earlier moments of the record.
    #[must_use]
    pub fn with_past(mut self, past: Past) -> Self {
        self.context.past = Some(past);
        self
    }

    /// Lets terminals follow the log over HTTP.
    #[must_use]
    pub fn with_log(mut self, log: LogSource) -> Self {
        self.context.log = Some(log);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to open in a browser.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Whether data are shown only to those who have a token.
    pub fn needs_token(&self) -> bool {
        self.context.access.tokens.is_some()
    }

    /// Serves until the shutdown.
    pub async fn run(self) -> Result<(), std::io::Error> {
        let (access, shutdown) = (self.context.access.clone(), self.context.shutdown.clone());
        let router =
            api::routes(self.context).fallback(get(assets::serve)).layer(middleware::from_fn_with_state(access, access::guard));
        connections::serve(self.listener, |stream| ready(Ok(stream)), router, LIMITS, |_| (), shutdown).await;
        Ok(())
    }
}
