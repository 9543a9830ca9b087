//! `eadt training-config`: a `training_config.yaml` as a policy and as settings of the package.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use eadt_service::files;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use crate::output::print;
use crate::settings::{find_unknown_key, resolve};

#[derive(Debug, Args)]
pub struct TrainingConfigArgs {
    /// The file: sections `training`, `deepspeed` and `mps`.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Namespace of the policy.
    #[arg(long, default_value = "default", value_parser = label)]
    pub namespace: String,
    /// Name of the workload that the policy is for.
    #[arg(long, default_value = "llm-training", value_parser = subdomain)]
    pub name: String,
    /// Kind of the workload.
    #[arg(long, default_value = "StatefulSet", value_parser = ["StatefulSet", "Deployment"])]
    pub kind: String,
    /// GPUs of the workload: with it `mps.shared_resources` gives the number of processes, and that the global batch.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: Option<u32>,
    /// Blocks of the model, such as 24 of Pythia 410M: with it `training.dynamic_layer_freezing` may freeze up to half of them.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..))]
    pub layers: Option<u32>,
    /// What each key means, the policy, and what it sets elsewhere, as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Returns a name as Kubernetes has it for a namespace (RFC 1123, a label).
fn label(text: &str) -> Result<String, String> {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    if (1..=63).contains(&text.len()) && text.chars().all(inside) && ends {
        return Ok(text.to_owned());
    }
    Err("Kubernetes takes at most 63 lower-case letters, digits and -, neither first nor last a -".to_owned())
}

/// Returns a name as Kubernetes has it for a workload: labels with dots between them.
fn subdomain(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(|part| label(part).is_ok()) {
        return Ok(text.to_owned());
    }
    Err("Kubernetes takes at most 253 lower-case letters, digits, - and ., each part between dots begun and ended by a letter or digit"
        .to_owned())
}

/// The file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct TrainingConfigFile {
    training: TrainingSection,
    deepspeed: DeepSpeedSection,
    mps: MpsSection,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct TrainingSection {
    model_name_or_path: Option<String>,
    dataset_name: Option<String>,
    per_device_train_batch_size: Option<u32>,
    gradient_accumulation_steps: Option<u32>,
    energy_monitoring_interval: Option<f64>,
    energy_efficiency_threshold: Option<f64>,
    adaptive_precision: Option<bool>,
    dynamic_layer_freezing: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct DeepSpeedSection {
    /// Read by the library, whatever it holds.
    #[schemars(with = "Map<String, Value>")]
    zero_optimization: Option<Map<String, Value>>,
    adaptive_training: Option<AdaptiveSection>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct AdaptiveSection {
    enabled: Option<bool>,
    energy_threshold_high: Option<f64>,
    energy_threshold_low: Option<f64>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct MpsSection {
    enabled: Option<bool>,
    initial_thread_percentage: Option<u32>,
    shared_resources: Option<u32>,
}

/// Translation of one key of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct KeyTranslation {
    key: String,
    value: Value,
    /// It changes something: a field of the policy, a setting or a variable.
    applies: bool,
    /// Meaning of the key, or the reason why it has none.
    meaning: String,
}

/// Translation of a file.
#[derive(Debug, Default, Serialize)]
struct ConfigTranslation {
    /// Each key, in the order of the sections.
    keys: Vec<KeyTranslation>,
    policy: Value,
    /// Settings of this program, by their names in the settings file.
    settings: Map<String, Value>,
    /// Arguments of the package, as `eadt.job` and its neighbours take them.
    package: Map<String, Value>,
    /// Fields of the workload that the policy does not set.
    workload: Map<String, Value>,
}

/// Prints the translation of a `training_config.yaml`: a policy, and the effect of each key.
pub fn print_translation(args: &TrainingConfigArgs) -> anyhow::Result<()> {
    let text = files::read_text(&args.file, files::TEXT_BYTES).with_context(|| format!("cannot read {}", args.file.display()))?;
    let found = translate(&args.file, &text, args)?;
    if args.json {
        return print(&(serde_json::to_string_pretty(&found)? + "\n"));
    }
    let mut out = String::new();
    for effect in &found.keys {
        let mark = if effect.applies { "" } else { "no effect: " };
        // A comment ends with its line, so text from the file must stay within it.
        writeln!(out, "# {}: {}  → {mark}{}", eadt_service::redact::escape_line(&effect.key), effect.value, effect.meaning)?;
    }
    out += &serde_saphyr::to_string(&found.policy).context("cannot write the policy")?;
    print(&out)
}

/// Reads the file's text, and the keys that are not ours but `DeepSpeed`'s.
fn read(file: &Path, text: &str) -> anyhow::Result<(TrainingConfigFile, Map<String, Value>)> {
    const OURS: [&str; 2] = ["zero_optimization", "adaptive_training"];
    let name = file.display();
    let mut tree: Value = match serde_saphyr::from_str(text) {
        Ok(tree) => tree,
        Err(error) => bail!("cannot read {name}: {}", describe_yaml_error(&error)),
    };
    let Some(sections) = tree.as_object_mut() else {
        bail!("{name} has no sections: it begins with `training:`, `deepspeed:` or `mps:`");
    };
    // A section without keys, `mps:`, sets nothing.
    sections.retain(|_, section| !section.is_null());
    let mut foreign = Map::new();
    let mut known = tree.clone();
    // DeepSpeed's own keys are its own; one that is nearly a key of ours is a slip.
    if let Some(deepspeed) = known.get_mut("deepspeed").and_then(Value::as_object_mut) {
        for (key, value) in std::mem::take(deepspeed) {
            if OURS.iter().any(|ours| strsim::damerau_levenshtein(&key, ours) <= 3) {
                deepspeed.insert(key, value);
            } else {
                foreign.insert(key, value);
            }
        }
    }
    if let Some(key) = foreign.keys().find(|key| key.chars().any(char::is_control)) {
        bail!("{name} has the key {key:?} in deepspeed: a key is one line of text");
    }
    let schema = schemars::schema_for!(TrainingConfigFile);
    if let Some((key, advice)) = find_unknown_key(&known, schema.as_value()) {
        bail!("there is no {key} in {name}: {advice}");
    }
    if let Some((key, value, expected)) = first_misfit(&known, schema.as_value(), schema.as_value(), "") {
        bail!("{key} is {value} in {name}: it must be {expected}");
    }
    let document = serde_json::from_value(tree).with_context(|| format!("{name} is not valid"))?;
    Ok((document, foreign))
}

/// Returns the text of a YAML error, with its place.
fn describe_yaml_error(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let text: Cow<'_, str> = match error {
        serde_saphyr::Error::MultipleDocuments { .. } => "a second document begins here: keep one".into(),
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key {key} comes twice").into(),
        serde_saphyr::Error::DuplicateMappingKey { .. } => "a key comes twice".into(),
        _ => UserMessageFormatter.format_message(error),
    };
    let text = eadt_service::redact::escape_line(&text);
    match error.location() {
        Some(at) => format!("line {}, column {}: {text}", at.line(), at.column()),
        None => text.to_string(),
    }
}

/// Longest value that an error repeats, in characters.
const SHOWN_CHARS: usize = 60;

/// Returns the key of the first value of another kind than the key has, the value, and the kind that it has. `root`: the schema
/// of the file; `schema`: the part of it for `tree`, which is at `path`.
fn first_misfit(tree: &Value, root: &Value, schema: &Value, path: &str) -> Option<(String, String, &'static str)> {
    let schema = resolve(root, schema);
    if let (Some(properties), Value::Object(map)) = (schema.get("properties").and_then(Value::as_object), tree) {
        return map.iter().find_map(|(name, child)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            first_misfit(child, root, properties.get(name)?, &path)
        });
    }
    let kind = match schema.get("type")? {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null")?.as_str()?,
        kind => kind.as_str()?,
    };
    let (fits, expected) = match kind {
        "object" => (tree.is_object(), "a section with keys of its own"),
        "integer" => (tree.as_u64().is_some_and(|number| u32::try_from(number).is_ok()), "a whole number from 0"),
        "number" => (tree.is_number(), "a number"),
        "boolean" => (tree.is_boolean(), "true or false"),
        "string" => (tree.is_string(), "a text: put it in quotes"),
        _ => (true, ""),
    };
    // A key without a value sets nothing.
    if fits || tree.is_null() {
        return None;
    }
    let value = match tree {
        Value::Object(_) => "a section".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        value => value.to_string().chars().take(SHOWN_CHARS).collect(),
    };
    Some((path.to_owned(), value, expected))
}

/// Refuses a number that the policy, the settings or the workload could not carry.
fn check_range(file: &Path, key: &str, value: Option<f64>, range: RangeInclusive<f64>) -> anyhow::Result<()> {
    match value.filter(|value| !range.contains(value)) {
        Some(value) => bail!("{key} is {value} in {}: it must be within {} and {}", file.display(), range.start(), range.end()),
        None => Ok(()),
    }
}

/// Returns the translation of each key, and the policy of all of them.
fn translate(file: &Path, text: &str, args: &TrainingConfigArgs) -> anyhow::Result<ConfigTranslation> {
    let (TrainingConfigFile { training, deepspeed, mps }, foreign) = read(file, text)?;
    let count = |value: Option<u32>| value.map(f64::from);
    for (key, value, range) in [
        ("training.per_device_train_batch_size", count(training.per_device_train_batch_size), 1.0..=1e9),
        ("training.gradient_accumulation_steps", count(training.gradient_accumulation_steps), 1.0..=1e9),
        ("training.energy_monitoring_interval", training.energy_monitoring_interval, 1.0..=86_400.0),
        ("mps.initial_thread_percentage", count(mps.initial_thread_percentage), 1.0..=100.0),
        ("mps.shared_resources", count(mps.shared_resources), 1.0..=48.0),
    ] {
        check_range(file, key, value, range)?;
    }
    let on_deepspeed = deepspeed.zero_optimization.is_some() || foreign.values().any(|value| !value.is_null());
    let mut translator = ConfigTranslator::new(args, on_deepspeed);
    let processes =
        args.gpus.map(|gpus| gpus.saturating_mul(mps.shared_resources.filter(|_| mps.enabled != Some(false)).unwrap_or(1)));
    translator.translate_batch(file, &training, processes)?;
    translator.translate_training(&training);
    translator.translate_deepspeed(deepspeed, foreign, &mps);
    translator.translate_mps(&mps, processes);
    Ok(translator.finish())
}

/// Translation of a file, section by section.
struct ConfigTranslator<'a> {
    args: &'a TrainingConfigArgs,
    /// The file has settings of `DeepSpeed`'s own.
    on_deepspeed: bool,
    effects: Vec<KeyTranslation>,
    mode: &'static str,
    bounds: Map<String, Value>,
    /// The policy's `training`.
    about: Map<String, Value>,
    settings: Map<String, Value>,
    package: Map<String, Value>,
    workload: Map<String, Value>,
}

