//! The operator's settings ([`RawSettings`]), and the checked ones ([`CollectorSettings`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use eadt_recordings::series::{AttributionRules, PodRule, is_workload};
use eadt_service::connections::{ConnectionLimits, OverflowPolicy};
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assignments::{self, GpuAssignment};
use crate::progress::job::ProgressField;
use crate::progress::wire::ClockSkewLimits;

/// Settings of the collector as written in a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSettings {
    /// Name of this collector in its events; with workload and device it names a source, so it must be unique in the
    /// pipeline. Default: the host's name.
    pub name: Option<String>,
    /// Node that the devices belong to. Default: the host's name.
    pub node: Option<String>,
    /// Buffer of events while the log is unavailable.
    pub buffer: RawBuffer,
    /// This machine's GPUs.
    pub nvml: RawNvml,
    /// dcgm-exporter endpoints to scrape.
    pub dcgm: Vec<RawDcgm>,
    /// The HTTP endpoint that training jobs report to.
    pub progress: RawProgress,
    /// Training jobs' own Prometheus endpoints to scrape.
    pub jobs: Vec<RawJob>,
    /// Which pods hold this machine's GPUs, from the kubelet.
    pub kubelet: RawKubelet,
    /// Which workload a GPU works for. Goes before the labels of an exporter.
    pub assignments: Vec<GpuAssignment>,
    /// A JSON file with an array of assignments, read again within a second of every change, so that a batch system's prologue
    /// can state who runs where. Goes before `assignments`.
    pub assignments_file: Option<PathBuf>,
}

/// Bounds of the buffer in front of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawBuffer {
    /// Most events kept. Default 100,000. Range: 1 to 100,000,000.
    pub events: usize,
    /// Most memory that they take, in bytes. Default 128 MiB (about a quarter of an hour of 8 GPUs at 10 Hz). Range: at least
    /// 1 MiB.
    pub bytes: usize,
    /// How long a graceful stop waits until the log has everything, in seconds. What it has not acknowledged by then counts as
    /// dropped. Default 10. Range: 0 to 600.
    pub drain_seconds: f64,
    /// How long a sample waits for others to share a write of the log with, in seconds; what begins or ends something waits for
    /// nothing. Default 0.25. Range: 0 to 10.
    pub linger_seconds: f64,
}

impl Default for RawBuffer {
    fn default() -> Self {
        Self { events: 100_000, bytes: 128 << 20, drain_seconds: 10.0, linger_seconds: 0.25 }
    }
}

/// Sampling of this machine's GPUs through NVML. Reads only; never changes a setting of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawNvml {
    /// Sample this machine's GPUs. Default false.
    pub enabled: bool,
    /// Path or name of the NVML library. Default: the system's `libnvidia-ml.so`, then `libnvidia-ml.so.1`.
    pub library_path: Option<PathBuf>,
    /// Samples a second of each GPU. Default 10. Range: 0.01 to 100.
    pub rate_hertz: f64,
    /// GPUs to sample, by NVML index. Default: all.
    pub gpus: Option<Vec<u32>>,
    /// A GPU that does not answer for this long is reported as stuck, in seconds. Default 2. Range: 0.1 to 60.
    pub call_timeout_seconds: f64,
    /// Seconds between readings of what changes rarely: power limit, memory, throttle reasons, processes, MIG, MPS.
    /// Default 1. Range: 0.01 to 3600.
    pub slow_seconds: f64,
    /// How long the energy counter is compared with integrated power before it is used, in seconds; 0 uses it
    /// unchecked. Default 5. Range: 0 to 600.
    pub counter_check_seconds: f64,
    /// Largest relative difference between counter and integral at which the counter is trusted. Default 0.2.
    /// Range: 0.01 to 1.
    pub counter_tolerance_ratio: f64,
    /// Seconds until a lost GPU, or one that could not be opened, is tried again. Default 10. Range: 0.1 to 3600.
    pub retry_seconds: f64,
}

impl Default for RawNvml {
    fn default() -> Self {
        Self {
            enabled: false,
            library_path: None,
            rate_hertz: 10.0,
            gpus: None,
            call_timeout_seconds: 2.0,
            slow_seconds: 1.0,
            counter_check_seconds: 5.0,
            counter_tolerance_ratio: 0.2,
            retry_seconds: 10.0,
        }
    }
}

