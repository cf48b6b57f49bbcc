/** Tools of programs: as agents see and call them, and what goes wrong with them. */

import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Context,
  type ContextManager,
  createContextKey,
  propagation,
  ROOT_CONTEXT,
  type TextMapPropagator,
  context as telemetry,
} from "@opentelemetry/api";
import { connect as amqp, type ConsumeMessage, type Options } from "amqplib";
import { z } from "zod";
import {
  type Call,
  ExecutionFailed,
  type Fields,
  InvalidArguments,
  Misuse,
  NotPermitted,
  OutcomeUnknown,
  Progress,
  RateLimited,
  Result,
  type ServeOptions,
  Toolbus,
  ToolCancelled,
  ToolError,
  ToolNotFound,
  ToolTimeout,
} from "../src/index.js";
import { Broker, Daemon, eventually, PROVIDERS, TcpProxy, world } from "./support.js";

const names = PROVIDERS.slice(1);

/** A program that provides tools, until the test ends. */
class Program {
  private readonly abort = new AbortController();
  readonly errors: unknown[] = [];
  served: Promise<void> | undefined;

  constructor(
    readonly bus: Toolbus,
    readonly name: string,
  ) {}

  /** Serves tools under a name that no other test has. */
  static async start(
    context: TestContext,
    offer: (bus: Toolbus) => void,
    { url, name = names.pop() as string, ...options }: ServeOptions & { url?: string; name?: string } = {},
  ): Promise<Program> {
    const { broker } = await world();
    const bus = await Toolbus.connect(url ?? broker.url(), { agent: name });
    offer(bus);
    const program = new Program(bus, name);
    const onError = (error: unknown) => void program.errors.push(error);
    program.served = bus.serve({ signal: program.abort.signal, onError, drain: 1, ...options });
    program.served.catch(() => {});
    context.after(() => program.end());
    return program;
  }

  stop(): Promise<void> | undefined {
    this.abort.abort();
    return this.served;
  }

  async end(): Promise<void> {
    await this.stop()?.catch(() => {});
    await this.bus.close();
  }
}

/** An agent that sees a tool. */
async function agent(context: TestContext, ...tools: string[]): Promise<Toolbus> {
  const cara = await (await world()).connect({ agent: "cara", retries: 0 });
  context.after(() => cara.close());
  const isListed = async () => (await cara.tools("registration", { names: tools })).length === tools.length;
  await eventually(isListed, `the list of ${tools}`, 20_000);
  return cara;
}

async function rejection(call: Promise<unknown>): Promise<ToolError> {
  const error = await call.then(
    (result) => assert.fail(`no error, but ${result}`),
    (error) => error,
  );
  assert(error instanceof ToolError, `${error}`);
  return error;
}

test("an agent sees the tools of a program, and calls them", async (context) => {
  const seen: Partial<Call>[] = [];
  const parameters = {
    type: "object",
    properties: { number: { type: "string", description: "Its number" }, lines: { type: "array" } },
    required: ["number"],
  };
  const program = await Program.start(context, (bus) => {
    const description = "Finds an invoice.";
    bus.tool({ name: "find", title: "Invoices", description, parameters, effect: "read-only" }, (args, call) => {
      const { agent, session, id, key, remaining } = call;
      seen.push({ agent, session, id, key, remaining });
      return { paid: true, currency: "EUR", ...args };
    });
    bus.tool({ name: "pay", effect: "effectful" }, () => undefined);
    bus.tool({ name: "file", effect: "idempotent" }, () => "filed");
    bus.tool({ name: "plain" }, () => new Result("no such invoice", true));
    const image = { type: "image", data: "aGk=", mimeType: "image/png" };
    bus.tool({ name: "scan" }, () => new Result("a scan", false, [{ type: "text", text: "a scan \ud83d" }, image]));
    bus.tool({ name: "count" }, async () => [1, null, "three \ud83d"]);
  });
  const { name } = program;
  const cara = await agent(context, `${name}.find`);
  const tools = await cara.tools("mcp");
  const annotations = (tool: string) => tools.find((listed) => listed.name === `${name}.${tool}`)?.annotations;
  const found = tools.find((tool) => tool.name === `${name}.find`);
  assert.match(String(found?.description), /Finds an invoice\./);
  assert.deepEqual(found?.inputSchema, parameters);
  assert.deepEqual(annotations("find"), { readOnlyHint: true, destructiveHint: false, idempotentHint: true });
  assert.deepEqual(annotations("pay"), { readOnlyHint: false, destructiveHint: true, idempotentHint: false });
  assert.deepEqual(annotations("file"), { readOnlyHint: false, idempotentHint: true });
  assert.equal(annotations("plain"), undefined);

  const lines = [{ text: "ä", price: { amount: 1.5 } }, []];
  const result = await cara.call(`${name}.find`, { number: "7", lines }, { session: "s", timeout: 5, key: "k-1" });
  assert.deepEqual(result.json(), { paid: true, currency: "EUR", number: "7", lines });
  assert.equal(result.provider, "remote");
  const [call] = seen;
  assert.deepEqual([call?.agent, call?.session], ["cara", "s"]);
  assert(call?.id && call.remaining && call.remaining > 3 && call.remaining <= 5);
  assert.equal(String(await cara.call(`${name}.pay`)), "");
  assert.equal(String(await cara.call(`${name}.file`)), "filed");
  const plain = await cara.call(`${name}.plain`);
  assert.deepEqual([plain.content, plain.isError], ["no such invoice", true]);
  assert.deepEqual((await cara.call(`${name}.scan`)).blocks.at(-1)?.type, "image");
  assert.deepEqual((await cara.call(`${name}.count`)).json(), [1, null, "three \ud83d"]);
  assert.deepEqual(program.errors, []);
});

