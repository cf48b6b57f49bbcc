/** Texts of callers, tools and servers that mean harm: every page shows them as texts, and nothing of them runs. */

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { Daemon, pages, Visitors } from "./support.mjs";

const TEXTS = [
  `<img src=x onerror=alert(1)>`,
  `</script><script>alert(2)</script>`,
  `"'><svg onload=alert(3)><a href="javascript:alert(4)">x</a>`,
  `\u202Egnp.exe\u2066\u202D`,
  `{{constructor.constructor('alert(5)')()}}`,
  `&lt;script&gt;alert(6)&lt;/script&gt;\u0000\u0007`,
];
const LONG = "long ".repeat(20_000);

let daemon, visitors;

before(async () => {
  const server = path.join(import.meta.dirname, "mcp_server.mjs");
  const quoted = JSON.stringify(JSON.stringify([...TEXTS, LONG.slice(0, 10_000)]));
  const more = `
[schedule]
[memory]
[[a2a.agents]]
name = "bob"
[agents.gus]
allowed_agents = ["bob"]
[mcp.servers.hostile]
command = "${process.execPath}"
args = ["${server}", ${quoted.replaceAll("\u0000", "\\u0000").replaceAll("\u0007", "\\u0007")}]
`;
  [daemon, visitors] = await Promise.all([Daemon.start({ more }), Visitors.start()]);
  await daemon.queue("agent.task.bob");
  for (const [index, text] of [...TEXTS, LONG].entries()) {
    const short = text.slice(0, 60);
    await daemon.call("ana", "schedule_task", { name: short, cron: "0 9 * * *", description: text.slice(0, 4000) });
    await daemon.call("ana", "save_to_working_memory", { key: `notes/${short}`, value: text, category: short });
    await daemon.call("gus", "invoke_agent", { agent_name: "bob", skill: short, message: text });
    const refused = JSON.stringify({ toolCallId: text, toolName: text, arguments: {} });
    daemon.request(refused, { messageId: short, replyTo: "nowhere", headers: { "rb-source": text.slice(0, 1000) } });
    await daemon.call("ana", `tool_${index}`);
    await daemon.call("ana", "echo", { text }, { id: `id-${short}`, correlation: `correlation-${short}` });
    daemon.call(short, short, { [short]: text }, { correlation: `tool-${short}` });
    daemon.call("ana", text, {}, { correlation: `long-${short}` });
  }
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

test("hostile texts do nothing, break no page, and load nothing from elsewhere", async () => {
  const page = await visitors.visitor(daemon);
  const visited = await pages(page, { depth: 3, most: 8 });
  assert.ok(visited.some((address) => address.includes("onerror")), "a page of a hostile name was visited");
  // What each view has of the texts: an entry of an empty list would be no attack.
  for (const [view, table] of [["schedules", "#rows"], ["tasks", "#agents-tasks"], ["memory/ana", "#rows"], ["dead-letters", "main"]]) {
    await page.goto(`${daemon.url}/console/${view}`);
    await page.locator(`${table} tbody`).getByText(TEXTS[0]).first().waitFor();
  }
  const foreign = page.requests.filter((url) => !url.startsWith(`${daemon.url}/`) && !url.startsWith("data:"));
  assert.deepEqual(foreign, []);
  // A name that is no tool has no page, nor has one that no agent can have.
  assert.deepEqual(page.problems.filter((problem) => !/status of 40[04]/.test(problem)), []);
});

test("texts of others cannot change the order of what stands beside them, and are cut with a way to see more", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  const cells = await page.locator("#rows td").evaluateAll((all) =>
    all.filter((cell) => /[\u202A-\u202E\u2066-\u2069]/.test(cell.textContent)).map((cell) => cell.querySelector("bdi") !== null),
  );
  assert.ok(cells.length > 0 && cells.every(Boolean), cells.join());
  const widest = await page.locator("#rows td").evaluateAll((all) => Math.max(...all.map((cell) => cell.textContent.length)));
  assert.ok(widest < 200, `${widest} characters`);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});
