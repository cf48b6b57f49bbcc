/**
 * Calls with keys, while the broker and the daemon are killed, connections are cut, confirms are lost, and replies come
 * late or twice; TOOLBUS_ROUNDS says how often.
 */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConsumeMessage } from "amqplib";
import { OutcomeUnknown, Toolbus } from "../src/index.js";
import { eventually, newWorld, TcpProxy, type World } from "./support.js";

const WORKERS = 8;
const ROUNDS = Number(process.env.TOOLBUS_ROUNDS ?? 1);

const FAULTS: Record<string, (world: World, proxy: TcpProxy, bus: Toolbus) => Promise<void>> = {
  "the connection is cut": async (_, proxy, bus) => proxy.cutUntilBack(bus),
  "connections are closed": async ({ broker }) => void (await broker.ctl("close_all_connections", "a fault")),
  "the daemon is killed": async ({ daemon }) => {
    await daemon.kill();
    await daemon.start();
  },
  "the broker is killed": async ({ broker }) => {
    await broker.kill();
    await broker.start();
  },
  "a confirm is lost": async ({ backend }, proxy) => {
    await using alone = await Toolbus.connect(proxy.url(), { agent: "ana" });
    const session = alone["link"]["session"];
    proxy.silence();
    const id = randomUUID();
    const call = alone.call("effect", { id }, { key: id });
    await eventually(() => backend.effects.has(id), "the effect", 60_000);
    assert.equal(session?.["unconfirmed"], 1);
    await proxy.cutUntilBack(alone);
    assert.equal(String(await call), "done");
  },
  "replies come late": (_, __, bus) =>
    receiving(bus, (receive, message) => {
      setTimeout(receive, 300, message);
    }),
  "replies come twice": async (_, __, bus) => {
    const before = bus.strays;
    await receiving(bus, (receive, message) => {
      receive(message);
      setTimeout(receive, 50, message);
    });
    assert(bus.strays > before);
  },
};

type Receive = (message: ConsumeMessage) => void;

/** Has the client get its replies in another way for a while. */
async function receiving(bus: Toolbus, get: (receive: Receive, message: ConsumeMessage) => void): Promise<void> {
  const receive = bus["link"]["receive"];
  bus["link"]["receive"] = (message) => get(receive, message);
  await sleep(600);
  bus["link"]["receive"] = receive;
}

test("no call is lost, and none has two effects", { timeout: ROUNDS * 300_000 }, async (context) => {
  const world = await newWorld();
  const proxy = await TcpProxy.start(world.broker);
  await world.broker.flush();
  await using bus = await Toolbus.connect(proxy.url(), { agent: "ana", timeout: 120 });
  const done = new Set<string>();
  const unexpected: unknown[] = [];
  let [ended, stopped] = [0, false];
  const worker = async () => {
    while (!stopped) {
      const id = randomUUID();
      try {
        assert.equal(String(await bus.call("effect", { id }, { key: id })), "done");
        done.add(id);
      } catch (error) {
        if (!(error instanceof OutcomeUnknown)) unexpected.push(error);
      }
      ended += 1;
    }
  };
  const workers = Array.from({ length: WORKERS }, worker);
  for (const [name, fault] of Array(ROUNDS).fill(Object.entries(FAULTS)).flat()) {
    const before = ended;
    await eventually(() => ended >= before + WORKERS, "calls before the fault", 60_000);
    await fault(world, proxy, bus);
    context.diagnostic(`${name}: ${ended} calls so far`);
  }
  const before = ended;
  await eventually(() => ended >= before + WORKERS, "calls after the faults", 60_000);
  stopped = true;
  await Promise.all(workers);
  const { effects } = world.backend;
  context.diagnostic(`${done.size} of ${ended} calls done, ${bus["link"].reconnects} reconnects, ${bus.strays} strays`);
  assert.deepEqual(unexpected, []);
  assert.deepEqual(
    [...done].filter((id) => !effects.has(id)),
    [],
    "lost",
  );
  assert.deepEqual(
    [...effects].filter(([, count]) => count > 1),
    [],
    "doubled",
  );
});
