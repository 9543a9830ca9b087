// Builds dist/ from src/: the page as the program embeds it. `--check` writes nothing and fails if dist/ is not what src/ makes.
import { build } from "esbuild";
import { gunzipSync, gzipSync } from "node:zlib";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = dirname(fileURLToPath(import.meta.url));
const MOST_BYTES = 80_000;

const result = await build({
  absWorkingDir: folder,
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  outdir: "dist",
  write: false,
});
const files = new Map(result.outputFiles.map((file) => [file.path.split(/[\\/]/).pop(), Buffer.from(file.contents)]));
files.set("index.html", readFileSync(join(folder, "src/index.html")));

const check = process.argv.includes("--check");
const stale = [];
let compressed = 0;
mkdirSync(join(folder, "dist"), { recursive: true });
for (const [name, bytes] of files) {
  const path = join(folder, "dist", name);
  const gzip = gzipSync(bytes, { level: 9 });
  compressed += gzip.length;
  if (!check) {
    writeFileSync(path, bytes);
    writeFileSync(`${path}.gz`, gzip);
    continue;
  }
  // Another zlib may compress the same bytes otherwise.
  const same = (read) => {
    try {
      return bytes.equals(read());
    } catch {
      return false;
    }
  };
  if (!same(() => readFileSync(path)) || !same(() => gunzipSync(readFileSync(`${path}.gz`)))) stale.push(name);
}
console.log(`${files.size} files, ${compressed} bytes compressed of at most ${MOST_BYTES}`);
if (compressed > MOST_BYTES) {
  console.error("the page is larger than a first load may be");
  process.exit(1);
}
if (stale.length > 0) {
  console.error(`out of date: ${stale.join(", ")}; run \`cargo xtask web\` and commit services/dashboard/web/dist`);
  process.exit(1);
}