/// The kubelet's pod-resources socket: which pods hold this machine's GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawKubelet {
    /// Ask the kubelet. Default false.
    pub enabled: bool,
    /// Path of the socket; with `MicroK8s` it is below `/var/snap/microk8s/common/var/lib/kubelet`.
    /// Default `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub socket: PathBuf,
    /// Poll interval, in seconds. Default 1. Range: 0.05 to 60.
    pub interval_seconds: f64,
    /// Longest wait for an answer, in seconds. Default 5. Range: 0.05 to 300.
    pub timeout_seconds: f64,
    /// Prefixes of resource names that are GPUs. Default `nvidia.com/`.
    pub resources: Vec<String>,
    /// How a pod becomes a workload where the API server is not asked. Default `owner`.
    pub pods: PodRule,
    /// Ask the API server for the owners of these pods, and for their MPS thread percentages. The service account needs `get` for
    /// pods, `ReplicaSets`, `StatefulSets`, `Jobs` and `JobSets`, as in `deploy/helm/eadt/files/collector-rules.yaml`. Default
    /// false.
    pub api_server: bool,
    /// Folder of the host's processes: with it, shared GPUs are cut by the time in which each pod's processes used the SMs.
    /// `/proc` where the collector sees the host's process ids (`hostPID`), else wherever the host's is mounted. Needs
    /// `api_server`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_directory: Option<PathBuf>,
}

impl Default for RawKubelet {
    fn default() -> Self {
        Self {
            enabled: false,
            socket: PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock"),
            interval_seconds: 1.0,
            timeout_seconds: 5.0,
            resources: vec!["nvidia.com/".to_owned()],
            pods: PodRule::Owner,
            api_server: false,
            process_directory: None,
        }
    }
}

/// One dcgm-exporter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawDcgm {
    /// Its metrics endpoint, `http://node-1:9400/metrics`. Required; plain HTTP.
    pub url: String,
    /// Seconds between scrapes. Default 1. Range: 0.05 to 3600. An answer that the exporter has not refreshed since the
    /// last one is recognised by its energy counter and gives no sample.
    pub interval_seconds: f64,
    /// Longest wait for an answer, in seconds. Default 5. Range: 0.05 to 300.
    pub timeout_seconds: f64,
    /// Largest answer in bytes. Default 16 MiB. Range: 1 KiB to 1 GiB.
    pub body_bytes: usize,
    /// Label that names the workload, as `namespace/name`, or as a name whose namespace is `workload_namespace` or the
    /// `namespace` label: a pod label that the exporter passes on, for example, or `hpc_job`. Goes before `pods`.
    pub workload_label: Option<String>,
    /// Namespace of the workloads that `workload_label` names without one. Default: the `namespace` label of the series; a series
    /// without it has no workload, which is logged.
    pub workload_namespace: Option<String>,
    /// How the `namespace` and `pod` labels become a workload. Default `owner`.
    pub pods: PodRule,
}

impl Default for RawDcgm {
    fn default() -> Self {
        Self {
            url: String::new(),
            interval_seconds: 1.0,
            timeout_seconds: 5.0,
            body_bytes: 16 << 20,
            workload_label: None,
            workload_namespace: None,
            pods: PodRule::Owner,
        }
    }
}

