// A map of all GPUs: the area is the power, the boxes of a node lie together, the colour is how many workloads share a GPU.
import { useCallback, useMemo } from "preact/hooks";
import type { GpuMap as Answer } from "./api";
import { type Box, Cells, LegendItem } from "./cells";
import { css, translucent } from "./chart";
import { count, counted, visible, watts } from "./format";
import { layoutOf } from "./gpu-layout";
import { Problem } from "./parts";
import { changed, type Route, useData } from "./state";

/** Number of GPUs above which the map is there. */
export const MAP_GPUS = 100;
/** Least milliseconds between two questions. */
const PAUSE_MS = 5_000;
/** Height in pixels of the name of a node, which lies on its GPUs, and the least box that has one. */
const NAME = 13;
const NAMED = { width: 56, height: 34 };

interface Gpu {
  node: string | null;
  name: number | string;
  watts: number | null;
  /** `null`: it is silent. */
  workloads: number | null;
}

type KindKey = "one" | "two" | "more" | "none" | "silent";
const KINDS: [KindKey, string][] = [
  ["one", "with one workload"],
  ["two", "shared by 2"],
  ["more", "shared by 3 or more"],
  ["none", "without work"],
  ["silent", "silent"],
];

const kindOf = ({ workloads }: Gpu): KindKey => (workloads === null ? "silent" : workloads === 0 ? "none" : workloads === 1 ? "one" : workloads === 2 ? "two" : "more");

const place = ({ node, name }: Gpu): string => (typeof name === "string" ? visible(name) : `${node === null ? "" : `${visible(node)} · `}GPU ${name}`);

function gpuText(gpu: Gpu): string {
  if (gpu.workloads === null) return `${place(gpu)}: silent, no sample lately`;
  const power = gpu.watts === null ? "power not known" : watts(gpu.watts);
  return `${place(gpu)}: ${power}, ${gpu.workloads === 0 ? "no workload" : counted(gpu.workloads, "workload")}`;
}

const hasName = (width: number, height: number): boolean => width >= NAMED.width && height >= NAMED.height;

interface MapProps {
  route: Route;
  tick: number;
  /** The address of a GPU's strip is asked for. */
  onOpen: (address: string) => void;
}

export function GpuMap({ route, tick, onOpen }: MapProps) {
  const { data, error } = useData<Answer>("gpu-map", tick, PAUSE_MS);
  return (
    <section class="panel" aria-labelledby="map-heading">
      <h2 id="map-heading">All GPUs by power</h2>
      <Problem error={error} />
      {data && <MapOf answer={data} route={route} onOpen={onOpen} />}
    </section>
  );
}

function MapOf({ answer, route, onOpen }: { answer: Answer; route: Route; onOpen: MapProps["onOpen"] }) {
  const gpus = useMemo(
    () =>
      answer.nodes.flatMap(({ node, gpus, power_watts, workloads }) =>
        gpus.map((name, index): Gpu => ({ node, name, watts: power_watts[index] ?? null, workloads: workloads[index] ?? null })),
      ),
    [answer],
  );
  const numbers = KINDS.map(([key, words]): [KindKey, string, number] => [key, words, gpus.filter((gpu) => kindOf(gpu) === key).length]).filter(([, , number]) => number > 0);
  const [node, index, device] = ["node", "index", "gpu"].map((key) => route.params.get(key));
  const isShown = (gpu: Gpu) => (gpu.node ?? "-") === node && (typeof gpu.name === "string" ? gpu.name === device : String(gpu.name) === index);
  const shown = node === null ? -1 : gpus.findIndex(isShown);
  const layout = useCallback((width: number) => layoutOf(answer, width), [answer]);
  const painter = useCallback((ctx: CanvasRenderingContext2D) => painterOf(ctx, answer, gpus, shown), [answer, gpus, shown]);
  const open = (at: number) => {
    const gpu = gpus[at];
    if (!gpu) return;
    const [index, device] = typeof gpu.name === "string" ? [null, gpu.name] : [String(gpu.name), null];
    onOpen(changed(route, { node: gpu.node ?? "-", index, gpu: device, shared: null, skip: null }));
  };
  const summary = `${counted(gpus.length, "GPU")} on ${counted(answer.nodes.length, "node")}: ${numbers.map(([, words, number]) => `${count(number)} ${words}`).join(", ")}`;
  return (
    <>
      <Cells label="Map of all GPUs by node" summary={summary} layout={layout} painter={painter} text={(at) => (gpus[at] ? gpuText(gpus[at]) : "")} open={open} />
      <ul class="cell-legend" aria-label="Legend of the map">
        {numbers.map(([key, words, number]) => (
          <LegendItem key={key} swatch={`gpu-${key}`} number={count(number)}>
            {words}
          </LegendItem>
        ))}
      </ul>
      <p class="legend-note">The area is the power; where it is not known, half of the mean. GPUs of a node lie together, in the order of the nodes' names.</p>
    </>
  );
}

