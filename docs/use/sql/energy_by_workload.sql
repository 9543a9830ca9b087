-- Energy, samples and J/sample of each workload, from tumbling windows; coverage says how much of the time is known.
SELECT workload,
       origin,
       count(*) AS windows,
       sum(run_energy_joules) AS energy_joules,
       sum(samples) AS samples,
       sum(run_energy_joules) / sum(samples) AS joules_per_sample,
       avg(energy_coverage_ratio) AS mean_coverage_ratio
FROM efficiency_windows_v1
WHERE kind = 'tumbling'
GROUP BY workload, origin
ORDER BY workload, origin
