// What the server answers, and how it is asked. Times are milliseconds since the Unix epoch.
import { answer, copy } from "./copy";

export type Origin = "measured" | "imported" | "simulated";
export type State =
  | "reverted"
  | "refused"
  | "rolling_out"
  | "restarted"
  | "validating"
  | "paused"
  | "steady"
  | "waiting"
  | "silent"
  | "ended";
export type NoticeKind = "change" | "kept" | "no_gain" | "revert" | "recommended" | "not_made" | "refused";
type Num = number | null;

export interface Layout {
  replicas?: number;
  mps_thread_percentage?: number;
  world_size?: number;
  local_world_size?: number;
  power_limit_watts?: number;
  sm_clock_mhz?: number;
  precision?: string;
  frozen_prefix_layers?: number;
}

/** Of the compared part; `unclear`: the interval holds zero. */
export interface SavingFigures {
  saving_joules: Num;
  saving_ratio: Num;
  saving_ratio_low: Num;
  saving_ratio_high: Num;
  compared_energy_ratio: Num;
  saving_verdict: "saved" | "lost" | "unclear" | "unknown" | "unchanged";
  /** Whether the saving may be called that of the whole run. */
  saving_is_whole: boolean;
}

export interface Totals extends SavingFigures {
  /** Workloads whose energy is not known; they are in no sum. */
  without_energy: number;
  /** The part of the energy that lies in no window. */
  unassigned_energy_joules: Num;
  /** Of their GPUs before their runs began and after they ended: in no other sum. */
  outside_run_energy_joules: Num;
  /** Why no energy is known at all. */
  why_no_energy: string | null;
  energy_joules: Num;
}

export interface ChangeCounts {
  /** Decided, whether or not they were made; reverts included. */
  decided_changes: number;
  /** Of those: recommended and not made. */
  recommendations: number;
  /** Of those: made. */
  changes: number;
  /** Reverts that were made. */
  reverts: number;
}

export interface Counts extends ChangeCounts {
  windows: number;
  decisions: number;
  dead_letters: number;
  unreadable: number;
  beyond_limit: number;
  decisions_dropped: number;
  without_saving: number;
}

export interface SourceFacts {
  kind: "live" | "archive";
  place: string;
  window_seconds: Num;
  version: string;
}

export type StageName = "samples" | "windows" | "decisions" | "actuations";

export interface Stage {
  stage: StageName;
  newest_ms: Num;
  behind_seconds: Num;
  /** What has stopped, and what to look at. */
  stalled: string | null;
}

/** Whether a replay of the record gave its own windows and decisions. */
export interface ReplayCheck {
  verdict: "running" | "identical" | "different" | "unknown";
  text: string;
}

export interface Overview {
  source: SourceFacts;
  version: number;
  now_ms: Num;
  first_ms: Num;
  replay: ReplayCheck | null;
  status: string;
  waiting_for: string | null;
  caught_up: boolean;
  origin: Origin | null;
  mixed_origins: boolean;
  workloads: number;
  running: number;
  needing_attention: number;
  power_watts: Num;
  power_known: number;
  idle_power_watts: Num;
  idle_devices: number;
  /** Of GPUs without a workload: a part of the energy of the totals. */
  energy_without_work_joules: Num;
  totals: Totals;
  saving_known: number;
  /** Workloads whose newest change no actuator has answered. */
  unanswered: number;
  counts: Counts;
  dead_letters: [string, number][];
  stages: Stage[];
  /** Why the log cannot be read at present. */
  problem: string | null;
  newest_figures_ms: Num;
}

export interface FleetRow extends SavingFigures {
  workload: string;
  origin: Origin | null;
  state: State;
  mode: "observe" | "recommend" | "enforce" | null;
  layout: Layout | null;
  gpus: Num;
  power_watts: Num;
  samples_per_second: Num;
  /** Of the newest window. */
  joules_per_sample: Num;
  /** As the report has it. */
  run_joules_per_sample: Num;
  energy_joules: Num;
  throughput_kept_ratio: Num;
  saving_left_out: boolean;
  is_unanswered: boolean;
  window_end_ms: Num;
  sparkline: number[];
}

export interface FleetPage {
  rows: FleetRow[];
  total: number;
  matching: number;
  before: number;
  next: string | null;
}

/** A cell for each workload that matches, as columns. */
export interface HeatStrip {
  total: number;
  names: string[];
  /** What the numbers of `state` stand for. */
  states: State[];
  state: number[];
  saving_ratio: Num[];
  /** 1: of the whole run, and the interval leaves out zero. */
  saving_is_clear: number[];
}

