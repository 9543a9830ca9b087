// The page in a browser, on what the real program makes: figures, keys, hostile names, a killed server, accessibility, narrow screens.
import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { chromium } from "playwright-core";
import { drift, LONGEST, RUN, take } from "./pictures.mjs";
import { freePort, killAll, output, serve } from "./program.mjs";

const executable = process.env.EADT_TEST_BROWSER;
if (!executable) throw new Error("EADT_TEST_BROWSER names no Chromium: run this by `cargo xtask test`");
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const folder = mkdtempSync(join(tmpdir(), "eadt-page-"));
const browser = await chromium.launch({ executablePath: executable, args: ["--no-sandbox"] });
/** What the browser saw in the test that runs, the pages that it has open, and what failed on the network: several run at the same time. */
const testState = new AsyncLocalStorage();

/** Tests that run at the same time: most of each is waiting, for the program or for simulated time. */
const AT_ONCE = 3;

/** Calls a function at most once, and returns the same promise to all. */
function once(make) {
  let made;
  return () => (made ??= make());
}

/** The run that most tests look at. */
const recorded = once(async () => {
  const data = join(folder, "data");
  await output("--data-dir", data, ...RUN);
  return data;
});

/** Returns a copy of the run that no other test opens: a log is open in one process at a time. */
async function ownRun() {
  const data = mkdtempSync(join(folder, "run-"));
  cpSync(await recorded(), data, { recursive: true });
  return data;
}

/** The page of the run, which is only read: one server for all tests that ask for nothing else. */
const archive = once(async () => serve(["dashboard", await ownRun()]));

