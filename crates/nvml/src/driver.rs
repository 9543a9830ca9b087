//! Reading through NVML: [`GpuDriver`] and [`ReadableGpu`] with the library behind them. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use eadt_schemas::latest::GpuTelemetry;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::{DeviceArchitecture, SampleValue};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT};
use nvml_wrapper::{Device, Nvml};

use crate::gpu::{FailedReading, GpuDriver, GpuIdentity, GpuLost, MigInstances, ReadableGpu};

/// The loaded library.
pub struct NvmlDriver {
    nvml: Nvml,
}

impl std::fmt::Debug for NvmlDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NvmlDriver")
    }
}

impl NvmlDriver {
    /// Loads and initialises the library; without a path, the system's own. Blocks, and may hang with a broken driver. `setting`
    /// names the setting for another path, for the text of an error.
    pub fn load(path: Option<&Path>, setting: &str) -> Result<Self, GpuLost> {
        let candidates: Vec<&OsStr> = match path {
            Some(path) => vec![path.as_os_str()],
            // Without the development package only the second name exists.
            None => vec![OsStr::new("libnvidia-ml.so"), OsStr::new("libnvidia-ml.so.1")],
        };
        let mut failure = None;
        for candidate in candidates {
            match Nvml::builder().lib_path(candidate).init() {
                Ok(nvml) => return Ok(Self { nvml }),
                Err(error) => {
                    let missing = matches!(error, NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound);
                    let advice = if missing {
                        format!("install the NVIDIA driver, or name its library with {setting}")
                    } else {
                        "check the driver with nvidia-smi".to_owned()
                    };
                    // The loader names the file itself.
                    let (detail, file) = match &error {
                        NvmlError::LibloadingError(cause) => (cause.to_string(), String::new()),
                        error => (error.to_string(), format!(" from {}", candidate.display())),
                    };
                    failure = Some(format!("cannot load NVML{file}: {detail}; {advice}"));
                    if !missing {
                        break;
                    }
                }
            }
        }
        Err(GpuLost(failure.unwrap_or_default()))
    }

    pub(crate) fn open(&self, index: u32) -> Result<(Device<'_>, GpuIdentity), GpuLost> {
        let lost = |error: NvmlError| GpuLost(format!("cannot open the GPU: {error}"));
        let device = self.nvml.device_by_index(index).map_err(lost)?;
        let identity = GpuIdentity {
            uuid: device.uuid().map_err(lost)?,
            index,
            model: device.name().ok(),
            default_power_limit_milliwatts: device.power_management_limit_default().ok(),
        };
        Ok((device, identity))
    }

    /// Versions of driver and library in words.
    pub fn version(&self) -> String {
        let of = |version: Result<String, NvmlError>| version.unwrap_or_else(|_| "unknown".to_owned());
        format!("driver {} NVML {}", of(self.nvml.sys_driver_version()), of(self.nvml.sys_nvml_version()))
    }
}

impl GpuDriver for NvmlDriver {
    fn gpu_count(&self) -> Result<u32, GpuLost> {
        self.nvml.device_count().map_err(|error| GpuLost(format!("cannot count the GPUs: {error}")))
    }

    fn with_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn ReadableGpu)) -> Result<(), GpuLost> {
        let (device, identity) = self.open(index)?;
        let usage_is_average = power_usage_is_average(&device);
        let mut gpu = NvmlGpu {
            nvml: &self.nvml,
            device,
            identity,
            usage_is_average,
            unsupported: BTreeMap::new(),
            gpm: None,
            mps_servers: BTreeMap::new(),
            processes_seen: 0,
        };
        // The probe: unsupported readings are remembered here and never requested again.
        gpu.probe_gpm()?;
        gpu.read(true, &mut GpuTelemetry::default(), &mut Vec::new())?;
        body(&mut gpu);
        Ok(())
    }
}

