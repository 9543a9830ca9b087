// Figures as people read them. Unknown is a dash, never a zero.
import type { ChangeCounts, DecisionDetail, DecisionRow, Layout, State } from "./api";

export const UNKNOWN = "–";
type Figure = number | null | undefined;

const known = (value: Figure): value is number => value !== null && value !== undefined && Number.isFinite(value);

/** Whether a number with these digits is not zero. */
const isNotZero = (text: string): boolean => /[1-9]/.test(text);

/** With a minus sign that is as wide as a plus, and none before a zero. */
const withMinus = (text: string): string => text.replace("-", isNotZero(text) ? "−" : "");

/** With separators. */
const separated = (value: number, options?: Intl.NumberFormatOptions): string => withMinus(value.toLocaleString("en", options));

/** At most this many significant digits, with separators: 1,234 · 5.90 · 0.0123. */
export function digits(value: Figure, significant = 3): string {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 10 ** significant) return separated(Math.round(value));
  if (size === 0) return "0";
  const before = size >= 1 ? Math.floor(Math.log10(size)) + 1 : 0;
  return separated(value, size >= 1
    ? { minimumFractionDigits: significant - before, maximumFractionDigits: significant - before }
    : { maximumSignificantDigits: significant });
}

/** A number of things: no digit is left out. */
export const count = (value: Figure): string => (known(value) ? separated(value, { maximumFractionDigits: 2 }) : UNKNOWN);

/** A count with its noun, in the plural unless it is one. */
export const counted = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`;

const STEPS: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
];

/** With a unit and its prefix: `795 kJ`. */
export function quantity(value: Figure, unit: string, significant = 3): string {
  if (!known(value)) return UNKNOWN;
  const [step, prefix] = STEPS.find(([step]) => Math.abs(value) >= step) ?? [1, ""];
  return `${digits(value / step, significant)} ${prefix}${unit}`;
}

export const watts = (value: Figure): string => quantity(value, "W");
export const joules = (value: Figure): string => quantity(value, "J");
export const perSample = (value: Figure): string => digits(value, 4);
export const kwh = (value: Figure): string => (known(value) ? `${digits(value / 3.6e6)} kWh` : UNKNOWN);

export function percent(ratio: Figure, decimals = 1): string {
  return known(ratio) ? `${fixed(ratio * 100, decimals)} %` : UNKNOWN;
}

/** With this many decimals. */
export const fixed = (value: number, decimals: number): string => withMinus(value.toFixed(decimals));

/** A change in percent with its sign: `+3.1 %`. One that rounds to zero has no sign. */
export function signedPercent(ratio: number): string {
  const text = percent(ratio);
  return ratio > 0 && isNotZero(text) ? `+${text}` : text;
}

/** `8.9 % ± 1.1`: the interval is nearly even, and its half is what fits in a cell. */
export function saving(ratio: Figure, low: Figure, high: Figure): string {
  if (!known(ratio)) return UNKNOWN;
  const error = known(low) && known(high) ? ` ± ${fixed((high - low) * 50, 1)}` : "";
  return `${percent(ratio)}${error}`;
}

/** Both ends, for a title. */
export function interval(low: Figure, high: Figure): string {
  return known(low) && known(high) ? `90 % interval ${percent(low)} to ${percent(high)}` : "without an interval";
}

export function duration(seconds: Figure): string {
  if (!known(seconds)) return UNKNOWN;
  const units: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const at = units.findIndex(([size]) => seconds >= size);
  const first = units[at];
  if (!first) return `${digits(seconds, 2)} s`;
  const whole = Math.floor(seconds / first[0]);
  const second = units[at + 1];
  const rest = second ? Math.floor((seconds - whole * first[0]) / second[0]) : 0;
  return second && rest > 0 && at < 3 ? `${whole} ${first[1]} ${rest} ${second[1]}` : `${whole} ${first[1]}`;
}

/** What became of changes beside those that were made. */
export function changesNote({ changes, reverts, decided_changes, recommendations }: ChangeCounts, unanswered = 0): string {
  const rest = decided_changes - changes - recommendations;
  const waiting = Math.min(rest, unanswered);
  const others = rest - waiting;
  const parts = [
    changes === 0 ? "" : `${reverts === 0 ? "none" : count(reverts)} reverted`,
    recommendations > 0 ? `${count(recommendations)} recommended, not made` : "",
    waiting > 0 ? `${waiting === 1 ? "1 waits for its" : `${count(waiting)} wait for their`} outcome` : "",
    others > 0 ? `${count(others)} decided, not made` : "",
  ];
  return parts.filter((part) => part !== "").join("; ") || "none decided";
}

const two = (value: number): string => String(value).padStart(2, "0");

/** In UTC, as logs and reports have it. */
export function clock(ms: Figure): string {
  if (!known(ms)) return UNKNOWN;
  const date = new Date(ms);
  return `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
}

