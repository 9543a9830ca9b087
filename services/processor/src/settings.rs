use std::borrow::Cow;

use eadt_core::FoldSettings;
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::power_budget::allocation::BudgetSettings;
use eadt_core::settings::{SECOND, WINDOW_RULES};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::misplaced_records::MisplacedRecordPolicy;

/// A length of time in seconds, or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OptionalSeconds(pub Option<f64>);

impl Serialize for OptionalSeconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(seconds) => serializer.serialize_f64(seconds),
            None => serializer.serialize_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for OptionalSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecondsVisitor;
        impl serde::de::Visitor<'_> for SecondsVisitor {
            type Value = OptionalSeconds;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of seconds or \"off\"")
            }
            fn visit_f64<E>(self, seconds: f64) -> Result<OptionalSeconds, E> {
                Ok(OptionalSeconds(Some(seconds)))
            }
            fn visit_i64<E>(self, seconds: i64) -> Result<OptionalSeconds, E> {
                Ok(OptionalSeconds(Some(seconds as f64)))
            }
            fn visit_u64<E>(self, seconds: u64) -> Result<OptionalSeconds, E> {
                Ok(OptionalSeconds(Some(seconds as f64)))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OptionalSeconds, E> {
                // The environment knows only texts.
                match text {
                    "off" => Ok(OptionalSeconds(None)),
                    _ => text
                        .parse()
                        .map(|seconds| OptionalSeconds(Some(seconds)))
                        .map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(SecondsVisitor)
    }
}

impl JsonSchema for OptionalSeconds {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Limit".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [{"type": "number"}, {"const": "off"}]})
    }
}

/// How the processor works.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessorSettings {
    /// Prefix of every topic; the program takes it from its topic settings.
    #[serde(skip)]
    #[schemars(skip)]
    pub prefix: String,
    /// Consumer group. Processors of one group share the partitions. Default `processor`.
    pub group: String,
    /// Stable name of this instance within the group; a newer process of the same name fences the older one. Its
    /// `transactional.id` is this name, after the group's name and a hyphen if it does not begin with them. Default
    /// `processor-0`.
    pub instance: String,
    /// Length of the tumbling windows, in seconds. 1 to 86,400. Default 60.
    pub window_seconds: f64,
    /// Version of the rules by which windows are made. 1: `joules_per_sample` leaves downtime out, and energy counters are used
    /// without a comparison with power. 2: downtime is in, and counters are tested. 3: power that no such device can draw is no
    /// reading, and windows in which nothing restarted are marked. 4: a counter that does not move at the start counts from its
    /// first rise on. 5: readings without power between two with it leave no gap. 6: counters are tested also if their own
    /// samples have no power. 7: power counts between two rises of a counter that are further apart than `power_gap_seconds`. A
    /// replay takes the version that the record was made by. 1 to 7. Default 7.
    pub window_rules: u32,
    /// How far an event may lie ahead of the log's stamp, in seconds, before it is a dead letter; `off` where event times are
    /// simulated or imported and have nothing to do with the log's. 0 to 86,400. Default 60.
    pub max_future_seconds: OptionalSeconds,
    /// A source that was silent for so long, in log time, is not waited for, in seconds. 1 to 86,400. Default 120.
    pub idle_grace_seconds: f64,
    /// If two power readings are further apart than this, the power between them is unknown, in seconds. 0.001 to 86,400.
    /// Default 120.
    pub power_gap_seconds: f64,
    /// No window of a workload closes before this long, in log time, after its first event, in seconds. 0 to 3,600.
    /// Default 10.
    pub join_grace_seconds: f64,
    /// A source or workload silent for so long, in log time, is forgotten, in days: the retention of the inputs. 0.01 to
    /// 365. Default 7.
    pub retention_days: f64,
    /// Most workloads in one partition, GPUs without one included; new ones beyond it are refused. Default 5,000.
    pub max_workloads: usize,
    /// Most workloads of one namespace in one partition, and most GPUs without a workload that one collector names; new ones
    /// beyond it are refused. Default: half of `max_workloads`.
    pub max_workloads_per_namespace: Option<usize>,
    /// Most sources (a device or rank seen by a collector) in one partition; new ones beyond it are refused. Default 50,000.
    pub max_sources: usize,
    /// Most sources of one namespace in one partition. Of sources times slices of open windows it may have forty times as many:
    /// events that would make more are refused. Default: half of `max_sources`.
    pub max_sources_per_namespace: Option<usize>,
    /// Most sources of one workload. Default 16,384.
    pub max_sources_per_workload: usize,
    /// Controller of workloads that name none. Default `hybrid`.
    pub controller: ControllerName,
    /// Thresholds and limits of the controllers, for workloads that declare none.
    pub controller_settings: ControllerSettings,
    /// The power budget that the workloads of the controller `power-budget` share; off without `budget_watts`. All processors of
    /// a group need the same.
    pub power_budget: BudgetSettings,
    /// How workloads of the controller `sm-partition` share GPUs; off unless `enabled`. All processors of a group need the same.
    pub gpu_sharing: GpuSharingSettings,
    /// Handling of records that are not in the partition of their key (murmur2, as the JVM clients do):
    /// `process`, folded where they lie, or `dead_letter`, refused. Counted in either case. A replay folds them. Default
    /// `process`.
    pub misplaced_records: MisplacedRecordPolicy,
    /// How long an output waits for company before the commit, in milliseconds of wall time; while a backlog is worked through up
    /// to two hundred times as long, but no longer than 5 s or a twentieth of how late it is anyway. 0 to 1,000. Default 1.
    pub linger_milliseconds: u64,
    /// How long folded records without outputs wait for a commit, in seconds of wall time. 0.01 to 3,600. Default 10.
    pub commit_seconds: f64,
    /// How long dead letters wait for a commit when nothing else is to be written, in seconds of wall time. 0 to 60. Default 1.
    pub dead_letter_seconds: f64,
    /// Records read ahead of the merge, all partitions together, in bytes; beyond it inputs are paused. At least 65,536.
    /// Default 16,777,216.
    pub buffer_bytes: usize,
    /// A heartbeat is appended to a partition that was quiet for so long, in seconds of log time. 0.1 to 20. Default 10.
    pub heartbeat_seconds: f64,
    /// Pause before a failed session begins anew, in seconds of wall time; doubles up to 10. Default 0.2.
    pub retry_seconds: f64,
}

