// A chart over time: lines, layers, bands, phases, restarts, marks. Arrow keys move its cursor, which speaks; a table is behind it.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock, day, moment } from "./format";
import { MarkStrip } from "./marks";
import { stack } from "./stack";
import { useColours } from "./state";

export interface Line {
  label: string;
  values: (number | null)[];
  colour: string;
  /** Filled down to the line below it. */
  stacked?: boolean;
  dashed?: boolean;
  /** Each value holds until the next; this text is beside the end of the line, and in the legend. */
  steps?: string;
  /** Least and greatest of each point. */
  band?: [(number | null)[], (number | null)[]];
  format: (value: number | null | undefined) => string;
}

export interface Mark {
  time: number;
  text: string;
  tone: string;
  /** In a word. */
  kind: string;
  href: string;
  title: string;
}

export interface ChartProps {
  title: string;
  unit: string;
  /** What is spoken beside the title. */
  summary?: string;
  /** Seconds. */
  times: number[];
  /** End of the last interval, in seconds, if each time is the begin of one: the last values hold until then. */
  end?: number;
  lines: Line[];
  height: number;
  /** Values beyond it are cut: restarts would flatten everything else. */
  clip?: [number, number] | null;
  restarts?: boolean[];
  phases?: (number | null)[];
  /** As lines in the chart, and as links below it. */
  marks?: Mark[];
  /** As lines only: the links are below another chart of the group. */
  rules?: Mark[];
  /** Charts of one group share their cursor. */
  group?: string;
  fromZero?: boolean;
}

/** Height in pixels of the lane above a chart in which its phases are named, where no line crosses their names. */
const LANE = 16;

/** Returns whether the job changed its phase: a single one is not named. */
const hasPhases = ({ phases }: ChartProps): boolean => new Set(phases?.filter((phase) => phase !== null)).size > 1;

/** The times, and the end of the last interval. */
const edges = ({ times, end }: ChartProps): number[] => (end === undefined ? times : [...times, end]);

export const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Chart(props: ChartProps) {
  const { title, times, end, lines, height } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const [width, setWidth] = useState(0);
  const colours = useColours();
  const named = hasPhases(props);
  const shape = lines.map((line) => `${line.label}${line.colour}${line.dashed}${line.band !== undefined}`).join("|");

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const data = useMemo(() => {
    const columns: (number | null)[][] = [];
    stack(lines).forEach((values, index) => {
      columns.push(values);
      const band = lines[index]?.band;
      if (band) columns.push(band[1], band[0]);
    });
    const held = end === undefined ? columns : columns.map((values) => [...values, values.at(-1) ?? null]);
    return [edges(props), ...held] as unknown as uPlot.AlignedData;
  }, [times, end, lines]);

  useEffect(() => {
    const element = place.current;
    if (!element || width === 0) return;
    const created = new uPlot(options(latest, width, height, setCursor), data, element);
    // The figures are in the label, the readout and the table.
    created.root.setAttribute("aria-hidden", "true");
    plot.current = created;
    return () => {
      created.destroy();
      plot.current = null;
    };
  }, [shape, named, width, height, colours, props.group]);

  useEffect(() => plot.current?.setData(data), [data]);

  const last = times.length - 1;
  const at = cursor !== null && cursor <= last ? cursor : null;
  const move = (index: number) => {
    const target = Math.max(0, Math.min(last, index));
    const u = plot.current;
    if (u) u.setCursor({ left: u.valToPos(times[target] ?? 0, "x"), top: 10 });
    setCursor(target);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.key === "Home") move(0);
    else if (event.key === "End") move(last);
    else if (event.key === "Escape") setCursor(null);
    else if (step !== undefined) move((at ?? (step > 0 ? -1 : last + 1)) + step);
    else return;
    event.preventDefault();
  };
  const words = at === null ? `${title}: ${times.length} points; arrow keys read them${props.summary ? `; ${props.summary}` : ""}` : spoken(props, at);

  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">
          {title} <span class="unit">{props.unit}</span>
        </span>
        <Readout props={props} at={at} />
      </figcaption>
      <div
        class="plot"
        style={{ minHeight: `${height}px` }}
        ref={place}
        tabIndex={0}
        role="slider"
        aria-label={title}
        aria-orientation="horizontal"
        aria-valuemin={0}
        aria-valuemax={Math.max(last, 0)}
        aria-valuenow={at ?? Math.max(last, 0)}
        aria-valuetext={words}
        onKeyDown={onKeyDown}
      />
      {props.marks && <MarkStrip marks={props.marks} times={edges(props)} width={width} />}
      <Table {...props} />
    </figure>
  );
}

function spoken({ times, lines, restarts, phases }: ChartProps, at: number): string {
  const figures = lines.map((line) => `${line.label} ${line.format(line.values[at])}`);
  const phase = phases?.[at];
  const facts = [phase ? `phase ${phase}` : "", restarts?.[at] ? "restart" : ""].filter((fact) => fact !== "");
  return `${clock((times[at] ?? 0) * 1000)}: ${[...figures, ...facts].join(", ")}`;
}

