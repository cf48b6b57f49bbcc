/** Bodies and headers of messages, as docs/wire.md describes them. */

import type { Message } from "amqplib";
import { InvalidReply, ToolError } from "./errors.js";

export const ERROR = "RockBot.Tools.ToolError";
export const PROGRESS = "Toolbus.ToolProgress";
export const TOOLS_CHANGED = "Toolbus.ToolsChanged";
const UTF8 = new TextDecoder("utf-8", { fatal: true });

/** A JSON object. */
export type Fields = Record<string, unknown>;

/** A part of a result that is not only text, such as an image. */
export interface Block {
  type: string;
  text?: string;
  data?: string;
  mimeType?: string;
  uri?: string;
  [field: string]: unknown;
}

/**
 * Result of a tool. `isError` means that the tool ran and reported a failure; `content` says why.
 *
 * Content comes from outside: it is data, never an instruction.
 */
export class Result {
  constructor(
    readonly content: string,
    readonly isError = false,
    readonly blocks: Block[] = [],
    readonly tool = "",
    readonly callId = "",
    /** Kind of backend that ran: `local`, `rest`, `mcp`, `script` or `remote`. */
    readonly provider?: string,
    /** Run time of the tool, in seconds. */
    readonly duration?: number,
  ) {}

  toString(): string {
    return this.content;
  }

  /** Reads the content as JSON. */
  json<T = unknown>(): T {
    return JSON.parse(this.content);
  }
}

/** Progress of a running call, in the tool's own units. */
export class Progress {
  constructor(
    readonly progress: number,
    readonly total?: number,
    readonly message?: string,
  ) {}
}

/** The tools of the agent have changed; a tool that changed under its name is in neither list. */
export interface ToolsChanged {
  version: string;
  added: string[];
  removed: string[];
}

/** Reads a header of the envelope; those of the daemon begin with a doubled `rb-`. */
export function header(message: Message, name: string): string | undefined {
  const headers = message.properties.headers ?? {};
  const value: unknown = headers[`rb-${name}`] ?? headers[name];
  return value === undefined || value === null ? undefined : String(value);
}

/** Reads the JSON object of a reply; throws the error that a reply of the type `ToolError` says. */
export function body(message: Message): Fields {
  const read = parsed(message);
  if (!isObject(read)) {
    throw new InvalidReply("invalid_reply", "the reply is JSON, but not an object", { outcome: "unknown" });
  }
  if (message.properties.type === ERROR) throw ToolError.fromReply(read);
  return read;
}

/** Reads a reply to a call. */
export function result(message: Message): Result {
  const read = body(message);
  const duration = Number.parseInt(header(message, "rb-duration-ms") ?? "", 10);
  if (typeof read.isError !== "boolean") {
    const text = `a reply of the type ${JSON.stringify(message.properties.type ?? "")} has no result`;
    throw new InvalidReply("invalid_reply", text, { outcome: "unknown" });
  }
  return new Result(
    string(read.content),
    read.isError,
    Array.isArray(read.contentBlocks) ? read.contentBlocks : [],
    string(read.toolName),
    string(read.toolCallId),
    header(message, "rb-tool-provider"),
    Number.isNaN(duration) ? undefined : duration / 1000,
  );
}

/** Reads a list of tools. */
export function tools(message: Message): Fields[] {
  const { tools } = body(message);
  if (!Array.isArray(tools)) throw new InvalidReply("invalid_reply", "the reply has no list of tools");
  return tools;
}

/** Reads a report of progress; undefined if it is unusable, because reports may be lost anyway. */
export function progress(message: Message): Progress | undefined {
  const read = unlessBroken(() => body(message));
  if (typeof read?.progress !== "number") return undefined;
  const total = typeof read.total === "number" ? read.total : undefined;
  return new Progress(read.progress, total, typeof read.message === "string" ? read.message : undefined);
}

/** Reads an announcement; undefined if it is unusable. */
export function toolsChanged(message: Message): ToolsChanged | undefined {
  const read = unlessBroken(() => body(message));
  if (typeof read?.version !== "string" || !Array.isArray(read.added) || !Array.isArray(read.removed)) return undefined;
  return { version: read.version, added: read.added.map(String), removed: read.removed.map(String) };
}

/** Makes JSON without the fields that are undefined. Throws for what JSON cannot hold. */
export function encode(value: Fields): Buffer {
  return Buffer.from(json(value));
}

/** Makes JSON as `encode` does, of any value. */
export function json(value: unknown): string {
  const text: string | undefined = JSON.stringify(value, refuseInfinity);
  if (text === undefined) throw new TypeError(`JSON cannot hold a ${typeof value}`);
  return text;
}

type Telemetry = typeof import("@opentelemetry/api");
let telemetry: Telemetry | undefined;

/** Finds the API of OpenTelemetry, if it is installed. */
export async function findTelemetry(): Promise<void> {
  telemetry ??= await import("@opentelemetry/api").catch(() => undefined);
}

/** Makes headers of the envelope with the current trace, if there is one. */
export function trace(): Record<string, string> {
  const carrier: Record<string, string> = {};
  telemetry?.propagation.inject(telemetry.context.active(), carrier);
  const { traceparent, tracestate } = carrier;
  return { ...(traceparent && { traceparent }), ...(tracestate && { tracestate }) };
}

/** Does work in the trace of a message, if it has one. */
export function inTrace<T>(message: Message, work: () => T): T {
  if (!telemetry) return work();
  const { context, propagation, ROOT_CONTEXT } = telemetry;
  const carrier = { traceparent: header(message, "traceparent"), tracestate: header(message, "tracestate") };
  return context.with(propagation.extract(ROOT_CONTEXT, carrier), work);
}

export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function parsed(message: Message): unknown {
  try {
    return JSON.parse(UTF8.decode(message.content));
  } catch (error) {
    throw new InvalidReply("invalid_reply", `the reply is not JSON: ${error}`, { outcome: "unknown" });
  }
}

function unlessBroken<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Refuses numbers that would become `null`. */
function refuseInfinity(name: string, value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${name} is not a finite number`);
  return value;
}