/// The endpoint for training progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawProgress {
    /// Serve `POST /v1/progress` and Kubeflow's trainer status contract. Default true.
    pub enabled: bool,
    /// Address and port. Off the loopback only with `certificate`, `key`, and `tokens_file` or `service_accounts`. Port 0 takes a
    /// free one. Default `127.0.0.1:9477`.
    #[serde(deserialize_with = "eadt_service::address::deserialize")]
    pub listen: SocketAddr,
    /// PEM file with the certificate chain for TLS; read again when it changes. Default: plain HTTP.
    pub certificate: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    pub key: Option<PathBuf>,
    /// File of the tokens that senders need, made by `eadt token create`; read again within a second of every change. Default:
    /// senders need no token, unless `service_accounts` are enabled.
    pub tokens_file: Option<PathBuf>,
    /// Tokens of Kubernetes service accounts, each for its own namespace.
    pub service_accounts: RawServiceAccounts,
    /// Most connections at once. One more takes the place of the oldest that has shown no valid token yet and had 10 to 100 ms
    /// for it. Where all have shown one, it is let in as one of `connections` / 8 + 1 more; once it has shown its own, it takes a
    /// place of the sender with the most, if that has more than it, and is answered 503 otherwise. If every place has shown a
    /// token, at most 330 new ones a second are accepted (fewer below 24 connections, more above 256). Default 256. Range: 1 to
    /// 65,536.
    pub connections: usize,
    /// Longest time that a TLS handshake, the head of a request, or a whole request may take, in seconds; slower clients are
    /// cut off. Default 10. Range: 0.1 to 600.
    pub request_seconds: f64,
    /// Requests a second of each token or service account, of all together that come without a valid one, or of all senders where
    /// there are no tokens; as many at once. Default 1,000. Range: 0.01 to 1,000,000.
    pub requests_per_second: f64,
    /// Largest request in bytes. Default 1 MiB. Range: 1 KiB to 64 MiB.
    pub body_bytes: usize,
    /// Most events in one request. Default 1,000. Range: 1 to 100,000.
    pub batch_events: usize,
    /// Most sources (workload and rank) known at a time. Default 10,000. Range: 1 to 1,000,000.
    pub sources: usize,
    /// Most of them in one namespace. Default: half of `sources`. Range: 1 to 1,000,000.
    pub sources_per_namespace: Option<usize>,
    /// Times further ahead of this machine's clock are refused, in seconds; 0 accepts any. Default 60. Range: 0 to 86400.
    pub max_future_seconds: f64,
    /// Times further behind this machine's clock are refused, in seconds; 0 accepts any. Long enough for every late
    /// report of a job, and short enough to refuse a clock that was never set. Default 31,622,400 (366 days). Range: 0 to 1e10.
    pub max_past_seconds: f64,
}

impl Default for RawProgress {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9477)),
            certificate: None,
            key: None,
            tokens_file: None,
            service_accounts: RawServiceAccounts::default(),
            connections: 256,
            request_seconds: 10.0,
            requests_per_second: 1000.0,
            body_bytes: 1 << 20,
            batch_events: 1000,
            sources: 10_000,
            sources_per_namespace: None,
            max_future_seconds: 60.0,
            max_past_seconds: 31_622_400.0,
        }
    }
}

/// Tokens of Kubernetes service accounts, which the API server checks (`TokenReview`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawServiceAccounts {
    /// Accept them. The collector's own service account needs `create` for `tokenreviews`, as in
    /// `deploy/helm/eadt/files/collector-review-rules.yaml`. Default false.
    pub enabled: bool,
    /// Audience that a token must be for: one of its own, not the API server's, so that a job gives away no token that is worth
    /// something there. Default `eadt`.
    pub audience: String,
    /// How long an accepted token is not asked for again, in seconds; so late a deleted account or pod is noticed, and some 10 s
    /// later, as the API server remembers, too. Default 60. Range: 1 to 3600.
    pub remember_seconds: f64,
    /// Unknown tokens a second that are put to the API server; as many at once, further ones are refused with 503. Accepted ones
    /// are asked for again beside them. Default 20. Range: 0.1 to 1,000.
    pub reviews_per_second: f64,
}

impl Default for RawServiceAccounts {
    fn default() -> Self {
        Self { enabled: false, audience: "eadt".to_owned(), remember_seconds: 60.0, reviews_per_second: 20.0 }
    }
}

/// A job's Prometheus endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawJob {
    /// The job's metrics endpoint. Required; plain HTTP.
    pub url: String,
    /// `namespace/name` of the workload. Required.
    pub workload: String,
    /// Rank of series without a `rank` label. Default 0.
    pub rank: u32,
    /// Counters speak for this rank alone and are summed over ranks. Default false: for the whole job.
    pub per_rank: bool,
    /// Seconds between scrapes. Default 5. Range: 0.05 to 3600.
    pub interval_seconds: f64,
    /// Longest wait for an answer, in seconds. Default 5. Range: 0.05 to 300.
    pub timeout_seconds: f64,
    /// Largest answer in bytes. Default 4 MiB. Range: 1 KiB to 1 GiB.
    pub body_bytes: usize,
    /// Names of the job's metrics where they differ from the defaults (`training_samples_total`, …), by field.
    pub metrics: BTreeMap<ProgressField, String>,
}

