// Starts the program that is tested, and ends it.
import { execFile, spawn } from "node:child_process";
import { createServer } from "node:net";
import { resolve } from "node:path";
import { promisify } from "node:util";

if (!process.env.EADT_TEST_PROGRAM) throw new Error("EADT_TEST_PROGRAM names no program: run this by `cargo xtask test`");
const program = resolve(process.env.EADT_TEST_PROGRAM);

const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(EADT_|KAFKA_)/.test(name)));

/** Runs a command to its end; what it prints. */
export async function output(...words) {
  const { stdout } = await promisify(execFile)(program, words, { env: environment, maxBuffer: 1 << 28 });
  return stdout;
}

const running = new Set();

/** Starts a command that serves the page, in the folder `cwd`; returns when it prints its address. Fails if another process has its port by now. */
export async function serve(words, { port = 0, cwd } = {}) {
  const child = spawn(program, words, {
    cwd,
    env: { ...environment, EADT_DASHBOARD__ADDRESS: `127.0.0.1:${port}`, EADT_HTTP__ADDRESS: "127.0.0.1:0" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  running.add(child);
  let text = "";
  const url = await new Promise((found, failed) => {
    const read = (bytes) => {
      text += bytes;
      const match = /http:\/\/127\.0\.0\.1:\d+\//.exec(text);
      if (match) found(match[0]);
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.on("exit", (code) => failed(new Error(`${words.join(" ")} ended with ${code}: ${text}`)));
  });
  // The page of an archive answers before the archive is read.
  while (words[0] === "dashboard" && (await fetch(url)).status === 503) await new Promise((soon) => setTimeout(soon, 100));
  if (port !== 0 && new URL(url).port !== String(port)) throw new Error(`port ${port} is taken: ${text}`);
  const gone = new Promise((gone) => child.on("exit", gone));
  const kill = async () => {
    child.kill("SIGKILL");
    await gone;
    running.delete(child);
  };
  return { url, kill };
}

export function killAll() {
  for (const child of running) child.kill("SIGKILL");
}

/** Returns a port that is free now, below those that the system gives to others meanwhile. */
export async function freePort() {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 18_000);
    const server = createServer();
    const isFree = await new Promise((found) => server.on("error", () => found(false)).listen(port, "127.0.0.1", () => found(true)));
    if (!isFree) continue;
    await new Promise((closed) => server.close(closed));
    return port;
  }
}
