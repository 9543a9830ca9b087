use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::{self, MapAccess};
use serde::{Deserialize, Deserializer, Serialize};

/// Scope of a power or energy figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Meter {
    /// One GPU board.
    #[default]
    Gpu,
    /// A module that holds more than the GPU, such as GH200.
    Module,
    /// A whole server, measured inside it.
    Node,
    /// A whole system, measured at the wall.
    Wall,
}

impl Meter {
    /// Returns whether one such thing is one GPU, so that their number is that of the GPUs.
    pub const fn is_of_gpu(self) -> bool {
        matches!(self, Self::Gpu | Self::Module)
    }

    /// Returns the most that one such thing draws, in watts: several times what is built today.
    pub const fn most_watts(self) -> f64 {
        match self {
            Self::Gpu => 5_000.0,
            Self::Module => 10_000.0,
            Self::Node => 200_000.0,
            Self::Wall => 1e7,
        }
    }

    /// Returns whether such a thing can draw this power. A GPU draws some watts whenever it answers, so that 0 W is no reading.
    pub fn can_draw(self, watts: f64) -> bool {
        (0.0..=self.most_watts()).contains(&watts) && !(self == Self::Gpu && watts == 0.0)
    }

    /// Returns the highest power over that of an idle one. Of a whole server fans, processors and memory draw much also when it
    /// is idle.
    pub const fn highest_over_idle(self) -> f64 {
        match self {
            Self::Gpu | Self::Module => 30.0,
            Self::Node | Self::Wall => 15.0,
        }
    }
}

/// Origin of a figure. A combined figure has the weakest one: simulated, then imported, then measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Read from a device by this pipeline.
    #[default]
    Measured,
    /// Imported from a recording of another program.
    Imported,
    /// Computed by the simulator.
    Simulated,
}

/// Kinds of telemetry sources, the preferred first: a driver's own reading comes before an exporter's copy of it. A
/// collector's name begins with its kind, `nvml/node-1`. Kinds that are not listed come last.
pub const SOURCE_KINDS_BY_PREFERENCE: [&str; 1] = ["nvml"];

/// Returns the rank of a collector among several that read the same device in the same way. The least is preferred.
pub fn source_rank(collector: &str) -> usize {
    let kind = collector.split_once('/').map_or(collector, |(kind, _)| kind);
    SOURCE_KINDS_BY_PREFERENCE.iter().position(|known| *known == kind).unwrap_or(SOURCE_KINDS_BY_PREFERENCE.len())
}

/// How the share of a GPU that several workloads use was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum ShareMethod {
    /// Time in which each process used the SMs, as NVML has it: for GPUs shared by time.
    ProcessUtilization,
    /// Activity of each GPU instance, as DCGM's profiling has it: for MIG.
    Profiling,
    /// Thread percentages of MPS clients; the rest of the GPU is attributed to no workload.
    MpsPercentage,
    /// Slices of MIG instances; those of no instance are attributed to no workload.
    MigSlices,
    /// No signal distinguishes the workloads: each has as much as the others.
    #[default]
    Equal,
    /// Given with the assignment of the GPU.
    Assigned,
}

/// Number format in which a training job computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    Fp32,
    /// 32 bits in memory, multiplied with 19: since NVIDIA's Ampere.
    Tf32,
    /// 16 bits, 5 of them exponent: gradients can overflow.
    Fp16,
    /// 16 bits, 8 of them exponent: since NVIDIA's Ampere.
    Bf16,
}

