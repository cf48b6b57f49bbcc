/** Who gets in, and what pages of others can make a browser do. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ADMIN, Daemon, logIn, otherOrigin, READER, views, Visitors } from "./support.mjs";

const COOKIE = "toolbus_console";
let daemon, visitors;

before(async () => {
  [daemon, visitors] = await Promise.all([Daemon.start(), Visitors.start()]);
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

async function session(page) {
  const cookies = await page.context().cookies();
  return cookies.find((cookie) => cookie.name === COOKIE);
}

test("a wrong token opens nothing, and the page says which are meant", async () => {
  const page = await visitors.stranger();
  await page.goto(`${daemon.url}/console/calls?agent=ana`);
  await logIn(page, "a-token-that-is-not-configured");
  await page.getByText("neither http.admin_token nor http.read_token").waitFor();
  assert.equal(await session(page), undefined);
});

test("each token opens a session that scripts cannot read, on the page that was asked for", async () => {
  for (const [token, told] of [[READER, "reads"], [ADMIN, "may act"]]) {
    const page = await visitors.visitor(daemon, { token, path: "/calls?agent=ana" });
    assert.equal(page.url(), `${daemon.url}/console/calls?agent=ana`);
    assert.equal(await page.locator("header .who").textContent(), told);
    const { httpOnly, sameSite, path } = await session(page);
    assert.deepEqual({ httpOnly, sameSite, path }, { httpOnly: true, sameSite: "Lax", path: "/console" });
    assert.equal(await page.evaluate(() => document.cookie), "");
  }
});

test("a session ends with the logout, for whoever has its cookie", async () => {
  const page = await visitors.visitor(daemon);
  const { value } = await session(page);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
  const response = await fetch(`${daemon.url}/console`, { headers: { cookie: `${COOKIE}=${value}` }, redirect: "manual" });
  assert.equal(response.status, 303);
});

test("a cookie that was there before the login is not the session after it", async () => {
  const page = await visitors.stranger();
  const planted = "planted-by-somebody-else";
  await page.context().addCookies([{ name: COOKIE, value: planted, url: `${daemon.url}/console` }]);
  await page.goto(`${daemon.url}/console`);
  await logIn(page, ADMIN);
  await page.locator("nav").waitFor();
  assert.notEqual((await session(page)).value, planted);
  const headers = { cookie: `${COOKIE}=${planted}` };
  const response = await fetch(`${daemon.url}/console`, { headers, redirect: "manual" });
  assert.equal(response.status, 303, "the planted id opens nothing");
});

test("a reader sees no form that acts, and one that it makes itself is refused", async () => {
  const page = await visitors.visitor(daemon, { token: READER });
  for (const view of await views(page)) {
    await page.goto(view);
    const actions = await page.locator('form[method="post"]').evaluateAll((all) => all.map((form) => form.action));
    assert.deepEqual(actions, [`${daemon.url}/console/logout`], view);
  }
  const forge = (path) => fetch(path, { method: "POST", body: new URLSearchParams({ proof: "x" }) }).then((r) => r.status);
  assert.equal(await page.evaluate(forge, "/console/switches"), 403);
});

test("a form on a page of another origin does nothing, with the session's cookie, too", async () => {
  const page = await visitors.visitor(daemon);
  const before = (await session(page)).value;
  for (const [path, token] of [["/switches", ""], ["/logout", ""], ["/login", ADMIN]]) {
    // Another port is another origin, but the same site: its requests have the cookie.
    const evil = await otherOrigin(
      `<form method="post" action="${daemon.url}/console${path}"><input name="token" value="${token}"><button>Go</button></form>`,
    );
    await page.goto(evil);
    const [response] = await Promise.all([page.waitForResponse(`${daemon.url}/**`), page.click("button")]);
    assert.equal(response.status(), 403, path);
    if (path !== "/login") assert.match((await response.request().allHeaders()).cookie, new RegExp(before));
  }
  assert.equal((await session(page)).value, before, "nobody logs a visitor in or out from elsewhere");
});

test("a page of another origin reads nothing, with the session's cookie, too", async () => {
  const page = await visitors.visitor(daemon);
  await page.goto(await otherOrigin("<p>Elsewhere</p>"));
  const read = ({ url, mode }) => fetch(url, { mode, credentials: "include" }).then(() => "read", () => "refused");
  for (const path of ["", "/calls", "/configuration", "/console.js"]) {
    for (const mode of ["cors", "no-cors"]) {
      assert.equal(await page.evaluate(read, { url: `${daemon.url}/console${path}`, mode }), "refused", `${mode} ${path}`);
    }
  }
  const pulled = await page.evaluate((src) => new Promise((resolve) => {
    const script = Object.assign(document.createElement("script"), { src });
    script.onload = () => resolve("run");
    script.onerror = () => resolve("refused");
    document.body.append(script);
  }), `${daemon.url}/console/console.js`);
  assert.equal(pulled, "refused");
});

test("a page that frames the console shows nothing of it", async () => {
  const page = await visitors.visitor(daemon);
  const evil = await otherOrigin(`<iframe src="${daemon.url}/console"></iframe>`);
  await page.goto(evil);
  const frame = page.frames()[1];
  await frame.waitForLoadState();
  assert.doesNotMatch(await frame.content(), /Overview/);
});

test("a name that leads here without being known is refused", async () => {
  const page = await visitors.stranger();
  const response = await page.goto(`http://evil.example:${daemon.port}/console/login`);
  assert.equal(response.status(), 421);
});
