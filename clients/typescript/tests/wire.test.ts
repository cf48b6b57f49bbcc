/** Messages of the client: their fields are those of docs/wire, when it writes them and when it reads them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { type TestContext, test } from "node:test";
import { Ajv2020 } from "ajv/dist/2020.js";
import { connect as amqp, type Message } from "amqplib";
import type { Format } from "../src/bus.js";
import { type Fields, Progress, RateLimited, Result, Toolbus, ToolCancelled, ToolError } from "../src/index.js";
import type { Block, ToolsChanged } from "../src/messages.js";
import { type Broker, eventually, world } from "./support.js";

interface Definition {
  properties?: Fields;
  enum?: string[];
}
type Part = "payload" | "headers";
type TypesOfMessages = Record<string, { name: string } & Record<Part, { $ref: string }>>;

const parse = JSON.parse;
const schema: { $defs: Record<string, Definition> } = described("messages.schema.json");
const documented: { components: { messages: TypesOfMessages } } = described("asyncapi.json");
const types = new Map(Object.values(documented.components.messages).map((message) => [message.name, message]));
const ajv = new Ajv2020({ strict: false, validateFormats: false });
ajv.addSchema(closed({ $id: "wire", $defs: schema.$defs }) as Fields);

/** Login of the clients, by which the broker tells their messages from those of the daemon. */
const LOGIN = "wire";
const INVOKE_REQUEST = "RockBot.Tools.ToolInvokeRequest";
const INVOKE_RESPONSE = "RockBot.Tools.ToolInvokeResponse";
const ERROR = "RockBot.Tools.ToolError";
const LIST_REQUEST = "Toolbus.ToolListRequest";
const LIST_RESPONSE = "Toolbus.ToolListResponse";
const CANCEL_REQUEST = "Toolbus.ToolCancelRequest";
const CANCEL_RESPONSE = "Toolbus.ToolCancelResponse";
const PROGRESS = "Toolbus.ToolProgress";
const CHANGED = "Toolbus.ToolsChanged";

/** Messages that the client writes, with the fields that it leaves out: the daemon does not need them. */
const WRITTEN: Record<string, string[]> = {
  [INVOKE_REQUEST]: ["batchId"],
  [INVOKE_RESPONSE]: [],
  [ERROR]: [],
  [LIST_REQUEST]: ["binding", "ifVersion", "profile"],
  [LIST_RESPONSE]: ["notice"],
  [CANCEL_REQUEST]: [],
  [CANCEL_RESPONSE]: [],
  [PROGRESS]: [],
  "Toolbus.SessionEnd": [],
  "Toolbus.ToolAnnouncement": [],
};
/** Messages that the client reads, with the fields that say nothing new to it. */
const READ: Record<string, string[]> = {
  [INVOKE_REQUEST]: ["batchId"],
  [INVOKE_RESPONSE]: [],
  [ERROR]: ["toolCallId", "toolName"],
  [LIST_REQUEST]: ["binding", "format", "names", "profile", "sessionId"],
  [LIST_RESPONSE]: ["agent", "notModified", "notice", "version"],
  [CANCEL_REQUEST]: [],
  [CANCEL_RESPONSE]: ["toolCallId"],
  [PROGRESS]: ["toolCallId", "toolName"],
  [CHANGED]: [],
};

function described<T>(file: string): T {
  return JSON.parse(readFileSync(path.join(import.meta.dirname, "../../../../docs/wire", file), "utf8"));
}

/** Makes a schema that allows no properties but those that it names. */
function closed(part: unknown): unknown {
  if (Array.isArray(part)) return part.map(closed);
  if (typeof part !== "object" || part === null) return part;
  const parts = Object.fromEntries(Object.entries(part).map(([name, inner]) => [name, closed(inner)]));
  return "properties" in parts ? { additionalProperties: false, ...parts } : parts;
}

/** Refuses what does not fit a definition of the schema, or has fields that it does not name. */
function check(definition: string, value: unknown): void {
  const validate = ajv.getSchema(`wire#/$defs/${definition}`);
  assert(validate, definition);
  assert(validate(value), `${definition}: ${ajv.errorsText(validate.errors)}: ${JSON.stringify(value)}`);
}

/** Name of the definition of a message's body or headers. */
function definition(kind: string, part: Part = "payload"): string {
  const type = types.get(kind);
  assert(type, `the type ${kind} is not documented`);
  return type[part].$ref.replace("./messages.schema.json#/$defs/", "");
}