test("arguments that do not fit are named by their paths, without their values", async (context) => {
  const { name, errors } = await Program.start(context, (bus) => {
    const line = z.object({ price: z.number().max(100) });
    const parameters = z.object({ lines: z.array(line), currency: z.string().default("EUR") });
    bus.tool({ name: "bill", parameters, effect: "effectful" }, ({ lines, currency }) => `${lines.length} ${currency}`);
    bus.tool({ name: "find", parameters: { type: "object", required: ["number"] } }, () => "found");
  });
  const cara = await agent(context, `${name}.bill`);
  assert.equal(String(await cara.call(`${name}.bill`, { lines: [{ price: 1 }] })), "1 EUR");
  const ask = (toolName: string, args: unknown) => directly(name, { toolName, arguments: args });
  for (const [tool, args, path] of [
    ["bill", { lines: [{ price: 1 }, { price: "a secret" }] }, "/lines/1/price"],
    ["bill", { lines: [], currency: 4711 }, "/currency"],
    ["find", {}, "/number"],
    ["find", "{}", "/number"],
    ["find", "no JSON: a secret", "not a JSON object"],
    ["find", [4711], "not a JSON object"],
  ] as const) {
    const { code, message, outcome } = await ask(tool, args);
    assert.deepEqual([code, outcome], ["invalid_arguments", "not_started"]);
    assert(String(message).includes(path), String(message));
    assert(!/a secret|4711/.test(String(message)), String(message));
  }
  const long = await ask("bill", { lines: Array(200).fill({}) });
  assert.equal(String(long.message).length, 1000);
  assert.equal((await ask("find", '{"number": 1}')).content, "found");
  assert.equal((await ask("fond", {})).code, "tool_not_found");
  assert.equal((await directly(name, "no JSON")).code, "invalid_arguments");
  assert.equal((await directly(name, { arguments: {} })).code, "invalid_arguments");
  assert.deepEqual(errors, []);
  await assert.rejects(cara.call(`${name}.find`), InvalidArguments); // of the daemon
  await assert.rejects(cara.call(`${name}.fond`), ToolNotFound);
});

test("a function that fails tells the program why, and its caller nothing", async (context) => {
  const program = await Program.start(context, (bus) => {
    bus.tool({ name: "fail", effect: "effectful" }, () => {
      throw new Error("the password is 4711");
    });
    bus.tool({ name: "look", effect: "read-only" }, () => Promise.reject(new TypeError("the password is 4711")));
    bus.tool({ name: "never" }, () => 1n);
    bus.tool({ name: "nothing" }, () => Number.NaN);
    bus.tool({ name: "huge" }, () => "x".repeat(17 * 1024 * 1024));
  });
  const { name } = program;
  const cara = await agent(context, `${name}.fail`);
  for (const [tool, outcome] of [
    ["fail", "unknown"],
    ["look", "failed"],
    ["never", "unknown"],
    ["nothing", "unknown"],
    ["huge", "unknown"],
  ] as const) {
    const error = await rejection(cara.call(`${name}.${tool}`));
    assert.deepEqual([error.code, error.retryable, error.outcome], ["execution_failed", false, outcome]);
    assert(error.message.startsWith(`Tool '${tool}' failed.`), error.message); // the daemon may add to it
    assert(!error.message.includes("4711"));
  }
  const texts = program.errors.map(String);
  assert.deepEqual(texts.slice(0, 2), ["Error: the password is 4711", "TypeError: the password is 4711"]);
  assert.equal(texts.length, 5);
});