export function day(ms: Figure): string {
  if (!known(ms)) return UNKNOWN;
  return new Date(ms).toISOString().slice(0, 10);
}

export const moment = (ms: Figure): string => (known(ms) ? `${day(ms)} ${clock(ms)} UTC` : UNKNOWN);

const bare = (value: number): string => separated(value, { maximumFractionDigits: 1 });

/** A layout in one line: `6×50 % ≤300 W`. */
export function layoutText(layout: Layout | null | undefined): string {
  return layoutParts(layout).map(([, text]) => text).join(" ") || UNKNOWN;
}

/** What a layout turns, with its value in words. */
export function layoutParts(layout: Layout | null | undefined): [string, string][] {
  if (!layout) return [];
  const parts: [string, string][] = [];
  const { replicas, mps_thread_percentage: share } = layout;
  if (replicas !== undefined && share !== undefined) parts.push(["layout", `${replicas}×${share} %`]);
  else if (replicas !== undefined) parts.push(["layout", counted(replicas, "replica")]);
  else if (share !== undefined) parts.push(["layout", `${share} %`]);
  if (layout.power_limit_watts !== undefined) parts.push(["power limit", `≤${bare(layout.power_limit_watts)} W`]);
  if (layout.sm_clock_mhz !== undefined) parts.push(["SM clock limit", `≤${bare(layout.sm_clock_mhz)} MHz`]);
  if (layout.precision !== undefined) parts.push(["precision", layout.precision]);
  if (layout.frozen_prefix_layers !== undefined) parts.push(["frozen", `${counted(layout.frozen_prefix_layers, "layer")} frozen`]);
  return parts;
}

/** A shape and a word for each state, so that colour is never alone. */
export const STATES: Record<State, { mark: string; word: string; tone: string; meaning: string }> = {
  steady: { mark: "●", word: "steady", tone: "good", meaning: "nothing is being changed" },
  validating: { mark: "◔", word: "validating", tone: "busy", meaning: "a change is being checked" },
  rolling_out: { mark: "▲", word: "rolling out", tone: "busy", meaning: "a change was decided, and is not in force yet" },
  restarted: { mark: "↻", word: "restarted", tone: "busy", meaning: "the newest window holds a restart" },
  reverted: { mark: "✗", word: "reverted", tone: "bad", meaning: "the last change was reverted" },
  refused: { mark: "!", word: "refused", tone: "bad", meaning: "the cluster did not do what was decided" },
  paused: { mark: "‖", word: "paused", tone: "calm", meaning: "nothing is changed while it is paused" },
  waiting: { mark: "○", word: "waiting", tone: "calm", meaning: "no window has closed yet" },
  silent: { mark: "·", word: "silent", tone: "calm", meaning: "no report of it lately" },
  ended: { mark: "■", word: "ended", tone: "calm", meaning: "its run, or the record, has ended: nothing of it runs now" },
};

/** What a decision does, in the server's words, with a mark. */
export function actionBadge({ action, action_text, takes_back, validation, fate }: Pick<DecisionRow, "action" | "action_text" | "takes_back" | "validation" | "fate">): { mark: string; word: string; tone: string } {
  if (fate === "recommended") return { mark: "△", word: `${action_text} (recommended)`, tone: "calm" };
  if (fate === "not_allowed") return { mark: "△", word: `${action_text} (not made)`, tone: "calm" };
  if (fate === "refused") return { mark: "!", word: `${action_text} (refused)`, tone: "bad" };
  if (takes_back) return { mark: "✗", word: action_text, tone: "bad" };
  if (action !== "maintain") return { mark: "▲", word: action_text, tone: "busy" };
  if (validation === "kept") return { mark: "✓", word: action_text, tone: "good" };
  return { mark: validation === "failed" ? "○" : "–", word: action_text, tone: "calm" };
}

/** The end of a figure's name, with its unit, the factor to it, and what the end means for the quantity. */
const UNITS: [RegExp, string, number, string][] = [
  [/samples_per_second_per_watt$/, "samples/J", 1, "samples per joule"],
  [/joules_per_sample$/, "J/sample", 1, "energy per sample"],
  [/samples_per_second$/, "samples/s", 1, "throughput"],
  [/_per_second$/, "/s", 1, "per second"],
  [/joules$/, "J", 1, "energy"],
  [/watts$/, "W", 1, ""],
  [/mhz$/, "MHz", 1, ""],
  [/seconds$/, "s", 1, ""],
  [/gib$/, "GiB", 1, ""],
  [/celsius$/, "°C", 1, ""],
  [/(ratio|utilization)$/, "%", 100, ""],
  [/percentage$/, "%", 1, ""],
];

