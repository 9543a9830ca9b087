// Policies: what may be done to each workload, and what was changed of that last.
import { type PolicyPage, type PolicyRow, type PolicyTerms, query } from "./api";
import { copy } from "./copy";
import { count, counted, moment, visible } from "./format";
import { ActionBadge, Problem, Stat, WithCode } from "./parts";
import { usePageTop } from "./rows";
import { TermsButtons, useSession } from "./terms";
import { changed, decisionHref, type Live, type Route, useData, workloadHref } from "./state";

const ROWS = 50;

const MODES: Record<string, { mark: string; tone: string; meaning: string }> = {
  observe: { mark: "○", tone: "calm", meaning: "reported on, never changed" },
  recommend: { mark: "◔", tone: "busy", meaning: "changes are recommended, and made only if somebody approves" },
  enforce: { mark: "▲", tone: "good", meaning: "changed within its bounds" },
};

const FILTERS: [string, string][] = [
  ["", "all"],
  ["enforce", "enforce"],
  ["recommend", "recommend"],
  ["observe", "observe"],
  ["paused", "paused"],
  ["none", "without a policy"],
];

export function Policies({ route, live }: { route: Route; live: Live }) {
  const params = Object.fromEntries(route.params);
  const skip = Number(params.skip) || 0;
  const mode = params.mode ?? "";
  const session = useSession();
  const top = usePageTop<HTMLElement>(skip);
  const { data, error } = useData<PolicyPage>(`policies${query({ q: params.name, mode, skip: skip || null, limit: ROWS })}`, live.tick);
  return (
    <>
      <h1>Policies</h1>
      <p class="muted">What may be done to each workload, by its declarations in the log. Nothing is changed on a workload that has none.</p>
      {session?.read_only && (
        <p class="muted">
          <WithCode text={session.read_only} />
        </p>
      )}
      {session?.namespaces && <p class="muted">You may change those of {session.namespaces.join(", ")}, and read the others.</p>}
      <Problem error={error} />
      {data && <Counts page={data} />}
      {data && (
        <section class="panel page-top" ref={top} aria-labelledby="policies-heading">
          <header class="panel-head">
            <h2 id="policies-heading">Workloads</h2>
            <nav class="choice" aria-label="Mode" hidden={copy !== null}>
              {FILTERS.map(([key, label]) => (
                <a key={key} href={changed(route, { mode: key || null, skip: null })} aria-current={mode === key ? "true" : undefined}>
                  {label}
                </a>
              ))}
            </nav>
          </header>
          {data.rows.length === 0 ? (
            <p class="empty">
              None matches. <a href={changed(route, { mode: null, name: null, skip: null })}>Show all</a>
            </p>
          ) : (
            <ul class="gpus">
              {data.rows.map((row) => (
                <Policy key={row.workload} row={row} />
              ))}
            </ul>
          )}
          <footer class="pager">
            <span>{data.rows.length > 0 && `${skip + 1}–${skip + data.rows.length} of ${count(data.matching)}${data.left_out ? `, ${count(data.left_out)} are not in this file` : ""}`}</span>
            <span>
              {skip > 0 && (
                <a class="button" href={changed(route, { skip: skip > ROWS ? String(skip - ROWS) : null })} rel="prev">
                  Back
                </a>
              )}
              {skip + data.rows.length < data.matching && (
                <a class="button" href={changed(route, { skip: String(skip + ROWS) })} rel="next">
                  Next
                </a>
              )}
            </span>
          </footer>
        </section>
      )}
    </>
  );
}

function Counts({ page: { counts } }: { page: PolicyPage }) {
  return (
    <dl class="stats">
      <Stat label="Enforce" value={count(counts.enforce)} note={MODES.enforce?.meaning} />
      <Stat label="Recommend" value={count(counts.recommend)} note="changed only if somebody approves" />
      <Stat label="Observe" value={count(counts.observe)} note={MODES.observe?.meaning} />
      <Stat label="Paused" value={count(counts.paused)} note="of all of these" tone={counts.paused > 0 ? "busy" : undefined} />
      <Stat label="Without a policy" value={count(counts.undeclared)} note="nothing of them is changed" />
    </dl>
  );
}

export function ModeBadge({ terms }: { terms: PolicyTerms }) {
  const { mark, tone, meaning } = MODES[terms.mode] ?? { mark: "?", tone: "calm", meaning: "" };
  return (
    <>
      <span class={`badge tone-${tone}`} title={meaning}>
        <span aria-hidden="true">{mark}</span> {terms.mode}
      </span>
      {terms.paused && (
        <span class="badge tone-busy" title="nothing is changed while it is paused">
          <span aria-hidden="true">‖</span> paused
        </span>
      )}
    </>
  );
}

