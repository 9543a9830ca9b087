// All workloads: a sentence, a few figures, power over time, a table sorted by what matters.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { addressMoment, type FleetPage, type FleetRow, type Overview, type PowerHistory, query, type SharingPage } from "./api";
import { Chart, type Line } from "./chart";
import { copy } from "./copy";
import { changesNote, clock, count, counted, digits, duration, interval, joules, kwh, moment, perSample, percent, STATES, visible, watts } from "./format";
import { HeatStrip, PAGE_ROWS } from "./heat";
import { LayoutText, OriginBadge, Problem, SavingText, savingNote, savingTone, Sparkline, Stalls, Stat, StateBadge, Waiting, wholeSaving, WithCode, WithTimes } from "./parts";
import { usePageTop, useRowKeys } from "./rows";
import { changed, decisionHref, type Live, type Route, useData, useQuiet, workloadHref } from "./state";
import { workloadColours } from "./workload-colours";

interface Column {
  key: string | null;
  label: string;
  unit?: string;
  numeric?: boolean;
  ascending?: boolean;
  className?: string;
}

const COLUMNS: Column[] = [
  { key: "name", label: "Workload", ascending: true },
  { key: "state", label: "State", ascending: true },
  { key: "power", label: "Power", unit: "newest", numeric: true },
  { key: "run_joules_per_sample", label: "J/sample", unit: "of run", numeric: true },
  { key: null, label: "Trend", className: "wide" },
  { key: "samples_per_second", label: "Samples/s", unit: "newest", numeric: true, className: "wide" },
  { key: "saving_ratio", label: "Saved", unit: "%", numeric: true },
  { key: "saving", label: "Saved", unit: "J", numeric: true },
  { key: "energy", label: "Energy", numeric: true, className: "wide" },
  { key: null, label: "Layout", className: "wide" },
];

/** What of an address is understood: another word in it is left out, so that a mistyped link shows the fleet all the same. */
function knownChoice(params: Record<string, string | undefined>): { sort: string; order: string | undefined; state: string | undefined } {
  const states = params.state?.split(",").filter((word) => word in STATES).join(",");
  return {
    sort: COLUMNS.some(({ key }) => key !== null && key === params.sort) ? (params.sort ?? "saving") : "saving",
    order: params.order === "asc" || params.order === "desc" ? params.order : undefined,
    state: states || undefined,
  };
}

export function Fleet({ route, live, announce }: { route: Route; live: Live; announce: (text: string) => void }) {
  const { overview, tick } = live;
  const params = Object.fromEntries(route.params);
  const { sort, order, state } = knownChoice(params);
  const fleetPath = `fleet${query({ sort, order, q: params.q, state, cursor: params.cursor })}`;
  const { data: page, error } = useData<FleetPage>(fleetPath, tick);
  const hours = Number(params.hours) || null;
  const from = hours !== null && overview?.now_ms ? overview.now_ms - hours * 3_600_000 : null;
  // A moving start would ask anew with each update: a minute is fine enough.
  const { data: sharing } = useData<SharingPage>("sharing?limit=1", tick);
  const { data: power } = useData<PowerHistory | null>(`power${query({ from_ms: from && Math.floor(from / 60_000) * 60_000 })}`, tick);

  return (
    <>
      <Headline overview={overview} />
      <Problem error={error} />
      {overview && <Stalls overview={overview} />}
      {overview?.waiting_for && <Waiting text={overview.waiting_for} detail={overview.source.place} />}
      {overview && overview.now_ms !== null && <Figures overview={overview} sharing={sharing} />}
      {overview?.totals.why_no_energy && <NoEnergy why={overview.totals.why_no_energy} />}
      {power && power.layers.some((layer) => layer.power_watts.some((watts) => watts !== null)) && <Power power={power} route={route} hours={hours} />}
      {page && page.total > 0 && (
        <Workloads page={page} route={route} sort={sort} announce={announce} mixed={overview?.mixed_origins ?? false}>
          {page.matching > PAGE_ROWS && <HeatStrip question={query({ sort, order, q: params.q, state })} page={page} route={route} tick={tick} />}
        </Workloads>
      )}
    </>
  );
}

function Headline({ overview }: { overview: Overview | null }) {
  const at = addressMoment();
  const quiet = useQuiet(overview);
  return (
    <h1 class="sentence">
      {quiet !== null && `No sample and no window for ${duration(quiet)}: how the workloads are now is not known. At the last one: `}
      <WithTimes text={overview?.status ?? (at === null ? "Asking for the fleet…" : `Reading the record as of ${moment(at)}…`)} />
    </h1>
  );
}

