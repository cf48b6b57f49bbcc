/** The agent's tools in the packages of providers and frameworks, each with a model that is a script. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Anthropic } from "@anthropic-ai/sdk";
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { OpenAI } from "openai";
import * as ai from "../src/ai.js";
import * as anthropic from "../src/anthropic.js";
import * as langchain from "../src/langchain.js";
import * as openai from "../src/openai.js";
import { world } from "./support.js";

type Seen = Record<string, unknown>[];

/** A provider that gives these replies, the last one again and again. */
function says(seen: Seen, ...replies: object[]): typeof fetch {
  return async (_, request) => {
    seen.push(JSON.parse(String(request?.body)));
    return Response.json(replies[Math.min(seen.length, replies.length) - 1]);
  };
}

function ofOpenAI(message: object): object {
  const choice = { index: 0, finish_reason: "stop", message: { role: "assistant", content: null, ...message } };
  return { id: "c", object: "chat.completion", created: 1, model: "m", choices: [choice] };
}

function ofAnthropic(...content: object[]): object {
  const usage = { input_tokens: 1, output_tokens: 1 };
  return { id: "m", type: "message", role: "assistant", model: "m", content, usage };
}

function called(id: string, name: string, args: string): object {
  return { id, type: "function", function: { name, arguments: args } };
}

test("openai: the model calls tools, and reads their results and errors", async () => {
  await using bus = await (await world()).connect();
  const seen: Seen = [];
  const calls = [called("0", "echo", '{"text": "hello"}'), called("1", "ecko", "{}"), called("2", "echo", "no JSON")];
  const fetch = says(seen, ofOpenAI({ tool_calls: calls }), ofOpenAI({ content: "Done." }));
  const client = new OpenAI({ apiKey: "k", fetch });
  const conversation = await openai.run(bus, client, {
    model: "m",
    messages: [{ role: "user", content: "Echo!" }],
  });
  assert.equal(conversation.at(-1)?.content, "Done.");
  const offered = seen[0]?.tools as { function: { name: string } }[];
  assert(offered.some((tool) => tool.function.name === "echo"));
  const messages = seen[1]?.messages as { role: string; tool_call_id: string; content: string }[];
  const results = messages.filter((message) => message.role === "tool");
  assert.deepEqual(
    results.map((result) => result.tool_call_id),
    ["0", "1", "2"],
  );
  assert.equal(results[0]?.content, "hello");
  assert.match(results[1]?.content ?? "", /^tool_not_found: /);
  assert.match(results[2]?.content ?? "", /^invalid_arguments: /);
});

test("openai: a model that does not end is stopped", async () => {
  await using bus = await (await world()).connect();
  const seen: Seen = [];
  const fetch = says(seen, ofOpenAI({ tool_calls: [called("0", "echo", '{"text": "again"}')] }));
  const client = new OpenAI({ apiKey: "k", fetch });
  const params = { model: "m", messages: [{ role: "user" as const, content: "Echo!" }] };
  await assert.rejects(openai.run(bus, client, params, { turns: 2 }), openai.TooManyTurns);
  assert.equal(seen.length, 2);
});

test("anthropic: the model calls tools, and reads their results and errors", async () => {
  await using bus = await (await world()).connect();
  const seen: Seen = [];
  const calls = [
    { type: "tool_use", id: "0", name: "echo", input: { text: "hello" } },
    { type: "tool_use", id: "1", name: "ecko", input: {} },
  ];
  const fetch = says(seen, ofAnthropic(...calls), ofAnthropic({ type: "text", text: "Done." }));
  const client = new Anthropic({ apiKey: "k", fetch });
  const messages = [{ role: "user" as const, content: "Echo!" }];
  const conversation = await anthropic.run(bus, client, { model: "m", max_tokens: 100, messages });
  assert.deepEqual(conversation.at(-1)?.content, [{ type: "text", text: "Done." }]);
  const offered = seen[0]?.tools as { name: string }[];
  assert(offered.some((tool) => tool.name === "echo"));
  const turns = seen[1]?.messages as { content: Record<string, unknown>[] }[];
  const [first, second] = turns.at(-1)?.content ?? [];
  assert.deepEqual([first?.tool_use_id, first?.content, first?.is_error], ["0", "hello", false]);
  assert.equal(second?.is_error, true);
});

test("ai: a model of the AI SDK calls tools, and reads their results and errors", async () => {
  await using bus = await (await world()).connect();
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  const calls = [
    { type: "tool-call" as const, toolCallId: "0", toolName: "echo", input: '{"text": "hello"}' },
    { type: "tool-call" as const, toolCallId: "1", toolName: "effect", input: '{"id": 7}' },
  ];
  const model = new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      const ended = prompt.some((message) => message.role === "tool");
      const content = ended ? [{ type: "text" as const, text: "Done." }] : calls;
      const finishReason = { unified: ended ? ("stop" as const) : ("tool-calls" as const), raw: undefined };
      return { content, finishReason, usage, warnings: [] };
    },
  });
  const tools = await ai.tools(bus);
  const { text, steps } = await generateText({ model, tools, prompt: "Echo!", stopWhen: stepCountIs(5) });
  assert.equal(text, "Done.");
  const results = steps[0]?.toolResults ?? [];
  assert.equal(results[0]?.output, "hello");
  assert.match(String(results[1]?.output), /^invalid_arguments: /);
  const offered = model.doGenerateCalls[0]?.tools?.find((tool) => tool.name === "effect");
  assert(offered?.type === "function");
  assert.deepEqual(offered.inputSchema.required, ["id"]);
});

test("langchain: tools are called, and errors are text", async () => {
  await using bus = await (await world()).connect();
  const tools = new Map((await langchain.tools(bus)).map((tool) => [tool.name, tool]));
  assert.equal(await tools.get("echo")?.invoke({ text: "hello" }), "hello");
  assert.match(await tools.get("write_to")?.invoke({ id: "somebody" }), /^not_allowed: /);
  const schema = tools.get("effect")?.schema as { required: string[] };
  assert.deepEqual(schema.required, ["id"]);
});
