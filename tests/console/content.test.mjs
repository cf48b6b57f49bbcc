/** What each view shows after real traffic, and before any. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import path from "node:path";
import { after, before, test } from "node:test";
import { Daemon, follow, READER, Visitors } from "./support.mjs";

let daemon, idle, visitors, release;
const held = new Promise((resolve) => (release = resolve));
const backend = createServer(async (_, response) => {
  await held;
  response.end("at last");
});

before(async () => {
  backend.listen(0, "127.0.0.1").unref();
  await once(backend, "listening");
  const more = `
[[rest.endpoints]]
name = "get_slow"
description = "Answers when the test lets it"
url = "http://127.0.0.1:${backend.address().port}/"
[mcp.servers.notes]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "mcp_server.mjs")}", '["Keeps notes", "Notes", "1.4"]']
[mcp.servers.broken]
command = "/bin/false"
`;
  [daemon, idle, visitors] = await Promise.all([Daemon.start({ more }), Daemon.start(), Visitors.start()]);
  await daemon.call("ana", "echo", { text: "hello" }, { id: "good", correlation: "of-the-good-one" });
  await daemon.call("bea", "echo", { text: "hello" }, { id: "refused" });
});
after(async () => {
  await visitors?.close();
  await Promise.all([daemon?.close(), idle?.close()]);
});

test("the overview says that calls are taken, and what failed by agent and tool", async () => {
  const page = await visitors.visitor(daemon);
  await page.getByText("Ready: calls are taken.").waitFor();
  const failures = page.locator("#failures tr", { has: page.getByRole("link", { name: "bea" }) });
  await failures.getByRole("link", { name: "echo" }).waitFor();
  await page.locator("#busiest").getByRole("link", { name: "ana" }).waitFor();
});

test("the overview has the state of broker, store and MCP servers, which lead to their pages", async () => {
  const page = await visitors.visitor(daemon);
  const fact = (name) => page.locator(`#facts dt:text-is("${name}") + dd`);
  await fact("MCP servers").getByText("1 of 2 ready").waitFor();
  assert.match(await fact("Broker").innerText(), /^● connected/);
  assert.equal(await fact("Store").innerText(), "● SQLite");
  await fact("MCP servers").locator(".mark.slow").waitFor();
  assert.equal(await fact("Sandbox").count(), 0, "the daemon runs no scripts");
  await fact("MCP servers").getByRole("link").click();
  await page.waitForURL("**/console/servers");
});

test("the list of calls has one line for each, newest first, with outcome and times", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  const rows = page.locator("#rows tbody tr");
  assert.deepEqual(await rows.evaluateAll((all) => all.map((row) => row.dataset.id)), ["refused", "good"]);
  const [, agent, tool, outcome, total, wait, run] = await rows.last().locator("td").allTextContents();
  assert.deepEqual([agent, tool, outcome], ["ana", "echo", "● ok"]);
  for (const time of [total, wait, run]) assert.match(time, /^[\d.]+ (µs|ms|s)$/);
});

test("filters are in the address, and the form shows them", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await page.getByLabel("Agent").fill("bea");
  await page.getByLabel("Status").selectOption("failed");
  await follow(page.getByRole("button", { name: "Filter" }));
  const { searchParams } = new URL(page.url());
  assert.deepEqual([searchParams.get("agent"), searchParams.get("status")], ["bea", "failed"]);
  const other = await visitors.visitor(daemon, { path: `/calls?${searchParams}` });
  assert.deepEqual(
    await other.locator("#rows tbody tr").evaluateAll((all) => all.map((row) => row.dataset.id)),
    ["refused"],
  );
  assert.equal(await other.getByLabel("Agent").inputValue(), "bea");
  assert.equal(await other.getByLabel("Status").inputValue(), "failed");
});

test("calls are filtered by the source of their tool, and by every code of the wire", async () => {
  await daemon.call("ana", "tool_0", {}, { id: "of-a-server" });
  const page = await visitors.visitor(daemon, { path: "/calls" });
  const codes = await page.getByLabel("Status").locator("option").allTextContents();
  for (const code of ["tool not found", "invalid arguments", "execution failed", "overloaded", "cancelled", "auth required"]) {
    assert.ok(codes.includes(code), code);
  }
  await page.getByLabel("Source").selectOption("mcp:notes");
  await follow(page.getByRole("button", { name: "Filter" }));
  const ids = await page.locator("#rows tbody tr").evaluateAll((all) => all.map((row) => row.dataset.id));
  assert.deepEqual(ids, ["of-a-server"]);
  assert.equal(new URL(page.url()).searchParams.get("source"), "mcp:notes");
  assert.equal(await page.getByLabel("Source").inputValue(), "mcp:notes");
});

