// What the server answers, and how it is asked. Times are milliseconds since the Unix epoch.

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
  | "silent";
export type NoticeKind = "change" | "kept" | "revert" | "refused";
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

export interface Totals {
  energy_joules: Num;
  saving_joules: Num;
  saving_ratio: Num;
  saving_ratio_low: Num;
  saving_ratio_high: Num;
  compared_energy_ratio: Num;
}

export interface Counts {
  windows: number;
  decisions: number;
  changes: number;
  reverts: number;
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

export interface Overview {
  source: SourceFacts;
  version: number;
  now_ms: Num;
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
  totals: Totals;
  saving_known: number;
  counts: Counts;
  dead_letters: [string, number][];
}

export interface FleetRow {
  workload: string;
  origin: Origin | null;
  state: State;
  mode: "observe" | "recommend" | "enforce" | null;
  layout: Layout | null;
  gpus: Num;
  power_watts: Num;
  samples_per_second: Num;
  joules_per_sample: Num;
  energy_joules: Num;
  saving_joules: Num;
  saving_ratio: Num;
  saving_ratio_low: Num;
  saving_ratio_high: Num;
  compared_energy_ratio: Num;
  throughput_kept_ratio: Num;
  saving_left_out: boolean;
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

export interface PowerHistory {
  edges_ms: number[];
  layers: { workload: string | null; power_watts: Num[] }[];
  marks: { time_ms: number; workload: string; decision_id: string; kind: NoticeKind }[];
  others: number;
}

export interface WorkloadReport {
  workload: string;
  energy_joules: Num;
  energy_kwh: Num;
  samples: Num;
  joules_per_sample: Num;
  duration_seconds: Num;
  mean_power_watts: Num;
  coverage_ratio: Num;
  windows: number;
  decisions: number;
  changes: number;
  reverts: number;
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
  notes: string[];
}

export interface WorkloadDetail {
  row: FleetRow;
  report: WorkloadReport | null;
  declaration: {
    kind: string;
    mode: string;
    paused: boolean;
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
  validation: string;
  reason: string;
  controller: string;
  origin: Origin;
  from: Layout;
  to: Layout;
  outcome: string | null;
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

/** An answer that is none, with the server's words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function query(values: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await fetch(`/api/v1/${path}`, { signal: signal ?? null, headers: { accept: "application/json" } });
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

/** The path of a workload: `namespace/name`, each part encoded. */
export function workloadPath(workload: string): string {
  return `workloads/${workload.split("/").map(encodeURIComponent).join("/")}`;
}

/** Shows a token; whether it is one. */
export async function openSession(token: string): Promise<boolean> {
  const response = await fetch("/api/v1/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
  });
  return response.ok;
}