export interface PowerHistory {
  edges_ms: number[];
  layers: { kind: "workload" | "namespace" | "others" | "idle"; workload: string | null; namespace: string | null; power_watts: Num[] }[];
  /** In force last in each interval; of the workloads that share it. */
  budget: { power_watts: Num[]; workloads: Num } | null;
  marks: { time_ms: number; workload: string; decision_id: string; kind: NoticeKind }[];
  marks_left_out: number;
  others: number;
}

export interface WorkloadReport extends ChangeCounts {
  workload: string;
  energy_joules: Num;
  energy_kwh: Num;
  samples: Num;
  tokens: Num;
  joules_per_sample: Num;
  samples_per_joule: Num;
  tokens_per_joule: Num;
  duration_seconds: Num;
  /** Inside the run, over the covered time. */
  mean_power_watts: Num;
  coverage_ratio: Num;
  windows: number;
  decisions: number;
  origin: Origin;
  meter: string | null;
  cost: Num;
  currency: string | null;
  co2_grams: Num;
  saving_joules: Num;
  saving_ratio: Num;
  saving_ratio_low: Num;
  saving_ratio_high: Num;
  throughput_kept_ratio: Num;
  baseline_joules_per_sample: Num;
  compared_joules_per_sample: Num;
  compared_energy_ratio: Num;
  /** Only of a workload that shared its GPUs: alone on them, beside others, and the part of the energy beside others. */
  alone_joules_per_sample?: number;
  shared_joules_per_sample?: number;
  shared_energy_ratio?: number;
  /** Parts of the totals that are of no window. */
  unassigned_energy_joules?: number;
  unassigned_samples?: number;
  unassigned_tokens?: number;
  notes: string[];
}

export type SavingPartKind = "limits" | "layouts" | "taken_back" | "hold_outs" | "restarts" | "other";

/** From what the starting layout would have taken to what was taken: `baseline_joules` less all parts is `actual_joules`. */
export interface SavingParts {
  baseline_joules: number;
  /** `joules`: saved; negative: taken beyond the starting layout. */
  parts: { kind: SavingPartKind; joules: number; windows: number }[];
  actual_joules: number;
}

export interface WorkloadDetail {
  row: FleetRow;
  report: WorkloadReport | null;
  /** `null`: no saving is known. A file that an earlier version saved has none. */
  saving_parts?: SavingParts | null;
  /** And which setting or option changes that. */
  why_no_energy: string | null;
  declaration: {
    kind: string;
    mode: Mode;
    paused: boolean;
    mode_set_by: string | null;
    pause_set_by: string | null;
    controller: string | null;
    bounds: Record<string, unknown>;
    generation: number;
    gpus: Num;
    gpu_model: string | null;
    gpu_power_limit_watts: Num;
    global_batch_size: Num;
    price_per_kwh: Num;
    carbon_grams_per_kwh: Num;
  } | null;
  max_temperature_celsius: Num;
  coverage_ratio: Num;
}

export interface Series {
  time_ms: number[];
  power_watts: Num[];
  power_watts_min: Num[];
  power_watts_max: Num[];
  joules_per_sample: Num[];
  joules_per_sample_min: Num[];
  joules_per_sample_max: Num[];
  baseline_joules_per_sample: Num[];
  samples_per_second: Num[];
  phase: Num[];
  restarted: boolean[];
  windows_per_point: number;
  first_ms: Num;
  last_ms: Num;
  coarse: boolean;
  origin: Origin | null;
}

export interface DecisionRow {
  id: string;
  workload: string;
  time_ms: number;
  action: string;
  /** What it does, in words. */
  action_text: string;
  /** A change that failed. A hold-out takes none back. */
  takes_back: boolean;
  validation: string;
  reason: string;
  controller: string;
  origin: Origin;
  from: Layout;
  to: Layout;
  outcome: string | null;
  /** The same, with refusals by the workload's mode or pause apart, as "not_allowed". */
  fate: string | null;
  concerns: string | null;
}

export interface DecisionPage {
  rows: DecisionRow[];
  matching: number;
  dropped: number;
}

export interface ActuationRow {
  time_ms: number;
  outcome: string;
  reason: string;
  layout: Layout;
  generation: number;
  downtime_seconds: Num;
  origin: Origin;
}

export interface DecisionDetail extends DecisionRow {
  controller_version: string;
  model_version: string | null;
  restarts: boolean;
  generation: Num;
  expires_ms: number;
  hold_until_ms: Num;
  evidence: Record<string, number>;
  actuations: ActuationRow[];
  verdict: DecisionDetail | null;
  judged: DecisionRow | null;
  older: string | null;
  newer: string | null;
}

