/** The agent's tools for LangChain.js, the package `@langchain/core`. */

import { DynamicStructuredTool } from "@langchain/core/tools";
import { type AdapterOptions, type Caller, callForModel, listed } from "./loop.js";

/** Makes tools that call over the bus, as long as it is open. An error of a call is text for the model. */
export async function tools(bus: Caller, { timeout }: AdapterOptions = {}): Promise<DynamicStructuredTool[]> {
  return (await listed(bus)).map(
    ({ name, description, parameters }) =>
      new DynamicStructuredTool({
        name,
        description: description ?? name,
        schema: parameters,
        func: async (input, _, config) => (await callForModel(bus, name, input, timeout, config?.signal)).content,
      }),
  );
}
