// The pictures of README and docs, and what they show as text: `cargo xtask pictures` writes both, the tests of the page compare the text.
//
// They are of two simulated runs with a fixed seed. What depends on the clock, a port or a folder of this machine is in none of them.
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { compact } from "./png.mjs";
import { killAll, output, serve } from "./program.mjs";
import { svg, Terminal } from "./terminal.mjs";

const root = fileURLToPath(new URL("../../../../", import.meta.url));
const images = join(root, "docs/images");
const textFile = join(images, "pictures.txt");

/** Three hours in which both workloads save more than the error of the saving, and each takes a change back. The tests of the page use them, too. */
export const RUN = ["up", "--no-view", "--json", "--speed", "max", "--duration", "3h", "--seed", "7"];
/** The workload of the pictures, and its decision that is taken back. */
const WORKLOAD = "eadt/llm-training";

/** Shared GPUs until the stage that divides one of them has found its partition better than the one before. */
const SHARING = ["up", "--no-view", "--json", "--speed", "max", "--duration", "59m", "--seed", "7"];

/** Work of one kind until the end. */
const profile = (name, lines) => `
[workloads.schedule]
repeat = false

[[workloads.schedule.phases]]
name = "${name}"
seconds = 86400

[workloads.schedule.phases.profile]
${lines}
`;

/** Two jobs divide a V100 as in docs/use/partition.md, two more share A100s in equal parts, one has an H100 to itself. */
const SCENARIO = `
sample_interval_seconds = 5

[[workloads]]
name = "lab/products"
controller = "sm-partition"
board = "V100"
gpus = 1
replicas = 1
away = [{ from_seconds = 1320, until_seconds = 2640 }]
${profile("products", "samples_per_second = 94.4\nhost_ratio = 0.005\nsm_coverage_ratio = 0.99\ndram_ratio = 0.128\nenergy_intensity = 1.25\nsensitivity = 0.085\nmemory_gib = 6")}
[[workloads]]
name = "lab/vision"
controller = "sm-partition"
board = "V100"
gpus = 1
replicas = 1
shares_gpus_of = "lab/products"
away = [{ from_seconds = 0, until_seconds = 1320 }]
${profile("vision", "samples_per_second = 27.4\nhost_ratio = 0.57\nsm_coverage_ratio = 0.35\ndram_ratio = 0.071\nenergy_intensity = 0.8\nsensitivity = 0.8\nmemory_gib = 11")}
[[workloads]]
name = "lab/speech"
mode = "observe"
gpus = 2
replicas = 2
${profile("speech", "samples_per_second = 41\nhost_ratio = 0.25\nsm_coverage_ratio = 0.6")}
[[workloads]]
name = "lab/ranking"
mode = "observe"
gpus = 2
replicas = 2
shares_gpus_of = "lab/speech"
${profile("ranking", "samples_per_second = 310\nhost_ratio = 0.5\nsm_coverage_ratio = 0.5\ndram_ratio = 0.45")}
[[workloads]]
name = "lab/llm"
mode = "observe"
board = "H100"
gpus = 1
replicas = 1
mps_thread_percentage = 100
`;

/** Milliseconds that only what never comes takes: a busy machine may be slow. */
export const LONGEST = 600_000;

