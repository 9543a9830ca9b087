// A run in one file: the answers are in the page itself, and no server is asked.
import type { DecisionDetail, FleetPage, FleetRow, HeatStrip, Overview, PolicyPage, PowerHistory, Series, SharingPage, WorkloadDetail } from "./api";

interface Copy {
  overview: Overview;
  power: PowerHistory | null;
  fleet: FleetPage;
  workloads: { detail: WorkloadDetail; series: Series; decisions: DecisionDetail[]; all_decisions: number }[];
  sharing: SharingPage;
  policies: PolicyPage;
  left_out: number;
}

const block = document.getElementById("data");
/** The data of this file; `null` where a server answers. */
export const copy: Copy | null = block?.textContent ? (JSON.parse(block.textContent) as Copy) : null;

const FIGURES: Record<string, (row: FleetRow) => number | string | null> = {
  name: (row) => row.workload,
  state: (row) => row.state,
  power: (row) => row.power_watts,
  joules_per_sample: (row) => row.joules_per_sample,
  samples_per_second: (row) => row.samples_per_second,
  saving: (row) => row.saving_joules,
  saving_ratio: (row) => row.saving_ratio,
  energy: (row) => row.energy_joules,
};

/** Answers as the server would from what is here; `undefined` where nothing is. */
export function answer(from: Copy, path: string): unknown {
  const [place = "", search = ""] = path.split("?", 2);
  const params = new URLSearchParams(search);
  const parts = place.split("/").map(decodeURIComponent);
  switch (parts[0]) {
    case "overview":
      return from.overview;
    case "power":
      return from.power;
    case "fleet":
      return fleet(from.fleet, params);
    case "heat-strip":
      return heatStrip(fleet(from.fleet, params));
    case "sharing":
      return sharing(from.sharing, params);
    case "policies": {
      const [skip, limit] = part(params);
      const { rows, matching } = from.policies;
      return { ...from.policies, rows: rows.slice(skip, skip + limit), matching: rows.length, left_out: matching - rows.length };
    }
    case "workloads": {
      const known = find(from, `${parts[1]}/${parts[2]}`);
      return parts[3] === "series" ? known?.series : known?.detail;
    }
    case "decisions": {
      const name = params.get("workload");
      const of = from.workloads.filter((known) => name === null || known.detail.row.workload === name);
      const rows = of.flatMap((known) => known.decisions).sort((a, b) => b.time_ms - a.time_ms);
      const [skip, limit] = part(params);
      const dropped = of.reduce((sum, known) => sum + known.all_decisions - known.decisions.length, 0);
      return { rows: rows.slice(skip, skip + limit), matching: rows.length, dropped };
    }
    case "decision":
      return find(from, params.get("workload") ?? "")?.decisions.find((row) => row.id === params.get("id"));
    default:
      return undefined;
  }
}

const find = (from: Copy, name: string) => from.workloads.find((known) => known.detail.row.workload === name);

/** How many to leave out, and how many at most. */
const part = (params: URLSearchParams): [number, number] => [Number(params.get("skip")) || 0, Number(params.get("limit")) || 50];

/** What the file has of GPUs, or of nodes; what it lacks is listed. */
function sharing(all: SharingPage, params: URLSearchParams): SharingPage {
  const [skip, limit] = part(params);
  const have = all.grouped ? all.nodes.length : all.devices.length;
  const left = all.matching - have;
  const of = all.grouped ? "nodes" : "GPUs";
  return {
    ...all,
    nodes: all.nodes.slice(skip, skip + limit),
    devices: all.devices.slice(skip, skip + limit),
    matching: have,
    unknown: left > 0 ? [...all.unknown, `${left} ${of} are not in this file`] : all.unknown,
  };
}

/** The cells of the workloads that are here. */
function heatStrip({ total, rows }: FleetPage): HeatStrip {
  const states = [...new Set(rows.map((row) => row.state))];
  return {
    total,
    names: rows.map((row) => row.workload),
    states,
    state: rows.map((row) => states.indexOf(row.state)),
    saving_ratio: rows.map((row) => row.saving_ratio),
    saving_is_clear: rows.map((row) => Number(row.saving_is_whole && ["saved", "lost"].includes(row.saving_verdict))),
  };
}

/** Unknown figures come last in either direction. */
function fleet(all: FleetPage, params: URLSearchParams): FleetPage {
  const sort = params.get("sort") ?? "saving";
  const figure = FIGURES[sort] ?? FIGURES.name;
  const names = sort === "name" || sort === "state";
  const turn = (params.get("order") ?? (names ? "asc" : "desc")) === "asc" ? 1 : -1;
  const q = (params.get("q") ?? "").toLowerCase();
  const states = (params.get("state") ?? "").split(",").filter((state) => state !== "");
  const rows = all.rows
    .filter((row) => row.workload.toLowerCase().includes(q) && (states.length === 0 || states.includes(row.state)))
    .sort((a, b) => {
      const [one, two] = [figure?.(a) ?? null, figure?.(b) ?? null];
      if (one === null || two === null) return one === two ? 0 : one === null ? 1 : -1;
      return one === two ? 0 : one < two ? -turn : turn;
    });
  return { ...all, rows, matching: rows.length };
}