impl Default for ProcessorSettings {
    fn default() -> Self {
        let fold = FoldSettings::default();
        Self {
            prefix: "eadt.".into(),
            group: "processor".into(),
            instance: "processor-0".into(),
            window_seconds: 60.0,
            window_rules: fold.window_rules,
            max_future_seconds: OptionalSeconds(Some(60.0)),
            idle_grace_seconds: 120.0,
            power_gap_seconds: 120.0,
            join_grace_seconds: 10.0,
            retention_days: 7.0,
            max_workloads: fold.max_workloads,
            max_workloads_per_namespace: None,
            max_sources: fold.max_sources,
            max_sources_per_namespace: None,
            max_sources_per_workload: fold.max_sources_per_workload,
            controller: ControllerName::default(),
            controller_settings: ControllerSettings::default(),
            power_budget: BudgetSettings::default(),
            gpu_sharing: GpuSharingSettings::default(),
            misplaced_records: MisplacedRecordPolicy::Process,
            linger_milliseconds: 1,
            commit_seconds: 10.0,
            dead_letter_seconds: 1.0,
            buffer_bytes: 16 << 20,
            heartbeat_seconds: 10.0,
            retry_seconds: 0.2,
        }
    }
}

/// Settings that windows and decisions depend on.
const DECISIVE: [&str; 16] = [
    "window_seconds",
    "window_rules",
    "max_future_seconds",
    "idle_grace_seconds",
    "power_gap_seconds",
    "join_grace_seconds",
    "retention_days",
    "max_workloads",
    "max_workloads_per_namespace",
    "max_sources",
    "max_sources_per_namespace",
    "max_sources_per_workload",
    "controller",
    "controller_settings",
    "power_budget",
    "gpu_sharing",
];

