//! Samples this machine's GPUs through NVML.
//!
//! Each GPU has a thread of its own, so that a hanging GPU does not stop the others; a watch reports it. The library is
//! known to `eadt-nvml` alone; everything here speaks to its [`GpuDriver`] and [`ReadableGpu`] traits, which only read.

pub mod counter_check;
mod sampler;
mod schedule;

use std::sync::Arc;
use std::time::Duration;

use eadt_service::tasks::{self, TaskEntry};
use eadt_service::{ServiceClock, Shutdown};

pub use eadt_nvml::{FailedReading, GpuDriver, GpuIdentity, GpuLost, MigInstances, NvmlDriver, ReadableGpu};

use eadt_schemas::v1::SOURCE_KINDS_BY_PREFERENCE;

use crate::assignments::AssignmentTable;
use crate::kubelet::PodGpus;
use crate::metrics::{CollectorMetrics, DeviceLabel};
use crate::settings::NvmlSettings;
use crate::sink::EventSink;
use crate::source::{BoxFuture, CollectorSource, SourceError};
use sampler::GpuSampler;

pub(crate) const KIND: &str = SOURCE_KINDS_BY_PREFERENCE[0];

/// Time that loading the library and counting the GPUs may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Context that the samplers share.
#[derive(Debug, Clone)]
pub struct SamplerContext {
    pub sink: EventSink,
    pub metrics: CollectorMetrics,
    pub clock: ServiceClock,
    pub assignments: AssignmentTable,
    /// Assignments that the kubelet reports; `assignments` takes precedence.
    pub pods: PodGpus,
    /// Name of this source in events.
    pub collector: String,
    pub node: String,
}

/// The source.
#[derive(Debug)]
pub struct NvmlSource {
    settings: NvmlSettings,
    context: SamplerContext,
    driver: Option<Arc<dyn GpuDriver>>,
    gpus: Vec<u32>,
}

impl NvmlSource {
    /// Loads the library when opened.
    pub fn new(settings: NvmlSettings, context: SamplerContext) -> Self {
        Self { settings, context, driver: None, gpus: Vec::new() }
    }

    /// Samples the GPUs of another driver than NVML.
    pub fn with_driver(settings: NvmlSettings, context: SamplerContext, driver: Arc<dyn GpuDriver>) -> Self {
        Self { settings, context, driver: Some(driver), gpus: Vec::new() }
    }

    async fn open_bounded(&mut self) -> Result<(), SourceError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (injected, path) = (self.driver.clone(), self.settings.library_path.clone());
        // A thread of its own: with a broken driver these calls may never return.
        tasks::NVML_OPEN
            .thread(move || {
                let opened = match injected {
                    Some(driver) => Ok(driver),
                    None => NvmlDriver::load(path.as_deref(), "collector.nvml.library_path").map(|nvml| {
                        tracing::info!(version = nvml.version(), "NVML loaded");
                        Arc::new(nvml) as Arc<dyn GpuDriver>
                    }),
                };
                let counted = opened.and_then(|driver| Ok((driver.gpu_count()?, driver)));
                // If it took too long, which was reported then, the receiver is gone.
                drop(sender.send(counted));
            })
            .map_err(|error| SourceError::new(KIND, format!("cannot start a thread: {error}")))?;
        let (count, driver) = match tokio::time::timeout(OPEN_TIMEOUT, receiver).await {
            Ok(Ok(counted)) => counted.map_err(|lost| SourceError::new(KIND, lost))?,
            Ok(Err(_)) => {
                return Err(SourceError::new(
                    KIND,
                    "loading NVML panicked; set collector.nvml.library_path to the driver's own library",
                ));
            }
            Err(_) => {
                let detail = format!("NVML did not answer within {OPEN_TIMEOUT:?}; check the driver with nvidia-smi");
                return Err(SourceError::new(KIND, detail));
            }
        };
        if let Some(missing) = self.settings.gpus.iter().flatten().find(|index| **index >= count) {
            let detail = format!("collector.nvml.gpus names GPU {missing}, but there are {count}: indices begin at 0");
            return Err(SourceError::new(KIND, detail));
        }
        if count == 0 {
            return Err(SourceError::new(KIND, "no GPU found; check with nvidia-smi, or set collector.nvml.enabled to false"));
        }
        self.gpus = (0..count).filter(|index| self.settings.gpus.as_ref().is_none_or(|g| g.contains(index))).collect();
        self.driver = Some(driver);
        Ok(())
    }
}

impl CollectorSource for NvmlSource {
    fn task(&self) -> &'static TaskEntry {
        &tasks::NVML
    }

    fn open(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(self.open_bounded())
    }

    fn run(self: Box<Self>, shutdown: Shutdown) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(async move {
            let driver = self.driver.ok_or_else(|| SourceError::new(KIND, "run before it was opened"))?;
            let mut samplers = Vec::new();
            let first = std::time::Instant::now();
            for index in self.gpus {
                let sampler = Arc::new(GpuSampler::new(index, first, self.settings.clone(), self.context.clone()));
                let (thread, driver) = (sampler.clone(), driver.clone());
                tasks::GPU_SAMPLER
                    .thread_of(index, move || thread.run_supervised(&*driver))
                    .map_err(|error| SourceError::new(KIND, format!("cannot start a thread for GPU {index}: {error}")))?;
                samplers.push(sampler);
            }
            let look = (self.settings.call_timeout / 4).max(Duration::from_millis(20));
            while !shutdown.is_cancelled() {
                for sampler in &samplers {
                    sampler.watch();
                }
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = tokio::time::sleep(look) => {}
                }
            }
            for sampler in &samplers {
                sampler.stop();
            }
            // One that hangs is left behind: its end is marked for it, and nothing it emits later is taken.
            let deadline = tokio::time::Instant::now() + self.settings.call_timeout;
            while samplers.iter().any(|sampler| !sampler.ended()) && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for sampler in &samplers {
                sampler.abandon();
            }
            Ok(())
        })
    }
}

impl SamplerContext {
    pub(crate) fn up(&self, device: &str, up: bool) {
        self.metrics.device_up.get_or_create(&DeviceLabel { device: device.to_owned() }).set(i64::from(up));
    }
}