impl<'a> ConfigTranslator<'a> {
    fn new(args: &'a TrainingConfigArgs, on_deepspeed: bool) -> Self {
        let mut package = Map::new();
        package.insert("workload".into(), json!(format!("{}/{}", args.namespace, args.name)));
        Self {
            args,
            on_deepspeed,
            effects: Vec::new(),
            mode: "Recommend",
            bounds: Map::new(),
            about: Map::new(),
            settings: Map::new(),
            package,
            workload: Map::new(),
        }
    }

    fn add_effect(&mut self, key: &str, value: Value, applies: bool, meaning: String) {
        self.effects.push(KeyTranslation { key: key.to_owned(), value, applies, meaning });
    }

    /// Translates the model, the data set, and the global batch size. `processes`: all of the job, if known.
    fn translate_batch(&mut self, file: &Path, training: &TrainingSection, processes: Option<u32>) -> anyhow::Result<()> {
        for (key, value) in
            [("training.model_name_or_path", &training.model_name_or_path), ("training.dataset_name", &training.dataset_name)]
        {
            if let Some(value) = value {
                self.add_effect(key, json!(value), false, "the training script reads it".into());
            }
        }
        let batch = training
            .per_device_train_batch_size
            .map(|batch| batch.saturating_mul(training.gradient_accumulation_steps.unwrap_or(1)));
        let global = batch.zip(processes).map(|(batch, processes)| batch.saturating_mul(processes));
        let batch_meaning = match global {
            Some(global) => format!("training.globalBatchSize: {global}, with the other of the two and the number of processes"),
            None => "the training script reads it; with --gpus it gives training.globalBatchSize".into(),
        };
        for (key, value) in [
            ("training.per_device_train_batch_size", training.per_device_train_batch_size),
            ("training.gradient_accumulation_steps", training.gradient_accumulation_steps),
        ] {
            if let Some(value) = value {
                self.add_effect(key, json!(value), global.is_some(), batch_meaning.clone());
            }
        }
        if let Some(global) = global {
            check_range(file, "the global batch size", Some(f64::from(global)), 1.0..=1e9)?;
            self.about.insert("globalBatchSize".into(), json!(global));
        }
        Ok(())
    }

