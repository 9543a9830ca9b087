//! TLS and SASL of a connection, by the same properties as the client library's.

use std::net::TcpStream;
use std::time::Duration;

use rdkafka::config::ClientConfig;

use super::connection::{BrokerConnection, BrokerStream, Result};

/// Protection of a connection, and the user.
#[derive(Debug, Clone, Default)]
pub struct ConnectionSecurity {
    #[cfg(feature = "kafka-tls")]
    pub tls: Option<super::tls::TlsFiles>,
    #[cfg(feature = "kafka-tls")]
    pub sasl: Option<super::sasl::SaslUser>,
}

/// Reads the security settings from the properties. The error names a property that cannot be followed.
pub fn read_security(config: &ClientConfig) -> std::result::Result<ConnectionSecurity, String> {
    let protocol = config.get("security.protocol").unwrap_or("plaintext").to_lowercase();
    #[cfg(not(feature = "kafka-tls"))]
    if protocol == "plaintext" {
        Ok(ConnectionSecurity::default())
    } else {
        Err(format!("this build has no security.protocol={protocol}: build with --features kafka-tls"))
    }
    #[cfg(feature = "kafka-tls")]
    {
        let (has_tls, has_sasl) = match &*protocol {
            "plaintext" => (false, false),
            "ssl" => (true, false),
            "sasl_plaintext" => (false, true),
            "sasl_ssl" => (true, true),
            other => return Err(format!("security.protocol={other} is not known")),
        };
        let tls = has_tls.then(|| super::tls::TlsFiles::read(config)).transpose()?;
        let sasl = has_sasl.then(|| super::sasl::SaslUser::read(config)).transpose()?;
        Ok(ConnectionSecurity { tls, sasl })
    }
}

/// Puts TLS around a socket if that is asked for.
#[cfg_attr(
    not(feature = "kafka-tls"),
    expect(unused_variables, clippy::unnecessary_wraps, reason = "a build without TLS has nothing to do")
)]
pub fn wrap_in_tls(socket: TcpStream, host: &str, security: &ConnectionSecurity) -> Result<BrokerStream> {
    #[cfg(feature = "kafka-tls")]
    if let Some(files) = &security.tls {
        return files.wrap_in_tls(socket, host);
    }
    Ok(BrokerStream::Plain(socket))
}

/// Authenticates to the broker if that is configured. Returns for how long the broker accepts it; `None` if it does not expire.
#[cfg_attr(
    not(feature = "kafka-tls"),
    expect(unused_variables, clippy::unnecessary_wraps, reason = "a build without SASL has nothing to do")
)]
pub fn authenticate(connection: &mut BrokerConnection, security: &ConnectionSecurity) -> Result<Option<Duration>> {
    #[cfg(feature = "kafka-tls")]
    if let Some(user) = &security.sasl {
        return user.authenticate(connection);
    }
    Ok(None)
}
