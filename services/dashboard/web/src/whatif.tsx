// What if another controller had decided: what the record shows of it, beside what was recorded.
import { type Estimate, type FleetPage, query, type Series, type WhatIfPage, workloadPath } from "./api";
import { count, counted, moment, percent, perSample, signedPercent, visible, watts } from "./format";
import { LayoutChange, OriginBadge, Problem, savingText, Stat, Waiting, WithCode } from "./parts";
import { changed, href, type Route, useData, workloadHref } from "./state";

const CONTROLLERS = ["hybrid", "power-cap", "frequency", "matrix", "matrix-literal"];

export function WhatIf({ route }: { route: Route }) {
  const workload = route.params.get("workload") ?? "";
  // None is chosen to begin with: the one that made the record would be compared with itself.
  const controller = route.params.get("controller");
  // A question is work: it is asked once, and not again with every window.
  const { data, error } = useData<WhatIfPage>(controller === null || workload === "" ? null : `what-if${query({ workload, controller })}`, 0);
  const { data: series } = useData<Series>(workload === "" ? null : `${workloadPath(workload)}/series${query({ points: 2000 })}`, 0);
  if (workload === "") return <ChooseWorkload route={route} />;
  const shown = controller !== null && data?.controller === controller && data.workload === workload ? data : null;
  return (
    <>
      <nav class="crumbs" aria-label="Where this is">
        <a href={href(["fleet"])}>Fleet</a> <span aria-hidden="true">/</span>{" "}
        <a href={workloadHref(workload)}>
          <bdi>{visible(workload)}</bdi>
        </a>
      </nav>
      <header class="title">
        <h1>What if {controller === null ? "another controller" : visible(controller)} had decided?</h1>
        {shown && <OriginBadge origin={shown.origin} />}
        <span class="badge tone-busy">imagined: nothing of it was run</span>
      </header>
      <nav class="choice" aria-label="Controller">
        {CONTROLLERS.map((name) => (
          <a key={name} href={changed(route, { controller: name })} aria-current={name === controller ? "true" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <Problem error={error} />
      {controller === null && <p class="empty">Choose the controller whose decisions are imagined on this record.</p>}
      {shown !== null && shown.recorded_controller !== null && shown.recorded_controller === controller && (
        <p class="muted">The record was made under {visible(shown.recorded_controller)} itself: differences come from its settings and from what the record does not show.</p>
      )}
      {controller !== null && !shown && error === null && <Waiting text="Going through the record" detail="One question at a time; it may take some seconds" />}
      {shown && <Answer page={shown} series={series} />}
    </>
  );
}

/** An address without a workload: which one is meant? */
function ChooseWorkload({ route }: { route: Route }) {
  const { data, error } = useData<FleetPage>("fleet?sort=name&limit=200", 0);
  return (
    <>
      <h1>What if another controller had decided?</h1>
      <Problem error={error} />
      <p class="empty">Choose the workload on whose record its decisions are imagined.</p>
      <ul class="parts">
        {data?.rows.map(({ workload }) => (
          <li key={workload}>
            <a href={changed(route, { workload })} class="name clip" title={visible(workload)}>
              <bdi>{visible(workload)}</bdi>
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}

/** The phase that the workload's chart has at a time, in words; empty: none is known there. */
function phaseText(series: Series | null, time: number): string {
  let at = -1;
  series?.time_ms.forEach((point, index) => {
    if (point <= time && series.phase[index] !== null) at = index;
  });
  const phase = series?.phase[at] ?? null;
  return phase === null ? "" : `, phase ${phase}`;
}

/** Phases are numbered once on this page: as the workload's chart does. The look back has numbers of its own. */
const withoutPhaseNumber = (reason: string): string => reason.replace(/in phase \d+ of the job/, "in this phase of the job");

const ends = ({ low, high }: Estimate): string => `90 % interval ${signedPercent(low)} to ${signedPercent(high)}`;

function tone(estimate: Estimate | null): string | undefined {
  if (estimate === null || (estimate.low < 0 && estimate.high > 0)) return undefined;
  return estimate.value < 0 ? "good" : "bad";
}

function Answer({ page, series }: { page: WhatIfPage; series: Series | null }) {
  const { report, joules_per_sample_change: estimate } = page;
  const unusable = page.windows - page.windows_as_recorded - page.windows_estimated - page.windows_unknown;
  return (
    <>
      <dl class="stats">
        <Stat
          label="Energy per sample, against the record"
          value={estimate === null ? "not known" : signedPercent(estimate.value)}
          tone={tone(estimate)}
          note={
            estimate !== null
              ? ends(estimate)
              : page.refused.length > 0
                ? "the record lacks changes that it would have made"
                : page.windows_as_recorded > 0
                  ? "wherever it is known, it would have had what was recorded"
                  : "the record ran nothing that shows it"
          }
        />
        <Stat
          label="Of the usable windows, known"
          value={percent(page.known_ratio, 0)}
          note={`${counted(page.windows_unknown, "window")} of which nothing shows what would have been; ${unusable === 0 ? "all are usable" : `${count(unusable)} not usable`}`}
        />
        <Stat label="Recorded, in those windows" value={`${perSample(page.recorded_joules_per_sample)} J`} note={page.recorded_controller ? `a sample, under ${visible(page.recorded_controller)}` : "a sample"} />
        <Stat label="Changes" value={count(page.changes.length)} note={`${count(page.recorded_changes)} in the record; ${counted(page.restarts, "imagined restart")}`} />
        <Stat
          label="Refused"
          value={count(page.refused.length)}
          note="changes whose effect is not in the record"
          tone={page.refused.length > 0 ? "busy" : undefined}
        />
      </dl>
      <section class="panel" aria-labelledby="beside-heading">
        <h2 id="beside-heading">Beside what was recorded</h2>
        <dl class="facts">
          {(
            [
              ["Windows", count(page.windows)],
              ["As recorded", `${count(page.windows_as_recorded)}: the controller would have had the same layout`],
              ["Estimated", `${count(page.windows_estimated)}: by windows of that layout from other times`],
              ["Unknown", `${count(page.windows_unknown)}: nothing shows what would have been`],
              ["Not usable", `${count(unusable)}: restarts, changes, and windows without energy or progress`],
              ["Recorded over the whole run", report ? `${perSample(report.joules_per_sample)} J/sample, ${watts(report.mean_power_watts)}` : "not here"],
              ["Saved in the record", report && report.saving_ratio !== null ? `${savingText({ ...report, saving_verdict: "unknown", saving_is_whole: page.saving_is_whole })}, against its starting layout` : "not here"],
            ] as const
          ).map(([label, text]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
        {page.notes.length > 0 && (
          <ul class="notes">
            {page.notes.map((note) => (
              <li key={note}>
                <WithCode text={visible(note)} />
              </li>
            ))}
          </ul>
        )}
      </section>
      <section class="panel" aria-labelledby="changes-heading">
        <h2 id="changes-heading">Changes that the record can follow</h2>
        <p class="muted">Phases beside a time are those of the workload's chart. Those at the beginning of a reason are the imagined controller's: it counts the ones that it has met.</p>
        {page.changes.length === 0 ? (
          <p class="empty">None.</p>
        ) : (
          <ol class="steps">
            {page.changes.map((row) => (
              <li key={`${row.time_ms}${row.reason}`}>
                <b>{row.action_text}</b> <span class="muted">
                  {moment(row.time_ms)}
                  {phaseText(series, row.time_ms)}
                </span>{" "}
                <LayoutChange from={row.from} to={row.to} />
                <p>
                  <bdi>{visible(row.reason)}</bdi>
                </p>
                <p class="muted">
                  {row.effect === null ? "too few windows of the old layout to know its effect" : `${signedPercent(row.effect.value)} J/sample, ${ends(row.effect)}`}, by {counted(row.windows, "window")}
                </p>
              </li>
            ))}
          </ol>
        )}
      </section>
      <section class="panel" aria-labelledby="refused-heading">
        <h2 id="refused-heading">Refused: the effect of these is not known</h2>
        {page.refused.length === 0 ? (
          <p class="empty">None.</p>
        ) : (
          <ol class="steps">
            {page.refused.map((row) => (
              <li key={`${row.time_ms}${row.reason}`}>
                <b>{row.action === "maintain" ? "back to the layout of the record" : row.action_text}</b>{" "}
                <span class="muted">
                  {moment(row.time_ms)}
                  {phaseText(series, row.time_ms)}
                  {row.count > 1 ? `, and ${count(row.count - 1)} times more` : ""}
                </span>{" "}
                <LayoutChange from={row.from} to={row.to} />
                <p>
                  <bdi>{visible(withoutPhaseNumber(row.reason))}</bdi>
                </p>
              </li>
            ))}
          </ol>
        )}
        {page.left_out > 0 && <p class="muted">{count(page.left_out)} more are not shown: eadt backtest --archive lists them.</p>}
      </section>
    </>
  );
}

export const whatIfHref = (workload: string): string => href(["what-if"], { workload });
