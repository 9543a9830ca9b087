// All workloads of the table as a strip of cells, in its order: 10,000 at a glance.
import { useCallback, useMemo } from "preact/hooks";
import { type FleetPage, type HeatStrip as Strip, type State } from "./api";
import { type Box, Cells, LegendItem } from "./cells";
import { css } from "./chart";
import { count, percent, STATES, visible } from "./format";
import { Problem } from "./parts";
import { changed, type Route, useData, workloadHref } from "./state";

/** Rows of a page of the table: with more workloads than that it does not show all. */
export const PAGE_ROWS = 50;
/** Least milliseconds between two questions: the answer about a large fleet is some hundred kilobytes. */
const PAUSE_MS = 5_000;
/** Height in pixels that the strip takes where its cells can be so small. */
const HEIGHT = 160;

/** How a cell looks. The height, in quarters, says the same as the colour; what is lost hangs from above. */
interface Kind {
  key: string;
  words: string;
  tone: "good" | "bad" | "busy" | "calm" | "none";
  quarters: 1 | 2 | 3 | 4;
  hangs?: boolean;
}

const COLOURS: Record<Kind["tone"], string> = { good: "--good", bad: "--bad", busy: "--busy", calm: "--calm", none: "--c-others" };
const QUARTERS = { bad: 4, busy: 3, good: 2, calm: 1 } as const;

/** Those that need a look come first. */
const STATE_KINDS: Kind[] = Object.entries(STATES)
  .map(([key, { mark, word, tone }]): Kind => {
    const known = tone as keyof typeof QUARTERS;
    return { key, words: `${mark} ${word}`, tone: known, quarters: QUARTERS[known] };
  })
  .sort((a, b) => b.quarters - a.quarters);

const SAVING_KINDS: Kind[] = [
  { key: "lost", words: "takes more than before", tone: "bad", quarters: 3, hangs: true },
  { key: "20", words: "saves 20 % and more", tone: "good", quarters: 4 },
  { key: "10", words: "saves 10 to 20 %", tone: "good", quarters: 3 },
  { key: "0", words: "saves less than 10 %", tone: "good", quarters: 2 },
  { key: "unclear", words: "not clear, or of a part of the run", tone: "calm", quarters: 2 },
  { key: "unknown", words: "not known", tone: "none", quarters: 1 },
];

function savingKind(ratio: number | null, isClear: boolean): string {
  if (ratio === null) return "unknown";
  if (!isClear) return "unclear";
  return ratio < 0 ? "lost" : ratio < 0.1 ? "0" : ratio < 0.2 ? "10" : "20";
}

function cellText(strip: Strip, index: number): string {
  const state = STATES[strip.states[strip.state[index] ?? 0] ?? "steady"].word;
  const ratio = strip.saving_ratio[index] ?? null;
  const kind = savingKind(ratio, strip.saving_is_clear[index] === 1);
  const saving = kind === "unknown" ? "saving not known" : `${percent(ratio)} saved${kind === "unclear" ? " (not clear, or of a part of the run)" : ""}`;
  return `${visible(strip.names[index] ?? "")}: ${state}, ${saving}`;
}

/** Places for so many cells, row by row; each is twice as high as wide. */
function places(cells: number, width: number): { height: number; boxes: Box[] } {
  const wide = Math.max(width < 600 ? 2 : 3, Math.min(10, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(cells, 1) / 2))));
  const high = 2 * wide + 1;
  const columns = Math.max(1, Math.floor(width / wide));
  const box = (index: number): Box => [(index % columns) * wide, Math.floor(index / columns) * high, wide, high];
  return { height: Math.ceil(cells / columns) * high, boxes: Array.from({ length: cells }, (_, index) => box(index)) };
}

export function HeatStrip({ question, page, route, tick }: { question: string; page: FleetPage; route: Route; tick: number }) {
  const { data: strip, error } = useData<Strip>(`heat-strip${question}`, tick, PAUSE_MS);
  return (
    <>
      <Problem error={error} />
      {strip && <StripOf strip={strip} page={page} route={route} />}
    </>
  );
}

function StripOf({ strip, page, route }: { strip: Strip; page: FleetPage; route: Route }) {
  const bySaving = route.params.get("strip") === "saving";
  const kinds = bySaving ? SAVING_KINDS : STATE_KINDS;
  const cells = useMemo(() => {
    const of = new Map(kinds.map((kind) => [kind.key, kind]));
    const key = (index: number): string => (bySaving ? savingKind(strip.saving_ratio[index] ?? null, strip.saving_is_clear[index] === 1) : (strip.states[strip.state[index] ?? 0] ?? ""));
    return strip.names.map((_, index) => of.get(key(index)));
  }, [strip, bySaving]);
  const numbers = kinds.map((kind): [Kind, number] => [kind, cells.filter((cell) => cell === kind).length]).filter(([, number]) => number > 0);
  const [first, after] = [page.before, page.before + page.rows.length];
  const layout = useCallback((width: number) => places(strip.names.length, width), [strip.names.length]);
  const painter = useCallback(
    (ctx: CanvasRenderingContext2D) => {
      const colours = Object.fromEntries(Object.entries(COLOURS).map(([tone, name]) => [tone, css(name)]));
      const behind = css("--line");
      return ([left, top, wide, high]: Box, index: number) => {
        if (index >= first && index < after) {
          ctx.fillStyle = behind;
          ctx.fillRect(left, top, wide, high);
        }
        const kind = cells[index];
        if (!kind) return;
        const part = Math.max(1, Math.round(((high - 1) * kind.quarters) / 4));
        ctx.fillStyle = colours[kind.tone] ?? "";
        // A pixel between neighbours, but where they are to catch the eye.
        ctx.fillRect(left, kind.hangs ? top : top + high - 1 - part, kind.tone === "bad" ? wide : wide - 1, part);
      };
    },
    [cells, first, after],
  );
  const names = numbers.map(([{ key, words }, number]) => `${count(number)} ${bySaving ? words : STATES[key as State].word}`);
  const isAll = strip.names.length === strip.total;
  const title = `${isAll ? "All " : ""}${count(strip.names.length)}${isAll ? "" : ` of ${count(strip.total)}`} workloads by ${bySaving ? "saving" : "state"}`;
  return (
    <section class="heat" aria-labelledby="heat-heading">
      <header class="panel-head">
        <h3 id="heat-heading">
          {title} <span class="unit">in the table's order; its page is shaded</span>
        </h3>
        <nav class="choice" aria-label="Colour of the strip">
          <a href={changed(route, { strip: null })} aria-current={bySaving ? undefined : "true"}>
            state
          </a>
          <a href={changed(route, { strip: "saving" })} aria-current={bySaving ? "true" : undefined}>
            saving
          </a>
        </nav>
      </header>
      <Cells
        label={title}
        summary={names.join(", ")}
        layout={layout}
        painter={painter}
        text={(index) => cellText(strip, index)}
        open={(index) => {
          location.hash = workloadHref(strip.names[index] ?? "");
        }}
      />
      <ul class="cell-legend" aria-label="Legend of the strip">
        {numbers.map(([{ key, words, tone, quarters, hangs }, number]) => (
          <LegendItem key={key} swatch={`tone-${tone} quarters-${quarters}${hangs ? " hangs" : ""}`} number={count(number)}>
            {bySaving ? words : <a href={changed(route, { state: key, cursor: null })}>{words}</a>}
          </LegendItem>
        ))}
      </ul>
    </section>
  );
}