    fn translate_training(&mut self, training: &TrainingSection) {
        if let Some(seconds) = training.energy_monitoring_interval {
            let meaning = format!("processor.window_seconds = {seconds} in the settings file: one length for all workloads");
            self.settings.insert("processor.window_seconds".into(), json!(seconds));
            self.add_effect("training.energy_monitoring_interval", json!(seconds), true, meaning);
        }
        if let Some(threshold) = training.energy_efficiency_threshold {
            let meaning = "it has no unit, and J/sample is compared with the job's own, not with a constant".into();
            self.add_effect("training.energy_efficiency_threshold", json!(threshold), false, meaning);
        }
        if let Some(adapts) = training.adaptive_precision {
            let (effect, meaning) = match (adapts, self.on_deepspeed) {
                (false, _) => (false, "nothing is asked for without bounds.precisions".to_owned()),
                (true, true) => (false, "DeepSpeed fixes the precision at its start: choose bf16 there".into()),
                (true, false) => {
                    self.bounds.insert("precisions".into(), json!(["fp16", "bf16"]));
                    let why = "bounds.precisions: bf16 if fp16 overflows. It is for stability: no measurement shows that one of the two saves energy";
                    (true, why.into())
                }
            };
            self.add_effect("training.adaptive_precision", json!(adapts), effect, meaning);
        }
        if let Some(freezes) = training.dynamic_layer_freezing {
            let (effect, meaning) = match (freezes, self.args.layers) {
                (false, _) => (false, "nothing is frozen without bounds.maxFrozenPrefixLayers".to_owned()),
                (true, _) if self.on_deepspeed => {
                    let why = "with DeepSpeed a freeze saves no computation, and plasticity is not measured: nothing is asked for without bounds.maxFrozenPrefixLayers";
                    (false, why.to_owned())
                }
                (true, None) => (false, "how many blocks the model has is not in the file: name them with --layers".into()),
                (true, Some(layers)) => {
                    self.bounds.insert("maxFrozenPrefixLayers".into(), json!(layers / 2));
                    self.package.insert("layers".into(), json!("auto"));
                    self.package.insert("plasticity_every".into(), json!(500));
                    let why = format!(
                        "bounds.maxFrozenPrefixLayers: {}; package: layers=\"auto\", plasticity_every=500. Compare the loss with a run of fewer steps: J/sample always falls",
                        layers / 2
                    );
                    (true, why)
                }
            };
            self.add_effect("training.dynamic_layer_freezing", json!(freezes), effect, meaning);
        }
    }

