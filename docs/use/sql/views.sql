-- One view for each topic of an archive, for DuckDB from 2.0 on: `efficiency.windows.v1` is `efficiency_windows_v1`.
-- Printed by `eadt archive views PATH`, which takes any archive.
CREATE OR REPLACE VIEW gpu_telemetry_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "workload", NULL::VARCHAR AS "device", NULL::VARCHAR AS "collector",
  NULL::VARCHAR AS "meter", NULL::VARCHAR AS "origin", NULL::VARCHAR AS "node", NULL::BIGINT AS "gpu_index",
  NULL::VARCHAR AS "gpu_model", NULL::BOOLEAN AS "last", NULL::BIGINT AS "tenure", NULL::DOUBLE AS "share",
  NULL::VARCHAR AS "share_method", NULL::BIGINT AS "tenants", NULL::DOUBLE AS "power_watts", NULL::DOUBLE AS "power_average_watts",
  NULL::DOUBLE AS "energy_joules_total", NULL::DOUBLE AS "utilization_ratio", NULL::DOUBLE AS "memory_utilization_ratio", NULL::DOUBLE AS "graphics_active_ratio",
  NULL::DOUBLE AS "sm_active_ratio", NULL::DOUBLE AS "sm_occupancy_ratio", NULL::DOUBLE AS "tensor_active_ratio", NULL::DOUBLE AS "fp32_active_ratio",
  NULL::DOUBLE AS "dram_active_ratio", NULL::DOUBLE AS "pcie_transmit_bytes_per_second", NULL::DOUBLE AS "pcie_receive_bytes_per_second", NULL::BIGINT AS "memory_used_bytes",
  NULL::BIGINT AS "memory_total_bytes", NULL::DOUBLE AS "sm_clock_mhz", NULL::DOUBLE AS "memory_clock_mhz", NULL::DOUBLE AS "temperature_celsius",
  NULL::DOUBLE AS "memory_temperature_celsius", NULL::DOUBLE AS "power_limit_watts", NULL::VARCHAR AS "throttle_reasons", NULL::BIGINT AS "processes",
  NULL::BOOLEAN AS "mig_enabled", NULL::BOOLEAN AS "mps_enabled", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value",
  NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time",
  NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset",
  NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone",
  NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=gpu.telemetry.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW training_progress_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "workload", NULL::BIGINT AS "rank", NULL::VARCHAR AS "collector",
  NULL::VARCHAR AS "scope", NULL::VARCHAR AS "origin", NULL::VARCHAR AS "phase", NULL::BOOLEAN AS "last",
  NULL::VARCHAR AS "span", NULL::DOUBLE AS "samples_total", NULL::DOUBLE AS "tokens_total", NULL::DOUBLE AS "steps_total",
  NULL::DOUBLE AS "samples_per_second", NULL::DOUBLE AS "tokens_per_second", NULL::DOUBLE AS "loss", NULL::DOUBLE AS "epoch",
  NULL::TIMESTAMPTZ AS "checkpoint_time", NULL::DOUBLE AS "steps_remaining", NULL::DOUBLE AS "remaining_seconds", NULL::BIGINT AS "global_batch_size",
  NULL::BIGINT AS "world_size", NULL::VARCHAR AS "backend", NULL::VARCHAR AS "precision", NULL::DOUBLE AS "overflow_skips_total",
  NULL::DOUBLE AS "gradient_norm", NULL::BIGINT AS "frozen_prefix_layers", NULL::BIGINT AS "mps_thread_percentage", NULL::DOUBLE AS "validation_loss",
  NULL::DOUBLE AS "learning_rate", NULL::DOUBLE AS "loss_scale", NULL::BIGINT AS "layers", NULL::VARCHAR AS "plasticity",
  NULL::VARCHAR AS "live_knobs", NULL::VARCHAR AS "decision_id", NULL::VARCHAR AS "directive_refused", NULL::VARCHAR AS "extra_json",
  NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id",
  NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition",
  NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp",
  NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic",
  NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=training.progress.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW workloads_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "workload", NULL::VARCHAR AS "origin", NULL::VARCHAR AS "kind",
  NULL::BIGINT AS "generation", NULL::BIGINT AS "layout_replicas", NULL::BIGINT AS "layout_mps_thread_percentage", NULL::BIGINT AS "layout_world_size",
  NULL::BIGINT AS "layout_local_world_size", NULL::DOUBLE AS "layout_power_limit_watts", NULL::DOUBLE AS "layout_sm_clock_mhz", NULL::VARCHAR AS "layout_precision",
  NULL::BIGINT AS "layout_frozen_prefix_layers", NULL::VARCHAR AS "mode", NULL::BOOLEAN AS "paused", NULL::VARCHAR AS "mode_set_by",
  NULL::VARCHAR AS "pause_set_by", NULL::VARCHAR AS "controller", NULL::VARCHAR AS "controller_settings", NULL::BIGINT AS "bounds_mps_thread_percentage_min",
  NULL::BIGINT AS "bounds_mps_thread_percentage_max", NULL::BIGINT AS "bounds_replicas_min", NULL::BIGINT AS "bounds_replicas_max", NULL::DOUBLE AS "bounds_power_limit_watts_min",
  NULL::DOUBLE AS "bounds_power_limit_watts_max", NULL::DOUBLE AS "bounds_sm_clock_mhz_min", NULL::DOUBLE AS "bounds_sm_clock_mhz_max", NULL::BIGINT AS "bounds_oversubscription_percentage_max",
  NULL::VARCHAR AS "bounds_precisions", NULL::BIGINT AS "bounds_frozen_prefix_layers_max", NULL::BIGINT AS "bounds_restarts_per_day_max", NULL::BIGINT AS "gpus",
  NULL::VARCHAR AS "gpu_model", NULL::DOUBLE AS "gpu_power_limit_watts", NULL::VARCHAR AS "backend", NULL::BIGINT AS "global_batch_size",
  NULL::DOUBLE AS "price_per_kwh", NULL::DOUBLE AS "carbon_grams_per_kwh", NULL::VARCHAR AS "decision_id", NULL::TIMESTAMPTZ AS "ready_time",
  NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=workloads.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW efficiency_windows_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "id", NULL::VARCHAR AS "workload", NULL::VARCHAR AS "kind", NULL::VARCHAR AS "span",
  NULL::TIMESTAMPTZ AS "window_start", NULL::TIMESTAMPTZ AS "window_end", NULL::VARCHAR AS "origin", NULL::VARCHAR AS "meter",
  NULL::DOUBLE AS "energy_joules", NULL::VARCHAR AS "energy_method", NULL::DOUBLE AS "energy_coverage_ratio", NULL::DOUBLE AS "energy_largest_gap_seconds",
  NULL::DOUBLE AS "counter_contradicted_seconds", NULL::DOUBLE AS "counter_difference_joules", NULL::DOUBLE AS "unassigned_energy_joules", NULL::BOOLEAN AS "run_declared",
  NULL::TIMESTAMPTZ AS "observed_start", NULL::TIMESTAMPTZ AS "observed_end", NULL::DOUBLE AS "run_seconds", NULL::DOUBLE AS "run_energy_joules",
  NULL::DOUBLE AS "run_coverage_ratio", NULL::DOUBLE AS "samples", NULL::DOUBLE AS "samples_redone", NULL::DOUBLE AS "tokens",
  NULL::DOUBLE AS "steps", NULL::DOUBLE AS "unassigned_samples", NULL::DOUBLE AS "unassigned_tokens", NULL::DOUBLE AS "unassigned_steps",
  NULL::DOUBLE AS "progress_coverage_ratio", NULL::DOUBLE AS "progress_largest_gap_seconds", NULL::DOUBLE AS "progress_silent_ratio", NULL::DOUBLE AS "samples_per_second",
  NULL::DOUBLE AS "joules_per_sample", NULL::DOUBLE AS "joules_per_sample_running", NULL::DOUBLE AS "samples_per_joule", NULL::DOUBLE AS "tokens_per_joule",
  NULL::DOUBLE AS "mean_power_watts", NULL::DOUBLE AS "mean_power_per_gpu_watts", NULL::DOUBLE AS "cost", NULL::DOUBLE AS "co2_grams",
  NULL::DOUBLE AS "mean_utilization_ratio", NULL::DOUBLE AS "mean_memory_utilization_ratio", NULL::DOUBLE AS "mean_sm_active_ratio", NULL::DOUBLE AS "mean_sm_occupancy_ratio",
  NULL::DOUBLE AS "mean_tensor_active_ratio", NULL::DOUBLE AS "mean_dram_active_ratio", NULL::DOUBLE AS "mean_sm_clock_mhz", NULL::DOUBLE AS "mean_temperature_celsius",
  NULL::DOUBLE AS "max_temperature_celsius", NULL::DOUBLE AS "mean_loss", NULL::BIGINT AS "layout_replicas", NULL::BIGINT AS "layout_mps_thread_percentage",
  NULL::BIGINT AS "layout_world_size", NULL::BIGINT AS "layout_local_world_size", NULL::DOUBLE AS "layout_power_limit_watts", NULL::DOUBLE AS "layout_sm_clock_mhz",
  NULL::VARCHAR AS "layout_precision", NULL::BIGINT AS "layout_frozen_prefix_layers", NULL::BIGINT AS "generation", NULL::BOOLEAN AS "restarted",
  NULL::BOOLEAN AS "only_settings_changed", NULL::BOOLEAN AS "gap", NULL::BIGINT AS "gpus", NULL::BIGINT AS "tenants",
  NULL::VARCHAR AS "shared_devices", NULL::BIGINT AS "ranks", NULL::BIGINT AS "events", NULL::BIGINT AS "late",
  NULL::BIGINT AS "stale", NULL::BIGINT AS "duplicates", NULL::BIGINT AS "late_tables", NULL::VARCHAR AS "extra_json",
  NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id",
  NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition",
  NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp",
  NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic",
  NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=efficiency.windows.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW decisions_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "id", NULL::VARCHAR AS "workload", NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "origin",
  NULL::VARCHAR AS "controller", NULL::VARCHAR AS "controller_version", NULL::VARCHAR AS "action", NULL::VARCHAR AS "reason",
  NULL::BIGINT AS "from_replicas", NULL::BIGINT AS "from_mps_thread_percentage", NULL::BIGINT AS "from_world_size", NULL::BIGINT AS "from_local_world_size",
  NULL::DOUBLE AS "from_power_limit_watts", NULL::DOUBLE AS "from_sm_clock_mhz", NULL::VARCHAR AS "from_precision", NULL::BIGINT AS "from_frozen_prefix_layers",
  NULL::BIGINT AS "to_replicas", NULL::BIGINT AS "to_mps_thread_percentage", NULL::BIGINT AS "to_world_size", NULL::BIGINT AS "to_local_world_size",
  NULL::DOUBLE AS "to_power_limit_watts", NULL::DOUBLE AS "to_sm_clock_mhz", NULL::VARCHAR AS "to_precision", NULL::BIGINT AS "to_frozen_prefix_layers",
  NULL::BIGINT AS "generation", NULL::BOOLEAN AS "restarts", NULL::VARCHAR AS "evidence", NULL::VARCHAR AS "validation",
  NULL::TIMESTAMPTZ AS "expires", NULL::VARCHAR AS "concerns", NULL::TIMESTAMPTZ AS "hold_until", NULL::VARCHAR AS "model_version",
  NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=decisions.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW actuations_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "id", NULL::VARCHAR AS "decision_id", NULL::VARCHAR AS "workload", NULL::TIMESTAMPTZ AS "time",
  NULL::VARCHAR AS "origin", NULL::VARCHAR AS "outcome", NULL::VARCHAR AS "reason", NULL::BIGINT AS "layout_replicas",
  NULL::BIGINT AS "layout_mps_thread_percentage", NULL::BIGINT AS "layout_world_size", NULL::BIGINT AS "layout_local_world_size", NULL::DOUBLE AS "layout_power_limit_watts",
  NULL::DOUBLE AS "layout_sm_clock_mhz", NULL::VARCHAR AS "layout_precision", NULL::BIGINT AS "layout_frozen_prefix_layers", NULL::BIGINT AS "generation",
  NULL::DOUBLE AS "downtime_seconds", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type",
  NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject",
  NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key",
  NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json",
  NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=actuations.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW directives_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "workload", NULL::VARCHAR AS "decision_id", NULL::VARCHAR AS "precision",
  NULL::BIGINT AS "frozen_prefix_layers", NULL::BOOLEAN AS "checkpoint_now", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value",
  NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time",
  NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset",
  NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone",
  NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=directives.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW device_intents_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "node", NULL::VARCHAR AS "decision_id", NULL::VARCHAR AS "device",
  NULL::DOUBLE AS "power_limit_watts", NULL::DOUBLE AS "sm_clock_mhz", NULL::BIGINT AS "mps_default_thread_percentage", NULL::DOUBLE AS "time_to_live_seconds",
  NULL::VARCHAR AS "devices", NULL::VARCHAR AS "mps_tenants", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value",
  NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time",
  NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset",
  NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone",
  NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=device-intents.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW device_states_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "node", NULL::VARCHAR AS "agent_version", NULL::BOOLEAN AS "stopped",
  NULL::TIMESTAMPTZ AS "intent_time", NULL::VARCHAR AS "decision_id", NULL::TIMESTAMPTZ AS "live_until", NULL::VARCHAR AS "devices",
  NULL::VARCHAR AS "mps_default_outcome", NULL::VARCHAR AS "mps_default_reason", NULL::BIGINT AS "mps_default_thread_percentage", NULL::BIGINT AS "original_mps_default_thread_percentage",
  NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=device-states.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW device_holders_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "node", NULL::VARCHAR AS "devices", NULL::VARCHAR AS "unplaced",
  NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=device-holders.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW models_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::TIMESTAMPTZ AS "time", NULL::VARCHAR AS "name", NULL::VARCHAR AS "version", NULL::VARCHAR AS "data_fingerprint",
  NULL::VARCHAR AS "metrics", NULL::VARCHAR AS "parameters", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value",
  NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time",
  NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset",
  NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone",
  NULL::VARCHAR AS "headers_json", NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=models.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW dead_letters_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "reason", NULL::VARCHAR AS "detail", NULL::VARCHAR AS "field", NULL::VARCHAR AS "origin_topic",
  NULL::BIGINT AS "origin_partition", NULL::BIGINT AS "origin_offset", NULL::TIMESTAMPTZ AS "origin_timestamp", NULL::VARCHAR AS "origin_key",
  NULL::VARCHAR AS "refused_by", NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type",
  NULL::VARCHAR AS "ce_source", NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject",
  NULL::VARCHAR AS "kafka_topic", NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key",
  NULL::BLOB AS "kafka_key_bytes", NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json",
  NULL::DATE AS "date", NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=dead-letters.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW processor_state_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=processor-state.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
CREATE OR REPLACE VIEW simulator_state_v1 AS
SELECT * EXCLUDE (empty) FROM (
SELECT NULL::VARCHAR AS "extra_json", NULL::BLOB AS "value", NULL::VARCHAR AS "ce_type", NULL::VARCHAR AS "ce_source",
  NULL::VARCHAR AS "ce_id", NULL::TIMESTAMPTZ AS "ce_time", NULL::VARCHAR AS "ce_subject", NULL::VARCHAR AS "kafka_topic",
  NULL::BIGINT AS "kafka_partition", NULL::BIGINT AS "kafka_offset", NULL::VARCHAR AS "kafka_key", NULL::BLOB AS "kafka_key_bytes",
  NULL::TIMESTAMPTZ AS "kafka_timestamp", NULL::BOOLEAN AS "kafka_tombstone", NULL::VARCHAR AS "headers_json", NULL::DATE AS "date",
  NULL::VARCHAR AS "topic", NULL::BOOLEAN AS "empty"
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet('eadt-data/archive/topic=simulator-state.v1/*/*.parquet',
  hive_partitioning = true, union_by_name = true, allow_empty = true)
);
