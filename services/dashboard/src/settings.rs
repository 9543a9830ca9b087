use std::net::SocketAddr;
use std::path::PathBuf;

use eadt_service::address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The web page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardSettings {
    /// Address of the page: an IP address or `localhost`, with a port; port 0 takes a free one, and `eadt up` the next that is
    /// free. On any other than a loopback address `token_file` is needed. Default: `127.0.0.1:9580`.
    pub address: String,
    /// File with the tokens of those who may read, one a line, at least 16 characters each; a name after a token (`TOKEN alice`)
    /// is of a person who may pause, approve and set modes by it, too, and namespaces after the name (`TOKEN alice
    /// namespaces=team-a,team-b`) are the only ones in which they may. Lines that begin with `#` are comments. Default: none,
    /// which only a loopback address allows.
    pub token_file: Option<PathBuf>,
    /// Names under which the page may be asked for beside its address, without port: `eadt.example.org`. Requests with another
    /// `Host` are refused, so that no foreign page reads this one by a name of its own. Default: none.
    pub hosts: Vec<String>,
    /// Windows of all workloads together of which savings are computed, 1,000 to 100,000,000; each takes about 0.2 KiB of memory,
    /// its decision included. Beyond it the longest records are shown without a saving, and `eadt report` computes it. Default:
    /// 300,000.
    pub windows: usize,
}

impl Default for DashboardSettings {
    fn default() -> Self {
        Self { address: "127.0.0.1:9580".to_owned(), token_file: None, hosts: Vec::new(), windows: 300_000 }
    }
}

impl DashboardSettings {
    /// Checks all values; the error is the first that cannot be used.
    pub fn check(&self) -> Result<(), String> {
        let address = self.socket()?;
        if !address.ip().is_loopback() && self.token_file.is_none() {
            return Err(format!(
                "dashboard.address={:?}: anyone who reaches it could read everything; name a file of tokens with dashboard.token_file, or \
                 listen on 127.0.0.1",
                self.address
            ));
        }
        if let Some(host) = self.hosts.iter().find(|host| host.is_empty() || host.contains([':', '/', ' ', '@'])) {
            return Err(format!("dashboard.hosts: {host:?} is no host name without port, such as eadt.example.org"));
        }
        if !(1_000..=100_000_000).contains(&self.windows) {
            return Err(format!("dashboard.windows={} is not between 1,000 and 100,000,000", self.windows));
        }
        Ok(())
    }

    /// Returns the address to listen on.
    pub fn socket(&self) -> Result<SocketAddr, String> {
        address::parse(&self.address).map_err(|error| format!("dashboard.address={:?}: {error}", self.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_reach_needs_tokens() {
        let on = |address: &str, tokens: bool| DashboardSettings {
            address: address.to_owned(),
            token_file: tokens.then(|| PathBuf::from("tokens")),
            ..DashboardSettings::default()
        };
        for (address, tokens, fits) in [
            ("127.0.0.1:9580", false, true),
            ("[::1]:0", false, true),
            ("localhost:9580", false, true),
            ("0.0.0.0:9580", false, false),
            ("192.0.2.1:9580", false, false),
            ("0.0.0.0:9580", true, true),
            ("eadt.example.org:80", true, false),
        ] {
            assert_eq!(on(address, tokens).check().is_ok(), fits, "{address} {tokens}");
        }
        let refused = on("0.0.0.0:9580", false).check().unwrap_err();
        assert!(refused.contains("dashboard.token_file"), "{refused}");
        let hosts = DashboardSettings { hosts: vec!["a.example:80".to_owned()], ..DashboardSettings::default() };
        assert!(hosts.check().unwrap_err().contains("a.example:80"));
        assert!(DashboardSettings { windows: 10, ..DashboardSettings::default() }.check().is_err());
    }
}
