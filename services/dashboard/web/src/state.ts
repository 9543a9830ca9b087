// Where the viewer is (the address), what is new (the stream of events), and what a view has asked for.
import { useEffect, useRef, useState } from "preact/hooks";
import { addressMoment, ApiError, forgetSession, get, NoAnswer, type Notice, type Overview, query } from "./api";
import { copy } from "./copy";
import { clock } from "./format";

export interface Route {
  parts: string[];
  params: URLSearchParams;
}

/** Reads `#/workload/ns/name?range=6h`. */
export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  return { parts: parts.map(decode), params: new URLSearchParams(search) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address of the page. It goes on naming the moment that is looked at, unless the parameters name another one. */
export function href(parts: string[], params: Record<string, string | number | null | undefined> = {}): string {
  return `#/${parts.map(encodeURIComponent).join("/")}${query({ at: addressMoment(), ...params })}`;
}

export const workloadHref = (workload: string): string => href(["workload", ...workload.split("/")]);
export const decisionHref = (workload: string, id: string): string => href(["decision"], { workload, id });

/** This address with some parameters changed; `null` takes one away. */
export function changed(route: Route, params: Record<string, string | null>): string {
  return href(route.parts, { ...Object.fromEntries(route.params), ...params });
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const listen = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  return route;
}

export type Connection = "connecting" | "open" | "lost" | "locked";

export interface Live {
  connection: Connection;
  overview: Overview | null;
  /** Grows with each update. */
  tick: number;
  notice: Notice | null;
}

/** The moment of the newest figures that came; `null`: none did. */
let newestShown: number | null = null;

/** Follows the stream; the browser reconnects by itself with the id of the last event. */
export function useLive(session: number): Live {
  const [live, setLive] = useState<Live>({ connection: copy ? "open" : "connecting", overview: copy?.overview ?? null, tick: 0, notice: null });
  useEffect(() => {
    if (copy) return;
    let source: EventSource | null = null;
    let timer = 0;
    let gone = false;
    const connect = () => {
      source = new EventSource("/api/v1/events");
      source.addEventListener("open", () => {
        forgetSession();
        setLive((live) => ({ ...live, connection: "open" }));
      });
      source.addEventListener("update", (event) => {
        const { overview } = JSON.parse((event as MessageEvent<string>).data) as { overview: Overview };
        newestShown = overview.now_ms;
        setLive((live) => ({ ...live, connection: "open", overview, tick: live.tick + 1 }));
      });
      source.addEventListener("notice", (event) => {
        const notice = JSON.parse((event as MessageEvent<string>).data) as Notice;
        setLive((live) => ({ ...live, notice }));
      });
      source.addEventListener("error", () => {
        setLive((live) => (live.connection === "locked" ? live : { ...live, connection: "lost" }));
        // A refusal ends the stream for good: it may be that a token is asked for.
        if (source?.readyState === EventSource.CLOSED) void refused();
      });
    };
    const refused = async () => {
      const locked = await get("overview").then(
        () => false,
        (error: unknown) => error instanceof ApiError && error.status === 401,
      );
      if (gone) return;
      if (locked) setLive((live) => ({ ...live, connection: "locked" }));
      else timer = window.setTimeout(connect, 2000);
    };
    connect();
    return () => {
      gone = true;
      clearTimeout(timer);
      source?.close();
    };
  }, [session]);
  return live;
}

/** Seconds without a sample or a window after which a log is quiet: as long as windows may be behind before they are called stalled. */
const quietSeconds = (window: number): number => Math.max(3 * window, window + 180);

/** Seconds since the newest sample or window of a log, if that is long. Stamps of a simulated log are simulated time, which gives no age. */
export function useQuiet(overview: Overview | null): number | null {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 10_000);
    return () => clearInterval(timer);
  }, []);
  if (copy !== null || !overview || overview.source.kind !== "live" || overview.origin === "simulated") return null;
  if (overview.now_ms === null || overview.newest_figures_ms === null) return null;
  const seconds = (now - overview.newest_figures_ms) / 1000;
  return seconds > quietSeconds(overview.source.window_seconds ?? 60) ? seconds : null;
}

export interface Loaded<T> {
  data: T | null;
  error: string | null;
  /** What is there answers the question that is asked now, or that one failed. */
  isCurrent: boolean;
}

/** The message of a failed request. `hasData`: something of the same question is shown meanwhile. */
function failureText(error: unknown, hasData: boolean): string {
  if (!(error instanceof NoAnswer)) return error instanceof Error ? error.message : String(error);
  const shown = addressMoment() ?? newestShown;
  return `${error.message}${hasData && shown !== null ? `; shown is ${clock(shown)}` : ""}. Trying again.`;
}

/**
 * Asks at once when the path changes, again at most once in `pause` milliseconds while there is something new, and two seconds after the server
 * gave no answer. What was shown stays meanwhile.
 */
export function useData<T>(question: string | null, tick: number, pause = 1000): Loaded<T> {
  // The same question about another moment is another one.
  const path = question === null ? null : `${addressMoment() ?? ""} ${question}`;
  const [state, setState] = useState<Omit<Loaded<T>, "isCurrent"> & { path: string | null }>({ data: null, error: null, path: null });
  const asked = useRef<{ path: string | null; at: number; count: number; answered: number }>({ path: null, at: 0, count: 0, answered: 0 });
  useEffect(() => {
    if (path === null || question === null) return;
    const abort = new AbortController();
    let timer = 0;
    let isOver = false;
    const ask = () => {
      const number = asked.current.count + 1;
      asked.current = { ...asked.current, path, at: Date.now(), count: number };
      // An answer that was overtaken by a later one is older than what is shown.
      const isNewest = () => {
        if (abort.signal.aborted || number < asked.current.answered) return false;
        asked.current.answered = number;
        return true;
      };
      get<T>(question, abort.signal).then(
        (data) => isNewest() && setState({ data, error: null, path }),
        (error: unknown) => {
          if (!isNewest()) return;
          setState((state) => {
            const data = state.path === path ? state.data : null;
            return { data, error: failureText(error, data !== null), path };
          });
          if (!isOver && !(error instanceof ApiError)) timer = window.setTimeout(ask, 2000);
        },
      );
    };
    const fresh = asked.current.path === path;
    const wait = fresh ? Math.max(0, asked.current.at + pause - Date.now()) : 0;
    timer = window.setTimeout(ask, wait);
    return () => {
      isOver = true;
      clearTimeout(timer);
      // An answer that is on its way counts, if it is to the same question.
      if (asked.current.path !== path) abort.abort();
    };
  }, [path, tick]);
  return { data: state.data, error: state.error, isCurrent: state.path === path };
}

/** Dark or light, by the system unless the viewer has chosen otherwise. */
export type Theme = "system" | "light" | "dark";

const stored = (): Theme => {
  try {
    const theme = localStorage.getItem("theme");
    return theme === "light" || theme === "dark" ? theme : "system";
  } catch {
    return "system";
  }
};

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState(stored);
  useEffect(() => {
    const root = document.documentElement;
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      if (theme === "system") localStorage.removeItem("theme");
      else localStorage.setItem("theme", theme);
    } catch {
      // Without storage it holds for this visit.
    }
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  return [theme, setTheme];
}

/** Grows when colours change. */
export function useColours(): number {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const listen = () => setCount((count) => count + 1);
    system.addEventListener("change", listen);
    addEventListener("themechange", listen);
    return () => {
      system.removeEventListener("change", listen);
      removeEventListener("themechange", listen);
    };
  }, []);
  return count;
}
