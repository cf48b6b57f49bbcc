/** The console of a daemon with many tools and agents. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Daemon, Visitors, views } from "./support.mjs";

const TOOLS = 5_000;
const AGENTS = 1_000;
/** The intended time on an idle machine, and one for a busy machine, in milliseconds. */
const MOST = process.env.TOOLBUS_LAB ? 500 : 10_000;

let daemon, visitors;

before(async () => {
  const number = (index) => String(index).padStart(4, "0");
  const tools = Array.from({ length: TOOLS }, (_, index) => `
[[rest.endpoints]]
name = "tool_${number(index)}"
description = "Does what tool ${index} does"
url = "http://127.0.0.1:9/tool"
`);
  const agents = Array.from({ length: AGENTS }, (_, index) => `[agents.agent_${number(index)}]\n`);
  [daemon, visitors] = await Promise.all([
    Daemon.start({ more: [...agents, ...tools].join("") }),
    Visitors.start(),
  ]);
});
after(async () => {
  await visitors?.close();
  await daemon?.close();
});

test(`each view of a daemon with ${TOOLS} tools and ${AGENTS} agents can be used within ${MOST} ms`, async (context) => {
  const page = await visitors.visitor(daemon);
  for (const view of await views(page)) {
    // The script has run by then.
    await page.goto(view, { waitUntil: "domcontentloaded" });
    const { time, bytes } = await page.evaluate(() => {
      const [navigation] = performance.getEntriesByType("navigation");
      return { time: Math.round(navigation.domContentLoadedEventEnd), bytes: navigation.decodedBodySize };
    });
    context.diagnostic(`${new URL(view).pathname}: ${time} ms, ${bytes} bytes`);
    assert.ok(time <= MOST, `${view}: ${time} ms`);
    assert.ok((await page.locator("tbody tr").count()) <= 200, `${view} has at most 200 rows`);
  }
});