/** A page that notes whatever it should not do: errors, refused content, requests to others. `prepare` is called before it loads. */
async function open(url, { width = 1280, scheme = "light", prepare = async () => {} } = {}) {
  const { problems, pages, network } = testState.getStore();
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, reducedMotion: "reduce" });
  context.setDefaultTimeout(LONGEST);
  await context.addInitScript(() => {
    globalThis.violations = [];
    addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  const page = await context.newPage();
  pages.add(page);
  const origin = url.startsWith("file:") ? url.split("#", 1)[0] : new URL(url).origin;
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && network.push(message.text()));
  page.on("requestfailed", (request) => network.push(`${request.url()}: ${request.failure()?.errorText}`));
  page.on("dialog", (dialog) => problems.push(`dialog: ${dialog.message()}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(origin) && !request.url().startsWith("data:")) problems.push(`request to ${request.url()}`);
  });
  await prepare(page);
  await page.goto(url);
  return page;
}

async function close(page) {
  const { problems, pages } = testState.getStore();
  pages.delete(page);
  problems.push(...(await page.evaluate(() => globalThis.violations)).map((violation) => `content policy: ${violation}`));
  await page.context().close();
}

async function isAccessible(page, name) {
  // The policy of the page lets no script in: this one comes by the debugger.
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
  const words = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
  assert.deepEqual(words, [], `${name}: axe`);
}

/** Lets `change` change the answers to requests like `path`. An answer that does not come, since a test ends meanwhile, is left out. */
const changeAnswers = (page, path, change) =>
  page.route(path, async (route) => {
    try {
      const response = await route.fetch();
      await route.fulfill({ response, body: await change(await response.text()) });
    } catch {
      await route.abort().catch(() => {});
    }
  });

/** A workload on a GPU, as the server has it. */
const tenantRow = (workload, share_ratio = 0.3) => ({ workload, share_ratio, method: "equal", basis: "equal", power_watts: 250 * share_ratio, mps_thread_percentage: null, gpus: 1, energy_joules: null, joules_per_sample: null });

/** A GPU with these workloads, as the server has it. */
const gpuRow = (device, tenants, more = {}) => ({ device, node: "node", gpu_index: 0, gpu_model: "board", origin: "measured", meter: "gpu", mig_enabled: null, mps_enabled: true, shared: tenants.length > 1, silent: false, time_ms: 0, power_watts: 250, power_limit_watts: 300, tenants, unassigned_ratio: 0.1, unassigned_power_watts: 25, asked: null, pods: [], decision: null, unknown: [], ...more });

/** The figure in a text; its minus sign is as wide as a plus. */
const number = (text) => Number(text.replace("−", "-").replaceAll(",", ""));
const PREFIXES = { "": 1, k: 1e3, M: 1e6, G: 1e9 };

/** `1.42 MJ` → joules, with what the last shown digit may hide. */
function joules(text) {
  const [, figure, prefix] = /([−\d.,]+) ([kMG]?)J/.exec(text) ?? assert.fail(`no joules in ${text}`);
  return { value: number(figure) * PREFIXES[prefix], error: Math.abs(number(figure)) * PREFIXES[prefix] * 0.006 };
}

/** Returns what a file of the page's source exports, if it needs no browser. */
async function sourceOf(name) {
  const { outputFiles } = await build({ absWorkingDir: fileURLToPath(new URL("..", import.meta.url)), entryPoints: [`src/${name}`], bundle: true, format: "esm", write: false });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}

/** Those that wait longest come first. */
const tests = {
  async "a figure that rounds to zero has no sign"() {
    const { outputFiles } = await build({ absWorkingDir: fileURLToPath(new URL("..", import.meta.url)), entryPoints: ["src/format.ts"], bundle: true, format: "esm", write: false });
    const { count, fixed, signedPercent } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
    assert.deepEqual([-0.04, 0, -0.06].map((value) => fixed(value, 1)), ["0.0", "0.0", "−0.1"]);
    assert.deepEqual([-0.0004, 0.0004, -0.109, 0.031].map(signedPercent), ["0.0 %", "0.0 %", "−10.9 %", "+3.1 %"]);
    assert.deepEqual([-0.001, -1234.5].map(count), ["0", "−1,234.5"]);
  },

  async "people pause, set modes and approve, and their name stays"() {
    const server = await serve(["--data-dir", join(folder, "changed"), "up", "--no-view", "--speed", "20", "--seed", "7"]);
    // What is recommended is replaced every five minutes: a page that knows of an earlier one asks for that.
    let isBehind = false;
    const prepare = (page) =>
      changeAnswers(page, /api\/v1\/policies/, (text) => {
        if (!isBehind) return text;
        const answer = JSON.parse(text);
        for (const { recommended } of answer.rows) if (recommended) Object.assign(recommended, { id: "earlier", reason: "an earlier reason" });
        return JSON.stringify(answer);
      });
    const page = await open(`${server.url}#/policies`, { prepare });
    const policy = page.locator("li.gpu").filter({ hasText: "eadt/llm-training" });
    const dialog = page.locator("dialog[open]");
    const press = (name) => dialog.getByRole("button", { name, exact: true }).click();
    const confirm = async (name, text) => {
      await dialog.getByText(text).first().waitFor();
      await press(name);
    };
    // Each button names its workload: several are in one list.
    const asked = (name) => policy.getByRole("button", { name: `${name} eadt/llm-training`, exact: true }).click();
    await asked("Pause");
    await isAccessible(page, "the dialog of a change");
    // Nothing happens before it is confirmed.
    await press("Cancel");
    assert.equal(await policy.locator(".badge", { hasText: "paused" }).count(), 0);
    await asked("Pause");
    await confirm("Pause", "paused: from no");
    await policy.locator(".badge", { hasText: "paused" }).waitFor();
    await policy.getByText("paused from no to yes (set by local)").waitFor();
    await asked("Mode");
    await dialog.getByLabel("recommend").check();
    // Another client sets it meanwhile.
    const other = { change: "set_mode", mode: "observe", shown: "enforce" };
    await page.request.post(`${server.url}api/v1/workloads/eadt/llm-training/terms`, { data: other });
    await dialog.getByText("The mode is observe by now.").waitFor();
    assert.ok(await dialog.getByRole("button", { name: "Set the mode" }).isDisabled(), "what is shown is not so");
    await isAccessible(page, "the dialog of a change that somebody else made");
    await press("Look again");
    await dialog.getByLabel("recommend").check();
    await confirm("Set the mode", "mode: from observe");
    await policy.getByText("mode from observe to recommend (set by local)").waitFor();
    isBehind = true;
    await asked("Resume");
    await confirm("Resume", "paused: from yes");
    await policy.getByText("an earlier reason").waitFor();
    await asked("Approve");
    await confirm("Approve", "an earlier reason");
    await dialog.getByText("the current recommendation is").waitFor();
    isBehind = false;
    await dialog.getByText("is recommended by now.").waitFor();
    const named = async () => {
      const { rows } = await (await fetch(`${server.url}api/v1/decisions?${new URLSearchParams({ workload: "eadt/llm-training" })}`)).json();
      const details = await Promise.all(rows.map(async ({ workload, id }) => (await fetch(`${server.url}api/v1/decision?${new URLSearchParams({ workload, id })}`)).json()));
      return details.flatMap(({ actuations }, row) => actuations.filter(({ outcome, reason }) => outcome === "applied" && reason === "approved by local").map(() => rows[row].id));
    };
    // On a slow machine the one that is approved may be replaced as well: then that is looked at and approved.
    const begun = performance.now();
    let approved = [];
    while (approved.length === 0 && performance.now() - begun < LONGEST) {
      await page.evaluate(async () => {
        const find = (names, root) => [...(root?.querySelectorAll("button") ?? [])].find((button) => names.includes(button.textContent) && !button.disabled);
        const dialog = document.querySelector("dialog[open]");
        if (!dialog) find(["Approve"], document)?.click();
        (find(["Look again"], dialog) ?? find(["Approve"], dialog))?.click();
        await new Promise((done) => setTimeout(done, 500));
      });
      approved = await named();
    }
    assert.ok(approved.length > 0 && new Set(approved).size === approved.length, `what was approved is applied once: ${approved}`);
    await page.goto(`${server.url}#/workload/eadt/llm-training`);
    await page.locator(".facts").getByText("recommend by local").waitFor();
    await close(page);
    await server.kill();
    const reading = await open(`${(await archive()).url}#/policies`);
    await reading.getByText("this page only reads").waitFor();
    assert.equal(await reading.getByRole("button", { name: "Pause" }).count(), 0);
    await close(reading);
  },

  async "an answer that a later one overtook is not shown"() {
    const server = await serve(["--data-dir", join(folder, "overtaken"), "up", "--no-view", "--speed", "20", "--seed", "7"]);
    let release;
    const released = new Promise((done) => (release = done));
    let isFirst = true;
    const prepare = (page) =>
      changeAnswers(page, /api\/v1\/policies/, async (text) => {
        if (!isFirst) return text;
        isFirst = false;
        await released;
        return text.replaceAll("eadt/llm-training", "eadt/overtaken");
      });
    const page = await open(`${server.url}#/policies`, { prepare });
    const names = page.locator("li.gpu h3");
    // Of a later answer: the first one waits.
    await names.filter({ hasText: "eadt/llm-training" }).waitFor();
    await page.evaluate(() => {
      globalThis.seen = [];
      new MutationObserver(() => globalThis.seen.push(document.querySelector("main").innerText)).observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
    });
    const late = page.waitForEvent("requestfinished", (request) => request.url().includes("api/v1/policies"));
    release();
    await late;
    // Two more answers, so that the late one was taken or not.
    for (let more = 0; more < 2; more += 1) await page.waitForResponse(/api\/v1\/policies/);
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    const seen = await page.evaluate(() => globalThis.seen);
    assert.ok(!seen.some((text) => text.includes("eadt/overtaken")), "what is older was shown");
    await close(page);
    await server.kill();
  },

  async "it paints before the first window, and comes back after the server was killed"() {
    // Its first window closes after a minute.
    const slow = await serve(["--data-dir", join(folder, "slow"), "up", "--no-view", "--speed", "1", "--seed", "7"]);
    const early = await open(slow.url);
    await early.getByText(/Waiting for the first|Reading what the log/).waitFor();
    await close(early);
    await slow.kill();
    const port = await freePort();
    const live = join(folder, "live");
    const words = ["--data-dir", live, "up", "--no-view", "--speed", "30", "--seed", "7"];
    let server = await serve(words, { port });
    const page = await open(server.url);
    const badge = page.locator(".bar .right");
    await badge.getByText(/live \d\d:\d\d/).waitFor();
    for (const width of [400, 1280]) {
      const pipeline = await open(`${server.url}#/pipeline`, { width });
      await pipeline.locator("#stages-heading").waitFor();
      await pipeline.locator("td", { hasText: "behind the samples" }).waitFor();
      assert.ok(await pipeline.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `the stages fit into ${width} px`);
      await isAccessible(pipeline, `pipeline, ${width} px`);
      await close(pipeline);
    }
    const before = await badge.innerText();
    const { rows } = await (await fetch(`${server.url}api/v1/fleet`)).json();
    const { workload } = rows.find((row) => row.window_end_ms !== null);
    const asked = await fetch(`${server.url}api/v1/what-if?${new URLSearchParams({ workload, controller: "matrix" })}`);
    assert.ok(asked.status === 200 && (await asked.json()).windows > 0, "of a log that goes on");
    await server.kill();
    await badge.getByText("reconnecting").waitFor();
    const spoken = page.locator("p[role=status]");
    await spoken.getByText("The connection is lost").waitFor({ state: "attached" });
    server = await serve(words, { port });
    await badge.getByText(/live \d\d:\d\d/).waitFor();
    await page.waitForFunction(() => !/connection is lost/.test(document.querySelector("p[role=status]").innerText));
    await page.waitForFunction((before) => /live/.test(document.querySelector(".bar .right").innerText) && document.querySelector(".bar .right").innerText > before, before);
    await close(page);
    await server.kill();
  },

  async "what could not be loaded is asked for again"() {
    const server = await archive();
    for (const path of ["**/app.js", "**/app.css", "**/api/v1/fleet*", "**/api/v1/events"]) {
      let failed = 0;
      const prepare = (page) => page.route(path, (route) => (failed++ === 0 ? route.abort("connectionreset") : route.continue()));
      const page = await open(server.url, { prepare });
      const begun = performance.now();
      while (failed < 2 && performance.now() - begun < LONGEST) await new Promise((done) => setTimeout(done, 50));
      assert.ok(failed > 1, `${path} is not asked for again`);
      await page.locator(".fleet tbody tr").first().waitFor();
      await page.locator(".bar .right", { hasText: "archive" }).waitFor();
      await page.waitForFunction(() => getComputedStyle(document.querySelector(".bar")).display === "flex");
      await close(page);
    }
  },

  async "the pictures of the documents show what the program shows"() {
    const data = await ownRun();
    const lines = drift(await take(browser, data, { withImages: false }));
    const words = "docs/images is out of date (-: its text, +: the program's): run `cargo xtask pictures`, look at the pictures, commit them";
    assert.equal(lines.join("\n"), "", `${words}\n${lines.join("\n")}`);
  },

  async "no violation of accessibility, light, dark and narrow"() {
    const server = await archive();
    const { rows } = await (await fetch(`${server.url}api/v1/decisions?limit=200`)).json();
    const changed = rows.find((row) => row.outcome !== null) ?? rows[0];
    const views = {
      fleet: ["#/fleet", ".fleet tbody tr"],
      workload: [`#/workload/${changed.workload}`, ".chart canvas"],
      decision: [`#/decision?${new URLSearchParams({ workload: changed.workload, id: changed.id })}`, "#evidence-heading"],
      decisions: ["#/decisions", "a.decision"],
      pipeline: ["#/pipeline", "#dead-heading"],
      sharing: ["#/sharing", ".gpu"],
      policies: ["#/policies", ".gpu"],
      whatif: [`#/what-if?${new URLSearchParams({ workload: changed.workload, controller: "matrix" })}`, "#refused-heading"],
      compare: [`#/compare?${new URLSearchParams({ a: "eadt/llm-training", b: "eadt/vision-pretraining" })}`, ".chart canvas"],
    };
    for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 400]]) {
      const page = await open(server.url, { scheme, width });
      for (const [name, [hash, there]] of Object.entries(views)) {
        await page.goto(`${server.url}${hash}`);
        await page.locator(there).first().waitFor();
        if (process.env.EADT_TEST_PICTURES) {
          await page.screenshot({ path: join(process.env.EADT_TEST_PICTURES, `${name}-${scheme}-${width}.png`), fullPage: true });
        }
        const [wide, has] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(wide <= has, `${name} at ${width}: ${wide} px wide`);
        await isAccessible(page, `${name} ${scheme} ${width}`);
      }
      await close(page);
    }
  },

  async "every file that a command writes is accessible, fits the screen and prints"() {
    const data = await ownRun();
    const points = new URL("../../../../docs/examples/points.csv", import.meta.url).pathname;
    const backtest = ["backtest", "--days", "1", "--seeds", "1", "--scenario", "default", "--controller", "power-cap"];
    const at = (name) => join(folder, `${name}.html`);
    await Promise.all([
      output("report", data, "--format", "html").then((page) => writeFileSync(at("report"), page)),
      output("tune", points, "--by", "workload", "--max-slowdown", "0.05", "--html", at("tune")),
      output(...backtest, "--html", at("backtest")),
      output("partition", "evaluate", "--paper-only", "--trees", "3", "--html", at("partition")),
    ]);
    for (const name of ["report", "tune", "backtest", "partition"]) {
      for (const scheme of ["light", "dark"]) {
        const page = await open(`file://${at(name)}`, { scheme });
        assert.equal(await page.locator("main h1").count(), 1, name);
        await isAccessible(page, `${name}, ${scheme}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is wider than the screen`);
        const inline = await page.evaluate(() => {
          const script = document.createElement("script");
          script.textContent = "globalThis.ran = true";
          document.body.append(script);
          return globalThis.ran === true;
        });
        assert.equal(inline, false, `${name}: its policy lets no script run`);
        await page.waitForFunction(() => globalThis.violations.length > 0);
        await page.evaluate(() => globalThis.violations.splice(0));
        if (scheme === "light") {
          const paper = await page.pdf({ format: "A4" });
          assert.ok(paper.length > 10_000 && paper.subarray(0, 5).toString() === "%PDF-", `${name} on paper`);
        }
        await close(page);
      }
    }
  },

  async "figures are the report's"() {
    const report = JSON.parse(await output("report", await ownRun(), "--json")).workloads;
    const server = await archive();
    const page = await open(`${server.url}#/fleet?sort=name`);
    const rows = page.locator(".fleet tbody tr");
    await rows.first().waitFor();
    assert.equal(await rows.count(), report.length);
    for (const [index, wanted] of report.toSorted((a, b) => (a.workload < b.workload ? -1 : 1)).entries()) {
      const cells = await rows.nth(index).locator("th, td").allInnerTexts();
      assert.equal(cells[0].trim(), wanted.workload);
      assert.ok(Math.abs(number(/[−\d.]+/.exec(cells[6])[0]) - wanted.saving_ratio * 100) <= 0.051, `${cells[6]} for ${wanted.saving_ratio}`);
      for (const [cell, figure] of [[cells[7], wanted.saving_joules], [cells[8], wanted.energy_joules]]) {
        const { value, error } = joules(cell);
        assert.ok(Math.abs(value - figure) <= error, `${cell} for ${figure}`);
      }
    }
    const sum = (figure) => report.reduce((sum, workload) => sum + workload[figure], 0);
    const changes = page.locator(".stat").filter({ hasText: "Changes" });
    assert.equal(await changes.locator(".value").innerText(), String(sum("changes")));
    assert.match(await changes.locator(".note").innerText(), new RegExp(`^${sum("reverts")} reverted`));
    const { workload, joules_per_sample: wanted, notes } = report[0];
    await page.goto(`${server.url}#/workload/${workload}`);
    await page.locator(".notes li").first().waitFor();
    const shown = number(/[\d.]+/.exec(await page.locator(".stat .value").first().innerText())[0]);
    assert.ok(Math.abs(shown - wanted) <= wanted * 0.0006, `${shown} for ${wanted}`);
    assert.equal(await page.locator(".notes li").count(), notes.length);
    await close(page);
  },

  async "keys lead through the page, and charts speak"() {
    const server = await archive();
    const page = await open(server.url);
    await page.locator(".fleet tbody tr").first().waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("vision");
    await page.waitForFunction(() => document.querySelectorAll(".fleet tbody tr").length === 1);
    await page.keyboard.press("Escape");
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => location.hash.startsWith("#/workload/"));
    const chart = page.getByRole("slider", { name: "Energy per sample" });
    await chart.waitFor();
    await chart.focus();
    await page.keyboard.press("Home");
    const first = await chart.getAttribute("aria-valuetext");
    await page.keyboard.press("ArrowRight");
    const second = await chart.getAttribute("aria-valuetext");
    assert.match(first, /^\d\d:\d\d:\d\d: J\/sample \d/);
    assert.notEqual(first, second);
    const table = page.locator(".behind").last();
    await table.locator("summary").focus();
    await page.keyboard.press("Enter");
    await table.locator("tbody tr").nth(100).waitFor({ state: "attached" });
    const decision = page.locator("a.decision").nth(1);
    await decision.focus();
    await page.keyboard.press("Enter");
    await page.locator("#evidence-heading").waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    await close(page);
  },

  async "a search takes what is typed slowly, and Back leads to the view before it"() {
    const server = await archive();
    const page = await open(`${server.url}#/workload/eadt/llm-training`);
    await page.locator("a.decision").first().waitFor();
    const field = page.getByRole("searchbox");
    await page.keyboard.press("/");
    // Longer than the field waits for more.
    await page.keyboard.type("vis", { delay: 300 });
    await page.waitForFunction(() => location.hash.endsWith("q=vis") && document.querySelectorAll(".fleet tbody tr").length === 1);
    assert.equal(await field.inputValue(), "vis");
    assert.ok(await field.evaluate((field) => field === document.activeElement), "the field keeps the focus");
    await page.keyboard.press("Control+a");
    await page.keyboard.press("Backspace");
    await page.waitForFunction(() => !location.hash.includes("q=") && document.querySelectorAll(".fleet tbody tr").length === 2);
    await page.goBack();
    await page.locator("a.decision").first().waitFor();
    await page.goto(`${server.url}#/fleet?q=vision`);
    await page.waitForFunction(() => document.querySelector("input[type=search]").value === "vision");
    await close(page);
  },

  async "the area of each GPU on the map is its power"() {
    const { layoutOf } = await sourceOf("gpu-layout.ts");
    for (const [count, each] of [[150, 1], [40, 8]]) {
      const power = Array.from({ length: count * each }, (_, gpu) => 150 + ((gpu * 7919) % 500));
      const nodes = Array.from({ length: count }, (_, node) => ({ node: `node-${node}`, gpus: [...Array(each).keys()], power_watts: power.slice(node * each, (node + 1) * each), workloads: Array(each).fill(1) }));
      for (const width of [1226, 360]) {
        const { boxes } = layoutOf({ now_ms: 0, gpus: count * each, nodes }, width);
        const pixels = boxes.map(([, , wide, high], gpu) => (wide * high) / power[gpu]);
        assert.ok(Math.max(...pixels) < 1.15 * Math.min(...pixels), `${count} nodes at ${width} px: ${Math.min(...pixels)} to ${Math.max(...pixels)} square pixels a watt`);
      }
    }
  },

  async "a layer over layers without figures reaches down to zero"() {
    const { stack } = await sourceOf("stack.ts");
    const layer = (...values) => ({ stacked: true, values });
    assert.deepEqual(stack([layer(null, null, 1), layer(null, 2, 3), { values: [9, 9, 9] }, layer(null, null, 1)]), [[null, 0, 1], [null, 2, 4], [9, 9, 9], [null, 2, 5]]);
  },

  async "another page of a table begins in view"() {
    const server = await archive();
    const fleet = await (await fetch(`${server.url}api/v1/fleet?sort=name`)).json();
    const names = Array.from({ length: 120 }, (_, number) => `team/train-${String(number).padStart(3, "0")}`);
    const prepare = (page) =>
      page.route("**/api/v1/fleet?*", (route) => {
        const before = Number(new URL(route.request().url()).searchParams.get("cursor")?.split(":")[1] ?? 0);
        const rows = names.slice(before, before + 50).map((workload) => ({ ...fleet.rows[0], workload }));
        return route.fulfill({ json: { rows, total: 120, matching: 120, before, next: before + 50 < 120 ? `-:${before + 50}` : null } });
      });
    for (const width of [1280, 400]) {
      const page = await open(server.url, { width, prepare });
      await page.getByRole("link", { name: "Next 50" }).click();
      await page.getByRole("link", { name: names[50] }).waitFor();
      // The bar above the page hides nothing of it.
      await page.waitForFunction((name) => {
        const row = [...document.querySelectorAll("table.fleet tbody tr")].find((row) => row.textContent.includes(name));
        const { top, left, bottom } = row.getBoundingClientRect();
        return top >= 0 && bottom <= innerHeight && row.contains(document.elementFromPoint(left + 20, top + 5));
      }, names[50]);
      await close(page);
    }
  },

  async "close marks of a chart are one, in order of time, and open a list"() {
    const server = await archive();
    const power = await (await fetch(`${server.url}api/v1/power`)).json();
    // The last interval has marks, too: the last edge is its end.
    const [before, end] = power.edges_ms.slice(-2);
    power.marks.push({ ...power.marks.at(-1), time_ms: (before + end) / 2 }, { ...power.marks.at(-1), time_ms: end });
    const prepare = (page) => page.route("**/api/v1/power*", (route) => route.fulfill({ json: power }));
    for (const width of [1280, 400]) {
      const page = await open(server.url, { width, prepare });
      await page.locator(".chart canvas").waitFor();
      const marks = await page.locator(".marks .mark").evaluateAll((marks) =>
        marks.map((mark) => {
          const { left, right } = mark.getBoundingClientRect();
          const [alike, count = alike] = (mark.querySelector("sub")?.textContent ?? "1").split(" of ").map(Number);
          return { left, right, symbol: mark.querySelector("span").textContent, alike, count };
        }),
      );
      assert.equal(marks.reduce((sum, { count }) => sum + count, 0), power.marks.length, "each is there once");
      const reverts = marks.filter(({ symbol }) => symbol === "✗").reduce((sum, { alike }) => sum + alike, 0);
      assert.equal(reverts, power.marks.filter(({ kind }) => kind === "revert").length, "only reverts count as such");
      for (const [index, { left }] of marks.entries()) {
        assert.ok(index === 0 || left >= marks[index - 1].right, `${width}: mark ${index} is to the right of the one before: ${JSON.stringify(marks)}`);
      }
      const list = page.locator(".mark-list");
      const group = page.locator(".marks button").first();
      await group.hover();
      await list.waitFor();
      const texts = await list.locator("a").allInnerTexts();
      const times = texts.map((text) => /\d\d:\d\d:\d\d/.exec(text)[0]);
      assert.deepEqual(times, times.toSorted());
      assert.equal(String(times.length), (await group.locator("sub").innerText()).split(" of ").at(-1));
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `the list fits into ${width} px`);
      await isAccessible(page, `a list of marks at ${width}`);
      await page.mouse.move(0, 0);
      await list.waitFor({ state: "detached" });
      await group.focus();
      await page.keyboard.press("Tab");
      assert.equal(await list.count(), 0, "the Tab key goes past a list that is closed");
      await group.focus();
      await page.keyboard.press("ArrowDown");
      await list.waitFor();
      await page.keyboard.press("Tab");
      assert.ok(await page.evaluate(() => document.activeElement.closest(".mark-list") !== null), "its links can be reached");
      await page.keyboard.press("Escape");
      await list.waitFor({ state: "detached" });
      assert.ok(await group.evaluate((button) => button === document.activeElement), "the focus is not lost");
      await page.keyboard.press("Enter");
      await list.locator("a").first().click();
      await page.locator(".reason").waitFor();
      await close(page);
    }
  },

  async "a badge stays in its cell, and a list of decisions fits the screen"() {
    const server = await archive();
    const texts = ["lower power limit to 120 W", "lower SM clock limit to 1,410 MHz", "set power limit to 352 W", "unfreeze all but 12 layers"];
    const longest = `eadt/${"n".repeat(248)}`;
    const prepare = (page) =>
      changeAnswers(page, /api\/v1\/decisions/, (text) => {
        const answer = JSON.parse(text);
        answer.rows.forEach((row, index) => Object.assign(row, { action: "set_power_limit", action_text: texts[index % texts.length], outcome: ["recommended", "rolled_back", "ready"][index % 3], fate: ["recommended", "rolled_back", "ready"][index % 3] }));
        answer.rows[0].workload = longest;
        return JSON.stringify(answer);
      });
    for (const width of [1280, 720, 400]) {
      for (const view of ["#/decisions", "#/workload/eadt/llm-training"]) {
        const page = await open(`${server.url}${view}`, { width, prepare });
        await page.locator("a.decision").first().waitFor();
        const apart = await page.locator("a.decision").evaluateAll((rows) =>
          rows.flatMap((row) => {
            const [badge, cell, why] = [".badge", ".what", ".why"].map((part) => row.querySelector(part).getBoundingClientRect());
            const isIn = badge.right <= cell.right + 0.5 && badge.left >= cell.left - 0.5;
            return isIn && (badge.right <= why.left || badge.bottom <= why.top + 0.5) ? [] : [row.innerText];
          }),
        );
        assert.deepEqual(apart, [], `${view} at ${width}: badges over other text`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${view} at ${width}: ${wide} px wide`);
        const rows = await page.locator("a.decision").evaluateAll((rows) => rows.map((row) => row.getBoundingClientRect().height));
        assert.ok(Math.max(...rows) < 400, `${view} at ${width}: a long name takes ${Math.max(...rows)} px`);
        await close(page);
      }
    }
  },

  async "the parts of a saving add up to the report's, and a prediction is beside what was found"() {
    const server = await archive();
    const ask = async (path) => (await fetch(`${server.url}api/v1/${path}`)).json();
    for (const name of ["eadt/llm-training", "eadt/vision-pretraining"]) {
      const { saving_parts: parts, report, row } = await ask(`workloads/${name}`);
      const sum = parts.parts.reduce((sum, part) => sum + part.joules, 0);
      const near = (a, b) => Math.abs(a - b) <= 1e-6 * parts.baseline_joules;
      assert.ok(near(parts.baseline_joules - sum, parts.actual_joules) && near(sum, report.saving_joules), JSON.stringify(parts));
      assert.ok(parts.parts.find(({ kind }) => kind === "limits").joules > 0 && parts.parts.find(({ kind }) => kind === "restarts").joules < 0, JSON.stringify(parts));
      for (const width of [1280, 400]) {
        const page = await open(`${server.url}#/workload/${name}`, { width });
        const rows = page.locator(".bridge tbody tr");
        await rows.first().waitFor();
        const texts = await rows.locator("td:nth-child(2)").allInnerTexts();
        assert.equal(texts.length, parts.parts.length + 2);
        const figures = texts.map((text) => joules(text).value);
        const shown = figures.slice(0, -1).reduce((sum, figure) => sum + figure, 0);
        assert.ok(Math.abs(shown - figures.at(-1)) <= 0.02 * parts.baseline_joules, `${texts} adds up`);
        // Each bar begins where the one before ends.
        const bars = await page.locator(".bar-part").evaluateAll((bars) => bars.map((bar) => bar.getBoundingClientRect()).map(({ left, right }) => [left, right]));
        bars.slice(1, -1).forEach(([left, right], index) => {
          const before = bars[index];
          const touches = (edge) => before.some((other) => Math.abs(other - edge) < 2.5);
          assert.ok(touches(left) || touches(right), `${JSON.stringify(bars)}: bar ${index + 1}`);
        });
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `the bars fit into ${width} px`);
        await isAccessible(page, `the parts of a saving at ${width}`);
        await close(page);
      }
      assert.ok(row.saving_ratio > 0);
    }
    const { rows } = await ask(`decisions?${new URLSearchParams({ workload: "eadt/llm-training", limit: 200 })}`);
    const stated = rows.find(({ action, reason }) => action === "scale_replicas" && / is expected to save [\d.]+ %/.test(reason));
    const { verdict, reason } = await ask(`decision?${new URLSearchParams({ workload: stated.workload, id: stated.id })}`);
    const page = await open(`${server.url}#/decision?${new URLSearchParams({ workload: stated.workload, id: stated.id })}`);
    const predicted = page.locator("tr.predicted").first();
    await predicted.waitFor();
    const cells = await predicted.locator("td").allInnerTexts();
    assert.equal(number(/[−\d.]+/.exec(cells[0])[0]), Number(/is expected to save ([\d.]+) %/.exec(reason)[1]));
    assert.ok(Math.abs(number(/[−\d.]+/.exec(cells[1])[0]) - 100 * verdict.evidence.gain_ratio) <= 0.051, cells[1]);
    // No figure under its raw name, and none without its unit.
    const labels = await page.locator("section[aria-labelledby=evidence-heading] tbody tr").allInnerTexts();
    assert.ok(labels.every((label) => /^[A-Z]/.test(label) && !/ per second | ratio\b| watts\b/.test(label)), labels.join("\n"));
    assert.ok(labels.some((label) => /^Throughput that is to be kept\s+[\d.]+ samples\/s/.test(label)), labels.join("\n"));
    await isAccessible(page, "a prediction");
    await close(page);
  },

  async "a mistyped address and a server that is away are reported in words"() {
    const server = await archive();
    const page = await open(`${server.url}#/fleet?sort=bogus&order=up&state=none`);
    const rows = page.locator(".fleet tbody tr");
    await rows.first().waitFor();
    assert.equal(await page.locator(".problem").count(), 0);
    await page.goto(`${server.url}#/what-if?controller=matrix`);
    await page.getByRole("link", { name: "eadt/llm-training" }).waitFor();
    assert.equal(await page.locator(".problem").count(), 0);
    await page.goto(`${server.url}#/workload/no/such`);
    await page.locator(".problem").getByText("no workload is named").waitFor();
    assert.equal(await page.getByRole("link", { name: "Compare", exact: true }).count(), 0, "nothing is offered for what is not there");
    const asked = [];
    page.on("request", (request) => asked.push(request.url()));
    await page.goto(`${server.url}#/workload/llm-training`);
    await page.getByRole("heading", { name: "No workload is named “llm-training”" }).waitFor();
    assert.equal(await page.getByRole("link", { name: "Search the fleet" }).getAttribute("href"), "#/fleet?q=llm-training");
    assert.equal(await page.locator(".problem").count(), 0);
    assert.deepEqual(asked.filter((url) => url.includes("/workloads/llm-training")), [], "nothing is asked of a name that is none");
    await isAccessible(page, "a name without a namespace");
    await page.route("**/api/v1/policies*", (route) => route.abort("connectionrefused"));
    await page.goto(`${server.url}#/policies`);
    await page.locator(".problem").getByText("The server does not answer. Trying again.").waitFor();
    await page.unroute("**/api/v1/policies*");
    await page.locator("li.gpu").first().waitFor();
    assert.equal(await page.locator(".problem").count(), 0, "it was asked again");
    const { first_ms: first, now_ms: last } = await (await fetch(`${server.url}api/v1/overview`)).json();
    const name = "eadt/llm-training";
    const hour = 3_600_000;
    const times = { a: name, a_from: first, a_to: first + hour / 2, b: name, b_from: last - hour / 2, b_to: last };
    await page.goto(`${server.url}#/compare?${new URLSearchParams(times)}`);
    await page.locator(".notes li").getByText(/the first time is of phase 1 of the job's work, the second of phase 3/).waitFor();
    assert.equal(await page.locator(".compare .tone-bad, .compare .tone-good").count(), 0, "other work is neither better nor worse");
    assert.ok(!(await page.locator(".notes").innerText()).includes("`"), "code is code");
    await page.goto(`${server.url}#/compare?${new URLSearchParams({ a: name, b: "eadt/vision-pretraining" })}`);
    await page.locator(".notes li").getByText("a sample of one job is not a sample of another").waitFor();
    assert.equal(await page.locator(".compare .tone-bad, .compare .tone-good").count(), 0, "another job is neither better nor worse");
    await page.goto(`${server.url}#/workload/${name}?hours=1&to=${first - hour}`);
    await page.getByText(/^No window of it in this time: it reported from/).waitFor();
    assert.ok((await page.locator("[aria-labelledby=series-heading] nav a").count()) >= 4, "the ranges are still there");
    await page.goto(`${server.url}#/decision?${new URLSearchParams({ workload: name, id: "none" })}`);
    await page.getByRole("heading", { name: "This decision is not kept" }).waitFor();
    await isAccessible(page, "a decision that is not kept");
    await page.goto(`${server.url}#/what-if?${new URLSearchParams({ workload: name, controller: "matrix" })}`);
    await page.locator("#refused-heading").waitFor();
    const reasons = await page.locator("main").innerText();
    assert.ok(!/in phase \d+ of the job|^maintain\b/m.test(reasons), "phases are numbered once");
    await close(page);
  },

  async "phases are named above the plot, where no line crosses their names"() {
    const server = await archive();
    const noteTexts = () => {
      globalThis.texts = [];
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
        globalThis.texts.push({ text, y, canvas: this.canvas });
        return fillText.call(this, text, x, y, ...more);
      };
    };
    const page = await open(`${server.url}#/workload/eadt/llm-training`, { prepare: (page) => page.addInitScript(noteTexts) });
    await page.waitForFunction(() => globalThis.texts.some(({ text }) => text === "phase 2"));
    const below = await page.evaluate(() =>
      globalThis.texts
        .filter(({ text }) => text.startsWith("phase"))
        .map(({ y, canvas }) => y / devicePixelRatio - parseFloat(canvas.parentElement.querySelector(".u-over").style.top)),
    );
    assert.ok(below.every((pixels) => pixels <= 0), `the plot begins at 0: ${below.join(", ")}`);
    await close(page);
  },

  async "a workload keeps its colour, a silent GPU counts, and a UUID is written once"() {
    const server = await archive();
    const sharing = await (await fetch(`${server.url}api/v1/sharing`)).json();
    const decision = { id: "d", workload: "t/b", time_ms: 0, action: "maintain", action_text: "keep", validation: "kept", reason: "sharing GPU-1 with t/a: kept" };
    const silent = { silent: true, time_ms: null, origin: null, node: null, gpu_index: null, power_watts: null, unassigned_ratio: null };
    // By their names alone t/a and t/i have the same colour.
    const devices = (...first) => [gpuRow("GPU-1", first.map((name) => tenantRow(name)), { decision }), gpuRow("GPU-2", ["t/c", "t/i"].map((name) => tenantRow(name)), { gpu_index: 1 }), gpuRow("GPU-3", [], silent)];
    let shown = devices("t/a", "t/b", "t/i");
    const page = await open(`${server.url}#/pipeline`);
    await page.route("**/api/v1/sharing*", (route) => route.fulfill({ json: { ...sharing, grouped: false, totals: { ...sharing.totals, gpus: 3, silent: 1 }, devices: shown, matching: 3 } }));
    const coloursOf = async () => {
      await page.goto(`${server.url}#/sharing`);
      const parts = page.locator(".parts li:has(a.name)");
      await parts.first().waitFor();
      const colours = await parts.evaluateAll((parts) => parts.map((part) => [part.querySelector(".name").textContent, getComputedStyle(part.querySelector(".part-swatch")).backgroundColor]));
      await page.goto(`${server.url}#/pipeline`);
      await page.locator("#dead-heading").waitFor();
      return colours;
    };
    const before = await coloursOf();
    assert.deepEqual(before.map(([name]) => name), ["t/a", "t/b", "t/i", "t/c", "t/i"]);
    const of = Object.fromEntries(before);
    assert.ok(before.every(([name, colour]) => of[name] === colour), "one workload has one colour");
    assert.equal(new Set([of["t/a"], of["t/b"], of["t/i"]]).size, 3, "side by side they differ");
    assert.notEqual(of["t/c"], of["t/i"]);
    shown = devices("t/b", "t/i");
    assert.deepEqual(await coloursOf(), before.slice(1), "who stays keeps the colour");
    await page.goto(`${server.url}#/sharing`);
    await page.locator(".gpu").first().waitFor();
    assert.match(await page.locator("h1").innerText(), /^3 GPUs: .*, 1 silent, at /);
    const texts = await page.locator("li.gpu").allInnerTexts();
    for (const [index, text] of texts.entries()) assert.equal(text.split(`GPU-${index + 1}`).length, 2, text);
    assert.ok(texts[0].includes("sharing this GPU with t/a: kept") && texts[2].includes("no sample yet"), texts.join("\n"));
    await isAccessible(page, "a GPU without samples");
    await close(page);
  },

  async "the strip of a large fleet has a cell for each workload, by pointer, by keys and in words"() {
    const server = await archive();
    const ask = async (path) => (await fetch(`${server.url}api/v1/${path}`)).json();
    const fleet = await ask("fleet?sort=name");
    const few = await ask("heat-strip?sort=name");
    assert.deepEqual(few.names, fleet.rows.map((row) => row.workload));
    assert.deepEqual(few.state.map((number) => few.states[number]), fleet.rows.map((row) => row.state));
    assert.ok(few.saving_ratio.every((ratio, index) => Math.abs(ratio - fleet.rows[index].saving_ratio) < 6e-4), few.saving_ratio.join(" "));
    const hostile = "<img src=x onerror=alert(1)>\u202e";
    const names = Array.from({ length: 10_000 }, (_, number) => (number === 1 ? `team-1/${hostile}` : `team-${number % 40}/train-${number}`));
    const strip = {
      total: 12_000,
      names,
      states: ["reverted", "steady", "silent"],
      state: names.map((_, number) => (number % 100 === 0 ? 0 : number % 7 === 0 ? 2 : 1)),
      saving_ratio: names.map((_, number) => (number % 5 === 0 ? null : (number % 50) / 100 - 0.1)),
      saving_is_clear: names.map((_, number) => Number(number % 3 !== 0)),
    };
    const rows = names.slice(0, 3).map((workload) => ({ ...fleet.rows[0], workload }));
    const asked = [];
    const prepare = async (page) => {
      await page.route("**/api/v1/fleet?*", (route) => route.fulfill({ json: { rows, total: 12_000, matching: 10_000, before: 0, next: "-:x" } }));
      await page.route("**/api/v1/heat-strip*", (route) => {
        asked.push(new URL(route.request().url()).search);
        return route.fulfill({ json: strip });
      });
    };
    for (const [scheme, width] of [["light", 1280], ["dark", 400]]) {
      const page = await open(`${server.url}#/fleet?sort=power&q=t`, { scheme, width, prepare });
      const heat = page.getByRole("slider", { name: "10,000 of 12,000 workloads by state" });
      await heat.waitFor();
      assert.equal(asked.at(-1), "?sort=power&q=t", "the order and the filter of the table");
      assert.ok((await page.locator(".heat *").count()) < 60, "few elements");
      assert.match(await heat.getAttribute("aria-valuetext"), /^100 reverted, .* steady, .* silent; arrow keys/);
      const legend = await page.locator(".heat .cell-legend b").allInnerTexts();
      assert.equal(legend.reduce((sum, text) => sum + number(text), 0), 10_000, legend.join(" "));
      // The first cell is filled in the colour of what was reverted.
      const isBad = () => {
        const canvas = document.querySelector(".heat canvas");
        const probe = document.createElement("span");
        probe.style.color = "var(--bad)";
        document.body.append(probe);
        const wanted = getComputedStyle(probe).color.match(/\d+/g).map(Number);
        probe.remove();
        const [x, y] = [1, 3].map((at) => Math.floor(at * devicePixelRatio));
        return canvas.width > 300 && [...canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3)].every((part, index) => part === wanted[index]);
      };
      await page.waitForFunction(isBad);
      await heat.focus();
      await page.keyboard.press("Home");
      await page.keyboard.press("ArrowRight");
      assert.match(await heat.getAttribute("aria-valuetext"), /^team-1\/<img src=x onerror=alert\(1\)>\\u202e: steady, −9\.0 % saved$/);
      assert.equal(await page.locator(".cell-text").innerText(), await heat.getAttribute("aria-valuetext"));
      assert.equal(await page.locator("main img").count(), 0);
      await page.keyboard.press("ArrowDown");
      const below = Number(await heat.getAttribute("aria-valuenow"));
      assert.ok(below > 50, `${below} is in another row`);
      await page.keyboard.press("ArrowUp");
      assert.equal(await heat.getAttribute("aria-valuenow"), "1");
      await heat.hover({ position: { x: 1, y: 3 } });
      await page.locator(".cell-text", { hasText: "team-0/train-0: reverted, saving not known" }).waitFor();
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `the strip fits into ${width} px`);
      await isAccessible(page, `a strip, ${scheme} ${width}`);
      await page.getByRole("link", { name: "saving", exact: true }).click();
      const bySaving = page.getByRole("slider", { name: "10,000 of 12,000 workloads by saving" });
      await bySaving.waitFor();
      assert.ok(page.url().includes("strip=saving"), page.url());
      assert.match(await bySaving.getAttribute("aria-valuetext"), /takes more than before, .* saves 20 % and more, .* not known; arrow/);
      await bySaving.focus();
      await page.keyboard.press("Home");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => location.hash === "#/workload/team-0/train-0");
      await close(page);
    }
  },

  async "the map of many GPUs marks those that are silent, and leads to a strip"() {
    const server = await archive();
    const ask = async (path) => (await fetch(`${server.url}api/v1/${path}`)).json();
    const sharing = await ask("sharing");
    const known = await ask("gpu-map");
    assert.equal(known.gpus, sharing.totals.gpus);
    assert.equal(known.nodes.flatMap((node) => node.gpus).length, known.gpus);
    const hostile = "<img src=x onerror=alert(1)>";
    const nodes = Array.from({ length: 30 }, (_, number) => ({
      node: number === 29 ? null : number === 0 ? hostile : `node-${number}`,
      gpus: number === 29 ? Array.from({ length: 8 }, (_, gpu) => `GPU-${gpu}`) : [0, 1, 2, 3, 4, 5, 6, 7],
      power_watts: [600, 580, 300, 60, null, 610, 590, 400],
      workloads: [1, 1, 2, 0, null, 3, 1, 1],
    }));
    const totals = { ...sharing.totals, gpus: 240, silent: 30 };
    const node = { node: "node-1", gpus: 8, shared: 2, idle: 1, silent: 1, workloads: 6, power_watts: 3_140, power_known: 7, unassigned_power_watts: 60 };
    const asked = [];
    const prepare = async (page) => {
      await page.route("**/api/v1/gpu-map", (route) => route.fulfill({ json: { now_ms: 0, gpus: 240, nodes } }));
      await page.route("**/api/v1/sharing*", (route) => {
        const { searchParams } = new URL(route.request().url());
        asked.push(searchParams);
        const one = searchParams.has("node");
        const devices = one ? [gpuRow("GPU-1", [tenantRow("t/a"), tenantRow("t/b")], { node: searchParams.get("node"), gpu_index: Number(searchParams.get("gpu_index")) })] : [];
        return route.fulfill({ json: { ...sharing, totals, grouped: !one, nodes: one ? [] : [node], devices, matching: 1 } });
      });
    };
    for (const [scheme, width] of [["light", 1280], ["dark", 400]]) {
      const page = await open(`${server.url}#/sharing`, { scheme, width, prepare });
      const map = page.getByRole("slider", { name: "Map of all GPUs by node" });
      await map.waitFor();
      await page.locator("table.plain").waitFor();
      assert.match(await map.getAttribute("aria-valuetext"), /^240 GPUs on 30 nodes: 120 with one workload, 30 shared by 2, 30 shared by 3 or more, 30 without work, 30 silent; /);
      await map.focus();
      await page.keyboard.press("Home");
      assert.equal(await map.getAttribute("aria-valuetext"), `${hostile} · GPU 0: 600 W, 1 workload`);
      for (let step = 0; step < 4; step += 1) await page.keyboard.press("ArrowRight");
      assert.equal(await page.locator(".cell-text").innerText(), `${hostile} · GPU 4: silent, no sample lately`);
      await page.keyboard.press("End");
      assert.match(await map.getAttribute("aria-valuetext"), /^GPU-7: 400 W/);
      assert.equal(await page.locator("main img").count(), 0);
      // What draws more has more room.
      const area = async (key) => {
        await page.keyboard.press(key);
        const { width, height } = await page.locator(".cell-cursor").boundingBox();
        return width * height;
      };
      await page.keyboard.press("Home");
      const [second, third, fourth] = [await area("ArrowRight"), await area("ArrowRight"), await area("ArrowRight")];
      assert.ok(Math.abs(second / third - 580 / 300) < 0.1 && fourth < third, `${second}, ${third}, ${fourth}`);
      await isAccessible(page, `a map, ${scheme} ${width}`);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `the map fits into ${width} px`);
      await page.keyboard.press("Enter");
      await page.locator("li.gpu").waitFor();
      const last = asked.at(-1);
      assert.deepEqual([last.get("node"), last.get("gpu_index"), last.get("q")], [hostile, "3", null]);
      await page.waitForFunction(() => document.activeElement.id === "gpus-heading");
      assert.equal(await page.locator("#gpus-heading").innerText(), `GPU 3 of ${hostile}`);
      await page.getByRole("link", { name: "All nodes" }).click();
      await page.locator("table.plain").waitFor();
      const { width: wide, height } = await map.boundingBox();
      await map.click({ position: { x: wide - 3, y: height - 3 } });
      await page.waitForFunction(() => location.hash.includes("node=-") && location.hash.includes("gpu=GPU-"));
      await close(page);
    }
  },

  async "the chart of power has the power budget in force"() {
    const data = join(folder, "budget");
    const config = new URL("../../../../configs/power-budget.toml", import.meta.url).pathname;
    await output("--config", config, "--data-dir", data, "up", "--no-view", "--json", "--speed", "max", "--duration", "8m", "--seed", "7");
    const server = await serve(["dashboard", data]);
    const { budget, edges_ms: edges } = await (await fetch(`${server.url}api/v1/power`)).json();
    assert.deepEqual([budget.power_watts.at(-1), budget.workloads, budget.power_watts.length], [1400, 2, edges.length - 1]);
    assert.ok(budget.power_watts.every((watts) => watts === null || watts === 1400), budget.power_watts.join(" "));
    const page = await open(server.url, { scheme: "dark", width: 400 });
    const chart = page.getByRole("slider", { name: "Power by workload" });
    await chart.waitFor();
    assert.match(await chart.getAttribute("aria-valuetext"), /; power budget of 2 workloads: 1\.40 kW$/);
    await page.locator(".readout .key", { hasText: "power budget, 1.40 kW" }).locator(".dashed").waitFor();
    await chart.focus();
    await page.keyboard.press("End");
    assert.match(await chart.getAttribute("aria-valuetext"), /power budget 1\.40 kW$/);
    await page.locator(".legend-note", { hasText: "limits the caps of the workloads whose controller is power-budget" }).waitFor();
    assert.equal(await page.locator(".heat").count(), 0, "the table shows all workloads");
    await isAccessible(page, "a power budget");
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the legend fits");
    await close(page);
    await server.kill();
    const without = await (await fetch(`${(await archive()).url}api/v1/power`)).json();
    assert.equal(without.budget, null, "no budget, no line");
  },

  async "a stage that has stopped is named, and so is a log in which nothing comes"() {
    const server = await archive();
    const overview = await (await fetch(`${server.url}api/v1/overview`)).json();
    const why = "no window has closed for the last 240 s of samples: `eadt doctor` looks for what stops it";
    const stage = (stage, more = {}) => ({ stage, newest_ms: overview.now_ms, behind_seconds: null, stalled: null, ...more });
    const stages = [stage("samples"), stage("windows", { behind_seconds: 240, stalled: why }), stage("decisions"), stage("actuations", { newest_ms: null })];
    const live = { source: { ...overview.source, kind: "live" }, caught_up: true, origin: "measured", newest_figures_ms: Date.now(), problem: null };
    let sent = { ...overview, ...live, stages };
    const body = () => `event: update\ndata: ${JSON.stringify({ overview: sent })}\n\n`;
    const prepare = (page) => page.route("**/api/v1/events", (route) => route.fulfill({ contentType: "text/event-stream", body: body() }));
    const page = await open(`${server.url}#/pipeline`, { prepare });
    const rows = page.locator("section[aria-labelledby=stages-heading] tbody tr");
    await rows.first().waitFor();
    const texts = await rows.allInnerTexts();
    assert.match(texts[1], /Windows\s+the processor\s+.* UTC\s+4 min behind the samples\s+✗ stalled/);
    assert.match(texts[3], /none yet/);
    assert.equal(await page.locator(".problem code").innerText(), "eadt doctor");
    await isAccessible(page, "a stalled stage");
    await page.goto(`${server.url}#/fleet`);
    await page.locator(".problem").getByText("no window has closed").waitFor();
    await close(page);
    sent = { ...sent, stages: stages.map((row) => ({ ...row, stalled: null })), newest_figures_ms: Date.now() - 600_000 };
    const quiet = await open(`${server.url}#/pipeline`, { prepare });
    await quiet.getByText("no sample and no window for 10 min").waitFor();
    await quiet.goto(`${server.url}#/fleet`);
    await quiet.locator("h1").filter({ hasText: "No sample and no window for 10 min: how the workloads are now is not known" }).waitFor();
    assert.equal(await quiet.locator(".problem").count(), 0);
    await close(quiet);
  },

  async "an archive is shown as of an earlier moment, and its replay is identical"() {
    const server = await archive();
    const ask = async (path, at) => fetch(`${server.url}api/v1/${path}`, at === undefined ? {} : { headers: { "eadt-at-ms": String(at) } });
    const newest = await (await ask("overview")).json();
    const at = newest.first_ms + 3_600_000;
    const then = await (await ask("overview", at)).json();
    assert.equal(then.now_ms, at);
    assert.ok(then.counts.windows > 0 && then.counts.windows < newest.counts.windows, `${then.counts.windows} windows`);
    assert.ok(then.counts.changes < newest.counts.changes, `${then.counts.changes} changes`);
    assert.equal((await ask("overview", "noon")).status, 400);
    const page = await open(`${server.url}#/fleet?sort=name`);
    await page.locator(".moment .badge").getByText("replayed, identical").waitFor();
    await page.locator("#moment").evaluate((slider, at) => {
      slider.value = String(at);
      slider.dispatchEvent(new Event("change", { bubbles: true }));
    }, at);
    await page.waitForFunction((at) => location.hash.includes(`at=${at}`), at);
    const energy = page.locator(".stat").filter({ hasText: "Energy used" }).locator(".value");
    await page.waitForFunction((count) => [...document.querySelectorAll(".stat")].some((stat) => stat.innerText.includes("Changes") && stat.innerText.split("\n").includes(String(count))), then.counts.changes);
    const shown = joules(await energy.innerText());
    assert.ok(Math.abs(shown.value - then.totals.energy_joules) <= shown.error, `${shown.value} for ${then.totals.energy_joules}`);
    await isAccessible(page, "an earlier moment");
    // The moment stays on the way down, until the user goes back to the end.
    await page.locator(".fleet tbody a").first().click();
    await page.locator("a.decision").first().waitFor();
    assert.ok(page.url().includes(`at=${at}`), page.url());
    const times = await page.locator("a.decision time").evaluateAll((times) => times.map((time) => Date.parse(time.dateTime)));
    assert.ok(times.length > 0 && times.every((time) => time <= at), times.join(" "));
    await page.getByRole("button", { name: "To the end" }).click();
    await page.waitForFunction(() => !location.hash.includes("at="));
    await close(page);
  },

  async "what is not known is explained, and recommendations are counted beside changes"() {
    const server = await archive();
    const detail = await (await fetch(`${server.url}api/v1/workloads/eadt/llm-training`)).json();
    const why = "readings of its devices are about 300 s apart: replay with `EADT_PROCESSOR__POWER_GAP_SECONDS=330`";
    const { report } = detail;
    const answer = {
      ...detail,
      why_no_energy: why,
      report: { ...report, energy_joules: null, recommendations: 4, decided_changes: report.changes + 6, notes: [`no energy is known: ${why}`, ...report.notes] },
    };
    const page = await open(`${server.url}#/pipeline`);
    await page.route("**/api/v1/workloads/eadt/llm-training", (route) => route.fulfill({ json: answer }));
    await page.goto(`${server.url}#/workload/eadt/llm-training`);
    const panel = page.locator("section[aria-labelledby=no-energy-heading]");
    assert.equal(await panel.locator("code").innerText(), "EADT_PROCESSOR__POWER_GAP_SECONDS=330");
    assert.equal(await page.locator(".notes li").count(), report.notes.length, "it is shown once");
    const changes = await page.locator(".facts div").filter({ hasText: "Changes" }).innerText();
    assert.match(changes, new RegExp(`${report.changes} \\(.*; 4 recommended, not made; 2 decided, not made\\)`));
    await isAccessible(page, "a workload without energy");
    await close(page);
  },

  async "a fleet without energy shows why, and GPUs that report nothing are not hidden"() {
    const server = await archive();
    const [overview, sharing, fleet] = await Promise.all(["overview", "sharing", "fleet"].map(async (path) => (await fetch(`${server.url}api/v1/${path}`)).json()));
    const unknown = { energy_joules: null, saving_joules: null, saving_ratio: null, saving_ratio_low: null, saving_ratio_high: null, compared_energy_ratio: null, saving_verdict: "unknown", saving_is_whole: false };
    const totals = { ...overview.totals, ...unknown, without_energy: 2, why_no_energy: "no device that is assigned to it reported: name it by `--workload`" };
    const counts = { ...overview.counts, decided_changes: 9, changes: 3, recommendations: 0, reverts: 0 };
    const live = { ...overview, source: { ...overview.source, kind: "live" }, caught_up: true, totals, counts, unanswered: 4, running: 2, power_watts: null, power_known: 0 };
    const rows = fleet.rows.map((row) => ({ ...row, ...unknown, power_watts: null, run_joules_per_sample: null, samples_per_second: 321 }));
    let shown = { ...sharing, devices: [], totals: { ...sharing.totals, gpus: 0 } };
    const prepare = async (page) => {
      await page.route("**/api/v1/events", (route) => route.fulfill({ contentType: "text/event-stream", body: `event: update\ndata: ${JSON.stringify({ overview: live })}\n\n` }));
      await page.route("**/api/v1/fleet*", (route) => route.fulfill({ json: { ...fleet, rows } }));
      await page.route("**/api/v1/sharing*", (route) => route.fulfill({ json: shown }));
      await changeAnswers(page, /api\/v1\/power/, (text) => {
        const power = JSON.parse(text);
        for (const layer of power.layers) layer.power_watts.fill(null);
        return JSON.stringify(power);
      });
    };
    const page = await open(`${server.url}#/fleet`, { width: 400, prepare });
    await page.locator("section[aria-labelledby=no-energy-heading] code").waitFor();
    const stat = (name) => page.locator(".stat").filter({ hasText: name }).first().innerText();
    assert.match(await stat("Energy saved"), /no energy is known/);
    assert.match(await stat("Energy used"), /not known of any workload/);
    assert.match(await stat("Changes"), /none reverted; 4 wait for their outcome; 2 decided, not made/);
    assert.equal(await page.locator(".chart").count(), 0, "no chart without a figure");
    await page.locator(".fleet td:visible", { hasText: "321" }).first().waitFor();
    await isAccessible(page, "a fleet without energy");
    await page.goto(`${server.url}#/sharing`);
    await page.getByText(/no collector reads one here/).waitFor();
    assert.equal(await page.locator(".waiting").count(), 0, "nothing is waited for");
    shown = { ...sharing, totals: { ...sharing.totals, gpus: 4, silent: 2, idle: 0, power_watts: 500, power_known: 2, unassigned_power_watts: 0 } };
    await page.goto(`${server.url}#/fleet`);
    await page.getByText("no GPU without work, 0.0 % of the power of 2 GPUs; 2 GPUs are silent, their power is not known").waitFor();
    await close(page);
  },

  async "a token's namespaces are those that its page offers to change"() {
    const server = await archive();
    for (const [namespaces, buttons] of [[["eadt"], 2], [["lab", "team"], 0]]) {
      const session = { editor: "bob", namespaces, read_only: null };
      const page = await open(`${server.url}#/policies`, { prepare: (page) => page.route("**/api/v1/session", (route) => route.fulfill({ json: session })) });
      await page.getByText(`You may change those of ${namespaces.join(", ")}`).waitFor();
      await page.locator("li.gpu").first().waitFor();
      assert.equal(await page.getByRole("button", { name: "Pause" }).count(), buttons);
      await close(page);
    }
  },

  async "two runs are compared by the figures of report --compare"() {
    const data = await ownRun();
    const other = join(folder, "other-run");
    await output("--data-dir", other, "up", "--no-view", "--json", "--speed", "max", "--duration", "30m", "--seed", "8");
    const csv = (await output("report", data, "--compare", other, "--csv")).trim().split("\n").map((line) => line.split(","));
    const column = (name) => csv[0].indexOf(name);
    const server = await serve(["dashboard", data, "--compare", other]);
    for (const width of [1280, 400]) {
      const page = await open(server.url, { width });
      await page.getByRole("link", { name: "Runs", exact: true }).focus();
      await page.keyboard.press("Enter");
      const rows = page.locator(".runs tbody tr:has(th)");
      await rows.first().waitFor();
      assert.equal(await rows.count(), csv.length - 1);
      for (const [index, wanted] of csv.slice(1).entries()) {
        const cells = await rows.nth(index).locator("th, td").allInnerTexts();
        assert.equal(cells[0].trim(), wanted[column("workload")]);
        const figures = [["other_joules_per_sample", 1, 1], ["joules_per_sample", 2, 1], ["joules_per_sample_change_ratio", 3, 100], ["other_samples_per_second", 4, 1], ["samples_per_second", 5, 1]];
        for (const [name, cell, factor] of figures) {
          const figure = Number(wanted[column(name)]) * factor;
          const shown = number(/[−\d][\d.,]*/.exec(cells[cell])[0]);
          assert.ok(Math.abs(shown - figure) <= Math.max(0.051, Math.abs(figure) * 0.006), `${name}: ${cells[cell]} for ${figure}`);
        }
      }
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `as wide as ${width} px`);
      assert.equal(await page.locator(".runs .tone-good, .runs .tone-bad").count(), 0, "half an hour is not compared with three");
      await isAccessible(page, `two runs at ${width}`);
      await page.keyboard.press("j");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => location.hash.startsWith("#/workload/"));
      await close(page);
    }
    const address = `${server.url}#/runs?${new URLSearchParams({ run: other })}`;
    const answer = await (await fetch(`${server.url}api/v1/compare-run?${new URLSearchParams({ run: other })}`)).json();
    const refused = "the figures of the other are measured, here simulated";
    for (const pair of Object.values(answer.rows[0].figures)) pair.change_ratio = null;
    answer.rows[0].figures.refusals = [refused];
    const page = await open(address, { width: 400, prepare: (page) => page.route("**/api/v1/compare-run*", (route) => route.fulfill({ json: answer })) });
    await page.locator(".runs .refusal").getByText(refused).waitFor();
    await isAccessible(page, "a refused comparison");
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the reason is wrapped");
    await close(page);
    await server.kill();
  },

  async "another controller's decisions are those of backtest"() {
    const data = await ownRun();
    const server = await serve(["dashboard", data]);
    const hindsight = JSON.parse(await output("backtest", "--archive", data, "--controller", "matrix", "--json")).hindsight;
    for (const wanted of hindsight) {
      const question = new URLSearchParams({ workload: wanted.workload, controller: "matrix" });
      const shown = await (await fetch(`${server.url}api/v1/what-if?${question}`)).json();
      for (const figure of ["windows", "windows_as_recorded", "windows_estimated", "windows_unknown", "recorded_joules_per_sample", "joules_per_sample_change"]) {
        assert.deepEqual(shown[figure], wanted[figure], `${figure} of ${wanted.workload}`);
      }
      assert.deepEqual(shown.refused.map((row) => row.reason), wanted.refused.map((row) => row.reason));
      assert.equal(shown.changes.length, wanted.changes.length);
      // None is chosen to begin with: the one that made the record would be compared with itself.
      const page = await open(`${server.url}#/what-if?${new URLSearchParams({ workload: wanted.workload })}`);
      await page.locator("[aria-label=Controller] a").first().waitFor();
      assert.equal(await page.locator("[aria-label=Controller] [aria-current]").count(), 0);
      await page.getByRole("link", { name: "matrix", exact: true }).click();
      await page.locator("#refused-heading").waitFor();
      assert.equal(await page.locator("[aria-labelledby=refused-heading] li").count(), wanted.refused.length);
      const parts = await page.locator("[aria-labelledby=beside-heading] dd").allInnerTexts();
      const [all, ...kinds] = parts.slice(0, 5).map((text) => number(/^[\d,]+/.exec(text)[0]));
      assert.equal(kinds.reduce((sum, windows) => sum + windows, 0), all, "each window is in one row");
      await close(page);
    }
    for (const [question, status] of [["workload=a/b&controller=matrix", 404], ["workload=a/b&controller=x", 400], ["workload=a/b&controller=sm-partition", 400]]) {
      assert.equal((await fetch(`${server.url}api/v1/what-if?${question}`)).status, status, question);
    }
    await server.kill();
  },

  async "a saved run opens from a disk, without any server"() {
    const server = await archive();
    const answer = await fetch(`${server.url}api/v1/export`);
    assert.match(answer.headers.get("content-disposition"), /attachment/);
    const fleet = await (await fetch(`${server.url}api/v1/fleet?sort=name`)).json();
    const file = join(folder, "run.html");
    writeFileSync(file, await answer.text());
    const page = await open(`file://${file}#/fleet?sort=name`, { prepare: (page) => page.context().setOffline(true) });
    const rows = page.locator(".fleet tbody tr");
    await rows.first().waitFor();
    assert.equal(await rows.count(), fleet.rows.length);
    const [first] = fleet.rows;
    const cells = await rows.first().locator("th, td").allInnerTexts();
    assert.equal(cells[0].trim(), first.workload);
    assert.ok(Math.abs(number(/[−\d.]+/.exec(cells[6])[0]) - first.saving_ratio * 100) <= 0.051, cells[6]);
    await rows.first().locator("a").first().click();
    await page.locator(".chart canvas").nth(1).waitFor();
    assert.ok((await page.locator(".notes li").count()) > 0);
    await isAccessible(page, "a saved workload");
    await page.locator("a.decision").nth(1).click();
    await page.locator("#evidence-heading").waitFor();
    for (const [view, there] of [["sharing", ".gpu"], ["policies", ".gpu"], ["pipeline", "#dead-heading"], ["decisions", "a.decision"]]) {
      await page.locator(`nav a[href="#/${view}"]`).click();
      await page.locator(there).first().waitFor();
    }
    await close(page);
    // The file of a large fleet: a strip of what is in it, and a word about the map.
    const text = readFileSync(file, "utf8");
    const [begin, end] = ['<script type="application/json" id="data">', "</script>"];
    const from = text.indexOf(begin) + begin.length;
    const to = text.indexOf(end, from);
    const data = JSON.parse(text.slice(from, to));
    data.fleet.rows = Array.from({ length: 60 }, (_, number) => ({ ...data.fleet.rows[0], workload: `team/train-${number}` }));
    data.sharing.totals.gpus = 200;
    const large = join(folder, "large.html");
    writeFileSync(large, text.slice(0, from) + JSON.stringify(data).replaceAll("<", "\\u003c") + text.slice(to));
    const saved = await open(`file://${large}#/fleet?sort=name`, { prepare: (page) => page.context().setOffline(true) });
    const strip = saved.locator(".heat [role=slider]");
    await strip.waitFor();
    assert.match(await strip.getAttribute("aria-valuetext"), /^60 ended; /);
    await saved.locator('nav a[href="#/sharing"]').click();
    await saved.getByText("The map of all GPUs is not in this file.").waitFor();
    assert.equal(await saved.locator(".cells").count(), 0);
    await close(saved);
  },

  async "hostile names are text"() {
    const data = await ownRun();
    const log = join(folder, "run.jsonl");
    await output("record", "--data-dir", data, "--out", log);
    const hostile = "<img src=x onerror=alert(1)>\u202e'&amp;";
    const name = JSON.stringify(`eadt/${hostile}`).slice(1, -1);
    const longest = `eadt/${"n".repeat(200)}`;
    const text = readFileSync(log, "utf8").replaceAll("eadt/llm-training", name).replaceAll("eadt/vision-pretraining", longest);
    writeFileSync(join(folder, "hostile.jsonl"), text);
    await output("replay", join(folder, "hostile.jsonl"), "--out", join(folder, "hostile"));
    const server = await serve(["dashboard", join(folder, "hostile")]);
    const page = await open(`${server.url}#/fleet?sort=name`, { width: 400 });
    await page.locator(".fleet tbody tr").first().waitFor();
    assert.equal(await page.locator("main img").count(), 0);
    const shown = await page.locator(".fleet tbody th").allInnerTexts();
    assert.deepEqual(shown.map((text) => text.trim()), [`eadt/${hostile.replace("\u202e", "\\u202e")}`, longest]);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the longest name is wrapped");
    await page.locator(".fleet tbody a").first().click();
    await page.locator(".chart canvas").first().waitFor();
    assert.match(await page.locator("h1").innerText(), /^<img src=x/);
    await page.locator("a.decision").first().click();
    await page.locator(".reason").waitFor();
    // A replay's output holds no samples: what the server would answer about a GPU with these names.
    const sharing = await (await fetch(`${server.url}api/v1/sharing`)).json();
    const tenants = [tenantRow(`eadt/${hostile}`, 0.4), tenantRow(longest, 0.4)];
    const more = { node: hostile, gpu_model: hostile, pods: [{ namespace: "a", name: hostile }], unknown: [hostile] };
    const gpu = gpuRow(`GPU-${hostile}`, tenants, more);
    const answer = { ...sharing, totals: { ...sharing.totals, gpus: 1 }, devices: [gpu], matching: 1, unknown: [hostile] };
    await page.route("**/api/v1/sharing*", (route) => route.fulfill({ json: answer }));
    for (const view of ["#/sharing", "#/policies", `#/compare?${new URLSearchParams({ a: `eadt/${hostile}`, b: longest })}`]) {
      await page.goto(`${server.url}${view}`);
      await page.locator(".gpu, .compare tbody tr").first().waitFor();
      assert.ok((await page.locator("main").innerText()).includes("<img src=x"), view);
      assert.equal(await page.locator("main img").count(), 0, view);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${view} is as wide as the screen`);
    }
    await close(page);
    const file = join(folder, "hostile.html");
    writeFileSync(file, await (await fetch(`${server.url}api/v1/export`)).text());
    await server.kill();
    const saved = await open(`file://${file}#/fleet?sort=name`, { width: 400 });
    await saved.locator(".fleet tbody tr").first().waitFor();
    assert.deepEqual((await saved.locator(".fleet tbody th").allInnerTexts()).map((text) => text.trim()), shown.map((text) => text.trim()));
    assert.equal(await saved.locator("main img").count(), 0, "in the saved file");
    await close(saved);
  },
};

