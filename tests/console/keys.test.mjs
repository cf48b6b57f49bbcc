/** Keys, copies and the theme. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Daemon, follow, Visitors } from "./support.mjs";

let daemon, visitors;

before(async () => {
  [daemon, visitors] = await Promise.all([Daemon.start(), Visitors.start()]);
  for (const id of ["oldest", "middle", "newest"]) await daemon.call("ana", "echo", { text: id }, { id });
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

test("keys lead to a row, to its page, and back to the filtered list", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls?agent=ana" });
  const row = () => page.evaluate(() => document.activeElement.closest("tr")?.dataset.id);
  const seen = [];
  for (const key of ["j", "j", "j", "j", "k"]) {
    await page.keyboard.press(key);
    seen.push(await row());
  }
  assert.deepEqual(seen, ["newest", "middle", "oldest", "oldest", "middle"]);
  await page.keyboard.press("Enter");
  await page.waitForURL("**/console/calls/middle");
  await page.keyboard.press("Escape");
  await page.waitForURL("**/console/calls?agent=ana");
});

test("the search takes the slash key, keeps other keys to itself, and lets go with Escape", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls" });
  await page.keyboard.press("/");
  await page.keyboard.type("p?jk/");
  const search = page.getByRole("searchbox", { name: "Find a call by an id" });
  assert.equal(await search.inputValue(), "p?jk/");
  assert.equal(await page.locator("#keys").count(), 0);
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement.localName), "body");
  assert.match(page.url(), /\/console\/calls$/);
});

test("the question mark shows the keys on the page, and hides them", async () => {
  const page = await visitors.visitor(daemon);
  const keys = page.getByRole("complementary", { name: "Keys" });
  for (const hide of ["?", "Escape"]) {
    await page.keyboard.press("?");
    await keys.getByText("pause, and go on").waitFor();
    await page.keyboard.press(hide);
    await keys.waitFor({ state: "detached" });
  }
});

test("p pauses, and goes on", async () => {
  const page = await visitors.visitor(daemon);
  await page.keyboard.press("p");
  await page.locator("#live").getByText("paused").waitFor();
  await page.keyboard.press("p");
  await page.locator("#live").getByText("live").waitFor();
});

test("an id is copied with its button", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls/middle", permissions: ["clipboard-read", "clipboard-write"] });
  const id = page.locator("code[data-copy]", { hasText: "middle" }).first();
  await id.locator("+ button").click();
  await page.getByText("copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "middle");
});

test("the theme follows the system until it is switched, and the choice lasts", async () => {
  const page = await visitors.visitor(daemon, { colorScheme: "dark" });
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await back();
  await page.getByRole("button", { name: "Light or dark" }).click();
  const light = await back();
  assert.notEqual(light, dark);
  await page.goto(`${daemon.url}/console/calls`);
  assert.equal(await back(), light);
  await page.getByRole("button", { name: "Light or dark" }).click();
  assert.equal(await back(), dark);
  await page.emulateMedia({ colorScheme: "light" });
  assert.equal(await back(), light, "what the system says counts again");
});

test("pages can be read, filtered and left without scripts", async () => {
  const page = await visitors.visitor(daemon, { path: "/calls", javaScriptEnabled: false });
  await page.getByLabel("Agent").fill("nobody");
  await follow(page.getByRole("button", { name: "Filter" }));
  assert.equal(new URL(page.url()).searchParams.get("agent"), "nobody");
  await page.getByText("No call of the last thousand has all of this.").waitFor();
  await page.getByRole("link", { name: "Show all" }).click();
  await page.locator('tr[data-id="middle"] a').first().click();
  await page.getByRole("heading", { name: "Where its time went" }).waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
});