function named(kind: string): string[] {
  return Object.keys(schema.$defs[definition(kind)]?.properties ?? {});
}

/** Names of the fields of each message, without those that are left out. */
function expected(messages: Record<string, string[]>): Record<string, string[]> {
  const fields = (kind: string, without: string[]) => named(kind).filter((name) => !without.includes(name));
  return sorted(Object.entries(messages).map(([kind, without]) => [kind, new Set(fields(kind, without))]));
}

function sorted(fields: Iterable<[string, Set<string>]>): Record<string, string[]> {
  return Object.fromEntries([...fields].map(([kind, names]) => [kind, [...names].sort()]));
}

function add(fields: Map<string, Set<string>>, key: string, names: Iterable<string>): void {
  fields.set(key, new Set([...(fields.get(key) ?? []), ...names]));
}

/** A message as the broker got it. */
interface Sent {
  /** Whether it is of a client. */
  isOwn: boolean;
  body: string;
  properties: Fields & { type: string; timestamp: { value: number } };
  headers: Fields;
}

/** Compares body, properties and headers with the schema. */
function checkSent({ body, properties, headers }: Sent): void {
  const { type, timestamp } = properties;
  check(definition(type), parse(body));
  check("Envelope", { ...properties, timestamp: timestamp.value });
  const which = definition(type, "headers");
  // The schema names headers of requests without the `rb-` that the wire has besides.
  const single = (name: string) => name.replace(/^rb-(?=rb-|traceparent$|tracestate$)/, "");
  const renamed = Object.entries(headers).map(([name, value]) => [single(name), value]);
  check(which, which === "ReplyHeaders" ? headers : Object.fromEntries(renamed));
}

/** Collects all messages that are published until the test ends, whatever their exchange. */
async function tap(context: TestContext, broker: Broker): Promise<Sent[]> {
  const seen: Sent[] = [];
  const connection = await amqp(broker.url());
  context.after(() => connection.close());
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.bindQueue(queue, "amq.rabbitmq.trace", "publish.#");
  const note = (message: Message | null) => {
    if (!message) return;
    const { headers = {}, ...properties } = message.properties.headers?.["properties"] ?? {};
    const isOwn = message.properties.headers?.["user"] === LOGIN;
    seen.push({ isOwn, body: String(message.content), properties, headers });
  };
  await channel.consume(queue, note, { noAck: true });
  await broker.ctl("trace_on");
  context.after(() => broker.ctl("trace_off"));
  return seen;
}

/** Collects the names of the fields that the client reads, by the bodies of the messages, until the test ends. */
function noteReads(context: TestContext): Map<string, Set<string>> {
  const reads = new Map<string, Set<string>>();
  context.mock.method(JSON, "parse", (text: string) => {
    const value: unknown = parse(text);
    if (typeof value !== "object" || value === null) return value;
    const get = (target: object, name: string | symbol) => {
      // `await` asks every value for `then`.
      if (typeof name === "string" && name !== "then") add(reads, text, [name]);
      return Reflect.get(target, name);
    };
    return new Proxy(value, { get });
  });
  return reads;
}

/** Has clients write and read each of their messages, with all fields that they know. */
async function talk(context: TestContext): Promise<void> {
  const { broker } = await world();
  const url = broker.url(LOGIN, "secret");
  await using cara = await Toolbus.connect(url, { agent: "cara", retries: 0 });
  await using provider = await Toolbus.connect(url, { agent: "billing" });
  const changes: ToolsChanged[] = [];
  await cara.onToolsChanged((change) => changes.push(change));
  const image = { type: "image", data: "aGk=", mimeType: "image/png" };
  provider.tool({ name: "scan", effect: "read-only" }, () => new Result("a scan", false, [image]));
  provider.tool({ name: "count", effect: "read-only" }, (_, call) => {
    call.report(1, 2, "half");
    return "counted";
  });
  provider.tool({ name: "refuse" }, () => {
    throw new RateLimited("rate_limited", "Later.", { retryable: true, retryAfter: 1.5, outcome: "not_started" });
  });
  let waits = false;
  provider.tool({ name: "wait" }, (_, { signal }) => {
    waits = true;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  });
  const stop = new AbortController();
  const served = provider.serve({ signal: stop.signal });
  context.after(() => stop.abort());
  const names = ["billing.scan"];
  await eventually(async () => (await cara.tools("mcp", { names })).length === 1, "the list", 20_000);
  await eventually(() => changes.length > 0, "the change");
  await using session = cara.session();
  await session.tools("mcp", { names });
  const scan = await session.call("billing.scan", {}, { key: "of-the-wire", headers: { "rb-model": "a-model" } });
  assert.deepEqual(scan.blocks, [image]);
  const steps = [];
  for await (const step of cara.stream("billing.count")) steps.push(step);
  assert(steps[0] instanceof Progress);
  await assert.rejects(cara.call("billing.refuse"), RateLimited);
  const cancelled = assert.rejects(cara.call("billing.wait", {}, { callId: "of-the-wire" }), ToolCancelled);
  await eventually(() => waits, "the call");
  assert.equal(await cara.cancel("of-the-wire", { wait: 5 }), true);
  await cancelled;
  await session.end();
  await askTwice(broker);
  stop.abort();
  await served;
}

