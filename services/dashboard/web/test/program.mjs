// Starts the program that is tested, and ends it.
import { execFile, spawn } from "node:child_process";
import { createServer } from "node:net";
import { promisify } from "node:util";

const program = process.env.EADT_TEST_PROGRAM;
if (!program) throw new Error("EADT_TEST_PROGRAM names no program: run this by `cargo xtask test`");

const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(EADT_|KAFKA_)/.test(name)));

/** Runs a command to its end; what it prints. */
export async function output(...words) {
  const { stdout } = await promisify(execFile)(program, words, { env: environment, maxBuffer: 1 << 28 });
  return stdout;
}

const running = new Set();

/** Starts a command that serves the page; returns when it says where. */
export async function serve(words, { port = 0 } = {}) {
  const child = spawn(program, words, {
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

/** A port that nobody has now. */
export function freePort() {
  return new Promise((found) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });
}