const UNITS: [RegExp, string][] = [
  [/_percentage$/, " %"],
  [/_watts$/, " W"],
  [/_mhz$/, " MHz"],
];

/** Bounds in words: `replicas 1 to 8`, `power limit at most 400 W`. */
export function boundsText(bounds: PolicyTerms["bounds"]): string[] {
  const ends = new Map<string, { min?: string; max?: string }>();
  const texts: string[] = [];
  for (const [name, value] of Object.entries(bounds)) {
    const [, base, end] = /^(.*)_(min|max)$/.exec(name) ?? [];
    if (Array.isArray(value)) texts.push(`${name}: ${value.join(", ") || "none"}`);
    else if (base && (end === "min" || end === "max")) {
      const unit = UNITS.find(([pattern]) => pattern.test(base))?.[1] ?? "";
      ends.set(base, { ...ends.get(base), [end]: `${value}${unit}` });
    } else texts.push(`${name.replaceAll("_", " ")}: ${value}`);
  }
  for (const [base, { min, max }] of ends) {
    const label = base.replace(/_(percentage|watts|mhz)$/, "").replaceAll("_", " ");
    const range = min && max ? `${min} to ${max}` : min ? `at least ${min}` : `at most ${max}`;
    texts.push(`${label} ${range}`);
  }
  return texts.map(visible);
}

/** What differs between two terms: a name, before, after. */
export function termChanges(before: PolicyTerms, after: PolicyTerms): [string, string, string][] {
  const rows = (terms: PolicyTerms): [string, string][] => [
    ["mode", terms.mode],
    ["paused", terms.paused ? "yes" : "no"],
    ["controller", terms.controller ?? "the default"],
    ["bounds", boundsText(terms.bounds).join(", ") || "the controller's own"],
    ["settings", JSON.stringify(terms.controller_settings ?? {})],
  ];
  const now = new Map(rows(after));
  return rows(before)
    .map(([name, value]): [string, string, string] => [name, visible(value), visible(now.get(name) ?? "")])
    .filter(([, from, to]) => from !== to);
}

/** Who changed one of the terms, if that is known. */
function setByNote(name: string, terms: PolicyTerms): string {
  const who = name === "mode" ? terms.mode_set_by : name === "paused" ? terms.pause_set_by : null;
  return who ? ` (set by ${visible(who)})` : "";
}

function Policy({ row }: { row: PolicyRow }) {
  const { terms, decision, recommended } = row;
  const bounds = terms ? boundsText(terms.bounds) : [];
  return (
    <li class="gpu">
      <div class="gpu-head">
        <h3>
          <a href={workloadHref(row.workload)} class="name">
            <bdi>{visible(row.workload)}</bdi>
          </a>
        </h3>
        {terms ? <ModeBadge terms={terms} /> : <span class="badge tone-calm">○ no policy</span>}
        {row.kind && <span class="muted">{visible(row.kind)}</span>}
        {terms && <TermsButtons workload={row.workload} terms={terms} recommended={recommended} />}
        {row.declared_ms !== null && <span class="num muted">declared {moment(row.declared_ms)}</span>}
      </div>
      {terms && (
        <p class="terms">
          {terms.controller ? visible(terms.controller) : "the processor's controller"}
          {" · "}
          {bounds.length === 0 ? "the controller's own bounds" : bounds.join(" · ")}
          {terms.controller_settings && Object.keys(terms.controller_settings).length > 0 && ` · ${counted(Object.keys(terms.controller_settings).length, "setting")} of its own`}
        </p>
      )}
      <ul class="parts">
        <li class="muted">
          {row.changed && terms
            ? `changed ${moment(row.changed.time_ms)}: ${termChanges(row.changed.before, terms)
                .map(([name, from, to]) => `${name} from ${from} to ${to}${setByNote(name, terms)}`)
                .join("; ")}`
            : terms
              ? "unchanged since the oldest declaration that is kept"
              : "nobody has declared it"}
        </li>
        {recommended && (
          <li>
            <span class="badge tone-busy">◔ waits for an approval</span>{" "}
            <a href={decisionHref(recommended.workload, recommended.id)}>recommended {moment(recommended.time_ms)}</a>
            <bdi class="muted">{visible(recommended.reason)}</bdi>
          </li>
        )}
        {decision && decision.id !== recommended?.id && (
          <li>
            <ActionBadge row={decision} />{" "}
            <a href={decisionHref(decision.workload, decision.id)}>{moment(decision.time_ms)}</a>
            <bdi class="muted">{visible(decision.reason)}</bdi>
          </li>
        )}
      </ul>
    </li>
  );
}