    fn translate_deepspeed(&mut self, deepspeed: DeepSpeedSection, foreign: Map<String, Value>, mps: &MpsSection) {
        if let Some(zero) = deepspeed.zero_optimization {
            let meaning = "DeepSpeed reads it; package: model_parameters=eadt.deepspeed.parameter_groups(model)".into();
            self.add_effect("deepspeed.zero_optimization", Value::Object(zero), false, meaning);
        }
        for (key, value) in foreign {
            self.add_effect(&format!("deepspeed.{key}"), value, false, "DeepSpeed reads it".into());
        }
        let adaptive = deepspeed.adaptive_training.unwrap_or_default();
        // An enforced policy needs bounds, and this file may come to none.
        let has_bounds = !self.bounds.is_empty() || mps.enabled != Some(false) && mps.initial_thread_percentage.is_some();
        self.mode = if adaptive.enabled == Some(true) && has_bounds { "Enforce" } else { "Recommend" };
        if let Some(enabled) = adaptive.enabled {
            let why = if enabled && !has_bounds { ", since nothing in the file bounds what may be changed" } else { "" };
            self.add_effect(
                "deepspeed.adaptive_training.enabled",
                json!(enabled),
                !enabled || has_bounds,
                format!("updateMode: {}{why}", self.mode),
            );
        }
        for (key, setting, watts) in [
            ("deepspeed.adaptive_training.energy_threshold_high", "power_high_watts", adaptive.energy_threshold_high),
            ("deepspeed.adaptive_training.energy_threshold_low", "power_low_watts", adaptive.energy_threshold_low),
        ] {
            if let Some(watts) = watts {
                let meaning = format!(
                    "hybrid compares what was measured, not watts with a threshold; the controller matrix takes it as {setting}"
                );
                self.add_effect(key, json!(watts), false, meaning);
            }
        }
    }