/// Returns true if `nvmlDeviceGetPowerUsage` is a one-second average: on Ampere and later, except GA100.
fn power_usage_is_average(device: &Device<'_>) -> bool {
    match device.architecture() {
        Ok(
            DeviceArchitecture::Kepler
            | DeviceArchitecture::Maxwell
            | DeviceArchitecture::Pascal
            | DeviceArchitecture::Volta
            | DeviceArchitecture::Turing,
        ) => false,
        Ok(DeviceArchitecture::Ampere) => {
            !device.cuda_compute_capability().is_ok_and(|capability| (capability.major, capability.minor) == (8, 0))
        }
        Ok(_) | Err(_) => true,
    }
}

/// A call for a GPU's reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NvmlCall {
    PowerInstant,
    PowerAverage,
    PowerUsage,
    Energy,
    Utilization,
    SmClock,
    MemoryClock,
    Temperature,
    MemoryTemperature,
    Memory,
    PowerLimit,
    ThrottleReasons,
    Processes,
    ProcessUtilization,
    Mps,
    Mig,
    MigInstances,
    Gpm,
}

impl NvmlCall {
    /// Calls whose support is reported; the others are made only to find the workloads of a shared GPU.
    const ALL: [Self; 16] = [
        Self::PowerInstant,
        Self::PowerAverage,
        Self::PowerUsage,
        Self::Energy,
        Self::Utilization,
        Self::SmClock,
        Self::MemoryClock,
        Self::Temperature,
        Self::MemoryTemperature,
        Self::Memory,
        Self::PowerLimit,
        Self::ThrottleReasons,
        Self::Processes,
        Self::Mps,
        Self::Mig,
        Self::Gpm,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::PowerInstant => "power_instant",
            Self::PowerAverage => "power_average",
            Self::PowerUsage => "power_usage",
            Self::Energy => "energy",
            Self::Utilization => "utilization",
            Self::SmClock => "sm_clock",
            Self::MemoryClock => "memory_clock",
            Self::Temperature => "temperature",
            Self::MemoryTemperature => "memory_temperature",
            Self::Memory => "memory",
            Self::PowerLimit => "power_limit",
            Self::ThrottleReasons => "throttle_reasons",
            Self::Processes => "processes",
            Self::ProcessUtilization => "process_utilization",
            Self::Mps => "mps",
            Self::Mig => "mig",
            Self::MigInstances => "mig_instances",
            Self::Gpm => "gpm",
        }
    }
}

/// The readings that come in one call.
const FIELDS: [(NvmlCall, u32); 3] = [
    (NvmlCall::PowerInstant, NVML_FI_DEV_POWER_INSTANT),
    (NvmlCall::PowerAverage, NVML_FI_DEV_POWER_AVERAGE),
    (NvmlCall::MemoryTemperature, NVML_FI_DEV_MEMORY_TEMP),
];

const GPM: [GpmMetricId; 8] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::Fp32Util,
    GpmMetricId::DramBwUtil,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
];

const MIB: f64 = 1_048_576.0;

/// The control daemon's server, by the name of its process.
const MPS_SERVER: &str = "nvidia-cuda-mps-server";

struct NvmlGpu<'a> {
    nvml: &'a Nvml,
    device: Device<'a>,
    identity: GpuIdentity,
    usage_is_average: bool,
    unsupported: BTreeMap<NvmlCall, String>,
    /// The last sample: a metric is the difference of two.
    gpm: Option<GpmSample<'a>>,
    /// Whether a process is an MPS server, by its id; `None` if its name cannot be had.
    mps_servers: BTreeMap<u32, Option<bool>>,
    /// Time of the newest sample of process utilisation, by the library's clock.
    processes_seen: u64,
}

pub(crate) enum NvmlErrorClass {
    Unsupported,
    Lost,
    Transient,
}

pub(crate) fn classify(error: &NvmlError) -> NvmlErrorClass {
    match error {
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::InvalidArg
        | NvmlError::UnexpectedVariant(_) => NvmlErrorClass::Unsupported,
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::Uninitialized
        | NvmlError::DriverNotLoaded
        | NvmlError::LibRmVersionMismatch => NvmlErrorClass::Lost,
        _ => NvmlErrorClass::Transient,
    }
}

impl<'n> NvmlGpu<'n> {
    fn is_supported(&self, call: NvmlCall) -> bool {
        !self.unsupported.contains_key(&call)
    }

