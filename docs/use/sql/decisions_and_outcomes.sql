-- What was decided, and what became of it.
SELECT d.workload,
       d.controller,
       d.action,
       coalesce(a.outcome, 'unanswered') AS outcome,
       count(*) AS decisions,
       avg(a.downtime_seconds) AS mean_downtime_seconds
FROM decisions_v1 AS d
LEFT JOIN (SELECT decision_id, max(outcome) AS outcome, max(downtime_seconds) AS downtime_seconds
           FROM actuations_v1 WHERE outcome <> 'applied' GROUP BY decision_id) AS a ON a.decision_id = d.id
WHERE d.action <> 'maintain'
GROUP BY d.workload, d.controller, d.action, coalesce(a.outcome, 'unanswered')
ORDER BY d.workload, d.controller, d.action, outcome
