/** A loop of tool calls with the package `@anthropic-ai/sdk`. */

import type { Anthropic } from "@anthropic-ai/sdk";
import { type Caller, callForModel, type RunOptions, TooManyTurns } from "./loop.js";

type Params = Anthropic.MessageCreateParamsNonStreaming;

/** Lists the agent's tools, for `messages.create`. */
export async function tools(bus: Caller): Promise<Anthropic.Tool[]> {
  return (await bus.tools("anthropic")) as unknown as Anthropic.Tool[];
}

/**
 * Has a model work with the agent's tools until it calls none; returns the whole conversation.
 *
 * `params` go to `messages.create`.
 */
export async function run(
  bus: Caller,
  client: Anthropic,
  params: Omit<Params, "tools" | "stream">,
  { turns = 10, timeout }: RunOptions = {},
): Promise<Anthropic.MessageParam[]> {
  const [messages, offered] = [[...params.messages], await tools(bus)];
  for (let turn = 0; turn < turns; turn++) {
    const { content } = await client.messages.create({ ...params, messages, tools: offered });
    messages.push({ role: "assistant", content });
    const calls = content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) return messages;
    const results = calls.map(async (call): Promise<Anthropic.ToolResultBlockParam> => {
      const result = await callForModel(bus, call.name, call.input, timeout);
      return { type: "tool_result", tool_use_id: call.id, content: result.content, is_error: result.isError };
    });
    messages.push({ role: "user", content: await Promise.all(results) });
  }
  throw new TooManyTurns(turns);
}

export { TooManyTurns };
