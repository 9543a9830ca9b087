// Two workloads, or two times of one, side by side: the figures of `eadt report --compare`, and both charts at one scale.
import { useMemo, useRef } from "preact/hooks";
import { type CompareFigure, type ComparePage, type CompareSide, type FigurePair, type FleetPage, query, type Series, workloadPath } from "./api";
import { Chart, type Line } from "./chart";
import { changesNote, count, digits, duration, interval, joules, moment, perSample, signedPercent, UNKNOWN, visible, watts } from "./format";
import { LayoutText, OriginBadge, Problem, savingText, WithCode } from "./parts";
import { changed, href, type Live, type Route, useData, workloadHref } from "./state";

const FIGURES: [CompareFigure, string, (value: number | null) => string, "less" | "more" | null][] = [
  ["joules_per_sample", "Energy per sample, J", perSample, "less"],
  ["samples_per_second", "Samples/s, over the whole time", digits, "more"],
  ["mean_power_watts", "Mean power", watts, null],
  ["energy_joules", "Energy", joules, null],
  ["samples", "Samples", digits, null],
  ["duration_seconds", "Duration", duration, null],
  ["cost", "Cost", digits, null],
  ["co2_grams", "CO₂, g", digits, null],
];

type Key = "a" | "b";
const time = (route: Route, key: string): number | null => Number(route.params.get(key)) || null;

export function Compare({ route, live }: { route: Route; live: Live }) {
  const [a, b] = [route.params.get("a"), route.params.get("b")];
  const range = (key: Key) => ({ from: time(route, `${key}_from`), to: time(route, `${key}_to`) });
  const [of_a, of_b] = [range("a"), range("b")];
  const path =
    a && b ? `compare${query({ a, b, a_from_ms: of_a.from, a_to_ms: of_a.to, b_from_ms: of_b.from, b_to_ms: of_b.to })}` : null;
  const { data, error } = useData<ComparePage>(path, live.tick);
  const series = (name: string | null, { from, to }: { from: number | null; to: number | null }) =>
    name === null ? null : `${workloadPath(name)}/series${query({ from_ms: from, to_ms: to, points: 240 })}`;
  const { data: one } = useData<Series>(series(a, of_a), live.tick);
  const { data: two } = useData<Series>(series(b, of_b), live.tick);
  const { data: fleet } = useData<FleetPage>("fleet?sort=name&limit=200", live.tick);
  const names = fleet?.rows.map((row) => row.workload) ?? [];
  return (
    <>
      <h1>Compare</h1>
      <p class="muted">
        Two workloads, or two times of one. Everything is of the whole record unless a time is given. <a href={href(["runs"])}>Two runs</a> have a view of their own.
      </p>
      <section class="panel" aria-labelledby="what-heading">
        <h2 id="what-heading">What is compared</h2>
        <div class="columns">
          <Choice route={route} side="a" label="This" names={names} />
          <Choice route={route} side="b" label="With this" names={names} />
        </div>
      </section>
      {path !== null && <Problem error={error} />}
      {path !== null && data && <Figures page={data} work={otherWork(data, one, two)} />}
      {path !== null && data && one && two && <Charts page={data} one={one} two={two} />}
    </>
  );
}

/** Milliseconds as a field for local dates has them, in UTC; and back. */
const fieldText = (ms: number | null): string => (ms === null ? "" : new Date(ms).toISOString().slice(0, 19));

