-- Sliding windows: energy, samples and J/sample of the last ten minutes at the end of each tumbling window. With
-- processor.window_seconds = 5 and INTERVAL 55 SECOND these are windows of a minute, every five seconds.
SELECT workload,
       window_end,
       sum(run_energy_joules) OVER latest AS energy_joules,
       sum(samples) OVER latest AS samples,
       sum(run_energy_joules) OVER latest / nullif(sum(samples) OVER latest, 0) AS joules_per_sample
FROM efficiency_windows_v1
WHERE kind = 'tumbling'
WINDOW latest AS (PARTITION BY workload ORDER BY window_end RANGE BETWEEN INTERVAL 9 MINUTE PRECEDING AND CURRENT ROW)
ORDER BY workload, window_end
