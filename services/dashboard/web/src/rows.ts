// Keys in tables: `j` and `k` go from row to row. Another page of a table is shown from its first row on.
import { useEffect, useRef, useState } from "preact/hooks";

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName));
}

/** For the element that holds the rows of a page: where `at` is another page, its begin is in view. */
export function usePageTop<T extends HTMLElement>(at: string | number | null) {
  const top = useRef<T>(null);
  const shown = useRef(at);
  useEffect(() => {
    if (shown.current === at) return;
    shown.current = at;
    const element = top.current;
    // The bar above the page hides what is scrolled to its place.
    if (element && element.getBoundingClientRect().top < parseFloat(getComputedStyle(element).scrollMarginTop)) element.scrollIntoView({ block: "start" });
  }, [at]);
  return top;
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