test("an error for the caller is passed on", async (context) => {
  const { name, errors } = await Program.start(context, (bus) => {
    bus.tool({ name: "limited", effect: "read-only" }, () => {
      throw new RateLimited("rate_limited", "Come again.", {
        retryable: true,
        retryAfter: 2.5,
        outcome: "not_started",
      });
    });
    bus.tool({ name: "poor" }, () => {
      throw new ToolError("no_funds", "There is no money left.", { outcome: "failed" });
    });
  });
  const cara = await agent(context, `${name}.limited`);
  const error = await rejection(cara.call(`${name}.limited`));
  assert(error instanceof RateLimited && error.message === "Come again.");
  assert.deepEqual([error.retryable, error.retryAfter, error.outcome], [true, 2.5, "not_started"]);
  const poor = await rejection(cara.call(`${name}.poor`)); // with a code that the daemon knows
  assert.deepEqual([poor.code, poor.message, poor.outcome], ["execution_failed", "There is no money left.", "failed"]);
  assert.deepEqual(errors, []);
});

test("a function reports its progress", async (context) => {
  let late: Call | undefined;
  const { name } = await Program.start(context, (bus) => {
    bus.tool({ name: "count", effect: "read-only" }, async (_, call) => {
      late = call;
      for (let number = 1; number <= 30; number++) {
        call.report(number, 30, "€".repeat(2_000));
        await sleep(10);
      }
      call.report(Number.NaN);
      return "counted";
    });
  });
  const cara = await agent(context, `${name}.count`);
  const steps = [];
  for await (const step of cara.stream(`${name}.count`)) steps.push(step);
  late?.report(99);
  assert.equal(String(steps.pop()), "counted");
  assert(steps.length >= 3 && steps.length <= 8, `${steps.length} reports`);
  for (const step of steps) assert(step instanceof Progress && step.total === 30 && step.message?.length === 1_000);
  assert.equal(String(await cara.call(`${name}.count`)), "counted");
});

test("a cancelled call stops its function, and so does its deadline", async (context) => {
  const [began, reasons]: [string[], unknown[]] = [[], []];
  const wait =
    (tool: string) =>
    async (_: Fields, { signal }: Call) => {
      began.push(tool);
      signal.addEventListener("abort", () => reasons.push(signal.reason));
      await sleep(30_000, undefined, { signal });
    };
  const { name, errors } = await Program.start(context, (bus) => {
    for (const effect of ["read-only", "effectful"] as const) bus.tool({ name: effect, effect }, wait(effect));
    bus.tool({ name: "deaf" }, () => sleep(2_000, "late", { ref: false }));
  });
  const cara = await agent(context, `${name}.read-only`);
  await using direct = await raw();
  for (const [tool, outcome] of [
    ["read-only", "failed"],
    ["effectful", "unknown"],
  ]) {
    began.length = 0;
    const call = rejection(cara.call(`${name}.${tool}`, {}, { callId: tool }));
    await eventually(() => began.length);
    assert.equal(await cara.cancel(tool as string, { wait: 5 }), true);
    const error = await call;
    assert(error instanceof ToolCancelled, `${error}`); // in the daemon's words
    await eventually(() => reasons.pop() instanceof ToolCancelled);

    await direct.ask(name, { toolCallId: tool, toolName: tool });
    await eventually(() => began.length === 2);
    const type = "Toolbus.ToolCancelRequest";
    for (const toolCallId of ["another's", tool]) await direct.ask(name, { toolCallId }, { type }, "tool.cancel");
    const said = () => direct.replies.filter(({ properties }) => properties.headers?.["rb-source"] === name);
    await eventually(() => said().length === 3);
    const bodies = said().map(({ content }) => JSON.parse(String(content)));
    direct.replies.length = 0;
    assert.deepEqual(
      bodies.filter((body) => !body.code),
      [
        { toolCallId: "another's", cancelled: false },
        { toolCallId: tool, cancelled: true },
      ],
    );
    const [code, message] = ["cancelled", "The call was cancelled."];
    const reply = { toolCallId: tool, toolName: tool, code, message, isRetryable: false, outcome };
    assert.deepEqual(
      bodies.find((body) => body.code),
      reply,
    );
    assert(reasons.pop() instanceof ToolCancelled);

    const late = await rejection(cara.call(`${name}.${tool}`, {}, { timeout: 1 }));
    assert(late instanceof ToolTimeout, `${late}`);
    assert.deepEqual([late.retryable, late.outcome], [tool === "read-only", outcome]);
    assert.match(late.message, /did not end within 0\.\d+ s/);
    assert(reasons.pop() instanceof ToolTimeout);
  }
  const deaf = await rejection(cara.call(`${name}.deaf`, {}, { timeout: 0.5 }));
  assert(deaf instanceof ToolTimeout && deaf.outcome === "unknown");
  assert.deepEqual([errors, reasons], [[], []]);
});

