/** What a page shows while it is looked at: new calls, a broker that is away, a daemon that is, and what readers hold. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { Daemon, Visitors } from "./support.mjs";

let daemon, slow, visitors;

before(async () => {
  slow = createServer().listen(0, "127.0.0.1").unref();
  await once(slow, "listening");
  const more = `
[[rest.endpoints]]
name = "slow"
description = "Waits for the test"
url = "http://127.0.0.1:${slow.address().port}/"
`;
  [daemon, visitors] = await Promise.all([Daemon.start({ more }), Visitors.start()]);
  // More than a screen of them.
  for (let call = 0; call < 60; call += 1) await daemon.call("ana", "echo", { text: `${call}` });
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

const state = (page) => page.locator("#live");
const saysLive = (page) => state(page).getByText("live", { exact: true }).waitFor();
const rows = (page) => page.locator("#rows tbody tr");
const firstRow = (page) => rows(page).first().getAttribute("data-id");

/** Waits until the page has asked again, after now. */
async function renewed(page) {
  for (let answers = 0; answers < 2; answers += 1) {
    const response = await page.waitForResponse(page.url());
    await response.finished();
  }
}

test("a new call appears without a reload", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await daemon.call("ana", "echo", { text: "new" }, { id: "appears" });
  await page.locator('tr[data-id="appears"]').waitFor();
});

test("new calls do not move the rows of a reader who has scrolled, but are counted and offered", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await page.mouse.wheel(0, 300);
  await page.waitForFunction(() => scrollY > 0);
  const first = await firstRow(page);
  await daemon.call("ana", "echo", {}, { id: "newer-1" });
  await daemon.call("ana", "echo", {}, { id: "newer-2" });
  const offer = page.getByRole("button", { name: "2 newer" });
  await offer.waitFor();
  assert.equal(await firstRow(page), first);
  await offer.click();
  await saysLive(page);
  assert.equal(await firstRow(page), "newer-2");
  assert.equal(await page.evaluate(() => scrollY), 0);
});

test("a paused page stays as it is, until it goes on", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await page.getByRole("button", { name: "Pause" }).click();
  await state(page).getByText("paused").waitFor();
  await daemon.call("ana", "echo", {}, { id: "while-paused" });
  const other = await visitors.visitor(daemon, { path: "/calls" });
  await other.locator('tr[data-id="while-paused"]').waitFor();
  assert.equal(await page.locator('tr[data-id="while-paused"]').count(), 0);
  await page.getByRole("button", { name: "Go on" }).click();
  await page.locator('tr[data-id="while-paused"]').waitFor();
});

test("what the reader holds stays: a row with the focus, and a text that is selected", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await page.keyboard.press("j");
  const focused = () => page.evaluate(() => document.activeElement.closest("tr")?.dataset.id);
  const first = await focused();
  await daemon.call("ana", "echo", {}, { id: "held-1" });
  await page.getByRole("button", { name: "1 newer" }).waitFor();
  assert.equal(await focused(), first);
  await page.keyboard.press("Escape");
  await page.locator('tr[data-id="held-1"]').waitFor();

  await rows(page).nth(2).locator("td").nth(3).selectText();
  const selected = () => page.evaluate(() => getSelection().toString());
  const text = await selected();
  assert.ok(text);
  await daemon.call("ana", "echo", {}, { id: "held-2" });
  await page.getByRole("button", { name: "1 newer" }).waitFor();
  assert.equal(await selected(), text);
});

test("a call that has ended is not shown as in flight to a reader who holds its row", async () => {
  const [called, [, response]] = [daemon.call("ana", "slow", {}, { id: "ends" }), await once(slow, "request")];
  const page = await visitors.visitor(daemon, { path: "/calls?status=in_flight" });
  const row = page.locator('tr[data-id="ends"]');
  await row.getByText("▲ in flight").waitFor();
  await page.keyboard.press("j");
  response.end("{}");
  await called;
  await row.getByText("▲ was in flight").waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("No call of the last thousand has all of this.").waitFor();
});

test("times are relative, and exact where they are pointed at", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  const times = page.locator('tr[data-id="appears"] time');
  assert.match(await times.textContent(), /ago|now/);
  assert.match(await times.getAttribute("title"), /^\d{4}-\d\d-\d\dT/);
});

test("a broker that is away is said, with the reason, and that it is back", async () => {
  const page = await visitors.visitor(daemon);
  await page.getByText("Ready: calls are taken.").waitFor();
  daemon.bus.cut();
  await page.locator("header").getByText("not ready").waitFor({ timeout: 60_000 });
  await page.locator("main").getByText("There is no connection to the broker").waitFor();
  daemon.bus.refuses = false;
  await page.getByText("Ready: calls are taken.").waitFor({ timeout: 60_000 });
});

test("a daemon that gives no answer is said with the age of the last one, and what is shown stays", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await saysLive(page);
  const shown = await rows(page).count();
  daemon.signal("SIGSTOP");
  try {
    await state(page).getByText(/^no answer for \d+ s$/).waitFor({ timeout: 60_000 });
    assert.equal(await rows(page).count(), shown);
  } finally {
    daemon.signal("SIGCONT");
  }
  await saysLive(page);
});

test("a session that is over is said with a link to the login, which leads back", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls?agent=ana" });
  await saysLive(page);
  await page.context().clearCookies();
  await state(page).getByText("The session is over.").waitFor();
  assert.ok(await rows(page).count(), "what is shown stays");
  await state(page).getByRole("link", { name: "Log in again" }).click();
  await page.getByLabel("Token").waitFor();
  assert.equal(new URL(page.url()).searchParams.get("next"), "/console/calls?agent=ana");
});

test("a page that is not looked at asks for nothing", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await renewed(page);
  const { length } = page.requests;
  await page.evaluate(() => Object.defineProperty(document, "hidden", { value: true, configurable: true }));
  const other = await visitors.visitor(daemon, { path: "/calls" });
  await renewed(other);
  await renewed(other);
  assert.ok(page.requests.length <= length + 1, "one that was under way, at most");
});
