//! One GPU's thread, and the facts that others may read while it hangs in a call.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_schemas::EventTime;
use eadt_schemas::latest::{GpuTelemetry, Origin};
use eadt_service::tasks::GPU_SAMPLER;

use super::counter_check::{CounterCheck, CounterVerdict};
use super::schedule::SampleSchedule;
use super::{FailedReading, GpuDriver, GpuIdentity, GpuLost, KIND, ReadableGpu, SamplerContext};
use crate::metrics::{DeviceCallLabel, DeviceLabel};
use crate::plausible;
use crate::settings::NvmlSettings;
use crate::tenancy::{BoardTenant, DeviceTenancy};

/// A counter that was not trusted is looked at again after this time: a check may have met a leap of the load.
const RECHECK: Duration = Duration::from_mins(1);

#[derive(Debug)]
enum CounterTrust {
    Checking(CounterCheck),
    Trusted,
    LeftOut { until: Instant },
}

/// Stage of a sampler; only ever forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SamplerStage {
    Running,
    Stopping,
    /// The sampler publishes nothing any more.
    Closed,
    /// The thread has ended.
    Ended,
}

#[derive(Debug)]
struct SamplerState {
    schedule: SampleSchedule,
    /// Start of a call that has not returned.
    busy: Option<Instant>,
    stuck: bool,
    /// UUID, once known.
    device: String,
    tenancy: DeviceTenancy,
    stage: SamplerStage,
}

#[derive(Debug)]
pub(super) struct GpuSampler {
    index: u32,
    settings: NvmlSettings,
    context: SamplerContext,
    state: Mutex<SamplerState>,
    wake: Condvar,
}

/// State that only the thread itself uses.
struct SamplerThreadState {
    counter: CounterTrust,
    last_joules: Option<f64>,
    slow_due: Instant,
    complained: BTreeSet<&'static str>,
}