test("a program that stops lets its calls end, cancels the rest, and leaves nothing", async (context) => {
  let running = 0;
  const program = await Program.start(
    context,
    (bus) => {
      bus.tool({ name: "wait" }, async ({ seconds }, { signal }) => {
        running += 1;
        await sleep(Number(seconds) * 1000, undefined, { signal });
        return "ended";
      });
    },
    { concurrency: 2, drain: 4 },
  );
  const { name } = program;
  const cara = await agent(context, `${name}.wait`);
  const wait = (seconds: number) => cara.call(`${name}.wait`, { seconds });
  const [short, long] = [wait(3), rejection(wait(20))];
  await eventually(() => running === 2);
  const queued = rejection(wait(0));
  await using direct = await raw();
  const waiting = async () => (await direct.channel.checkQueue(`provider.${name}`)).messageCount;
  await eventually(async () => (await waiting()) === 1, "the third call");
  await program.stop();
  assert.equal(String(await short), "ended");
  const cancelled = await long;
  assert(cancelled instanceof ToolCancelled && cancelled.outcome === "unknown", `${cancelled}`);
  const refused = await queued;
  assert.equal(refused.message, "Tool 'wait' was not called: its provider is stopping.");
  assert.deepEqual([refused.code, refused.retryable, refused.outcome], ["execution_failed", true, "not_started"]);
  assert.equal(running, 2);
  const { broker } = await world();
  assert(!(await broker.ctl("list_queues", "name")).includes(`provider.${name}`));
  const unreached = await rejection(cara.call(`${name}.wait`, { seconds: 0 }));
  assert.deepEqual([unreached.retryable, unreached.outcome], [true, "not_started"]);
});

test("a program that stops answers at once what it does not run", async (context) => {
  let calls = 0;
  const offer = (bus: Toolbus) => {
    bus.tool({ name: "wait" }, async () => {
      calls += 1;
      await sleep(3_000);
      return "ended";
    });
  };
  const program = await Program.start(context, offer, { concurrency: 1, drain: 10 });
  const { name } = program;
  const cara = await agent(context, `${name}.wait`);
  const running = cara.call(`${name}.wait`);
  await eventually(() => calls === 1);
  const refused = [rejection(cara.call(`${name}.wait`))];
  await using direct = await raw();
  const waiting = async () => (await direct.channel.checkQueue(`provider.${name}`)).messageCount;
  await eventually(async () => (await waiting()) === 1, "the second call");
  const began = Date.now();
  const stopped = program.stop();
  await sleep(300);
  refused.push(rejection(cara.call(`${name}.wait`)));
  for (const { code, retryable, outcome } of await Promise.all(refused)) {
    assert.deepEqual([code, retryable, outcome], ["execution_failed", true, "not_started"]);
  }
  assert(Date.now() - began < 1_800, `${Date.now() - began} ms`);
  assert.equal(String(await running), "ended");
  await stopped;
  assert.equal(calls, 1);
});

test("a program that is killed repeats no effect", async (context) => {
  const { broker } = await world();
  const name = names.pop() as string;
  const folder = mkdtempSync(path.join(tmpdir(), "toolbus-provider-"));
  const effects = path.join(folder, "effects");
  let child: ChildProcess | undefined;
  context.after(() => {
    child?.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  });
  const start = async () => {
    const script = path.join(import.meta.dirname, "providing.js");
    child = spawn(process.execPath, [script, broker.url(), name, effects], { stdio: ["ignore", "pipe", "inherit"] });
    await once(child.stdout as NodeJS.ReadableStream, "data");
  };
  await start();
  const cara = await agent(context, `${name}.pay`, `${name}.look`);
  const calls = [rejection(cara.call(`${name}.pay`)), cara.call(`${name}.look`)] as const;
  const seen = () => readFileSync(effects, { encoding: "utf8", flag: "a+" }).split("\n").sort().join(" ").trim();
  await eventually(() => seen() === "look pay", "the run of both");
  child?.kill("SIGKILL");
  await start();
  const error = await calls[0];
  assert(error instanceof OutcomeUnknown && !error.retryable, `${error}`);
  assert.match(error.message, /^Tool 'pay' may have run before\./);
  assert.equal(String(await calls[1]), "looked");
  assert.equal(seen(), "look look pay");
});