test("the search finds a call by its correlation id", async () => {
  const page = await visitors.visitor(daemon);
  await page.keyboard.press("/");
  await page.keyboard.type("of-the-good-one");
  await page.keyboard.press("Enter");
  await page.locator('tr[data-id="good"] a').first().click();
  await page.waitForURL("**/console/calls/good");
});

test("the page of a call has its ids, and its steps as bars that follow each other", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls/good" });
  const facts = await page.locator("#facts").innerText();
  for (const part of ["echo", "ana", "ok", "good", "of-the-good-one", `${daemon.name}.invoke`]) {
    assert.ok(facts.includes(part), part);
  }
  const bars = await page.locator("#steps rect").evaluateAll((all) =>
    all.map((bar) => ({ from: bar.x.baseVal.value, width: bar.width.baseVal.value })),
  );
  assert.ok(bars.length >= 4, `${bars.length} steps`);
  for (const [index, { from, width }] of bars.entries()) {
    assert.ok(from >= (bars[index - 1]?.from ?? 0) && from + width <= 101, JSON.stringify(bars));
  }
});

test("an operator cancels a call that runs, and a reader has no such button", async () => {
  const replied = daemon.call("bea", "get_slow", {}, { id: "too-long" });
  const page = await visitors.visitor(daemon, { path: "/calls/too-long" });
  await page.getByText("goes on").waitFor();
  const reader = await visitors.visitor(daemon, { path: "/calls/too-long", token: READER });
  await reader.getByText("goes on").waitFor();
  assert.equal(await reader.getByRole("button", { name: "Cancel" }).count(), 0);
  const agent = await visitors.visitor(daemon, { path: "/agents/bea" });
  await agent.locator("#rules").getByText(/^1 of \d+ running/).waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await replied).code, "cancelled");
  await agent.locator("#rules").getByText(/^0 of \d+ running/).waitFor();
  await page.locator("#facts").getByText("cancelled").waitFor();
  await page.locator("#cancel button").waitFor({ state: "detached" });
  await page.getByRole("link", { name: "Call the tool again" }).click();
  assert.equal(await page.getByLabel("As agent").inputValue(), "bea");
});

test("the page of a call that runs follows it to its end", async () => {
  const replied = daemon.call("ana", "get_slow", {}, { id: "running" });
  const list = await visitors.visitor(daemon, { path: "/calls?status=in_flight" });
  await list.locator('tr[data-id="running"] a').first().click();
  await list.getByText("goes on").waitFor();
  release();
  await replied;
  await list.locator("#facts").getByText("ok").waitFor();
  await list.locator("#steps").getByText("total").waitFor();
});

test("MCP servers are shown with their tools, and one that fails with its error", async () => {
  const page = await visitors.visitor(daemon, { path: "/servers" });
  await page.locator("tr", { hasText: "notes" }).getByText("ready").waitFor();
  await page.locator("tr", { hasText: "broken" }).locator(".mark.failed").waitFor();
  await page.getByRole("link", { name: "notes" }).click();
  await page.locator("#tools").getByRole("link", { name: "tool_0" }).waitFor();
  await page.locator("#stderr").getByText("Keeps notes").waitFor();
});

test("a tool of a server is tried from its page, and a reader has no such link", async () => {
  const page = await visitors.visitor(daemon, { path: "/servers/notes" });
  await page.locator("#tools li", { hasText: "tool_1" }).getByRole("link", { name: "try" }).click();
  await page.waitForURL("**/console/tools/tool_1#call");
  await page.getByLabel("As agent").fill("ana");
  await page.getByRole("button", { name: "Call", exact: true }).click();
  await page.locator(".result pre").getByText("Keeps notes").waitFor();
  const reader = await visitors.visitor(daemon, { path: "/servers/notes", token: READER });
  await reader.locator("#tools").getByRole("link", { name: "tool_1" }).waitFor();
  assert.equal(await reader.getByRole("link", { name: "try" }).count(), 0);
});

