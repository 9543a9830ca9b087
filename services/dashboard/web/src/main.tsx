// The shell: where one can go, what is live, the last message; and the keys.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./colours.css";
import "./app.css";
import "./content.css";
import "./views.css";
import "./narrow.css";
import { addressMoment, isWorkloadName, openSession, type Overview, type RunList } from "./api";
import { copy } from "./copy";
import { Compare } from "./compare";
import { AllDecisions, Decision } from "./decision";
import { Fleet } from "./fleet";
import { clock, counted, duration, visible } from "./format";
import { OriginBadge } from "./parts";
import { Pipeline } from "./pipeline";
import { Policies } from "./policies";
import { Runs } from "./runs";
import { Sharing } from "./sharing";
import { changed, href, type Live, parseRoute, type Route, type Theme, useData, useLive, useQuiet, useRoute, useTheme } from "./state";
import { TimeTravel } from "./timetravel";
import { WhatIf } from "./whatif";
import { Workload } from "./workload";

const LOST = "The connection is lost; trying again";

const VIEWS: [string, string][] = [
  ["fleet", "Fleet"],
  ["decisions", "Decisions"],
  ["sharing", "GPUs"],
  ["policies", "Policies"],
  ["pipeline", "Pipeline"],
];
/** Only where another run was given. */
const RUNS: [string, string] = ["runs", "Runs"];

