//! Decoding of bytes to a checked event. Unknown fields are ignored; known fields with impossible values are refused.

use serde::de::DeserializeOwned;

use crate::v1::{
    Actuation, DeadLetterReason, Decision, DeviceHolders, DeviceIntent, DeviceState, Directive, EfficiencyWindow, GpuTelemetry,
    Layout, LayoutBounds, Model, TrainingProgress, Workload,
};
use crate::{EventTime, fast};

/// The reason why a record was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct DecodeError {
    pub reason: DeadLetterReason,
    /// The field to blame, if there is one.
    pub field: Option<&'static str>,
    /// Text for the sender.
    pub detail: String,
}

impl DecodeError {
    pub fn invalid(field: &'static str, detail: impl std::fmt::Display) -> Self {
        let detail = clip(format!("field {field}: {detail}"));
        Self { reason: DeadLetterReason::InvalidValue, field: Some(field), detail }
    }

    fn malformed(detail: impl std::fmt::Display) -> Self {
        Self { reason: DeadLetterReason::Malformed, field: None, detail: clip(detail.to_string()) }
    }
}

/// A parser may repeat the offending text, however long; both ends are enough.
fn clip(text: String) -> String {
    const END: usize = 200;
    if text.len() <= 2 * END + 5 {
        return text;
    }
    let (head, tail) = (text.floor_char_boundary(END), text.ceil_char_boundary(text.len() - END));
    format!("{} … {}", &text[..head], &text[tail..])
}

/// An event type that knows which values are possible.
pub trait DecodableEvent: DeserializeOwned + Default {
    /// Refuses impossible values: NaN, negative power, empty names.
    fn check(&self) -> Result<(), DecodeError>;

    /// Reads the form in which EADT itself writes the event, if a measurement shows that this pays. `None` for another form, which
    /// the general parser reads; of this event anything may be overwritten then.
    #[doc(hidden)]
    fn decode_fast(&mut self, value: &[u8]) -> Option<()> {
        let _ = value;
        None
    }

    /// Like [`Self::check`], for an event that [`Self::decode_fast`] has read: its texts are printable ASCII.
    #[doc(hidden)]
    fn check_plain(&self) -> Result<(), DecodeError> {
        self.check()
    }
}

/// Longest accepted name (workload, device, collector, node) in bytes.
pub const MAX_NAME_BYTES: usize = 253;
/// Longest accepted id (of a window, a decision, an actuation) in bytes. Ids are made of names: of this workload, that span, this
/// controller, and of a moment and words of ours. Whatever the names are, the id that is made of them must be one.
pub const MAX_ID_BYTES: usize = 1024;
/// The most names in one id, and room for a moment, a kind, an outcome and what divides them.
const NAMES_IN_ID: usize = 3;
const WORDS_IN_ID: usize = 128;
const _: () = assert!(NAMES_IN_ID * MAX_NAME_BYTES + WORDS_IN_ID <= MAX_ID_BYTES);
/// Longest accepted value in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Decodes and checks one event.
pub fn decode<T: DecodableEvent>(value: &[u8]) -> Result<T, DecodeError> {
    let mut event = T::default();
    decode_into(&mut event, value).map(|()| event)
}

/// Like [`decode`], into an event that is no longer needed: the memory of its texts is reused. After an error the event is not
/// valid.
pub fn decode_into<T: DecodableEvent>(event: &mut T, value: &[u8]) -> Result<(), DecodeError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(DecodeError::malformed(format_args!("value of {} bytes is longer than {MAX_VALUE_BYTES}", value.len())));
    }
    if event.decode_fast(value).is_some() {
        return event.check_plain();
    }
    // A list would be read field by field in the order of declaration, which is never intended.
    if value.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(DecodeError::malformed("not a JSON object"));
    }
    *event = serde_json::from_slice(value).map_err(|error| DecodeError::malformed(format_args!("not a valid event: {error}")))?;
    event.check()
}

/// Checks a name where it enters: settings, scenarios, files. Events check their own.
pub fn name(field: &'static str, text: &str) -> Result<(), DecodeError> {
    at_most(field, text, MAX_NAME_BYTES)
}

/// Checks an id of EADT: of an event, and wherever one is repeated, also in what jobs send back.
fn id(field: &'static str, text: &str) -> Result<(), DecodeError> {
    at_most(field, text, MAX_ID_BYTES)
}