export interface Notice {
  version: number;
  time_ms: number;
  workload: string;
  decision_id: string;
  kind: NoticeKind;
  text: string;
}

export type Basis = "whole" | "activity" | "allotment" | "assigned" | "equal";

export interface TenantRow {
  workload: string;
  share_ratio: number;
  method: string | null;
  basis: Basis;
  power_watts: Num;
  mps_thread_percentage: Num;
  gpus: Num;
  energy_joules: Num;
  joules_per_sample: Num;
}

export interface DeviceRow {
  device: string;
  node: string | null;
  gpu_index: Num;
  gpu_model: string | null;
  /** `null`: no sample of it has come. */
  origin: Origin | null;
  meter: string;
  mig_enabled: boolean | null;
  mps_enabled: boolean | null;
  shared: boolean;
  silent: boolean;
  /** `null`: no sample of it has come. */
  time_ms: Num;
  power_watts: Num;
  power_limit_watts: Num;
  tenants: TenantRow[];
  unassigned_ratio: Num;
  unassigned_power_watts: Num;
  asked: {
    power_limit_watts: Num;
    sm_clock_mhz: Num;
    workload: string | null;
    power_limit_outcome: string | null;
    sm_clock_outcome: string | null;
    reason: string;
  } | null;
  pods: { namespace: string; name: string; workload?: string }[];
  decision: DecisionRow | null;
  unknown: string[];
}

export interface NodeRow {
  node: string | null;
  gpus: number;
  shared: number;
  idle: number;
  silent: number;
  workloads: number;
  power_watts: Num;
  power_known: number;
  unassigned_power_watts: Num;
}

/** All GPUs by node, as columns. */
export interface GpuMap {
  now_ms: Num;
  gpus: number;
  nodes: {
    node: string | null;
    /** The index on the node; the UUID if that is not the GPU's alone. */
    gpus: (number | string)[];
    power_watts: Num[];
    /** `null`: it is silent. */
    workloads: Num[];
  }[];
}

export interface SharingPage {
  now_ms: Num;
  totals: {
    gpus: number;
    shared: number;
    idle: number;
    silent: number;
    power_watts: Num;
    power_known: number;
    contradicted_power_watts: number;
    metered_power_watts: number;
    modelled_power_watts: number;
    assumed_power_watts: number;
    unassigned_power_watts: number;
    windows_power_watts: Num;
    windows_unassigned_power_watts: Num;
  };
  unknown: string[];
  grouped: boolean;
  nodes: NodeRow[];
  devices: DeviceRow[];
  matching: number;
  beyond_limit: number;
}

export type Mode = "observe" | "recommend" | "enforce";

/** Who asks, and whether they may change policies. */
export interface Session {
  /** `null`: they may only read. */
  editor: string | null;
  /** The only ones whose policies they may change; `null`: there is no such limit. */
  namespaces: string[] | null;
  read_only: string | null;
}

export interface PolicyTerms {
  mode: Mode;
  paused: boolean;
  mode_set_by: string | null;
  pause_set_by: string | null;
  controller: string | null;
  controller_settings: Record<string, unknown> | null;
  bounds: Record<string, number | string[] | undefined>;
}

export interface PolicyRow {
  workload: string;
  terms: PolicyTerms | null;
  kind: string | null;
  declared_ms: Num;
  changed: { time_ms: number; before: PolicyTerms } | null;
  decision: DecisionRow | null;
  recommended: DecisionRow | null;
}

export interface PolicyPage {
  rows: PolicyRow[];
  counts: { observe: number; recommend: number; enforce: number; paused: number; undeclared: number };
  matching: number;
  /** Only in a saved file: rows that it does not have. */
  left_out?: number;
}

export interface FigurePair {
  this: Num;
  other: Num;
  change_ratio: Num;
}

export type CompareFigure =
  | "joules_per_sample"
  | "samples_per_second"
  | "mean_power_watts"
  | "energy_joules"
  | "samples"
  | "duration_seconds"
  | "cost"
  | "co2_grams";

export type Comparison = Record<CompareFigure, FigurePair> & {
  /** Why changes are not computed. */
  refusals: string[];
};

export interface CompareSide {
  workload: string;
  from_ms: Num;
  to_ms: Num;
  part: boolean;
  report: WorkloadReport;
  saving_verdict: SavingFigures["saving_verdict"];
  saving_is_whole: boolean;
  layout: Layout | null;
  mode: Mode | null;
  gpu_model: string | null;
}

export interface ComparePage {
  a: CompareSide;
  b: CompareSide;
  figures: Comparison;
  notes: string[];
}

export interface RunFacts {
  name: string;
  workloads: number;
  energy_joules: Num;
  /** `null`: those of its workloads differ. */
  origin: Origin | null;
}