/** What follows the unit in a name. */
const ENDS: Record<string, string> = { min: ", at least", max: ", at most", running: ", downtime left out" };

/** Figures of the controllers whose names alone do not explain them. */
const LABELS: Record<string, string> = {
  joules_per_sample: "Energy per sample, newest window",
  joules_per_sample_running: "Energy per sample, newest window, downtime left out",
  samples_per_second: "Throughput, newest window",
  power_watts: "Power, newest window",
  power_per_gpu_watts: "Power per GPU, newest window",
  energy_coverage_ratio: "Part of the window with known energy",
  progress_coverage_ratio: "Part of the window with known progress",
  gpus: "GPUs",
  phase: "Phase, as the controller counts them",
  power_limit_watts: "Power limit",
  sm_clock_limit_mhz: "SM clock limit",
  restarts_last_day: "Restarts in the last 24 h",
  reference_samples_per_second: "Throughput without a limit",
  reference_samples_per_second_min: "Throughput that is to be kept",
  reference_joules_per_sample: "Energy per sample without a limit",
  measured_windows: "Windows measured at this setting",
  measured_joules_per_sample: "Energy per sample at this setting",
  gain_ratio: "Energy per sample that the last change saved",
  objective_gain_ratio: "What the last change gained by the objective",
  throughput_ratio: "Throughput that the last change left",
  hold_out_extra_watts: "Power that the hold-out takes beyond the limit",
};

/** The name of a figure in words, and its value with the unit that the name has. */
export function evidence(name: string, value: number): { label: string; text: string } {
  const [, base = name, end = ""] = /^(.*)_(min|max|running)$/.exec(name) ?? [];
  const unit = UNITS.find(([pattern]) => pattern.test(base));
  const [, symbol, factor, quantity] = unit ?? [null, "", 1, ""];
  const when = base.startsWith("before_") ? ", before the last change" : base.startsWith("after_") ? ", after the last change" : "";
  const words = (unit ? base.replace(unit[0], quantity) : base).replace(/^(before|after)_/, "").replaceAll("_", " ").trim();
  const label = LABELS[name] ?? `${words.slice(0, 1).toUpperCase()}${words.slice(1)}${when}${ENDS[end] ?? ""}`;
  const scaled = value * factor;
  const figure = Number.isInteger(scaled) ? count(scaled) : digits(scaled, 4);
  return { label, text: symbol === "" ? figure : `${figure} ${symbol}` };
}

/** What a decision predicted of its change, and what its verdict found: saving, energy per sample, throughput. */
export interface Prediction {
  label: string;
  expected: string;
  found: string;
}

/** Predictions of a change beside the figures of its verdict. A change that only tries a setting predicts nothing. */
export function predictions({ action, reason, evidence: figures, verdict }: DecisionDetail): Prediction[] {
  if (action === "maintain") return [];
  const stated = (pattern: RegExp, group = 1): number | null => {
    const text = pattern.exec(reason)?.[group];
    return text === undefined ? null : Number(text);
  };
  // The controllers put what they expect into words; `layers` also has it as a figure.
  const words = stated(/(?:is expected to save|is better by) (\d+(?:\.\d+)?) %/);
  const saving = figures.expected_saving_ratio ?? (words === null ? null : words / 100);
  const best = /about (\d+(?:\.\d+)?) J\/sample at (\d+(?:\.\d+)?) % of the throughput without a limit/;
  const [energy, kept] = [stated(best, 1), stated(best, 2)];
  const { gain_ratio: gain, after_joules_per_sample: after, after_samples_per_second: rate, reference_samples_per_second: reference } = verdict?.evidence ?? {};
  const found = rate !== undefined && reference !== undefined && reference > 0 ? rate / reference : null;
  const rows: Prediction[] = [{ label: "Saving of energy per sample", expected: saving === null ? "none stated" : percent(saving), found: percent(gain) }];
  if (energy !== null) rows.push({ label: "Energy per sample", expected: `${perSample(energy)} J/sample`, found: after === undefined ? UNKNOWN : `${perSample(after)} J/sample` });
  if (kept !== null) rows.push({ label: "Throughput, of that without a limit", expected: percent(kept / 100, 0), found: percent(found, 0) });
  // Nothing was predicted, and nothing was found.
  return rows.filter((row) => row.expected !== "none stated" || row.found !== UNKNOWN);
}

/** Others wrote it: what moves the cursor, reorders text or cannot be seen is shown as its code. */
export function visible(text: string): string {
  return text.replace(STEERS, (character) =>
    [...Array(character.length).keys()].map((at) => `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""),
  );
}

const STEERS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufff0-\ufffb]/gu;