function App() {
  const route = useRoute();
  const [session, setSession] = useState(0);
  const newest = useLive(session);
  const at = addressMoment();
  const past = useData<Overview>(at === null ? null : "overview", 0);
  // Other runs are given at the start of the server.
  const { data: runs } = useData<RunList>(copy === null && newest.connection === "open" ? "runs" : null, 0);
  const views = runs && runs.runs.length > 0 ? [...VIEWS, RUNS] : VIEWS;
  const live = at === null ? newest : { ...newest, overview: past.data };
  // Until a moment is read, the figures of the one before are still there.
  const isReading = at !== null && !past.isCurrent;
  // A log that grows has no earlier moments: an address of an archive's page goes on at the newest.
  const isLive = newest.overview?.source.kind === "live";
  useEffect(() => {
    if (at !== null && isLive) location.replace(changed(route, { at: null }));
  }, [at, isLive]);
  const [spoken, setSpoken] = useState("");
  const search = useRef<HTMLInputElement>(null);
  const help = useRef<HTMLDialogElement>(null);
  const view = route.parts[0] ?? "fleet";

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "Escape" && event.target === search.current) search.current?.blur();
      if (typing) return;
      if (event.key === "/") search.current?.focus();
      else if (event.key === "?") help.current?.showModal();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);

  const { notice } = live;
  useEffect(() => {
    if (notice) setSpoken(`${clock(notice.time_ms)}: ${visible(notice.workload)}: ${visible(notice.text)}`);
  }, [notice?.version]);
  useEffect(() => {
    if (live.connection === "lost") setSpoken(LOST);
    else if (live.connection === "open") setSpoken((spoken) => (spoken === LOST ? "Connected again" : spoken));
  }, [live.connection]);

  const place = route.parts.join("/");
  useEffect(() => {
    document.title = [title(route), "EADT"].filter((part) => part !== "").join(" · ");
    scrollTo(0, 0);
  }, [place]);

  if (live.connection === "locked") return <Login onOpen={() => setSession(session + 1)} />;
  return (
    <>
      <a class="skip" href="#main" onClick={focusMain}>
        To the content
      </a>
      <header class="bar">
        <a class="brand" href={href(["fleet"])}>
          <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true" focusable="false">
            <rect width="32" height="32" rx="7" class="brand-tile" />
            <path d="M18 5 8 18h7l-1 9 10-13h-7z" class="brand-bolt" />
          </svg>
          EADT
        </a>
        <nav aria-label="Views">
          {views.map(([key, label]) => (
            <a key={key} href={href([key])} aria-current={view === key ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        <Search field={search} route={route} />
        <span class="right">
          {live.overview && <OriginBadge origin={live.overview.origin} mixed={live.overview.mixed_origins} />}
          <Connected live={live} />
          <ThemeSwitch />
          <button type="button" class="icon" aria-label="Keys" title="Keys (?)" onClick={() => help.current?.showModal()}>
            ?
          </button>
        </span>
      </header>
      {newest.overview?.source.kind === "archive" && copy === null && <TimeTravel newest={newest.overview} at={at} error={at === null ? null : past.error} />}
      <main id="main" tabIndex={-1} class={isReading ? "reading" : undefined} aria-busy={isReading}>
        <View view={view} route={route} live={live} runs={runs} announce={setSpoken} />
      </main>
      <footer class="foot">
        {live.overview && (
          <>
            {live.overview.source.place} · eadt {live.overview.source.version} · times are UTC
            {copy === null ? (
              <>
                {" · "}
                <a href="/api/v1/export" download>
                  Save this run as one file
                </a>
              </>
            ) : (
              copy.left_out > 0 && ` · ${counted(copy.left_out, "workload with less energy is", "workloads with less energy are")} not in this file`
            )}
          </>
        )}
      </footer>
      <p class="sr" role="status" aria-live="polite">
        {spoken}
      </p>
      <Help dialog={help} />
    </>
  );
}

function focusMain(event: Event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** The view of an address whose name is none of a workload; nothing is asked of the server. */
function NoWorkload({ name }: { name: string }) {
  return (
    <>
      <h1>{name === "" ? "No workload is named" : <>No workload is named “<bdi>{visible(name)}</bdi>”</>}</h1>
      <p class="muted">
        The name of a workload has a namespace, as in <code>eadt/llm-training</code>. <a href={href(["fleet"], { q: name })}>Search the fleet</a>
      </p>
    </>
  );
}

function title({ parts, params }: Route): string {
  if (parts[0] === "workload") return visible(parts.slice(1).join("/"));
  if (parts[0] === "compare") return "Compare";
  if (parts[0] === "runs") return "Compare two runs";
  if (parts[0] === "what-if") return `What if: ${visible(params.get("workload") ?? "")}`;
  if (parts[0] === "decision") return `Decision on ${visible(params.get("workload") ?? "")}`;
  return VIEWS.find(([key]) => key === (parts[0] ?? "fleet"))?.[1] ?? "";
}

function View({ view, route, live, runs, announce }: { view: string; route: Route; live: Live; runs: RunList | null; announce: (text: string) => void }) {
  switch (view) {
    case "fleet":
      return <Fleet route={route} live={live} announce={announce} />;
    case "workload": {
      const name = route.parts.slice(1).join("/");
      if (!isWorkloadName(name)) return <NoWorkload name={name} />;
      return <Workload key={name} name={name} route={route} live={live} />;
    }
    case "decision":
      return <Decision key={route.params.toString()} route={route} live={live} />;
    case "decisions":
      return <AllDecisions route={route} live={live} />;
    case "sharing":
      return <Sharing route={route} live={live} />;
    case "compare":
      return <Compare route={route} live={live} />;
    case "runs":
      return <Runs key={route.params.get("run")} route={route} live={live} list={runs} />;
    case "what-if":
      return <WhatIf key={route.params.toString()} route={route} />;
    case "policies":
      return <Policies route={route} live={live} />;
    case "pipeline":
      return <Pipeline live={live} />;
    default:
      return (
        <>
          <h1>There is no such view</h1>
          <p>
            <a href={href(["fleet"])}>To the fleet</a>
          </p>
        </>
      );
  }
}

/** Searching shows the fleet's table from its beginning; each key narrows it. */
function Search({ field, route }: { field: { current: HTMLInputElement | null }; route: Route }) {
  const text = route.parts[0] === "fleet" || route.parts.length === 0 ? (route.params.get("q") ?? "") : "";
  const timer = useRef(0);
  /** What the address has of the field, so that only an address that changed otherwise is written into it. */
  const written = useRef(text);
  useEffect(() => {
    if (text === written.current) return;
    written.current = text;
    if (field.current) field.current.value = text;
  }, [text]);
  const go = (value: string) => {
    clearTimeout(timer.current);
    const typedIn = parseRoute(location.hash).parts.join("/");
    timer.current = window.setTimeout(() => {
      const now = parseRoute(location.hash);
      // A user who has gone to another view meanwhile stays there.
      if (now.parts[0] !== "fleet" && now.parts.join("/") !== typedIn) return;
      const isFleet = now.parts[0] === "fleet" || now.parts.length === 0;
      const base = isFleet ? now : { parts: ["fleet"], params: new URLSearchParams() };
      const address = changed({ ...base, parts: ["fleet"] }, { q: value || null, cursor: null });
      written.current = value;
      // Back leads to the view before the search, not to each of its letters.
      if (isFleet && base.params.has("q")) location.replace(address);
      else location.hash = address;
    }, 200);
  };
  return (
    <form
      role="search"
      class="search"
      onSubmit={(event) => {
        event.preventDefault();
        go(field.current?.value ?? "");
      }}
    >
      <input
        ref={field}
        type="search"
        placeholder="Search workloads"
        aria-label="Search workloads"
        aria-keyshortcuts="/"
        defaultValue={written.current}
        onInput={(event) => go(event.currentTarget.value)}
        spellcheck={false}
        autocomplete="off"
      />
      <kbd aria-hidden="true">/</kbd>
    </form>
  );
}

function Connected({ live }: { live: Live }) {
  const { connection, overview } = live;
  const quiet = useQuiet(overview);
  if (connection === "lost") return <span class="badge tone-bad">✗ reconnecting</span>;
  if (connection === "connecting" || !overview) return <span class="badge tone-calm">○ connecting</span>;
  if (copy !== null) return <span class="badge tone-calm">▤ a copy{overview.now_ms === null ? "" : ` of ${clock(overview.now_ms)}`}</span>;
  if (overview.source.kind === "archive") return <span class="badge tone-calm">▤ archive</span>;
  if (overview.problem !== null) return <span class="badge tone-bad">✗ the log cannot be read</span>;
  if (!overview.caught_up) return <span class="badge tone-busy">◔ reading</span>;
  if (quiet !== null) return <span class="badge tone-bad">✗ nothing new for {duration(quiet)}</span>;
  return (
    <span class="badge tone-good" title="the end of the newest window">
      <span class="beat" aria-hidden="true">
        ●
      </span>{" "}
      live {overview.now_ms === null ? "" : clock(overview.now_ms)}
    </span>
  );
}

const NEXT: Record<Theme, Theme> = { system: "dark", dark: "light", light: "system" };
const THEMES: Record<Theme, string> = { system: "◐", dark: "☾", light: "☀" };

function ThemeSwitch() {
  const [theme, setTheme] = useTheme();
  const label = `Colours: ${theme === "system" ? "as the system" : theme}`;
  return (
    <button type="button" class="icon" aria-label={label} title={label} onClick={() => setTheme(NEXT[theme])}>
      {THEMES[theme]}
    </button>
  );
}

function Login({ onOpen }: { onOpen: () => void }) {
  const [wrong, setWrong] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (await openSession(field.current?.value ?? "")) onOpen();
    else setWrong(true);
  };
  return (
    <main class="login">
      <h1>EADT</h1>
      <form onSubmit={submit}>
        <label for="token">Token</label>
        <input id="token" ref={field} type="password" autocomplete="current-password" aria-describedby="token-help" />
        <p id="token-help" class="muted">
          One of those in the file that <code>dashboard.token_file</code> names.
        </p>
        {wrong && (
          <p class="problem" role="alert">
            This token is not known.
          </p>
        )}
        <button type="submit" class="button">
          Open
        </button>
      </form>
    </main>
  );
}

const KEYS: [string, string][] = [
  ["/", "search workloads"],
  ["j  k", "next and previous row of a table"],
  ["Enter", "open what is focused"],
  ["← →", "in a chart: read point by point (Page Up and Down: ten)"],
  ["Home  End", "in a chart: first and last point"],
  ["← → ↑ ↓", "in the strip of all workloads and the map of all GPUs: from one to the next (Enter opens it)"],
  ["?", "this list"],
];

function Help({ dialog }: { dialog: { current: HTMLDialogElement | null } }) {
  return (
    <dialog ref={dialog} aria-labelledby="keys-heading">
      <h2 id="keys-heading">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, text]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button class="button">Close</button>
      </form>
    </dialog>
  );
}

const root = document.getElementById("app");
if (root) {
  root.textContent = "";
  render(<App />, root);
}
