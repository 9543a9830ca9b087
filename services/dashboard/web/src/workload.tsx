// One workload: what it takes, what was saved, and why each decision was made.
import { useMemo } from "preact/hooks";
import { addressMoment, type DecisionPage, type DecisionRow, query, type Series, type WorkloadDetail, workloadPath } from "./api";
import { compareHref } from "./compare";
import { copy } from "./copy";
import { TermsButtons } from "./terms";
import { whatIfHref } from "./whatif";
import { Chart, type Line, type Mark } from "./chart";
import { actionBadge, changesNote, clock, count, counted, day, digits, duration, interval, joules, kwh, moment, perSample, percent, visible, watts } from "./format";
import { SavingBridge } from "./saving";
import { ActionBadge, LayoutChange, LayoutText, OriginBadge, Problem, savingNote, savingTone, Stat, StateBadge, Waiting, WithCode, wholeSaving } from "./parts";
import { changed, decisionHref, href, type Live, type Route, useData } from "./state";

/** Decisions that are marked in the chart, and those that are listed. */
const DECISIONS = 200;
const LISTED = 12;

export function Workload({ name, route, live }: { name: string; route: Route; live: Live }) {
  const path = workloadPath(name);
  const { data: detail, error } = useData<WorkloadDetail>(path, live.tick);
  const range = useRange(route, detail ? (detail.row.window_end_ms ?? live.overview?.now_ms ?? null) : null);
  // A range ends at its newest window, which is asked for first.
  const isRangeKnown = range.hours === null || range.to !== null || detail !== null;
  const { data: series } = useData<Series>(isRangeKnown ? `${path}/series${query({ from_ms: range.from, to_ms: range.to, points: 300 })}` : null, live.tick);
  const { data: decisions } = useData<DecisionPage>(`decisions${query({ workload: name, limit: DECISIONS })}`, live.tick);
  const [namespace = "", short = ""] = name.split("/", 2);

  return (
    <>
      <nav class="crumbs" aria-label="Where this is">
        <a href={href(["fleet"])}>Fleet</a> <span aria-hidden="true">/</span>{" "}
        <a href={href(["fleet"], { q: `${namespace}/` })}>{visible(namespace)}</a>
      </nav>
      <header class="title">
        <h1>
          <bdi>{visible(short)}</bdi>
        </h1>
        {detail && <StateBadge state={detail.row.state} />}
        {detail && <OriginBadge origin={detail.row.origin} />}
        {detail && <LayoutText layout={detail.row.layout} />}
        {detail?.declaration && <TermsButtons workload={name} terms={detail.declaration} recommended={null} />}
        {copy === null && detail && (
          <nav class="links" aria-label="More on this workload">
            <a class="button" href={compareHref(name, series)}>
              Compare
            </a>
            {addressMoment() === null && (
              <>
                <a class="button" href={whatIfHref(name)}>
                  What if
                </a>
                <a class="button" href={`/api/v1/export${query({ workload: name })}`} download>
                  Export
                </a>
              </>
            )}
          </nav>
        )}
      </header>
      <Problem error={error} />
      {detail && <Figures detail={detail} isLive={live.overview?.source.kind !== "archive"} />}
      {detail?.why_no_energy && (
        <section class="panel" aria-labelledby="no-energy-heading">
          <h2 id="no-energy-heading">Why its energy is not known</h2>
          <p class="why sentence">
            <WithCode text={visible(detail.why_no_energy)} />
          </p>
        </section>
      )}
      {detail && detail.row.window_end_ms === null && detail.row.state === "ended" && <p class="empty">The record holds no window of it.</p>}
      {detail && detail.row.window_end_ms === null && detail.row.state !== "ended" && (
        <Waiting text={live.overview?.waiting_for ?? "Waiting for the first window of this workload to close"} />
      )}
      {series && series.first_ms !== null && (
        <Charts series={series} decisions={decisions?.rows ?? []} route={route} range={range} />
      )}
      {detail?.saving_parts && <SavingBridge parts={detail.saving_parts} row={detail.row} />}
      {decisions && <Decisions page={decisions} name={name} />}
      {detail && <Facts detail={detail} />}
    </>
  );
}