    /// Sorts a result into a value, nothing, or the end.
    fn take<T>(
        &mut self,
        call: NvmlCall,
        result: Result<T, NvmlError>,
        failed: &mut Vec<FailedReading>,
    ) -> Result<Option<T>, GpuLost> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => match classify(&error) {
                NvmlErrorClass::Unsupported => {
                    self.unsupported.insert(call, error.to_string());
                    Ok(None)
                }
                NvmlErrorClass::Lost => Err(GpuLost(format!("{error}, call={}", call.name()))),
                NvmlErrorClass::Transient => {
                    failed.push(FailedReading { call: call.name(), detail: error.to_string() });
                    Ok(None)
                }
            },
        }
    }

    fn call<T>(
        &mut self,
        call: NvmlCall,
        failed: &mut Vec<FailedReading>,
        read: impl FnOnce(&Device<'n>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuLost> {
        if !self.is_supported(call) {
            return Ok(None);
        }
        let result = read(&self.device);
        self.take(call, result, failed)
    }

    /// Does an optional call, which settings request: missing support is reported once.
    fn call_optional<T>(
        &mut self,
        call: NvmlCall,
        failed: &mut Vec<FailedReading>,
        read: impl FnOnce(&Device<'n>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuLost> {
        let was_supported = self.is_supported(call);
        let found = self.call(call, failed, read)?;
        if let Some(why) = self.unsupported.get(&call).filter(|_| was_supported) {
            failed.push(FailedReading { call: call.name(), detail: format!("not supported, or not allowed here: {why}") });
        }
        Ok(found)
    }

    fn fields(&mut self, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        let wanted: Vec<_> = FIELDS.into_iter().filter(|(call, _)| self.is_supported(*call)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = wanted.iter().map(|(_, id)| FieldId(*id)).collect();
        let values = match self.device.field_values_for(&ids) {
            Ok(values) => values,
            Err(error) => {
                for (call, _) in wanted {
                    self.take::<()>(call, Err(error_again(&error)), failed)?;
                }
                return Ok(());
            }
        };
        for ((call, _), value) in wanted.into_iter().zip(values) {
            let value = value.and_then(|sample| sample.value).map(|value| match value {
                SampleValue::F64(value) => value,
                SampleValue::U32(value) => f64::from(value),
                SampleValue::U64(value) => value as f64,
                SampleValue::I64(value) => value as f64,
            });
            let value = self.take(call, value, failed)?;
            match call {
                NvmlCall::PowerInstant => into.power_watts = value.map(|milliwatts| milliwatts / 1000.0),
                NvmlCall::PowerAverage => into.power_average_watts = value.map(|milliwatts| milliwatts / 1000.0),
                _ => into.memory_temperature_celsius = value,
            }
        }
        Ok(())
    }

    fn power_usage(&mut self, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        let field = if self.usage_is_average { NvmlCall::PowerAverage } else { NvmlCall::PowerInstant };
        if self.is_supported(field) {
            return Ok(());
        }
        let watts =
            self.call(NvmlCall::PowerUsage, failed, Device::power_usage)?.map(|milliwatts| f64::from(milliwatts) / 1000.0);
        if self.usage_is_average {
            into.power_average_watts = watts;
        } else {
            into.power_watts = watts;
        }
        Ok(())
    }

    fn probe_gpm(&mut self) -> Result<(), GpuLost> {
        let supported = self.call(NvmlCall::Gpm, &mut Vec::new(), Device::gpm_support)?;
        if supported == Some(false) {
            self.unsupported.insert(NvmlCall::Gpm, "not supported by this GPU".to_owned());
        }
        Ok(())
    }

    fn gpm(&mut self, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        if !self.is_supported(NvmlCall::Gpm) {
            return Ok(());
        }
        let result = self.device.gpm_sample();
        let Some(now) = self.take(NvmlCall::Gpm, result, failed)? else {
            self.gpm = None;
            return Ok(());
        };
        let Some(before) = self.gpm.replace(now) else { return Ok(()) };
        let now = self.gpm.as_ref().expect("just put there");
        let result = gpm_metrics_get(self.nvml, &before, now, &GPM);
        let Some(values) = self.take(NvmlCall::Gpm, result, failed)? else { return Ok(()) };
        // A single metric that this GPU lacks is absent; the library returns NaN for too short a time.
        for value in values.into_iter().flatten().filter(|value| value.value.is_finite()) {
            let (ratio, bytes) = (Some(value.value / 100.0), Some(value.value * MIB));
            match value.metric_id {
                GpmMetricId::GraphicsUtil => into.graphics_active_ratio = ratio,
                GpmMetricId::SmUtil => into.sm_active_ratio = ratio,
                GpmMetricId::SmOccupancy => into.sm_occupancy_ratio = ratio,
                GpmMetricId::AnyTensorUtil => into.tensor_active_ratio = ratio,
                GpmMetricId::Fp32Util => into.fp32_active_ratio = ratio,
                GpmMetricId::DramBwUtil => into.dram_active_ratio = ratio,
                GpmMetricId::PcieTxPerSec => into.pcie_transmit_bytes_per_second = bytes,
                GpmMetricId::PcieRxPerSec => into.pcie_receive_bytes_per_second = bytes,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the processes. Under MPS the library lists the server among them, and its clients separately.
    fn processes(&mut self, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        let Some(processes) = self.call(NvmlCall::Processes, failed, Device::running_compute_processes)? else { return Ok(()) };
        let clients = self.call(NvmlCall::Mps, failed, Device::mps_running_compute_processes)?.unwrap_or_default();
        let listed: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
        self.mps_servers.retain(|pid, _| listed.contains(pid));
        for pid in &listed {
            // `None`: it ended meanwhile, or lives in another process namespace.
            let nvml = self.nvml;
            let is_server = || nvml.sys_process_name(*pid, 256).ok().map(|name| name.contains(MPS_SERVER));
            self.mps_servers.entry(*pid).or_insert_with(is_server);
        }
        let is_server = |pid: &u32| self.mps_servers.get(pid) == Some(&Some(true));
        let servers = listed.iter().filter(|pid| is_server(pid)).count();
        let known = self.mps_servers.values().all(Option::is_some);
        into.mps_enabled = if servers > 0 || !clients.is_empty() { Some(true) } else { known.then_some(false) };
        let clients: BTreeSet<u32> = clients.iter().map(|process| process.pid).collect();
        into.processes = Some(listed.union(&clients).filter(|pid| !is_server(pid)).count() as u32);
        Ok(())
    }

    fn slow(&mut self, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        if let Some(memory) = self.call(NvmlCall::Memory, failed, Device::memory_info)? {
            into.memory_used_bytes = Some(memory.used);
            into.memory_total_bytes = Some(memory.total);
        }
        into.power_limit_watts = self
            .call(NvmlCall::PowerLimit, failed, Device::enforced_power_limit)?
            .map(|milliwatts| f64::from(milliwatts) / 1000.0);
        into.throttle_reasons =
            self.call(NvmlCall::ThrottleReasons, failed, Device::current_throttle_reasons)?.map(throttle_reasons);
        into.mig_enabled = self.call(NvmlCall::Mig, failed, Device::mig_mode)?.map(|mode| mode.current != 0);
        self.processes(into, failed)
    }
}

impl ReadableGpu for NvmlGpu<'_> {
    fn identity(&self) -> &GpuIdentity {
        &self.identity
    }

    fn features(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        // Average usage is not read if a field has it.
        let field = if self.usage_is_average { NvmlCall::PowerAverage } else { NvmlCall::PowerInstant };
        let calls_used = NvmlCall::ALL.into_iter().filter(|call| *call != NvmlCall::PowerUsage || !self.is_supported(field));
        let (yes, no): (Vec<_>, Vec<_>) = calls_used.partition(|call| self.is_supported(*call));
        let names = |calls: Vec<NvmlCall>| calls.into_iter().map(NvmlCall::name).collect();
        (names(yes), names(no))
    }

    fn read(&mut self, slow: bool, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        // Energy and power first and together: the time of the sample is theirs.
        into.energy_joules_total =
            self.call(NvmlCall::Energy, failed, Device::total_energy_consumption)?.map(|millijoules| millijoules as f64 / 1000.0);
        self.fields(into, failed)?;
        self.power_usage(into, failed)?;
        if let Some(utilization) = self.call(NvmlCall::Utilization, failed, Device::utilization_rates)? {
            into.utilization_ratio = Some(f64::from(utilization.gpu) / 100.0);
            into.memory_utilization_ratio = Some(f64::from(utilization.memory) / 100.0);
        }
        into.sm_clock_mhz = self.call(NvmlCall::SmClock, failed, |device| device.clock_info(Clock::SM))?.map(f64::from);
        into.memory_clock_mhz =
            self.call(NvmlCall::MemoryClock, failed, |device| device.clock_info(Clock::Memory))?.map(f64::from);
        into.temperature_celsius =
            self.call(NvmlCall::Temperature, failed, |device| device.temperature(TemperatureSensor::Gpu))?.map(f64::from);
        self.gpm(into, failed)?;
        if slow { self.slow(into, failed) } else { Ok(()) }
    }

    fn process_utilization(&mut self, failed: &mut Vec<FailedReading>) -> Result<Option<BTreeMap<u32, f64>>, GpuLost> {
        let since = self.processes_seen;
        let samples =
            self.call_optional(NvmlCall::ProcessUtilization, failed, |device| match device.process_utilization_stats(since) {
                // No newer samples.
                Err(NvmlError::NotFound) => Ok(Vec::new()),
                samples => samples,
            })?;
        let mut used: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        // Some drivers give rows of garbage among the others.
        for sample in samples.iter().flatten().filter(|s| s.pid != 0 && s.sm_util <= 100 && s.timestamp > since) {
            self.processes_seen = self.processes_seen.max(sample.timestamp);
            let (sum, count) = used.entry(sample.pid).or_default();
            (*sum, *count) = (*sum + f64::from(sample.sm_util) / 100.0, *count + 1.0);
        }
        let mean = used.into_iter().map(|(process, (sum, count))| (process, sum / count)).collect::<BTreeMap<_, _>>();
        Ok(Some(mean).filter(|mean| !mean.is_empty()))
    }

    fn instances(&mut self, failed: &mut Vec<FailedReading>) -> Result<Option<MigInstances>, GpuLost> {
        let instance = |index: u32, device: &Device<'_>| {
            let found = device.mig_device_by_index(index);
            let found = found.and_then(|found| Ok((found.uuid()?, found.attributes()?.compute_instance_slice_count)));
            match found {
                Ok(found) => Ok(Some(found)),
                // Indices have gaps, and instances are taken away in the middle of this.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => Ok(None),
                Err(error) => Err(error),
            }
        };
        // There are at most as many instances as slices: the smallest has one.
        self.call_optional(NvmlCall::MigInstances, failed, |device| {
            let slices = device.mig_device_count()?;
            let all: Result<Vec<_>, NvmlError> = (0..slices).map(|index| instance(index, device)).collect();
            Ok(MigInstances { slices, by_uuid: all?.into_iter().flatten().collect() })
        })
    }
}

/// Returns the same error for several readings that one call failed for; the library's error cannot be cloned.
fn error_again(error: &NvmlError) -> NvmlError {
    match classify(error) {
        NvmlErrorClass::Unsupported => NvmlError::NotSupported,
        NvmlErrorClass::Lost => NvmlError::GpuLost,
        NvmlErrorClass::Transient => NvmlError::Unknown,
    }
}

fn throttle_reasons(reasons: ThrottleReasons) -> String {
    let names: Vec<_> = [
        (ThrottleReasons::GPU_IDLE, "gpu_idle"),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "applications_clocks_setting"),
        (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync_boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hw_power_brake_slowdown"),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display_clock_setting"),
    ]
    .into_iter()
    .filter(|(flag, _)| reasons.contains(*flag))
    .map(|(_, name)| name)
    .collect();
    names.join(",")
}