fn optional_id(field: &'static str, value: Option<&str>) -> Result<(), DecodeError> {
    optional_id_of::<false>(field, value)
}

/// Checks an id, if there is one. `PLAIN`: its text is known to be printable ASCII.
#[inline]
fn optional_id_of<const PLAIN: bool>(field: &'static str, value: Option<&str>) -> Result<(), DecodeError> {
    match value.filter(|text| !text.is_empty()) {
        Some(text) if PLAIN => length(field, text, MAX_ID_BYTES),
        Some(text) => id(field, text),
        None => Ok(()),
    }
}

/// Checks how long a text is.
#[inline]
fn length(field: &'static str, text: &str, bytes: usize) -> Result<(), DecodeError> {
    if (1..=bytes).contains(&text.len()) { Ok(()) } else { Err(wrong_length(field, text, bytes)) }
}

#[cold]
fn wrong_length(field: &'static str, text: &str, bytes: usize) -> DecodeError {
    if text.is_empty() {
        return DecodeError::invalid(field, "missing or empty");
    }
    DecodeError::invalid(field, format_args!("{} bytes, at most {bytes} are allowed", text.len()))
}

fn at_most(field: &'static str, text: &str, bytes: usize) -> Result<(), DecodeError> {
    length(field, text, bytes)?;
    // Most names are ASCII, for which this takes them several bytes at a time.
    let odd = text.bytes().fold(0, |odd, byte| odd | u8::from(!(b' '..=b'~').contains(&byte)));
    if odd != 0 && text.chars().any(char::is_control) {
        return Err(DecodeError::invalid(field, "contains a control character"));
    }
    Ok(())
}

fn text(field: &'static str, value: Option<&str>) -> Result<(), DecodeError> {
    text_of::<false>(field, value)
}

/// Checks a name of an event. `PLAIN`: its texts are known to be printable ASCII.
#[inline]
fn name_of<const PLAIN: bool>(field: &'static str, text: &str) -> Result<(), DecodeError> {
    if PLAIN { length(field, text, MAX_NAME_BYTES) } else { name(field, text) }
}

#[inline]
fn text_of<const PLAIN: bool>(field: &'static str, value: Option<&str>) -> Result<(), DecodeError> {
    value.filter(|text| !text.is_empty()).map_or(Ok(()), |text| name_of::<PLAIN>(field, text))
}

/// Checks a workload's name, `namespace/name`, as [`name`] does.
pub fn workload(text: &str) -> Result<(), DecodeError> {
    workload_of::<false>(text)
}

fn workload_of<const PLAIN: bool>(text: &str) -> Result<(), DecodeError> {
    name_of::<PLAIN>("workload", text)?;
    let slashes = text.bytes().filter(|byte| *byte == b'/').count();
    if slashes == 1 && !text.starts_with('/') && !text.ends_with('/') {
        return Ok(());
    }
    Err(DecodeError::invalid("workload", format_args!("{text:?} is not namespace/name")))
}

fn time(field: &'static str, time: EventTime) -> Result<(), DecodeError> {
    if time == EventTime::missing() { Err(DecodeError::invalid(field, "missing")) } else { Ok(()) }
}

#[inline]
fn within(field: &'static str, value: Option<f64>, low: f64, high: f64) -> Result<(), DecodeError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => Err(outside(field, value, low, high)),
        _ => Ok(()),
    }
}

#[cold]
fn outside(field: &'static str, value: f64, low: f64, high: f64) -> DecodeError {
    let shown = short_number(value);
    if high < f64::MAX {
        return DecodeError::invalid(field, format_args!("{shown} is not between {low} and {high}"));
    }
    // A limit of the type itself is not named: it is no limit that a user could look up.
    if value.is_finite() && value < low {
        return DecodeError::invalid(field, format_args!("{shown} is less than {low}"));
    }
    DecodeError::invalid(field, format_args!("{shown} is not a finite number"))
}

/// Returns a number in few characters: with an exponent if it has many digits.
fn short_number(value: f64) -> String {
    if value == 0.0 || (1e-7..1e21).contains(&value.abs()) { value.to_string() } else { format!("{value:e}") }
}

