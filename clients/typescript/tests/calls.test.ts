/** Calls, their errors, deadlines, cancellation, progress and retries. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { context, propagation, ROOT_CONTEXT, type TextMapPropagator } from "@opentelemetry/api";
import {
  AuthRequired,
  ExecutionFailed,
  type Fields,
  InvalidArguments,
  NotAllowed,
  Overloaded,
  Progress,
  RateLimited,
  Result,
  ToolCancelled,
  type ToolError,
  ToolNotFound,
  ToolTimeout,
} from "../src/index.js";
import { eventually, world } from "./support.js";

type OpenAITool = Fields & { type: string; function: { name: string } };
type AnthropicTool = Fields & { input_schema: { type: string } };

test("a call returns what the tool says", async () => {
  await using bus = await (await world()).connect();
  const result = await bus.call("echo", { text: "hello" }, { timeout: 5 });
  assert.deepEqual([result.content, String(result), result.isError, result.tool], ["hello", "hello", false, "echo"]);
  assert.equal(result.provider, "local");
  assert.equal(typeof result.duration, "number");
  const numbers = Array.from({ length: 50 }, (_, number) => String(number));
  const many = await Promise.all(numbers.map((text) => bus.call("echo", { text })));
  assert.deepEqual(many.map(String), numbers);
});

test("each code is an error of its own", async () => {
  await using bus = await (await world()).connect();
  const cases = [
    ["ecko", {}, ToolNotFound, "tool_not_found"],
    ["effect", {}, InvalidArguments, "invalid_arguments"],
    ["write_to", { id: "somebody" }, NotAllowed, "not_allowed"],
    ["private", { id: "x" }, AuthRequired, "auth_required"],
  ] as const;
  for (const [tool, args, kind, code] of cases) {
    const error = await rejection(bus.call(tool, args), kind);
    assert.deepEqual([error.code, error.retryable, error.name], [code, false, kind.name]);
    assert(error.message);
  }
});

test("a rate limit says when to come again", async () => {
  await using bus = await (await world()).connect();
  const calls = [1, 2, 3].map((number) => bus.call("limited", { id: `limit-${number}` }, { retries: 0 }));
  const refused = (await Promise.allSettled(calls)).flatMap((end) => (end.status === "rejected" ? [end.reason] : []));
  assert(refused.length > 0);
  for (const error of refused) {
    assert(error instanceof RateLimited && error.retryable);
    assert(error.retryAfter && error.retryAfter > 0 && error.retryAfter <= 1);
  }
});

test("retries wait until the rate limit allows them", async () => {
  const { connect, backend } = await world();
  await using bus = await connect();
  const names = [randomUUID(), randomUUID(), randomUUID()];
  await Promise.all(names.map((id) => bus.call("limited", { id }, { retries: 20 })));
  assert.deepEqual(
    names.map((name) => backend.effects.get(name)),
    [1, 1, 1],
  );
});

test("too many calls are overloaded", async () => {
  await using bus = await (await world()).connect({ agent: "busy", retries: 0 });
  const calls = Array.from({ length: 6 }, (_, n) => bus.call("slow", { id: `busy-${n}`, seconds: 0.5 }));
  const ends = await Promise.allSettled(calls);
  const refused = ends.flatMap((end) => (end.status === "rejected" ? [end.reason] : []));
  assert(refused.length > 0 && refused.length < ends.length);
  for (const error of refused)
    assert(error instanceof Overloaded && error.retryable && error.outcome === "not_started");
});

test("the deadline goes out with the call", async () => {
  await using bus = await (await world()).connect();
  const began = performance.now();
  const error = await rejection(bus.call("slow", { id: "late", seconds: 3 }, { timeout: 0.5 }), ToolTimeout);
  assert(performance.now() - began < 2_500);
  assert.deepEqual([error.outcome, error.retryable], ["unknown", false]);
  assert.match(error.message, /Tool 'slow'/); // the daemon's own words
  await assert.rejects(bus.call("echo", {}, { timeout: 0 }), RangeError);
});

test("a call is cancelled by its id", async () => {
  const { connect, backend } = await world();
  await using bus = await connect();
  const call = bus.call("slow", { id: "cancelled", seconds: 5 }, { callId: "mine" });
  const cancelled = assert.rejects(call, ToolCancelled);
  await eventually(() => backend.effects.has("cancelled"));
  assert.equal(await bus.cancel("mine", { wait: 5 }), true);
  await cancelled;
  assert.equal(await bus.cancel("nobody's", { wait: 0.3 }), false);
});

test("aborting its signal cancels the call", async () => {
  const { connect, backend } = await world();
  await using bus = await connect();
  const abort = new AbortController();
  const call = bus.call("slow", { id: "aborted", seconds: 5 }, { signal: abort.signal });
  const aborted = assert.rejects(call, { message: "enough" });
  await eventually(() => backend.effects.has("aborted"));
  abort.abort(new Error("enough"));
  await aborted;
  // The client dropped the replies to the cancelled call and to its cancellation, and no others.
  await eventually(() => bus.strays >= 2, "the end of the call", 3_000);
  assert.equal(bus["waiting"].size, 0);
  await assert.rejects(bus.call("echo", {}, { signal: abort.signal }), { message: "enough" });
});

test("progress is streamed before the result", async () => {
  await using bus = await (await world()).connect();
  await eventually(async () => (await bus.tools("registration", { names: ["count"] })).length, "the tool");
  const steps = [];
  for await (const step of bus.stream("count", {}, { timeout: 10 })) steps.push(step);
  const last = steps.pop();
  assert(steps.length > 0 && steps.every((step) => step instanceof Progress && step.total === 3));
  assert(last instanceof Result && last.content === "counted");
  await assert.rejects(bus.stream("ecko").next(), ToolNotFound);
});

test("leaving the loop of a stream cancels the call", async () => {
  await using bus = await (await world()).connect();
  await eventually(async () => (await bus.tools("registration", { names: ["count"] })).length, "the tool");
  for await (const _ of bus.stream("count")) break;
  await eventually(() => bus.strays >= 2, "the end of the call", 3_000);
  assert.equal(bus["waiting"].size, 0);
});

test("a key has one effect", async () => {
  const { connect, backend } = await world();
  await using bus = await connect();
  const [id, key] = [randomUUID(), randomUUID()];
  const results = await Promise.all(Array.from({ length: 5 }, () => bus.call("effect", { id }, { key })));
  assert.deepEqual(new Set(results.map(String)), new Set(["done"]));
  assert.equal(backend.effects.get(id), 1);
  await assert.rejects(bus.call("effect", { id: "another" }, { key }), InvalidArguments);
});

test("what may help is tried again, and nothing else", async () => {
  const { connect, backend } = await world();
  await using bus = await connect();
  const sent: (string | undefined)[][] = [];
  const publish = bus["link"].publish.bind(bus["link"]);
  bus["link"].publish = (topic, request, deadline, isWanted) => {
    sent.push([request.properties.messageId, request.properties.correlationId]);
    return publish(topic, request, deadline, isWanted);
  };
  const id = randomUUID();
  backend.failures = 2;
  assert.equal(String(await bus.call("flaky", { id })), "done");
  assert.equal(backend.effects.get(id), 3);
  // The attempts are one request, but each has a reply of its own.
  const [messages, correlations] = [0, 1].map((index) => new Set(sent.map((ids) => ids[index])).size);
  assert.deepEqual([sent.length, messages, correlations], [3, 1, 3]);
  backend.failures = 9;
  const error = await rejection(bus.call("flaky", { id }, { retries: 1 }), ExecutionFailed);
  assert(error.retryable);
  assert.equal(backend.effects.get(id), 5);
  // With a key the daemon would only repeat its reply.
  await assert.rejects(bus.call("flaky", { id }, { key: randomUUID() }), ExecutionFailed);
  assert.equal(backend.effects.get(id), 6);
  backend.failures = 0;
});

test("tools are listed as models take them", async () => {
  await using bus = await (await world()).connect();
  const names = (await bus.tools()).map((tool) => tool.name);
  for (const name of ["echo", "effect", "slow"]) assert(names.includes(name));
  const [ofOpenAI] = (await bus.tools("openai", { names: ["echo"] })) as OpenAITool[];
  assert.deepEqual([ofOpenAI?.type, ofOpenAI?.function.name], ["function", "echo"]);
  const [ofAnthropic] = (await bus.tools("anthropic", { names: ["echo"] })) as AnthropicTool[];
  assert.equal(ofAnthropic?.input_schema.type, "object");
  await assert.rejects(bus.tools("nonsense" as "openai"), InvalidArguments);
});

test("a session ends", async () => {
  await using bus = await (await world()).connect();
  await using session = bus.session();
  assert.equal(String(await session.call("echo", { text: "in a session" })), "in a session");
  assert((await session.tools("openai")).length > 0);
});

test("the trace goes out with the call", async () => {
  await using bus = await (await world()).connect();
  const traceparent = `00-${"1".repeat(32)}-${"2".repeat(16)}-01`;
  const propagator: TextMapPropagator<Record<string, string>> = {
    inject: (_, carrier) => Object.assign(carrier, { traceparent }),
    extract: () => ROOT_CONTEXT,
    fields: () => ["traceparent"],
  };
  propagation.setGlobalPropagator(propagator as TextMapPropagator);
  const seen: unknown[] = [];
  const receive = bus["link"]["receive"];
  bus["link"]["receive"] = (message) => {
    seen.push(message.properties.headers?.traceparent);
    receive(message);
  };
  await context.with(ROOT_CONTEXT, () => bus.call("echo", { text: "traced" }));
  propagation.disable();
  assert.equal(String(seen[0]).slice(0, 35), traceparent.slice(0, 35));
});

test("arguments that JSON cannot hold are refused before anything is sent", async () => {
  await using bus = await (await world()).connect();
  await assert.rejects(bus.call("echo", { text: Number.NaN }), /text is not a finite number/);
  await assert.rejects(bus.call("echo", { text: 1n }), TypeError);
  await sleep(0);
  assert.equal(bus["waiting"].size, 0);
});

async function rejection<E extends ToolError>(
  call: Promise<unknown>,
  kind: abstract new (...args: never[]) => E,
): Promise<E> {
  try {
    await call;
  } catch (error) {
    assert(error instanceof kind, `${error}`);
    return error;
  }
  throw new assert.AssertionError({ message: `no ${kind.name}` });
}
