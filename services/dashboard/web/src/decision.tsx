// One decision: from what to what, why, by which figures, what it came to. And the list of all.
import { type DecisionDetail, type DecisionPage, query } from "./api";
import { actionBadge, count, counted, duration, evidence, layoutParts, moment, predictions, visible } from "./format";
import { ActionBadge, LayoutChange, OriginBadge, Problem } from "./parts";
import { usePageTop } from "./rows";
import { changed, decisionHref, href, type Live, type Route, useData, workloadHref } from "./state";
import { DecisionList } from "./workload";

export function Decision({ route, live }: { route: Route; live: Live }) {
  const workload = route.params.get("workload") ?? "";
  const id = route.params.get("id") ?? "";
  const { data, error } = useData<DecisionDetail>(`decision${query({ workload, id })}`, live.tick);
  return (
    <>
      <nav class="crumbs" aria-label="Where this is">
        <a href={href(["fleet"])}>Fleet</a> <span aria-hidden="true">/</span>{" "}
        <a href={workloadHref(workload)}>
          <bdi>{visible(workload)}</bdi>
        </a>
      </nav>
      {!data && <h1>{error === null ? "Decision" : "This decision is not kept"}</h1>}
      <Problem error={error} />
      {data && <Detail data={data} />}
    </>
  );
}

function Detail({ data }: { data: DecisionDetail }) {
  const { word } = actionBadge(data);
  return (
    <article>
      <header class="title">
        <h1>
          Decision: {word} <span class="muted whole">at {moment(data.time_ms)}</span>
        </h1>
        <ActionBadge row={data} />
        <OriginBadge origin={data.origin} />
      </header>
      <p class="reason">
        <bdi>{visible(data.reason)}</bdi>
      </p>
      <div class="columns">
        <section class="panel" aria-labelledby="change-heading">
          <h2 id="change-heading">From → to</h2>
          <Change data={data} />
          <dl class="facts">
            <Fact label="Controller" text={`${data.controller} ${data.controller_version}`} />
            <Fact label="Model" text={data.model_version} />
            <Fact label="Restarts the job" text={data.restarts ? "yes" : "no"} />
            <Fact label="Expires" text={moment(data.expires_ms)} />
            <Fact label="No other try before" text={data.hold_until_ms === null ? null : moment(data.hold_until_ms)} />
            <Fact label="Generation" text={data.generation === null ? null : String(data.generation)} />
          </dl>
          <p class="id muted">{visible(data.id)}</p>
        </section>
        <section class="panel" aria-labelledby="outcome-heading">
          <h2 id="outcome-heading">What became of it</h2>
          <Outcome data={data} />
        </section>
      </div>
      <Evidence data={data} />
      <nav class="pager" aria-label="Other decisions of this workload">
        <span>
          {data.older && (
            <a class="button" href={decisionHref(data.workload, data.older)} rel="prev">
              ◀ Earlier
            </a>
          )}
        </span>
        <span>
          {data.newer && (
            <a class="button" href={decisionHref(data.workload, data.newer)} rel="next">
              Later ▶
            </a>
          )}
        </span>
      </nav>
    </article>
  );
}

function Fact({ label, text }: { label: string; text: string | null }) {
  if (!text) return null;
  return (
    <div>
      <dt>{label}</dt>
      <dd>
        <bdi>{visible(text)}</bdi>
      </dd>
    </div>
  );
}

