/** What operators do: pins, values and reloads of the configuration, breakers, switches; and that the audit has it. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { ADMIN, Daemon, eventually, follow, READER, Visitors } from "./support.mjs";

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const DRAWING = Buffer.from(`<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`).toString("base64");
const folder = mkdtempSync(path.join(tmpdir(), "toolbus-audit-"));
const audit = path.join(folder, "audit.jsonl");
let daemon, visitors;

/** Sections of the configuration, with this description of the tool that changes. */
function sections(description, further = "") {
  const texts = JSON.stringify(["Keeps notes", description, `data:image/png;base64,${PIXEL}`, `data:image/svg+xml;base64,${DRAWING}`]);
  return `
[audit]
file = "${audit}"
[breaker]
failures = 2
pause = "10m"
max_pause = "10m"
[[rest.endpoints]]
name = "get_broken"
description = "Has no server"
url = "http://127.0.0.1:1/"
[mcp.servers.notes]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "mcp_server.mjs")}", '${texts}']
pin = true
${further}`;
}

before(async () => {
  [daemon, visitors] = await Promise.all([Daemon.start({ more: sections("All notes") }), Visitors.start()]);
  const page = await visitors.visitor(daemon, { path: "/servers/notes" });
  await page.locator("#facts").getByText("ready", { exact: false }).first().waitFor();
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** The actions of operators that the audit has, as `[operator, action, status]`. */
function actions() {
  const records = readFileSync(audit, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const acted = records.filter(({ event }) => event === "acted");
  return acted.map(({ operator, action, status }) => [operator, action, status]);
}

/** The texts of the cells of each row. */
const cells = (rows) => rows.evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.innerText.trim())));

/** Reloads on the page of the configuration. */
async function reload(page) {
  await page.goto(`${daemon.url}/console/configuration`);
  await page.getByRole("button", { name: "Reload" }).click();
  await page.waitForURL("**/console/configuration");
}

test("a changed definition is quarantined, shown as a difference, and callable once it is approved", async () => {
  assert.ok((await daemon.call("ana", "tool_1")).content, "it can be called as it was pinned");
  daemon.rewrite(sections("No notes"));
  const page = await visitors.visitor(daemon);
  await reload(page);
  await page.goto(`${daemon.url}/console/pins?state=quarantined`);
  const link = page.locator("#rows").getByRole("link", { name: "tool_1", exact: true });
  await eventually(async () => (await page.reload()) && (await link.count()), "the quarantine of tool_1");
  assert.equal((await daemon.call("ana", "tool_1")).code, "tool_not_found");
  await follow(link);
  const lines = (kind) => page.locator(`.diff .${kind}`).allTextContents();
  assert.ok((await lines("removed")).some((line) => line.includes("All notes")));
  assert.ok((await lines("added")).some((line) => line.includes("No notes")));
  await page.getByText("what is quarantined stays so").waitFor();
  const reader = await visitors.visitor(daemon, { path: new URL(page.url()).pathname.replace("/console", ""), token: READER });
  await reader.getByText("A session that was opened with http.admin_token may approve this.").waitFor();
  assert.equal(await reader.getByRole("button", { name: "Approve" }).count(), 0);
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByText("Nothing waits for an approval here.").waitFor();
  assert.ok((await daemon.call("ana", "tool_1")).content);
});

test("values in force are shown with their origin, and secrets are not", async () => {
  const page = await visitors.visitor(daemon, { path: "/configuration?key=breaker" });
  const rows = page.locator("table tbody tr");
  const given = await cells(rows);
  const shown = given.map(([key, value]) => [key, value]);
  assert.deepEqual(shown, [["breaker.failures", "2"], ["breaker.max_pause", '"10m"'], ["breaker.pause", '"10m"']]);
  for (const [, , origin] of given) assert.match(origin, /toolbus\.toml/);
  await page.getByLabel("Key has").fill("http.");
  await page.getByLabel("Values").selectOption("all");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText("http.console_payloads").waitFor();
  await page.getByText("http.admin_token").waitFor();
  const content = await page.content();
  assert.ok(!content.includes(ADMIN) && !content.includes(READER));
});

test("a reload says what it changed, and one with a mistake is refused and changes nothing", async () => {
  const page = await visitors.visitor(daemon);
  daemon.rewrite(sections("No notes", "[agents.cleo]"));
  await reload(page);
  await page.getByText("applied").waitFor();
  await page.locator('dt:text-is("Changed") + dd').getByText("agents").waitFor();
  await page.goto(`${daemon.url}/console/agents`);
  await page.locator("#rows").getByRole("link", { name: "cleo" }).waitFor();
  daemon.rewrite(sections("No notes", "[agents.dan]\nallowed_tols = []"));
  await reload(page);
  await page.getByText("refused; everything stayed as it was").waitFor();
  await page.locator("pre").getByText("allowed_tols").waitFor();
  daemon.rewrite(sections("No notes"));
  await reload(page);
  await page.getByText("applied").waitFor();
});