interface Range {
  hours: number | null;
  from: number | null;
  to: number | null;
}

/** `hours` back from `to`, or from the end of its newest window. */
function useRange(route: Route, newest: number | null): Range {
  const hours = Number(route.params.get("hours")) || null;
  const to = Number(route.params.get("to")) || null;
  const end = to ?? newest;
  const from = hours === null || end === null ? null : Math.floor((end - hours * 3_600_000) / 60_000) * 60_000;
  return { hours, from, to };
}

function Figures({ detail, isLive }: { detail: WorkloadDetail; isLive: boolean }) {
  const { row, report } = detail;
  if (row.window_end_ms === null) return null;
  const ended = row.state === "ended";
  // Of such a one the newest window is long past.
  const silent = row.state === "silent" || (ended && row.power_watts === null);
  return (
    <dl class="stats">
      <Stat
        label="Energy per sample"
        value={`${perSample(report?.joules_per_sample ?? row.joules_per_sample)} J`}
        note={report ? (row.joules_per_sample === null ? "over the whole run" : `newest window ${perSample(row.joules_per_sample)} J`) : "newest window"}
      />
      <Stat
        label="Energy saved"
        value={row.saving_left_out ? "not here" : wholeSaving(row)}
        tone={savingTone(row)}
        title={interval(row.saving_ratio_low, row.saving_ratio_high)}
        note={
          row.saving_left_out
            ? "the record is too long for this page: eadt report computes it"
            : row.saving_ratio === null
              ? savingNote(row)
              : `${joules(row.saving_joules)}; ${savingNote(row)}`
        }
      />
      <Stat
        label="Throughput kept"
        value={percent(row.throughput_kept_ratio)}
        note={row.samples_per_second === null ? undefined : `${digits(row.samples_per_second)} samples/s ${ended ? "at the end" : isLive ? "now" : "then"}`}
      />
      <Stat
        label={silent ? "Power" : ended ? "Power at the end" : isLive ? "Power now" : "Power then"}
        value={silent ? watts(report?.mean_power_watts) : watts(row.power_watts)}
        note={silent ? `mean of the run${ended ? "" : "; no report lately"}` : `${row.gpus === null ? `by a ${report?.meter ?? "?"} meter` : row.gpus === 0 ? "no GPU reported" : counted(row.gpus, "GPU")}${detail.max_temperature_celsius === null ? "" : `, up to ${digits(detail.max_temperature_celsius, 2)} °C`}`}
      />
      <Stat
        label="Energy used"
        value={joules(report?.energy_joules)}
        note={
          detail.why_no_energy
            ? "not known: see the reason below"
            : report
              ? `${kwh(report.energy_joules)} in ${duration(report.duration_seconds)}, ${percent(report.coverage_ratio, 0)} covered`
              : undefined
        }
      />
    </dl>
  );
}

const LEGEND = { change: "busy", good: "good", bad: "bad" };

