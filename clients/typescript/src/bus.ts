/** The client: calls tools of a daemon over RabbitMQ. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConsumeMessage, Message } from "amqplib";
import { Misuse, ToolTimeout } from "./errors.js";
import { type Session as Connection, Link, type Request } from "./link.js";
import type { McpOptions, McpToolbus } from "./mcp.js";
import type { Fields, Progress, Result, ToolsChanged } from "./messages.js";
import * as messages from "./messages.js";
import { Provider, type ServeOptions, type ToolDefinition } from "./provider.js";
import { after, left, now, retrying } from "./retrying.js";
import type { Handler } from "./running.js";

/** The daemon keeps the deadline itself; its reply about that is on the way for a moment. */
const GRACE = 1_000;
/** Reports of progress that a slow reader may be behind. */
const MAX_REPORTS = 1_000;
const INVOKE = "tool.invoke";

export interface ConnectOptions {
  /** Name of the agent that calls. */
  agent: string;
  /** Deadline of calls that have none of their own, in seconds: 60. */
  timeout?: number;
  /** Attempts after the first, of calls that say nothing else: 3. */
  retries?: number;
  exchange?: string;
  topic?: string;
  /** Headers of the envelope of each call: `rb-tool-profile`, `rb-binding`, `rb-model`, …. */
  headers?: Record<string, string>;
}

export interface CallOptions {
  /** Deadline of all attempts together, in seconds; it goes out with the request. */
  timeout?: number | undefined;
  /** Identifies the call for good: with the same key it has one effect, from any process. */
  key?: string | undefined;
  /** Attempts after the first, of what the daemon calls retryable. */
  retries?: number | undefined;
  /** Cancels the call, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Id for `cancel`. */
  callId?: string | undefined;
  session?: string | undefined;
  headers?: Record<string, string> | undefined;
  /** Called with each report of progress. */
  progress?: ((report: Progress) => void) | undefined;
}

export interface ToolsOptions {
  names?: readonly string[] | undefined;
  session?: string | undefined;
  /** In seconds: 10. */
  timeout?: number | undefined;
}

/** A format of a list of tools. */
export type Format = "registration" | "openai" | "openai-responses" | "anthropic" | "gemini" | "bedrock" | "mcp";

interface Question {
  topic: string;
  kind: string;
  body: Buffer;
  deadline: number;
  /** Id of the message, if several attempts are one request. */
  request?: string;
  headers?: Record<string, string>;
  accepts?: (reply: Message) => boolean;
  progress?: ((report: Progress) => void) | undefined;
  signal?: AbortSignal | undefined;
  grace?: number;
}

/** Waits for the reply to one request. */
class Waiter {
  /** The reply; undefined if the request has to go out again. */
  readonly reply: Promise<ConsumeMessage | undefined>;
  resolve!: (reply: ConsumeMessage | undefined) => void;
  reject!: (error: unknown) => void;
  /** Connection over which the request went out. */
  connection: Connection | undefined;

  constructor(readonly question: Question) {
    this.reply = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Notes where the request went. */
  sentOver(connection: Connection): void {
    this.connection = connection;
    if (connection.isLost) this.lost(connection);
  }

  /** Has the request go out again if its reply does not come: the queue is deleted, or there was none. */
  lost(connection: Connection): void {
    if (this.connection && (connection.queueDeleted || !this.connection.durable)) this.resolve(undefined);
  }
}

/**
 * Calls tools as one agent.
 *
 *     const bus = await Toolbus.connect("amqp://guest:guest@127.0.0.1:5672/%2f", { agent: "ana" });
 *     console.log(String(await bus.call("get_weather", { city: "Lima" }, { timeout: 5 })));
 *     await bus.close();
 */
export class Toolbus implements AsyncDisposable {
  readonly agent: string;
  readonly timeout: number;
  readonly retries: number;
  /**
   * Number of messages that were dropped: replies that no call waited for (late, repeated, or for another client), and
   * requests to tools of this program that name no address for the reply, or did not come over its topics.
   */
  strays = 0;
  private readonly topic: string;
  private readonly headers: Record<string, string>;
  private readonly link: Link;
  private readonly provider: Provider;
  private readonly waiting = new Map<string, Waiter>();
  private readonly listeners = new Set<(change: ToolsChanged) => void>();
  private readonly background = new Set<Promise<unknown>>();
  private closed = false;

