use std::fmt;
use std::str::FromStr;

use eadt_schemas::EventTime;
use eadt_simulator::Scenario;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Simulated seconds per second: a positive number, or as fast as the host can.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SimulationSpeed {
    Times(f64),
    Max,
}

impl Default for SimulationSpeed {
    fn default() -> Self {
        Self::Times(60.0)
    }
}

impl fmt::Display for SimulationSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(speed) => write!(f, "{speed}"),
            Self::Max => f.write_str("max"),
        }
    }
}

impl FromStr for SimulationSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.parse() {
            Ok(speed) if (0.001..=1e6).contains(&speed) => Ok(Self::Times(speed)),
            _ => Err(format!("{text:?} is no speed: give a number from 0.001 to 1000000 (1 is real time), or max")),
        }
    }
}

impl Serialize for SimulationSpeed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Times(speed) => serializer.serialize_f64(*speed),
            Self::Max => serializer.serialize_str("max"),
        }
    }
}

impl<'de> Deserialize<'de> for SimulationSpeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpeedVisitor;
        impl de::Visitor<'_> for SpeedVisitor {
            type Value = SimulationSpeed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a positive number or \"max\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SimulationSpeed, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, speed: f64) -> Result<SimulationSpeed, E> {
                self.visit_str(&speed.to_string())
            }
            fn visit_i64<E: de::Error>(self, speed: i64) -> Result<SimulationSpeed, E> {
                self.visit_str(&speed.to_string())
            }
            fn visit_u64<E: de::Error>(self, speed: u64) -> Result<SimulationSpeed, E> {
                self.visit_str(&speed.to_string())
            }
        }
        deserializer.deserialize_any(SpeedVisitor)
    }
}

impl JsonSchema for SimulationSpeed {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Speed".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["number", "string"]})
    }
}

/// How the simulation runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorSettings {
    /// Prefix of every topic; the program takes it from its topic settings.
    #[serde(skip)]
    #[schemars(skip)]
    pub prefix: String,
    /// Consumer group. Default `simulator`.
    pub group: String,
    /// Stable name of this instance. Default `simulator-0`.
    pub instance: String,
    /// The scenario, with its seed.
    #[serde(skip)]
    #[schemars(skip)]
    pub scenario: Scenario,
    /// Continue the scenario in the log, if there is one, in place of `scenario`.
    #[serde(skip)]
    #[schemars(skip)]
    pub adopt: bool,
    /// Simulated time at which a new simulation begins, rounded down to a window. Default 2026-01-01T00:00:00Z.
    pub start: EventTime,
    /// Simulated seconds per second, 0.001 to 1,000,000, or `max`. Default 60.
    pub speed: SimulationSpeed,
    /// Ends after so much simulated time from this start, in seconds; absent: never. Ends at the moment of effect of a
    /// window's decisions where it would end between them and the window's close.
    pub duration_seconds: Option<f64>,
    /// Wait for decisions and outcomes at each window. Set it to false if no processor or actuator runs. Default true.
    pub gate: bool,
    /// Length of the processor's windows, in whole seconds. Default 60.
    pub window_seconds: u32,
    /// Decisions of a window take effect so long after its end, in whole seconds of simulated time. 1 up to
    /// `window_seconds`. Default 10.
    pub effect_delay_seconds: u32,
    /// The processor's `idle_grace`, in seconds: a source that was silent so long holds no window open. Default 120.
    pub idle_grace_seconds: f64,
    /// The processor's `join_grace`, in seconds: no window closes sooner after a workload's first event. Default 10.
    pub join_grace_seconds: f64,
}

impl Default for SimulatorSettings {
    fn default() -> Self {
        Self {
            prefix: "eadt.".into(),
            group: "simulator".into(),
            instance: "simulator-0".into(),
            scenario: Scenario::default(),
            adopt: false,
            start: EventTime::from_micros(1_767_225_600_000_000),
            speed: SimulationSpeed::default(),
            duration_seconds: None,
            gate: true,
            window_seconds: 60,
            effect_delay_seconds: 10,
            idle_grace_seconds: 120.0,
            join_grace_seconds: 10.0,
        }
    }
}

