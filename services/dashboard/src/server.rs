//! The listener of the page.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware;
use axum::routing::get;
use eadt_cluster::PolicyWriter;
use eadt_service::Shutdown;
use eadt_service::connections::{self, ConnectionLimits, OverflowPolicy};
use eadt_service::http::bind_near;
use tokio::net::TcpListener;

use crate::access::{self, AccessRules, AccessTokens};
use crate::api::{self, ApiContext};
use crate::as_of::AsOfReader;
use crate::assets;
use crate::log::LogSource;
use crate::model::runs::OtherRun;
use crate::reading::{self, ReadingProgress};
use crate::settings::DashboardSettings;
use crate::shared_model::SharedModel;
use crate::whatif::WhatIf;

/// Viewers hold a stream of events each. It ends after an hour: the browser asks again, and its token is checked again.
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 512,
    when_full: OverflowPolicy::EndOldest,
    request: Duration::from_secs(10),
    lifetime: Duration::from_hours(1),
};

/// The page could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("setting {0}")]
    Settings(String),
    #[error(
        "cannot listen on {address}; give it a free port by --address or dashboard.address (EADT_DASHBOARD__ADDRESS), or stop the process that uses it"
    )]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// A bound listener.
#[derive(Debug)]
pub struct DashboardServer {
    listener: TcpListener,
    context: ApiContext,
    address: SocketAddr,
    /// `None` if it shows a record that grows.
    reading: Option<ReadingProgress>,
}

impl DashboardServer {
    /// Binds now, so that a busy port is an error at start; of at most `further` ports that follow the first free one is taken.
    /// Without
    /// `what_if` nothing is shown about other controllers.
    pub async fn bind(
        settings: &DashboardSettings,
        further: u16,
        model: SharedModel,
        what_if: Option<WhatIf>,
        shutdown: Shutdown,
    ) -> Result<Self, ListenError> {
        settings.check().map_err(ListenError::Settings)?;
        let wanted = settings.socket().map_err(ListenError::Settings)?;
        let tokens = settings.token_file.as_deref().map(AccessTokens::read).transpose().map_err(ListenError::Settings)?;
        let failed = |source| ListenError::Listen { address: wanted, source };
        let listener = bind_near(wanted, further).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let access = Arc::new(AccessRules { bound: address, hosts: settings.hosts.clone(), tokens });
        Ok(Self { listener, context: ApiContext::new(model, access, what_if, shutdown), address, reading: None })
    }

    /// Enables pausing, approving and setting modes through the page: for all clients of a loopback address without tokens, and
    /// for clients whose token has a name.
    #[must_use]
    pub fn with_editor(mut self, editor: Arc<dyn PolicyWriter>) -> Self {
        self.context.editor = Some(editor);
        self
    }

    /// Lets people look at earlier moments of the record.
    #[must_use]
    pub fn with_past(mut self, past: AsOfReader) -> Self {
        self.context.as_of_reader = Some(past);
        self
    }

    /// Lets people compare the record with these runs.
    #[must_use]
    pub fn with_runs(mut self, runs: Vec<OtherRun>) -> Self {
        self.context.runs = runs.into();
        self
    }

    /// Shows how far the record is read, and nothing else before its end.
    #[must_use]
    pub fn with_reading(mut self, reading: ReadingProgress) -> Self {
        self.reading = Some(reading);
        self
    }

    /// Lets terminals follow the log over HTTP.
    #[must_use]
    pub fn with_log(mut self, log: LogSource) -> Self {
        self.context.log = Some(log);
        self
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address to open in a browser.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Serves until the shutdown.
    pub async fn run(self) -> Result<(), std::io::Error> {
        let (access, shutdown) = (self.context.access.clone(), self.context.shutdown.clone());
        let mut router = api::routes(self.context).fallback(get(assets::serve));
        if let Some(reading) = self.reading {
            router = router.layer(middleware::from_fn_with_state(reading, reading::hold_back));
        }
        let router = router.layer(middleware::from_fn_with_state(access, access::guard));
        connections::serve(self.listener, |stream| ready(Ok(stream)), router, LIMITS, |_| (), shutdown).await;
        Ok(())
    }
}