  private constructor(url: string, options: ConnectOptions) {
    if (!options?.agent) throw new Misuse('the client calls as an agent: Toolbus.connect(url, { agent: "…" })');
    this.agent = options.agent;
    this.timeout = options.timeout ?? 60;
    this.retries = options.retries ?? 3;
    this.topic = options.topic ?? INVOKE;
    this.headers = options.headers ?? {};
    const queue = `reply.${this.agent}.${id()}`;
    const receive = (message: ConsumeMessage) => this.receive(message);
    this.link = new Link(url, options.exchange ?? "rockbot", queue, receive, (session) => this.lost(session));
    this.provider = new Provider(
      this.agent,
      this.link,
      (...request) => this.request(...request),
      () => {
        this.strays += 1;
      },
    );
  }

  /** Connects; throws a `BusError` that says what is wrong. */
  static async connect(url: string, options: ConnectOptions): Promise<Toolbus> {
    const bus = new Toolbus(url, options);
    await messages.findTelemetry();
    await bus.link.open();
    return bus;
  }

  /** Makes a client with the same `call` and `tools`, over the daemon's MCP server. */
  static async mcp(url: string, token?: string, options?: McpOptions): Promise<McpToolbus> {
    const { McpToolbus } = await import("./mcp.js").catch((cause) => {
      throw new Misuse("Toolbus.mcp needs a package: npm install @modelcontextprotocol/sdk", { cause });
    });
    return McpToolbus.connect(url, token, options);
  }

  /** Ends `serve`, as its signal does, and disconnects; calls that still wait fail. */
  async close(): Promise<void> {
    const stopped = this.provider.stop(); // its functions may still call tools
    if (stopped) await stopped;
    if (this.closed) return;
    this.closed = true;
    await Promise.race([Promise.allSettled(this.background), sleep(GRACE, undefined, { ref: false })]);
    for (const waiter of this.waiting.values()) waiter.reject(new Misuse("the client was closed during the call"));
    await this.link.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Calls a tool, and returns its result; throws a `ToolError`, or a `BusError` if no daemon got the request. */
  async call(tool: string, args: Fields = {}, options: CallOptions = {}): Promise<Result> {
    const { key, signal, progress } = options;
    signal?.throwIfAborted();
    const deadline = after(options.timeout ?? this.timeout);
    const request = id();
    const callId = options.callId ?? request;
    const body = messages.encode({ toolCallId: callId, toolName: tool, arguments: args, sessionId: options.session });
    const headers = { ...this.headers, ...options.headers };
    if (key !== undefined) headers["rb-idempotency-key"] = key;
    if (progress) headers["rb-progress"] = "1";
    const kind = "RockBot.Tools.ToolInvokeRequest";
    const question = { topic: this.topic, kind, body, deadline, request, headers, progress, signal };
    const attempt = async () => messages.result(await this.ask(question));
    try {
      return await retrying(attempt, deadline, options.retries ?? this.retries, key, signal);
    } catch (error) {
      if (signal?.aborted) this.inBackground(this.sendCancel(callId));
      throw error;
    }
  }

  /** Calls a tool as `call` does; yields each `Progress`, then the `Result`. Leaving the loop cancels the call. */
  async *stream(tool: string, args: Fields = {}, options: CallOptions = {}): AsyncGenerator<Progress | Result, void> {
    const reports: Progress[] = [];
    const leaving = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, leaving.signal]) : leaving.signal;
    let woken = () => {};
    const progress = (report: Progress) => {
      if (reports.length < MAX_REPORTS) reports.push(report);
      woken();
    };
    let ended = false;
    const call = this.call(tool, args, { ...options, progress, signal }).finally(() => {
      ended = true;
      woken();
    });
    call.catch(() => {}); // it is awaited below, unless the loop is left before
    try {
      while (reports.length > 0 || !ended) {
        const report = reports.shift();
        if (report) yield report;
        else await new Promise<void>((resolve) => (woken = resolve));
      }
      yield await call;
    } finally {
      if (!ended) leaving.abort();
    }
  }