impl SimulatorSettings {
    /// Checks the settings; the error is the first fault.
    pub fn check(&self) -> Result<(), String> {
        self.scenario.check().map_err(|error| error.to_string())?;
        if self.group.is_empty() || self.instance.is_empty() {
            return Err("simulator.group and simulator.instance must not be empty".into());
        }
        for (name, value, low, high) in [
            ("window_seconds", f64::from(self.window_seconds), 1.0, 86_400.0),
            ("effect_delay_seconds", f64::from(self.effect_delay_seconds), 1.0, f64::from(self.window_seconds)),
            ("idle_grace_seconds", self.idle_grace_seconds, 1.0, 86_400.0),
            ("join_grace_seconds", self.join_grace_seconds, 0.0, 86_400.0),
            ("duration_seconds", self.duration_seconds.unwrap_or(1.0), 0.001, 1e10),
        ] {
            if name == "effect_delay_seconds" && value > high {
                return Err(format!(
                    "simulator.effect_delay_seconds is {value}, but a window has {high} s (processor.window_seconds), and decisions must take effect before the next one ends: set a shorter delay"
                ));
            }
            if !(low..=high).contains(&value) {
                return Err(format!("simulator.{name} is {value}, but must be within {low} and {high}"));
            }
        }
        let delay = f64::from(self.effect_delay_seconds);
        if self.gate && delay <= self.scenario.sample_interval_seconds {
            return Err("simulator.effect_delay_seconds must be longer than the scenario's sample interval, else no sample after a window's edge would close it".into());
        }
        // The first window must be able to close before its decisions are waited for.
        if self.gate && f64::from(self.window_seconds) + delay <= self.join_grace_seconds + self.scenario.sample_interval_seconds
        {
            return Err("simulator.window_seconds plus effect_delay_seconds must be longer than join_grace_seconds, else the first window could never close".into());
        }
        Ok(())
    }

    pub(crate) fn aligned_start(&self) -> EventTime {
        let window = i64::from(self.window_seconds) * 1_000_000;
        EventTime::from_micros(self.start.micros().div_euclid(window) * window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_a_positive_number_or_max() {
        assert_eq!(serde_json::from_str::<SimulationSpeed>("60").unwrap(), SimulationSpeed::Times(60.0));
        assert_eq!(serde_json::from_str::<SimulationSpeed>("0.5").unwrap(), SimulationSpeed::Times(0.5));
        assert_eq!(serde_json::from_str::<SimulationSpeed>("\"max\"").unwrap(), SimulationSpeed::Max);
        for wrong in ["0", "-1", "\"fast\"", "1e300"] {
            assert!(serde_json::from_str::<SimulationSpeed>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_that_would_wait_for_ever_are_refused() {
        assert_eq!(SimulatorSettings::default().check(), Ok(()));
        let waits = SimulatorSettings { window_seconds: 5, effect_delay_seconds: 5, ..SimulatorSettings::default() };
        assert!(waits.check().unwrap_err().contains("join_grace_seconds"));
        let no_sample = SimulatorSettings { effect_delay_seconds: 1, ..SimulatorSettings::default() };
        assert!(no_sample.check().unwrap_err().contains("sample interval"));
        let long = SimulatorSettings { effect_delay_seconds: 61, ..SimulatorSettings::default() };
        let refusal = long.check().unwrap_err();
        assert!(refusal.contains("effect_delay_seconds is 61") && refusal.contains("processor.window_seconds"), "{refusal}");
        assert_eq!(SimulatorSettings { gate: false, effect_delay_seconds: 1, ..SimulatorSettings::default() }.check(), Ok(()));
    }
}