function Choice({ route, side, label, names }: { route: Route; side: Key; label: string; names: string[] }) {
  const form = useRef<HTMLFormElement>(null);
  const go = (event: Event) => {
    event.preventDefault();
    const given = new FormData(form.current ?? undefined);
    const ms = (key: string): string | null => {
      const text = String(given.get(key) ?? "");
      const value = text === "" ? Number.NaN : Date.parse(`${text.length === 16 ? `${text}:00` : text}Z`);
      return Number.isFinite(value) ? String(value) : null;
    };
    location.hash = changed(route, { [side]: String(given.get("name") ?? "").trim() || null, [`${side}_from`]: ms("from"), [`${side}_to`]: ms("to") });
  };
  return (
    <form ref={form} class="choose" onSubmit={go} aria-label={label}>
      <label>
        {label}
        <input name="name" list={`names-${side}`} defaultValue={route.params.get(side) ?? ""} autocomplete="off" spellcheck={false} placeholder="namespace/name" />
      </label>
      <datalist id={`names-${side}`}>
        {names.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <label>
        from (UTC)
        <input name="from" type="datetime-local" step="1" defaultValue={fieldText(time(route, `${side}_from`))} />
      </label>
      <label>
        to (UTC)
        <input name="to" type="datetime-local" step="1" defaultValue={fieldText(time(route, `${side}_to`))} />
      </label>
      <button type="submit" class="button">
        Compare
      </button>
    </form>
  );
}

function sideName(side: CompareSide): string {
  const from = side.from_ms === null ? "the start" : moment(side.from_ms);
  const to = side.to_ms === null ? "the end" : moment(side.to_ms);
  return side.part ? `from ${from} to ${to}` : "the whole record";
}

function Heading({ side }: { side: CompareSide }) {
  return (
    <>
      <a href={workloadHref(side.workload)} class="name">
        <bdi>{visible(side.workload)}</bdi>
      </a>
      <span class="when">{sideName(side)}</span>
      <OriginBadge origin={side.report.origin} />
    </>
  );
}

/** Returns why neither side is called better: two jobs, or two times of one in other phases; `null` if nothing shows it. */
function otherWork(page: ComparePage, one: Series | null, two: Series | null): string | null {
  if (page.a.workload !== page.b.workload) return "a sample of one job is not a sample of another, so neither is called better";
  if (one === null || two === null) return null;
  const phases = (series: Series) => [...new Set(series.phase.filter((phase) => phase !== null))].sort((a, b) => a - b);
  const [first, second] = [phases(one), phases(two)];
  if (first.length === 0 || second.length === 0 || first.join() === second.join()) return null;
  const named = (list: number[]) => (list.length === 1 ? `phase ${list[0]}` : `phases ${list.join(", ")}`);
  return `the first time is of ${named(first)} of the job's work, the second of ${named(second)}: a sample may take another energy there whatever the layout, so neither is called better`;
}

/** Why changes are not computed. */
export function Refusals({ texts }: { texts: string[] }) {
  return (
    <>
      {texts.map((text) => (
        <span key={text} class="refusal">
          <span aria-hidden="true">✗</span> refused: <WithCode text={visible(text)} />
        </span>
      ))}
    </>
  );
}

/** With its sign, and a word where one direction is the better one. */
export function Change({ pair, better }: { pair: FigurePair; better: "less" | "more" | null }) {
  const { change_ratio: ratio } = pair;
  if (ratio === null) return <span class="unknown">{UNKNOWN}</span>;
  const text = signedPercent(ratio);
  if (better === null || Math.abs(ratio) < 0.0005) return <span>{text}</span>;
  const good = ratio < 0 === (better === "less");
  return (
    <span class={good ? "tone-good" : "tone-bad"}>
      <span aria-hidden="true">{good ? "✓" : "✗"}</span> {text}
      <span class="sr">{good ? " better" : " worse"}</span>
    </span>
  );
}

function Figures({ page, work }: { page: ComparePage; work: string | null }) {
  const { a, b } = page;
  const rows = FIGURES.filter(([key]) => page.figures[key].this !== null || page.figures[key].other !== null);
  const saved = ({ part, report, saving_verdict, saving_is_whole }: CompareSide) =>
    part ? UNKNOWN : savingText({ ...report, saving_verdict, saving_is_whole });
  const changes = ({ report }: CompareSide) => `${count(report.changes)} (${changesNote(report)})`;
  return (
    <section class="panel" aria-labelledby="figures-heading">
      <h2 id="figures-heading">Figures</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of figures">
        <table class="plain compare">
          <thead>
            <tr>
              <td />
              <th scope="col">
                <Heading side={a} />
              </th>
              <th scope="col">
                <Heading side={b} />
              </th>
              <th scope="col" class="num">
                Change
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(([key, label, text, better]) => (
              <tr key={key}>
                <th scope="row">{label}</th>
                <td>{text(page.figures[key].other)}</td>
                <td>{text(page.figures[key].this)}</td>
                <td class="num">
                  <Change pair={page.figures[key]} better={work === null ? better : null} />
                </td>
              </tr>
            ))}
            <tr>
              <th scope="row">Saved against its own start</th>
              <td title={interval(a.report.saving_ratio_low, a.report.saving_ratio_high)}>{saved(a)}</td>
              <td title={interval(b.report.saving_ratio_low, b.report.saving_ratio_high)}>{saved(b)}</td>
              <td />
            </tr>
            <tr>
              <th scope="row">Changes</th>
              <td>{changes(a)}</td>
              <td>{changes(b)}</td>
              <td />
            </tr>
            <tr>
              <th scope="row">Layout now</th>
              <td>
                <LayoutText layout={a.layout} />
              </td>
              <td>
                <LayoutText layout={b.layout} />
              </td>
              <td />
            </tr>
          </tbody>
        </table>
      </div>
      <Refusals texts={page.figures.refusals} />
      <ul class="notes">
        {[...(work === null ? [] : [work]), ...new Set([...page.notes, ...notesOf(a), ...notesOf(b)])].map((note) => (
          <li key={note}>
            <WithCode text={visible(note)} />
          </li>
        ))}
      </ul>
    </section>
  );
}

