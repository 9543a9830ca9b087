//! Changing settings of GPUs, apart from reading them: for the node agent alone.
//!
//! Values are the library's own (whole milliwatts and megahertz), so that what was read is put back exactly.

use std::fmt;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::{DeviceArchitecture, GpuLockedClocksSetting};
use nvml_wrapper::error::NvmlError;

use crate::driver::{NvmlDriver, NvmlErrorClass, classify};
use crate::gpu::{GpuIdentity, GpuLost};

/// The settings that a GPU supports; an unsupported one is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuSettingRanges {
    pub power: Option<PowerRange>,
    pub clock: Option<ClockRange>,
}

/// The power caps that a GPU takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerRange {
    pub min_milliwatts: u32,
    pub max_milliwatts: u32,
    pub default_milliwatts: Option<u32>,
}

/// The upper bounds of the SM clock that a GPU takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockRange {
    pub mechanism: ClockMechanism,
    /// Ascending, not empty.
    pub supported_mhz: Vec<u32>,
}

/// The mechanism that bounds the SM clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockMechanism {
    /// `nvmlDeviceSetGpuLockedClocks`, Volta and later. The library does not report locked clocks.
    Locked,
    /// `nvmlDeviceSetApplicationsClocks`, before Volta.
    Application,
}

/// Application clocks in megahertz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplicationClocks {
    pub memory_mhz: u32,
    pub graphics_mhz: u32,
}

/// The observable state of the bound of the SM clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockReading {
    Application(ApplicationClocks),
    /// Locked clocks cannot be read; a present clock above the lock shows that it is gone.
    Locked {
        sm_clock_mhz: Option<u32>,
    },
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuSettingError {
    /// The GPU, or the library, is gone for now: open it again later.
    #[error(transparent)]
    Lost(#[from] GpuLost),
    /// This GPU will never do it; nothing was changed.
    #[error("{call} is not supported by this GPU")]
    Unsupported { call: &'static str },
    #[error("{call} failed: {detail}")]
    Failed { call: &'static str, detail: String },
}

/// An open GPU whose settings can be changed. Calls block and may hang.
pub trait SettableGpu {
    fn identity(&self) -> &GpuIdentity;
    /// Returns the limits as read when the GPU was opened.
    fn limits(&self) -> &GpuSettingRanges;
    /// Returns whether the driver keeps settings while no process uses the GPU; `None` if unknown.
    fn persistent(&self) -> Option<bool>;
    /// Returns the power cap in force, from any writer.
    fn power_limit_milliwatts(&mut self) -> Result<u32, GpuSettingError>;
    fn set_power_limit_milliwatts(&mut self, milliwatts: u32) -> Result<(), GpuSettingError>;
    fn clock(&mut self) -> Result<ClockReading, GpuSettingError>;
    /// Bounds the SM clock from above, at one of the supported values.
    fn bound_clock(&mut self, mhz: u32) -> Result<(), GpuSettingError>;
    /// `None` to remove a lock.
    fn restore_clock(&mut self, original: Option<ApplicationClocks>) -> Result<(), GpuSettingError>;
}

/// Opens GPUs for changes.
pub trait SettableDriver: Send + Sync + fmt::Debug {
    /// Returns the number of GPUs on this node.
    fn gpu_count(&self) -> Result<u32, GpuLost>;
    /// Opens a GPU, looks up its limits, and hands it to `body`; the GPU is closed when that returns.
    fn with_settable_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn SettableGpu)) -> Result<(), GpuLost>;
}

impl SettableDriver for NvmlDriver {
    fn gpu_count(&self) -> Result<u32, GpuLost> {
        crate::GpuDriver::gpu_count(self)
    }

    fn with_settable_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn SettableGpu)) -> Result<(), GpuLost> {
        let (device, identity) = self.open(index)?;
        let limits = GpuSettingRanges { power: power_range(&device)?, clock: clock_range(&device)? };
        let persistent = optional(device.is_in_persistent_mode())?;
        body(&mut NvmlSettableGpu { device, identity, limits, persistent });
        Ok(())
    }
}

/// Returns `None` if the GPU does not support the call; an error only if the GPU is gone.
fn optional<T>(result: Result<T, NvmlError>) -> Result<Option<T>, GpuLost> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match classify(&error) {
            NvmlErrorClass::Lost => Err(GpuLost(format!("cannot open the GPU: {error}"))),
            NvmlErrorClass::Unsupported | NvmlErrorClass::Transient => Ok(None),
        },
    }
}

fn power_range(device: &Device<'_>) -> Result<Option<PowerRange>, GpuLost> {
    let Some(range) = optional(device.power_management_limit_constraints())? else { return Ok(None) };
    // Some boards report a range that leaves nothing to choose, or none at all.
    if range.min_limit == 0 || range.max_limit < range.min_limit || optional(device.power_management_limit())?.is_none() {
        return Ok(None);
    }
    Ok(Some(PowerRange {
        min_milliwatts: range.min_limit,
        max_milliwatts: range.max_limit,
        default_milliwatts: optional(device.power_management_limit_default())?,
    }))
}