function Charts({ series, decisions, route, range }: { series: Series; decisions: DecisionRow[]; route: Route; range: Range }) {
  const times = useMemo(() => series.time_ms.map((time) => time / 1000), [series]);
  const clip = useMemo(() => energyRange(series), [series]);
  const power: Line[] = [
    {
      label: "power",
      values: series.power_watts,
      colour: "--c1",
      format: watts,
      ...(series.windows_per_point > 1 ? { band: [series.power_watts_min, series.power_watts_max] } : {}),
    },
  ];
  const hasBaseline = series.baseline_joules_per_sample.some((value) => value !== null);
  const energy: Line[] = [
    {
      label: "J/sample",
      values: series.joules_per_sample,
      colour: "--c2",
      format: perSample,
      ...(series.windows_per_point > 1 ? { band: [series.joules_per_sample_min, series.joules_per_sample_max] } : {}),
    },
    ...(hasBaseline
      ? [{ label: "starting layout, estimated", values: series.baseline_joules_per_sample, colour: "--muted", dashed: true, format: perSample }]
      : []),
  ];
  const marks: Mark[] = decisions
    .filter((row) => row.action !== "maintain" || row.validation === "kept" || row.validation === "failed")
    .map((row) => {
      const { mark, word, tone } = actionBadge(row);
      return {
        time: row.time_ms / 1000,
        text: mark,
        tone: tone in LEGEND ? LEGEND[tone as keyof typeof LEGEND] : tone,
        kind: word,
        href: decisionHref(row.workload, row.id),
        title: `${clock(row.time_ms)} ${word}: ${visible(row.reason)}`,
      };
    });
  const [hasPower, hasEnergy] = [isKnown(series.power_watts), isKnown(series.joules_per_sample)];
  const shared = { times, phases: series.phase, restarts: series.restarted, group: "workload" };
  return (
    <section class="panel" aria-labelledby="series-heading">
      <header class="panel-head">
        <h2 id="series-heading">Power and energy per sample</h2>
        {copy === null && <Ranges route={route} range={range} series={series} />}
      </header>
      {times.length < 2 && (
        <p class="empty">
          {times.length === 0 ? "No window" : "Only one window"} of it in this time: it reported from {moment(series.first_ms)} to {moment(series.last_ms)}.
        </p>
      )}
      {times.length > 1 && hasPower && <Chart {...shared} {...(hasEnergy ? { rules: marks } : { marks })} title="Power" unit="W" lines={power} height={150} fromZero />}
      {times.length > 1 && hasEnergy && <Chart {...shared} title="Energy per sample" unit="J" lines={energy} height={190} clip={clip} marks={marks} />}
      {times.length > 1 && !hasPower && !hasEnergy && <p class="empty">Neither its power nor its energy is known in this time.</p>}
      <p class="legend-note">
        {series.windows_per_point > 1 && `Each point is ${series.windows_per_point} windows; the band is their least and greatest. `}
        {series.restarted.some(Boolean) && "Hatched: restarts, cut where they leave the scale. "}
        {series.phase.some((phase) => (phase ?? 0) > 1) && "Shaded: phases of the job's work. "}
        {series.coarse && "The record is long: these are means of intervals, without the report's estimate. "}
        Times are UTC.
      </p>
    </section>
  );
}

const isKnown = (values: (number | null)[]): boolean => values.some((value) => value !== null);

