// This run beside another one, workload by workload: the figures of `eadt report --compare`.
import { useRef } from "preact/hooks";
import { type Comparison, type FigurePair, query, type RunFacts, type RunList, type RunPage, type RunRow, type Unmatched } from "./api";
import { Change, Refusals } from "./compare";
import { count, counted, digits, joules, perSample, visible } from "./format";
import { OriginBadge, Problem, WithCode } from "./parts";
import { usePageTop, useRowKeys } from "./rows";
import { changed, type Live, type Route, useData, workloadHref } from "./state";

const ROWS = 50;

export function Runs({ route, live, list }: { route: Route; live: Live; list: RunList | null }) {
  const run = route.params.get("run") ?? list?.runs[0]?.name ?? null;
  const skip = Number(route.params.get("skip")) || 0;
  const path = run === null ? null : `compare-run${query({ run, q: route.params.get("q"), skip: skip || null, limit: ROWS })}`;
  const { data, error } = useData<RunPage>(path, live.tick);
  return (
    <>
      <h1>Compare two runs</h1>
      {list?.runs.length === 0 && (
        <p>
          <WithCode text="No other run was given: start `eadt dashboard ARCHIVE --compare OTHER`." />
        </p>
      )}
      {list !== null && list.runs.length > 0 && <Choice route={route} list={list} run={run} />}
      <Problem error={path === null ? null : error} />
      {path !== null && data && <Page page={data} route={route} skip={skip} />}
    </>
  );
}

function Choice({ route, list, run }: { route: Route; list: RunList; run: string | null }) {
  const form = useRef<HTMLFormElement>(null);
  const go = (event: Event) => {
    event.preventDefault();
    const given = new FormData(form.current ?? undefined);
    location.hash = changed(route, { run: String(given.get("run") ?? ""), q: String(given.get("q") ?? "").trim() || null, skip: null });
  };
  return (
    <form ref={form} class="choose panel" onSubmit={go} aria-label="What is compared">
      <label>
        Other run
        <select name="run" value={run ?? ""}>
          {list.runs.map(({ name }) => (
            <option key={name} value={name}>
              {visible(name)}
            </option>
          ))}
        </select>
      </label>
      <label>
        Workloads with
        <input name="q" defaultValue={route.params.get("q") ?? ""} autocomplete="off" spellcheck={false} placeholder="all" />
      </label>
      <button type="submit" class="button">
        Compare
      </button>
    </form>
  );
}

function Facts({ label, run }: { label: string; run: RunFacts }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>
        <bdi>{visible(run.name)}</bdi>: {counted(run.workloads, "workload")}, {joules(run.energy_joules)} <OriginBadge origin={run.origin} mixed={run.origin === null && run.workloads > 0} />
      </dd>
    </div>
  );
}

function Page({ page, route, skip }: { page: RunPage; route: Route; skip: number }) {
  const body = useRowKeys(page.rows.length);
  const top = usePageTop<HTMLDivElement>(skip);
  const last = skip + page.rows.length;
  return (
    <section class="panel" aria-labelledby="runs-heading">
      <h2 id="runs-heading">Workloads of both runs</h2>
      <dl class="facts">
        <Facts label="This run" run={page.this} />
        <Facts label="Other run" run={page.other} />
      </dl>
      {page.rows.length === 0 ? (
        <p class="empty">No workload is in both runs.</p>
      ) : (
        <div class="scroll page-top" ref={top} tabIndex={0} role="region" aria-label="Table of workloads of both runs">
          <table class="fleet runs">
            <thead>
              <tr>
                <th scope="col">Workload</th>
                {HEADINGS.map((heading) => (
                  <th key={heading} scope="col" class="num">
                    {heading}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody ref={body}>
              {page.rows.map((row) => (
                <Row key={row.workload} row={row} notes={page.notes} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <footer class="pager">
        <span>{page.rows.length > 0 && `${skip + 1}–${last} of ${count(page.matching)}, those with the most energy first`}</span>
        <span>
          {skip > 0 && (
            <a class="button" href={changed(route, { skip: null })}>
              First
            </a>
          )}
          {last < page.matching && (
            <a class="button" href={changed(route, { skip: String(last) })} rel="next">
              Next {Math.min(ROWS, page.matching - last)}
            </a>
          )}
        </span>
      </footer>
      <ul class="notes">
        <Only where="this run" of={page.only_this} />
        <Only where="the other run" of={page.only_other} />
        {page.rows.some((row) => row.figures !== null && !didTheSame(row.figures)) && (
          <li>neither run is called better where a workload ran longer and did more in one of them: another mix of its phases would show as a change</li>
        )}
        {page.notes.map((note) => (
          <li key={note}>{visible(note)}</li>
        ))}
      </ul>
    </section>
  );
}

function Only({ where, of }: { where: string; of: Unmatched }) {
  const left = of.count - of.names.length;
  if (of.count === 0) return null;
  return (
    <li>
      only in {where}: {of.names.map(visible).join(", ")}
      {left > 0 && ` and ${count(left)} more`}
    </li>
  );
}

const HEADINGS = ["J/sample, other", "J/sample, this", "J/sample, change", "Samples/s, other", "Samples/s, this", "Samples/s, change", "Energy, other", "Energy, this"];

/** Whether a workload did about the same work in both runs, or ran as long: else a mix of other phases shows as a change. */
function didTheSame({ samples, duration_seconds: duration }: Comparison): boolean {
  const isSame = ({ this: one, other }: FigurePair) => one !== null && other !== null && Math.abs(one - other) <= 0.01 * Math.max(one, other);
  return isSame(samples) || isSame(duration);
}

/** A refusal that a note of the page has is not repeated in each row. */
function Row({ row, notes }: { row: RunRow; notes: string[] }) {
  const isSame = row.figures !== null && didTheSame(row.figures);
  const { figures, this_origin, other_origin } = row;
  const refusals = figures?.refusals.filter((text) => !notes.includes(text)) ?? [row.refusal ?? ""];
  const pair = (pair: FigurePair, text: (value: number | null) => string) => [text(pair.other), text(pair.this)];
  const cells = figures && [
    ...pair(figures.joules_per_sample, perSample),
    <Change pair={figures.joules_per_sample} better={isSame ? "less" : null} />,
    ...pair(figures.samples_per_second, digits),
    <Change pair={figures.samples_per_second} better={isSame ? "more" : null} />,
    ...pair(figures.energy_joules, joules),
  ];
  return (
    <>
      <tr>
        <th scope="row">
          <a href={workloadHref(row.workload)} class="name">
            <bdi>{visible(row.workload)}</bdi>
          </a>
          {this_origin !== other_origin && (
            <>
              {" "}
              <OriginBadge origin={other_origin} /> → <OriginBadge origin={this_origin} />
            </>
          )}
        </th>
        {cells?.map((cell, index) => (
          <td key={HEADINGS[index]} class="num" data-label={HEADINGS[index]}>
            {cell}
          </td>
        ))}
      </tr>
      {refusals.length > 0 && (
        <tr>
          <td colSpan={1 + HEADINGS.length} class="refused">
            <Refusals texts={refusals} />
          </td>
        </tr>
      )}
    </>
  );
}
