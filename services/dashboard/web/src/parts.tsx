// Small pieces that several views have.
import type { ComponentChildren } from "preact";
import type { DecisionRow, FleetRow, Layout, Origin, Overview, SavingFigures, State } from "./api";
import { STATES, actionBadge, interval, layoutParts, percent, saving, visible } from "./format";

export function StateBadge({ state }: { state: State }) {
  const { mark, word, tone, meaning } = STATES[state];
  return (
    <span class={`badge tone-${tone}`} title={meaning}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}

export function ActionBadge({ row }: { row: DecisionRow }) {
  const { mark, word, tone } = actionBadge(row);
  return (
    <span class={`badge tone-${tone}`}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}

const ORIGINS: Record<Origin, string> = {
  measured: "read from devices by this pipeline",
  imported: "taken from a recording that others made",
  simulated: "computed by the simulator, measured nowhere",
};

export function OriginBadge({ origin, mixed = false }: { origin: Origin | null; mixed?: boolean }) {
  if (mixed) {
    return (
      <span class="badge origin" title="figures of several origins: each row shows its own">
        several origins
      </span>
    );
  }
  if (origin === null) return null;
  return (
    <span class={`badge origin origin-${origin}`} title={ORIGINS[origin]}>
      {origin}
    </span>
  );
}

/** A figure with its name above and what qualifies it below. */
export function Stat(props: { label: string; value: string; note?: ComponentChildren; tone?: string; title?: string }) {
  return (
    <div class={props.tone ? `stat tone-${props.tone}` : "stat"} title={props.title}>
      <dt>{props.label}</dt>
      <dd>
        <span class="value">{props.value}</span>
        {props.note && <span class="note">{props.note}</span>}
      </dd>
    </div>
  );
}

/** A number and its unit: the unit is smaller. */
export function LayoutText({ layout }: { layout: Layout | null }) {
  const parts = layoutParts(layout);
  if (parts.length === 0) return <span class="unknown">–</span>;
  return (
    <span class="layout">
      {parts.map(([knob, text]) => (
        <span key={knob} title={knob}>
          {text}
        </span>
      ))}
    </span>
  );
}

/** What changes between two layouts. */
export function LayoutChange({ from, to }: { from: Layout; to: Layout }) {
  const [before, after] = [new Map(layoutParts(from)), new Map(layoutParts(to))];
  const knobs = [...new Set([...before.keys(), ...after.keys()])].filter((knob) => before.get(knob) !== after.get(knob));
  if (knobs.length === 0) return <span class="muted">same layout</span>;
  return (
    <span class="layout-change">
      {knobs.map((knob) => (
        <span key={knob} title={knob}>
          <s>
            <span class="sr">{knob} from </span>
            {before.get(knob) ?? "no limit"}
          </s>{" "}
          <span aria-hidden="true">→</span>
          <span class="sr"> to </span> <b>{after.get(knob) ?? "no limit"}</b>
        </span>
      ))}
    </span>
  );
}

/** Good or bad is only what is clear and of the whole run. */
export function savingTone({ saving_verdict, saving_is_whole }: SavingFigures): string {
  if (!saving_is_whole) return "calm";
  return saving_verdict === "saved" ? "good" : saving_verdict === "lost" ? "bad" : "calm";
}

/** The saving in a heading: of a part it is none of the run. */
export function wholeSaving(figures: SavingFigures): string {
  if (figures.saving_ratio !== null && !figures.saving_is_whole) return "not known";
  return saving(figures.saving_ratio, figures.saving_ratio_low, figures.saving_ratio_high);
}

/** The text below it. */
export function savingNote(figures: SavingFigures & { energy_joules: number | null }): string {
  if (figures.saving_ratio === null) {
    if (figures.energy_joules === null) return "no energy is known";
    return figures.saving_verdict === "unchanged" ? "nothing was changed" : "nothing to compare with";
  }
  const part = percent(figures.compared_energy_ratio, 0);
  const unclear = figures.saving_verdict === "unclear" ? "no clear saving" : "";
  if (figures.saving_is_whole) return [unclear, `${part} of the energy is comparable`].filter(Boolean).join("; ");
  const of = saving(figures.saving_ratio, figures.saving_ratio_low, figures.saving_ratio_high);
  return [`only of ${part} of the known energy: ${of}`, unclear].filter(Boolean).join(", ");
}

/** The saving beside others, with the part of the energy that it is of. */
export function savingText(figures: SavingFigures): string {
  const text = saving(figures.saving_ratio, figures.saving_ratio_low, figures.saving_ratio_high);
  return figures.saving_ratio === null || figures.saving_is_whole ? text : `${text}, only of ${percent(figures.compared_energy_ratio, 0)} of the known energy`;
}

export function SavingText({ row }: { row: FleetRow }) {
  if (row.saving_left_out) {
    return (
      <span class="unknown" title="the record is too long for this page to estimate it: eadt report does">
        not here
      </span>
    );
  }
  const title = row.saving_ratio === null ? "not known: nothing was changed yet, or nothing can be compared" : interval(row.saving_ratio_low, row.saving_ratio_high);
  return (
    <span class={`tone-${savingTone(row)}`} title={title}>
      {saving(row.saving_ratio, row.saving_ratio_low, row.saving_ratio_high)}
      {row.saving_ratio !== null && !row.saving_is_whole && <small> of {percent(row.compared_energy_ratio, 0)}</small>}
    </span>
  );
}

/** A line without axes; its figures are in the row and on the workload's page. */
export function Sparkline({ values }: { values: number[] }) {
  if (values.length < 2) return <span class="unknown">–</span>;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const height = (value: number) => (most > least ? 21 - ((value - least) / (most - least)) * 18 : 12);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * 96 + 2).toFixed(1)},${height(value).toFixed(1)}`);
  const end = points.at(-1)?.split(",") ?? ["0", "0"];
  return (
    <svg class="sparkline" viewBox="0 0 100 24" width="100" height="24" aria-hidden="true" focusable="false">
      <polyline points={points.join(" ")} />
      <circle cx={end[0]} cy={end[1]} r="2" />
    </svg>
  );
}

/** Text in which what is between backticks is code. */
export function WithCode({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}</>;
}

/** Text whose dates and times are not broken over lines. */
export function WithTimes({ text }: { text: string }) {
  const parts = text.split(/(\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?: UTC)?)?)/);
  return (
    <>
      {parts.map((part, index) =>
        index % 2 === 1 ? (
          <span key={index} class="whole">
            {part}
          </span>
        ) : (
          part
        ),
      )}
    </>
  );
}

export function Problem({ error }: { error: string | null }) {
  return error === null ? null : (
    <p class="problem" role="alert">
      {error}
    </p>
  );
}

/** What of the pipeline has stopped. */
export function Stalls({ overview }: { overview: Overview }) {
  const problem = overview.problem === null ? null : `the log cannot be read: ${overview.problem}`;
  const texts: [string, string | null][] = [["problem", problem], ...overview.stages.map((stage): [string, string | null] => [stage.stage, stage.stalled])];
  return (
    <>
      {texts.map(([key, text]) =>
        text === null ? null : (
          <p key={key} class="problem" role="status">
            <WithCode text={visible(text)} />
          </p>
        ),
      )}
    </>
  );
}

export function Waiting({ text, detail }: { text: string; detail?: string }) {
  return (
    <div class="waiting" role="status">
      <span class="pulse" aria-hidden="true" />
      <div>
        <p>{text}</p>
        {detail && <p class="muted">{detail}</p>}
      </div>
    </div>
  );
}
