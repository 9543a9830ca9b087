// The pipeline itself: where the figures come from, what was counted, what was refused.
import type { Stage, StageName } from "./api";
import { count, duration, moment, UNKNOWN } from "./format";
import { Stalls, Stat } from "./parts";
import { type Live, useQuiet } from "./state";

/** What a reason of a dead letter means. */
const REASONS: Record<string, string> = {
  malformed: "no valid event",
  invalid_value: "a value that cannot be",
  future_time: "a time too far ahead of the log's",
  late: "its window was closed already",
  stale: "not newer than the last of its source",
  state_limit: "too many workloads or sources",
  wrong_key: "under another key than its workload's",
  unexpected_type: "another type than its topic's",
};

/** Each stage with who does it. */
const STAGES: Record<StageName, [string, string]> = {
  samples: ["Samples of GPUs", "collectors"],
  windows: ["Windows", "the processor"],
  decisions: ["Decisions", "the processor"],
  actuations: ["Outcomes", "the actuator"],
};

/** What a stage is behind of, in words. */
function behind({ stage, behind_seconds: seconds }: Stage): string {
  if (seconds === null) return UNKNOWN;
  return stage === "windows" ? `${duration(seconds)} behind the samples` : `a decision waits for ${duration(seconds)}`;
}

function Stages({ stages }: { stages: Stage[] }) {
  return (
    <section class="panel" aria-labelledby="stages-heading">
      <h2 id="stages-heading">How far each stage is</h2>
      <table class="fleet">
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col">By</th>
            <th scope="col">Newest</th>
            <th scope="col">Behind</th>
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {stages.map((row) => (
            <tr key={row.stage}>
              <th scope="row">{STAGES[row.stage][0]}</th>
              <td data-label="By">{STAGES[row.stage][1]}</td>
              <td data-label="Newest">{moment(row.newest_ms)}</td>
              <td data-label="Behind">{behind(row)}</td>
              <td data-label="State">{row.stalled !== null ? <span class="tone-bad">✗ stalled</span> : row.newest_ms === null ? <span class="tone-calm">○ none yet</span> : <span class="tone-good">✓</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

export function Pipeline({ live }: { live: Live }) {
  const { overview } = live;
  const quiet = useQuiet(overview);
  if (!overview) return <h1>Pipeline</h1>;
  const { counts, source } = overview;
  const left: [string, number][] = [
    ["events that could not be read", counts.unreadable],
    ["events of workloads beyond the limit of this page", counts.beyond_limit],
    ["decisions dropped for newer ones", counts.decisions_dropped],
    ["workloads whose record is too long for a saving to be computed here", counts.without_saving],
  ];
  return (
    <>
      <h1>Pipeline</h1>
      <p class="muted">
        {source.place} · {source.kind === "archive" ? "an archive, read once" : "followed as it grows"} · newest window {moment(overview.now_ms)} · eadt {source.version}
        {quiet !== null && ` · no sample and no window for ${duration(quiet)}`}
      </p>
      <Stalls overview={overview} />
      <dl class="stats">
        <Stat label="Windows" value={count(counts.windows)} />
        <Stat label="Decisions" value={count(counts.decisions)} />
        <Stat label="Changes made" value={count(counts.changes)} note={`of ${count(counts.decided_changes)} that were decided; ${count(counts.recommendations)} only recommended`} />
        <Stat label="Taken back" value={count(counts.reverts)} />
        <Stat label="Refused events" value={count(counts.dead_letters)} tone={counts.dead_letters > 0 ? "bad" : "good"} note={counts.dead_letters > 0 ? "by reason below" : "none"} />
      </dl>
      {source.kind === "live" && <Stages stages={overview.stages} />}
      <section class="panel" aria-labelledby="dead-heading">
        <h2 id="dead-heading">Events that were refused</h2>
        {overview.dead_letters.length === 0 ? (
          <p class="empty">None. Each would be in the topic of dead letters with its reason.</p>
        ) : (
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Reason</th>
                <th scope="col">What it means</th>
                <th scope="col" class="num">
                  Events
                </th>
              </tr>
            </thead>
            <tbody>
              {overview.dead_letters.map(([reason, events]) => (
                <tr key={reason}>
                  <th scope="row">{reason.replaceAll("_", " ")}</th>
                  <td>{REASONS[reason] ?? "–"}</td>
                  <td class="num">{count(events)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </section>
      <section class="panel" aria-labelledby="left-heading">
        <h2 id="left-heading">What this page leaves out</h2>
        <dl class="facts">
          {left.map(([label, events]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{count(events)}</dd>
            </div>
          ))}
        </dl>
      </section>
    </>
  );
}