test("a call outlives the connection of its program, with one effect and the same reply", async (context) => {
  const { broker } = await world();
  const proxy = await TcpProxy.start(broker);
  let effects = 0;
  const offer = (bus: Toolbus) => {
    bus.tool({ name: "pay", effect: "effectful" }, async () => {
      effects += 1;
      await sleep(2_000);
      return "paid";
    });
  };
  const { name, bus } = await Program.start(context, offer, { url: proxy.url() });
  await agent(context, `${name}.pay`);
  await using direct = await raw();
  const messageId = await direct.ask(name, { toolName: "pay" });
  await eventually(() => effects === 1);
  await proxy.cutUntilBack(bus);
  await eventually(() => direct.replies.length > 0);
  await sleep(500);
  // A delivery of each connection was answered, and the first reply counts.
  for (const reply of direct.replies) {
    const body = { toolCallId: messageId, toolName: "pay", content: "paid", isError: false };
    assert.deepEqual(JSON.parse(String(reply.content)), body);
  }
  assert.equal(effects, 1);
  // The same message once more gets the same reply.
  const [first] = direct.replies.splice(0);
  await direct.ask(name, { toolName: "pay" }, { messageId });
  await eventually(() => direct.replies.length > 0);
  assert.deepEqual(direct.replies[0]?.content, first?.content);
  assert.equal(effects, 1);
});

test("a call goes over the daemon while connections are cut", async (context) => {
  const proxy = await TcpProxy.start((await world()).broker);
  let effects = 0;
  const offer = (bus: Toolbus) => {
    bus.tool({ name: "pay", effect: "effectful" }, async () => {
      effects += 1;
      await sleep(1_000);
      return "paid";
    });
  };
  const { name, bus } = await Program.start(context, offer, { url: proxy.url() });
  const cara = await agent(context, `${name}.pay`);
  const call = cara.call(`${name}.pay`);
  await eventually(() => effects === 1);
  await proxy.cutUntilBack(bus);
  assert.equal(String(await call), "paid");
  assert.equal(effects, 1);
});

test("programs of one name share its calls, many at once", async (context) => {
  const [counts, programs]: [number[], Program[]] = [[0, 0], []];
  const [name, most] = [names.pop() as string, [0, 0]];
  for (const index of [0, 1]) {
    let running = 0;
    const offer = (bus: Toolbus) => {
      bus.tool({ name: "double", effect: "read-only" }, async ({ number }) => {
        running += 1;
        most[index] = Math.max(most[index] as number, running);
        counts[index] = (counts[index] as number) + 1;
        await sleep(20);
        running -= 1;
        return Number(number) * 2;
      });
    };
    programs.push(await Program.start(context, offer, { name, concurrency: 8 }));
  }
  const cara = await agent(context, `${name}.double`);
  const numbers = Array.from({ length: 200 }, (_, number) => number);
  const results = await Promise.all(numbers.map((number) => cara.call(`${name}.double`, { number }, { retries: 5 })));
  assert.deepEqual(
    results.map((result) => result.json()),
    numbers.map((number) => number * 2),
  );
  assert.equal((counts[0] as number) + (counts[1] as number), 200);
  assert(
    counts.every((count) => count > 20),
    `${counts}`,
  );
  assert(
    most.every((calls) => calls <= 8),
    `${most}`,
  );
  await programs[0]?.stop();
  assert.equal((await cara.call(`${name}.double`, { number: 4 })).json(), 8);
});

test("a list has a version, and a later tool is announced", async (context) => {
  const program = await Program.start(context, (bus) => bus.tool({ name: "one", effect: "read-only" }, () => "1"));
  const { name, bus } = program;
  await using direct = await raw();
  const ask = (body: Fields) => directly(name, body, { type: "Toolbus.ToolListRequest" }, `tool.list.provider.${name}`);
  await eventually(() => ask({ format: "mcp" }), "the list");
  const announced = await direct.announcements(name);
  const first = await ask({ format: "mcp" });
  assert.equal(first.agent, "tester");
  const tools = first.tools as Fields[];
  assert.equal(first.version, createHash("sha256").update(JSON.stringify(tools)).digest("hex"));
  const again = await ask({ format: "mcp", ifVersion: first.version });
  assert.deepEqual([again.tools, again.notModified, again.version], [[], true, first.version]);
  bus.tool({ name: "another" }, () => "2");
  await eventually(() => announced.length === 1, "the announcement");
  assert.deepEqual([announced[0]?.properties.type, String(announced[0]?.content)], ["Toolbus.ToolAnnouncement", "{}"]);
  assert.equal(announced[0]?.properties.userId, "guest");
  const more = await ask({ format: "mcp", ifVersion: first.version });
  assert.deepEqual(
    (more.tools as Fields[]).map((tool) => tool.name),
    ["another", "one"],
  );
  assert.throws(() => bus.tool({ name: "one" }, () => "1"), Misuse);
  assert.throws(() => bus.tool({ name: "three", parameters: { type: "string" } }, () => "3"), Misuse);
  await assert.rejects(bus.serve(), Misuse);
});

