// An agent in one file: a model, its tools, and the loop between them.
//
// It needs a daemon with the tool `echo`: toolbus serve --config config/local-broker.toml
//
// The model is a script, so that this runs without a key. In its place, `run` of `@toolbus/client/openai` and of
// `@toolbus/client/anthropic` is this loop for models of these providers.

import assert from "node:assert";
import { Toolbus, ToolError } from "@toolbus/client";

const URL = process.env.TOOLBUS__BUS__URL ?? "amqp://guest:guest@127.0.0.1:5672/%2f";
const TURNS = 10;

/** Calls one of its tools, and one that it has not, and then says what it got. */
async function model(conversation, tools) {
  assert(tools.some((tool) => tool.function.name === "echo"));
  const results = conversation.filter((message) => message.role === "tool");
  if (results.length > 0) {
    return { role: "assistant", content: results.map((result) => result.content).join("\n") };
  }
  const args = JSON.stringify({ text: "hello" });
  const calls = ["echo", "ecko"].map((name, at) => ({ id: `call_${at}`, function: { name, arguments: args } }));
  return { role: "assistant", content: null, tool_calls: calls };
}

/** The result of a call, or what the model reads to do better. */
async function call(bus, { name, arguments: args }) {
  try {
    return (await bus.call(name, JSON.parse(args), { timeout: 10 })).content;
  } catch (error) {
    if (error instanceof ToolError) return String(error.message);
    throw error;
  }
}

const conversation = [{ role: "user", content: "Say hello with your tools." }];
const bus = await Toolbus.connect(URL, { agent: "ana" });
try {
  const tools = await bus.tools("openai");
  for (let turn = 0; turn < TURNS; turn += 1) {
    const message = await model(conversation, tools);
    conversation.push(message);
    if (!message.tool_calls) break;
    const results = await Promise.all(message.tool_calls.map((one) => call(bus, one.function)));
    message.tool_calls.forEach((one, at) => {
      conversation.push({ role: "tool", tool_call_id: one.id, content: results[at] });
    });
  }
} finally {
  await bus.close();
}
console.log(conversation.at(-1).content);
