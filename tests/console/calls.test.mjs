/** The page of a call: calls that its tool made. */

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { Daemon, Visitors } from "./support.mjs";

let daemon, visitors;

before(async () => {
  const more = `
[pipelines]
[mcp.servers.notes]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "mcp_server.mjs")}", '["Keeps notes", "Notes", "1.4"]']
`;
  [daemon, visitors] = await Promise.all([Daemon.start({ more }), Visitors.start()]);
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

/** Runs a pipeline with these steps, each as `[tool, arguments]`. */
async function pipeline(id, steps) {
  const written = steps.map(([tool, args], index) => ({ id: `s${index}`, tool, params: args, on_failure: "continue" }));
  const definitions = [{ description: "a test", steps: written }];
  return daemon.call("ana", "spawn_wisps", { definitions }, { id });
}

test("the page of a pipeline has its calls as a tree, and each leads to its page and back", async () => {
  const nested = { server_name: "notes", tool_name: "tool_0" };
  await pipeline("outer", [["echo", { text: "one" }], ["mcp_invoke_tool", nested], ["absent", {}]]);
  const page = await visitors.visitor(daemon, { path: "/calls/outer" });
  const tree = page.locator("#inner > .tree");
  const names = (list) => list.locator("xpath=./li/a").allTextContents();
  assert.deepEqual(await names(tree), ["echo", "mcp_invoke_tool", "absent"]);
  assert.deepEqual(await names(tree.locator("li .tree")), ["tool_0"]);
  assert.match(await tree.locator("li").first().innerText(), /^echo ● ok [\d.]+ (µs|ms|s)$/);
  await tree.locator(":scope > li").last().getByText("tool not found").waitFor();
  await tree.getByRole("link", { name: "tool_0" }).click();
  for (const outer of ["mcp_invoke_tool", "spawn_wisps"]) {
    await page.locator("#facts dt", { hasText: "Called by" }).waitFor();
    await page.locator("#facts").getByRole("link", { name: outer }).click();
  }
  await page.waitForURL("**/console/calls/outer");
  assert.equal(await page.locator("#facts dt", { hasText: "Called by" }).count(), 0);
});