test("a list does not wait for calls, and a request for it that is too large has none", async (context) => {
  let calls = 0;
  const offer = (bus: Toolbus) => {
    bus.tool({ name: "wait", effect: "read-only" }, async (_, { signal }) => {
      calls += 1;
      await sleep(20_000, undefined, { signal });
    });
  };
  const { name } = await Program.start(context, offer, { concurrency: 1 });
  await agent(context, `${name}.wait`);
  await using direct = await raw();
  for (const _ of [1, 2]) await direct.ask(name, { toolName: "wait" });
  await eventually(() => calls === 1);
  const [options, topic] = [{ type: "Toolbus.ToolListRequest" }, `tool.list.provider.${name}`];
  await direct.ask(name, { format: "mcp", more: "x".repeat(65_536) }, options, topic);
  const messageId = await direct.ask(name, { format: "mcp" }, options, topic);
  await eventually(() => direct.replies.length, "the list", 2_000);
  assert.deepEqual(
    direct.replies.map(({ properties }) => properties.correlationId),
    [messageId],
  );
});

test("what did not come over the topics of a program is dropped and counted", async (context) => {
  let calls = 0;
  const { name, bus } = await Program.start(context, (bus) => bus.tool({ name: "pay" }, () => ++calls));
  const cara = await agent(context, `${name}.pay`);
  await using direct = await raw();
  const { channel } = direct;
  const queue = `provider.${name}`;
  const properties = { type: "RockBot.Tools.ToolInvokeRequest", replyTo: "amq.rabbitmq.reply-to", correlationId: "1" };
  const body = Buffer.from(JSON.stringify({ toolName: "pay" }));
  channel.publish("", queue, body, properties);
  await channel.bindQueue(queue, "rockbot", `tool.invoke.of.${name}`);
  channel.publish("rockbot", `tool.invoke.of.${name}`, body, properties);
  await direct.ask(name, {}, { type: "another" }, "tool.cancel");
  await eventually(() => bus.strays === 3, "the count");
  assert.deepEqual([calls, direct.replies], [0, []]);
  assert.equal(String(await cara.call(`${name}.pay`)), "1");
});

test("a waiting call that is cancelled does not run", async (context) => {
  const ran: string[] = [];
  const offer = (bus: Toolbus) => {
    bus.tool({ name: "pay", effect: "effectful" }, async (_, { id }) => {
      ran.push(id);
      if (id === "first") await sleep(1_500);
      return "paid";
    });
  };
  const { name } = await Program.start(context, offer, { concurrency: 1, daemons: ["guest"] });
  const cara = await agent(context, `${name}.pay`);
  await using direct = await raw();
  const pay = (toolCallId: string) => direct.ask(name, { toolCallId, toolName: "pay" });
  const type = "Toolbus.ToolCancelRequest";
  const cancel = (toolCallId: string, options: Options.Publish = {}, more = "") =>
    direct.ask(name, { toolCallId, more }, { type, replyTo: "", ...options }, "tool.cancel");
  await pay("first");
  await eventually(() => ran.length === 1);
  const ids = ["cancelled", "another's", "of another type", "too large"];
  for (const id of ids) await pay(id);
  await cancel("cancelled");
  await cancel("another's", { headers: { "rb-source": "another" } });
  await cancel("of another type", { type: "RockBot.Tools.ToolInvokeRequest" });
  await cancel("too large", {}, "x".repeat(4_096));
  await eventually(() => direct.replies.length === 5, "all replies");
  assert.deepEqual(ran, ["first", ...ids.slice(1)]);
  const replies = direct.replies.map(({ content }) => JSON.parse(String(content)));
  const [code, message] = ["cancelled", "The call was cancelled."];
  assert.deepEqual(
    replies.find(({ toolCallId }) => toolCallId === "cancelled"),
    { toolCallId: "cancelled", toolName: "pay", code, message, isRetryable: false, outcome: "not_started" },
  );
  await pay("cancelled"); // a later one
  await eventually(() => ran.at(-1) === "cancelled");

  ran.length = 0;
  await pay("first");
  await eventually(() => ran.length === 1);
  const call = rejection(cara.call(`${name}.pay`, {}, { callId: "of cara" }));
  await eventually(async () => (await direct.channel.checkQueue(`provider.${name}`)).messageCount === 1);
  assert.equal(await cara.cancel("of cara", { wait: 5 }), true);
  assert((await call) instanceof ToolCancelled);
  await pay("last");
  await eventually(() => ran.includes("last"));
  assert.deepEqual(ran, ["first", "last"]);
});

