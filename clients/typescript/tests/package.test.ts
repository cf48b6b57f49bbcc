/** The package as others load it. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { eventually, TOKEN, world } from "./support.js";

const root = path.join(import.meta.dirname, "../..");

/** Runs code that imports this package by its name; returns what it writes. */
async function run(code: string, ...options: string[]): Promise<string> {
  return (await promisify(execFile)(process.execPath, [...options, "-e", code], { cwd: root })).stdout;
}

test("it loads as an ES module and with require, with the same names", async () => {
  const read = 'console.log(Object.keys(loaded).filter((name) => name !== "default").sort().join())';
  for (const entry of ["", "/ai", "/anthropic", "/langchain", "/openai"]) {
    const name = `@toolbus/client${entry}`;
    const imported = await run(`import * as loaded from "${name}"; ${read}`, "--input-type=module");
    assert.equal(await run(`const loaded = require("${name}"); ${read}`), imported);
    assert.match(imported, entry ? /\btools\b/ : /\bToolbus\b/);
  }
});

test("the types of the client need no optional package", () => {
  const folder = path.join(root, "dist/esm");
  for (const file of ["index", "bus", "errors", "mcp", "messages", "provider", "running", "schema"]) {
    assert.doesNotMatch(readFileSync(path.join(folder, `${file}.d.ts`), "utf8"), /from "@/);
  }
});

test("the CommonJS build calls tools, over the bus and over MCP", async () => {
  const { broker, daemon } = await world();
  const code = `(async () => {
    const { Toolbus } = require("@toolbus/client");
    for (const bus of [
      await Toolbus.connect("${broker.url()}", { agent: "ana" }),
      await Toolbus.mcp("${daemon.mcp}", "${TOKEN}"),
    ]) {
      console.log(String(await bus.call("echo", { text: "required" })));
      await bus.close();
    }
  })()`;
  assert.equal(await run(code), "required\nrequired\n");
});

/** Runs an example on the broker of the tests. */
async function example(file: string): Promise<string> {
  const { broker } = await world();
  const code = readFileSync(path.join(root, "../../examples", file), "utf8");
  const here = code.replace("amqp://guest:guest@127.0.0.1:5672/%2f", broker.url());
  assert.notEqual(here, code);
  return run(here, "--input-type=module");
}

test("the example says hello", async () => {
  assert.equal(await example("typescript/hello.mjs"), "hello\n");
});

test("the agent of the example gives its model results, and what is to be done about an error", async () => {
  assert.match(await example("agents/agent.mjs"), /^hello\nTool 'ecko' is not registered\. Did you mean 'echo'\?\n$/);
});

test("the example provides tools until it is interrupted", async (context) => {
  const { broker, connect } = await world();
  const folder = path.join(root, "build/example");
  mkdirSync(folder, { recursive: true });
  const code = readFileSync(path.join(root, "../../examples/typescript/provide_tools.ts"), "utf8");
  const here = code.replace("amqp://guest:guest@127.0.0.1:5672/%2f", broker.url());
  assert.notEqual(here, code);
  writeFileSync(path.join(folder, "provide_tools.ts"), here);
  const compiler = path.join(root, "node_modules/.bin/tsc");
  const options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--ignoreConfig"];
  await promisify(execFile)(compiler, [...options, "provide_tools.ts"], { cwd: folder });
  const program = spawn(process.execPath, ["provide_tools.js"], { cwd: folder, stdio: "inherit" });
  context.after(() => program.kill("SIGKILL"));
  await using cara = await connect({ agent: "cara" });
  const names = ["billing.find_invoice", "billing.pay_invoice"];
  await eventually(async () => (await cara.tools("mcp", { names })).length === 2, "the list");
  assert.equal(String(await cara.call("billing.pay_invoice", { number: "2026-07" })), "Paid for cara.");
  const invoice = await cara.call("billing.find_invoice", { number: "2026-07" });
  assert.deepEqual(invoice.json(), { amount: 120, isPaid: true });
  assert.equal((await cara.call("billing.find_invoice", { number: "none" })).isError, true);
  program.kill("SIGINT");
  assert.deepEqual(await once(program, "exit"), [0, null]);
});
