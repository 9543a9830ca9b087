//! Receiver of metrics for OpenTelemetry.

#[cfg(feature = "otlp")]
use std::fmt::Display;
#[cfg(feature = "otlp")]
use std::path::Path;
use std::path::PathBuf;

use eadt_bus::kafka::Secret;
#[cfg(feature = "otlp")]
use eadt_service::files::{SMALL_BYTES, pem};
#[cfg(feature = "otlp")]
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
#[cfg(feature = "otlp")]
use rustls::RootCertStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
#[cfg(feature = "otlp")]
use url::Url;

/// Headers of requests to `metrics.otlp.endpoint`, as OpenTelemetry has them.
pub const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// PEM file with the authorities that an `https` receiver's certificate is checked by, as OpenTelemetry has it.
pub const OTLP_CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
/// Path of a receiver whose URL has none.
#[cfg(feature = "otlp")]
const PATH: &str = "/v1/metrics";

/// Metrics by workload and GPU for OpenTelemetry, sent by OTLP over HTTP or HTTPS as protobuf. Headers, such as a token, come
/// from the variable `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,…`). `OTEL_EXPORTER_OTLP_CERTIFICATE` names a PEM file with the
/// receiver's authority, if this machine does not know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpSettings {
    /// URL of the receiver, as in `http://otel-collector:4318` or `https://otlp.example.com`; without a path `/v1/metrics` is
    /// added. Empty: nothing is sent. `eadt exporter` sends, and `eadt up`, which has metrics by workload then, too; other
    /// services send nothing. Default: empty.
    pub endpoint: String,
    /// Seconds between two reports, 1 to 3600. Default: 60.
    pub interval_seconds: f64,
    #[serde(skip)]
    pub headers: Option<Secret>,
    #[serde(skip)]
    pub certificate: Option<PathBuf>,
}

/// Receiver of reports.
#[cfg(feature = "otlp")]
#[derive(Debug)]
pub struct OtlpEndpoint {
    pub url: Url,
    pub headers: HeaderMap,
    /// The authorities that its certificate is checked by; `None` for those of this machine, and for `http`.
    pub authorities: Option<RootCertStore>,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self { endpoint: String::new(), interval_seconds: 60.0, headers: None, certificate: None }
    }
}

impl OtlpSettings {
    /// An error names the setting or the variable that cannot be used.
    pub fn check(&self) -> Result<(), String> {
        if !(1.0..=3600.0).contains(&self.interval_seconds) {
            return Err(format!("metrics.otlp.interval_seconds={} is not between 1 and 3600", self.interval_seconds));
        }
        if self.endpoint.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "otlp")]
        return self.receiver().map(drop);
        #[cfg(not(feature = "otlp"))]
        Err("metrics.otlp.endpoint is set, and this build sends nothing to OpenTelemetry: build with --features otlp".to_owned())
    }

    /// Returns where reports are sent to. Reads the file of authorities if the receiver has a certificate.
    #[cfg(feature = "otlp")]
    pub fn receiver(&self) -> Result<OtlpEndpoint, String> {
        let url = url(&self.endpoint)?;
        let headers = headers(self.headers.as_ref().map_or("", Secret::expose))?;
        let file = self.certificate.as_deref().filter(|_| url.scheme() == "https");
        let authorities = file.map(authorities).transpose()?;
        Ok(OtlpEndpoint { url, headers, authorities })
    }
}

#[cfg(feature = "otlp")]
fn url(endpoint: &str) -> Result<Url, String> {
    let refused = |why: &str| format!("metrics.otlp.endpoint is no URL such as http://otel-collector:4318: {why}");
    let mut url: Url = endpoint.parse().map_err(|error| refused(&format!("{error}")))?;
    if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
        return Err(refused("metrics are sent over http or https, to port 4318 of most receivers"));
    }
    if ["", "/"].contains(&url.path()) {
        url.set_path(PATH);
    }
    Ok(url)
}

/// Reads a PEM file with certificates of authorities.
#[cfg(feature = "otlp")]
fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let refused = |why: &dyn Display| {
        let advice = "name a PEM file with the certificate of the receiver's authority";
        format!("{OTLP_CERTIFICATE}={} cannot be used: {why}: {advice}", file.display())
    };
    let mut authorities = RootCertStore::empty();
    for certificate in pem::read_certificates(file, SMALL_BYTES).map_err(|error| refused(&error))? {
        authorities.add(certificate).map_err(|error| refused(&error))?;
    }
    Ok(authorities)
}