/** Returns all pictures of the run in `data`, each with its file, its text and, if asked for, its bytes. */
export async function take(browser, data, { withImages }) {
  const folder = mkdtempSync(join(tmpdir(), "eadt-pictures-"));
  try {
    // The name that a data folder has by default: it is on the terminal's screen. No process has the run open while it is
    // copied.
    cpSync(data, join(folder, "eadt-data"), { recursive: true });
    const ofRun = async () => [...(await pageOf(browser, data, withImages)), await reportOf(browser, data, folder, withImages)];
    return (await all(ofRun(), sharingOf(browser, folder, withImages), terminalOf(folder, withImages))).flat();
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Waits for all, also where one fails: none may write into a folder that is gone. */
async function all(...promises) {
  const ended = await Promise.allSettled(promises);
  for (const { status, reason } of ended) if (status === "rejected") throw reason;
  return ended.map(({ value }) => value);
}

async function pageOf(browser, data, withImages) {
  const server = await serveWhole(data);
  const { rows } = await answer(`${server.url}api/v1/decisions?${new URLSearchParams({ workload: WORKLOAD, limit: 200 })}`);
  const reverted = rows.find((row) => row.takes_back);
  if (!reverted) throw new Error(`no decision on ${WORKLOAD} is taken back: the pictures need a seed at which one is`);
  const decision = new URLSearchParams({ workload: WORKLOAD, id: reverted.id });
  const view = (file, hash, there, until, more = {}) => shoot(browser, { file, url: `${server.url}#/${hash}`, there, until, withImages, ...more });
  const pictures = [
    await view("fleet.png", "fleet", [".fleet tbody svg", ".chart canvas", ".marks .mark"], "main > section:last-of-type"),
    await view("workload.png", `workload/${WORKLOAD}`, [".chart canvas >> nth=1", ".marks .mark", ".notes li"], "section:has(.chart)"),
    await view("decision.png", `decision?${decision}`, ["#evidence-heading"], ".columns", { scheme: "dark" }),
  ];
  await server.kill();
  return pictures;
}

async function sharingOf(browser, folder, withImages) {
  const [scenario, shared] = [join(folder, "scenario.toml"), join(folder, "shared")];
  writeFileSync(scenario, SCENARIO);
  await output("--config", join(root, "configs/sm-partition.toml"), "--data-dir", shared, ...SHARING, "--scenario", scenario);
  const server = await serveWhole(shared);
  const picture = await shoot(browser, { file: "sharing.png", url: `${server.url}#/sharing`, there: [".gpu"], until: "section:has(.gpus)", withImages });
  await server.kill();
  return picture;
}

async function reportOf(browser, data, folder, withImages) {
  const file = join(folder, "report.html");
  writeFileSync(file, await output("report", data, "--format", "html"));
  return shoot(browser, { file: "report.png", url: `file://${file}`, there: ["main svg[role=img]"], until: "main svg[role=img] + p", scale: 1.25, withImages });
}

async function answer(url) {
  const got = await fetch(url);
  if (!got.ok) throw new Error(`${url} answers ${got.status}: ${await got.text()}`);
  return got.json();
}

/** Serves a folder; returns when all of it has been read and replayed. */
async function serveWhole(folder) {
  // The page shows the name of the folder as it is given.
  const server = await serve(["dashboard", basename(folder)], { cwd: dirname(folder) });
  const begun = performance.now();
  const isWhole = ({ caught_up, replay }) => caught_up && replay !== null && replay.verdict !== "running";
  while (!isWhole(await answer(`${server.url}api/v1/overview`))) {
    if (performance.now() - begun > LONGEST) throw new Error(`the page has not read and replayed ${folder} after ${LONGEST / 1000} s`);
    await new Promise((done) => setTimeout(done, 200));
  }
  return server;
}

/** Takes a picture from the top of a page to the end of the element `until`, when everything in `there` is drawn. */
async function shoot(browser, { file, url, there, until, withImages, scheme = "light", scale = 1.5 }) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, deviceScaleFactor: scale, colorScheme: scheme, reducedMotion: "reduce" });
  try {
    context.setDefaultTimeout(LONGEST);
    const page = await context.newPage();
    await page.goto(url);
    for (const element of there) await page.locator(element).first().waitFor();
    await page.evaluate(() => document.fonts.ready.then(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))));
    const { bottom, lines } = await page.locator(until).first().evaluate(textUntil);
    const clip = { x: 0, y: 0, width: 1280, height: Math.ceil(bottom) + 12 };
    const image = withImages ? compact(await page.screenshot({ clip, fullPage: true })) : null;
    return { file, lines, image };
  } finally {
    await context.close();
  }
}

/** In the browser: where the element ends, and what is written above that. A row of a table is one line, and so is each paragraph or item. */
function textUntil(last) {
  const limit = last.getBoundingClientRect().bottom + scrollY;
  const lines = [];
  let line = "";
  const end = () => {
    const text = line.replace(/\s+/g, " ").trim();
    if (text !== "") lines.push(text);
    line = "";
  };
  /** Whether a line ends before and after it; below a row or a drawing none does. */
  const isBlock = (node, { display, position }) => !/^(inline|contents|table-cell)/.test(display) && !(position === "absolute" && node.tagName === "SPAN");
  const walk = (node, isInLine) => {
    if (node.nodeType === Node.TEXT_NODE) line += node.data;
    if (node.nodeType !== Node.ELEMENT_NODE || ["SCRIPT", "NOSCRIPT", "STYLE"].includes(node.tagName)) return;
    const style = getComputedStyle(node);
    const { top, height } = node.getBoundingClientRect();
    const isBelow = height > 0 && top + scrollY >= limit;
    if (style.display === "none" || style.visibility === "hidden" || isBelow) return;
    if (node.tagName === "SELECT") {
      line += ` ${node.selectedOptions[0]?.textContent ?? ""} `;
      return;
    }
    const ends = !isInLine && isBlock(node, style);
    if (ends) end();
    else line += style.display === "table-cell" && line.trim() !== "" ? " | " : " ";
    const isClosed = node.tagName === "DETAILS" && !node.open;
    const below = isInLine || style.display === "table-row" || node.tagName === "svg";
    for (const child of isClosed ? node.querySelectorAll(":scope > summary") : node.childNodes) walk(child, below);
    if (ends) end();
    else line += " ";
  };
  for (const part of document.querySelectorAll(".bar .right, main")) {
    walk(part, part.tagName !== "MAIN");
    end();
  }
  return { bottom: limit, lines };
}

