/** What agents leave with the daemon: schedules, tasks for others, working memory, and dead letters. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Daemon, eventually, follow, READER, Visitors } from "./support.mjs";

const more = `
[schedule]
[memory]
max_entries = 50
[subagents.pools]
thinkers = ["worker"]
[[a2a.agents]]
name = "bob"
[[rest.endpoints]]
name = "get_absent"
description = "Has no server"
url = "http://127.0.0.1:1/"
[agents.gus]
allowed_agents = ["bob"]
`;
let daemon, idle, visitors;

before(async () => {
  [daemon, idle, visitors] = await Promise.all([Daemon.start({ more }), Daemon.start(), Visitors.start()]);
});
after(async () => {
  await visitors?.close();
  await Promise.all([daemon?.close(), idle?.close()]);
});

/** The texts of the cells of each row. */
const cells = (page, table) =>
  page.locator(`${table} tbody tr`).evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim())));

async function done(call) {
  const reply = await call;
  assert.ok(reply.content && !reply.isError, JSON.stringify(reply));
  return reply.content;
}

/** Sends a request whose dead letter has this id; returns a page that lists it. */
async function dead(id, body, options = {}) {
  daemon.request(body, { messageId: id, headers: { "rb-source": "ana" }, ...options });
  const page = await visitors.visitor(daemon, { path: "/dead-letters" });
  const row = page.locator("tbody").getByText(id, { exact: true });
  await eventually(async () => (await page.reload()) && (await row.count()), `the letter ${id}`);
  return page;
}

test("scheduled tasks are listed with agent, tool and next times, and an operator cancels one", async () => {
  const call = { name: "calls", cron: "0 9 * * *", timezone: "UTC", description: "By a call", tool: { name: "echo", arguments: { text: "x" } } };
  await done(daemon.call("ana", "schedule_task", call));
  await done(daemon.call("gus", "schedule_task", { name: "reminds", cron: "0 0 29 2 *", run_once: true, description: "Leap" }));
  const page = await visitors.visitor(daemon, { path: "/schedules?agent=ana" });
  await page.locator("#rows time", { hasText: /^in / }).first().waitFor();
  const [[name, agent, then, next, cron, last, , action], ...others] = await cells(page, "#rows");
  assert.deepEqual([name, agent, then, cron, last, action], ["calls", "ana", "calls echo By a call", "0 9 * * * UTC", "never", "Cancel"]);
  assert.match(next, /^in \d+ (h|min|s), in [12] d, in [23] d$/);
  assert.match(await page.locator("#rows time").first().getAttribute("title"), /T09:00:00Z$/);
  assert.deepEqual(others, []);
  const reader = await visitors.visitor(daemon, { path: "/schedules", token: READER });
  assert.deepEqual((await cells(reader, "#rows")).map(([task, , , , , , , button]) => [task, button]), [["calls", ""], ["reminds", ""]]);
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.waitForURL("**/console/schedules");
  assert.deepEqual((await cells(page, "#rows")).map(([task]) => task), ["reminds"]);
  assert.doesNotMatch(await done(daemon.call("ana", "list_scheduled_tasks")), /calls/);
});

test("a scheduled call that could not begin waits, and the list says until when and why", async () => {
  const call = { name: "tries", cron: "* * * * * *", description: "In vain", run_once: true, tool: { name: "get_absent" } };
  await done(daemon.call("ana", "schedule_task", call));
  const page = await visitors.visitor(daemon, { path: "/schedules?agent=ana" });
  const row = page.locator("#rows tr", { hasText: "tries" });
  await row.getByText(/waits, next try/).waitFor();
  await row.getByText("its call failed: execution_failed").waitFor();
  assert.match((await cells(page, "#rows"))[0][3], /^▲ waits, next try in \d+ s/);
  await row.getByRole("button", { name: "Cancel" }).click();
  await row.waitFor({ state: "detached" });
});

test("tasks for sub-agents and for other agents are listed with their states, and without their texts", async () => {
  const [offered, handed] = [await daemon.queue("subagent.task.thinkers"), await daemon.queue("agent.task.bob")];
  await done(daemon.call("ana", "spawn_subagent", { description: "Think of a secret text" }));
  await done(daemon.call("gus", "invoke_agent", { agent_name: "bob", skill: "add", message: "Add a secret text" }));
  await Promise.all([offered(), handed()]);
  const page = await visitors.visitor(daemon, { path: "/tasks" });
  const [[id, from, pool, worker, state, given, until]] = await cells(page, "#subagents");
  assert.match(id, /^[0-9a-f]{24}$/);
  assert.deepEqual([from, pool, worker, state], ["ana", "thinkers", "", "▲ offered"]);
  assert.match(`${given}, ${until}`, /ago|now/);
  assert.match(until, /^in \d+ min$/);
  const [[, caller, agent, skill, status]] = await cells(page, "#agents-tasks");
  assert.deepEqual([caller, agent, skill, status], ["gus", "bob", "add", "▲ submitted"]);
  assert.doesNotMatch(await page.content(), /secret text/);
  await done(daemon.call("ana", "cancel_subagent", { task_id: id }));
  await page.locator("#subagents").getByText("failed").waitFor();
  await page.getByLabel("Agent", { exact: true }).fill("bob");
  await follow(page.getByRole("button", { name: "Filter" }));
  await page.locator("#subagents").getByText("There is no task.").waitFor();
  assert.equal((await cells(page, "#agents-tasks")).length, 1);
});