    fn translate_mps(&mut self, mps: &MpsSection, processes: Option<u32>) {
        let shares_gpus = mps.enabled != Some(false) && mps.shared_resources.is_some_and(|processes| processes > 1);
        let off = mps.enabled == Some(false);
        if let Some(enabled) = mps.enabled {
            let meaning = match (off, shares_gpus) {
                (true, _) => "one process a GPU",
                (false, true) => "training.backend: gloo, since NCCL refuses two processes on a GPU",
                (false, false) => "one process a GPU without mps.shared_resources above 1, for which any backend does",
            };
            self.add_effect("mps.enabled", json!(enabled), !off, meaning.into());
        }
        if shares_gpus {
            self.about.insert("backend".into(), json!("gloo"));
        }
        if let Some(percentage) = mps.initial_thread_percentage {
            let meaning = if off {
                "MPS is not enabled".into()
            } else {
                self.bounds.insert("mpsThreadPercentage".into(), json!({ "min": percentage.min(25), "max": 100 }));
                self.workload
                    .insert("environment".into(), json!({ "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage.to_string() }));
                format!("bounds.mpsThreadPercentage, and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage} in the workload's pods")
            };
            self.add_effect("mps.initial_thread_percentage", json!(percentage), !off, meaning);
        }
        if let Some(shared) = mps.shared_resources {
            if let Some(processes) = processes.filter(|_| !off) {
                self.workload.insert("replicas".into(), json!(processes));
            }
            let meaning = match processes.filter(|_| !off) {
                _ if off => "MPS is not enabled".to_owned(),
                Some(processes) => format!("spec.replicas: {processes} in the workload"),
                None => format!("{shared} processes a GPU are spec.replicas of the workload; with --gpus their number is given"),
            };
            self.add_effect("mps.shared_resources", json!(shared), !off, meaning);
        }
    }

    fn finish(self) -> ConfigTranslation {
        let args = self.args;
        let mut spec = Map::from_iter([
            ("targetRef".to_owned(), json!({ "apiVersion": "apps/v1", "kind": args.kind, "name": args.name })),
            ("updateMode".to_owned(), json!(self.mode)),
            ("controller".to_owned(), json!({ "name": "hybrid" })),
        ]);
        for (name, part) in [("bounds", self.bounds), ("training", self.about)] {
            if !part.is_empty() {
                spec.insert(name.to_owned(), Value::Object(part));
            }
        }
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1",
            "kind": "EnergyPolicy",
            "metadata": { "name": args.name, "namespace": args.namespace },
            "spec": spec,
        });
        let (settings, package, workload) = (self.settings, self.package, self.workload);
        ConfigTranslation { keys: self.effects, policy, settings, package, workload }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first users wrote it.
    const FILE: &str = r#"
# Basic training parameters
training:
  model_name_or_path: "EleutherAI/pythia-410m"
  dataset_name: "wikitext"
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 16
  energy_monitoring_interval: 60  # seconds
  energy_efficiency_threshold: 0.75
  adaptive_precision: true
  dynamic_layer_freezing: true
deepspeed:
  zero_optimization:
    stage: 3
    overlap_comm: true
  gradient_clipping: 1.0
  adaptive_training:
    enabled: true
    energy_threshold_high: 250  # watts
    energy_threshold_low: 150   # watts
mps:
  enabled: true
  initial_thread_percentage: 50
  shared_resources: 2
"#;

    fn args(gpus: Option<u32>, layers: Option<u32>) -> TrainingConfigArgs {
        TrainingConfigArgs {
            file: "training_config.yaml".into(),
            namespace: "eadt".into(),
            name: "llm".into(),
            kind: "StatefulSet".into(),
            gpus,
            layers,
            json: false,
        }
    }

    fn whole(text: &str, args: &TrainingConfigArgs) -> anyhow::Result<ConfigTranslation> {
        translate(Path::new("training_config.yaml"), text, args)
    }

    fn translated(text: &str, args: &TrainingConfigArgs) -> anyhow::Result<(Vec<KeyTranslation>, Value)> {
        whole(text, args).map(|found| (found.keys, found.policy))
    }

    fn effect_of<'a>(effects: &'a [KeyTranslation], key: &str) -> &'a KeyTranslation {
        effects.iter().find(|effect| effect.key == key).unwrap_or_else(|| panic!("no effect of {key} is listed"))
    }