/** Keys of the live view: one workload with its oldest decisions, and up to the one that is taken back. */
const [OLDEST, BACK] = [`\r${"j".repeat(80)}`, "k".repeat(7)];
const [COLUMNS, ROWS] = [124, 30];

/** Takes two pictures of the live view of `eadt up` that goes on with a copy of the run. */
async function terminalOf(folder, withImages) {
  const { workloads } = JSON.parse(await output("report", join(folder, "eadt-data"), "--json"));
  const sum = (figure) => workloads.reduce((sum, workload) => sum + workload[figure], 0);
  const whole = `${sum("windows")} windows ${sum("decisions")} decisions`;
  // The next window closes after a minute of simulated time: a busy machine has ten of them where only the text counts.
  const view = await LiveView.start(folder, withImages ? 1 : 0.1);
  try {
    const table = await view.when("the whole run", (lines) => lines[1].includes(whole));
    view.press(OLDEST);
    await view.when("one workload", (lines) => lines.at(-1).includes("scroll") && !lines.some((line) => line.includes("more lines")));
    view.press(BACK);
    const details = await view.when("a decision that is taken back", (lines) => lines.some((line) => /^│[\d:]+ revert /.test(line)));
    return [
      { file: "up.svg", lines: linesOf(table), image: svg(table, "eadt up", "The live view of two simulated workloads: power, J/sample and savings of each, a chart and the last decisions of one") },
      { file: "up-workload.svg", lines: linesOf(details), image: svg(details, "eadt up", "The live view of one workload: what was saved, a chart with decisions, restarts and phases, and the reason of each decision") },
    ];
  } finally {
    await view.end();
  }
}

/** What the screen shows of the run; the end of the first line shows where it is, and how fast. */
function linesOf(terminal) {
  const [head, ...lines] = terminal.lines();
  return [head.replace(/ +http:.*$/, ""), ...lines];
}

/** `eadt up` in a terminal of its own, which `script` (of util-linux, on every Linux machine) makes. */
class LiveView {
  #child;
  #ended;
  #text = "";
  #terminal = new Terminal(COLUMNS, ROWS);
  #problem = null;

  static async start(folder, speed) {
    const view = new LiveView();
    const quoted = `'${resolve(process.env.EADT_TEST_PROGRAM).replaceAll("'", "'\\''")}'`;
    const command = `stty rows ${ROWS} cols ${COLUMNS}; exec ${quoted} up --speed ${speed} --seed 7`;
    const kept = Object.entries(process.env).filter(([name]) => !/^(EADT_|KAFKA_)/.test(name));
    const environment = { ...Object.fromEntries(kept), TERM: "xterm-256color", EADT_HTTP__ADDRESS: "127.0.0.1:0" };
    view.#child = spawn("script", ["-q", "-e", "-c", command, "/dev/null"], { cwd: folder, env: environment, stdio: ["pipe", "pipe", "pipe"] });
    view.#ended = new Promise((ended) => {
      view.#child.on("exit", (code) => ended(`ended with ${code}`));
      view.#child.on("error", (error) => ended(`cannot start script, which makes a terminal (on Debian: bsdutils): ${error.message}`));
    });
    view.#child.stdin.on("error", () => {});
    view.#child.stdout.setEncoding("utf8").on("data", (text) => view.#read(text));
    return view;
  }

  #read(text) {
    this.#text += text;
    try {
      this.#terminal.write(text);
    } catch (error) {
      this.#problem ??= error.message;
    }
  }

  press(keys) {
    this.#child.stdin.write(keys);
  }

  /** Returns a copy of the screen when it shows what is wanted and has not changed for a second. */
  async when(what, isWanted) {
    let over = null;
    this.#ended.then((how) => (over = how));
    const begun = performance.now();
    let [shown, since] = ["", begun];
    for (;;) {
      await new Promise((done) => setTimeout(done, 100));
      const lines = this.#terminal.lines();
      if (lines.join("\n") !== shown) [shown, since] = [lines.join("\n"), performance.now()];
      else if (performance.now() - since > 1000 && isWanted(lines)) break;
      const why = this.#problem ?? over ?? (performance.now() - begun > LONGEST ? `after ${LONGEST / 1000} s` : null);
      if (why !== null) throw new Error(`eadt up does not show ${what}: ${why}; on its screen:\n${this.#terminal.lines().join("\n") || this.#text}`);
    }
    const copy = new Terminal(COLUMNS, ROWS);
    copy.cells = this.#terminal.cells.map((row) => [...row]);
    // The port that it has if it is free; `up` takes one of the next hundred otherwise.
    copy.replace(/127\.0\.0\.1:9\d{3}/g, "127.0.0.1:9580");
    return copy;
  }

  async end() {
    // The first one leaves the details, the second one ends.
    this.#child.stdin.write("q");
    await new Promise((done) => setTimeout(done, 300));
    this.#child.stdin.write("q");
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), LONGEST);
    await this.#ended;
    clearTimeout(timer);
  }
}