function Change({ data }: { data: DecisionDetail }) {
  const [before, after] = [new Map(layoutParts(data.from)), new Map(layoutParts(data.to))];
  const knobs = [...new Set([...before.keys(), ...after.keys()])];
  if (knobs.length === 0) return <p class="empty">It names no layout.</p>;
  return (
    <table class="plain change">
      <thead>
        <tr>
          <th scope="col">Setting</th>
          <th scope="col">From</th>
          <th scope="col">To</th>
        </tr>
      </thead>
      <tbody>
        {knobs.map((knob) => {
          const differs = before.get(knob) !== after.get(knob);
          return (
            <tr key={knob} class={differs ? "differs" : ""}>
              <th scope="row">{knob}</th>
              <td>{before.get(knob) ?? "no limit"}</td>
              <td>{differs ? <b>{after.get(knob) ?? "no limit"}</b> : "the same"}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Outcome({ data }: { data: DecisionDetail }) {
  const { actuations, verdict, judged } = data;
  return (
    <>
      {judged && (
        <p>
          It judges <a href={decisionHref(judged.workload, judged.id)}>the decision of {moment(judged.time_ms)}</a>:{" "}
          <LayoutChange from={judged.from} to={judged.to} />
        </p>
      )}
      <ol class="steps">
        {actuations.map((step) => (
          <li key={`${step.time_ms}${step.outcome}`}>
            <b>{step.outcome.replaceAll("_", " ")}</b> <span class="muted">{moment(step.time_ms)}</span>
            {step.downtime_seconds !== null && <span> · without work for {duration(step.downtime_seconds)}</span>}
            {step.reason && (
              <p>
                <bdi>{visible(step.reason)}</bdi>
              </p>
            )}
          </li>
        ))}
        {verdict && (
          <li>
            <ActionBadge row={verdict} />{" "}
            <a href={decisionHref(verdict.workload, verdict.id)}>{moment(verdict.time_ms)}</a>
            <p>
              <bdi>{visible(verdict.reason)}</bdi>
            </p>
          </li>
        )}
      </ol>
      {actuations.length === 0 && !verdict && (
        <p class="empty">
          {data.action === "maintain"
            ? "Nothing was to be changed."
            : "No actuator has reported on it: it may be under way, or nobody applies decisions here."}
        </p>
      )}
      {data.validation === "pending" && !verdict && <p class="muted">It is checked once enough windows have closed after it.</p>}
    </>
  );
}

/** What was known before beside what was known after. */
function Evidence({ data }: { data: DecisionDetail }) {
  const after = data.verdict?.evidence;
  const names = [...new Set([...Object.keys(data.evidence), ...Object.keys(after ?? {})])].sort();
  if (names.length === 0) return null;
  const predicted = predictions(data);
  return (
    <section class="panel" aria-labelledby="evidence-heading">
      <h2 id="evidence-heading">The figures behind it</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of these figures">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Figure</th>
              <th scope="col" class="num">
                When it was decided
              </th>
              {after && (
                <th scope="col" class="num">
                  When it was judged
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {predicted.map(({ label, expected, found }) => (
              <tr key={label} class="predicted">
                <th scope="row">{label}: expected{after ? ", and found" : ""}</th>
                <td class="num">{expected}</td>
                {after && <td class="num">{found}</td>}
              </tr>
            ))}
            {names.map((name) => (
              <tr key={name}>
                <th scope="row" title={name}>
                  {visible(evidence(name, 0).label)}
                </th>
                <td class="num">{cell(name, data.evidence[name])}</td>
                {after && <td class="num">{cell(name, after[name])}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const cell = (name: string, value: number | undefined): string => (value === undefined ? "–" : evidence(name, value).text);

/** Decisions of all workloads, or of one. */
export function AllDecisions({ route, live }: { route: Route; live: Live }) {
  const workload = route.params.get("workload");
  const skip = Number(route.params.get("skip")) || 0;
  const top = usePageTop<HTMLElement>(skip);
  const { data, error } = useData<DecisionPage>(`decisions${query({ workload, skip: skip || null, limit: 50 })}`, live.tick);
  return (
    <>
      <h1>{workload ? `Decisions on ${visible(workload)}` : "Decisions"}</h1>
      <p class="muted">
        Changes and verdicts, newest first. Of those that change nothing the newest of each workload is listed.
        {data && data.dropped > 0 ? ` ${counted(data.dropped, "older one is", "older ones are")} no longer kept here: eadt tail has them.` : ""}
      </p>
      <Problem error={error} />
      {data && (
        <section class="panel page-top" ref={top} aria-label="Decisions">
          {data.rows.length === 0 ? <p class="empty">Nothing was decided yet.</p> : <DecisionList rows={data.rows} withWorkload={workload === null} />}
          <footer class="pager">
            <span>
              {data.rows.length > 0 && `${skip + 1}–${skip + data.rows.length} of ${count(data.matching)}`}
            </span>
            <span>
              {skip > 0 && (
                <a class="button" href={changed(route, { skip: skip > 50 ? String(skip - 50) : null })}>
                  Newer
                </a>
              )}
              {skip + data.rows.length < data.matching && (
                <a class="button" href={changed(route, { skip: String(skip + 50) })}>
                  Older
                </a>
              )}
            </span>
          </footer>
        </section>
      )}
    </>
  );
}
