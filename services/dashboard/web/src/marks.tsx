// Decisions on the time axis of a chart: a link each, or a button with their number that opens a list, if they are close.
import { useRef, useState } from "preact/hooks";
import type { Mark } from "./chart";
import { clock } from "./format";

/** Closer than so many pixels two marks would overlap: `✗2 of 14` has room. */
const CLOSEST = 72;
/** What is beside the plot of a chart, in pixels: its axis and its padding. */
const BESIDE = 64;

/** Returns the marks in order of time, in groups: the first of each is at least `closest` seconds after the first of the one before. */
export function groupMarks(marks: Mark[], closest: number): [Mark, ...Mark[]][] {
  const groups: [Mark, ...Mark[]][] = [];
  for (const mark of [...marks].sort((a, b) => a.time - b.time)) {
    const group = groups.at(-1);
    if (group && mark.time - group[0].time < closest) group.push(mark);
    else groups.push([mark]);
  }
  return groups;
}

/** The marks below a chart of this width in pixels. */
export function MarkStrip({ marks, times, width }: { marks: Mark[]; times: number[]; width: number }) {
  const [first, last] = [times[0] ?? 0, times.at(-1) ?? 0];
  const shown = marks.filter(({ time }) => time >= first && time <= last);
  if (last <= first || shown.length === 0) return null;
  const groups = groupMarks(shown, ((last - first) * CLOSEST) / Math.max(width - BESIDE, CLOSEST));
  return (
    <ol class="marks" aria-label="Decisions on the time axis">
      {groups.map((group) => {
        const [mark] = group;
        return (
          <li key={mark.time} style={{ "--at": ((mark.time - first) / (last - first)).toFixed(4) }}>
            {group.length === 1 ? <MarkLink mark={mark} /> : <MarkGroup marks={group} />}
          </li>
        );
      })}
    </ol>
  );
}

function MarkLink({ mark }: { mark: Mark }) {
  return (
    <a href={mark.href} class={`mark tone-${mark.tone}`} title={mark.title}>
      <span aria-hidden="true">{mark.text}</span>
      <span class="sr">{mark.title}</span>
    </a>
  );
}

/** `at 00:08:00`, or from the first to the last. */
function timesText(marks: [Mark, ...Mark[]]): string {
  const [first, last] = [clock(marks[0].time * 1000), clock((marks.at(-1) ?? marks[0]).time * 1000)];
  return first === last ? `at ${first}` : `from ${first} to ${last}`;
}

/** How many there are of each kind: `12 × change, 2 × reverted`. */
function kindsText(marks: Mark[]): string {
  const numbers = new Map<string, number>();
  for (const { kind } of marks) numbers.set(kind, (numbers.get(kind) ?? 0) + 1);
  return [...numbers].map(([kind, number]) => `${number} × ${kind}`).join(", ");
}

/**
 * Several marks in one place: the worst one, and how many of all are like it. The list is there while the pointer is on it, or once
 * it is opened by Enter or an arrow key: the Tab key goes past what is closed. Escape closes it.
 */
function MarkGroup({ marks }: { marks: [Mark, ...Mark[]] }) {
  const [open, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const mark = marks.find(({ tone }) => tone === "bad") ?? [...marks].reverse().find(({ tone }) => tone !== "calm") ?? marks.at(-1) ?? marks[0];
  const alike = marks.filter(({ text, tone }) => text === mark.text && tone === mark.tone).length;
  const show = () => setOpen(true);
  const onKeyDown = (event: KeyboardEvent) => {
    const opens = event.key === "ArrowDown" && !open;
    if (!opens && (event.key !== "Escape" || !open)) return;
    event.preventDefault();
    if (opens) return show();
    button.current?.focus();
    setOpen(false);
  };
  return (
    <div
      onMouseEnter={show}
      onMouseLeave={() => setOpen(false)}
      onFocusOut={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget as Node | null)) setOpen(false);
      }}
      onKeyDown={onKeyDown}
    >
      <button type="button" ref={button} class={`mark tone-${mark.tone}`} aria-expanded={open} onClick={show}>
        <span aria-hidden="true">{mark.text}</span>
        <sub aria-hidden="true">{alike === marks.length ? alike : `${alike} of ${marks.length}`}</sub>
        <span class="sr">
          {marks.length} decisions {timesText(marks)}: {kindsText(marks)}
        </span>
      </button>
      {open && (
        <ul class="mark-list">
          {marks.map(({ href, text, title, tone }, index) => (
            <li key={index}>
              <a href={href}>
                <span class={`tone-${tone}`} aria-hidden="true">
                  {text}
                </span>{" "}
                {title}
              </a>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