test("only the daemons that are named may call", async (context) => {
  const { broker } = await world();
  await broker.ctl("add_user", "stranger", "secret");
  await broker.ctl("set_permissions", "stranger", "^$", "^rockbot$", "^$");
  let calls = 0;
  const offer = (bus: Toolbus) => bus.tool({ name: "pay", effect: "effectful" }, () => `paid ${++calls}`);
  const { name } = await Program.start(context, offer, { daemons: ["guest"] });
  const cara = await agent(context, `${name}.pay`);
  const stranger = async (topic: string, type?: string) => {
    const options = type ? { type } : {};
    return directly(name, { toolName: "pay" }, options, topic, broker.url("stranger", "secret"));
  };
  const refused = await stranger(`tool.invoke.provider.${name}`);
  assert.deepEqual([refused.code, refused.outcome], ["not_allowed", "not_started"]);
  assert.equal((await stranger(`tool.list.provider.${name}`, "Toolbus.ToolListRequest")).code, "not_allowed");
  await using other = await raw(broker.url("stranger", "secret"));
  await other.ask(name, { toolCallId: "x" }, { type: "Toolbus.ToolCancelRequest", replyTo: "" }, "tool.cancel");
  assert.equal(calls, 0);
  assert.equal(String(await cara.call(`${name}.pay`)), "paid 1");
  assert.equal((await directly(name, { toolCallId: "x", toolName: "pay" })).content, "paid 2");
});

test("a name that is no part of a topic is refused", async () => {
  const { broker } = await world();
  for (const name of ["two.*", "one two", "#", "n".repeat(65)]) {
    await using bus = await Toolbus.connect(broker.url(), { agent: name });
    bus.tool({ name: "echo" }, () => "said");
    await assert.rejects(bus.serve({ signal: AbortSignal.timeout(1_000) }), Misuse);
  }
});

test("a call that did not begin and may succeed later runs when it comes again", async (context) => {
  let calls = 0;
  const { name } = await Program.start(context, (bus) => {
    bus.tool({ name: "pay", effect: "effectful" }, ({ outcome }) => {
      if (++calls % 2 === 0) return `paid ${calls}`;
      throw new RateLimited("rate_limited", "Come again.", { retryable: true, outcome: String(outcome) });
    });
  });
  await agent(context, `${name}.pay`);
  for (const [outcome, code] of [
    ["not_started", undefined],
    ["failed", "rate_limited"],
  ] as const) {
    const options = { messageId: randomUUID() };
    const ask = () => directly(name, { toolName: "pay", arguments: { outcome } }, options);
    assert.deepEqual((await ask()).code, "rate_limited");
    assert.deepEqual((await ask()).code, code);
  }
  assert.equal(calls, 3);
});

test("a login that may not serve is told, and one that may not announce serves", async (context) => {
  const { broker } = await world();
  await broker.ctl("add_user", "mute", "secret");
  await broker.ctl("set_permissions", "mute", "^(reply|provider)\\..*|amq\\.gen.*$", ".*", ".*");
  await broker.ctl("set_topic_permissions", "mute", "rockbot", "^tool\\.invoke$", ".*");
  const offer = (bus: Toolbus) => bus.tool({ name: "echo", effect: "read-only" }, () => "still");
  const program = await Program.start(context, offer, { url: broker.url("mute", "secret") });
  const { name } = program;
  const cara = await agent(context, `${name}.echo`);
  assert.equal(String(await cara.call(`${name}.echo`)), "still");
  await eventually(() => program.errors.length === 1);
  assert(program.errors[0] instanceof NotPermitted);
  await broker.ctl("add_user", "barred", "secret");
  await broker.ctl("set_permissions", "barred", "^reply\\..*$", ".*", ".*");
  const barred = await Program.start(context, offer, { url: broker.url("barred", "secret"), name: "barred" });
  await assert.rejects(barred.served as Promise<void>, NotPermitted);
});

test("a program waits for a daemon", async (context) => {
  const broker = await Broker.start();
  const offer = (bus: Toolbus) => bus.tool({ name: "echo" }, () => "served");
  const { name } = await Program.start(context, offer, { url: broker.url() });
  await sleep(1_000);
  const daemon = await Daemon.start(broker.url(), (await world()).backend);
  await using cara = await Toolbus.connect(broker.url(), { agent: "cara" });
  await eventually(async () => (await cara.tools("mcp")).length, "the list");
  assert.equal(String(await cara.call(`${name}.echo`)), "served");
  await daemon.kill();
  await broker.kill();
});

