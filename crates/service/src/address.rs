//! Addresses to listen on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer, de};

/// A text that is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not an address with a port, such as 127.0.0.1:9464, [::1]:9464 or localhost:9464")]
pub struct InvalidAddress;

/// Reads an IP address with a port. `localhost` is 127.0.0.1; other names are refused, since an address to listen on is this
/// machine's.
pub fn parse(text: &str) -> Result<SocketAddr, InvalidAddress> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    match text.rsplit_once(':') {
        // `u16` alone would take `+9464`.
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            let port = port.parse().map_err(|_| InvalidAddress)?;
            Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
        }
        _ => Err(InvalidAddress),
    }
}

/// Reads a setting that is an address to listen on, for `#[serde(deserialize_with)]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(|error| de::Error::custom(format_args!("{text:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_and_ip_addresses_with_a_port_are_addresses() {
        for (text, address) in [
            ("127.0.0.1:9464", "127.0.0.1:9464"),
            ("[::1]:9464", "[::1]:9464"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("localhost:9464", "127.0.0.1:9464"),
            ("LocalHost:0", "127.0.0.1:0"),
        ] {
            assert_eq!(parse(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "here",
            "localhost",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:+1",
            "::1",
            "9464",
            ":9464",
            "example.com:80",
        ] {
            assert_eq!(parse(text), Err(InvalidAddress), "{text}");
        }
    }
}