/** Power that is no workload's: of idle GPUs, and what the parts of shared ones leave. */
function Unassigned({ overview, sharing }: { overview: Overview; sharing: SharingPage | null }) {
  const totals = sharing?.totals;
  // Without samples of GPUs, as in the output of a replay, only windows of idle ones are known.
  const sampled = totals !== undefined && totals.power_watts !== null ? totals : null;
  const unassigned = sampled?.unassigned_power_watts ?? overview.idle_power_watts;
  if (unassigned === null) return null;
  const silent = totals && totals.silent > 0 ? `; ${counted(totals.silent, "GPU is", "GPUs are")} silent, ${totals.silent === 1 ? "its" : "their"} power is not known` : "";
  const idle = sampled?.idle ?? overview.idle_devices;
  const part = sampled?.power_watts ? `, ${percent(unassigned / sampled.power_watts)} of the power of ${counted(sampled.power_known, "GPU")}` : "";
  return (
    <Stat
      label="Idle and unassigned"
      value={watts(unassigned)}
      title="power of GPUs without a workload, and of shared ones what is no workload's part"
      note={`${idle === 0 ? "no GPU" : counted(idle, "GPU")} without work${part}${silent}`}
    />
  );
}

function Figures({ overview, sharing }: { overview: Overview; sharing: SharingPage | null }) {
  const { totals, counts } = overview;
  const { power_known: known, running } = overview;
  // Nothing runs in a record that has ended: its last windows have a power.
  const ended = overview.source.kind === "archive" && running === 0;
  // Of an earlier moment, or up to what is archived.
  const label = ended ? "Power at the end" : overview.source.kind === "archive" ? "Power then" : "Power now";
  const more = (energy: number | null, text: string) => (energy === null ? "" : `${joules(energy)} ${text}`);
  const used = [
    totals.energy_joules === null ? "not known of any workload" : kwh(totals.energy_joules),
    more(overview.energy_without_work_joules, "of it by GPUs without work"),
    more(totals.unassigned_energy_joules, "of it in no window"),
    more(totals.outside_run_energy_joules, "more outside of runs"),
  ];
  const savings = [
    totals.without_energy > 0 && totals.energy_joules !== null ? `the energy of ${counted(totals.without_energy, "workload")} is not known` : "",
    counts.without_saving > 0 ? `no saving here of ${count(counts.without_saving)} of ${counted(overview.workloads, "workload")}: too many windows` : "",
    savingNote(totals),
  ];
  return (
    <dl class="stats">
      <Stat
        label={label}
        value={watts(overview.power_watts)}
        note={ended ? `of ${counted(known, "workload")}` : known === running ? `${count(known)} running` : `known of ${count(known)} of ${count(running)} running`}
      />
      <Unassigned overview={overview} sharing={sharing} />
      <Stat
        label="Energy saved"
        value={wholeSaving(totals)}
        tone={savingTone(totals)}
        title={`against the starting layouts; ${interval(totals.saving_ratio_low, totals.saving_ratio_high)}`}
        note={savings.filter(Boolean).join("; ")}
      />
      <Stat label="Saved so far" value={joules(totals.saving_joules)} tone={savingTone(totals)} note={totals.saving_joules === null ? undefined : `${kwh(totals.saving_joules)}${totals.saving_is_whole ? "" : `, in ${percent(totals.compared_energy_ratio, 0)} of the energy that is known`}`} />
      <Stat label="Energy used" value={joules(totals.energy_joules)} note={used.filter(Boolean).join("; ")} />
      <Stat label="Changes" value={count(counts.changes)} note={changesNote(counts, overview.unanswered)} title="changes that were made, those that took one back included" />
    </dl>
  );
}

function NoEnergy({ why }: { why: string }) {
  return (
    <section class="panel" aria-labelledby="no-energy-heading">
      <h2 id="no-energy-heading">Why no energy is known</h2>
      <p class="why sentence">
        <WithCode text={visible(why)} />
      </p>
    </section>
  );
}

/** Whether namespaces have the layers of the chart of power. */
const hasNamespaces = (power: PowerHistory): boolean => power.layers.some((layer) => layer.kind === "namespace");

/** What a layer of the chart of power is. */
function layerLabel({ kind, workload, namespace }: PowerHistory["layers"][number], power: PowerHistory): string {
  if (kind === "idle") return "idle and unassigned";
  if (workload !== null) return visible(workload);
  if (namespace !== null) return `${visible(namespace)}/*`;
  return hasNamespaces(power) ? counted(power.others, "other namespace") : counted(power.others, "other");
}