test("working memory is shown as sizes and keys, and never as texts", async () => {
  await done(daemon.call("ana", "save_to_working_memory", { key: "patrol/plan", value: "a secret text", category: "plans" }));
  await done(daemon.call("ana", "save_to_working_memory", { key: "patrol/more", value: "x" }));
  const page = await visitors.visitor(daemon, { path: "/memory" });
  assert.deepEqual(await cells(page, "#shares"), [["ana", "2 of 50", "553 bytes of 64.0 MiB"]]);
  assert.deepEqual(await cells(page, "#namespaces"), [["ana", "patrol", "2 of 1000"]]);
  await follow(page.locator("#namespaces").getByRole("link", { name: "ana" }));
  const [, [key, category, characters, , ends]] = await cells(page, "#rows");
  assert.deepEqual([key, category, characters], ["patrol/plan", "plans", "13"]);
  assert.match(ends, /^in (19|20) min$/);
  assert.doesNotMatch(await page.content(), /secret text/);
});

test("a dead letter is shown and stays, is replayed once its reply has a queue, and one is dropped", async () => {
  const call = JSON.stringify({ toolCallId: "undelivered", toolName: "echo", arguments: { text: "a secret text" } });
  const address = "tool.result.later";
  await dead("undelivered", call, { replyTo: address });
  const page = await dead("malformed", "no request");
  const rows = async () => (await cells(page, "main")).map(([queue, reason, agent, tool]) => [queue, reason, agent, tool]);
  const all = [["invoke", "undeliverable answer", "ana", "echo"], ["invoke", "malformed request", "ana", ""]];
  assert.deepEqual(await rows(), all);
  await follow(page.getByRole("link", { name: "Reload" }));
  assert.deepEqual(await rows(), all, "they stay where they are");
  assert.doesNotMatch(await page.content(), /secret text/);
  const overview = await visitors.visitor(daemon);
  await overview.locator("#facts dd", { hasText: /^▲ 2$/ }).getByRole("link").click();
  await overview.waitForURL("**/console/dead-letters");
  const reader = await visitors.visitor(daemon, { path: "/dead-letters", token: READER });
  assert.equal(await reader.locator("main tbody tr").count(), 2);
  assert.equal(await reader.getByRole("button", { name: /Replay|Drop/ }).count(), 0);

  await page.getByLabel("Reason").selectOption("undeliverable_answer");
  await page.getByRole("button", { name: "Filter" }).click();
  const replay = page.locator("tbody").getByRole("button", { name: "Replay" });
  await replay.click();
  await page.getByText("dead letters replayed: 0; left: 1, because no queue takes messages for it").waitFor();
  const delivered = await daemon.queue(address);
  await page.goBack();
  await replay.click();
  await page.getByText("No dead letter has all of this.").waitFor();
  assert.equal(JSON.parse((await delivered()).content.toString()).content, "a secret text");
  assert.equal(new URL(page.url()).searchParams.get("reason"), "undeliverable_answer");

  await page.getByRole("link", { name: "Show all" }).click();
  await dead("another", "no request");
  await page.locator("tbody").getByRole("button", { name: "Drop" }).click();
  await page.locator("tbody").getByText("another").waitFor();
  await dead("a-third", "no request");
  await page.getByRole("link", { name: "Reload" }).click();
  await page.getByText("Drop these 2").click();
  await page.locator("#all").getByRole("button", { name: "Drop" }).click();
  await page.getByText("No message is dead: all were answered or delivered.").waitFor();
});

test("a broker that is away is said on the page of dead letters", async () => {
  idle.bus.cut();
  const page = await visitors.visitor(idle, { path: "/dead-letters" });
  await page.locator(".problem").getByText("no connection to the broker").waitFor();
  idle.bus.refuses = false;
});

for (const [path, sentence, section] of [
  ["/schedules", "Agents schedule nothing", "[schedule]"],
  ["/tasks", "No agent gives tasks to sub-agents", "[subagents]"],
  ["/tasks", "No agent gives tasks to others", "[a2a]"],
  ["/memory", "There is no working memory", "[memory]"],
]) {
  test(`${path} says which section of the configuration turns it on: ${section}`, async () => {
    const page = await visitors.visitor(idle, { path });
    await page.getByText(sentence).getByText(section).waitFor();
  });
}

test("views of what no agent has left yet say so", async () => {
  const [fresh, reader] = [await Daemon.start({ more }), { token: READER }];
  try {
    for (const [path, sentence] of [
      ["/schedules", "No task is scheduled."],
      ["/tasks", "There is no task."],
      ["/memory", "Nothing is kept."],
      ["/dead-letters", "No message is dead: all were answered or delivered."],
    ]) {
      const page = await visitors.visitor(fresh, { path, ...reader });
      await page.getByText(sentence).first().waitFor();
    }
  } finally {
    await fresh.close();
  }
});