/// Reads `name=value,…`, values in percent encoding. Errors never show a value.
#[cfg(feature = "otlp")]
fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (i, pair) in text.split(',').enumerate().filter(|(_, pair)| !pair.trim().is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!("{OTLP_HEADERS}: header {} has no '=': write name=value, and a comma between two", i + 1));
        };
        let name: HeaderName =
            name.trim().parse().map_err(|_| format!("{OTLP_HEADERS}: {:?} is no name of a header", name.trim()))?;
        let decoded: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
        let mut value = HeaderValue::from_bytes(&decoded)
            .map_err(|_| format!("{OTLP_HEADERS}: the value of {name} is none that a header can have"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_without_a_path_gets_the_usual_one() {
        for (endpoint, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/metrics"),
            ("http://collector:4318/", "http://collector:4318/v1/metrics"),
            ("http://gateway.example/otlp/v1/metrics", "http://gateway.example/otlp/v1/metrics"),
            ("https://vendor.example", "https://vendor.example/v1/metrics"),
        ] {
            assert_eq!(url(endpoint).unwrap().as_str(), expected);
        }
        for endpoint in ["collector:4318", "grpc://collector:4317", "4318", "http://", "https://"] {
            let error = url(endpoint).unwrap_err();
            assert!(
                error.contains("metrics.otlp.endpoint") && error.contains("http://otel-collector:4318"),
                "{endpoint}: {error}"
            );
        }
    }

    #[test]
    fn headers_are_read_as_opentelemetry_has_them_and_never_shown() {
        let read = headers("api-key=se%20cret, x-team = a=b ,").unwrap();
        assert_eq!(read["api-key"], "se cret");
        assert_eq!(read["x-team"], "a=b");
        assert!(read["api-key"].is_sensitive() && !format!("{read:?}").contains("cret"));
        for (text, error) in [
            ("api-key:hidden", "header 1 has no '='"),
            ("a=1,hidden", "header 2 has no '='"),
            ("a b=hidden", "\"a b\" is no name of a header"),
            ("a=hid%0Aden", "the value of a is none that a header can have"),
        ] {
            let message = headers(text).unwrap_err();
            assert!(message.contains(error) && message.contains(OTLP_HEADERS) && !message.contains("hid"), "{text}: {message}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_no_receiver_is_fine() {
        let check = |endpoint: &str, interval_seconds| {
            OtlpSettings { endpoint: endpoint.to_owned(), interval_seconds, ..OtlpSettings::default() }.check()
        };
        assert_eq!((check("", 60.0), check("http://c", 1.0)), (Ok(()), Ok(())));
        assert!(check("c", 60.0).is_err());
        for seconds in [0.0, f64::NAN, 3601.0] {
            assert!(check("", seconds).unwrap_err().contains("not between 1 and 3600"), "{seconds}");
        }
    }

    #[test]
    fn a_file_of_authorities_is_read_for_https_only_and_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let receiver = |endpoint: &str, certificate: &Path| {
            let certificate = Some(certificate.to_owned());
            OtlpSettings { endpoint: endpoint.to_owned(), certificate, ..OtlpSettings::default() }.receiver()
        };
        let made = rcgen::generate_simple_self_signed(["collector".to_owned()]).unwrap();
        let two = made.cert.pem().repeat(2);
        let read = receiver("https://collector:4318", &file("two.pem", &two)).unwrap();
        assert_eq!(read.authorities.unwrap().len(), 2);
        for (file, error) in [
            (dir.path().join("missing.pem"), "No such file"),
            (file("empty.pem", ""), "it contains no PEM certificate"),
            (file("key.pem", &made.signing_key.serialize_pem()), "it contains no PEM certificate"),
            (file("cut.pem", &two[..two.len() / 4]), "it is no PEM"),
            (file("other.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "invalid peer certificate"),
        ] {
            let message = receiver("https://collector:4318", &file).unwrap_err();
            let named = format!("{OTLP_CERTIFICATE}={}", file.display());
            assert!(message.contains(error) && message.starts_with(&named) && message.contains("name a PEM file"), "{message}");
            assert!(receiver("http://collector:4318", &file).unwrap().authorities.is_none(), "{}", file.display());
        }
    }
}
