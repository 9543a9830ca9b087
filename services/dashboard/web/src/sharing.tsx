// GPUs: the workloads on each, the attribution of its power and the method, and the unattributed part.
import { useEffect, useRef } from "preact/hooks";
import { addressMoment, type Basis, type DeviceRow, type NodeRow, query, type SharingPage } from "./api";
import { copy } from "./copy";
import { clock, count, counted, digits, joules, percent, visible, watts } from "./format";
import { GpuMap, MAP_GPUS } from "./gpumap";
import { OriginBadge, Problem, Stat, Waiting, WithCode } from "./parts";
import { usePageTop } from "./rows";
import { changed, decisionHref, type Live, type Route, useData, workloadHref } from "./state";
import { workloadColours } from "./workload-colours";

const ROWS = 60;

/** How it is known which part is whose: a word, and what it means. */
const BASES: Record<Basis, [string, string]> = {
  whole: ["metered", "it has the GPU to itself"],
  activity: ["metered", "by the activity of each"],
  allotment: ["modelled", "by what each was given"],
  assigned: ["modelled", "as the GPU was assigned"],
  equal: ["assumed", "in equal parts: nothing distinguishes them"],
};

export function Sharing({ route, live }: { route: Route; live: Live }) {
  const params = Object.fromEntries(route.params);
  const skip = Number(params.skip) || 0;
  const path = `sharing${query({ node: params.node, gpu_index: params.index, q: params.gpu, shared: params.shared, skip: skip || null, limit: ROWS })}`;
  const { data, error, isCurrent } = useData<SharingPage>(path, live.tick);
  // Scrolls to the strip of a GPU that was chosen on the map, as soon as it exists.
  const heading = useRef<HTMLHeadingElement>(null);
  const isChosen = useRef(false);
  useEffect(() => {
    if (!isChosen.current || !isCurrent) return;
    isChosen.current = false;
    heading.current?.focus();
  }, [path, isCurrent]);
  const choose = (address: string) => {
    if (location.hash === address) return heading.current?.focus();
    isChosen.current = true;
    location.hash = address;
  };
  const top = usePageTop<HTMLElement>(skip);
  if (!data) {
    return (
      <>
        <h1>GPUs</h1>
        <Problem error={error} />
      </>
    );
  }
  const { totals } = data;
  const colours = workloadColours(data.devices.map((row) => row.tenants.map((tenant) => tenant.workload)));
  return (
    <>
      <h1>{sentence(data)}</h1>
      <Problem error={error} />
      {totals.gpus === 0 ? (
        <NoSamples live={live} />
      ) : (
        <>
          <Totals page={data} />
          {totals.gpus > MAP_GPUS && copy === null && <GpuMap route={route} tick={live.tick} onOpen={choose} />}
          {totals.gpus > MAP_GPUS && copy !== null && <p class="legend-note">The map of all GPUs is not in this file.</p>}
          <section class="panel page-top" ref={top} aria-labelledby="gpus-heading">
            <header class="panel-head">
              <h2 id="gpus-heading" ref={heading} tabIndex={-1}>
                {headingText(params.node, params.index, data.grouped)}
              </h2>
              {copy === null && <Filter route={route} />}
            </header>
            {data.matching === 0 && (
              <p class="empty">
                None matches. <a href={changed(route, { node: null, index: null, gpu: null, shared: null, skip: null })}>Show all</a>
              </p>
            )}
            {data.grouped ? (
              <Nodes rows={data.nodes} route={route} />
            ) : (
              <ul class="gpus">
                {data.devices.map((row) => (
                  <Gpu key={row.device} row={row} colours={colours} />
                ))}
              </ul>
            )}
            <Pager route={route} skip={skip} shown={data.grouped ? data.nodes.length : data.devices.length} matching={data.matching} />
          </section>
          <Unknown page={data} />
        </>
      )}
    </>
  );
}

function headingText(node: string | undefined, index: string | undefined, grouped: boolean): string {
  if (!node) return grouped ? "Nodes" : "GPUs";
  return `${index ? `GPU ${visible(index)}` : "GPUs"} of ${node === "-" ? "no known node" : visible(node)}`;
}

/** Why there is no GPU: windows that close without any show that no collector reads one. */
function NoSamples({ live: { overview } }: { live: Live }) {
  if (addressMoment() !== null) return <p class="empty">No sample of a GPU that the page reads is as old as this moment.</p>;
  const isLive = overview?.source.kind === "live";
  if (isLive && overview.now_ms === null) return <Waiting text="No sample of a GPU is there yet: each collector sends one every few seconds" />;
  return (
    <p class="empty">
      <WithCode text={isLive ? "Windows have closed, and no sample of a GPU has come: no collector reads one here. `eadt up --gpus nvml` reads those of this machine; with `--gpus none` others have to send them." : "The record holds no sample of a GPU."} />
    </p>
  );
}