const MAX_COUNTER: f64 = 1e18;
/// One device of any meter: a rack draws less than 10 MW.
const MAX_WATTS: f64 = 1e7;
const MAX_MHZ: f64 = 1e5;

/// Longest list that a job may report.
const MAX_LIST: usize = 4096;

fn list<T>(field: &'static str, entries: Option<&[T]>) -> Result<(), DecodeError> {
    match entries {
        Some(entries) if entries.len() > MAX_LIST => {
            Err(DecodeError::invalid(field, format_args!("{} entries, at most {MAX_LIST} are allowed", entries.len())))
        }
        _ => Ok(()),
    }
}

fn percentage(field: &'static str, value: Option<u32>) -> Result<(), DecodeError> {
    match value {
        Some(value) if !(1..=100).contains(&value) => {
            Err(DecodeError::invalid(field, format_args!("{value} is not between 1 and 100")))
        }
        _ => Ok(()),
    }
}

impl DecodableEvent for GpuTelemetry {
    fn decode_fast(&mut self, value: &[u8]) -> Option<()> {
        fast::gpu_telemetry(self, value)
    }

    fn check(&self) -> Result<(), DecodeError> {
        self.check_texts::<false>()
    }

    fn check_plain(&self) -> Result<(), DecodeError> {
        self.check_texts::<true>()
    }
}

impl GpuTelemetry {
    fn check_texts<const PLAIN: bool>(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        if let Some(name) = &self.workload {
            workload_of::<PLAIN>(name)?;
        }
        name_of::<PLAIN>("device", &self.device)?;
        name_of::<PLAIN>("collector", &self.collector)?;
        text_of::<PLAIN>("node", self.node.as_deref())?;
        text_of::<PLAIN>("gpu_model", self.gpu_model.as_deref())?;
        text_of::<PLAIN>("throttle_reasons", self.throttle_reasons.as_deref())?;
        within("share", self.share, 0.0, 1.0)?;
        within("power_watts", self.power_watts, 0.0, MAX_WATTS)?;
        within("power_average_watts", self.power_average_watts, 0.0, MAX_WATTS)?;
        within("power_limit_watts", self.power_limit_watts, 0.0, MAX_WATTS)?;
        within("energy_joules_total", self.energy_joules_total, 0.0, MAX_COUNTER)?;
        for (field, value) in [
            ("utilization_ratio", self.utilization_ratio),
            ("memory_utilization_ratio", self.memory_utilization_ratio),
            ("graphics_active_ratio", self.graphics_active_ratio),
            ("sm_active_ratio", self.sm_active_ratio),
            ("sm_occupancy_ratio", self.sm_occupancy_ratio),
            ("tensor_active_ratio", self.tensor_active_ratio),
            ("fp32_active_ratio", self.fp32_active_ratio),
            ("dram_active_ratio", self.dram_active_ratio),
        ] {
            // Profiling counters overshoot 1 by rounding.
            within(field, value, 0.0, 1.05)?;
        }
        within("pcie_transmit_bytes_per_second", self.pcie_transmit_bytes_per_second, 0.0, 1e15)?;
        within("pcie_receive_bytes_per_second", self.pcie_receive_bytes_per_second, 0.0, 1e15)?;
        within("sm_clock_mhz", self.sm_clock_mhz, 0.0, MAX_MHZ)?;
        within("memory_clock_mhz", self.memory_clock_mhz, 0.0, MAX_MHZ)?;
        within("temperature_celsius", self.temperature_celsius, -100.0, 300.0)?;
        within("memory_temperature_celsius", self.memory_temperature_celsius, -100.0, 300.0)
    }
}

impl DecodableEvent for TrainingProgress {
    fn decode_fast(&mut self, value: &[u8]) -> Option<()> {
        fast::training_progress(self, value)
    }

    fn check(&self) -> Result<(), DecodeError> {
        self.check_texts::<false>()
    }

    fn check_plain(&self) -> Result<(), DecodeError> {
        self.check_texts::<true>()
    }
}

