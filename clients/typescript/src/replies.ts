/** Requests to a provider of tools, and its replies, as docs/wire.md describes them. */

import type { Message } from "amqplib";
import { InvalidArguments, ToolError } from "./errors.js";
import * as messages from "./messages.js";
import { type Fields, Result } from "./messages.js";

const [DEFAULT_TIME, LONGEST_TIME] = [60_000, 600_000];
const LARGEST = 16 * 1024 * 1024;
const MAX_ERROR = 4_000;
const OUTCOMES = ["not_started", "failed", "unknown"];

/** What a repeated call does. */
export type Effect = "read-only" | "idempotent" | "effectful";

export interface Reply {
  kind: string;
  body: Buffer;
  headers: Record<string, string>;
  tool: string;
  /** Whether the call did not begin, and may succeed later. */
  mayCallAgain?: boolean;
}

export function isSafe(effect: Effect | undefined): boolean {
  return effect === "read-only" || effect === "idempotent";
}

/** Knowledge of the effects of a call that began. */
export function outcomeOf(effect: Effect | undefined): string {
  return isSafe(effect) ? "failed" : "unknown";
}

export function timeOf(message: Message): number {
  const time = Number(messages.header(message, "rb-timeout-ms"));
  return Number.isInteger(time) && time > 0 ? Math.min(time, LONGEST_TIME) : DEFAULT_TIME;
}

/** Id of a call that names none. */
export function id(message: Message): string {
  return message.properties.messageId ?? message.properties.correlationId ?? "";
}

export function caller(message: Message): string {
  return messages.header(message, "source") ?? "unknown";
}

export function invalid(text: string): InvalidArguments {
  return new InvalidArguments("invalid_arguments", text, { outcome: "not_started" });
}

/** Reads the body of a request. */
export function read(message: Message): Fields {
  if (message.content.length > LARGEST) throw invalid("the request is too large");
  try {
    return messages.body(message);
  } catch {
    throw invalid("the request is no JSON object");
  }
}

/** Reads the arguments of a call: an object, or a text that holds one. */
export function objectOf(args: unknown): Fields {
  let read = args ?? {};
  try {
    if (typeof args === "string") read = JSON.parse(args || "{}") ?? {};
  } catch {
    // The text is no object either.
  }
  if (!messages.isObject(read)) throw invalid("the arguments are not a JSON object");
  return read;
}

export function resultReply(toolCallId: string, toolName: string, value: unknown, duration: number): Reply {
  const text = (value: unknown) => (typeof value === "string" ? cut(value) : messages.json(value));
  const { content, isError, blocks } =
    value instanceof Result ? value : new Result(value === undefined ? "" : text(value));
  const whole = blocks.map((block) => (block.text === undefined ? block : { ...block, text: cut(block.text) }));
  const contentBlocks = whole.length > 0 ? whole : undefined;
  const body = messages.encode({ toolCallId, toolName, content: cut(content), contentBlocks, isError });
  if (body.length > LARGEST) throw new RangeError(`the result has ${body.length} bytes; a reply takes ${LARGEST}`);
  const headers = { "rb-rb-duration-ms": String(Math.round(duration)) };
  return { kind: "RockBot.Tools.ToolInvokeResponse", body, headers, tool: toolName };
}

export function errorReply(toolCallId: string, toolName: string, error: ToolError): Reply {
  const { message, retryable: isRetryable, retryAfter, outcome } = error;
  const code = ToolError.isCode(error.code) ? error.code : "execution_failed";
  const wait = Math.ceil((retryAfter ?? Number.NaN) * 1000);
  const body = messages.encode({
    ...{ toolCallId, toolName, code, message: cut(message, MAX_ERROR), isRetryable },
    retryAfterMs: wait >= 0 && Number.isSafeInteger(wait) ? wait : undefined,
    outcome: outcome && OUTCOMES.includes(outcome) ? outcome : undefined,
  });
  const mayCallAgain = isRetryable && outcome === "not_started";
  return { kind: messages.ERROR, body, headers: {}, tool: toolName, mayCallAgain };
}

/** Makes a text short enough, and what is half a character a replacement: JSON for others has none. */
export function cut(text: string, length?: number): string {
  return Buffer.from(text.slice(0, length)).toString();
}
