-- Samples, mean power and hottest reading of each device.
SELECT device,
       gpu_model,
       count(*) AS samples,
       avg(power_watts) AS mean_power_watts,
       max(temperature_celsius) AS max_temperature_celsius
FROM gpu_telemetry_v1
GROUP BY device, gpu_model
ORDER BY device, gpu_model
