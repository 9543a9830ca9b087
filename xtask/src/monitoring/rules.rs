use std::fmt::Write;

use super::boards::{GPUS_WITHOUT_POWER, NOBODYS_SHARE, NOT_ATTRIBUTED, RECORD_ENERGY, SAMPLED_GPUS, TENANTS};

/// Recorded name, query.
const RECORDED: [(&str, &str); 4] = [
    (
        "eadt:workload_joules_per_sample:rate10m",
        "sum by (namespace, workload) (rate(eadt_workload_progress_energy_joules_total[10m])) / (sum by (namespace, workload) (rate(eadt_workload_samples_total[10m])) > 0)",
    ),
    ("eadt:power_watts:sum", "sum(eadt_gpu_power_watts)"),
    ("eadt:saving_joules:sum", "sum(eadt_workload_saving_joules)"),
    ("eadt:compared_energy:ratio", "sum(eadt_workload_compared_joules) / (sum(eadt_workload_record_energy_joules) > 0)"),
];

struct Alert {
    name: &'static str,
    query: &'static str,
    minutes: u32,
    severity: &'static str,
    summary: &'static str,
    remedy: &'static str,
}

const ALERTS: [Alert; 14] = [
    Alert {
        name: "EadtDecisionReverted",
        query: "increase(eadt_workload_outcomes_total{outcome=\"reverted\"}[15m]) > 0",
        minutes: 0,
        severity: "info",
        summary: "A change of {{ $labels.namespace }}/{{ $labels.workload }} was reverted",
        remedy: "eadt describe workload {{ $labels.namespace }}/{{ $labels.workload }} shows the change and why it was not kept.",
    },
    Alert {
        name: "EadtRollbackFailed",
        query: "increase(eadt_workload_outcomes_total{outcome=\"failed\"}[15m]) > 0",
        minutes: 0,
        severity: "critical",
        summary: "A change of {{ $labels.namespace }}/{{ $labels.workload }} failed and could not be rolled back",
        remedy: "eadt get decisions {{ $labels.workload }} has the reason; correct the layout by hand.",
    },
    Alert {
        name: "EadtArchiverStalled",
        query: "max by (instance) (eadt_archiver_stalled) == 1",
        minutes: 2,
        severity: "warning",
        summary: "The archiver {{ $labels.instance }} cannot write files",
        remedy: "Nothing is skipped, but the log's retention continues: check the disk or the object store (docs/operate/operations.md).",
    },
    Alert {
        name: "EadtCollectorSilent",
        // Of jobs there may be none.
        query: "sum by (instance, source) (rate(eadt_collector_events_sampled_total{source=~\"nvml|dcgm\"}[5m])) == 0",
        minutes: 5,
        severity: "warning",
        summary: "The collector {{ $labels.instance }} reads no GPU samples from {{ $labels.source }}",
        remedy: "eadt_collector_device_up and eadt_collector_scrapes_total show which GPU or target is silent.",
    },
    Alert {
        name: "EadtEventsDropped",
        query: "sum by (instance, reason) (increase(eadt_collector_events_dropped_total[10m])) > 0",
        minutes: 0,
        severity: "warning",
        summary: "Events of the collector {{ $labels.instance }} did not reach the log: {{ $labels.reason }}",
        remedy: "They are lost. eadt_collector_log_reachable and the log lines of the collector have the cause.",
    },
    Alert {
        name: "EadtGpuUnreadable",
        query: "max by (instance, device) (eadt_collector_device_up) == 0",
        minutes: 5,
        severity: "warning",
        summary: "The GPU {{ $labels.device }} does not answer the collector {{ $labels.instance }}",
        remedy: "Its samples are missing. nvidia-smi on that machine and the log lines of the collector have the cause.",
    },
    Alert {
        name: "EadtScrapeFailing",
        query: "sum by (instance, target) (increase(eadt_collector_scrapes_total{outcome!=\"ok\"}[15m])) > 0 unless sum by (instance, target) (increase(eadt_collector_scrapes_total{outcome=\"ok\"}[15m])) > 0",
        minutes: 5,
        severity: "warning",
        summary: "The collector {{ $labels.instance }} cannot scrape {{ $labels.target }}",
        remedy: "The label outcome of eadt_collector_scrapes_total has the reason.",
    },
    Alert {
        name: "EadtInputLost",
        // Gaps are found at a start: a new counter begins with them, and one that was there before is reset to them.
        query: "sum by (instance) (increase(eadt_processor_gaps_total[1h])) > 0 or sum by (instance) (eadt_processor_gaps_total unless present_over_time(eadt_processor_gaps_total[30m] offset 1h)) > 0",
        minutes: 0,
        severity: "warning",
        summary: "Retention deleted events before the processor {{ $labels.instance }} had read them",
        remedy: "The windows concerned have gap set, and nothing is decided with them. Find out why the processor was away, or raise the retention of its inputs.",
    },
    Alert {
        name: "EadtServiceDown",
        query: "up{job=~\"eadt.*\"} == 0",
        minutes: 2,
        severity: "critical",
        summary: "{{ $labels.instance }} cannot be scraped",
        remedy: "Its log lines and eadt doctor have the cause.",
    },
    Alert {
        name: "EadtDeadLetters",
        query: "sum by (reason) (increase(eadt_processor_dead_letters_total[10m])) > 0",
        minutes: 0,
        severity: "warning",
        summary: "Events were refused: {{ $labels.reason }}",
        remedy: "eadt tail dead-letters --from-start shows each with its reason.",
    },
    Alert {
        name: "EadtTaskFailed",
        query: "increase(eadt_service_task_failures_total[10m]) > 0",
        minutes: 0,
        severity: "warning",
        summary: "The task {{ $labels.task }} of {{ $labels.instance }} failed",
        remedy: "docs/reference/tasks.md has the consequence.",
    },
    Alert {
        name: "EadtSeriesCapped",
        query: "max(eadt_workload_capped) > 0 or max(eadt_gpu_capped) > 0",
        minutes: 10,
        severity: "info",
        summary: "Some workloads or GPUs have no series",
        remedy: "Raise metrics.workloads_max or metrics.gpus_max, if Prometheus can hold more.",
    },
    Alert {
        name: "EadtSavingsGivenUp",
        query: "max by (instance) (eadt_workload_savings_given_up) == 1",
        minutes: 0,
        severity: "info",
        summary: "{{ $labels.instance }} no longer estimates savings",
        remedy: "There are more windows than it keeps. eadt report estimates savings from the log or the archive.",
    },
    Alert {
        name: "EadtExporterBehind",
        query: "max by (instance) (eadt_workload_unread_partitions) > 0",
        minutes: 15,
        severity: "warning",
        summary: "{{ $labels.instance }} has not read its history to the end",
        remedy: "The workloads of these partitions have no series. eadt doctor finds a partition without a leader.",
    },
];