/** What the scale shows: everything but restarts. */
function energyRange(series: Series): [number, number] | null {
  let [least, most] = [Infinity, -Infinity];
  series.time_ms.forEach((_, index) => {
    const values = [series.baseline_joules_per_sample[index]];
    if (!series.restarted[index]) values.push(series.joules_per_sample[index]);
    for (const value of values) {
      if (value === null || value === undefined) continue;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  });
  return least <= most ? [least, most] : null;
}

function Ranges({ route, range, series }: { route: Route; range: Range; series: Series }) {
  const { hours, from } = range;
  const step = (hours ?? 0) * 3_600_000;
  const first = series.first_ms ?? 0;
  const last = series.last_ms ?? 0;
  const end = range.to ?? last;
  return (
    <nav class="choice" aria-label="Time range">
      {hours !== null && from !== null && from > first && (
        <a href={changed(route, { to: String(Math.max(first + step, end - step)) })} aria-label={`${hours} h earlier`}>
          ◀
        </a>
      )}
      {[1, 6, 24].map((choice) => (
        <a key={choice} href={changed(route, { hours: String(choice) })} aria-current={hours === choice ? "true" : undefined}>
          {choice} h
        </a>
      ))}
      <a href={changed(route, { hours: null, to: null })} aria-current={hours === null ? "true" : undefined}>
        all
      </a>
      {range.to !== null && end < last && (
        <a href={changed(route, { to: end + step >= last ? null : String(end + step) })} aria-label={`${hours} h later`}>
          ▶
        </a>
      )}
    </nav>
  );
}

function Decisions({ page, name }: { page: DecisionPage; name: string }) {
  return (
    <section class="panel" aria-labelledby="decisions-heading">
      <header class="panel-head">
        <h2 id="decisions-heading">What was decided, and why</h2>
      </header>
      {page.rows.length === 0 ? (
        <p class="empty">Nothing was decided yet: the first decision comes with the first window that closes.</p>
      ) : (
        <DecisionList rows={page.rows.slice(0, LISTED)} />
      )}
      {page.matching > LISTED && (
        <footer class="pager">
          <a class="button" href={href(["decisions"], { workload: name, skip: LISTED })}>
            {count(page.matching - LISTED)} older
          </a>
        </footer>
      )}
    </section>
  );
}

/** Decisions, newest first, with the day where it changes. */
export function DecisionList({ rows, withWorkload = false }: { rows: DecisionRow[]; withWorkload?: boolean }) {
  return (
    <ol class="decisions">
      {rows.map((row, index) => (
        <li key={row.id}>
          <a class="decision" href={decisionHref(row.workload, row.id)}>
            <span class="when">
              {(index === 0 || day(rows[index - 1]?.time_ms) !== day(row.time_ms)) && <span class="day">{day(row.time_ms)}</span>}
              <time dateTime={new Date(row.time_ms).toISOString()}>{clock(row.time_ms)}</time>
            </span>
            <span class="what">
              <ActionBadge row={row} />
              {row.outcome && !["ready", "recommended", "refused"].includes(row.outcome) && <span class="muted"> {row.outcome.replaceAll("_", " ")}</span>}
            </span>
            <span class={withWorkload ? "why" : "why sentence"}>
              {withWorkload && (
                <b class="clip" title={visible(row.workload)}>
                  <bdi>{visible(row.workload)}</bdi>
                </b>
              )}
              {row.action !== "maintain" && <LayoutChange from={row.from} to={row.to} />} <bdi>{visible(row.reason)}</bdi>
            </span>
          </a>
        </li>
      ))}
    </ol>
  );
}

/** The mode and the pause, with who set them. */
function modeText({ mode, mode_set_by, paused, pause_set_by }: NonNullable<WorkloadDetail["declaration"]>): string {
  const by = (who?: string | null) => (who ? ` by ${who}` : "");
  return `${mode}${by(mode_set_by)}${paused ? `, paused${by(pause_set_by)}` : ""}`;
}

function Facts({ detail }: { detail: WorkloadDetail }) {
  const { report, declaration, why_no_energy: why } = detail;
  // Why no energy is known is shown above.
  const notes = report?.notes.filter((note) => !why || !note.endsWith(why)) ?? [];
  const facts: [string, string | null | undefined][] = [
    ["Kind", declaration?.kind],
    ["Mode", declaration ? modeText(declaration) : null],
    ["Controller", declaration?.controller],
    ["GPU model", declaration?.gpu_model],
    ["Board limit", declaration?.gpu_power_limit_watts == null ? null : watts(declaration.gpu_power_limit_watts)],
    ["Global batch", declaration?.global_batch_size == null ? null : count(declaration.global_batch_size)],
    ["Changes", report ? `${count(report.changes)} (${changesNote(report, detail.row.is_unanswered ? 1 : 0)})` : null],
    ["Samples", report?.samples == null ? null : digits(report.samples)],
    ["Tokens", report?.tokens == null ? null : digits(report.tokens)],
    ["Meter", report?.meter],
    ["Cost", report?.cost == null ? null : `${digits(report.cost)} ${report.currency ?? ""}`],
    ["CO₂", report?.co2_grams == null ? null : `${digits(report.co2_grams)} g`],
    ["Windows", report ? count(report.windows) : null],
    ["Last window", moment(detail.row.window_end_ms)],
  ];
  return (
    <section class="panel" aria-labelledby="facts-heading">
      <header class="panel-head">
        <h2 id="facts-heading">What is known of it</h2>
      </header>
      <dl class="facts">
        {facts
          .filter(([, value]) => value)
          .map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>
                <bdi>{visible(String(value))}</bdi>
              </dd>
            </div>
          ))}
      </dl>
      {notes.length > 0 && (
        <>
          <h3>What a careful reader should know</h3>
          <ul class="notes">
            {notes.map((note) => (
              <li key={note}>
                <WithCode text={visible(note)} />
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}