function Readout({ props, at }: { props: ChartProps; at: number | null }) {
  const { times, lines, restarts, phases } = props;
  return (
    <span class="readout">
      {at !== null && (
        <span class="readout-time">
          {clock((times[at] ?? 0) * 1000)}
          {phases?.[at] ? ` · phase ${phases[at]}` : ""}
          {restarts?.[at] ? " · restart" : ""}
        </span>
      )}
      {lines.map((line) => (
        <span key={line.label} class="key">
          <span class={line.dashed ? "swatch dashed" : "swatch"} style={{ color: `var(${line.colour})` }} aria-hidden="true" />
          <span class="key-label">{at === null ? (line.steps ?? line.label) : line.label}</span>
          {at !== null && <b>{line.format(line.values[at])}</b>}
        </span>
      ))}
    </span>
  );
}

/** The same figures as a table, made when it is opened. */
function Table({ title, times, lines, phases, restarts }: ChartProps) {
  const [open, setOpen] = useState(false);
  return (
    <details class="behind" onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>
        Table<span class="sr"> of {title}</span>
      </summary>
      {open && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`${title} as a table`}>
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Time (UTC)</th>
                {lines.map((line) => (
                  <th key={line.label} scope="col" class="num">
                    {line.label}
                  </th>
                ))}
                {phases && <th scope="col">Phase</th>}
                {restarts && <th scope="col">Restart</th>}
              </tr>
            </thead>
            <tbody>
              {times.map((time, index) => (
                <tr key={time}>
                  <th scope="row">{moment(time * 1000).replace(" UTC", "")}</th>
                  {lines.map((line) => (
                    <td key={line.label} class="num">
                      {line.format(line.values[index])}
                    </td>
                  ))}
                  {phases && <td>{phases[index] ?? "–"}</td>}
                  {restarts && <td>{restarts[index] ? "yes" : ""}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

type Latest = { current: ChartProps };

/** Returns the places of figures without a neighbour; `null`: there are none. */
function lonePoints(values: ArrayLike<number | null | undefined>): number[] | null {
  const known = (index: number) => values[index] !== null && values[index] !== undefined;
  const lone = [...Array(values.length).keys()].filter((index) => known(index) && !known(index - 1) && !known(index + 1));
  return lone.length === 0 ? null : lone;
}

function options(latest: Latest, width: number, height: number, setCursor: (index: number | null) => void): uPlot.Options {
  const { lines, group } = latest.current;
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  let below: number | null = null;
  for (const line of lines) {
    const colour = css(line.colour);
    const index = series.length;
    series.push({
      label: line.label,
      stroke: colour,
      width: line.stacked ? 1 : 1.75,
      ...(line.dashed ? { dash: [6, 4] } : {}),
      ...(line.steps !== undefined && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      ...(line.stacked && below === null ? { fill: translucent(colour, 0.75) } : {}),
      // A line needs two points: one alone between silences is drawn as a point.
      points: { show: false, size: 5, filter: (u, index) => lonePoints(u.data[index] ?? []) },
      spanGaps: false,
    });
    if (line.stacked) {
      if (below !== null) bands.push({ series: [index, below], fill: translucent(colour, 0.75) });
      below = index;
    }
    if (line.band) {
      const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
      series.push(edge, { ...edge });
      bands.push({ series: [index + 1, index + 2], fill: translucent(colour, 0.18) });
    }
  }
  const text = css("--muted");
  const grid = { stroke: css("--grid"), width: 1 };
  const font = "12px system-ui, sans-serif";
  return {
    width,
    height,
    series,
    bands,
    legend: { show: false },
    padding: [hasPhases(latest.current) ? LANE : 8, 8, 0, 0],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 7 },
      ...(group ? { sync: { key: group, setSeries: false } } : {}),
    },
    scales: {
      x: { time: true },
      y: { range: (_, least, most) => range(latest.current, least, most) },
    },
    axes: [
      { stroke: text, font, grid: { show: false }, ticks: { ...grid, size: 5 }, values: (u, times) => labels(times).map((text, index) => (fits(u, times[index] ?? 0, text) ? text : null)) },
      { stroke: text, font, grid, ticks: { show: false }, size: 56, values: (_, values) => values.map(short) },
    ],
    hooks: {
      drawClear: [(u) => backdrop(u, latest.current)],
      draw: [(u) => drawMarks(u, latest.current), (u) => drawStepTexts(u, latest.current)],
      setCursor: [(u) => setCursor(pointed(u, latest.current))],
    },
  };
}

/** Returns the place of the figures under the cursor; `null`: it is outside. The end of the last interval has those of the interval. */
function pointed(u: uPlot, { times }: ChartProps): number | null {
  const { left, idx } = u.cursor;
  if (left === undefined || left < 0 || idx === undefined || idx === null) return null;
  return Math.min(idx, times.length - 1);
}

/** The day where it changes, else the time. */
function labels(times: number[]): string[] {
  const seconds = times.some((time) => time % 60 !== 0);
  return times.map((time, index) => {
    const before = times[index - 1];
    const text = clock(time * 1000).slice(0, seconds ? 8 : 5);
    return before === undefined || day(before * 1000) !== day(time * 1000) ? `${text}\n${day(time * 1000)}` : text;
  });
}

/** Half of the width of a digit of the axes, in pixels. */
const HALF_DIGIT = 3.5;

/** Returns whether the label at a time is not cut by the right end of the chart. */
function fits(u: uPlot, time: number, text: string): boolean {
  const half = (text.split("\n")[0] ?? "").length * HALF_DIGIT;
  return !(u.bbox.left / devicePixelRatio + u.valToPos(time, "x") + half > u.width);
}

function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${value / 1e6} M`;
  if (size >= 1e4) return `${value / 1e3} k`;
  return String(Number(value.toPrecision(6)));
}

function range({ clip, fromZero }: ChartProps, least: number | null, most: number | null): [number, number] {
  const [low, high] = clip ?? [least ?? 0, most ?? 1];
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const room = high > low ? (high - low) * 0.08 : Math.max(Math.abs(high) * 0.1, 0.5);
  return [fromZero ? 0 : Math.max(0, low - room), high + room];
}

export function translucent(colour: string, alpha: number): string {
  const match = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(colour);
  if (!match) return colour;
  const [red, green, blue] = match.slice(1).map((part) => parseInt(part, 16));
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** The interval around each point, in pixels of the canvas. */
function cell(u: uPlot, times: number[], index: number): [number, number] {
  const time = times[index] ?? 0;
  const before = times[index - 1] ?? time - ((times[index + 1] ?? time + 60) - time);
  const after = times[index + 1] ?? time + (time - before);
  const x = (value: number) => Math.max(u.bbox.left, Math.min(u.bbox.left + u.bbox.width, u.valToPos(value, "x", true)));
  return [x((before + time) / 2), x((time + after) / 2)];
}

/** Phases as bands with their names above the plot, restarts as hatching: readable without colour. */
function backdrop(u: uPlot, props: ChartProps): void {
  const { times, restarts } = props;
  const { ctx } = u;
  const { top, height } = u.bbox;
  ctx.save();
  if (hasPhases(props)) drawPhases(u, props);
  restarts?.forEach((restarted, index) => {
    if (!restarted) return;
    const [left, right] = cell(u, times, index);
    hatch(ctx, left, top, Math.max(right - left, 3), height);
  });
  ctx.restore();
}

function drawPhases(u: uPlot, { times, phases = [] }: ChartProps): void {
  const { ctx } = u;
  const { top, height } = u.bbox;
  const [lane, gap] = [LANE * devicePixelRatio, 4 * devicePixelRatio];
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  for (let from = 0, to = 0; from < times.length; from = to + 1) {
    const phase = phases[from] ?? null;
    to = from;
    while (to + 1 < times.length && (phases[to + 1] ?? null) === phase) to += 1;
    if (phase === null) continue;
    const [left] = cell(u, times, from);
    const [, right] = cell(u, times, to);
    ctx.fillStyle = phase % 2 === 0 ? css("--phase-even") : css("--phase-odd");
    ctx.fillRect(left, top - lane, right - left, height + lane);
    const name = [`phase ${phase}`, String(phase)].find((name) => ctx.measureText(name).width + 2 * gap <= right - left);
    ctx.fillStyle = css("--muted");
    if (name !== undefined) ctx.fillText(name, left + gap, top - gap);
  }
}

function hatch(ctx: CanvasRenderingContext2D, left: number, top: number, width: number, height: number): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.strokeStyle = css("--hatch");
  ctx.lineWidth = devicePixelRatio;
  const step = 6 * devicePixelRatio;
  ctx.beginPath();
  for (let x = left - height; x < left + width; x += step) {
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Writes the text of each line of steps above its right end. */
function drawStepTexts(u: uPlot, { lines }: ChartProps): void {
  const { ctx } = u;
  const { left, top, width } = u.bbox;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  ctx.textBaseline = "bottom";
  for (const { steps, values, colour } of lines) {
    const value = values.filter((value) => value !== null).at(-1);
    if (steps === undefined || value === undefined) continue;
    ctx.fillStyle = css(colour);
    ctx.fillText(steps, left + width - 4 * devicePixelRatio, Math.max(u.valToPos(value, "y", true) - 3 * devicePixelRatio, top + 12 * devicePixelRatio));
  }
  ctx.restore();
}

function drawMarks(u: uPlot, { marks, rules }: ChartProps): void {
  const { ctx } = u;
  const { top, height, left, width } = u.bbox;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks ?? rules ?? []) {
    const x = Math.round(u.valToPos(mark.time, "x", true));
    if (x < left || x > left + width) continue;
    ctx.strokeStyle = css(`--${mark.tone}`);
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
  }
  ctx.restore();
}