impl TrainingProgress {
    fn check_texts<const PLAIN: bool>(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        workload_of::<PLAIN>(&self.workload)?;
        name_of::<PLAIN>("collector", &self.collector)?;
        text_of::<PLAIN>("span", self.span.as_deref())?;
        text_of::<PLAIN>("backend", self.backend.as_deref())?;
        text_of::<PLAIN>("precision", self.precision.as_deref())?;
        for (field, value) in [
            ("samples_total", self.samples_total),
            ("tokens_total", self.tokens_total),
            ("steps_total", self.steps_total),
            ("steps_remaining", self.steps_remaining),
            ("overflow_skips_total", self.overflow_skips_total),
            ("remaining_seconds", self.remaining_seconds),
        ] {
            within(field, value, 0.0, MAX_COUNTER)?;
        }
        within("samples_per_second", self.samples_per_second, 0.0, 1e12)?;
        within("tokens_per_second", self.tokens_per_second, 0.0, 1e15)?;
        within("epoch", self.epoch, 0.0, 1e9)?;
        within("gradient_norm", self.gradient_norm, 0.0, f64::MAX)?;
        within("loss", self.loss, f64::MIN, f64::MAX)?;
        within("validation_loss", self.validation_loss, f64::MIN, f64::MAX)?;
        within("learning_rate", self.learning_rate, 0.0, f64::MAX)?;
        within("loss_scale", self.loss_scale, 0.0, f64::MAX)?;
        list("plasticity", self.plasticity.as_deref())?;
        for value in self.plasticity.iter().flatten() {
            within("plasticity", *value, 0.0, f64::MAX)?;
        }
        list("live_knobs", self.live_knobs.as_deref())?;
        optional_id_of::<PLAIN>("decision_id", self.decision_id.as_deref())?;
        text_of::<PLAIN>("directive_refused", self.directive_refused.as_deref())?;
        percentage("mps_thread_percentage", self.mps_thread_percentage)
    }
}

fn layout(layout: &Layout) -> Result<(), DecodeError> {
    percentage("layout.mps_thread_percentage", layout.mps_thread_percentage)?;
    within("layout.power_limit_watts", layout.power_limit_watts, 0.0, MAX_WATTS)?;
    within("layout.sm_clock_mhz", layout.sm_clock_mhz, 0.0, MAX_MHZ)
}

fn bounds(bounds: &LayoutBounds) -> Result<(), DecodeError> {
    percentage("bounds.mps_thread_percentage_min", bounds.mps_thread_percentage_min)?;
    percentage("bounds.mps_thread_percentage_max", bounds.mps_thread_percentage_max)?;
    within("bounds.power_limit_watts_min", bounds.power_limit_watts_min, 0.0, MAX_WATTS)?;
    within("bounds.power_limit_watts_max", bounds.power_limit_watts_max, 0.0, MAX_WATTS)?;
    within("bounds.sm_clock_mhz_min", bounds.sm_clock_mhz_min, 0.0, MAX_MHZ)?;
    within("bounds.sm_clock_mhz_max", bounds.sm_clock_mhz_max, 0.0, MAX_MHZ)
}

impl DecodableEvent for Workload {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        workload(&self.workload)?;
        text("kind", Some(&self.kind))?;
        text("mode_set_by", self.mode_set_by.as_deref())?;
        text("pause_set_by", self.pause_set_by.as_deref())?;
        text("controller", self.controller.as_deref())?;
        text("gpu_model", self.gpu_model.as_deref())?;
        text("backend", self.backend.as_deref())?;
        layout(&self.layout)?;
        bounds(&self.bounds)?;
        within("gpu_power_limit_watts", self.gpu_power_limit_watts, 0.0, MAX_WATTS)?;
        within("price_per_kwh", self.price_per_kwh, -1e6, 1e6)?;
        within("carbon_grams_per_kwh", self.carbon_grams_per_kwh, 0.0, 1e5)
    }
}

impl DecodableEvent for EfficiencyWindow {
    fn check(&self) -> Result<(), DecodeError> {
        id("id", &self.id)?;
        name("workload", &self.workload)?;
        text("span", self.span.as_deref())?;
        time("window_start", self.window_start)?;
        time("window_end", self.window_end)?;
        if self.window_end <= self.window_start {
            return Err(DecodeError::invalid("window_end", "not after window_start"));
        }
        self.layout.as_ref().map_or(Ok(()), layout)
    }
}

