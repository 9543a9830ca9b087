// Keys in tables: `j` and `k` go from row to row.
import { useEffect, useRef, useState } from "preact/hooks";

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName));
}

/** For the body of a table whose rows begin with a link each. */
export function useRowKeys(count: number) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [selected, setSelected] = useState(-1);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      const step = { j: 1, k: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(count - 1, selected + step));
      setSelected(next);
      body.current?.querySelectorAll<HTMLAnchorElement>("th a")[next]?.focus();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [count, selected]);
  return body;
}