type JsonMap = serde_json::Map<String, serde_json::Value>;

fn json(settings: &ProcessorSettings) -> JsonMap {
    match serde_json::to_value(settings) {
        Ok(serde_json::Value::Object(map)) => map,
        other => unreachable!("settings are a JSON object, not {other:?}"),
    }
}

/// Names in recorded settings that releases before this one wrote.
const FORMER_NAMES: [&str; 2] = ["sm_partition", "turn_min_ratio"];

fn rename_recorded(recorded: &mut JsonMap) {
    let [sharing, ratio] = FORMER_NAMES;
    if let Some(sharing) = recorded.remove(sharing) {
        recorded.insert("gpu_sharing".to_owned(), sharing);
    }
    if let Some(serde_json::Value::Object(budget)) = recorded.get_mut("power_budget")
        && let Some(ratio) = budget.remove(ratio)
    {
        budget.insert("cap_change_min_ratio".to_owned(), ratio);
    }
}

/// Removes the values that equal those of `standard`.
fn remove_defaults(map: &mut JsonMap, standard: &JsonMap) {
    use serde_json::Value::Object;
    map.retain(|name, value| match (value, standard.get(name)) {
        (Object(inner), Some(Object(standard))) => {
            remove_defaults(inner, standard);
            !inner.is_empty()
        }
        (value, standard) => Some(&*value) != standard,
    });
}

/// Puts `upper` over `map`, objects name by name.
fn overlay(map: &mut JsonMap, upper: JsonMap) {
    use serde_json::Value::Object;
    for (name, value) in upper {
        match (map.get_mut(&name), value) {
            (Some(Object(inner)), Object(upper)) => overlay(inner, upper),
            (_, value) => {
                map.insert(name, value);
            }
        }
    }
}

fn micros(seconds: f64) -> i64 {
    (seconds * SECOND as f64).round() as i64
}

impl ProcessorSettings {
    /// Returns the `transactional.id`. It differs between groups: a processor of another group must not fence this one.
    pub fn transactional_id(&self) -> String {
        let Self { group, instance, .. } = self;
        let is_named_after_group = instance.strip_prefix(group.as_str()).is_some_and(|rest| rest.starts_with('-'));
        if is_named_after_group { instance.clone() } else { format!("{group}-{instance}") }
    }

