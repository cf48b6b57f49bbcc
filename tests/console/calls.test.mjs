/** The page of a call: calls that its tool made, gates, arguments and result. */

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { ADMIN, Daemon, READER, Visitors } from "./support.mjs";

let daemon, unkept, visitors;

before(async () => {
  const more = `
[pipelines]
[guides]
[mcp.servers.notes]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "mcp_server.mjs")}", '["Keeps ${ADMIN}", "Notes", "1.4"]']
`;
  const http = 'console_payloads = "redacted"';
  const starting = [Daemon.start({ more, http }), Daemon.start({ more: "[agents.cleo]" }), Visitors.start()];
  [daemon, unkept, visitors] = await Promise.all(starting);
});
after(async () => {
  await visitors?.close();
  await Promise.all([daemon?.close(), unkept?.close()]);
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

test("arguments and results are not kept unless the configuration says so", async () => {
  await unkept.call("ana", "echo", { text: "confidential" }, { id: "unkept" });
  const page = await visitors.visitor(unkept, { path: "/calls/unkept" });
  await page.locator("#payloads").getByText("http.console_payloads").waitFor();
  assert.ok(!(await page.content()).includes("confidential"));
});

test("arguments are shown as JSON and results as text, without secrets, and markup does nothing", async () => {
  const markup = "<img src=x onerror=alert(1)></pre><script>alert(2)</script>";
  const text = `${markup} ${ADMIN}`;
  assert.equal((await daemon.call("ana", "echo", { text }, { id: "kept" })).isError, false);
  const page = await visitors.visitor(daemon, { path: "/calls/kept" });
  const clean = `${markup} [redacted]`;
  for (const [name, shown] of [["Arguments", JSON.stringify({ text: clean }, null, 2)], ["Result", clean]]) {
    const block = page.locator("#payloads details", { has: page.getByText(name, { exact: true }) });
    assert.equal(await block.locator("pre").isVisible(), false);
    await block.locator("summary").click();
    assert.equal(await block.locator("pre").innerText(), shown);
  }
  assert.equal(await page.locator("#payloads :is(img, script)").count(), 0);
  assert.deepEqual(page.problems, []);
  assert.ok(!(await page.content()).includes(ADMIN));
});

test("a call is made again with its arguments, where they were kept", async () => {
  await daemon.call("ana", "echo", { text: "once more" }, { id: "first" });
  const page = await visitors.visitor(daemon, { path: "/calls/first" });
  await page.getByRole("link", { name: "Call the tool again" }).click();
  await page.getByText("The arguments are those of that call.").waitFor();
  assert.ok(!page.url().includes("once"), "addresses are kept in histories");
  assert.equal(await page.getByLabel("As agent").inputValue(), "ana");
  assert.deepEqual(JSON.parse(await page.getByLabel("Arguments as JSON").inputValue()), { text: "once more" });
  await page.getByRole("button", { name: "Call with this JSON" }).click();
  await page.locator(".result pre").getByText("once more").waitFor();

  await daemon.call("ana", "echo", { text: "long ".repeat(2_000) }, { id: "long" });
  await page.goto(`${daemon.url}/console/calls/long`);
  await page.getByRole("link", { name: "Call the tool again" }).click();
  await page.getByText("only their beginning was kept").waitFor();

  await unkept.call("ana", "echo", { text: "confidential" }, { id: "again" });
  const other = await visitors.visitor(unkept, { path: "/calls/again" });
  await other.getByRole("link", { name: "Call the tool again" }).click();
  await other.getByText('The arguments of that call were not kept: http.console_payloads is "none".').waitFor();
  const reader = await visitors.visitor(unkept, { path: "/calls/again", token: READER });
  await reader.locator("#facts").waitFor();
  assert.equal(await reader.getByRole("link", { name: "Call the tool again" }).count(), 0);
});

test("a repeated call has its key, and that its reply was given before", async () => {
  const headers = { "rb-idempotency-key": "order-7" };
  for (const id of ["paid", "paid-again"]) await daemon.call("ana", "tool_1", {}, { id, headers });
  const page = await visitors.visitor(daemon, { path: "/calls/paid-again" });
  const fact = (name) => page.locator(`#facts dt:text-is("${name}") + dd`);
  assert.match(await fact("Outcome").innerText(), /ok \(repeated reply\)$/);
  assert.match(await fact("Idempotency key").innerText(), /^order-7/);
  assert.equal(await fact("Attempt").innerText(), "first");
  await page.goto(`${daemon.url}/console/calls/paid`);
  assert.match(await fact("Outcome").innerText(), /ok$/);
});

test("the page of a tool has the guides to its use, as models get them", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools/spawn_wisps" });
  const guide = page.locator("details", { has: page.locator("summary", { hasText: "pipelines" }) });
  await guide.locator("summary").click();
  await guide.locator("pre").getByText("spawn_wisps").first().waitFor();
  await page.goto(`${daemon.url}/console/tools/echo`);
  assert.equal(await page.getByRole("heading", { name: "Guides" }).count(), 0);
});

test("the result of a call that failed is seen at once", async () => {
  await daemon.call("ana", "echo", { text: 1 }, { id: "failed" });
  const page = await visitors.visitor(daemon, { path: "/calls/failed" });
  const shown = await page.locator("#payloads details").evaluateAll((all) => all.map((one) => [one.firstChild.textContent, one.open]));
  assert.deepEqual(shown, [["Arguments", false], ["Result", true]]);
});

test("a secret that a tool returns is not shown, and the API has no payloads", async () => {
  const call = { server_name: "notes", tool_name: "tool_0" };
  await daemon.call("ana", "mcp_invoke_tool", call, { id: "leaked" });
  const page = await visitors.visitor(daemon, { path: "/calls/leaked" });
  await page.locator("#inner").getByRole("link", { name: "tool_0" }).click();
  await page.locator("#facts dt", { hasText: "Called by" }).waitFor();
  await page.getByText("Result", { exact: true }).click();
  await page.locator("#payloads pre").getByText("Keeps [redacted]").waitFor();
  assert.ok(!(await page.content()).includes(ADMIN));
  const headers = { authorization: `Bearer ${ADMIN}` };
  const answer = await fetch(`${daemon.url}/v1/calls?id=leaked`, { headers }).then((response) => response.text());
  assert.ok(answer.includes("tool_0") && !answer.includes("Keeps") && !answer.includes("server_name"), answer);
});

test("the gates of a call have ticks up to the one that refused it, with its words", async () => {
  await daemon.call("ana", "echo", { text: 1 }, { id: "of-wrong-kind" });
  await daemon.call("bea", "echo", { text: "hello" }, { id: "not-hers" });
  await daemon.call("ana", "echo", { text: "hello" }, { id: "in-order" });
  const page = await visitors.visitor(daemon);
  const shown = async (id) => {
    await page.goto(`${daemon.url}/console/calls/${id}`);
    const words = await page.locator("#gates pre").allTextContents();
    return [await page.locator("#gates li").allTextContents(), ...words];
  };
  const [wrong, words] = await shown("of-wrong-kind");
  assert.deepEqual(wrong, ["● resolve", "■ arguments"]);
  assert.match(words, /text.*"string"/s);
  assert.deepEqual((await shown("not-hers"))[0], ["■ resolve"]);
  const all = ["resolve", "arguments", "recipients", "breaker", "rate limit", "permit"];
  assert.deepEqual(await shown("in-order"), [all.map((gate) => `● ${gate}`)]);
});

test("a check of the files says which agents would gain or lose which tools", async () => {
  unkept.rewrite('[agents.cleo]\nallowed_tools = ["get_*"]\n[agents.dan]');
  const page = await visitors.visitor(unkept, { path: "/configuration/check" });
  const rows = page.locator("#access tbody tr");
  const shown = await rows.evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.innerText)));
  const tools = "convert_time\ncurrent_time\necho";
  assert.deepEqual(shown, [["cleo", "", tools], ["dan", tools, ""]]);
});