/// Returns a text in YAML's single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Returns the rules file.
pub fn rules() -> String {
    let mut text = String::from("# Generated by `cargo xtask generate`.\ngroups:\n  - name: eadt-recorded\n    rules:\n");
    for (name, query) in RECORDED {
        write!(text, "      - record: {name}\n        expr: {}\n", quoted(query)).expect("String");
    }
    text.push_str("  - name: eadt-alerts\n    rules:\n");
    for alert in &ALERTS {
        write!(text, "      - alert: {}\n        expr: {}\n", alert.name, quoted(alert.query)).expect("String");
        if alert.minutes > 0 {
            writeln!(text, "        for: {}m", alert.minutes).expect("String");
        }
        write!(
            text,
            "        labels: {{severity: {}}}\n        annotations:\n          summary: {}\n          remedy: {}\n",
            alert.severity,
            quoted(alert.summary),
            quoted(alert.remedy)
        )
        .expect("String");
    }
    text
}

/// Returns the cases of `promtool test rules`: each alert fires on its cause, and none fires in normal operation. Queries of panels are
/// tried beside them.
pub fn tests() -> String {
    // As Grafana puts in a choice of all.
    let record_energy = RECORD_ENERGY.replace("$namespace", ".*").replace("$workload", ".*");
    [
        ("<not attributed>", NOT_ATTRIBUTED),
        ("<nobody's share>", NOBODYS_SHARE),
        ("<tenants>", TENANTS),
        ("<sampled GPUs>", SAMPLED_GPUS),
        ("<GPUs without power>", GPUS_WITHOUT_POWER),
        ("<record energy>", &record_energy),
    ]
    .into_iter()
    .fold(TESTS.to_owned(), |text, (name, query)| text.replace(name, &quoted(query)))
}

