// Where the GPUs lie on their map: the area of each is its power, and those of a node lie together.
import type { GpuMap } from "./api";
import type { Box } from "./cells";

/** Square pixels that a GPU has at least, until the map is as high as it may be. */
const AREA = 15;

const total = (areas: number[]): number => areas.reduce((sum, area) => sum + area, 0);

/** How far the boxes of a row are from squares, if it is so wide. Areas are in the unit of the width's square. */
function meanAspect(areas: number[], width: number): number {
  const high = total(areas) / width;
  return total(areas.map((area) => Math.max(area / high ** 2, high ** 2 / area))) / areas.length;
}

/** Divides areas into two rows, or leaves them in one: however their boxes are most like squares. */
function bestRows(areas: number[], width: number): number[][] {
  const cuts = areas.map((_, index) => (index === 0 ? [areas] : [areas.slice(0, index), areas.slice(index)]));
  const aspect = (rows: number[][]): number => total(rows.map((row) => meanAspect(row, width) * row.length));
  return cuts.reduce((best, rows) => (aspect(rows) < aspect(best) ? rows : best));
}

/** Divides areas into rows, in their order: a row ends where another area would make its boxes less like squares. */
function rowsOf(areas: number[], width: number): number[][] {
  const rows: number[][] = [];
  for (let from = 0; from < areas.length; ) {
    let to = from + 1;
    for (let least = meanAspect(areas.slice(from, to), width); to < areas.length; to += 1) {
      const mean = meanAspect(areas.slice(from, to + 1), width);
      if (mean > least) break;
      least = mean;
    }
    rows.push(areas.slice(from, to));
    from = to;
  }
  // What is left for the last row would be flat: the last two share what they have.
  const [before = [], last = []] = rows.slice(-2);
  if (rows.length > 1 && total(last) < total(before) / 2) rows.splice(-2, 2, ...bestRows([...before, ...last], width));
  return rows;
}

/** Divides a box by areas, in their order. */
function divide(areas: number[], [left, top, width, height]: Box): Box[] {
  const sum = total(areas);
  if (sum <= 0 || width <= 0 || height <= 0) return areas.map((): Box => [left, top, 0, 0]);
  const scale = (width * height) / sum;
  let y = top;
  return rowsOf(areas.map((area) => area * scale), width).flatMap((row) => {
    const high = total(row) / width;
    const from = y;
    let x = left;
    y += high;
    return row.map((area): Box => {
      const box: Box = [x, from, area / high, high];
      x += box[2];
      return box;
    });
  });
}

/** The boxes of all GPUs, and those of the nodes around them. The edge of a node takes as little of its area as possible: the area is the power. */
export function layoutOf(answer: GpuMap, width: number): { height: number; boxes: Box[]; nodes: Box[] } {
  const height = Math.round(Math.max(220, Math.min(420, Math.max(width * 0.34, (answer.gpus * AREA) / Math.max(width, 1)))));
  const known = answer.nodes.flatMap(({ power_watts }) => power_watts.filter((value) => value !== null));
  const mean = known.reduce((sum, value) => sum + value, 0) / Math.max(known.length, 1) || 1;
  // What draws next to nothing, or is not known, can still be seen and met.
  const areas = answer.nodes.map(({ power_watts }) => power_watts.map((value) => Math.max(value ?? mean / 2, mean / 10)));
  const nodes = divide(areas.map(total), [0, 0, width, height]);
  const boxes = nodes.flatMap(([left, top, wide, high], index) => {
    const edge = Math.min(1, wide / 32, high / 32);
    return divide(areas[index] ?? [], [left + edge, top + edge, wide - 2 * edge, high - 2 * edge]);
  });
  return { height, boxes, nodes };
}
