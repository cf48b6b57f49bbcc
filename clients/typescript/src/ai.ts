/** The agent's tools for the AI SDK of Vercel, the package `ai`. */

import { dynamicTool, jsonSchema, type ToolSet } from "ai";
import { type AdapterOptions, type Caller, callForModel, listed } from "./loop.js";

/** Makes tools that call over the bus, as long as it is open. An error of a call is text for the model. */
export async function tools(bus: Caller, { timeout }: AdapterOptions = {}): Promise<ToolSet> {
  const set: ToolSet = {};
  for (const { name, description, parameters } of await listed(bus)) {
    set[name] = dynamicTool({
      description: description ?? name,
      inputSchema: jsonSchema(parameters),
      execute: async (input, { abortSignal }) => (await callForModel(bus, name, input, timeout, abortSignal)).content,
    });
  }
  return set;
}