fn clock_range(device: &Device<'_>) -> Result<Option<ClockRange>, GpuLost> {
    let before_volta = matches!(
        device.architecture(),
        Ok(DeviceArchitecture::Kepler | DeviceArchitecture::Maxwell | DeviceArchitecture::Pascal)
    );
    let mechanism = if before_volta { ClockMechanism::Application } else { ClockMechanism::Locked };
    let application = optional(device.applications_clock(Clock::Memory))?;
    if mechanism == ClockMechanism::Application && application.is_none() {
        return Ok(None);
    }
    // Clocks go with a memory clock: the one in force, else the fastest.
    let fastest = || Ok(optional(device.supported_memory_clocks())?.into_iter().flatten().max());
    let Some(memory) = application.map_or_else(fastest, |mhz| Ok::<_, GpuLost>(Some(mhz)))? else { return Ok(None) };
    let mut supported_mhz = optional(device.supported_graphics_clocks(memory))?.unwrap_or_default();
    supported_mhz.sort_unstable();
    supported_mhz.dedup();
    Ok((!supported_mhz.is_empty()).then_some(ClockRange { mechanism, supported_mhz }))
}

struct NvmlSettableGpu<'a> {
    device: Device<'a>,
    identity: GpuIdentity,
    limits: GpuSettingRanges,
    persistent: Option<bool>,
}

fn failed(call: &'static str) -> impl Fn(NvmlError) -> GpuSettingError {
    move |error| match classify(&error) {
        NvmlErrorClass::Lost => GpuSettingError::Lost(GpuLost(format!("{error}, call={call}"))),
        NvmlErrorClass::Unsupported if matches!(error, NvmlError::NoPermission) => {
            GpuSettingError::Failed { call, detail: "no permission; run the agent as root".to_owned() }
        }
        NvmlErrorClass::Unsupported if matches!(error, NvmlError::InvalidArg) => {
            GpuSettingError::Failed { call, detail: "the GPU refuses this value".to_owned() }
        }
        NvmlErrorClass::Unsupported => GpuSettingError::Unsupported { call },
        NvmlErrorClass::Transient => GpuSettingError::Failed { call, detail: error.to_string() },
    }
}

impl NvmlSettableGpu<'_> {
    fn mechanism(&self) -> Result<&ClockRange, GpuSettingError> {
        self.limits.clock.as_ref().ok_or(GpuSettingError::Unsupported { call: "clocks" })
    }

    fn application_clocks(&self) -> Result<ApplicationClocks, GpuSettingError> {
        Ok(ApplicationClocks {
            memory_mhz: self.device.applications_clock(Clock::Memory).map_err(failed("memory application clock"))?,
            graphics_mhz: self.device.applications_clock(Clock::Graphics).map_err(failed("application clock"))?,
        })
    }
}

impl SettableGpu for NvmlSettableGpu<'_> {
    fn identity(&self) -> &GpuIdentity {
        &self.identity
    }

    fn limits(&self) -> &GpuSettingRanges {
        &self.limits
    }

    fn persistent(&self) -> Option<bool> {
        self.persistent
    }

    fn power_limit_milliwatts(&mut self) -> Result<u32, GpuSettingError> {
        self.device.power_management_limit().map_err(failed("power limit"))
    }

    fn set_power_limit_milliwatts(&mut self, milliwatts: u32) -> Result<(), GpuSettingError> {
        self.device.set_power_management_limit(milliwatts).map_err(failed("set power limit"))
    }

    fn clock(&mut self) -> Result<ClockReading, GpuSettingError> {
        Ok(match self.mechanism()?.mechanism {
            ClockMechanism::Application => ClockReading::Application(self.application_clocks()?),
            ClockMechanism::Locked => {
                let sm_clock_mhz = self.device.clock_info(Clock::SM).map_err(failed("SM clock"));
                match sm_clock_mhz {
                    Ok(mhz) => ClockReading::Locked { sm_clock_mhz: Some(mhz) },
                    Err(lost @ GpuSettingError::Lost(_)) => return Err(lost),
                    Err(_) => ClockReading::Locked { sm_clock_mhz: None },
                }
            }
        })
    }

    fn bound_clock(&mut self, mhz: u32) -> Result<(), GpuSettingError> {
        let range = self.mechanism()?;
        let lowest = *range.supported_mhz.first().ok_or(GpuSettingError::Unsupported { call: "clocks" })?;
        match range.mechanism {
            ClockMechanism::Locked => {
                let lock = GpuLockedClocksSetting::Numeric { min_clock_mhz: lowest, max_clock_mhz: mhz };
                self.device.set_gpu_locked_clocks(lock).map_err(failed("lock clocks"))
            }
            ClockMechanism::Application => {
                let memory = self.application_clocks()?.memory_mhz;
                self.device.set_applications_clocks(memory, mhz).map_err(failed("set application clocks"))
            }
        }
    }

    fn restore_clock(&mut self, original: Option<ApplicationClocks>) -> Result<(), GpuSettingError> {
        match original {
            None => self.device.reset_gpu_locked_clocks().map_err(failed("unlock clocks")),
            Some(clocks) => self
                .device
                .set_applications_clocks(clocks.memory_mhz, clocks.graphics_mhz)
                .map_err(failed("set application clocks")),
        }
    }
}
