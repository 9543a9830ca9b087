-- J/sample and power by hour.
SELECT workload,
       date_trunc('hour', window_start) AS hour,
       sum(energy_joules) / 3600.0 AS mean_power_watts,
       sum(energy_joules) / sum(samples) AS joules_per_sample,
       sum(samples_redone) AS samples_redone
FROM efficiency_windows_v1
WHERE kind = 'tumbling'
GROUP BY workload, date_trunc('hour', window_start)
ORDER BY workload, hour
