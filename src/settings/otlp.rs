//! Where metrics for OpenTelemetry are sent to.

use eadt_bus::kafka::Secret;
#[cfg(feature = "otlp")]
use reqwest::Url;
#[cfg(feature = "otlp")]
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Headers of requests to `metrics.otlp.endpoint`, as OpenTelemetry has them.
pub const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Path of a receiver whose URL has none.
#[cfg(feature = "otlp")]
const PATH: &str = "/v1/metrics";

/// Metrics by workload and GPU for OpenTelemetry, sent by OTLP over HTTP as protobuf, without TLS: to a collector nearby. Headers, such as a token, come from the variable
/// `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,…`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpSettings {
    /// URL of the receiver, as in `http://otel-collector:4318`; without a path `/v1/metrics` is added. Empty: nothing is sent. With one
    /// `eadt up` has metrics by workload, too. Default: empty.
    pub endpoint: String,
    /// Seconds between two reports, 1 to 3600. Default: 60.
    pub interval_seconds: f64,
    #[serde(skip)]
    pub headers: Option<Secret>,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self { endpoint: String::new(), interval_seconds: 60.0, headers: None }
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

    /// Returns the URL that reports are sent to, and the headers of the requests.
    #[cfg(feature = "otlp")]
    pub fn receiver(&self) -> Result<(Url, HeaderMap), String> {
        Ok((url(&self.endpoint)?, headers(self.headers.as_ref().map_or("", Secret::expose))?))
    }
}

#[cfg(feature = "otlp")]
fn url(endpoint: &str) -> Result<Url, String> {
    let refused = |why: &str| format!("metrics.otlp.endpoint is no URL such as http://otel-collector:4318: {why}");
    let mut url: Url = endpoint.parse().map_err(|error| refused(&format!("{error}")))?;
    if url.scheme() != "http" || !url.has_host() {
        let way = "metrics are sent over http, to port 4318 of most receivers; to one that takes https only an OpenTelemetry Collector forwards them";
        return Err(refused(way));
    }
    if ["", "/"].contains(&url.path()) {
        url.set_path(PATH);
    }
    Ok(url)
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
        ] {
            assert_eq!(url(endpoint).unwrap().as_str(), expected);
        }
        for endpoint in ["collector:4318", "grpc://collector:4317", "4318", "http://", "https://vendor.example"] {
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
            let said = headers(text).unwrap_err();
            assert!(said.contains(error) && said.contains(OTLP_HEADERS) && !said.contains("hid"), "{text}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_no_receiver_is_fine() {
        let check = |endpoint: &str, interval_seconds| {
            OtlpSettings { endpoint: endpoint.to_owned(), interval_seconds, headers: None }.check()
        };
        assert_eq!((check("", 60.0), check("http://c", 1.0)), (Ok(()), Ok(())));
        assert!(check("c", 60.0).is_err());
        for seconds in [0.0, f64::NAN, 3601.0] {
            assert!(check("", seconds).unwrap_err().contains("not between 1 and 3600"), "{seconds}");
        }
    }
}