/** Returns what draws a GPU, and the name of a node on its last one. */
function painterOf(ctx: CanvasRenderingContext2D, answer: Answer, gpus: Gpu[], shown: number): (box: Box, index: number) => void {
  const [text, muted, surface, bad, accent] = ["--text", "--muted", "--surface", "--bad", "--accent"].map(css) as [string, string, string, string, string];
  const fills: Record<KindKey, string | null> = { one: translucent(accent, 0.45), two: translucent(accent, 0.72), more: accent, none: null, silent: null };
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "top";
  const { nodes } = layoutOf(answer, ctx.canvas.width / devicePixelRatio);
  const drawName = (node: number) => {
    const [left, top, wide, high] = nodes[node] ?? [0, 0, 0, 0];
    if (!hasName(wide, high)) return;
    const name = shortened(ctx, visible(answer.nodes[node]?.node ?? "no node named"), wide - 8);
    ctx.fillStyle = surface;
    ctx.fillRect(left + 1, top + 1, ctx.measureText(name).width + 5, NAME);
    ctx.fillStyle = muted;
    ctx.fillText(name, left + 3, top + 2);
  };
  // The last GPU of each node: after it nothing of the node is drawn any more.
  const lasts = new Map<number, number>();
  answer.nodes.reduce((before, { gpus }, node) => {
    lasts.set(before + gpus.length - 1, node);
    return before + gpus.length;
  }, 0);
  return (box, index) => {
    drawGpu(box, index);
    const node = lasts.get(index);
    if (node !== undefined) drawName(node);
  };

  function drawGpu([left, top, wide, high]: Box, index: number): void {
    const gpu = gpus[index];
    if (!gpu) return;
    const kind = kindOf(gpu);
    const [w, h] = [Math.max(wide - 1, 1), Math.max(high - 1, 1)];
    const fill = fills[kind];
    if (fill !== null) {
      ctx.fillStyle = fill;
      ctx.fillRect(left, top, w, h);
      ctx.fillStyle = surface;
      // A line between each two of those that share it, as in its strip.
      const parts = Math.min(gpu.workloads ?? 1, Math.floor(w / 3));
      for (let part = 1; part < parts; part += 1) ctx.fillRect(left + (w * part) / parts - 0.5, top, 1, h);
    } else {
      ctx.strokeStyle = kind === "silent" ? bad : muted;
      ctx.lineWidth = 1;
      ctx.strokeRect(left + 0.5, top + 0.5, Math.max(w - 1, 1), Math.max(h - 1, 1));
      ctx.beginPath();
      ctx.moveTo(left, top + h);
      ctx.lineTo(left + w, top);
      // A cross is what is silent, a stroke what has no work.
      if (kind === "silent") {
        ctx.moveTo(left, top);
        ctx.lineTo(left + w, top + h);
      }
      ctx.stroke();
    }
    if (index === shown) {
      ctx.strokeStyle = text;
      ctx.lineWidth = 2;
      ctx.strokeRect(left, top, w, h);
    }
  }
}

/** As much of a name as there is room for. */
function shortened(ctx: CanvasRenderingContext2D, name: string, width: number): string {
  if (ctx.measureText(name).width <= width) return name;
  let length = Math.min(name.length, 64);
  while (length > 0 && ctx.measureText(`${name.slice(0, length)}…`).width > width) length -= 1;
  return `${name.slice(0, length)}…`;
}