export interface RunList {
  runs: RunFacts[];
}

export interface RunRow {
  workload: string;
  this_origin: Origin | null;
  other_origin: Origin;
  /** `null`: `refusal` has the reason. */
  figures: Comparison | null;
  refusal: string | null;
}

/** Workloads that only one run has. */
export interface Unmatched {
  names: string[];
  count: number;
}

export interface RunPage {
  this: RunFacts;
  other: RunFacts;
  rows: RunRow[];
  matching: number;
  only_this: Unmatched;
  only_other: Unmatched;
  notes: string[];
}

export interface Estimate {
  value: number;
  low: number;
  high: number;
  confidence_saves_ratio: number;
}

export interface WhatIfPage {
  workload: string;
  controller: string;
  origin: Origin;
  windows: number;
  windows_as_recorded: number;
  windows_estimated: number;
  windows_unknown: number;
  known_ratio: Num;
  recorded_joules_per_sample: Num;
  joules_per_sample_change: Estimate | null;
  changes: {
    time_ms: number;
    action: string;
    action_text: string;
    from: Layout;
    to: Layout;
    phase: number;
    reason: string;
    windows: number;
    effect: Estimate | null;
  }[];
  refused: { time_ms: number; action: string; action_text: string; from: Layout; to: Layout; count: number; reason: string }[];
  left_out: number;
  restarts: number;
  recorded_changes: number;
  recorded_controller: string | null;
  notes: string[];
  report: WorkloadReport | null;
  saving_is_whole: boolean;
}

/** An answer that is none, with the server's words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The server gave no answer at all. */
export class NoAnswer extends Error {
  constructor() {
    super("The server does not answer");
  }
}

export function query(values: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

/** The moment that the page's address names; `null`: the newest. */
export function addressMoment(): number | null {
  const at = Number(new URLSearchParams(location.hash.split("?", 2)[1] ?? "").get("at"));
  return Number.isSafeInteger(at) && at > 0 ? at : null;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (copy !== null) {
    const found = answer(copy, path);
    if (found === undefined) throw new ApiError(404, "this is not in the file: it holds a copy of a run");
    return found as T;
  }
  const at = addressMoment();
  const headers = { accept: "application/json", ...(at === null ? {} : { "eadt-at-ms": String(at) }) };
  return ask<T>(path, { signal: signal ?? null, headers });
}

/** Asks for a change. */
export async function post<T>(path: string, body: unknown): Promise<T> {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return ask<T>(path, { method: "POST", headers, body: JSON.stringify(body) });
}

async function ask<T>(path: string, request: RequestInit): Promise<T> {
  try {
    return await read<T>(await fetch(`/api/v1/${path}`, request));
  } catch (error) {
    // A browser's own words for a broken connection differ, and mean nothing to a reader.
    throw error instanceof TypeError ? new NoAnswer() : error;
  }
}

async function read<T>(response: Response): Promise<T> {
  if (!response.ok) {
    const text = await response.text();
    throw new ApiError(response.status, words(text) ?? `${response.status} ${response.statusText}`);
  }
  return (await response.json()) as T;
}

function words(text: string): string | null {
  try {
    const parsed: unknown = JSON.parse(text);
    if (parsed !== null && typeof parsed === "object" && "error" in parsed) return String(parsed.error);
  } catch {
    // Not JSON: the text itself.
  }
  return text.trim().slice(0, 300) || null;
}

/** Returns whether a text is a workload's name: `namespace/name`. */
export function isWorkloadName(text: string): boolean {
  const parts = text.split("/");
  return parts.length === 2 && parts.every((part) => part !== "");
}

/** The path of a workload: `namespace/name`, each part encoded. */
export function workloadPath(workload: string): string {
  return `workloads/${workload.split("/").map(encodeURIComponent).join("/")}`;
}

/** Returns whether they may change the policy of a workload. */
export function mayChange({ editor, namespaces }: Session, workload: string): boolean {
  return editor !== null && (namespaces === null || namespaces.includes(workload.split("/", 1)[0] ?? ""));
}

let session: Promise<Session> | null = null;

/** Asks who this is, once for all that want to know. */
export function askSession(): Promise<Session> {
  session ??= get<Session>("session").catch((error: unknown) => {
    session = null;
    throw error;
  });
  return session;
}

/** Another token, or another server: asked anew by what is shown next. */
export function forgetSession(): void {
  session = null;
}

/** Shows a token; whether it is one. */
export async function openSession(token: string): Promise<boolean> {
  forgetSession();
  const response = await fetch("/api/v1/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
  });
  return response.ok;
}