function sentence({ totals, now_ms }: SharingPage): string {
  if (totals.gpus === 0) return "No GPU has reported yet";
  const gpus = `${count(totals.gpus)} GPU${totals.gpus === 1 ? "" : "s"}`;
  const shared = totals.shared === 0 ? "none is shared" : `${count(totals.shared)} shared`;
  const idle = totals.idle === 0 ? "none without work" : `${count(totals.idle)} without work`;
  const silent = totals.silent === 0 ? "" : `, ${count(totals.silent)} silent`;
  return `${gpus}: ${shared}, ${idle}${silent}, at ${clock(now_ms)}`;
}

function Totals({ page: { totals } }: { page: SharingPage }) {
  const known = totals.power_known === totals.gpus ? count(totals.gpus) : `known of ${count(totals.power_known)} of ${count(totals.gpus)}`;
  return (
    <dl class="stats">
      <Stat label="Power of all GPUs" value={watts(totals.power_watts)} note={`${known} GPU${totals.gpus === 1 ? "" : "s"}`} />
      <Stat label="Metered as a workload's" value={watts(totals.metered_power_watts)} note="alone on its GPU, or by its activity" />
      <Stat label="Modelled" value={watts(totals.modelled_power_watts)} note="by what each was given" />
      <Stat label="Assumed" value={watts(totals.assumed_power_watts)} note="in equal parts, for want of a signal" tone={totals.assumed_power_watts > 0 ? "busy" : undefined} />
      <Stat
        label="Nobody's"
        value={watts(totals.unassigned_power_watts)}
        note={`in windows: ${watts(totals.windows_power_watts)} of workloads, ${watts(totals.windows_unassigned_power_watts)} of none`}
        title="GPUs without work, and what the parts of shared ones leave"
      />
    </dl>
  );
}

function Filter({ route }: { route: Route }) {
  const shared = route.params.get("shared") === "true";
  return (
    <span>
      {["node", "index", "gpu"].some((key) => route.params.has(key)) && (
        <a class="button" href={changed(route, { node: null, index: null, gpu: null, skip: null })}>
          All nodes
        </a>
      )}{" "}
      <span class="choice">
        <a href={changed(route, { shared: null, skip: null })} aria-current={shared ? undefined : "true"}>
          all
        </a>
        <a href={changed(route, { shared: "true", skip: null })} aria-current={shared ? "true" : undefined}>
          shared
        </a>
      </span>
    </span>
  );
}