/** Asks the program for its list as a daemon does, and again as one that has it already. */
async function askTwice(broker: Broker): Promise<void> {
  const connection = await amqp(broker.url());
  const channel = await connection.createChannel();
  const replies: Fields[] = [];
  const replyTo = "amq.rabbitmq.reply-to";
  await channel.consume(replyTo, (message) => void replies.push(parse(String(message?.content))), { noAck: true });
  const ask = async (ifVersion?: unknown) => {
    const body = Buffer.from(JSON.stringify({ format: "mcp", ifVersion }));
    channel.publish("rockbot", "tool.list.provider.billing", body, { type: LIST_REQUEST, replyTo });
    await eventually(() => replies.length > 0, "the list");
    return replies.pop();
  };
  const first = await ask();
  assert.equal((await ask(first?.version))?.notModified, true);
  await connection.close();
}

test("messages have the fields of the schema", async (context) => {
  const { broker } = await world();
  await broker.ctl("add_user", LOGIN, "secret");
  await broker.ctl("set_permissions", LOGIN, ".*", ".*", ".*");
  const [seen, reads] = [await tap(context, broker), noteReads(context)];
  await talk(context);
  const has = (kind: string) => seen.some(({ properties }) => properties.type === kind);
  await eventually(() => Object.keys({ ...WRITTEN, ...READ }).every(has), "each message");
  const isSeen = (text: string) => seen.some(({ body }) => body === text);
  await eventually(() => [...reads.keys()].every(isSeen), "each that was read");
  const [written, read] = [new Map<string, Set<string>>(), new Map<string, Set<string>>()];
  for (const sent of seen) {
    const { type } = sent.properties;
    if (sent.isOwn) {
      checkSent(sent);
      add(written, type, Object.keys(parse(sent.body)));
    }
    const names = reads.get(sent.body);
    if (names) {
      check(definition(type), parse(sent.body));
      add(read, type, names);
    }
  }
  assert.deepEqual(sorted(written), expected(WRITTEN));
  assert.deepEqual(sorted(read), expected(READ));
});

/** Names of the fields of a type; the compiler refuses one that is missing or too many. */
type Names<T> = { [Name in keyof T as string extends Name ? never : number extends Name ? never : Name]-?: true };

test("types of the client have the fields and values of the schema", () => {
  const block = { type: true, text: true, data: true, mimeType: true, uri: true } satisfies Names<Block>;
  const progress = { progress: true, total: true, message: true } satisfies Names<Progress>;
  const changed = { version: true, added: true, removed: true } satisfies Names<ToolsChanged>;
  const formats = {
    ...{ registration: true, openai: true, "openai-responses": true, anthropic: true },
    ...{ gemini: true, bedrock: true, mcp: true },
  } satisfies Record<Format, true>;
  const { ContentBlock, Format, Code } = schema.$defs;
  assert.deepEqual(Object.keys(block).sort(), Object.keys(ContentBlock?.properties ?? {}).sort());
  assert.deepEqual(Object.keys(progress).sort(), expected(READ)[PROGRESS]);
  assert.deepEqual(Object.keys(changed).sort(), expected(READ)[CHANGED]);
  assert.deepEqual(Object.keys(formats).sort(), Format?.enum?.toSorted());
  assert(Code?.enum);
  for (const code of Code.enum) assert(ToolError.isCode(code), code);
});