test("the trace of the call is that of its function", async (context) => {
  const [store, key] = [new AsyncLocalStorage<Context>(), createContextKey("traceparent")];
  const manager: Partial<ContextManager> = {
    active: () => store.getStore() ?? ROOT_CONTEXT,
    with: (active, work, self, ...args) => store.run(active, () => work.call(self, ...args)),
    disable: () => manager as ContextManager,
  };
  const propagator: TextMapPropagator<Record<string, string>> = {
    inject: () => {},
    extract: (active, carrier) => active.setValue(key, carrier.traceparent),
    fields: () => ["traceparent"],
  };
  telemetry.setGlobalContextManager(manager as ContextManager);
  propagation.setGlobalPropagator(propagator as TextMapPropagator);
  context.after(() => {
    telemetry.disable();
    propagation.disable();
  });
  const { name } = await Program.start(context, (bus) => {
    bus.tool({ name: "trace" }, async () => {
      await sleep(10);
      return telemetry.active().getValue(key);
    });
  });
  const cara = await agent(context, `${name}.trace`);
  const traceparent = `00-${"1".repeat(32)}-${"2".repeat(16)}-01`;
  const headers = { traceparent };
  assert.match(String(await cara.call(`${name}.trace`, {}, { headers })), /^00-1{32}-[0-9a-f]{16}-01$/);
});

test("what cannot be answered is dropped and counted, and what repeats no effect comes again", async (context) => {
  let calls = 0;
  const { name, bus } = await Program.start(context, (bus) => {
    bus.tool({ name: "pay", effect: "effectful" }, () => `paid ${++calls}`);
  });
  await agent(context, `${name}.pay`);
  await using direct = await raw();
  await direct.ask(name, { toolName: "pay" }, { replyTo: "" });
  await eventually(() => bus.strays === 1, "the message without an address");
  await direct.ask(name, { toolName: "pay" }, { replyTo: "no.such.queue" });
  await eventually(() => calls === 1);
  const messageId = randomUUID();
  for (const correlationId of ["one", "two"]) await direct.ask(name, { toolName: "pay" }, { messageId, correlationId });
  await direct.ask(name, { toolName: "pay" }, { messageId, headers: { "rb-source": "another" } });
  await eventually(() => direct.replies.length === 3);
  const replies = direct.replies.map(({ content, properties }) => [
    properties.correlationId,
    JSON.parse(String(content)).content,
  ]);
  assert.deepEqual(
    replies.sort(),
    [
      [messageId, "paid 3"],
      ["one", "paid 2"],
      ["two", "paid 2"],
    ].sort(),
  );
});

test("closing the client ends its service", async (context) => {
  const { name, bus, served } = await Program.start(context, (bus) => bus.tool({ name: "echo" }, () => "said"));
  const cara = await agent(context, `${name}.echo`);
  assert.equal(String(await cara.call(`${name}.echo`)), "said");
  await bus.close();
  await served;
  await assert.rejects(bus.serve(), Misuse);
  assert.throws(() => bus.tool({ name: "another" }, () => ""), Misuse);
  await assert.rejects(cara.call(`${name}.echo`), ExecutionFailed);
});

/** A connection without a client, to send what a daemon may send, and more. */
async function raw(url?: string) {
  const connection = await amqp(url ?? (await world()).broker.url());
  const channel = await connection.createChannel();
  const replies: ConsumeMessage[] = [];
  const keep = (list: ConsumeMessage[]) => (message: ConsumeMessage | null) => message && void list.push(message);
  await channel.consume("amq.rabbitmq.reply-to", keep(replies), { noAck: true });
  return {
    channel,
    replies,
    async ask(name: string, body: unknown, options: Options.Publish = {}, topic = "") {
      const messageId = options.messageId ?? randomUUID();
      channel.publish(
        "rockbot",
        topic || `tool.invoke.provider.${name}`,
        Buffer.from(typeof body === "string" ? body : JSON.stringify(body)),
        {
          ...{ type: "RockBot.Tools.ToolInvokeRequest", replyTo: "amq.rabbitmq.reply-to", correlationId: messageId },
          ...{
            userId: url ? new URL(url).username : "guest",
            headers: { "rb-source": "tester" },
            ...options,
            messageId,
          },
        },
      );
      return messageId;
    },
    /** Collects what a program announces from now on. */
    async announcements(name: string) {
      const announced: ConsumeMessage[] = [];
      const { queue } = await channel.assertQueue("", { exclusive: true });
      await channel.bindQueue(queue, "rockbot", "tool.announce");
      const ofName = (message: ConsumeMessage | null) => {
        if (message?.properties.headers?.["rb-source"] === name) announced.push(message);
      };
      await channel.consume(queue, ofName, { noAck: true });
      return announced;
    },
    [Symbol.asyncDispose]: () => connection.close(),
  };
}

/** Sends one request to a program itself; returns the body of its reply. */
async function directly(
  name: string,
  body: unknown,
  options: Options.Publish = {},
  topic?: string,
  url?: string,
): Promise<Fields> {
  await using direct = await raw(url);
  await direct.ask(name, body, options, topic);
  await eventually(() => direct.replies.length > 0, "the reply");
  return JSON.parse(String(direct.replies[0]?.content));
}