const TESTS: &str = r#"# Generated by `cargo xtask generate`. promtool test rules deploy/prometheus/rules.test.yml
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - name: a decision is reverted
    interval: 1m
    input_series:
      - series: 'eadt_workload_outcomes_total{namespace="a",workload="x",origin="measured",outcome="reverted"}'
        values: '0x5 1x30'
      - series: 'eadt_workload_outcomes_total{namespace="a",workload="y",origin="measured",outcome="reverted"}'
        values: '0x35'
    alert_rule_test:
      - {eval_time: 5m, alertname: EadtDecisionReverted, exp_alerts: []}
      - eval_time: 8m
        alertname: EadtDecisionReverted
        exp_alerts:
          - exp_labels: {severity: info, namespace: a, workload: x, origin: measured, outcome: reverted}
            exp_annotations:
              summary: A change of a/x was reverted
              remedy: eadt describe workload a/x shows the change and why it was not kept.
      - {eval_time: 30m, alertname: EadtDecisionReverted, exp_alerts: []}
  - name: the archiver stalls
    interval: 1m
    input_series:
      - {series: 'eadt_archiver_stalled{instance="archiver:9464"}', values: '0x3 1x10 0x5'}
    alert_rule_test:
      - {eval_time: 4m, alertname: EadtArchiverStalled, exp_alerts: []}
      - eval_time: 8m
        alertname: EadtArchiverStalled
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'archiver:9464'}
            exp_annotations:
              summary: The archiver archiver:9464 cannot write files
              remedy: "Nothing is skipped, but the log's retention continues: check the disk or the object store (docs/operate/operations.md)."
      - {eval_time: 16m, alertname: EadtArchiverStalled, exp_alerts: []}
  - name: a collector falls silent, another one does not
    interval: 1m
    input_series:
      - {series: 'eadt_collector_events_sampled_total{instance="one:9464",source="nvml"}', values: '0+60x5 300x30'}
      - {series: 'eadt_collector_events_sampled_total{instance="one:9464",source="progress"}', values: '0+60x35'}
      - {series: 'eadt_collector_events_sampled_total{instance="two:9464",source="nvml"}', values: '0+60x35'}
      - {series: 'eadt_collector_events_sampled_total{instance="two:9464",source="progress"}', values: '0x35'}
    alert_rule_test:
      - {eval_time: 9m, alertname: EadtCollectorSilent, exp_alerts: []}
      - eval_time: 20m
        alertname: EadtCollectorSilent
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'one:9464', source: nvml}
            exp_annotations:
              summary: The collector one:9464 reads no GPU samples from nvml
              remedy: eadt_collector_device_up and eadt_collector_scrapes_total show which GPU or target is silent.
  - name: a collector is silent from its start, and its jobs report
    interval: 1m
    input_series:
      - {series: 'eadt_collector_events_sampled_total{instance="one:9464",source="dcgm"}', values: '0x20'}
      - {series: 'eadt_collector_events_sampled_total{instance="one:9464",source="progress"}', values: '0+60x20'}
    alert_rule_test:
      - eval_time: 12m
        alertname: EadtCollectorSilent
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'one:9464', source: dcgm}
            exp_annotations:
              summary: The collector one:9464 reads no GPU samples from dcgm
              remedy: eadt_collector_device_up and eadt_collector_scrapes_total show which GPU or target is silent.
  - name: a restart is no revert, whether its counters continue or begin at 0
    interval: 1m
    input_series:
      - {series: 'eadt_workload_outcomes_total{namespace="a",workload="x",outcome="reverted"}', values: '58x5 _x4 58x20'}
      - {series: 'eadt_workload_outcomes_total{namespace="a",workload="y",outcome="reverted"}', values: '58x5 _x4 0x20'}
    alert_rule_test:
      - {eval_time: 10m, alertname: EadtDecisionReverted, exp_alerts: []}
      - {eval_time: 20m, alertname: EadtDecisionReverted, exp_alerts: []}
  - name: every change is marked once, however scrapes and steps lie
    interval: 30s
    input_series:
      - {series: 'eadt_workload_outcomes_total{workload="x"}', values: '0x2 1x20'}
      - {series: 'eadt_workload_outcomes_total{workload="y"}', values: '0x3 1x20'}
      - {series: 'eadt_workload_outcomes_total{workload="z"}', values: '0x3 _x6 1x20'}
    promql_expr_test:
      - {expr: &mark 'eadt_workload_outcomes_total - last_over_time(eadt_workload_outcomes_total[5m] offset 1m) > 0', eval_time: 60s, exp_samples: []}
      - expr: *mark
        eval_time: 120s
        exp_samples: [{labels: '{workload="x"}', value: 1}, {labels: '{workload="y"}', value: 1}]
      - {expr: *mark, eval_time: 180s, exp_samples: []}
      - {expr: *mark, eval_time: 300s, exp_samples: [{labels: '{workload="z"}', value: 1}]}
      - {expr: *mark, eval_time: 360s, exp_samples: []}
  - name: losses, gaps and what cannot be read
    interval: 1m
    input_series:
      - {series: 'eadt_collector_events_dropped_total{instance="one:9464",reason="buffer_full"}', values: '0x5 7x30'}
      - {series: 'eadt_collector_events_dropped_total{instance="one:9464",reason="shutdown"}', values: '0x35'}
      - {series: 'eadt_collector_device_up{instance="one:9464",device="GPU-a"}', values: '1x5 0x30'}
      - {series: 'eadt_collector_device_up{instance="one:9464",device="GPU-b"}', values: '1x35'}
      - {series: 'eadt_collector_scrapes_total{instance="one:9464",target="http://d/metrics",outcome="timeout"}', values: '_x5 1+60x30'}
      - {series: 'eadt_collector_scrapes_total{instance="one:9464",target="http://e/metrics",outcome="timeout"}', values: '0+1x35'}
      - {series: 'eadt_collector_scrapes_total{instance="one:9464",target="http://e/metrics",outcome="ok"}', values: '0+59x35'}
      - {series: 'eadt_processor_gaps_total{instance="p:9464"}', values: '_x5 2x100'}
      - {series: 'eadt_processor_gaps_total{instance="q:9464"}', values: '0x105'}
      - {series: 'eadt_processor_gaps_total{instance="r:9464"}', values: '0x200 5x120 _x4 4x80'}
      - {series: 'eadt_processor_gaps_total{instance="s:9464"}', values: '_x95 2x164 stale 2x200'}
      - {series: 'eadt_workload_savings_given_up{instance="e:9464"}', values: '0x5 1x30'}
      - {series: 'eadt_workload_unread_partitions{instance="e:9464"}', values: '6x5 1x30'}
      - {series: 'eadt_workload_unread_partitions{instance="f:9464"}', values: '6x5 0x30'}
    alert_rule_test:
      - {eval_time: 4m, alertname: EadtEventsDropped, exp_alerts: []}
      - eval_time: 8m
        alertname: EadtEventsDropped
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'one:9464', reason: buffer_full}
            exp_annotations:
              summary: "Events of the collector one:9464 did not reach the log: buffer_full"
              remedy: They are lost. eadt_collector_log_reachable and the log lines of the collector have the cause.
      - eval_time: 15m
        alertname: EadtGpuUnreadable
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'one:9464', device: GPU-a}
            exp_annotations:
              summary: The GPU GPU-a does not answer the collector one:9464
              remedy: Its samples are missing. nvidia-smi on that machine and the log lines of the collector have the cause.
      - eval_time: 15m
        alertname: EadtScrapeFailing
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'one:9464', target: 'http://d/metrics'}
            exp_annotations:
              summary: The collector one:9464 cannot scrape http://d/metrics
              remedy: The label outcome of eadt_collector_scrapes_total has the reason.
      - eval_time: 8m
        alertname: EadtInputLost
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'p:9464'}
            exp_annotations:
              summary: Retention deleted events before the processor p:9464 had read them
              remedy: The windows concerned have gap set, and nothing is decided with them. Find out why the processor was away, or raise the retention of its inputs.
      - {eval_time: 90m, alertname: EadtInputLost, exp_alerts: []}
      # A process found no more gaps at its start than the one before, and of another one a scrape failed an hour ago.
      - {eval_time: 320m, alertname: EadtInputLost, exp_alerts: []}
      - eval_time: 328m
        alertname: EadtInputLost
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'r:9464'}
            exp_annotations:
              summary: Retention deleted events before the processor r:9464 had read them
              remedy: The windows concerned have gap set, and nothing is decided with them. Find out why the processor was away, or raise the retention of its inputs.
      - {eval_time: 400m, alertname: EadtInputLost, exp_alerts: []}
      - {eval_time: 4m, alertname: EadtSavingsGivenUp, exp_alerts: []}
      - eval_time: 8m
        alertname: EadtSavingsGivenUp
        exp_alerts:
          - exp_labels: {severity: info, instance: 'e:9464'}
            exp_annotations:
              summary: e:9464 no longer estimates savings
              remedy: There are more windows than it keeps. eadt report estimates savings from the log or the archive.
      - eval_time: 20m
        alertname: EadtExporterBehind
        exp_alerts:
          - exp_labels: {severity: warning, instance: 'e:9464'}
            exp_annotations:
              summary: e:9464 has not read its history to the end
              remedy: The workloads of these partitions have no series. eadt doctor finds a partition without a leader.
  - name: a GPU without a workload is nobody's, and of shares that add up to 1 nothing is, however the power changes
    interval: 1m
    input_series:
      - {series: 'eadt_gpu_power_watts{device="shared",node="n",model="m",origin="measured"}', values: '300x5 700x5'}
      - {series: 'eadt_gpu_power_watts{device="idle",node="n",model="m",origin="measured"}', values: '300.5x10'}
      - {series: 'eadt_gpu_power_watts{device="half",node="n",model="m",origin="measured"}', values: '200x10'}
      - {series: 'eadt_gpu_last_sample_timestamp_seconds{device="shared",node="n",model="m",origin="measured"}', values: '0+60x10'}
      - {series: 'eadt_gpu_last_sample_timestamp_seconds{device="idle",node="n",model="m",origin="measured"}', values: '0+60x10'}
      - {series: 'eadt_gpu_last_sample_timestamp_seconds{device="half",node="n",model="m",origin="measured"}', values: '0+60x10'}
      - {series: 'eadt_gpu_last_sample_timestamp_seconds{device="powerless",node="n",model="m",origin="measured"}', values: '0+60x10'}
      - {series: 'eadt_gpu_share_ratio{device="shared",node="n",origin="measured",namespace="a",workload="x"}', values: '0.25x10'}
      - {series: 'eadt_gpu_share_ratio{device="shared",node="n",origin="measured",namespace="b",workload="y"}', values: '0.75x10'}
      - {series: 'eadt_gpu_share_ratio{device="half",node="n",origin="measured",namespace="b",workload="z"}', values: '0.5x10'}
      - {series: 'eadt_workload_power_watts{namespace="a",workload="x",origin="measured"}', values: '75x10'}
    promql_expr_test:
      - {expr: <not attributed>, eval_time: 4m, exp_samples: [{labels: '{}', value: 400.5}]}
      - {expr: <not attributed>, eval_time: 8m, exp_samples: [{labels: '{}', value: 400.5}]}
      - expr: <nobody's share>
        eval_time: 8m
        exp_samples: [{labels: '{device="half"}', value: 0.5}, {labels: '{device="idle"}', value: 1}, {labels: '{device="powerless"}', value: 1}, {labels: '{device="shared"}', value: 0}]
      - expr: <tenants>
        eval_time: 8m
        exp_samples: [{labels: '{device="half"}', value: 1}, {labels: '{device="idle"}', value: 0}, {labels: '{device="powerless"}', value: 0}, {labels: '{device="shared"}', value: 2}]
      - {expr: <sampled GPUs>, eval_time: 8m, exp_samples: [{labels: '{}', value: 4}]}
      - {expr: <GPUs without power>, eval_time: 8m, exp_samples: [{labels: '{}', value: 1}]}
  - name: sums over the record have the workloads without series of their own
    interval: 1m
    input_series:
      - {series: 'eadt_workload_record_energy_joules{namespace="a",workload="x",origin="measured"}', values: '600x10'}
      - {series: 'eadt_workload_record_energy_joules{origin="measured"}', values: '400x10'}
      - {series: 'eadt_workload_compared_joules{namespace="a",workload="x",origin="measured"}', values: '300x10'}
      - {series: 'eadt_workload_compared_joules{origin="measured"}', values: '100x10'}
      - {series: 'eadt_workload_saving_joules{namespace="a",workload="x",origin="measured"}', values: '-10x10'}
      - {series: 'eadt_workload_saving_joules{origin="measured"}', values: '30x10'}
    promql_expr_test:
      - {expr: <record energy>, eval_time: 8m, exp_samples: [{labels: '{}', value: 1000}]}
      - {expr: 'eadt:compared_energy:ratio', eval_time: 8m, exp_samples: [{labels: 'eadt:compared_energy:ratio', value: 0.4}]}
      - {expr: 'eadt:saving_joules:sum', eval_time: 8m, exp_samples: [{labels: 'eadt:saving_joules:sum', value: 20}]}
  - name: figures of the same span are divided
    interval: 1m
    input_series:
      - {series: 'eadt_workload_progress_energy_joules_total{namespace="a",workload="x",origin="measured"}', values: '0+6000x20'}
      - {series: 'eadt_workload_samples_total{namespace="a",workload="x",origin="measured"}', values: '0+1000x20'}
      - {series: 'eadt_workload_samples_total{namespace="a",workload="idle",origin="measured"}', values: '0x20'}
    promql_expr_test:
      - expr: eadt:workload_joules_per_sample:rate10m
        eval_time: 15m
        exp_samples: [{labels: 'eadt:workload_joules_per_sample:rate10m{namespace="a",workload="x"}', value: 6}]
  - name: figures that are known only from the sixth scrape on begin together
    interval: 1m
    input_series:
      - {series: 'eadt_workload_samples_without_energy_total{namespace="a",workload="x",origin="measured"}', values: '0+1000x5 5000x15'}
      - {series: 'eadt_workload_progress_energy_joules_total{namespace="a",workload="x",origin="measured"}', values: '_x5 6000+6000x15'}
      - {series: 'eadt_workload_samples_total{namespace="a",workload="x",origin="measured"}', values: '_x5 1000+1000x15'}
    promql_expr_test:
      - expr: eadt:workload_joules_per_sample:rate10m
        eval_time: 5m
        exp_samples: []
      - expr: eadt:workload_joules_per_sample:rate10m
        eval_time: 8m
        exp_samples: [{labels: 'eadt:workload_joules_per_sample:rate10m{namespace="a",workload="x"}', value: 6}]
"#;
