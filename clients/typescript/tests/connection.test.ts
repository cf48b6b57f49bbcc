/** What goes wrong with the connection, and with the use of the client. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import net from "node:net";
import { test } from "node:test";
import { connect as amqp, type ConsumeMessage } from "amqplib";
import {
  BrokerUnreachable,
  InvalidURL,
  LoginRefused,
  Misuse,
  NoDaemon,
  NotPermitted,
  Toolbus,
  type ToolsChanged,
} from "../src/index.js";
import { after, now } from "../src/retrying.js";
import { eventually, TcpProxy, world } from "./support.js";

// It takes ten seconds, while which other tests run.
const silence = connectToSilence();
silence.catch(() => {});

test("a wrong URL is told", async () => {
  const cases = [
    ["http://127.0.0.1", InvalidURL, /no URL of a broker/],
    ["127.0.0.1:5672", InvalidURL, /amqp:\/\/user/],
    ["amqp://%zz:x@127.0.0.1", InvalidURL, /cannot be read/],
    ["amqp://127.0.0.1:1", BrokerUnreachable, /no broker at 127.0.0.1:1/],
    ["amqp://nowhere.invalid", BrokerUnreachable, /nowhere.invalid/],
  ] as const;
  for (const [url, kind, text] of cases) {
    await assert.rejects(Toolbus.connect(url, { agent: "ana" }), (error) => {
      assert(error instanceof kind, `${error}`);
      assert.match(error.message, text);
      return true;
    });
  }
});

test("a wrong login is told without the password", async () => {
  const { broker } = await world();
  await assert.rejects(Toolbus.connect(broker.url("guest", "the-password"), { agent: "ana" }), (error) => {
    assert(error instanceof LoginRefused && /"guest": wrong/.test(error.message), `${error}`);
    assert(!JSON.stringify([error, String(error), error.stack]).includes("the-password"));
    return true;
  });
  const elsewhere = Toolbus.connect(broker.url().replace("%2f", "nowhere"), { agent: "ana" });
  await assert.rejects(elsewhere, (error) => error instanceof LoginRefused && error.message.includes('"nowhere"'));
});

test("no daemon is told", async () => {
  const { connect } = await world();
  {
    await using bus = await connect({ topic: "tool.invoke.nobody" });
    await assert.rejects(bus.call("echo"), (error) => error instanceof NoDaemon && /nobody/.test(error.message));
    await assert.rejects(bus.tools(), NoDaemon);
  }
  await using bus = await connect({ exchange: "nowhere" });
  for (let time = 0; time < 2; time++) {
    await assert.rejects(bus.call("echo"), (error) => error instanceof NoDaemon && /"nowhere"/.test(error.message));
  }
});

test("a refused request leaves other calls alone", async () => {
  await using bus = await (await world()).connect();
  const calls = [1, 2, 3].map(() => bus.call("slow", { id: "beside", seconds: 1 }));
  await eventually(() => bus["waiting"].size === 3);
  const properties = { userId: "somebody-else", correlationId: "refused" };
  const request = { body: Buffer.from("{}"), properties };
  await assert.rejects(bus["link"].publish("tool.invoke", request, after(10)), NotPermitted);
  assert.deepEqual((await Promise.all(calls)).map(String), ["done", "done", "done"]);
});

test("calls outlive the connection", async () => {
  const { connect, broker, backend } = await world();
  await using bus = await connect();
  const names = [1, 2, 3, 4].map(() => randomUUID());
  const running = names.map((id) => bus.call("slow", { id, seconds: 1.5 }));
  await eventually(() => names.every((name) => backend.effects.has(name)));
  await broker.ctl("close_all_connections", "of a test");
  assert.equal(String(await bus.call("echo", { text: "after" })), "after");
  assert.deepEqual((await Promise.all(running)).map(String), ["done", "done", "done", "done"]);
  assert.deepEqual(
    names.map((name) => backend.effects.get(name)),
    [1, 1, 1, 1],
  );
  assert(bus["link"].reconnects >= 1);
});

test("a login without a queue uses direct reply-to", async () => {
  const { broker, backend } = await world();
  await broker.ctl("add_user", "svc", "secret");
  await broker.ctl("set_permissions", "svc", "^$", "^rockbot$", "^$");
  const proxy = await TcpProxy.start(broker);
  await using bus = await Toolbus.connect(proxy.url("svc", "secret"), { agent: "ana" });
  assert.equal(String(await bus.call("echo", { text: "direct" })), "direct");
  const id = randomUUID();
  const call = bus.call("slow", { id, seconds: 1 });
  await eventually(() => backend.effects.has(id));
  await proxy.cutUntilBack(bus);
  assert.equal(String(await call), "done");
  assert.equal(backend.effects.get(id), 1);
  await assert.rejects(
    bus.onToolsChanged(() => {}),
    NotPermitted,
  );
});

test("a deleted reply queue comes back", async () => {
  const { connect, broker } = await world();
  await using bus = await connect();
  await using other = await admin(broker.url());
  await other.channel.deleteQueue(bus["link"]["queue"]);
  assert.equal(String(await bus.call("echo", { text: "again" }, { timeout: 10 })), "again");
});

test("calls outlive the reply queue", async () => {
  const { broker, backend } = await world();
  const proxy = await TcpProxy.start(broker);
  await using bus = await Toolbus.connect(proxy.url(), { agent: "ana", timeout: 20 });
  await using other = await admin(broker.url());
  const [early, late] = [randomUUID(), randomUUID()];
  const calls = [bus.call("slow", { id: early, seconds: 2 })];
  await eventually(() => backend.effects.has(early));
  await proxy.cutUntilBack(bus);
  // The client learns that the queue is deleted only after the daemon has replied.
  const channel = bus["link"]["session"]?.channel;
  assert(channel);
  const learns = channel.listeners("cancel");
  const told = once(channel.removeAllListeners("cancel"), "cancel");
  await other.channel.deleteQueue(bus["link"]["queue"]);
  const cancelled = await told;
  calls.push(bus.call("effect", { id: late }));
  await eventually(() => bus["waiting"].size === 2);
  const undelivered = new Set(bus["waiting"].keys());
  const dead = (letter: ConsumeMessage | null) => undelivered.delete(letter?.properties.correlationId);
  await other.channel.consume("toolbus.invoke.dlq", dead);
  await eventually(() => undelivered.size === 0, "the end of both calls");
  for (const learn of learns) learn(...cancelled);
  assert.deepEqual((await Promise.all(calls)).map(String), ["done", "done"]);
  assert.deepEqual([backend.effects.get(early), backend.effects.get(late)], [1, 1]);
});

test("the reply queue ends with the client, and would end without it", async () => {
  const { connect, broker } = await world();
  const bus = await connect();
  const queue = bus["link"]["queue"];
  assert.match(queue, /^reply\.ana\.[0-9a-f]{32}$/);
  const queues = () => broker.ctl("list_queues", "name", "durable", "arguments");
  assert.match(await queues(), new RegExp(`${queue}\\ttrue\\t.*"x-expires",600000`));
  await bus.close();
  assert(!(await queues()).includes(queue));
});

test("a change of tools is announced, also after a reconnect", async () => {
  const { broker } = await world();
  const proxy = await TcpProxy.start(broker);
  await using bus = await Toolbus.connect(proxy.url(), { agent: "ana" });
  const changes: ToolsChanged[] = [];
  await bus.onToolsChanged((change) => changes.push(change));
  await proxy.cutUntilBack(bus);
  assert((await bus.tools()).length > 0);
  await using other = await admin(broker.url());
  const type = "Toolbus.ToolsChanged";
  for (const body of ["no JSON", '{"version": "v", "added": ["one"], "removed": []}']) {
    other.channel.publish("rockbot", "tool.meta.tools.ana", Buffer.from(body), { type });
  }
  await eventually(() => changes.length > 0, "the announcement");
  assert.deepEqual(changes, [{ version: "v", added: ["one"], removed: [] }]);
});

test("without a connection a call fails at its deadline, and an aborted one at once", async () => {
  const { broker, backend } = await world();
  const proxy = await TcpProxy.start(broker);
  await using bus = await Toolbus.connect(proxy.url(), { agent: "ana" });
  proxy.refuses = true;
  proxy.cut();
  await eventually(() => !bus["link"]["session"]);
  let began = now();
  await assert.rejects(bus.call("echo", {}, { timeout: 0.5 }), BrokerUnreachable);
  assert(now() - began < 2_500);
  began = now();
  const signal = AbortSignal.timeout(100);
  await assert.rejects(bus.call("effect", { id: "never" }, { signal }), { name: "TimeoutError" });
  assert(now() - began < 2_500);
  await eventually(() => bus["background"].size === 0, "the end of the cancellation");
  proxy.refuses = false;
  assert.equal(String(await bus.call("echo", { text: "back" }, { timeout: 20 })), "back");
  assert(!backend.effects.has("never"));
});

test("closing without a connection ends at once", async () => {
  const { broker } = await world();
  const proxy = await TcpProxy.start(broker);
  const bus = await Toolbus.connect(proxy.url(), { agent: "ana" });
  proxy.refuses = true;
  proxy.cut();
  await eventually(() => !bus["link"]["session"]);
  const call = assert.rejects(bus.call("echo"), /closed during the call/);
  const began = now();
  await bus.close();
  await call;
  assert(now() - began < 2_000);
});

test("a server that says nothing is no broker", async () => {
  await assert.rejects(silence, BrokerUnreachable);
});

test("misuse is told", async () => {
  const bus = await (await world()).connect();
  const waiting = assert.rejects(bus.call("slow", { id: "closed", seconds: 3 }), /closed during the call/);
  await eventually(() => bus["waiting"].size === 1);
  await bus.close();
  await waiting;
  await bus.close();
  await assert.rejects(bus.call("echo"), Misuse);
  await assert.rejects(bus.tools(), Misuse);
  await assert.rejects(
    bus.onToolsChanged(() => {}),
    Misuse,
  );
  await assert.rejects(Toolbus.connect("amqp://127.0.0.1", {} as { agent: string }), /agent/);
});

/** A channel of its own, which ends with the block. */
async function admin(url: string) {
  const connection = await amqp(url);
  const channel = await connection.createChannel();
  return { channel, [Symbol.asyncDispose]: () => connection.close() };
}

async function connectToSilence(): Promise<Toolbus> {
  const server = net.createServer().listen(0, "127.0.0.1").unref();
  await once(server, "listening");
  return Toolbus.connect(`amqp://127.0.0.1:${(server.address() as net.AddressInfo).port}`, { agent: "ana" });
}