impl Default for RawJob {
    fn default() -> Self {
        Self {
            url: String::new(),
            workload: String::new(),
            rank: 0,
            per_rank: false,
            interval_seconds: 5.0,
            timeout_seconds: 5.0,
            body_bytes: 4 << 20,
            metrics: BTreeMap::new(),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting collector.{field}: {detail}")]
pub struct SettingsError {
    pub field: String,
    pub detail: String,
}

/// Checked settings.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectorSettings {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) buffer: BufferSettings,
    pub(crate) nvml: Option<NvmlSettings>,
    pub(crate) dcgm: Vec<DcgmSettings>,
    pub(crate) progress: Option<ProgressSettings>,
    pub(crate) jobs: Vec<JobSettings>,
    pub(crate) kubelet: Option<crate::kubelet::KubeletSettings>,
    pub(crate) kubelet_pods: PodRule,
    pub(crate) kubelet_api_server: bool,
    pub(crate) assignments: Vec<GpuAssignment>,
    pub(crate) assignments_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BufferSettings {
    pub events: usize,
    pub bytes: usize,
    pub drain: Duration,
    pub linger: Duration,
}

/// Sampling of GPUs, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct NvmlSettings {
    pub library_path: Option<PathBuf>,
    pub period: Duration,
    pub gpus: Option<BTreeSet<u32>>,
    pub call_timeout: Duration,
    pub slow: Duration,
    /// Zero: the counter is used unchecked.
    pub counter_check_seconds: f64,
    pub counter_tolerance_ratio: f64,
    pub retry: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScrapeTarget {
    pub url: Url,
    /// The URL without what may be a secret, for logs and metrics. No two targets share one.
    pub shown: String,
    pub interval: Duration,
    pub timeout: Duration,
    pub body_bytes: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DcgmSettings {
    pub target: ScrapeTarget,
    pub rules: AttributionRules,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgressSettings {
    pub listen: SocketAddr,
    /// Certificate chain and key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub tokens_file: Option<PathBuf>,
    pub service_accounts: Option<ServiceAccounts>,
    pub limits: ConnectionLimits,
    pub requests_per_second: f64,
    pub body_bytes: usize,
    pub batch_events: usize,
    pub sources: usize,
    pub sources_per_namespace: usize,
    pub times: ClockSkewLimits,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceAccounts {
    pub audience: String,
    pub remember_seconds: f64,
    pub reviews_per_second: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobSettings {
    pub target: ScrapeTarget,
    pub workload: String,
    pub rank: u32,
    pub per_rank: bool,
    pub metrics: BTreeMap<ProgressField, String>,
}

/// Longest collector or node name: what `eadt-schemas` accepts, less the suffix that names the kind of source.
const NAME_BYTES: usize = 240;
/// Longest life of a connection to the progress endpoint; senders begin a new one then.
const CONNECTION_LIFETIME: Duration = Duration::from_mins(10);

impl RawSettings {
    /// Checks every value, those of sources that are not enabled too, and that a source is. `host` is used if no name or node
    /// is given.
    pub fn validate(self, host: &str) -> Result<CollectorSettings, SettingsError> {
        let settings = self.read(host)?;
        if settings.nvml.is_none() && settings.dcgm.is_empty() && settings.progress.is_none() && settings.jobs.is_empty() {
            return Err(refuse(
                "nvml.enabled",
                "no source is enabled: enable collector.nvml or collector.progress, or add collector.dcgm or collector.jobs",
            ));
        }
        Ok(settings)
    }

    /// Checks every value if no collector is to run.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.clone().read("localhost").map(drop)
    }

    fn read(self, host: &str) -> Result<CollectorSettings, SettingsError> {
        let name = label("name", self.name.as_deref().unwrap_or(host))?;
        let node = label("node", self.node.as_deref().unwrap_or(host))?;
        let buffer = BufferSettings {
            events: within("buffer.events", self.buffer.events, 1, 100_000_000)?,
            bytes: within("buffer.bytes", self.buffer.bytes, 1 << 20, usize::MAX)?,
            drain: seconds("buffer.drain_seconds", self.buffer.drain_seconds, 0.0, 600.0)?,
            linger: seconds("buffer.linger_seconds", self.buffer.linger_seconds, 0.0, 10.0)?,
        };
        let enabled = self.nvml.enabled;
        let nvml = Some(self.nvml.validate()?).filter(|_| enabled);
        let mut dcgm = Vec::new();
        for (i, raw) in self.dcgm.into_iter().enumerate() {
            let target = target(&format!("dcgm[{i}]"), &raw.url, raw.interval_seconds, raw.timeout_seconds, raw.body_bytes)?;
            dcgm.push(DcgmSettings {
                target,
                rules: rules(&format!("dcgm[{i}]"), raw.workload_label, raw.workload_namespace, raw.pods)?,
            });
        }
        let enabled = self.progress.enabled;
        let progress = Some(self.progress.validate()?).filter(|_| enabled);
        let mut jobs = Vec::new();
        for (i, raw) in self.jobs.into_iter().enumerate() {
            let field = format!("jobs[{i}]");
            if !is_workload(&raw.workload) {
                return Err(refuse(format!("{field}.workload"), format!("{:?} is not namespace/name", raw.workload)));
            }
            let target = target(&field, &raw.url, raw.interval_seconds, raw.timeout_seconds, raw.body_bytes)?;
            jobs.push(JobSettings {
                target,
                workload: raw.workload,
                rank: raw.rank,
                per_rank: raw.per_rank,
                metrics: raw.metrics,
            });
        }
        let of_dcgm = dcgm.iter_mut().enumerate().map(|(i, settings)| (format!("dcgm[{i}]"), &mut settings.target));
        let of_jobs = jobs.iter_mut().enumerate().map(|(i, settings)| (format!("jobs[{i}]"), &mut settings.target));
        make_names_unique(of_dcgm.chain(of_jobs).collect());
        let (kubelet_pods, api_server) = (self.kubelet.pods, self.kubelet.api_server);
        if api_server && !self.kubelet.enabled {
            return Err(refuse("kubelet.api_server", "there are no pods to ask for: enable kubelet, too"));
        }
        if self.kubelet.process_directory.is_some() && !api_server {
            return Err(refuse(
                "kubelet.process_directory",
                "only the API server resolves whose processes they are: set kubelet.api_server, too",
            ));
        }
        let enabled = self.kubelet.enabled;
        let kubelet = Some(self.kubelet.validate()?).filter(|_| enabled);
        assignments::check(&self.assignments).map_err(|detail| refuse("assignments", detail))?;
        Ok(CollectorSettings {
            name,
            node,
            buffer,
            nvml,
            dcgm,
            progress,
            jobs,
            kubelet,
            kubelet_pods,
            kubelet_api_server: api_server,
            assignments: self.assignments,
            assignments_file: self.assignments_file,
        })
    }
}

impl CollectorSettings {
    /// Returns whether pods' owners are to be asked of the API server: then [`crate::CollectorDependencies::owners`] must be
    /// given.
    pub fn asks_api_server(&self) -> bool {
        self.kubelet_api_server
    }

    /// Returns whether tokens of service accounts are to be put to the API server: then
    /// [`crate::CollectorDependencies::reviewer`] must be given.
    pub fn asks_for_reviews(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.service_accounts.is_some())
    }
}

impl RawNvml {
    /// Checks every value, whether sampling is enabled or not.
    pub fn validate(self) -> Result<NvmlSettings, SettingsError> {
        let rate = number("nvml.rate_hertz", self.rate_hertz, 0.01, 100.0)?;
        Ok(NvmlSettings {
            library_path: self.library_path,
            period: Duration::from_secs_f64(1.0 / rate),
            gpus: self.gpus.map(|gpus| gpus.into_iter().collect()),
            call_timeout: seconds("nvml.call_timeout_seconds", self.call_timeout_seconds, 0.1, 60.0)?,
            slow: seconds("nvml.slow_seconds", self.slow_seconds, 0.01, 3600.0)?,
            counter_check_seconds: number("nvml.counter_check_seconds", self.counter_check_seconds, 0.0, 600.0)?,
            counter_tolerance_ratio: number("nvml.counter_tolerance_ratio", self.counter_tolerance_ratio, 0.01, 1.0)?,
            retry: seconds("nvml.retry_seconds", self.retry_seconds, 0.1, 3600.0)?,
        })
    }
}

impl RawKubelet {
    fn validate(self) -> Result<crate::kubelet::KubeletSettings, SettingsError> {
        if self.resources.iter().any(String::is_empty) || self.resources.is_empty() {
            return Err(refuse("kubelet.resources", "no resource is a GPU, or every one: name beginnings such as nvidia.com/"));
        }
        Ok(crate::kubelet::KubeletSettings {
            socket: self.socket,
            interval: seconds("kubelet.interval_seconds", self.interval_seconds, 0.05, 60.0)?,
            timeout: seconds("kubelet.timeout_seconds", self.timeout_seconds, 0.05, 300.0)?,
            resources: self.resources,
            process_directory: self.process_directory,
        })
    }
}

impl RawProgress {
    fn validate(self) -> Result<ProgressSettings, SettingsError> {
        let certificate = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(refuse("progress.key", "a certificate is of no use without its private key")),
            (None, Some(_)) => return Err(refuse("progress.certificate", "a private key is of no use without its certificate")),
        };
        let enabled = self.service_accounts.enabled;
        let service_accounts = Some(self.service_accounts.validate()?).filter(|_| enabled);
        let tokens = self.tokens_file.is_some() || service_accounts.is_some();
        if self.enabled && !self.listen.ip().is_loopback() && (certificate.is_none() || !tokens) {
            let detail = format!(
                "{} is not a loopback address, and others are served only with TLS and tokens: set collector.progress.certificate, \
                 key, and tokens_file (eadt token create makes tokens) or service_accounts.enabled, or listen on 127.0.0.1",
                self.listen
            );
            return Err(refuse("progress.listen", detail));
        }
        let limits = ConnectionLimits {
            connections: within("progress.connections", self.connections, 1, 65_536)?,
            when_full: OverflowPolicy::EndStrangers,
            request: seconds("progress.request_seconds", self.request_seconds, 0.1, 600.0)?,
            lifetime: CONNECTION_LIFETIME,
        };
        let future = number("progress.max_future_seconds", self.max_future_seconds, 0.0, 86_400.0)?;
        let past = number("progress.max_past_seconds", self.max_past_seconds, 0.0, 1e10)?;
        let limit = |seconds: f64| (seconds > 0.0).then_some(seconds);
        Ok(ProgressSettings {
            listen: self.listen,
            certificate,
            tokens_file: self.tokens_file,
            service_accounts,
            limits,
            requests_per_second: number("progress.requests_per_second", self.requests_per_second, 0.01, 1e6)?,
            body_bytes: within("progress.body_bytes", self.body_bytes, 1 << 10, 64 << 20)?,
            batch_events: within("progress.batch_events", self.batch_events, 1, 100_000)?,
            sources: within("progress.sources", self.sources, 1, 1_000_000)?,
            sources_per_namespace: within(
                "progress.sources_per_namespace",
                self.sources_per_namespace.unwrap_or(self.sources.div_ceil(2)),
                1,
                1_000_000,
            )?,
            times: ClockSkewLimits { past: limit(past), future: limit(future) },
        })
    }
}

impl RawServiceAccounts {
    /// Checks every value, whether they are accepted or not.
    fn validate(self) -> Result<ServiceAccounts, SettingsError> {
        let number = |name: &str, value, low, high| number(&format!("progress.service_accounts.{name}"), value, low, high);
        Ok(ServiceAccounts {
            audience: label("progress.service_accounts.audience", &self.audience)?,
            remember_seconds: number("remember_seconds", self.remember_seconds, 1.0, 3600.0)?,
            reviews_per_second: number("reviews_per_second", self.reviews_per_second, 0.1, 1000.0)?,
        })
    }
}

fn refuse(field: impl Into<String>, detail: impl Into<String>) -> SettingsError {
    SettingsError { field: field.into(), detail: detail.into() }
}

fn label(field: &str, text: &str) -> Result<String, SettingsError> {
    if text.is_empty() || text.len() > NAME_BYTES || text.chars().any(char::is_control) {
        return Err(refuse(field, format!("{text:?} is not 1 to {NAME_BYTES} bytes without control characters")));
    }
    Ok(text.to_owned())
}

fn number(field: &str, value: f64, low: f64, high: f64) -> Result<f64, SettingsError> {
    if (low..=high).contains(&value) { Ok(value) } else { Err(refuse(field, format!("{value} is not between {low} and {high}"))) }
}

fn seconds(field: &str, value: f64, low: f64, high: f64) -> Result<Duration, SettingsError> {
    number(field, value, low, high).map(Duration::from_secs_f64)
}

fn within(field: &str, value: usize, low: usize, high: usize) -> Result<usize, SettingsError> {
    if (low..=high).contains(&value) { Ok(value) } else { Err(refuse(field, format!("{value} is not between {low} and {high}"))) }
}

fn target(field: &str, url: &str, interval: f64, timeout: f64, body_bytes: usize) -> Result<ScrapeTarget, SettingsError> {
    let name = format!("{field}.url");
    let parsed = Url::parse(url).map_err(|error| refuse(&name, format!("{url:?} is not a URL: {error}")))?;
    if parsed.scheme() != "http" {
        let detail = format!("{url:?} is not plain HTTP: TLS is not built in, scrape through a local proxy");
        return Err(refuse(name, detail));
    }
    Ok(ScrapeTarget {
        shown: crate::scrape::shown(&parsed),
        url: parsed,
        interval: seconds(&format!("{field}.interval_seconds"), interval, 0.05, 3600.0)?,
        timeout: seconds(&format!("{field}.timeout_seconds"), timeout, 0.05, 300.0)?,
        body_bytes: within(&format!("{field}.body_bytes"), body_bytes, 1 << 10, 1 << 30)?,
    })
}

/// Adds its place in the settings to the name of each target that shares its name with another, as two do that differ in what is
/// not shown of their URLs.
fn make_names_unique(targets: Vec<(String, &mut ScrapeTarget)>) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, target) in &targets {
        *counts.entry(target.shown.clone()).or_default() += 1;
    }
    for (field, target) in targets {
        if counts.get(&target.shown).is_some_and(|count| *count > 1) {
            target.shown = format!("{} ({field})", target.shown);
        }
    }
}

fn rules(
    field: &str,
    workload_label: Option<String>,
    workload_namespace: Option<String>,
    pods: PodRule,
) -> Result<AttributionRules, SettingsError> {
    if workload_label.as_deref() == Some("") {
        return Err(refuse(format!("{field}.workload_label"), "the name of a label is empty: leave the setting out"));
    }
    if let Some(namespace) = &workload_namespace {
        let field = format!("{field}.workload_namespace");
        if workload_label.is_none() {
            return Err(refuse(field, "it is of workloads that a label names: set workload_label, too"));
        }
        if !is_workload(&format!("{namespace}/x")) {
            return Err(refuse(field, format!("{namespace:?} cannot be before the slash of namespace/name")));
        }
    }
    Ok(AttributionRules { workload_label, workload_namespace, pods })
}

/// Returns this host's name as the kernel has it; `localhost` if that cannot be read.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<CollectorSettings, SettingsError> {
        toml::from_str::<RawSettings>(text).expect("parses").validate("host-1")
    }