impl Precision {
    /// Returns the name in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns whether a GPU is of Pascal, Volta or Turing, by its product name: without BF16 and TF32. One that is not known is
/// the job's to judge.
pub fn is_older_than_ampere(gpu_model: &str) -> bool {
    const OLDER: [&str; 15] = [
        "P100",
        "P40",
        "P4",
        "V100",
        "T4",
        "GTX",
        "TITAN X",
        "TITAN Xp",
        "TITAN V",
        "TITAN RTX",
        "Quadro RTX",
        "RTX 2060",
        "RTX 2070",
        "RTX 2080",
        "Quadro P",
    ];
    OLDER.iter().any(|older| names_board(gpu_model, older, *older == "Quadro P"))
}

/// Returns whether a GPU multiplies in FP8: Ada, Hopper and Blackwell, by their product names; one that is not known does not.
pub fn computes_fp8(gpu_model: &str) -> bool {
    const NEWER: [&str; 13] =
        ["H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300", "L4", "L40", "L40S"];
    NEWER.iter().any(|newer| names_board(gpu_model, newer, false))
        || ["RTX 40", "RTX 50"].iter().any(|s| names_board(gpu_model, s, true))
}

/// Returns whether a product name has the name of a board as a word, so that `T4` is not in `T400`; `open`: more may follow.
fn names_board(gpu_model: &str, board: &str, open: bool) -> bool {
    gpu_model.match_indices(board).any(|(at, _)| {
        let next = gpu_model[at + board.len()..].chars().next();
        let last = gpu_model[..at].chars().next_back();
        (open || next.is_none_or(|c| !c.is_ascii_alphanumeric())) && last.is_none_or(|c| !c.is_ascii_alphanumeric())
    })
}

/// How a workload is laid out: what the controllers change. Absent knobs are not known or not turned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Layout {
    /// Number of training processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of each process, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_thread_percentage: Option<u32>,
    /// `WORLD_SIZE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// `LOCAL_WORLD_SIZE`: processes that share a GPU, as the seed has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_world_size: Option<u32>,
    /// Power cap of each GPU in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts: Option<f64>,
    /// Upper bound of the SM clock of each GPU in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz: Option<f64>,
    /// Precision that the job was asked to compute in; absent: the one that it was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Number of layers that the job was asked to freeze, counted from the input side; absent: those that it was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
}

impl Layout {
    /// Returns the settings that the job changes by itself on request: neither its object nor a device shows them.
    pub const fn asked_of_job(&self) -> (Option<Precision>, Option<u32>) {
        (self.precision, self.frozen_prefix_layers)
    }
}

/// Reads an object as an object only: by itself serde would also take a list and read it field by field, in the order of
/// declaration.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct StrictObjectVisitor<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for StrictObjectVisitor<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(de::value::MapAccessDeserializer::new(map))
        }
        // No format does this for a map: it is for those who ask a type for its fields.
        fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
            T::deserialize(deserializer)
        }
    }
    deserializer.deserialize_map(StrictObjectVisitor(PhantomData))
}

/// Reads as [`object`].
struct StrictObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object(deserializer).map(Self)
    }
}

/// Like [`object`], for a field that may be absent or null.
pub(super) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<StrictObject<T>>::deserialize(deserializer)?.map(|object| object.0))
}

/// Returns a list whose entries are read as [`object`].
pub(super) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<StrictObject<T>>::deserialize(deserializer)?.into_iter().map(|object| object.0).collect())
}

/// Like [`objects`], for a field that may be absent or null.
pub(super) fn optional_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let list = Option::<Vec<StrictObject<T>>>::deserialize(deserializer)?;
    Ok(list.map(|list| list.into_iter().map(|object| object.0).collect()))
}

/// Reads a map of numbers and refuses a name that occurs twice: which of the two was meant is unknown.
pub(super) fn unique_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    struct UniqueNumbersVisitor;
    impl<'de> de::Visitor<'de> for UniqueNumbersVisitor {
        type Value = BTreeMap<String, f64>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of numbers")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut numbers = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, f64>()? {
                if numbers.insert(name.clone(), value).is_some() {
                    return Err(de::Error::custom(format_args!("duplicate field `{name}`")));
                }
            }
            Ok(numbers)
        }
    }
    deserializer.deserialize_map(UniqueNumbersVisitor)
}