test("the page of a tool has how often it was called, and how many of the calls failed", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools/current_time" });
  const fact = page.locator('dt:text-is("Of the last thousand") + dd');
  assert.equal(await fact.innerText(), "0 calls");
  for (const args of [{}, { timezone: 1 }, {}, {}]) await daemon.call("ana", "current_time", args);
  await page.reload();
  assert.equal(await fact.innerText(), "4 calls, 1 failed, 25.0 %");
  await page.goto(`${daemon.url}/console/tools`);
  const row = page.locator("#rows tr", { has: page.getByRole("link", { name: "current_time" }) });
  assert.deepEqual((await row.locator("td").allInnerTexts()).slice(6, 8), ["4", "25.0"]);
  await page.goBack();
  await follow(page.getByRole("link", { name: "1 failed" }));
  assert.equal(await page.locator("#rows tbody tr").count(), 1);
});

test("an operator restarts a server from its page, and a reader has no such button", async () => {
  const page = await visitors.visitor(daemon, { path: "/servers/notes" });
  const process = page.locator("dt:has-text('Process') + dd");
  const before = await process.textContent();
  await page.getByRole("button", { name: "Restart" }).click();
  await page.waitForFunction(
    (old) => [...document.querySelectorAll("dt")].some((dt) => dt.textContent === "Process" && dt.nextSibling.textContent !== old),
    before,
  );
  const reader = await visitors.visitor(daemon, { path: "/servers/notes", token: READER });
  assert.equal(await reader.getByRole("button", { name: "Restart" }).count(), 0);
});

test("tools are found by name, source and agent, and each has a page", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools" });
  const names = () => page.locator("#rows tbody td:first-child").allTextContents();
  assert.ok((await names()).includes("echo"));
  await page.getByLabel("That this agent may use").fill("bea");
  await follow(page.getByRole("button", { name: "Filter" }));
  assert.deepEqual(await names(), ["get_slow"]);
  assert.equal(new URL(page.url()).searchParams.get("agent"), "bea");
  await page.getByRole("link", { name: "get_slow" }).click();
  await page.getByText("Answers when the test lets it").first().waitFor();
});

test("an operator calls a tool as an agent, and sees the result or the refusal", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools/echo" });
  const call = async (agent) => {
    await page.getByLabel("As agent").fill(agent);
    await page.locator('[name="argument.text"]').fill("<b>of the console</b>");
    await page.getByRole("button", { name: "Call", exact: true }).click();
    await page.getByRole("heading", { name: "Result" }).waitFor();
  };
  await call("ana");
  await page.locator(".result pre").getByText("<b>of the console</b>").waitFor();
  await call("bea");
  await page.locator(".result .mark.failed").waitFor();
  await page.locator(".result").getByRole("link", { name: "Explain" }).click();
  await page.getByText("The call would be refused.").waitFor();
});

test("what an operator switches off is refused at once, until it is switched on", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools/echo" });
  await page.getByRole("button", { name: "Switch off" }).click();
  const on = page.getByRole("button", { name: "Switch on" });
  await on.waitFor();
  const refused = await daemon.call("ana", "echo", { text: "off" });
  assert.ok(refused.code, JSON.stringify(refused));
  await on.click();
  await page.getByRole("button", { name: "Switch off" }).waitFor();
  const { content } = await daemon.call("ana", "echo", { text: "on" });
  assert.equal(content, "on");
});

test("agents are listed with what they may use, and an agent's page says why", async () => {
  const page = await visitors.visitor(daemon, { path: "/agents" });
  await page.locator("#rows").getByRole("link", { name: "bea" }).click();
  const row = page.locator("tr", { has: page.getByRole("link", { name: "echo" }) });
  await row.locator(".mark.off").waitFor();
  assert.match(await row.textContent(), /allowed_tools/);
});

for (const [path, sentence, step] of [
  ["/calls", "No call has been made since the daemon's start.", "toolbus call echo text=hi"],
  ["/calls?agent=nobody", "No call of the last thousand has all of this.", "Show all"],
  ["/tools?text=nothing", "No tool has all of this.", "Show all"],
  ["/agents?text=nobody", "No agent has this in its name.", "Show all"],
  ["/servers", "There is no MCP server.", "toolbus mcp add"],
  ["", "No call has failed in the last hour.", "Ready: calls are taken."],
]) {
  test(`${path || "the overview"} without content says so, and what comes next`, async () => {
    const page = await visitors.visitor(idle, { path });
    await page.getByText(sentence).waitFor();
    await page.getByText(step).first().waitFor();
  });
}

test("a call that is not known, and an address that is no page, are told apart", async () => {
  const page = await visitors.visitor(idle, { path: "/calls/unknown" });
  await page.getByText("No call of the last thousand has this id.").waitFor();
  assert.equal((await page.goto(`${idle.url}/console/nothing`)).status(), 404);
  await page.getByText("There is no such page.").waitFor();
});