  /** Cancels this agent's calls with the id. True once a daemon says that it did; false if none does in time. */
  async cancel(callId: string, { wait = 1 }: { wait?: number } = {}): Promise<boolean> {
    const [kind, body] = ["Toolbus.ToolCancelRequest", messages.encode({ toolCallId: callId })];
    const accepts = (reply: Message) => messages.body(reply).cancelled === true; // every daemon replies
    try {
      await this.ask({ topic: "tool.cancel", kind, body, deadline: after(wait), accepts, grace: 0 });
      return true;
    } catch (error) {
      if (error instanceof ToolTimeout) return false;
      throw error;
    }
  }

  /** Lists the tools of the agent, in one of the formats. */
  async tools(format: Format = "registration", options: ToolsOptions = {}): Promise<Fields[]> {
    const body = messages.encode({ format, names: options.names, sessionId: options.session });
    const [topic, kind] = [this.topic.replace(INVOKE, "tool.list"), "Toolbus.ToolListRequest"];
    const deadline = after(options.timeout ?? 10);
    return messages.tools(await this.ask({ topic, kind, body, deadline, headers: this.headers }));
  }

  /** Begins a session: what the daemon starts for it ends with it. */
  session(sessionId: string = id()): Session {
    return new Session(this, sessionId);
  }

  /** Ends a session. */
  async endSession(sessionId: string): Promise<void> {
    this.refuseIfClosed();
    const request = this.request("Toolbus.SessionEnd", messages.encode({ sessionId }), id());
    await this.link.publish("tool.session.end", request, after(this.timeout));
  }

  /** Has a function called when the tools of the agent change. List them after this, and no change is missed. */
  async onToolsChanged(listener: (change: ToolsChanged) => void): Promise<void> {
    this.refuseIfClosed();
    await this.link.bind(`tool.meta.tools.${this.agent}`);
    this.listeners.add(listener);
  }

  /** Offers a function as a tool, under the name of this agent; `serve` has daemons call it. */
  tool<Args = Fields>(definition: ToolDefinition<Args>, run: Handler<Args>): void {
    this.refuseIfClosed();
    this.provider.add(definition, run);
  }

  /** Takes calls of the tools of this program until the signal aborts, and then lets those that run end. */
  async serve(options: ServeOptions = {}): Promise<void> {
    this.refuseIfClosed();
    await this.provider.serve(options);
  }

  private refuseIfClosed(): void {
    if (this.closed) throw new Misuse("the client is closed");
  }

  private request(kind: string, body: Buffer, correlationId: string, question?: Question): Request {
    const headers: Record<string, string> = { "rb-source": this.agent };
    const envelope = { ...question?.headers, ...messages.trace() };
    for (const [name, value] of Object.entries(envelope)) headers[`rb-${name}`] = value;
    const properties: Request["properties"] = {
      type: kind,
      contentType: "application/json",
      persistent: true,
      messageId: question?.request ?? correlationId,
      correlationId,
      timestamp: Math.floor(Date.now() / 1000),
      userId: this.link.login,
      headers,
    };
    if (question) {
      const time = Math.ceil(left(question.deadline));
      headers["rb-rb-timeout-ms"] = String(time);
      properties.expiration = String(time + GRACE);
    }
    return { body, properties };
  }

