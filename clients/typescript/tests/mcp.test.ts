/** The client over the daemon's MCP server. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { BrokerUnreachable, InvalidArguments, LoginRefused, Toolbus, ToolNotFound, ToolTimeout } from "../src/index.js";
import { eventually, TOKEN, world } from "./support.js";

test("calls and lists over MCP are as those over the bus", async () => {
  const { daemon, backend } = await world();
  await using bus = await Toolbus.mcp(daemon.mcp, TOKEN);
  assert.equal(String(await bus.call("echo", { text: "mcp" })), "mcp");
  assert((await bus.tools()).some((tool) => tool.name === "echo"));
  assert((await bus.tools("openai")).every((tool) => tool.type === "function"));
  assert((await bus.tools("anthropic")).every((tool) => tool.input_schema));
  await assert.rejects(bus.tools("gemini" as "mcp"), RangeError);
  await assert.rejects(bus.call("ecko"), ToolNotFound);
  await assert.rejects(bus.call("effect"), InvalidArguments);
  await assert.rejects(bus.call("slow", { id: "mcp", seconds: 3 }, { timeout: 0.5 }), ToolTimeout);
  const [id, key] = [randomUUID(), randomUUID()];
  for (let time = 0; time < 2; time++) assert.equal(String(await bus.call("effect", { id }, { key })), "done");
  assert.equal(backend.effects.get(id), 1);
});

test("aborting its signal cancels a call over MCP", async () => {
  const { daemon, backend } = await world();
  await using bus = await Toolbus.mcp(daemon.mcp, TOKEN);
  const abort = new AbortController();
  const id = randomUUID();
  const aborted = assert.rejects(bus.call("slow", { id, seconds: 5 }, { signal: abort.signal }), { message: "enough" });
  await eventually(() => backend.effects.has(id));
  abort.abort(new Error("enough"));
  await aborted;
});

test("a wrong token and a wrong address are told", async () => {
  const { daemon } = await world();
  await assert.rejects(Toolbus.mcp(daemon.mcp, "a-wrong-token-of-the-tests"), LoginRefused);
  await assert.rejects(Toolbus.mcp("http://127.0.0.1:1/mcp"), BrokerUnreachable);
  await assert.rejects(Toolbus.mcp(daemon.mcp.replace("/mcp", "/nowhere"), TOKEN), BrokerUnreachable);
  await assert.rejects(Toolbus.mcp("nowhere"), BrokerUnreachable);
});
