/** Replies that are none: unreadable, repeated, late, or for others. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { connect } from "amqplib";
import { InvalidReply, type Toolbus, ToolTimeout } from "../src/index.js";
import { type Broker, eventually, world } from "./support.js";

async function publish(broker: Broker, bus: Toolbus, messages: [body: string | Buffer, correlationId: string][]) {
  const connection = await connect(broker.url());
  const channel = await connection.createConfirmChannel();
  for (const [body, correlationId] of messages) {
    channel.sendToQueue(bus["link"]["queue"], Buffer.from(body), { correlationId });
  }
  await channel.waitForConfirms();
  await connection.close();
}

/** The correlation id of the only call that waits, once its tool runs. */
async function runs(bus: Toolbus, id: string): Promise<string> {
  const { backend } = await world();
  await eventually(() => backend.effects.has(id), "the run of the tool");
  const [correlation] = bus["waiting"].keys();
  assert(correlation);
  return correlation;
}

test("a reply that cannot be read leaves the outcome unknown", async () => {
  const { connect, broker } = await world();
  await using bus = await connect();
  const cases = [
    [Buffer.from([0xff]), /not JSON/],
    ["{", /not JSON/],
    ["[]", /not an object/],
    ["{}", /no result/],
  ] as const;
  for (const [body, text] of cases) {
    const id = randomUUID();
    const refused = assert.rejects(bus.call("slow", { id, seconds: 0.5 }), (error) => {
      assert(error instanceof InvalidReply && error.outcome === "unknown", `${error}`);
      assert.match(error.message, text);
      return true;
    });
    await publish(broker, bus, [[body, await runs(bus, id)]]);
    await refused;
  }
  await eventually(() => bus.strays === cases.length, "the daemon's own replies");
  assert.equal(String(await bus.call("echo", { text: "fine" })), "fine");
});

test("of two replies the client takes the first, and drops those to calls of other clients", async () => {
  const { connect, broker } = await world();
  await using bus = await connect();
  const id = randomUUID();
  const call = bus.call("slow", { id, seconds: 1 });
  const correlation = await runs(bus, id);
  const reply = (content: string) => JSON.stringify({ content, isError: false });
  await publish(broker, bus, [
    [reply("foreign"), "somebody-else"],
    [reply("first"), correlation],
    [reply("second"), correlation],
  ]);
  assert.equal(String(await call), "first");
  await eventually(() => bus.strays === 3, "the foreign, the second, and the daemon's own reply");
});

test("the client drops a reply that comes after the deadline of its call", async () => {
  const { connect, broker } = await world();
  await using bus = await connect();
  const id = randomUUID();
  const late = assert.rejects(bus.call("slow", { id, seconds: 1 }, { timeout: 0.5 }), ToolTimeout);
  const correlation = await runs(bus, id);
  await late;
  const before = bus.strays;
  await publish(broker, bus, [['{"content": "late", "isError": false}', correlation]]);
  await eventually(() => bus.strays > before, "the late reply");
});

test("100 000 replies that no call waits for are dropped, and memory stays bounded", { timeout: 120_000 }, async () => {
  const { connect, broker } = await world();
  await using bus = await connect();
  const count = 100_000;
  const before = process.memoryUsage.rss();
  const program = path.join(import.meta.dirname, "flooding.js");
  const flood = [program, broker.url(), bus["link"]["queue"], String(count)];
  // The broker refuses what does not fit into the queue; the daemon tries again.
  const refused = Number((await promisify(execFile)(process.execPath, flood)).stdout);
  assert.equal(String(await bus.call("echo", { text: "still there" })), "still there");
  // It may also say that it refused what it delivers.
  await eventually(() => bus.strays + refused >= count, "the end of the flood");
  assert(bus.strays > 1_000 && bus.strays <= count);
  assert(process.memoryUsage.rss() - before < 64 * 1024 * 1024);
});
