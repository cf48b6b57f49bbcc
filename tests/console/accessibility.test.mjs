/** What `axe` finds on the pages, in both themes, on wide and narrow screens. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import axe from "axe-core";
import { Daemon, pages, Visitors } from "./support.mjs";

let daemon, visitors;

const more = `
[mcp.servers.away]
command = "/nonexistent"
[schedule]
[memory]
[subagents.pools]
thinkers = ["worker"]
`;

before(async () => {
  [daemon, visitors] = await Promise.all([Daemon.start({ more }), Visitors.start()]);
  await daemon.queue("subagent.task.thinkers");
  await daemon.call("ana", "schedule_task", { name: "mail", cron: "0 9 * * *", description: "Look for mail" });
  await daemon.call("ana", "spawn_subagent", { description: "Think" });
  await daemon.call("ana", "save_to_working_memory", { key: "plan", value: "x" });
  daemon.request("no request", { messageId: "dead", headers: { "rb-source": "ana" } });
  await daemon.call("ana", "echo", { text: "hello" });
  await daemon.call("bea", "echo", { text: "refused" });
  await daemon.call("ana", "no_such_tool");
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

/** The findings that keep people from using the page. */
async function findings(page) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target}: ${failureSummary}`));
}

for (const colorScheme of ["light", "dark"]) {
  for (const [screen, width] of [["wide", 1280], ["narrow", 380]]) {
    test(`axe finds nothing serious on any page, ${colorScheme} and on ${screen} screens`, async (context) => {
      const options = { colorScheme, viewport: { width, height: 800 } };
      const login = await visitors.stranger(options);
      await login.goto(`${daemon.url}/console/login`);
      assert.deepEqual(await findings(login), [], "the login");

      const page = await visitors.visitor(daemon, options);
      const visited = await pages(page, { depth: 2, most: 2 }, async (_, address) => {
        assert.deepEqual(await findings(page), [], address);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${address} is ${overflow} pixels wider than the screen`);
      });
      await page.keyboard.press("?");
      assert.deepEqual(await findings(page), [], "the keys");
      context.diagnostic(`${visited.length} pages`);
    });
  }
}
