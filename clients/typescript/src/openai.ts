/** A loop of tool calls with the package `openai`. */

import type { OpenAI } from "openai";
import { type Caller, callForModel, type RunOptions, TooManyTurns } from "./loop.js";

type Tool = OpenAI.Chat.Completions.ChatCompletionFunctionTool;
type Message = OpenAI.Chat.Completions.ChatCompletionMessageParam;
type Params = OpenAI.Chat.Completions.ChatCompletionCreateParamsNonStreaming;

/** Lists the agent's tools, for `chat.completions.create`. */
export async function tools(bus: Caller): Promise<Tool[]> {
  return (await bus.tools("openai")) as unknown as Tool[];
}

/**
 * Has a model work with the agent's tools until it calls none; returns the whole conversation.
 *
 * `params` go to `chat.completions.create`.
 */
export async function run(
  bus: Caller,
  client: OpenAI,
  params: Omit<Params, "tools" | "stream">,
  { turns = 10, timeout }: RunOptions = {},
): Promise<Message[]> {
  const [messages, offered] = [[...params.messages], await tools(bus)];
  for (let turn = 0; turn < turns; turn++) {
    const completion = await client.chat.completions.create({
      ...params,
      messages,
      ...(offered.length > 0 && { tools: offered }),
    });
    const message = completion.choices[0]?.message;
    if (!message) return messages;
    messages.push(message);
    const calls = (message.tool_calls ?? []).filter((call) => call.type === "function");
    if (calls.length === 0) return messages;
    messages.push(
      ...(await Promise.all(
        calls.map(async ({ id, function: called }): Promise<Message> => {
          const { content } = await callForModel(bus, called.name, called.arguments, timeout);
          return { role: "tool", tool_call_id: id, content };
        }),
      )),
    );
  }
  throw new TooManyTurns(turns);
}

export { TooManyTurns };
