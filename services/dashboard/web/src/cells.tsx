// Many cells on one canvas, since 10,000 elements would be too many. The pointer and arrow keys go from cell to cell; each leads somewhere.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useColours } from "./state";

/** Left, top, width and height in pixels. */
export type Box = [number, number, number, number];

export interface CellsProps {
  label: string;
  /** What is spoken while no cell is chosen. */
  summary: string;
  /** The boxes of the cells, and the height of all, at this width. */
  layout: (width: number) => { height: number; boxes: Box[] };
  /** Called before the cells are drawn, so that it reads colours once; what it returns draws a cell. */
  painter: (ctx: CanvasRenderingContext2D) => (box: Box, index: number) => void;
  /** What a cell is, in words. */
  text: (index: number) => string;
  open: (index: number) => void;
}

export function Cells({ label, summary, layout, painter, text, open }: CellsProps) {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState<number | null>(null);
  const colours = useColours();
  const { height, boxes } = useMemo(() => layout(width), [layout, width]);
  const at = chosen !== null && chosen < boxes.length ? chosen : null;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const ctx = element?.getContext("2d");
    if (!element || !ctx) return;
    [element.width, element.height] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
    ctx.scale(devicePixelRatio, devicePixelRatio);
    const paint = painter(ctx);
    boxes.forEach(paint);
  }, [boxes, painter, colours, height]);

  const find = (x: number, y: number): number | null => {
    const index = boxes.findIndex(([left, top, wide, high]) => x >= left && x < left + wide && y >= top && y < top + high);
    return index < 0 ? null : index;
  };
  const under = (event: MouseEvent): number | null => {
    const { left, top } = canvas.current?.getBoundingClientRect() ?? { left: 0, top: 0 };
    return find(event.clientX - left, event.clientY - top);
  };
  /** The cell above or below the chosen one. */
  const beside = (step: 1 | -1): number | null => {
    const box = at === null ? undefined : boxes[at];
    if (!box) return 0;
    const [left, top, wide, high] = box;
    // Between the boxes may be a gap.
    for (let away = 1; away < 40; away += 3) {
      const found = find(left + wide / 2, step > 0 ? top + high + away : top - away);
      if (found !== null && found !== at) return found;
    }
    return at;
  };
  const last = boxes.length - 1;
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100 }[event.key];
    if (event.key === "Enter" && at !== null) open(at);
    else if (event.key === "Escape") setChosen(null);
    else if (event.key === "Home") setChosen(0);
    else if (event.key === "End") setChosen(last);
    else if (event.key === "ArrowUp") setChosen(beside(-1));
    else if (event.key === "ArrowDown") setChosen(beside(1));
    else if (step !== undefined) setChosen(at === null ? 0 : Math.max(0, Math.min(last, at + step)));
    else return;
    event.preventDefault();
  };
  const box = at === null ? undefined : boxes[at];
  return (
    <>
      <div
        class="cells"
        ref={place}
        tabIndex={0}
        role="slider"
        aria-label={label}
        aria-orientation="horizontal"
        aria-valuemin={0}
        aria-valuemax={Math.max(last, 0)}
        aria-valuenow={at ?? 0}
        aria-valuetext={at === null ? `${summary}; arrow keys read each, Enter opens it` : text(at)}
        style={{ height: `${height}px` }}
        onKeyDown={onKeyDown}
        onMouseMove={(event) => setChosen(under(event))}
        onMouseLeave={() => setChosen(null)}
        onClick={(event) => {
          const index = under(event);
          if (index !== null) open(index);
        }}
      >
        <canvas ref={canvas} aria-hidden="true" />
        {box && <span class="cell-cursor" style={{ left: `${box[0]}px`, top: `${box[1]}px`, width: `${box[2]}px`, height: `${box[3]}px` }} />}
      </div>
      <p class="cell-text">{at === null ? "Point at a cell to read it; a click leads to it." : text(at)}</p>
    </>
  );
}

/** What a colour and a height stand for, with how many cells have them. */
export function LegendItem({ children, swatch, number }: { children: ComponentChildren; swatch: string; number: string }) {
  return (
    <li>
      <span class={`cell-swatch ${swatch}`} aria-hidden="true" />
      {children} <b>{number}</b>
    </li>
  );
}