test("a circuit breaker that opened is reset, and the tool is called again", async () => {
  const broken = () => daemon.call("ana", "get_broken").then(({ message }) => message);
  for (let round = 0; round < 2; round += 1) await broken();
  assert.match(await broken(), /again and again/);
  const page = await visitors.visitor(daemon, { path: "/switches" });
  const breakers = page.locator("#breakers");
  await breakers.getByRole("link", { name: "get_broken" }).waitFor();
  await breakers.getByText("after 2 failures").waitFor();
  await breakers.getByRole("button", { name: "Reset" }).click();
  await breakers.getByText("No circuit breaker is open").waitFor();
  assert.doesNotMatch(await broken(), /again and again/);
});

test("an agent is switched off by its name, and on from the list", async () => {
  const page = await visitors.visitor(daemon, { path: "/switches" });
  await page.getByLabel("What").selectOption("agent");
  await page.getByLabel("Name").fill("ana");
  await page.getByRole("button", { name: "Switch off" }).click();
  const off = page.locator("#off");
  await off.getByRole("link", { name: "ana" }).waitFor();
  assert.equal((await daemon.call("ana", "echo", { text: "x" })).code, "tool_not_found");
  await off.getByRole("button", { name: "Switch on" }).click();
  await off.getByText("Nothing is switched off.").waitFor();
  assert.equal((await daemon.call("ana", "echo", { text: "x" })).content, "x");
});

test("two agents are compared by the tools that only one may use, with the reasons", async () => {
  const page = await visitors.visitor(daemon, { path: "/agents/ana" });
  await page.getByLabel("Compare with").fill("bea");
  await page.getByRole("button", { name: "Compare" }).click();
  await page.waitForURL("**/console/agents/ana/compare?with=bea");
  const row = page.locator("tbody tr", { has: page.getByRole("link", { name: "echo" }) });
  const [, ana, bea] = await row.locator("td").allInnerTexts();
  assert.match(ana, /^● /);
  assert.match(bea, /^○ .*allowed_tools/);
  await page.goto(`${daemon.url}/console/agents/ana/compare?with=ana`);
  await page.getByText("may use the same tools").waitFor();
});

test("an image of a result is shown, and one in which a browser would run scripts is named alone", async () => {
  const page = await visitors.visitor(daemon, { path: "/tools/tool_0" });
  await page.getByLabel("As agent").fill("ana");
  await follow(page.getByRole("button", { name: "Call", exact: true }));
  const images = page.locator(".result img");
  assert.deepEqual(await images.evaluateAll((all) => Promise.all(all.map((one) => one.decode().then(() => one.naturalWidth)))), [1]);
  await page.locator(".result").getByText("image/svg+xml").waitFor();
  assert.deepEqual(page.problems, []);
});

test("every action of an operator is in the audit, also one that is refused", async () => {
  const none = `sha256:${"0".repeat(64)}`;
  const all = [
    ["/switches", { kind: "tool", name: "echo", off: "true" }, "switch tool echo off"],
    ["/tools/echo/switch", { off: "false" }, "switch tool echo on"],
    ["/agents/bea/switch", { off: "true" }, "switch agent bea off"],
    ["/agents/bea/switch", { off: "false" }, "switch agent bea on"],
    ["/servers/notes/switch", { off: "true" }, "switch source mcp:notes off"],
    ["/servers/notes/switch", { off: "false" }, "switch source mcp:notes on"],
    ["/switches/reset", { name: "get_broken" }, "reset breaker get_broken"],
    ["/servers/notes/reset", {}, "reset breaker mcp:notes"],
    ["/servers/notes/restart", {}, "restart mcp notes"],
    ["/tools/echo/call", { agent: "ana", as: "json", json: '{"text":"x"}' }, "call echo as ana, call id ID"],
    ["/calls/absent/cancel", { agent: "ana", call: "absent" }, "cancel call id absent of ana", "error"],
    ["/schedules/cancel", { share: "ana", id: "absent" }, "cancel scheduled task absent of ana", "error"],
    ["/pins/absent/approve", { digest: none }, "approve pin absent", "error"],
    ["/dead-letters/replay", { letters: "absent" }, "replay 1 dead letters of all queues", "error"],
    ["/dead-letters/drop", { letters: "absent" }, "drop 1 dead letters of all queues", "error"],
    ["/configuration/reload", {}, "reload"],
  ];
  const page = await visitors.visitor(daemon, { path: "/switches" });
  const proof = await page.locator('[name="proof"]').first().inputValue();
  const before = actions().length;
  for (const [address, fields] of all) {
    const act = ([url, body]) => fetch(url, { method: "POST", body: new URLSearchParams(body) }).then(({ status }) => status);
    const status = await page.evaluate(act, [`/console${address}`, { ...fields, proof }]);
    assert.ok(status < 500 || address.startsWith("/dead-letters"), `${address}: ${status}`);
  }
  const written = await eventually(() => {
    const since = actions().slice(before);
    return since.length >= all.length && since;
  }, "a record of each action");
  const seen = written.map(([operator, action, status]) => [operator, action.replace(/call id [0-9a-f-]{8,}$/, "call id ID"), status]);
  for (const [, , action, status = "ok"] of all) {
    const record = seen.find(([, own]) => own.startsWith(action));
    assert.deepEqual(record && [record[0], record[2]], ["admin_token on the console", status], `${action}: ${JSON.stringify(seen)}`);
  }
  await visitors.visitor(daemon, { token: READER });
  const login = ["read_token on the console", "login", "ok"];
  await eventually(() => actions().some((record) => record.join() === login.join()), "the record of the login");
});
