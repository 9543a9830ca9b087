// Layers of a chart, each on those before it.
import type { Line } from "./chart";

/** Sums from below, for layers; unknown counts as nothing where another layer is known, also below it: an area needs both of its edges. */
export function stack(lines: Pick<Line, "values" | "stacked">[]): (number | null)[][] {
  const layers = lines.filter(({ stacked }) => stacked);
  const isKnown = (index: number): boolean => layers.some(({ values }) => (values[index] ?? null) !== null);
  let below: number[] = [];
  return lines.map(({ values, stacked }) => {
    if (!stacked) return values;
    below = values.map((value, index) => (value ?? 0) + (below[index] ?? 0));
    return below.map((sum, index) => (isKnown(index) ? sum : null));
  });
}
