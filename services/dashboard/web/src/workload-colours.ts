// Colours of workloads: each keeps its own in every view until it meets another of that colour, and neighbours differ.
const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

/** What each workload has had since the page was opened, as its place in the palette. */
const given = new Map<string, number>();

/** A number that depends on the name alone (FNV-1a). */
function hash(name: string): number {
  let value = 0x811c9dc5;
  for (let at = 0; at < name.length; at += 1) value = Math.imul(value ^ name.charCodeAt(at), 0x01000193);
  return value >>> 0;
}

/**
 * Returns the colour of each workload in these groups, as the name of a property. The name of the workload decides; of those with the same
 * colour in one group the one that is new takes the next that is free there. A group of more than eight has colours twice.
 */
export function workloadColours(groups: string[][]): Map<string, string> {
  const neighbours = new Map<string, Set<string>>();
  for (const group of groups) {
    for (const name of group) neighbours.set(name, new Set([...(neighbours.get(name) ?? []), ...group]));
  }
  const isNew = (name: string): number => (given.has(name) ? 0 : 1);
  const names = [...neighbours.keys()].sort((a, b) => isNew(a) - isNew(b) || (a < b ? -1 : 1));
  const places = new Map<string, number>();
  for (const name of names) {
    const uses = PALETTE.map(() => 0);
    for (const other of neighbours.get(name) ?? []) {
      const place = places.get(other);
      if (place !== undefined) uses[place] = (uses[place] ?? 0) + 1;
    }
    const least = Math.min(...uses);
    let place = given.get(name) ?? hash(name) % PALETTE.length;
    while ((uses[place] ?? 0) > least) place = (place + 1) % PALETTE.length;
    places.set(name, place);
  }
  places.forEach((place, name) => given.set(name, place));
  return new Map([...places].map(([name, place]) => [name, PALETTE[place] ?? "--c1"]));
}