    #[test]
    fn defaults_serve_progress_on_loopback_under_the_hosts_name() {
        let settings = check("").unwrap();
        assert_eq!((settings.name.as_str(), settings.node.as_str()), ("host-1", "host-1"));
        assert!(settings.progress.unwrap().listen.ip().is_loopback());
        assert!(settings.nvml.is_none());
    }

    #[test]
    fn each_refusal_names_its_field() {
        for (text, field) in [
            ("name = \"\"", "name"),
            ("[progress]\nlisten = \"0.0.0.0:9477\"", "progress.listen"),
            ("[progress]\nlisten = \"0.0.0.0:9477\"\ntokens_file = \"t\"", "progress.listen"),
            ("[progress]\nlisten = \"[::]:9477\"\ncertificate = \"c\"\nkey = \"k\"", "progress.listen"),
            ("[progress]\ncertificate = \"c\"", "progress.key"),
            ("[progress]\nkey = \"k\"", "progress.certificate"),
            ("[progress]\nrequest_seconds = 0.0", "progress.request_seconds"),
            ("[progress]\nlisten = \"[::]:9477\"\n[progress.service_accounts]\nenabled = true", "progress.listen"),
            ("[progress.service_accounts]\naudience = \"\"", "progress.service_accounts.audience"),
            ("[progress.service_accounts]\nremember_seconds = 0.5", "progress.service_accounts.remember_seconds"),
            ("[progress.service_accounts]\nreviews_per_second = 0", "progress.service_accounts.reviews_per_second"),
            ("[progress]\nmax_past_seconds = -1.0", "progress.max_past_seconds"),
            ("[nvml]\nenabled = true\nrate_hertz = 0.0", "nvml.rate_hertz"),
            ("[nvml]\nrate_hertz = nan", "nvml.rate_hertz"),
            ("[buffer]\nevents = 0", "buffer.events"),
            ("[[dcgm]]\nurl = \"https://x/metrics\"", "dcgm[0].url"),
            ("[[dcgm]]\nurl = \"no url\"", "dcgm[0].url"),
            ("[[dcgm]]\nurl = \"http://x/\"\nworkload_label = \"\"", "dcgm[0].workload_label"),
            ("[[dcgm]]\nurl = \"http://x/\"\nworkload_namespace = \"hpc\"", "dcgm[0].workload_namespace"),
            ("[[dcgm]]\nurl = \"http://x/\"\nworkload_label = \"l\"\nworkload_namespace = \"a/b\"", "dcgm[0].workload_namespace"),
            ("[[jobs]]\nurl = \"http://x/\"\nworkload = \"x\"", "jobs[0].workload"),
            ("[kubelet]\nenabled = true\nresources = []", "kubelet.resources"),
            ("[kubelet]\ninterval_seconds = 0", "kubelet.interval_seconds"),
            ("[kubelet]\nenabled = true\nprocess_directory = \"/proc\"", "kubelet.process_directory"),
            ("[progress]\nenabled = false", "nvml.enabled"),
            ("[[assignments]]\ndevice = \"0\"\nworkload = \"x\"", "assignments"),
        ] {
            assert_eq!(check(text).unwrap_err().field, field, "{text}");
        }
    }