    #[test]
    fn what_is_set_elsewhere_is_there_for_programs() {
        let found = whole(FILE, &args(Some(3), Some(24))).unwrap();
        assert_eq!(Value::Object(found.settings), json!({ "processor.window_seconds": 60.0 }));
        assert_eq!(Value::Object(found.package), json!({ "workload": "eadt/llm" }), "DeepSpeed's hook measures no plasticity");
        let expected = json!({ "environment": { "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50" }, "replicas": 6 });
        assert_eq!(Value::Object(found.workload), expected);
        let hostile = "deepspeed: {\"x\\n---\\napiVersion: v1\": 1}\n";
        assert!(whole(hostile, &args(None, None)).unwrap_err().to_string().contains("one line of text"));
        let none = whole("training:\ndeepspeed:\nmps:\n", &args(None, None)).unwrap();
        assert!(none.keys.is_empty() && none.settings.is_empty() && none.workload.is_empty(), "{none:?}");
    }

    #[test]
    fn names_are_those_that_kubernetes_takes() {
        assert!(label("team-a").is_ok() && subdomain("llm.v2-training").is_ok());
        for wrong in ["", "Team", "-a", "a-", "a_b", "a.b", &"a".repeat(64)] {
            assert!(label(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "a..b", ".a", "LLM", "a/b", &"a.".repeat(127)] {
            assert!(subdomain(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_key_lists_its_effect_or_why_it_has_none() {
        let (effects, policy) = translated(FILE, &args(Some(3), Some(24))).unwrap();
        assert_eq!(effects.len(), 16);
        assert_eq!(effect_of(&effects, "deepspeed.gradient_clipping").meaning, "DeepSpeed reads it");
        let effect = |key: &str| effect_of(&effects, key);
        assert!(!effect("training.adaptive_precision").applies, "DeepSpeed fixes it");
        let freezing = effect("training.dynamic_layer_freezing");
        assert!(!freezing.applies && freezing.meaning.contains("with DeepSpeed a freeze saves no computation"));
        assert!(effect("mps.shared_resources").meaning.contains("spec.replicas: 6"));
        assert!(effects.iter().all(|effect| !effect.meaning.is_empty()));
        let spec = &policy["spec"];
        assert_eq!((&spec["updateMode"], &spec["training"]["globalBatchSize"]), (&json!("Enforce"), &json!(384)));
        assert_eq!(spec["bounds"], json!({ "mpsThreadPercentage": { "min": 25, "max": 100 } }));
        serde_json::from_value::<eadt_kubernetes::policy::EnergyPolicySpec>(spec.clone())
            .expect("a policy that the actuator reads");

        let plain = FILE.replace("  zero_optimization:\n    stage: 3\n    overlap_comm: true\n  gradient_clipping: 1.0\n", "");
        let (effects, policy) = translated(&plain, &args(None, None)).unwrap();
        assert_eq!(policy["spec"]["bounds"]["precisions"], json!(["fp16", "bf16"]));
        assert!(
            policy["spec"]["bounds"]["maxFrozenPrefixLayers"].is_null()
                && policy["spec"]["training"]["globalBatchSize"].is_null()
        );
        let freezing = effects.iter().find(|effect| effect.key == "training.dynamic_layer_freezing").unwrap();
        assert!(!freezing.applies && freezing.meaning.contains("--layers"));

        let found = whole(&plain, &args(Some(3), Some(24))).unwrap();
        assert_eq!(Value::Object(found.package), json!({ "workload": "eadt/llm", "layers": "auto", "plasticity_every": 500 }));
        assert_eq!(found.policy["spec"]["bounds"]["maxFrozenPrefixLayers"], 12);
        assert!(effect_of(&found.keys, "training.dynamic_layer_freezing").meaning.contains("plasticity_every=500"));
    }

    #[test]
    fn a_key_that_nobody_knows_is_refused_with_the_nearest() {
        for (wrong, right, advice) in [
            ("dynamic_layer_freezing", "dynamic_layer_freezin", "did you mean training.dynamic_layer_freezing?"),
            ("adaptive_training", "adaptive_trainning", "did you mean deepspeed.adaptive_training"),
            ("shared_resources", "shared_resource", "did you mean mps.shared_resources?"),
        ] {
            let error = translated(&FILE.replace(wrong, right), &args(None, None)).unwrap_err().to_string();
            assert!(error.contains(advice) && error.contains(right), "{error}");
        }
        assert!(translated("- a\n- b\n", &args(None, None)).unwrap_err().to_string().contains("has no sections"));
        assert!(translated("mps: {enabled: perhaps}\n", &args(None, None)).is_err());
    }

    #[test]
    fn a_value_of_another_kind_is_refused_by_its_key_in_words_of_the_file() {
        for (text, expected) in [
            (
                "training: {per_device_train_batch_size: 4.5}",
                "training.per_device_train_batch_size is 4.5 in training_config.yaml: it must be a whole number from 0",
            ),
            ("training: {per_device_train_batch_size: -1}", "training.per_device_train_batch_size is -1 in"),
            ("training: {gradient_accumulation_steps: 99999999999}", "gradient_accumulation_steps is 99999999999 in"),
            ("mps: {shared_resources: \"2\"}", "mps.shared_resources is \"2\" in"),
            ("mps: {enabled: perhaps}", "mps.enabled is \"perhaps\" in training_config.yaml: it must be true or false"),
            ("training: {energy_monitoring_interval: often}", "training.energy_monitoring_interval is \"often\""),
            (
                "training: {model_name_or_path: 410}",
                "training.model_name_or_path is 410 in training_config.yaml: it must be a text",
            ),
            ("training: 5", "training is 5 in training_config.yaml: it must be a section"),
            ("training: [1, 2]", "training is a list in"),
            ("deepspeed: {zero_optimization: 3}", "deepspeed.zero_optimization is 3 in"),
            ("deepspeed: {adaptive_training: true}", "deepspeed.adaptive_training is true in"),
            ("deepspeed: {adaptive_training: {enabled: 1}}", "deepspeed.adaptive_training.enabled is 1 in"),
            (
                "mps: {enabled: true, enabled: false}",
                "cannot read training_config.yaml: line 1, column 22: the key enabled comes twice",
            ),
            ("mps: {enabled: true}\n---\nmps: {}\n", "a second document begins here: keep one"),
            ("training: {energy_monitoring_interval: .nan}", "`.nan` is not a finite number"),
            ("training: {a: *x}", "cannot read training_config.yaml: line 1, column 15: "),
        ] {
            let error = format!("{:#}", whole(text, &args(None, None)).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
            for word in ["struct", "u32", "Policy", "from_str", "serde", "invalid type"] {
                assert!(!error.contains(word), "{text}: {error}");
            }
        }
        let empty = "training: {adaptive_precision: , dataset_name: ~}\ndeepspeed: {adaptive_training: , zero_optimization: }\n";
        assert!(whole(empty, &args(None, None)).unwrap().keys.is_empty());
    }

    #[test]
    fn numbers_that_nothing_could_carry_are_refused_by_their_key() {
        for (right, wrong, key) in [
            ("per_device_train_batch_size: 4", "per_device_train_batch_size: 0", "per_device_train_batch_size is 0"),
            (
                "gradient_accumulation_steps: 16",
                "gradient_accumulation_steps: 4000000000",
                "gradient_accumulation_steps is 4000000000",
            ),
            ("energy_monitoring_interval: 60", "energy_monitoring_interval: -5", "energy_monitoring_interval is -5"),
            ("initial_thread_percentage: 50", "initial_thread_percentage: 500", "initial_thread_percentage is 500"),
            ("shared_resources: 2", "shared_resources: 0", "shared_resources is 0"),
            ("per_device_train_batch_size: 4", "per_device_train_batch_size: 100000000", "the global batch size is"),
        ] {
            assert!(FILE.contains(right), "{right}");
            let error = translated(&FILE.replace(right, wrong), &args(Some(3), None)).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("must be within"), "{error}");
        }
    }

    #[test]
    fn the_listed_effect_of_a_key_is_what_the_policy_has() {
        let (effects, policy) = translated("deepspeed: {adaptive_training: {enabled: true}}\n", &args(None, None)).unwrap();
        assert_eq!(policy["spec"]["updateMode"], "Recommend");
        assert!(!effects[0].applies && effects[0].meaning.contains("Recommend"), "{}", effects[0].meaning);
        let (_, policy) = translated("mps: {shared_resources: 2}\n", &args(Some(4), None)).unwrap();
        assert_eq!(policy["spec"]["training"]["backend"], "gloo");
        let (effects, policy) = translated("mps: {enabled: true}\n", &args(None, None)).unwrap();
        assert!(
            policy["spec"]["training"]["backend"].is_null() && !effects[0].meaning.contains("gloo"),
            "{}",
            effects[0].meaning
        );
        let on = "training: {adaptive_precision: true}\ndeepspeed: {fp16: {enabled: true}}\n";
        let (effects, policy) = translated(on, &args(None, None)).unwrap();
        assert!(!effects[0].applies && policy["spec"]["bounds"].is_null(), "DeepSpeed fixes the precision");
    }
}