const MARKS = { change: ["▲", "busy"], kept: ["✓", "good"], no_gain: ["○", "calm"], revert: ["✗", "bad"], recommended: ["△", "calm"], not_made: ["△", "calm"], refused: ["!", "bad"] } as const;
const WORDS = { change: "change", kept: "kept", no_gain: "no gain, left as it is", revert: "reverted", recommended: "recommended, not made", not_made: "not made", refused: "refused" } as const;

/** The power budget as a line, and in words; `null`: there is none. */
function budgetOf({ budget }: PowerHistory): { line: Line; summary: string; note: string } | null {
  const known = budget?.power_watts.filter((value) => value !== null) ?? [];
  const newest = known.at(-1);
  if (!budget || newest === undefined) return null;
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const range = least === most ? "" : `, ${watts(least)} to ${watts(most)} in this time`;
  const last = `${watts(newest)}${budget.power_watts.at(-1) === null ? " at last; none is in force at the end" : ""}`;
  const shared = budget.workloads === null ? "" : ` of ${counted(budget.workloads, "workload")}`;
  return {
    line: { label: "power budget", values: budget.power_watts, colour: "--text", dashed: true, steps: `power budget, ${watts(newest)}`, format: watts },
    summary: `power budget${shared}: ${last}${range}`,
    note: `Power budget${shared}: ${last}${range}. It limits the caps of the workloads whose controller is \`power-budget\`; power of others and of GPUs without work is not in it.`,
  };
}

function Power({ power, route, hours }: { power: PowerHistory; route: Route; hours: number | null }) {
  const { times, end, span, lines, marks, budget } = useMemo(() => {
    const edges = power.edges_ms.map((edge) => edge / 1000);
    const [times, end] = [edges.slice(0, -1), edges.at(-1) ?? 0];
    const named = ({ workload, namespace }: PowerHistory["layers"][number]) => workload ?? (namespace === null ? null : `${namespace}/*`);
    const colours = workloadColours([power.layers.flatMap((layer) => named(layer) ?? [])]);
    // The largest lies at the bottom, so that its own line is level where it is.
    const lines: Line[] = power.layers.map((layer) => ({
      label: layerLabel(layer, power),
      values: layer.power_watts,
      colour: layer.kind === "idle" ? "--muted" : (colours.get(named(layer) ?? "") ?? "--c-others"),
      stacked: true,
      format: watts,
    }));
    const budget = budgetOf(power);
    if (budget) lines.push(budget.line);
    const marks = power.marks.map((mark) => ({
      time: mark.time_ms / 1000,
      text: MARKS[mark.kind][0],
      tone: MARKS[mark.kind][1],
      kind: WORDS[mark.kind],
      href: decisionHref(mark.workload, mark.decision_id),
      title: `${clock(mark.time_ms)} ${WORDS[mark.kind]}: ${visible(mark.workload)}`,
    }));
    return { times, end, span: end - (edges[0] ?? 0), lines, marks, budget };
  }, [power]);
  if (times.length < 2) return null;
  return (
    <section class="panel" aria-labelledby="power-heading">
      <header class="panel-head">
        <h2 id="power-heading">Power over time</h2>
        <nav class="choice" aria-label="Time range" hidden={copy !== null}>
          {[1, 6, 24].map((range) => (
            <a key={range} href={changed(route, { hours: String(range) })} aria-current={hours === range ? "true" : undefined}>
              {range} h
            </a>
          ))}
          <a href={changed(route, { hours: null })} aria-current={hours === null ? "true" : undefined}>
            all
          </a>
        </nav>
      </header>
      <Chart title={`Power by ${hasNamespaces(power) ? "namespace" : "workload"}`} unit={`W, ${duration(span)}`} times={times} end={end} lines={lines} height={220} marks={marks} fromZero summary={budget?.summary} />
      {budget && (
        <p class="legend-note">
          <WithCode text={budget.note} />
        </p>
      )}
      {power.marks_left_out > 0 && <p class="legend-note">{counted(power.marks_left_out, "older mark is", "older marks are")} left out: a shorter time has all of its own.</p>}
    </section>
  );
}

interface TableProps {
  page: FleetPage;
  route: Route;
  sort: string;
  announce: (text: string) => void;
  mixed: boolean;
  /** What is above the table. */
  children: ComponentChildren;
}