impl GpuSampler {
    /// Builds the schedule. The first sample is due at `first`, the same for all GPUs: their samples then share wake-ups and log
    /// writes.
    pub fn new(index: u32, first: Instant, settings: NvmlSettings, context: SamplerContext) -> Self {
        let device = format!("index-{index}");
        context.up(&device, false);
        let state = SamplerState {
            schedule: SampleSchedule::new(first, settings.period),
            busy: None,
            stuck: false,
            device,
            tenancy: DeviceTenancy::default(),
            stage: SamplerStage::Running,
        };
        Self { index, settings, context, state: Mutex::new(state), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, SamplerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread. A panic costs the samples until it goes on, not the GPU.
    pub fn run_supervised(&self, driver: &dyn GpuDriver) {
        while GPU_SAMPLER.watch(|| self.run(driver)).is_err() {
            tracing::error!(gpu = self.index, "the thread of this GPU panicked");
            let device = self.lock().device.clone();
            self.end_call();
            self.context.up(&device, false);
            // When stopping, the next run only publishes the last events and ends.
            self.wait_until(Instant::now() + self.settings.retry);
        }
    }

    /// Opens the GPU, samples it, opens it again when it was lost, until stopped.
    pub fn run(&self, driver: &dyn GpuDriver) {
        let mut progress = SamplerThreadState {
            counter: self.new_check(),
            last_joules: None,
            slow_due: Instant::now(),
            complained: BTreeSet::new(),
        };
        while self.lock().stage == SamplerStage::Running {
            self.begin_call();
            let mut lost = None;
            let opened = driver.with_gpu(self.index, &mut |gpu| {
                self.opened(gpu);
                lost = self.sample_until_lost(gpu, &mut progress).err();
            });
            self.end_call();
            let device = self.lock().device.clone();
            self.context.up(&device, false);
            match opened.err().or(lost) {
                Some(lost) => {
                    tracing::error!(gpu = self.index, device, error = %lost, retry_seconds = self.settings.retry.as_secs_f64(),
                        "GPU lost; the others continue, and opening it is retried");
                }
                None => break,
            }
            if self.wait_until(Instant::now() + self.settings.retry) {
                break;
            }
        }
        self.finish();
        self.lock().stage = SamplerStage::Ended;
    }

    fn new_check(&self) -> CounterTrust {
        if self.settings.counter_check_seconds > 0.0 {
            CounterTrust::Checking(CounterCheck::new(self.settings.counter_check_seconds, self.settings.counter_tolerance_ratio))
        } else {
            CounterTrust::Trusted
        }
    }

    fn opened(&self, gpu: &mut dyn ReadableGpu) {
        self.end_call();
        let identity = gpu.identity().clone();
        let (supported, unsupported) = gpu.features();
        tracing::info!(
            gpu = self.index,
            device = identity.uuid,
            model = identity.model,
            supported = supported.join(","),
            unsupported = unsupported.join(","),
            "GPU opened"
        );
        let mut state = self.lock();
        if state.device != identity.uuid {
            let old = DeviceLabel { device: std::mem::replace(&mut state.device, identity.uuid.clone()) };
            self.context.metrics.device_up.remove(&old);
            self.context.metrics.device_stuck.remove(&old);
            // Another board behind this index: the old one's stays are over.
            self.publish(&state.tenancy.end());
        }
        drop(state);
        self.context.up(&identity.uuid, true);
        self.context.pods.opened(&identity);
    }

    fn sample_until_lost(&self, gpu: &mut dyn ReadableGpu, progress: &mut SamplerThreadState) -> Result<(), GpuLost> {
        let identity = gpu.identity().clone();
        loop {
            if self.next_due() {
                return Ok(());
            }
            let (sample, failed) = self.read(gpu, progress)?;
            self.complain(&identity, &failed, progress);
            self.take(&identity, sample, progress);
        }
    }

    /// Waits for the next due time and counts those passed over; true when stopping.
    fn next_due(&self) -> bool {
        let due = {
            let mut state = self.lock();
            self.pass_over(&mut state);
            state.schedule.due()
        };
        let stopping = self.wait_until(due);
        self.lock().schedule.advance();
        stopping
    }

    fn pass_over(&self, state: &mut SamplerState) {
        let missed = state.schedule.pass_over(Instant::now());
        if missed > 0 {
            let device = state.device.clone();
            self.context.metrics.samples_missed.get_or_create(&DeviceLabel { device }).inc_by(missed);
        }
    }

    fn read(
        &self,
        gpu: &mut dyn ReadableGpu,
        progress: &mut SamplerThreadState,
    ) -> Result<(GpuTelemetry, Vec<FailedReading>), GpuLost> {
        let started = Instant::now();
        let slow = started >= progress.slow_due;
        if slow {
            progress.slow_due = started + self.settings.slow;
        }
        let mut failed = Vec::new();
        let mut sample = GpuTelemetry { time: self.context.clock.now(), ..GpuTelemetry::default() };
        self.begin_call();
        let result = gpu.read(slow, &mut sample, &mut failed);
        let took = started.elapsed();
        let shared = if slow && result.is_ok() && self.context.pods.wants_instances() {
            self.read_sharing(gpu, sample.mig_enabled, &mut failed)
        } else {
            Ok(())
        };
        self.end_call();
        self.context.metrics.read_duration.observe(took.as_secs_f64());
        result.and(shared)?;
        if took > self.settings.call_timeout {
            // It is unknown when in that time the readings were taken.
            return Ok((GpuTelemetry::default(), failed));
        }
        Ok((sample, failed))
    }

    /// Reads the figures by which a shared GPU is attributed. A figure that cannot be read leaves the known one as it is.
    fn read_sharing(
        &self,
        gpu: &mut dyn ReadableGpu,
        mig_enabled: Option<bool>,
        failed: &mut Vec<FailedReading>,
    ) -> Result<(), GpuLost> {
        let (pods, uuid) = (&self.context.pods, gpu.identity().uuid.clone());
        if mig_enabled == Some(true) {
            if let Some(instances) = gpu.instances(failed)? {
                pods.set_instances(&uuid, Some(instances));
            }
            return Ok(());
        }
        if mig_enabled == Some(false) {
            pods.set_instances(&uuid, None);
        }
        if pods.wants_processes()
            && let Some(used) = gpu.process_utilization(failed)?
        {
            pods.add_process_usage(&uuid, used);
        }
        Ok(())
    }

    fn complain(&self, identity: &GpuIdentity, failed: &[FailedReading], progress: &mut SamplerThreadState) {
        for FailedReading { call, detail } in failed {
            let label = DeviceCallLabel { device: identity.uuid.clone(), call };
            self.context.metrics.readings_failed.get_or_create(&label).inc();
            if progress.complained.insert(call) {
                tracing::warn!(device = identity.uuid, call, detail, "a reading failed; further failures are only counted");
            }
        }
    }

    fn take(&self, identity: &GpuIdentity, mut sample: GpuTelemetry, progress: &mut SamplerThreadState) {
        let read_at = sample.time;
        sample.device.clone_from(&identity.uuid);
        sample.gpu_index = Some(identity.index);
        sample.gpu_model.clone_from(&identity.model);
        sample.node = Some(self.context.node.clone());
        sample.collector.clone_from(&self.context.collector);
        sample.origin = Origin::Measured;
        for field in plausible::leave_out_impossible(&mut sample) {
            let label = DeviceCallLabel { device: identity.uuid.clone(), call: field };
            self.context.metrics.readings_implausible.get_or_create(&label).inc();
        }
        self.check_counter(&mut sample, progress);
        let assigned = self.context.assignments.of(&identity.uuid, Some(identity.index));
        let tenants = assigned.or_else(|| self.context.pods.of(&identity.uuid));
        let tenants: &[BoardTenant] = tenants.as_deref().unwrap_or_default();
        let mut state = self.lock();
        if state.stage >= SamplerStage::Closed {
            return;
        }
        // If nothing was read, nothing is published: the absence of a sample is the truth about it.
        let nothing = read_at == EventTime::default() || !plausible::has_reading(&sample);
        if nothing || !state.tenancy.accepts(read_at) {
            self.context.metrics.samples_missed.get_or_create(&DeviceLabel { device: identity.uuid.clone() }).inc();
            if !nothing && progress.complained.insert("clock") {
                tracing::warn!(device = identity.uuid, now = %read_at, newest = ?state.tenancy.newest(),
                    "the clock fell back; samples are missing until it passes the newest one");
            }
            return;
        }
        progress.complained.remove("clock");
        let events = state.tenancy.observe(&sample, tenants);
        self.publish(&events);
    }

    fn check_counter(&self, sample: &mut GpuTelemetry, progress: &mut SamplerThreadState) {
        let label = DeviceLabel { device: sample.device.clone() };
        let Some(joules) = sample.energy_joules_total else { return };
        if progress.last_joules.replace(joules).is_some_and(|last| joules < last) {
            tracing::warn!(device = sample.device, joules, "the energy counter fell; the driver was reloaded or the GPU reset");
            self.context.metrics.counter_resets.get_or_create(&label).inc();
        }
        let verdict = match &mut progress.counter {
            CounterTrust::Trusted => return,
            CounterTrust::LeftOut { until } => {
                if Instant::now() >= *until {
                    progress.counter = self.new_check();
                }
                None
            }
            CounterTrust::Checking(check) => {
                check.observe(sample.time, sample.power_watts.or(sample.power_average_watts), Some(joules))
            }
        };
        let Some(verdict) = verdict else {
            sample.energy_joules_total = None;
            return;
        };
        let trusted = self.context.metrics.counter_trusted.get_or_create(&label).clone();
        trusted.set(i64::from(verdict.trusted()));
        if let Some(error) = verdict.error_ratio() {
            self.context.metrics.counter_error.get_or_create(&label).set(error);
        }
        progress.counter =
            if verdict.trusted() { CounterTrust::Trusted } else { CounterTrust::LeftOut { until: Instant::now() + RECHECK } };
        match verdict {
            CounterVerdict::Trusted { counter_joules, integral_joules } => {
                tracing::info!(
                    device = sample.device,
                    counter_joules,
                    integral_joules,
                    "the energy counter agrees with integrated power"
                );
            }
            CounterVerdict::Unchecked => {
                tracing::warn!(
                    device = sample.device,
                    "the energy counter is used unchecked: the GPU gives no power to compare it with"
                );
            }
            CounterVerdict::Untrusted { counter_joules, integral_joules } => {
                tracing::warn!(
                    device = sample.device,
                    counter_joules,
                    integral_joules,
                    "the energy counter does not agree with integrated power and is left out; it is checked again in a minute"
                );
                sample.energy_joules_total = None;
            }
        }
    }

    fn publish(&self, events: &[GpuTelemetry]) {
        for event in events {
            if let Err(refusal) = self.context.sink.telemetry(KIND, event) {
                tracing::warn!(device = event.device, %refusal, "a sample was refused");
            }
        }
    }

    fn begin_call(&self) {
        self.lock().busy = Some(Instant::now());
    }

    fn end_call(&self) {
        let mut state = self.lock();
        let since = state.busy.take();
        if std::mem::take(&mut state.stuck) {
            let seconds = since.map(|since| since.elapsed().as_secs_f64());
            tracing::warn!(gpu = self.index, device = state.device, seconds, "the GPU answers again");
            self.context.metrics.device_stuck.get_or_create(&DeviceLabel { device: state.device.clone() }).set(0);
            self.context.up(&state.device, true);
        }
    }

    /// Looks whether a call hangs. Called from outside the thread.
    pub fn watch(&self) {
        let mut state = self.lock();
        if state.busy.is_none_or(|since| since.elapsed() < self.settings.call_timeout) {
            return;
        }
        self.pass_over(&mut state);
        if !std::mem::replace(&mut state.stuck, true) {
            tracing::error!(
                gpu = self.index,
                device = state.device,
                timeout_seconds = self.settings.call_timeout.as_secs_f64(),
                "the GPU does not answer; the others continue, its samples are missing until it does"
            );
            self.context.metrics.device_stuck.get_or_create(&DeviceLabel { device: state.device.clone() }).set(1);
            self.context.up(&state.device, false);
        }
    }

    /// Waits; true when stopping.
    fn wait_until(&self, due: Instant) -> bool {
        let wait = due.saturating_duration_since(Instant::now());
        let (state, _) = self
            .wake
            .wait_timeout_while(self.lock(), wait, |state| state.stage < SamplerStage::Stopping)
            .unwrap_or_else(PoisonError::into_inner);
        state.stage >= SamplerStage::Stopping
    }

    pub fn stop(&self) {
        let mut state = self.lock();
        state.stage = state.stage.max(SamplerStage::Stopping);
        drop(state);
        self.wake.notify_all();
    }

    pub fn ended(&self) -> bool {
        self.lock().stage == SamplerStage::Ended
    }

    /// Marks the end of every stay; nothing is published afterwards.
    fn finish(&self) {
        let mut state = self.lock();
        if state.stage < SamplerStage::Closed {
            state.stage = SamplerStage::Closed;
            let last = state.tenancy.end();
            self.publish(&last);
        }
    }

    /// Gives a thread up that did not end.
    pub fn abandon(&self) {
        if !self.ended() {
            let device = self.lock().device.clone();
            tracing::warn!(gpu = self.index, device, "the GPU still does not answer; its thread is left behind");
        }
        self.finish();
    }
}
