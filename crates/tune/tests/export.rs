//! Settings made from results.

use eadt_models::choose::{ChoiceMethod, ChoiceObjective, TuningKnob};
use eadt_tune::export::{ExportError, ExportFormat, PolicyTarget, export};
use eadt_tune::{TuningRequest, TuningResult, points, tune};

const TABLE: &str = "\
workload,sm_clock_mhz,duration_seconds,energy_joules
Lab/BERT_Base,1410,100,30000
Lab/BERT_Base,1200,104,26000
Lab/BERT_Base,1000,115,25000
vit,1410,50,15000
vit,1200,56,12000
vit,1000,60,11000
";

fn tuning(max: f64) -> TuningResult {
    let request = TuningRequest {
        maps: Vec::new(),
        decimal: None,
        by: vec!["workload".to_owned()],
        knobs: TuningKnob::SmClockMhz.into(),
        reference_second_setting: None,
        max_slowdown_ratio: Some(max),
        min_ratio: None,
        preset: None,
        objective: ChoiceObjective::Energy,
        method: ChoiceMethod::Measured,
        min_settings: 3,
        max_power_watts: 3000.0,
    };
    let groups = points::read("points.csv", TABLE.as_bytes(), &request).unwrap();
    tune("points.csv", &groups, &request)
}

fn target(name: Option<&str>) -> PolicyTarget {
    PolicyTarget {
        namespace: "default".to_owned(),
        api_version: "apps/v1".to_owned(),
        kind: "StatefulSet".to_owned(),
        name: name.map(str::to_owned),
    }
}

#[test]
fn a_policy_holds_the_chosen_setting_and_recommends_only() {
    let text = export(&tuning(0.05), ExportFormat::EnergyPolicy, &target(None)).unwrap();
    for line in [
        "apiVersion: eadt.dev/v1alpha1",
        "kind: EnergyPolicy",
        "  name: \"bert-base\"",
        "  namespace: \"lab\"",
        "    kind: \"StatefulSet\"",
        "  updateMode: Recommend",
        "    name: frequency",
        "    minimize: Energy",
        "    maxSlowdownPercent: 5",
        "  knobs: [Clocks]",
        "    smClockMegahertz:",
        "      min: 1200",
        "      max: 1200",
        "# left out: workload=vit: infeasible",
    ] {
        assert!(text.lines().any(|own| own.starts_with(line)), "{line:?} is missing in\n{text}");
    }
}

#[test]
fn the_node_agent_table_is_toml_and_json_is_json() {
    let table: toml::Table = export(&tuning(0.2), ExportFormat::NodeAgent, &target(None)).unwrap().parse().unwrap();
    let settings = table["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 2);
    assert_eq!(settings[1]["sm_clock_mhz"].as_integer(), Some(1000));
    assert_eq!(settings[1]["match"]["workload"].as_str(), Some("vit"));
    let json: serde_json::Value =
        serde_json::from_str(&export(&tuning(0.05), ExportFormat::Json, &target(None)).unwrap()).unwrap();
    assert_eq!(json[1]["setting"], 1410.0);
    assert_eq!(json[1]["feasible"], false);
}

#[test]
fn settings_from_a_simulated_board_are_marked() {
    let mut simulated = tuning(0.2);
    simulated.groups[1].origin = Some("simulated".to_owned());
    let json: serde_json::Value = serde_json::from_str(&export(&simulated, ExportFormat::Json, &target(None)).unwrap()).unwrap();
    assert_eq!((json[0]["origin"].as_str(), json[1]["origin"].as_str()), (None, Some("simulated")));
    for (form, mark) in [
        (ExportFormat::EnergyPolicy, "# from points.csv (simulated), method measured"),
        (ExportFormat::NodeAgent, "% more time; limit 20.0 % (simulated)"),
    ] {
        let text = export(&simulated, form, &target(None)).unwrap();
        assert_eq!(text.matches("(simulated)").count(), 1, "{text}");
        assert!(text.lines().any(|line| line.ends_with(mark)), "{text}");
    }
}

#[test]
fn what_cannot_be_exported_gives_the_reason() {
    let same = export(&tuning(0.2), ExportFormat::EnergyPolicy, &target(Some("one"))).unwrap_err();
    assert!(matches!(same, ExportError::SameTarget { .. }), "{same}");
    assert_eq!(export(&tuning(0.0), ExportFormat::NodeAgent, &target(None)), Err(ExportError::Nothing));
    let mut nameless = tuning(0.2);
    for group in &mut nameless.groups {
        group.by.clear();
    }
    assert!(matches!(export(&nameless, ExportFormat::EnergyPolicy, &target(None)), Err(ExportError::NoTarget { .. })));
    for name in ["../../etc", "日本語", "-/-"] {
        let refused = export(&named(name), ExportFormat::EnergyPolicy, &target(None)).unwrap_err();
        assert!(matches!(refused, ExportError::NoName { .. }), "{name}: {refused}");
    }
}

/// Returns a result of one group, of this workload.
fn named(workload: &str) -> TuningResult {
    let mut result = tuning(0.2);
    result.groups.truncate(1);
    result.groups[0].by.insert("workload".to_owned(), workload.to_owned());
    result
}

#[test]
fn a_workload_keeps_its_name_and_one_that_cannot_is_reported() {
    let policy = |name: &str| export(&named(name), ExportFormat::EnergyPolicy, &target(None)).unwrap();
    let same = policy("lab/llama.v2-70b");
    assert!(same.contains("name: \"llama.v2-70b\"") && !same.contains("is no name of Kubernetes"), "{same}");
    let other = policy("lab/=1+1\nkind: Evil");
    assert!(other.contains("name: \"1-1-kind--evil\"") && other.contains("is no name of Kubernetes"), "{other}");
    assert!(other.lines().all(|line| line != "kind: Evil"), "{other}");
    for (given, name) in
        [("lab/A..b", "a.b"), ("lab/Llama", "llama"), ("lab/.a.-b-.", "a.b"), ("lab/a\u{2028}kind: Evil", "a-kind--evil")]
    {
        let other = policy(given);
        assert!(other.contains(&format!("name: \"{name}\"")) && other.contains("is no name of Kubernetes"), "{other}");
        assert!(!other.contains('\u{2028}'), "a line break of YAML 1.1: {other:?}");
    }
    let kind = PolicyTarget { kind: "Job\u{2028}x\u{85}".to_owned(), ..target(None) };
    let other = export(&named("lab/a"), ExportFormat::EnergyPolicy, &kind).unwrap();
    assert!(other.contains("kind: \"Job\\u2028x\\u0085\""), "{other}");
}