function Nodes({ rows, route }: { rows: NodeRow[]; route: Route }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of nodes">
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col" class="num">GPUs</th>
            <th scope="col" class="num">Shared</th>
            <th scope="col" class="num">Idle</th>
            <th scope="col" class="num">Workloads</th>
            <th scope="col" class="num">Power</th>
            <th scope="col" class="num">Nobody's</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.node ?? ""}>
              <th scope="row">
                <a href={changed(route, { node: row.node ?? "-", skip: null })}>
                  <bdi>{row.node === null ? "no node named" : visible(row.node)}</bdi>
                </a>
              </th>
              <td class="num">
                {count(row.gpus)}
                {row.silent > 0 && <span class="muted"> ({count(row.silent)} silent)</span>}
              </td>
              <td class="num">{count(row.shared)}</td>
              <td class="num">{count(row.idle)}</td>
              <td class="num">{count(row.workloads)}</td>
              <td class="num">{watts(row.power_watts)}</td>
              <td class="num">{watts(row.unassigned_power_watts)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What a GPU is called: its place on its node, or its UUID where that is not known. */
function gpuName({ device, node, gpu_index }: DeviceRow): string {
  if (gpu_index === null) return visible(device);
  return `${node === null ? "" : `${visible(node)} · `}GPU ${gpu_index}`;
}

function Gpu({ row, colours }: { row: DeviceRow; colours: Map<string, string> }) {
  const kind = row.mig_enabled ? "MIG" : row.mps_enabled ? "MPS" : row.shared ? "shared by time" : null;
  const free = row.unassigned_ratio ?? 0;
  const limit = row.power_limit_watts === null ? "" : ` of ${watts(row.power_limit_watts)}`;
  const part = (workload: string) => ({ "--part": `var(${colours.get(workload) ?? "--c-others"})` });
  return (
    <li class="gpu">
      <div class="gpu-head">
        <h3>
          <bdi>{gpuName(row)}</bdi>
        </h3>
        {row.gpu_model && <bdi>{visible(row.gpu_model)}</bdi>}
        {kind && <span class="badge tone-calm">{kind}</span>}
        <OriginBadge origin={row.origin} />
        {row.silent && <span class="badge tone-bad">· {row.time_ms === null ? "no sample yet" : `silent since ${clock(row.time_ms)}`}</span>}
        <span class="num">
          <b>{watts(row.power_watts)}</b>
          {limit}
        </span>
      </div>
      <div class="strip" aria-hidden="true">
        {row.tenants.map(({ workload, basis, share_ratio }) => (
          <span key={workload} class={`basis-${basis}`} title={visible(workload)} style={{ ...part(workload), flex: `${share_ratio} 0 0` }} />
        ))}
        {free > 0 && <span class="part-free" style={{ flex: `${free} 0 0` }} />}
      </div>
      <ul class="parts">
        {row.tenants.map((tenant) => {
          const [word, meaning] = BASES[tenant.basis];
          return (
            <li key={tenant.workload}>
              <span class={`part-swatch basis-${tenant.basis}`} aria-hidden="true" style={part(tenant.workload)} />
              <a href={workloadHref(tenant.workload)} class="name">
                <bdi>{visible(tenant.workload)}</bdi>
              </a>
              <span class="num">{percent(tenant.share_ratio, 0)}</span>
              <span class="num">{watts(tenant.power_watts)}</span>
              <span class="muted" title={meaning}>
                {word}: {meaning}
                {tenant.mps_thread_percentage === null ? "" : ` · ${tenant.mps_thread_percentage} % of the SMs`}
                {tenant.energy_joules === null ? "" : ` · ${joules(tenant.energy_joules)} so far${tenant.gpus === 1 ? "" : ` on ${tenant.gpus ?? "all of its"} GPUs`}`}
              </span>
            </li>
          );
        })}
        {free > 0 && (
          <li>
            <span class="part-swatch part-free" aria-hidden="true" />
            <span>{row.tenants.length === 0 ? "nobody: no workload is on it" : "nobody"}</span>
            <span class="num">{percent(free, 0)}</span>
            <span class="num">{watts(row.unassigned_power_watts)}</span>
          </li>
        )}
        <More row={row} />
      </ul>
    </li>
  );
}

/** What was asked of it, who holds it, what the stage decided, what is not known. */
function More({ row }: { row: DeviceRow }) {
  const { asked, decision, pods, unknown } = row;
  const wishes: [string, string | null][] = asked
    ? [
        [asked.power_limit_watts === null ? "" : `at most ${watts(asked.power_limit_watts)}`, asked.power_limit_outcome],
        [asked.sm_clock_mhz === null ? "" : `at most ${digits(asked.sm_clock_mhz, 4)} MHz`, asked.sm_clock_outcome],
      ]
    : [];
  return (
    <>
      {wishes
        .filter(([wish]) => wish !== "")
        .map(([wish, outcome]) => (
          <li key={wish} class="muted">
            asked: {wish}: {outcome === null ? "no report from the node's agent yet" : outcome.replaceAll("_", " ")}
            {asked?.reason ? ` (${visible(asked.reason)})` : ""}
          </li>
        ))}
      {decision && (
        <li>
          <a href={decisionHref(decision.workload, decision.id)}>divided at {clock(decision.time_ms)}</a>{" "}
          <bdi class="muted">{visible(decision.reason.replace(`sharing ${row.device}`, "sharing this GPU"))}</bdi>
        </li>
      )}
      {pods.length > 0 && <li class="muted">pods: {pods.map((pod) => visible(`${pod.namespace}/${pod.name}`)).join(", ")}</li>}
      {unknown.map((text) => (
        <li key={text} class="muted">
          <span aria-hidden="true">?</span> {visible(text)}
        </li>
      ))}
      {row.gpu_index !== null && <li class="muted">{visible(row.device)}</li>}
    </>
  );
}

function Pager({ route, skip, shown, matching }: { route: Route; skip: number; shown: number; matching: number }) {
  if (matching === 0) return null;
  return (
    <footer class="pager">
      <span>
        {skip + 1}–{skip + shown} of {count(matching)}
      </span>
      <span>
        {skip > 0 && (
          <a class="button" href={changed(route, { skip: skip > ROWS ? String(skip - ROWS) : null })} rel="prev">
            Back
          </a>
        )}
        {skip + shown < matching && (
          <a class="button" href={changed(route, { skip: String(skip + ROWS) })} rel="next">
            Next
          </a>
        )}
      </span>
    </footer>
  );
}

function Unknown({ page }: { page: SharingPage }) {
  const texts = [...page.unknown];
  if (page.beyond_limit > 0) texts.push(`${counted(page.beyond_limit, "sample is", "samples are")} of GPUs beyond the limit of this page`);
  if (page.totals.contradicted_power_watts > 0) texts.push(`${watts(page.totals.contradicted_power_watts)} are of GPUs whose shares contradict each other`);
  return (
    <section class="panel" aria-labelledby="unknown-heading">
      <h2 id="unknown-heading">What is not known</h2>
      {texts.length === 0 ? (
        <p class="empty">Nothing is missing: every GPU reports its power, and every part has a signal.</p>
      ) : (
        <ul class="notes">
          {texts.map((text) => (
            <li key={text}>{visible(text)}</li>
          ))}
        </ul>
      )}
      <p class="legend-note">Watts are of one moment, parts as collectors attribute them. Energy is the report's, of windows.</p>
    </section>
  );
}
