// The pipeline itself: where the figures come from, what was counted, what was refused.
import { count, moment } from "./format";
import { Stat } from "./parts";
import type { Live } from "./state";

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

export function Pipeline({ live }: { live: Live }) {
  const { overview } = live;
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
      </p>
      <dl class="stats">
        <Stat label="Windows" value={count(counts.windows)} />
        <Stat label="Decisions" value={count(counts.decisions)} />
        <Stat label="Changes made" value={count(counts.changes)} note={`of ${count(counts.decided_changes)} that were decided; ${count(counts.recommendations)} only recommended`} />
        <Stat label="Taken back" value={count(counts.reverts)} />
        <Stat label="Refused events" value={count(counts.dead_letters)} tone={counts.dead_letters > 0 ? "bad" : "good"} note={counts.dead_letters > 0 ? "by reason below" : "none"} />
      </dl>
      <section class="panel" aria-labelledby="dead-heading">
        <h2 id="dead-heading">Events that were refused</h2>
        {overview.dead_letters.length === 0 ? (
          <p class="empty">None. Each would stand in the topic of dead letters with its reason.</p>
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