const failures = [];

/** What a page shows when its test has failed: its address, the open dialog or else the view. */
async function describe(page) {
  const text = await page.evaluate(() => (document.querySelector("dialog[open]") ?? document.querySelector("main") ?? document.body).innerText).catch(String);
  return `${page.url()} shows:\n${text.slice(0, 3000)}`;
}

/** Runs one test, and prints its result. */
async function run(name, test) {
  const begun = performance.now();
  const state = { problems: [], pages: new Set(), network: [] };
  try {
    await testState.run(state, test);
    assert.deepEqual(state.problems, [], "what the browser saw");
    console.log(`ok      ${name} (${((performance.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    const shown = await Promise.all([...state.pages].map(describe));
    const text = [`FAILED  ${name}: ${error.stack ?? error}`, ...state.problems, ...shown, "network:", ...state.network.slice(-20)].join("\n");
    console.log(text);
    failures.push(text);
  }
}

try {
  // Words on the command line choose tests by their names.
  const wanted = process.argv.slice(2);
  const waiting = Object.entries(tests).filter(([name]) => wanted.every((word) => name.includes(word)));
  const runner = async () => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await run(...next);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, runner));
} finally {
  await browser.close();
  killAll();
  rmSync(folder, { recursive: true, force: true });
}
// Again at the end, where what other tests print does not hide them.
if (failures.length > 0) console.error(failures.join("\n"));
process.exit(failures.length === 0 ? 0 : 1);
