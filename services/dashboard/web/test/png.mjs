// A screenshot with a table of colours: a third of the size, and the eye sees no difference.
import { deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);

/** Returns the pixels of a PNG as Chromium writes it: eight bits a channel, rows from top to bottom. */
function decode(png) {
  if (!png.subarray(0, 8).equals(SIGNATURE)) throw new Error("the browser's screenshot is no PNG");
  let header;
  const data = [];
  for (let at = 8; at < png.length; ) {
    const length = png.readUInt32BE(at);
    const kind = png.toString("latin1", at + 4, at + 8);
    const body = png.subarray(at + 8, at + 8 + length);
    if (kind === "IHDR") header = body;
    if (kind === "IDAT") data.push(body);
    at += length + 12;
  }
  const [width, height, depth, colour, interlaced] = [header.readUInt32BE(0), header.readUInt32BE(4), header[8], header[9], header[12]];
  const channels = { 2: 3, 6: 4 }[colour];
  if (depth !== 8 || channels === undefined || interlaced !== 0) throw new Error(`a screenshot of depth ${depth}, colour type ${colour}, interlace ${interlaced} cannot be read: teach services/dashboard/web/test/png.mjs`);
  const raw = inflateSync(Buffer.concat(data));
  const stride = width * channels;
  const pixels = Buffer.alloc(height * stride);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x += 1) {
      const at = y * stride + x;
      const left = x >= channels ? pixels[at - channels] : 0;
      const up = y > 0 ? pixels[at - stride] : 0;
      const corner = x >= channels && y > 0 ? pixels[at - stride - channels] : 0;
      pixels[at] = raw[y * (stride + 1) + 1 + x] + predicted(filter, left, up, corner);
    }
  }
  return { width, height, channels, pixels };
}

function predicted(filter, left, up, corner) {
  if (filter === 0) return 0;
  if (filter === 1) return left;
  if (filter === 2) return up;
  if (filter === 3) return (left + up) >> 1;
  const [a, b, c] = [Math.abs(up - corner), Math.abs(left - corner), Math.abs(left + up - 2 * corner)];
  if (a <= b && a <= c) return left;
  return b <= c ? up : corner;
}

const COLOURS = 160;
/** So many of them are the most frequent ones, exactly: areas, badges, shadows. The others are for the edges of letters and lines. */
const EXACT = 80;

/** Returns at most 160 colours, and which of them each colour becomes. */
function table(counts) {
  const channel = (colour, index) => (colour >> (16 - 8 * index)) & 255;
  const sorted = [...counts].sort(([a, many], [b, more]) => more - many || a - b);
  const boxes = sorted.splice(0, EXACT).map((entry) => ({ colours: [entry], span: 0, widest: 0 }));
  const box = (colours) => {
    const spans = [0, 1, 2].map((index) => {
      const values = colours.map(([colour]) => channel(colour, index));
      return Math.max(...values) - Math.min(...values);
    });
    const most = Math.max(...spans);
    return { colours, widest: spans.indexOf(most), span: most };
  };
  // Median cut of the box with the colours that differ most: a red sign stays red however small it is.
  if (sorted.length > 0) boxes.push(box(sorted));
  while (boxes.length < COLOURS) {
    const at = boxes.reduce((best, { span }, index) => (span > (boxes[best]?.span ?? 0) ? index : best), -1);
    if (at < 0) break;
    const { colours, widest } = boxes[at];
    colours.sort(([a], [b]) => channel(a, widest) - channel(b, widest) || a - b);
    const half = colours.length >> 1;
    boxes.splice(at, 1, box(colours.slice(0, half)), box(colours.slice(half)));
  }
  const places = new Map();
  const palette = boxes.map(({ colours }, place) => {
    const all = colours.reduce((sum, [, count]) => sum + count, 0);
    for (const [colour] of colours) places.set(colour, place);
    return [0, 1, 2].map((index) => Math.round(colours.reduce((sum, [colour, count]) => sum + channel(colour, index) * count, 0) / all));
  });
  return { palette, places };
}

/** Node has it since 20.15 only. */
function crc32(bytes) {
  let rest = -1;
  for (const byte of bytes) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit += 1) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
  }
  return ~rest >>> 0;
}

function chunk(kind, body) {
  const typed = Buffer.concat([Buffer.from(kind, "latin1"), body]);
  const [length, check] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(body.length);
  check.writeUInt32BE(crc32(typed));
  return Buffer.concat([length, typed, check]);
}

/** Returns the same picture with a table of at most 160 colours. */
export function compact(png) {
  const { width, height, channels, pixels } = decode(png);
  const colour = (at) => (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
  const counts = new Map();
  for (let at = 0; at < pixels.length; at += channels) counts.set(colour(at), (counts.get(colour(at)) ?? 0) + 1);
  const { palette, places } = table(counts);
  const rows = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) rows[y * (width + 1) + 1 + x] = places.get(colour((y * width + x) * channels));
  }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([SIGNATURE, chunk("IHDR", header), chunk("PLTE", Buffer.from(palette.flat())), chunk("IDAT", deflateSync(rows, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}
