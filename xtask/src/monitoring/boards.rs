use serde_json::{Value, json};

/// Power of the unattributed part of each GPU. Power and shares are of one and the same sample: a window's power is a mean of
/// the past, and contradicts the newest sample whenever the load changes.
pub const NOT_ATTRIBUTED: &str = "sum(max by (device) (eadt_gpu_power_watts) * clamp_min(1 - (sum by (device) (eadt_gpu_share_ratio) or 0 * max by (device) (eadt_gpu_power_watts)), 0))";

/// The unattributed part of each GPU: all of it if no workload is on it.
pub const NOBODYS_SHARE: &str =
    "clamp_min(1 - (sum by (device) (eadt_gpu_share_ratio) or 0 * max by (device) (eadt_gpu_last_sample_timestamp_seconds)), 0)";

/// Number of workloads on each GPU, 0 included.
pub const TENANTS: &str =
    "count by (device) (eadt_gpu_share_ratio) or 0 * max by (device) (eadt_gpu_last_sample_timestamp_seconds)";

/// Number of GPUs, whatever could be read of them.
pub const SAMPLED_GPUS: &str = "count(eadt_gpu_last_sample_timestamp_seconds)";

/// Number of GPUs whose power is not known.
pub const GPUS_WITHOUT_POWER: &str = "count(eadt_gpu_last_sample_timestamp_seconds unless on (device) eadt_gpu_power_watts) or 0 * count(eadt_gpu_last_sample_timestamp_seconds)";

/// Energy on record. A choice of all workloads matches the series of those without series of their own, too.
pub const RECORD_ENERGY: &str = "sum(eadt_workload_record_energy_joules{namespace=~\"$namespace\",workload=~\"$workload\"})";

/// Number of GPUs with more than one workload, of any namespace, that the chosen ones are on.
const SHARED_GPUS: &str = "count(count by (device) (eadt_gpu_share_ratio) > 1 and on (device) eadt_gpu_share_ratio{namespace=~\"$namespace\",workload=~\"$workload\"}) or 0 * count(eadt_gpu_last_sample_timestamp_seconds)";

/// The form of a panel.
#[derive(Debug, Clone, Copy)]
enum Look {
    Lines,
    Stacked,
    Figure,
}

/// A query and the name of its series.
type Query = (&'static str, &'static str);

#[derive(Debug, Clone, Copy)]
struct Panel {
    title: &'static str,
    description: &'static str,
    look: Look,
    unit: &'static str,
    queries: &'static [Query],
}

const fn lines(title: &'static str, unit: &'static str, queries: &'static [Query], description: &'static str) -> Panel {
    Panel { title, description, look: Look::Lines, unit, queries }
}

const fn stacked(title: &'static str, unit: &'static str, queries: &'static [Query], description: &'static str) -> Panel {
    Panel { title, description, look: Look::Stacked, unit, queries }
}

const fn figure(title: &'static str, unit: &'static str, queries: &'static [Query], description: &'static str) -> Panel {
    Panel { title, description, look: Look::Figure, unit, queries }
}

/// One dashboard.
#[derive(Debug)]
pub struct Board {
    pub file: &'static str,
    pub title: &'static str,
    /// It has the variables `namespace` and `workload`, and marks decisions.
    by_workload: bool,
    panels: &'static [Panel],
}

/// Returns the four, in the order of their links.
pub fn all() -> [Board; 4] {
    [
        Board { file: "gpus", title: "EADT · GPU Metrics", by_workload: false, panels: GPUS },
        Board { file: "energy", title: "EADT · Energy Efficiency", by_workload: true, panels: ENERGY },
        Board { file: "sharing", title: "EADT · MPS Sharing", by_workload: true, panels: SHARING },
        Board { file: "pipeline", title: "EADT · Pipeline", by_workload: false, panels: PIPELINE },
    ]
}