    #[test]
    fn targets_that_differ_in_their_query_have_names_of_their_own() {
        let text = "[[dcgm]]\nurl = \"http://u:p@x/federate?match=a&token=s3cret\"\n\
                    [[dcgm]]\nurl = \"http://x/federate?match=b&token=s3cret\"\n\
                    [[dcgm]]\nurl = \"http://y/metrics?token=s3cret\"\n\
                    [[jobs]]\nurl = \"http://x/federate\"\nworkload = \"a/b\"";
        let settings = check(text).unwrap();
        let targets = settings.dcgm.iter().map(|of| &of.target).chain(settings.jobs.iter().map(|of| &of.target));
        let shown: Vec<&str> = targets.map(|target| target.shown.as_str()).collect();
        let expected =
            ["http://x/federate (dcgm[0])", "http://x/federate (dcgm[1])", "http://y/metrics", "http://x/federate (jobs[0])"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn with_tls_and_tokens_any_address_is_served() {
        let tls = "[progress]\nlisten = \"0.0.0.0:9477\"\ncertificate = \"c\"\nkey = \"k\"\n";
        for (tokens, reviews) in [("tokens_file = \"t\"", false), ("[progress.service_accounts]\nenabled = true", true)] {
            let settings = check(&format!("{tls}{tokens}")).unwrap();
            assert_eq!(settings.asks_for_reviews(), reviews);
            assert!(!settings.progress.unwrap().listen.ip().is_loopback());
        }
        let off =
            check("[nvml]\nenabled = true\n[progress]\nenabled = false\n[progress.service_accounts]\nenabled = true").unwrap();
        assert!(!off.asks_for_reviews(), "nobody reports");
    }

    #[test]
    fn every_example_of_the_documentation_is_accepted() {
        let text = include_str!("../../../docs/operate/collector.md");
        let examples: Vec<&str> = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        for section in ["[[collector.dcgm]]", "[[collector.jobs]]", "[[collector.assignments]]", "[collector.nvml]"] {
            assert!(examples.iter().any(|example| example.contains(section)), "{section} has no example");
        }
        for example in examples {
            let whole: toml::Table = example.parse().unwrap_or_else(|error| panic!("{error}\n{example}"));
            let own = whole["collector"].clone();
            let settings: RawSettings = own.try_into().unwrap_or_else(|error| panic!("{error}\n{example}"));
            settings.check().unwrap_or_else(|error| panic!("{error}\n{example}"));
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = toml::from_str::<RawSettings>("[nvml]\nrate_herz = 10").unwrap_err().to_string();
        assert!(error.contains("rate_herz") && error.contains("rate_hertz"), "{error}");
    }
}