impl DecodableEvent for Decision {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        id("id", &self.id)?;
        workload(&self.workload)?;
        text("controller", Some(&self.controller))?;
        layout(&self.from)?;
        layout(&self.to)
    }
}

impl DecodableEvent for Actuation {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        id("id", &self.id)?;
        id("decision_id", &self.decision_id)?;
        workload(&self.workload)?;
        within("downtime_seconds", self.downtime_seconds, 0.0, MAX_COUNTER)?;
        layout(&self.layout)
    }
}

impl DecodableEvent for Directive {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        workload(&self.workload)?;
        id("decision_id", &self.decision_id)?;
        text("precision", self.precision.as_deref())
    }
}

impl DecodableEvent for DeviceIntent {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        name("node", &self.node)?;
        id("decision_id", &self.decision_id)?;
        text("device", self.device.as_deref())?;
        within("power_limit_watts", self.power_limit_watts, 0.0, MAX_WATTS)?;
        within("sm_clock_mhz", self.sm_clock_mhz, 0.0, MAX_MHZ)?;
        percentage("mps_default_thread_percentage", self.mps_default_thread_percentage)?;
        for setting in self.devices.iter().flatten() {
            text("devices.device", setting.device.as_deref())?;
            optional_id("devices.decision_id", setting.decision_id.as_deref())?;
            setting.workload.as_deref().map_or(Ok(()), workload)?;
            within("devices.power_limit_watts", setting.power_limit_watts, 0.0, MAX_WATTS)?;
            within("devices.sm_clock_mhz", setting.sm_clock_mhz, 0.0, MAX_MHZ)?;
        }
        for tenant in self.mps_tenants.iter().flatten() {
            workload(&tenant.workload)?;
        }
        // A device is given back in the end: at most after a year.
        if self.time_to_live_seconds <= 0.0 {
            return Err(DecodeError::invalid("time_to_live_seconds", "missing or not above 0"));
        }
        within("time_to_live_seconds", Some(self.time_to_live_seconds), 0.0, 31_536_000.0)
    }
}

impl DecodableEvent for DeviceState {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        name("node", &self.node)?;
        text("agent_version", Some(&self.agent_version))?;
        optional_id("decision_id", self.decision_id.as_deref())?;
        percentage("mps_default_thread_percentage", self.mps_default_thread_percentage)?;
        percentage("original_mps_default_thread_percentage", self.original_mps_default_thread_percentage)?;
        for device in &self.devices {
            name("devices.device", &device.device)?;
            text("devices.gpu_model", device.gpu_model.as_deref())?;
            optional_id("devices.decision_id", device.decision_id.as_deref())?;
            within("devices.power_limit_watts", device.power_limit_watts, 0.0, MAX_WATTS)?;
            within("devices.original_power_limit_watts", device.original_power_limit_watts, 0.0, MAX_WATTS)?;
            within("devices.power_limit_watts_min", device.power_limit_watts_min, 0.0, MAX_WATTS)?;
            within("devices.power_limit_watts_max", device.power_limit_watts_max, 0.0, MAX_WATTS)?;
            within("devices.default_power_limit_watts", device.default_power_limit_watts, 0.0, MAX_WATTS)?;
            within("devices.sm_clock_mhz", device.sm_clock_mhz, 0.0, MAX_MHZ)?;
            within("devices.sm_clock_mhz_min", device.sm_clock_mhz_min, 0.0, MAX_MHZ)?;
            within("devices.sm_clock_mhz_max", device.sm_clock_mhz_max, 0.0, MAX_MHZ)?;
        }
        Ok(())
    }
}

impl DecodableEvent for DeviceHolders {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        name("node", &self.node)?;
        for device in &self.devices {
            name("devices.device", &device.device)?;
            within("devices.default_power_limit_watts", device.default_power_limit_watts, 0.0, MAX_WATTS)?;
        }
        for pod in self.devices.iter().flat_map(|device| &device.pods).chain(&self.unplaced) {
            name("namespace", &pod.namespace)?;
            name("name", &pod.name)?;
            if let Some(name) = &pod.workload {
                workload(name)?;
            }
        }
        Ok(())
    }
}

impl DecodableEvent for Model {
    fn check(&self) -> Result<(), DecodeError> {
        time("time", self.time)?;
        name("name", &self.name)?;
        name("version", &self.version)
    }
}