const GPUS: &[Panel] = &[
    figure(
        "Power of all GPUs",
        "watt",
        &[("sum(eadt_gpu_power_watts)", "")],
        "The newest sample of each GPU with a sample in the last five minutes; shared GPUs count once.",
    ),
    figure("GPUs sampled", "short", &[(SAMPLED_GPUS, "")], "GPUs with a sample in the last five minutes."),
    figure(
        "GPUs without power",
        "short",
        &[(GPUS_WITHOUT_POWER, "")],
        "GPUs with samples that have no power, 0 W or one that the GPU cannot draw; the sums lack these GPUs.",
    ),
    figure(
        "GPUs without series",
        "short",
        &[("max(eadt_gpu_capped)", "")],
        "0 is well; above it, metrics.gpus_max is too small and the sums lack these GPUs.",
    ),
    lines(
        "Power by GPU",
        "watt",
        &[("eadt_gpu_power_watts", "{{node}} {{device}}")],
        "Of the whole GPU, by UUID and node, since every host has a GPU 0.",
    ),
    lines(
        "Power cap by GPU",
        "watt",
        &[("eadt_gpu_power_limit_watts", "{{node}} {{device}}")],
        "The limit in force on the device.",
    ),
    lines(
        "Busy",
        "percentunit",
        &[("eadt_gpu_utilization_ratio", "{{node}} {{device}}")],
        "Part of the time in which a kernel ran, whatever part of the GPU the kernel used.",
    ),
    lines("Temperature", "celsius", &[("eadt_gpu_temperature_celsius", "{{node}} {{device}}")], "Of the die."),
    lines(
        "dcgm-exporter: power",
        "watt",
        &[("DCGM_FI_DEV_POWER_USAGE", "{{Hostname}} {{UUID}}")],
        "The same figure by dcgm-exporter; they should agree.",
    ),
    lines(
        "dcgm-exporter: power by the energy counter",
        "watt",
        &[("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[$__rate_interval]) / 1000", "{{Hostname}} {{UUID}}")],
        "The counter is in mJ. If it contradicts the power, one of them is wrong: never sum power over time.",
    ),
    lines(
        "dcgm-exporter: SM clock",
        "hertz",
        &[("DCGM_FI_DEV_SM_CLOCK * 1000000", "{{Hostname}} {{UUID}}")],
        "Falls under a power cap.",
    ),
    lines("dcgm-exporter: memory in use", "decmbytes", &[("DCGM_FI_DEV_FB_USED", "{{Hostname}} {{UUID}}")], "Frame buffer."),
    lines(
        "dcgm-exporter: tensor pipe",
        "percentunit",
        &[("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "{{Hostname}} {{UUID}}")],
        "Part of the cycles in which the tensor pipe was active.",
    ),
];

const ENERGY: &[Panel] = &[
    figure(
        "Saving, of the part that can be compared",
        "percentunit",
        &[(
            "sum(eadt_workload_saving_joules{namespace=~\"$namespace\",workload=~\"$workload\"}) / (sum(eadt_workload_expected_joules{namespace=~\"$namespace\",workload=~\"$workload\"}) > 0)",
            "",
        )],
        "Over the whole record. It is the saving of a part of the energy, which the next figure shows. 0 if nothing was changed; no value if nothing can be compared.",
    ),
    figure(
        "Energy that the saving is of",
        "percentunit",
        &[(
            "sum(eadt_workload_compared_joules{namespace=~\"$namespace\",workload=~\"$workload\"}) / (sum(eadt_workload_record_energy_joules{namespace=~\"$namespace\",workload=~\"$workload\"}) > 0)",
            "",
        )],
        "The rest ran in phases in which the starting layout was never measured: its saving is unknown. No value if nothing can be compared.",
    ),
    figure(
        "Energy",
        "joule",
        &[(RECORD_ENERGY, "")],
        "Of the workloads' runs, since the beginning of the record, those without series of their own included unless some are chosen.",
    ),
    figure(
        "Reverts in an hour",
        "short",
        &[(
            "sum(increase(eadt_workload_outcomes_total{outcome=\"reverted\",namespace=~\"$namespace\",workload=~\"$workload\"}[1h]))",
            "",
        )],
        "Changes that did not save what they promised and were reverted.",
    ),
    figure(
        "Workloads without series",
        "short",
        &[("max(eadt_workload_capped)", "running"), ("max(eadt_workload_capped_ended)", "ended")],
        "Running: 0 is well; above it, metrics.workloads_max is too small, and powers, rates and decisions lack these workloads. Energy and saving have all.",
    ),
    figure(
        "Savings given up",
        "short",
        &[("max(eadt_workload_savings_given_up)", "")],
        "0 is well; 1 once there are more windows than savings are estimated of.",
    ),
    stacked(
        "Power by workload",
        "watt",
        &[(
            "sum by (namespace, workload) (eadt_workload_power_watts{namespace=~\"$namespace\",workload=~\"$workload\"})",
            "{{namespace}}/{{workload}}",
        )],
        "Mean of the newest window, while the workload is not silent.",
    ),
    lines(
        "Energy per sample",
        "joule",
        &[(
            "sum by (namespace, workload) (rate(eadt_workload_progress_energy_joules_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m])) / (sum by (namespace, workload) (rate(eadt_workload_samples_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m])) > 0)",
            "{{namespace}}/{{workload}}",
        )],
        "Two counters over the same windows, ten minutes of them; the energy of restarts included, as in a report.",
    ),
    lines(
        "Samples per second",
        "short",
        &[(
            "sum by (namespace, workload) (rate(eadt_workload_samples_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m]) or label_replace(rate(eadt_workload_samples_without_energy_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m]), \"energy\", \"unknown\", \"\", \"\"))",
            "{{namespace}}/{{workload}}",
        )],
        "In real time; a faster simulation has more of them.",
    ),
    lines(
        "Tokens per second",
        "short",
        &[(
            "sum by (namespace, workload) (rate(eadt_workload_tokens_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m]))",
            "{{namespace}}/{{workload}}",
        )],
        "0 for jobs that report none.",
    ),
    lines(
        "Saving in joules",
        "joule",
        &[(
            "eadt_workload_saving_joules{namespace=~\"$namespace\",workload=~\"$workload\",workload!=\"\"}",
            "{{namespace}}/{{workload}}",
        )],
        "An estimate, so it may fall; negative: a loss; 0 if nothing was changed. Trials come first, savings after them.",
    ),
    lines(
        "Not attributed",
        "watt",
        &[(NOT_ATTRIBUTED, "attributed to nobody")],
        "Power of GPUs, idle ones included, that no workload has a share of. A large figure shows a gap in the attribution.",
    ),
    stacked(
        "Decisions",
        "short",
        &[(
            "sum by (outcome) (increase(eadt_workload_outcomes_total{namespace=~\"$namespace\",workload=~\"$workload\",outcome!=\"maintain\"}[$__rate_interval]))",
            "{{outcome}}",
        )],
        "decided: to change something; changed and reverted: applied. In mode recommend nothing is.",
    ),
    lines(
        "Windows with a restart",
        "short",
        &[(
            "sum by (namespace, workload) (increase(eadt_workload_restart_windows_total{namespace=~\"$namespace\",workload=~\"$workload\"}[10m]))",
            "{{namespace}}/{{workload}}",
        )],
        "Restarts cost energy without progress.",
    ),
];

const SHARING: &[Panel] = &[
    figure(
        "GPUs that are shared",
        "short",
        &[(SHARED_GPUS, "")],
        "With more than one workload, of whatever namespace; those that the chosen workloads are on.",
    ),
    figure(
        "Shared GPUs under the stage",
        "short",
        &[("max(eadt_gpu_sharing_shared_gpus)", "")],
        "Those whose SM shares the controller sm-partition sets.",
    ),
    figure(
        "Members measured alone",
        "short",
        &[("max(eadt_gpu_sharing_measured)", "")],
        "Members with known throughput and power alone: without these no share is changed.",
    ),
    stacked(
        "Share of each GPU by workload",
        "percentunit",
        &[("eadt_gpu_share_ratio{namespace=~\"$namespace\",workload=~\"$workload\"}", "{{device}} {{namespace}}/{{workload}}")],
        "Part of the GPU's power that is attributed to the workload.",
    ),
    lines(
        "Share that is nobody's",
        "percentunit",
        &[(NOBODYS_SHARE, "{{device}}")],
        "The part that MPS percentages or MIG slices leave free; all of a GPU without a workload.",
    ),
    lines("Workloads on each GPU", "short", &[(TENANTS, "{{device}}")], "1 is a GPU of its own, 0 one without a workload."),
    stacked(
        "Power of each workload by GPU",
        "watt",
        &[(
            "eadt_gpu_share_ratio{namespace=~\"$namespace\",workload=~\"$workload\"} * on (device) group_left () eadt_gpu_power_watts",
            "{{device}} {{namespace}}/{{workload}}",
        )],
        "Share times the power of the whole GPU.",
    ),
    lines(
        "Evaluations and decisions of GPU sharing",
        "cpm",
        &[
            ("sum(rate(eadt_gpu_sharing_evaluations_total[$__rate_interval])) * 60", "evaluations"),
            ("sum(rate(eadt_gpu_sharing_decisions_total[$__rate_interval])) * 60", "decisions"),
        ],
        "Shared GPUs are evaluated at the end of each window of a workload on them.",
    ),
];

const PIPELINE: &[Panel] = &[
    lines(
        "Events folded",
        "cps",
        &[("sum(rate(eadt_processor_events_total[$__rate_interval]))", "events")],
        "Zero while jobs run: nothing reaches the processor.",
    ),
    lines(
        "Windows and decisions",
        "cpm",
        &[
            ("sum(rate(eadt_processor_windows_total[$__rate_interval])) * 60", "windows"),
            ("sum(rate(eadt_processor_decisions_total[$__rate_interval])) * 60", "decisions"),
        ],
        "Closed and emitted, per minute of real time.",
    ),
    lines(
        "Outcomes of decisions",
        "short",
        &[("sum by (outcome) (increase(eadt_actuator_outcomes_total[$__rate_interval]))", "{{outcome}}")],
        "As the actuator reports it; refused ones have a reason in the events.",
    ),
    lines(
        "Time of an atomic step",
        "s",
        &[
            ("histogram_quantile(0.5, sum by (le) (rate(eadt_processor_commit_seconds_bucket[$__rate_interval])))", "median"),
            ("histogram_quantile(0.99, sum by (le) (rate(eadt_processor_commit_seconds_bucket[$__rate_interval])))", "99 %"),
        ],
        "Outputs, state and positions in one transaction.",
    ),
    lines(
        "Dead letters",
        "short",
        &[("sum by (reason) (increase(eadt_processor_dead_letters_total[$__rate_interval]))", "{{reason}}")],
        "If it grows, a producer sends unusable records. eadt tail dead-letters shows them with their reasons.",
    ),
    lines(
        "Read ahead of the merge",
        "bytes",
        &[("sum(eadt_processor_buffered_bytes)", "bytes")],
        "Records that wait for another input.",
    ),
    lines(
        "Collector: sampled, sent, dropped",
        "cps",
        &[
            ("sum(rate(eadt_collector_events_sampled_total[$__rate_interval]))", "sampled"),
            ("sum(rate(eadt_collector_events_sent_total[$__rate_interval]))", "sent"),
            ("sum by (reason) (rate(eadt_collector_events_dropped_total[$__rate_interval]))", "dropped: {{reason}}"),
        ],
        "Sent and dropped add up to sampled. No data in a simulation, which has no collector.",
    ),
    lines(
        "Archived rows",
        "cps",
        &[(
            // A topic has a series from its first file on. Until then nothing was archived.
            "sum by (topic) (rate(eadt_archiver_rows_total[$__rate_interval])) or on () 0 * max(eadt_archiver_stalled)",
            "{{topic}}",
        )],
        "Rows in completed files; 0 until the first one is completed.",
    ),
    lines(
        "Begun anew",
        "short",
        &[
            ("sum(increase(eadt_processor_restarts_total[$__rate_interval]))", "processor"),
            ("sum(increase(eadt_actuator_restarts_total[$__rate_interval]))", "actuator"),
            ("sum(increase(eadt_simulator_restarts_total[$__rate_interval]))", "simulator"),
        ],
        "Sessions on the bus that ended with an error and restarted from the committed positions: check the broker.",
    ),
    lines(
        "Archiver stalled",
        "short",
        &[("max(eadt_archiver_stalled)", "stalled")],
        "1 while files cannot be written; nothing is skipped meanwhile.",
    ),
    lines(
        "Failed tasks",
        "short",
        &[("sum by (task) (increase(eadt_service_task_failures_total[$__rate_interval]))", "{{task}}")],
        "docs/reference/tasks.md has the consequence of each.",
    ),
    lines(
        "Exporter: partitions to be read",
        "short",
        &[("max(eadt_workload_unread_partitions)", "partitions")],
        "Above 0 after a start, until the history is read. Until then the workloads of these partitions have no series.",
    ),
    lines("Parts that are ready", "short", &[("min by (part) (eadt_service_ready)", "{{part}}")], "As /readyz has it."),
    lines("Services up", "short", &[("up{job=~\"eadt.*\"}", "{{service}}")], "0: Prometheus cannot scrape it."),
];

/// The variable by which people choose among Grafana's sources.
const DATASOURCE: &str = "${datasource}";

impl Board {
    /// Returns the dashboard as Grafana provisions it.
    pub fn json(&self) -> String {
        let links: Vec<Value> = all()
            .iter()
            .filter(|other| other.file != self.file)
            .map(|other| {
                let url = format!("/d/eadt-{}", other.file);
                json!({"title": other.title, "type": "link", "url": url, "keepTime": true, "includeVars": true, "icon": "dashboard"})
            })
            .collect();
        let mut variables = vec![source_variable()];
        if self.by_workload {
            variables.extend([
                variable("namespace", "label_values(eadt_workload_windows_total, namespace)"),
                variable("workload", "label_values(eadt_workload_windows_total{namespace=~\"$namespace\"}, workload)"),
            ]);
        }
        let annotations = if self.by_workload {
            vec![
                annotation("Changes", "orange", "changed"),
                annotation("Reverts", "red", "reverted"),
                annotation("Kept", "green", "kept"),
            ]
        } else {
            Vec::new()
        };
        let board = json!({
            "uid": format!("eadt-{}", self.file),
            "title": self.title,
            "tags": ["eadt"],
            "timezone": "browser",
            "schemaVersion": 41,
            "version": 1,
            "editable": false,
            "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": variables},
            "annotations": {"list": annotations},
            "links": links,
            "panels": self.panels(),
        });
        format!("{}\n", serde_json::to_string_pretty(&board).expect("texts and numbers"))
    }

    fn panels(&self) -> Vec<Value> {
        let (mut x, mut y, mut row) = (0, 0, 0);
        let place = |(index, panel): (usize, &Panel)| {
            let (w, h) = if matches!(panel.look, Look::Figure) { (4, 4) } else { (8, 8) };
            if x + w > 24 || row != 0 && row != h {
                (x, y) = (0, y + row);
            }
            let at = json!({"x": x, "y": y, "w": w, "h": h});
            (x, row) = (x + w, h);
            panel.json(index + 1, &at)
        };
        self.panels.iter().enumerate().map(place).collect()
    }
}

impl Panel {
    fn json(&self, id: usize, at: &Value) -> Value {
        let targets: Vec<Value> = self
            .queries
            .iter()
            .zip(["A", "B", "C", "D"])
            .map(|((query, legend), id)| json!({"refId": id, "expr": query, "legendFormat": legend}))
            .collect();
        let stacking = if matches!(self.look, Look::Stacked) { "normal" } else { "none" };
        let fill = if matches!(self.look, Look::Stacked) { 25 } else { 0 };
        let (kind, options) = match self.look {
            Look::Figure => ("stat", json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"})),
            Look::Lines | Look::Stacked => (
                "timeseries",
                json!({"legend": {"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": {"mode": "multi"}}),
            ),
        };
        json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": {"type": "prometheus", "uid": DATASOURCE},
            "gridPos": at,
            "fieldConfig": {
                "defaults": {"unit": self.unit, "custom": {"stacking": {"mode": stacking}, "fillOpacity": fill}},
                "overrides": [],
            },
            "options": options,
            "targets": targets,
        })
    }
}

/// Returns the choice of the data source; at first that of our provisioning, or else Grafana's default.
fn source_variable() -> Value {
    json!({
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "multi": false,
        "includeAll": false,
        "current": {"text": "Prometheus", "value": "prometheus"},
    })
}

/// Returns a choice of several values. Grafana puts them into the query as an alternation of escaped texts.
fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": DATASOURCE},
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    })
}

/// Returns a mark at every step with new outcomes of decisions. `increase` would miss those between two ranges.
fn annotation(name: &str, colour: &str, outcome: &str) -> Value {
    let outcomes =
        format!("eadt_workload_outcomes_total{{namespace=~\"$namespace\",workload=~\"$workload\",outcome=\"{outcome}\"}}");
    let query = format!("{outcomes} - last_over_time({outcomes}[5m] offset 1m) > 0");
    json!({
        "name": name,
        "datasource": {"type": "prometheus", "uid": DATASOURCE},
        "enable": true,
        "iconColor": colour,
        "expr": query,
        "step": "60s",
        "titleFormat": format!("{outcome}: {{{{namespace}}}}/{{{{workload}}}}"),
    })
}
