// A terminal without a window: keeps what a program draws in it, and draws that as SVG.

/** A character and how it looks; colours are those of the terminal's table, `null` its own. */
const BLANK = { text: " ", fg: null, bg: null, bold: false, underlined: false, reversed: false };

/** What a program writes to get the terminal to itself. */
const OPEN = "\x1b[?1049h";

/** Keeps the screen of a program while that has the terminal to itself, what it writes before and after is left out. Knows what the live view writes; anything else is an error, so that no picture is wrong in silence. */
export class Terminal {
  #isOpen = false;
  #pen = { ...BLANK };
  #pending = "";
  #at = [0, 0];
  cells = [];

  constructor(columns, rows) {
    this.columns = columns;
    this.rows = rows;
    this.#clear();
  }

  /** Takes what the program writes; a sequence that is cut off waits for its end. */
  write(text) {
    this.#pending += text;
    while (this.#pending !== "") {
      if (!this.#isOpen) {
        const begin = this.#pending.indexOf(OPEN);
        this.#pending = this.#pending.slice(begin < 0 ? -OPEN.length : begin);
        if (begin < 0) return;
        this.#isOpen = true;
      }
      const sequence = /^\x1b\[(\??)([\d;]*)([A-Za-z])/.exec(this.#pending);
      if (sequence) {
        this.#pending = this.#pending.slice(sequence[0].length);
        this.#control(sequence[1] + sequence[3], sequence[2] === "" ? [] : sequence[2].split(";").map(Number));
      } else if (/^\x1b(\[[\d;?]*)?$/.test(this.#pending)) {
        return;
      } else {
        const [letter] = this.#pending;
        this.#pending = this.#pending.slice(letter.length);
        this.#put(letter);
      }
    }
  }

  /** Returns the lines without the spaces at their ends. */
  lines() {
    return this.cells.map((row) => row.map(({ text }) => text).join("").trimEnd());
  }

  /** Replaces a text by one of the same length. */
  replace(pattern, by) {
    for (const row of this.cells) {
      for (const match of row.map(({ text }) => text).join("").matchAll(pattern)) {
        if (match[0].length !== by.length) throw new Error(`${match[0]} is not as long as ${by}`);
        [...by].forEach((text, index) => (row[match.index + index] = { ...row[match.index + index], text }));
      }
    }
  }

  #clear() {
    this.cells = Array.from({ length: this.rows }, () => Array.from({ length: this.columns }, () => BLANK));
    this.#at = [0, 0];
  }

  #put(letter) {
    const [row, column] = this.#at;
    if (letter === "\r") this.#at = [row, 0];
    else if (letter === "\n") this.#at = [Math.min(row + 1, this.rows - 1), column];
    else if (letter < " ") throw unknown("the character", letter);
    else {
      if (column < this.columns) this.cells[row][column] = { ...this.#pen, text: letter };
      this.#at = [row, column + 1];
    }
  }

  #control(kind, numbers) {
    if (kind === "H") this.#at = [Math.min(numbers[0] || 1, this.rows) - 1, (numbers[1] || 1) - 1];
    else if (kind === "J" || (kind === "?h" && numbers.includes(1049))) this.#clear();
    else if (kind === "m") this.#style(numbers.length === 0 ? [0] : numbers);
    else if (kind === "?l" && numbers.includes(1049)) this.#isOpen = false;
    else if (kind !== "?h" && kind !== "?l") throw unknown("the sequence", `ESC [ ${numbers.join(";")} ${kind}`);
  }

  #style(numbers) {
    const simple = { 1: { bold: true }, 4: { underlined: true }, 7: { reversed: true }, 22: { bold: false }, 24: { underlined: false }, 27: { reversed: false }, 39: { fg: null }, 49: { bg: null }, 59: {} };
    for (let at = 0; at < numbers.length; at += 1) {
      const number = numbers[at];
      if (number === 0) this.#pen = { ...BLANK };
      else if (simple[number]) Object.assign(this.#pen, simple[number]);
      else if ((number === 38 || number === 48) && numbers[at + 1] === 5 && numbers[at + 2] < 16) {
        this.#pen[number === 38 ? "fg" : "bg"] = numbers[at + 2];
        at += 2;
      } else throw unknown("the style", numbers.join(";"));
    }
  }
}

const unknown = (what, value) => new Error(`the terminal of the pictures does not know ${what} ${JSON.stringify(value)}: teach it in services/dashboard/web/test/terminal.mjs`);

const PAPER = "#14181f";
const INK = "#d5d9e0";
/** The sixteen colours of a terminal, in its order. */
const COLOURS = ["#14181f", "#f07178", "#7fd18c", "#e3b341", "#6cb6ff", "#c594e8", "#5cc8d8", "#d5d9e0", "#8b94a3", "#ff8b92", "#98e0a3", "#f0c674", "#8cc8ff", "#d6aff0", "#7fdbe8", "#ffffff"];
const [WIDTH, HEIGHT, SIZE, MARGIN, TITLE] = [8, 18, 13.3, 14, 34];

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
const round = (value) => String(Math.round(value * 100) / 100);

/** Returns the colours of ink and paper of a cell. */
function colours({ fg, bg, reversed }) {
  const [ink, paper] = [fg === null ? INK : COLOURS[fg], bg === null ? PAPER : COLOURS[bg]];
  return reversed ? [paper, ink] : [ink, paper];
}

/** Draws blocks and frames as shapes: fonts leave gaps between them. Returns `null` for a letter. */
function shape(text, x, y, ink) {
  const block = "▁▂▃▄▅▆▇█".indexOf(text);
  const rect = (left, top, width, height) => `<rect x="${round(left)}" y="${round(top)}" width="${round(width)}" height="${round(height)}" fill="${ink}"/>`;
  if (block >= 0) {
    const high = (HEIGHT * (block + 1)) / 8;
    return rect(x, y + HEIGHT - high, WIDTH, high);
  }
  const [middle, centre] = [x + WIDTH / 2, y + HEIGHT / 2];
  const path = {
    "─": `M${round(x)} ${round(centre)}h${WIDTH}`,
    "│": `M${round(middle)} ${round(y)}v${HEIGHT}`,
    "┌": `M${round(middle)} ${round(y + HEIGHT)}V${round(centre)}H${round(x + WIDTH)}`,
    "┐": `M${round(middle)} ${round(y + HEIGHT)}V${round(centre)}H${round(x)}`,
    "└": `M${round(middle)} ${round(y)}V${round(centre)}H${round(x + WIDTH)}`,
    "┘": `M${round(middle)} ${round(y)}V${round(centre)}H${round(x)}`,
    "╱": `M${round(x)} ${round(y + HEIGHT)}L${round(x + WIDTH)} ${round(y)}`,
  }[text];
  return path === undefined ? null : `<path d="${path}" fill="none" stroke="${ink}"/>`;
}

/** Returns equal neighbours of a row as one. */
function runs(row) {
  const runs = [];
  row.forEach((cell, column) => {
    const [ink, paper] = colours(cell);
    const before = runs.at(-1);
    const drawn = shape(cell.text, 0, 0, ink) !== null;
    const alike = before && !drawn && !before.drawn && before.ink === ink && before.paper === paper && before.bold === cell.bold && before.underlined === cell.underlined;
    if (alike) before.text += cell.text;
    else runs.push({ ...cell, column, ink, paper, drawn });
  });
  return runs;
}

/** Draws the screen in a window. Letters keep to their cells whatever the font. */
export function svg(terminal, title, description) {
  const [width, height] = [terminal.columns * WIDTH + 2 * MARGIN, terminal.rows * HEIGHT + TITLE + MARGIN];
  const parts = [];
  terminal.cells.forEach((row, index) => {
    const y = TITLE + index * HEIGHT;
    for (const { text, column, ink, paper, drawn, bold, underlined } of runs(row)) {
      const x = MARGIN + column * WIDTH;
      const wide = [...text].length * WIDTH;
      if (paper !== PAPER) parts.push(`<rect x="${round(x)}" y="${y}" width="${round(wide)}" height="${HEIGHT}" fill="${paper}"/>`);
      if (drawn) {
        parts.push(shape(text, x, y, ink));
        continue;
      }
      const style = `${bold ? ' font-weight="bold"' : ""}${underlined ? ' text-decoration="underline"' : ""}`;
      // Readers of SVG differ in what they make of several spaces: no text has them.
      for (const { 0: part, index } of text.matchAll(/[^ ]+( [^ ]+)*/g)) {
        parts.push(`<text x="${round(x + [...text.slice(0, index)].length * WIDTH)}" y="${y + 13.5}" textLength="${round([...part].length * WIDTH)}" fill="${ink}"${style}>${escaped(part)}</text>`);
      }
    }
  });
  const dots = ["#ff5f57", "#febc2e", "#28c840"].map((colour, index) => `<circle cx="${20 + index * 18}" cy="17" r="5.5" fill="${colour}"/>`);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${round(width)} ${round(height)}" width="${round(width)}" height="${round(height)}" role="img" aria-labelledby="title description">`,
    `<title id="title">${escaped(title)}</title>`,
    `<desc id="description">${escaped(description)}</desc>`,
    `<rect width="${round(width)}" height="${round(height)}" rx="8" fill="${PAPER}"/>`,
    ...dots,
    `<text x="${round(width / 2)}" y="22" fill="#8b94a3" text-anchor="middle" font-family="system-ui, sans-serif" font-size="13">${escaped(title)}</text>`,
    `<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="${SIZE}" shape-rendering="crispEdges">`,
    ...parts,
    "</g>",
    "</svg>",
    "",
  ].join("\n");
}