function Workloads({ page, route, sort, announce, mixed, children }: TableProps) {
  const body = useRowKeys(page.rows.length);
  const top = usePageTop<HTMLDivElement>(route.params.get("cursor"));
  // Without any power, progress is all that is known: it is not left out on a narrow screen.
  const noPower = page.rows.every((row) => row.power_watts === null && row.energy_joules === null);
  const columns = COLUMNS.map((column) => (noPower && column.key === "samples_per_second" ? { ...column, className: undefined } : column));
  const turned = route.params.get("order");
  const filters = [route.params.get("q"), route.params.get("state")].some((filter) => filter);
  const shown = `${page.before + 1}–${page.before + page.rows.length} of ${count(page.matching)}`;
  useEffect(() => {
    if (filters) announce(`${count(page.matching)} of ${counted(page.total, "workload")} ${page.matching === 1 ? "matches" : "match"}`);
  }, [page.matching, filters]);

  return (
    <section class="panel" aria-labelledby="workloads-heading">
      <header class="panel-head">
        <h2 id="workloads-heading">Workloads</h2>
        <StateFilter route={route} />
      </header>
      {children}
      {page.rows.length === 0 ? (
        <p class="empty">
          None of {counted(page.total, "workload")} matches. <a href={changed(route, { q: null, state: null, cursor: null })}>Show all</a>
        </p>
      ) : (
        <div class="scroll page-top" ref={top} tabIndex={0} role="region" aria-label="Table of workloads">
          <table class="fleet">
            <thead>
              <tr>
                {columns.map((column) => (
                  <Header key={column.label + (column.unit ?? "")} column={column} sort={sort} order={turned} route={route} />
                ))}
              </tr>
            </thead>
            <tbody ref={body}>
              {page.rows.map((row) => (
                <Row key={row.workload} row={row} mixed={mixed} noPower={noPower} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <footer class="pager">
        <span>{page.rows.length > 0 ? `${shown}${page.matching < page.total ? `, ${count(page.total)} in all` : ""}` : ""}</span>
        <span>
          {page.before > 0 && (
            <a class="button" href={changed(route, { cursor: null })}>
              First
            </a>
          )}
          {page.next && (
            <a class="button" href={changed(route, { cursor: page.next })} rel="next">
              Next {Math.min(50, page.matching - page.before - page.rows.length)}
            </a>
          )}
        </span>
      </footer>
    </section>
  );
}

function StateFilter({ route }: { route: Route }) {
  const state = route.params.get("state") ?? "";
  return (
    <label class="filter">
      State{" "}
      <select
        value={state}
        onChange={(event) => {
          location.hash = changed(route, { state: event.currentTarget.value || null, cursor: null });
        }}
      >
        <option value="">all</option>
        <option value="reverted,refused">needs a look</option>
        {Object.entries(STATES).map(([key, { word }]) => (
          <option key={key} value={key}>
            {word}
          </option>
        ))}
      </select>
    </label>
  );
}

function Header({ column, sort, order, route }: { column: Column; sort: string; order: string | null; route: Route }) {
  const { key, label, unit, numeric, ascending, className } = column;
  const classes = [numeric ? "num" : "", className ?? ""].join(" ").trim();
  const title = (
    <>
      {label}
      {unit && <span class="unit"> {unit}</span>}
    </>
  );
  if (key === null) {
    return (
      <th scope="col" class={classes}>
        {title}
      </th>
    );
  }
  const is = sort === key;
  const now = is ? (order ?? (ascending ? "asc" : "desc")) : null;
  const next = is ? (now === "asc" ? "desc" : "asc") : null;
  return (
    <th scope="col" class={classes} aria-sort={now === null ? undefined : now === "asc" ? "ascending" : "descending"}>
      <a href={changed(route, { sort: key, order: next, cursor: null })}>
        {title}
        <span class="arrow" aria-hidden="true">
          {now === "asc" ? "▲" : now === "desc" ? "▼" : ""}
        </span>
      </a>
    </th>
  );
}

function Row({ row, mixed, noPower }: { row: FleetRow; mixed: boolean; noPower: boolean }) {
  const [namespace = "", name = ""] = row.workload.split("/", 2);
  return (
    <tr>
      <th scope="row">
        <a href={workloadHref(row.workload)} class="name clip" title={visible(row.workload)}>
          <span class="muted">{visible(namespace)}/</span>
          <bdi>{visible(name)}</bdi>
        </a>
        {mixed && <OriginBadge origin={row.origin} />}
      </th>
      <td data-label="State">
        <StateBadge state={row.state} />
      </td>
      <td class="num" data-label="Power">{watts(row.power_watts)}</td>
      <td class="num" data-label="J/sample">{perSample(row.run_joules_per_sample)}</td>
      <td class="wide">
        <Sparkline values={row.sparkline} />
      </td>
      <td class={noPower ? "num" : "num wide"} data-label="Samples/s">{digits(row.samples_per_second)}</td>
      <td class="num" data-label="Saved, %">
        <SavingText row={row} />
      </td>
      <td class="num" data-label="Saved, J">{joules(row.saving_joules)}</td>
      <td class="num wide">{joules(row.energy_joules)}</td>
      <td class="wide">
        <LayoutText layout={row.layout} />
      </td>
    </tr>
  );
}