/** Returns the texts as they are kept beside the pictures. */
function textOf(pictures) {
  const head = "What the pictures beside this file show. `cargo xtask pictures` writes both; a test of the page compares the text.\n";
  return head + pictures.map(({ file, lines }) => `\n## ${file}\n\n${lines.map((line) => line.trimEnd()).join("\n")}\n`).join("");
}

/** Returns how the kept text differs from that of these pictures, a line for each line; nothing if they are alike. */
export function drift(pictures) {
  let kept;
  try {
    kept = readFileSync(textFile, "utf8");
  } catch (error) {
    if (error.code !== "ENOENT") throw error;
    return [`docs/images/pictures.txt is missing: run \`cargo xtask pictures\` and commit docs/images`];
  }
  return difference(kept.split("\n"), textOf(pictures).split("\n"));
}

/** Returns removed and added lines, each part after the heading that it is below. */
function difference(before, after) {
  // Lengths of the longest common parts of the ends.
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      common[i][j] = before[i] === after[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const lines = [];
  let [heading, named] = ["", ""];
  const add = (line) => {
    if (heading !== named) lines.push(heading);
    named = heading;
    lines.push(line);
  };
  for (let [i, j] = [0, 0]; i < before.length || j < after.length; ) {
    if (i < before.length && before[i] === after[j]) {
      if (before[i].startsWith("## ")) heading = before[i];
      [i, j] = [i + 1, j + 1];
    } else if (j >= after.length || (i < before.length && common[i + 1][j] >= common[i][j + 1])) add(`- ${before[i++]}`);
    else add(`+ ${after[j++]}`);
  }
  return lines;
}

async function main(check) {
  const executable = process.env.EADT_TEST_BROWSER;
  if (!executable) throw new Error("EADT_TEST_BROWSER names no Chromium: run this by `cargo xtask pictures`");
  const folder = mkdtempSync(join(tmpdir(), "eadt-pictures-run-"));
  const data = join(folder, "eadt-data");
  const browser = await chromium.launch({ executablePath: executable, args: ["--no-sandbox"] });
  try {
    await output("--data-dir", data, ...RUN);
    const pictures = await take(browser, data, { withImages: !check });
    if (check) {
      const lines = drift(pictures);
      if (lines.length > 0) throw new Error(`the pictures show something else than the program (- in docs/images, + now):\n${lines.join("\n")}\nrun \`cargo xtask pictures\`, look at docs/images, and commit them`);
      console.log(`${pictures.length} pictures show what the program shows`);
      return;
    }
    // All or none: pictures and text are of one run.
    mkdirSync(images, { recursive: true });
    for (const { file, image } of pictures) {
      writeFileSync(join(images, file), image);
      console.log(`written: docs/images/${file} (${Math.round(image.length / 1000)} kB)`);
    }
    writeFileSync(textFile, textOf(pictures));
    console.log("written: docs/images/pictures.txt");
  } finally {
    await browser.close();
    killAll();
    rmSync(folder, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  main(process.argv.includes("--check")).then(
    () => process.exit(0),
    (error) => {
      console.error(`error: ${error.message}`);
      process.exit(1);
    },
  );
}