const notesOf = ({ workload, report }: CompareSide): string[] => report.notes.map((note) => `${workload}: ${note}`);

function Charts({ page, one, two }: { page: ComparePage; one: Series; two: Series }) {
  const clip = useMemo((): [number, number] | null => {
    let [least, most] = [Infinity, -Infinity];
    for (const series of [one, two]) {
      series.joules_per_sample.forEach((value, index) => {
        if (value === null || series.restarted[index]) return;
        [least, most] = [Math.min(least, value), Math.max(most, value)];
      });
    }
    return least <= most ? [least, most] : null;
  }, [one, two]);
  return (
    <section class="panel" aria-labelledby="charts-heading">
      <h2 id="charts-heading">Energy per sample, at one scale</h2>
      <div class="columns">
        <Half side={page.a} series={one} clip={clip} colour="--c1" />
        <Half side={page.b} series={two} clip={clip} colour="--c3" />
      </div>
    </section>
  );
}

function Half({ side, series, clip, colour }: { side: CompareSide; series: Series; clip: [number, number] | null; colour: string }) {
  const times = useMemo(() => series.time_ms.map((time) => time / 1000), [series]);
  const lines: Line[] = [{ label: "J/sample", values: series.joules_per_sample, colour, format: perSample }];
  if (times.length < 2) return <p class="empty">Too few windows for a chart.</p>;
  return <Chart title={`${visible(side.workload)}, ${sideName(side)}`} unit="J" times={times} lines={lines} restarts={series.restarted} phases={series.phase} height={190} clip={clip} />;
}

/** The link from a workload's page: with itself, before and after the middle of what is shown, for the viewer to change. */
export function compareHref(workload: string, series: Series | null): string {
  const { first_ms: first, last_ms: last } = series ?? { first_ms: null, last_ms: null };
  if (first === null || last === null) return href(["compare"], { a: workload, b: workload });
  const middle = Math.round((first + last) / 120_000) * 60_000;
  return href(["compare"], { a: workload, a_to: middle, b: workload, b_from: middle });
}
