/** The package as others load it. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import path from "node:path";
import { test } from "node:test";

const root = path.join(import.meta.dirname, "../..");
const entries = ["", "/ai", "/anthropic", "/langchain", "/openai"].map((entry) => `@toolbus/client${entry}`);

function names(code: string, ...options: string[]): string[] {
  return JSON.parse(execFileSync(process.execPath, [...options, "-e", code], { cwd: root, encoding: "utf8" }));
}

test("it loads as an ES module and with require, with the same names", () => {
  for (const entry of entries) {
    const read = `console.log(JSON.stringify(Object.keys(loaded).filter((name) => name !== "default").sort()))`;
    const imported = names(`import * as loaded from "${entry}"; ${read}`, "--input-type=module");
    const required = names(`const loaded = require("${entry}"); ${read}`);
    assert.deepEqual(imported, required);
    assert(imported.includes(entry === "@toolbus/client" ? "Toolbus" : "tools"));
  }
});
