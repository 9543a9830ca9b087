-- One view a topic over the archive in ./eadt-data, for DuckDB: `efficiency.windows.v1` is `efficiency_windows_v1`.
-- Another place: replace `eadt-data/archive`.
CREATE OR REPLACE VIEW gpu_telemetry_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=gpu.telemetry.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW training_progress_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=training.progress.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW workloads_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=workloads.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW efficiency_windows_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=efficiency.windows.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW decisions_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=decisions.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW actuations_v1 AS
SELECT * FROM read_parquet('eadt-data/archive/topic=actuations.v1/*/*.parquet', hive_partitioning = true, union_by_name = true);
