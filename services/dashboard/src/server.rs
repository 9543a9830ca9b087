//! The listener of the page, and the model that it shares with whoever feeds it.

use std::future::ready;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::middleware;
use axum::routing::get;
use eadt_service::Shutdown;
use eadt_service::connections::{self, Limits, WhenFull};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::access::{self, Access, Tokens};
use crate::api;
use crate::assets;
use crate::model::Model;
use crate::settings::Settings;

/// Viewers hold a stream of events each. It ends after an hour: the browser asks again, and its token is checked again.
const LIMITS: Limits = Limits {
    connections: 512,
    when_full: WhenFull::EndOldest,
    request: Duration::from_secs(10),
    lifetime: Duration::from_hours(1),
};

/// A model with a bell for those who wait for its changes. Clones are the same.
#[derive(Debug, Clone)]
pub struct SharedModel {
    model: Arc<RwLock<Model>>,
    bell: Arc<watch::Sender<u64>>,
    /// Tells this process from another that served under the same address.
    pub(crate) boot: u64,
}

impl SharedModel {
    pub fn new(model: Model) -> Self {
        let bell = watch::Sender::new(model.version());
        // Without chance two processes would differ by chance of their versions only.
        let boot = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        Self { model: Arc::new(RwLock::new(model)), bell: Arc::new(bell), boot }
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
    router: Router,
    address: SocketAddr,
    needs_token: bool,
    shutdown: Shutdown,
}

impl Server {
    /// Binds now, so that a busy port is an error at start; of at most `further` ports that follow the first free one is taken.
    pub async fn bind(settings: &Settings, further: u16, model: SharedModel, shutdown: Shutdown) -> Result<Self, ListenError> {
        settings.check().map_err(ListenError::Settings)?;
        let wanted = settings.socket().map_err(ListenError::Settings)?;
        let tokens = settings.token_file.as_deref().map(Tokens::read).transpose().map_err(ListenError::Settings)?;
        let last = if wanted.port() == 0 { 0 } else { wanted.port().saturating_add(further) };
        let mut tried = wanted;
        let listener = loop {
            match TcpListener::bind(tried).await {
                Ok(listener) => break listener,
                Err(error) if error.kind() == ErrorKind::AddrInUse && tried.port() < last => tried.set_port(tried.port() + 1),
                Err(source) => return Err(ListenError::Listen { address: tried, source }),
            }
        };
        let address = listener.local_addr().map_err(|source| ListenError::Listen { address: tried, source })?;
        let needs_token = tokens.is_some();
        let access = Arc::new(Access { bound: address, hosts: settings.hosts.clone(), tokens });
        let router = api::routes(model, access.clone(), shutdown.clone())
            .fallback(get(assets::serve))
            .layer(middleware::from_fn_with_state(access, access::guard));
        Ok(Self { listener, router, address, needs_token, shutdown })
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
        self.needs_token
    }

    /// Serves until the shutdown.
    pub async fn run(self) -> Result<(), std::io::Error> {
        connections::serve(self.listener, |stream| ready(Ok(stream)), self.router, LIMITS, |_| (), self.shutdown).await;
        Ok(())
    }
}
