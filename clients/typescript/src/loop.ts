/** Shared by adapters to models and agent frameworks. */

import { ToolbusError, ToolError } from "./errors.js";
import { type Fields, isObject, Result } from "./messages.js";

/** `Toolbus`, a `Session` of it, or the client of `Toolbus.mcp`. */
export interface Caller {
  call(
    tool: string,
    args?: Fields,
    options?: { timeout?: number | undefined; signal?: AbortSignal | undefined },
  ): Promise<Result>;
  tools(format: "openai" | "anthropic"): Promise<Fields[]>;
}

export interface AdapterOptions {
  /** Deadline of each call of a tool, in seconds: 60. */
  timeout?: number;
}

export interface RunOptions extends AdapterOptions {
  /** Turns of the model after which it is stopped: 10. */
  turns?: number;
}

/** A tool as the format `openai` has it. */
export interface Listed {
  name: string;
  description?: string;
  parameters: Fields;
}

/** The model called tools in each of its turns. */
export class TooManyTurns extends ToolbusError {
  constructor(turns: number) {
    super(`the model still called tools after ${turns} turns`);
  }
}

/** Lists the agent's tools, for frameworks. */
export async function listed(bus: Caller): Promise<Listed[]> {
  return (await bus.tools("openai")).map((tool) => tool.function as Listed);
}

/** Calls a tool as a model wrote it. An error of the call is a result: the model reads what to do next. */
export async function callForModel(
  bus: Caller,
  tool: string,
  args: unknown,
  timeout = 60,
  signal?: AbortSignal,
): Promise<Result> {
  let read = args;
  try {
    if (typeof args === "string") read = JSON.parse(args || "{}");
  } catch {
    // The text is no object either.
  }
  if (!isObject(read)) return new Result("invalid_arguments: the arguments are not a JSON object", true);
  try {
    return await bus.call(tool, read, { timeout, signal });
  } catch (error) {
    if (!(error instanceof ToolError)) throw error;
    return new Result(`${error.code}: ${error.message}`, true);
  }
}
