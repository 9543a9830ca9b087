//! The fields that a recording can fill.

use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};

use crate::units::Dimension;

/// Way in which readings with the same time stamp are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricType {
    /// An instantaneous value: their mean.
    Gauge,
    /// A value that falls at a reset only: the last one counts.
    Counter,
}

trait FromNumber {
    fn from_number(value: f64) -> Self;
}
impl FromNumber for f64 {
    fn from_number(value: f64) -> Self {
        value
    }
}
impl FromNumber for u32 {
    fn from_number(value: f64) -> Self {
        value.round() as Self
    }
}
impl FromNumber for u64 {
    fn from_number(value: f64) -> Self {
        value.round() as Self
    }
}

macro_rules! fields {
    (telemetry { $($t:ident $t_name:ident $t_dim:ident $t_nature:ident;)* }
     progress { $($p:ident $p_name:ident $p_dim:ident $p_nature:ident;)* }) => {
        /// A numeric field of `gpu.telemetry` or `training.progress`, by the name that it has there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ReadingField {
            $($t,)*
            $($p,)*
        }

        impl ReadingField {
            pub const ALL: &[Self] = &[$(Self::$t,)* $(Self::$p,)*];

            /// Returns the name in the event, unit included.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$t => stringify!($t_name),)*
                    $(Self::$p => stringify!($p_name),)*
                }
            }

            /// Returns true if it belongs to `training.progress`.
            pub const fn is_progress(self) -> bool {
                match self {
                    $(Self::$t => false,)*
                    $(Self::$p => true,)*
                }
            }

            pub(crate) const fn dimension(self) -> Dimension {
                match self {
                    $(Self::$t => Dimension::$t_dim,)*
                    $(Self::$p => Dimension::$p_dim,)*
                }
            }

            pub(crate) const fn nature(self) -> MetricType {
                match self {
                    $(Self::$t => MetricType::$t_nature,)*
                    $(Self::$p => MetricType::$p_nature,)*
                }
            }

            /// Sets a field of telemetry.
            pub fn set_telemetry(self, event: &mut GpuTelemetry, value: f64) {
                match self {
                    $(Self::$t => event.$t_name = Some(FromNumber::from_number(value)),)*
                    $(Self::$p => debug_assert!(false, "{} is a progress field", stringify!($p_name)),)*
                }
            }

            pub(crate) fn set_progress(self, event: &mut TrainingProgress, value: f64) {
                match self {
                    $(Self::$t => debug_assert!(false, "{} is a telemetry field", stringify!($t_name)),)*
                    $(Self::$p => event.$p_name = Some(FromNumber::from_number(value)),)*
                }
            }
        }
    };
}

fields! {
    telemetry {
        PowerWatts power_watts Power Gauge;
        PowerAverageWatts power_average_watts Power Gauge;
        PowerLimitWatts power_limit_watts Power Gauge;
        EnergyJoulesTotal energy_joules_total Energy Counter;
        UtilizationRatio utilization_ratio Ratio Gauge;
        MemoryUtilizationRatio memory_utilization_ratio Ratio Gauge;
        GraphicsActiveRatio graphics_active_ratio Ratio Gauge;
        SmActiveRatio sm_active_ratio Ratio Gauge;
        SmOccupancyRatio sm_occupancy_ratio Ratio Gauge;
        TensorActiveRatio tensor_active_ratio Ratio Gauge;
        Fp32ActiveRatio fp32_active_ratio Ratio Gauge;
        DramActiveRatio dram_active_ratio Ratio Gauge;
        PcieTransmitBytesPerSecond pcie_transmit_bytes_per_second BytesPerSecond Gauge;
        PcieReceiveBytesPerSecond pcie_receive_bytes_per_second BytesPerSecond Gauge;
        MemoryUsedBytes memory_used_bytes Bytes Gauge;
        MemoryTotalBytes memory_total_bytes Bytes Gauge;
        SmClockMhz sm_clock_mhz Clock Gauge;
        MemoryClockMhz memory_clock_mhz Clock Gauge;
        TemperatureCelsius temperature_celsius Temperature Gauge;
        MemoryTemperatureCelsius memory_temperature_celsius Temperature Gauge;
        Processes processes Count Gauge;
    }
    progress {
        SamplesTotal samples_total Count Counter;
        TokensTotal tokens_total Count Counter;
        StepsTotal steps_total Count Counter;
        SamplesPerSecond samples_per_second Count Gauge;
        TokensPerSecond tokens_per_second Count Gauge;
        Loss loss Count Gauge;
        Epoch epoch Count Counter;
        StepsRemaining steps_remaining Count Counter;
        RemainingSeconds remaining_seconds Duration Gauge;
        GlobalBatchSize global_batch_size Count Counter;
        WorldSize world_size Count Counter;
        OverflowSkipsTotal overflow_skips_total Count Counter;
        GradientNorm gradient_norm Count Gauge;
        MpsThreadPercentage mps_thread_percentage Count Counter;
    }
}

impl ReadingField {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|field| field.name() == name)
    }
}