  /** Publishes one request, and waits for its reply. */
  private async ask(question: Question): Promise<ConsumeMessage> {
    this.refuseIfClosed();
    const { topic, deadline, signal, grace = GRACE } = question;
    signal?.throwIfAborted();
    // Each attempt has its own: the second reply to an earlier one is dropped.
    const correlation = id();
    const request = this.request(question.kind, question.body, correlation, question);
    const isWanted = () => this.waiting.has(correlation);
    const fail = (error: unknown) => this.waiting.get(correlation)?.reject(error);
    const abort = () => fail(signal?.reason);
    const late = `no reply within ${Math.round(left(deadline)) / 1000} s: is a daemon running?`;
    const timer = setTimeout(
      () => fail(new ToolTimeout("timeout", late, { outcome: "unknown" })),
      left(deadline + grace),
    );
    signal?.addEventListener("abort", abort);
    try {
      for (let sent = false; ; sent = true) {
        const waiter = new Waiter(question);
        this.waiting.set(correlation, waiter);
        // The daemon knows a request that goes out again by its id.
        const published = this.link.publish(topic, request, deadline, isWanted, sent).then((connection) => {
          waiter.sentOver(connection);
          return waiter.reply;
        });
        const reply = await Promise.race([published, waiter.reply]);
        if (reply) return reply;
      }
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      this.waiting.delete(correlation);
    }
  }

  private receive(message: ConsumeMessage): void {
    const { type, correlationId } = message.properties;
    const change = `tool.meta.tools.${this.agent}`;
    if (type === messages.TOOLS_CHANGED && message.fields.routingKey === change) {
      this.announce(messages.toolsChanged(message));
      return;
    }
    const waiter = this.waiting.get(correlationId);
    if (!waiter) {
      this.strays += 1;
    } else if (type === messages.PROGRESS) {
      const report = messages.progress(message);
      const listener = waiter.question.progress;
      if (report && listener) queueMicrotask(() => listener(report));
    } else {
      try {
        if (waiter.question.accepts?.(message) === false) return;
        this.waiting.delete(correlationId); // a second reply is dropped
        waiter.resolve(message);
      } catch (error) {
        waiter.reject(error);
      }
    }
  }

  private announce(change: ToolsChanged | undefined): void {
    if (!change) this.strays += 1;
    // A listener that throws ends the process, as any callback does, and not the channel that called it.
    else for (const listener of this.listeners) queueMicrotask(() => listener(change));
  }

  private lost(connection: Connection): void {
    for (const waiter of this.waiting.values()) waiter.lost(connection);
  }

  private async sendCancel(callId: string): Promise<void> {
    const body = messages.encode({ toolCallId: callId });
    await this.link.publish("tool.cancel", this.request("Toolbus.ToolCancelRequest", body, id()), now() + GRACE);
  }

  private inBackground(work: Promise<void>): void {
    const done = work.catch(() => {}).finally(() => this.background.delete(done));
    this.background.add(done);
  }
}

/** A session of `Toolbus.session`; the same id of two agents is two sessions. */
export class Session implements AsyncDisposable {
  constructor(
    readonly bus: Toolbus,
    readonly id: string,
  ) {}

  /** As `Toolbus.call`, in this session. */
  call(tool: string, args?: Fields, options?: CallOptions): Promise<Result> {
    return this.bus.call(tool, args, { ...options, session: this.id });
  }

  /** As `Toolbus.stream`, in this session. */
  stream(tool: string, args?: Fields, options?: CallOptions): AsyncGenerator<Progress | Result, void> {
    return this.bus.stream(tool, args, { ...options, session: this.id });
  }

  /** As `Toolbus.tools`, with the tools of this session. */
  tools(format?: Format, options?: ToolsOptions): Promise<Fields[]> {
    return this.bus.tools(format, { ...options, session: this.id });
  }

  /** Ends the session. */
  end(): Promise<void> {
    return this.bus.endSession(this.id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }
}

function id(): string {
  return randomUUID().replaceAll("-", "");
}