    /// Checks all values; the error is the first that is out of its range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, low, high) in [
            ("window_seconds", self.window_seconds, 1.0, 86_400.0),
            ("max_future_seconds", self.max_future_seconds.0.unwrap_or(0.0), 0.0, 86_400.0),
            ("idle_grace_seconds", self.idle_grace_seconds, 1.0, 86_400.0),
            ("power_gap_seconds", self.power_gap_seconds, 0.001, 86_400.0),
            ("join_grace_seconds", self.join_grace_seconds, 0.0, 3_600.0),
            ("retention_days", self.retention_days, 0.01, 365.0),
            ("linger_milliseconds", self.linger_milliseconds as f64, 0.0, 1_000.0),
            ("commit_seconds", self.commit_seconds, 0.01, 3_600.0),
            ("dead_letter_seconds", self.dead_letter_seconds, 0.0, 60.0),
            ("heartbeat_seconds", self.heartbeat_seconds, 0.1, 20.0),
            ("retry_seconds", self.retry_seconds, 0.001, 10.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("processor.{name} is {value}, but must be within {low} and {high}"));
            }
        }
        if !(1..=WINDOW_RULES).contains(&self.window_rules) {
            return Err(format!("processor.window_rules is {}, but must be within 1 and {WINDOW_RULES}", self.window_rules));
        }
        for (name, value, low) in [
            ("max_workloads", self.max_workloads, 1),
            ("max_workloads_per_namespace", self.max_workloads_per_namespace.unwrap_or(1), 1),
            ("max_sources", self.max_sources, 1),
            ("max_sources_per_namespace", self.max_sources_per_namespace.unwrap_or(1), 1),
            ("max_sources_per_workload", self.max_sources_per_workload, 1),
            ("buffer_bytes", self.buffer_bytes, 65_536),
        ] {
            if value < low {
                return Err(format!("processor.{name} is {value}, but must be at least {low}"));
            }
        }
        if self.group.is_empty() || self.instance.is_empty() {
            return Err("processor.group and processor.instance must not be empty".into());
        }
        self.power_budget.check().map_err(|why| format!("processor.power_budget.{why}"))?;
        // A joint decision uses the windows before it, and needs one window to take effect.
        let least = 2.0 * self.window_seconds;
        for (name, value) in [
            ("silence_seconds", self.power_budget.silence_seconds),
            ("expiry_seconds", self.power_budget.decision_expiry_seconds),
        ] {
            if self.shares_power() && value < least {
                return Err(format!(
                    "processor.power_budget.{name} is {value}, but must be at least two windows (processor.window_seconds), {least}"
                ));
            }
        }
        let sharing = &self.gpu_sharing;
        sharing.check().map_err(|why| format!("processor.gpu_sharing.{why}"))?;
        for (name, value) in [("silence_seconds", sharing.silence_seconds), ("expiry_seconds", sharing.decision_expiry_seconds)] {
            if sharing.enabled && value < least {
                return Err(format!(
                    "processor.gpu_sharing.{name} is {value}, but must be at least two windows (processor.window_seconds), {least}"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether there is a power budget to share, so that its joint stage has something to do.
    pub fn shares_power(&self) -> bool {
        self.power_budget.budget_watts.is_some()
    }

    /// Returns the settings that windows and decisions depend on, as a JSON object for the outputs' headers. Settings of
    /// controllers are included only if they differ from the default: decisions name the version of their controller.
    pub fn recorded_json(&self) -> String {
        let mut mine = json(self);
        mine.retain(|name, _| DECISIVE.contains(&name.as_str()));
        let mut others = json(&Self::default());
        others.retain(|_, value| value.is_object());
        remove_defaults(&mut mine, &others);
        serde_json::Value::Object(mine).to_string()
    }

    /// Returns recorded settings under the names of this release: equal settings of two releases are equal texts.
    pub fn with_present_names(recorded: &str) -> Cow<'_, str> {
        // Each window names its settings, and hardly any has an old name.
        let is_old = FORMER_NAMES.iter().any(|name| recorded.contains(name));
        match is_old.then(|| serde_json::from_str::<JsonMap>(recorded)) {
            Some(Ok(mut names)) => {
                rename_recorded(&mut names);
                Cow::Owned(serde_json::Value::Object(names).to_string())
            }
            _ => Cow::Borrowed(recorded),
        }
    }

    /// Returns the settings that a record's outputs were made with ([`Self::recorded_json`]); those that are not the default here
    /// stay. `Err` if `recorded_json` is not such an object, or has a value that this version does not know; [`Self::check`] has
    /// the ranges. Unknown names are ignored.
    pub fn as_recorded(&self, recorded: &str) -> Result<Self, serde_json::Error> {
        let mut recorded: JsonMap = serde_json::from_str(recorded)?;
        rename_recorded(&mut recorded);
        recorded.retain(|name, _| DECISIVE.contains(&name.as_str()));
        for (all, each) in [("max_workloads", "max_workloads_per_namespace"), ("max_sources", "max_sources_per_namespace")] {
            // Written by a release in which one namespace could take all there is.
            if let (Some(all), None) = (recorded.get(all).cloned(), recorded.get(each)) {
                recorded.insert(each.to_owned(), all);
            }
        }
        // Written by a release that knew only the first.
        recorded.entry("window_rules").or_insert(1.into());
        let mut mine = json(self);
        remove_defaults(&mut mine, &json(&Self::default()));
        overlay(&mut recorded, mine);
        let read: Self = serde_json::from_value(recorded.into())?;
        Ok(Self { prefix: self.prefix.clone(), ..read })
    }

    /// Returns the settings of the fold.
    pub fn fold_settings(&self) -> FoldSettings {
        FoldSettings {
            window: micros(self.window_seconds),
            window_rules: self.window_rules,
            max_future: self.max_future_seconds.0.map(micros),
            idle_grace: Some(micros(self.idle_grace_seconds)),
            power_gap: micros(self.power_gap_seconds),
            join_grace: micros(self.join_grace_seconds),
            retention: micros(self.retention_days * 86_400.0),
            max_workloads: self.max_workloads,
            max_workloads_per_namespace: self.max_workloads_per_namespace.unwrap_or(self.max_workloads.div_ceil(2)),
            max_sources: self.max_sources,
            max_sources_per_namespace: self.max_sources_per_namespace.unwrap_or(self.max_sources.div_ceil(2)),
            max_sources_per_workload: self.max_sources_per_workload,
            controller: self.controller,
            controller_settings: self.controller_settings.clone(),
            power_budget: self.shares_power().then_some(self.power_budget),
            gpu_sharing: self.gpu_sharing.enabled.then(|| self.gpu_sharing.clone()),
            ..FoldSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_two_groups_never_have_one_transactional_id() {
        let id = |group: &str, instance: &str| {
            ProcessorSettings { group: group.to_owned(), instance: instance.to_owned(), ..ProcessorSettings::default() }
                .transactional_id()
        };
        assert_eq!(ProcessorSettings::default().transactional_id(), "processor-0");
        assert_eq!(id("lab.processor", "lab.processor-3"), "lab.processor-3");
        assert_eq!(id("processor-v2", "processor-0"), "processor-v2-processor-0");
        assert_eq!(id("processor", "processor"), "processor-processor");
        assert_eq!(id("p", "processor-0"), "p-processor-0");
    }

    #[test]
    fn what_is_recorded_comes_back_and_what_is_set_goes_before() {
        let standard = ProcessorSettings::default().recorded_json();
        assert!(
            standard.contains("\"window_seconds\":60.0")
                && !standard.contains("controller_settings")
                && !standard.contains("power_budget")
                && !standard.contains("gpu_sharing"),
            "{standard}"
        );
        let mut live =
            ProcessorSettings { window_seconds: 30.0, max_future_seconds: OptionalSeconds(None), ..ProcessorSettings::default() };
        live.controller = "matrix".parse().unwrap();
        live.controller_settings.power_high_watts = 300.0;
        live.power_budget.budget_watts = Some(5_000.0);
        (live.gpu_sharing.enabled, live.gpu_sharing.probe_percentages) = (true, vec![100, 40]);
        // Nothing in the outputs depends on these.
        (live.group, live.buffer_bytes) = ("other".into(), 1 << 20);
        let recorded = live.recorded_json();
        let here = ProcessorSettings { prefix: "x.".into(), ..ProcessorSettings::default() };
        let replayed = here.as_recorded(&recorded).unwrap();
        assert_eq!(replayed.fold_settings(), live.fold_settings(), "{recorded}");
        assert_eq!((&*replayed.prefix, &*replayed.group), ("x.", "processor"));

        // A release before called a group of settings otherwise.
        assert_eq!(here.as_recorded(&recorded.replace("gpu_sharing", "sm_partition")).unwrap(), replayed);
        let mut budgeted = here.clone();
        budgeted.power_budget.cap_change_min_ratio = 0.04;
        let mut other = here.clone();
        other.power_budget.cap_change_min_ratio = 0.05;
        for (mine, expected) in [(&here, &budgeted), (&other, &other)] {
            let recorded = budgeted.recorded_json();
            assert_eq!(mine.as_recorded(&recorded).unwrap().power_budget, expected.power_budget);
            let before = recorded.replace("cap_change_min_ratio", "turn_min_ratio");
            assert_eq!(mine.as_recorded(&before).unwrap().power_budget, expected.power_budget);
        }

        let mut here = ProcessorSettings { window_seconds: 10.0, ..ProcessorSettings::default() };
        here.controller_settings.power_low_watts = 1.0;
        let replayed = here.as_recorded(&recorded).unwrap();
        assert_eq!((replayed.window_seconds, replayed.max_future_seconds), (10.0, OptionalSeconds(None)));
        let settings = &replayed.controller_settings;
        assert_eq!((settings.power_low_watts, settings.power_high_watts), (1.0, 300.0));

        // A release without shares let one namespace take everything, and so does a replay of its record.
        let before = here.as_recorded(r#"{"max_workloads":700,"max_sources":900}"#).unwrap().fold_settings();
        assert_eq!((before.max_workloads_per_namespace, before.max_sources_per_namespace), (700, 900));
        let fold = ProcessorSettings { max_workloads: 7, ..ProcessorSettings::default() }.fold_settings();
        assert_eq!((fold.max_workloads_per_namespace, fold.max_sources_per_namespace), (4, 25_000));

        let long = ProcessorSettings { window_seconds: 600.0, ..live.clone() };
        assert!(long.check().unwrap_err().contains("silence_seconds is 300, but must be at least two windows"));
        let mut odd = live.clone();
        odd.gpu_sharing.probe_percentages = vec![50];
        assert!(odd.check().unwrap_err().starts_with("processor.gpu_sharing.probe_percentages must hold 100"));
        odd.gpu_sharing = GpuSharingSettings { enabled: true, decision_expiry_seconds: 50.0, ..GpuSharingSettings::default() };
        assert!(
            odd.check().unwrap_err().contains("processor.gpu_sharing.expiry_seconds is 50, but must be at least two windows")
        );
        here.power_budget.budget_watts = Some(0.0);
        assert!(here.check().unwrap_err().starts_with("processor.power_budget.budget_watts is 0,"));

        // A release that did not name its rules had the first.
        let named = |recorded: &str| here.as_recorded(recorded).map(|settings| settings.fold_settings().window_rules);
        assert_eq!((named("{}").unwrap(), named(r#"{"window_rules":2}"#).unwrap(), named(&recorded).unwrap()), (1, 2, 7));
        let later = here.as_recorded(r#"{"window_rules":8}"#).unwrap();
        assert_eq!(later.check().unwrap_err(), "processor.window_rules is 8, but must be within 1 and 7");
        // Of a later version: names are passed over, values cannot be.
        assert_eq!(here.as_recorded(r#"{"of_tomorrow":1,"window_rules":7}"#).unwrap(), here);
        assert!(here.as_recorded(r#"{"controller":"of_tomorrow"}"#).is_err());
        assert!(here.as_recorded("").is_err());
    }

    /// A new setting needs a decision: does an output depend on it?
    #[test]
    fn settings_decide_or_are_known_not_to() {
        let others = [
            "group",
            "instance",
            // Refused before the fold; a replay covers folded records only.
            "misplaced_records",
            "linger_milliseconds",
            "commit_seconds",
            "dead_letter_seconds",
            "buffer_bytes",
            "heartbeat_seconds",
            "retry_seconds",
        ];
        let names: Vec<String> = json(&ProcessorSettings::default()).keys().cloned().collect();
        for name in &names {
            assert!(DECISIVE.contains(&name.as_str()) != others.contains(&name.as_str()), "{name}");
        }
        assert_eq!(names.len(), DECISIVE.len() + others.len());
    }

    #[test]
    fn recorded_settings_of_two_releases_are_equal_texts() {
        let settings = ProcessorSettings {
            power_budget: BudgetSettings { budget_watts: Some(3_000.0), cap_change_min_ratio: 0.04, ..BudgetSettings::default() },
            gpu_sharing: GpuSharingSettings { enabled: true, ..GpuSharingSettings::default() },
            ..ProcessorSettings::default()
        };
        let now = settings.recorded_json();
        let before = now.replace("cap_change_min_ratio", "turn_min_ratio").replace("gpu_sharing", "sm_partition");
        assert_ne!(before, now);
        assert_eq!(ProcessorSettings::with_present_names(&before), now);
        assert_eq!(ProcessorSettings::with_present_names(&now), now);
        assert_eq!(ProcessorSettings::with_present_names("turn_min_ratio"), "turn_min_ratio", "no settings");
    }
}
