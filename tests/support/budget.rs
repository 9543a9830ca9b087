//! A power budget, and whether it was kept.

use std::collections::{BTreeMap, HashSet};
use std::process::Command;

use serde_json::Value;

use super::text;

/// The built-in scenario's five boards may draw 2,600 W.
const BUDGET_WATTS: f64 = 1_400.0;

pub fn with_budget(mut command: Command) -> Command {
    command
        .env("EADT_PROCESSOR__POWER_BUDGET__BUDGET_WATTS", BUDGET_WATTS.to_string())
        .env("EADT_PROCESSOR__CONTROLLER", "power-budget");
    command
}

pub fn tail(command: &dyn Fn(&[&str]) -> Command, topic: &str) -> Vec<Value> {
    let (out, err, good) = text(command(&["tail", topic, "--until-end", "--json"]));
    assert!(good, "{err}");
    out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
}

/// Every decision once, all by the joint stage of the power budget; caps in force never above the budget once they were within
/// it.
pub fn judge(decisions: &[Value], workloads: &[Value]) {
    let ids: HashSet<&str> = decisions.iter().map(|decision| decision["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), decisions.len(), "a decision was published twice");
    assert!(decisions.iter().all(|decision| decision["controller"] == "power-budget"));
    assert!(decisions.iter().any(|decision| decision["action"] == "set_power_limit"));
    let mut layouts: Vec<&Value> = workloads.iter().collect();
    layouts.sort_by_key(|layout| layout["time"].as_str().unwrap());
    let (mut watts, mut within) = (BTreeMap::new(), false);
    for layout in layouts {
        let of_gpu = layout["layout"]["power_limit_watts"].as_f64().or(layout["gpu_power_limit_watts"].as_f64()).unwrap();
        watts.insert(layout["workload"].as_str().unwrap(), of_gpu * layout["gpus"].as_f64().unwrap());
        let sum: f64 = watts.values().sum();
        within |= watts.len() == 2 && sum <= BUDGET_WATTS;
        assert!(!within || sum <= BUDGET_WATTS, "{sum} W at {}", layout["time"]);
    }
    assert!(within, "{watts:?}");
}
