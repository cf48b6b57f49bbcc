/** Tools of this program: what a daemon asks of them is answered here. */

import { createHash, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConfirmChannel, ConsumeMessage, Message, Options } from "amqplib";
import { BusError, Misuse, NotAllowed, NotPermitted, type ToolError } from "./errors.js";
import type { Link, Request } from "./link.js";
import type { Fields } from "./messages.js";
import * as messages from "./messages.js";
import { caller, type Effect, errorReply, id, type Reply, read } from "./replies.js";
import { after } from "./retrying.js";
import { Calls, type Handler, type Tool } from "./running.js";
import { checked, type Schema } from "./schema.js";

/** Seconds in which the broker has to take a reply. */
const REPLY_TIME = 30;
/** Milliseconds until the next attempt to serve, after a channel was lost. */
const PAUSE = 200;
/** Milliseconds that the replies to cancelled calls get at the end. */
const FAREWELL = 5_000;
const NAME = /^[A-Za-z0-9._-]{1,64}$/;
const [LIST, MAX_LIST] = ["Toolbus.ToolListRequest", 65_536];
const [CANCEL, MAX_CANCEL] = ["Toolbus.ToolCancelRequest", 4_096];
/** Requests for the list, and cancellations, that a process may be behind. */
const MAX_CONTROLS = 10_000;

const ANNOTATIONS: Record<Effect, Fields> = {
  "read-only": { readOnlyHint: true, destructiveHint: false, idempotentHint: true },
  idempotent: { readOnlyHint: false, idempotentHint: true },
  effectful: { readOnlyHint: false, destructiveHint: true, idempotentHint: false },
};

export interface ToolDefinition<Args = Fields> {
  name: string;
  title?: string;
  description?: string;
  /**
   * JSON Schema of an object: the daemon validates arguments against it; here only its `required` is checked. Or a
   * schema of zod 4 or the like (Standard Schema with JSON Schema), which validates them here, too.
   */
  parameters?: Fields | Schema<Args>;
  /** Undeclared, it counts as one that must not be repeated. */
  effect?: Effect;
}

export interface ServeOptions {
  /** Calls at a time: 16. */
  concurrency?: number | undefined;
  /** Seconds that running calls have at the end: 30. */
  drain?: number | undefined;
  /** Logins whose calls count: by default all that may publish on the topic. */
  daemons?: readonly string[] | undefined;
  /** Ends the service. */
  signal?: AbortSignal | undefined;
  /** Gets what went wrong in a function, or with its reply; `console.error` by default. Callers are not told. */
  onError?: ((error: unknown, tool: string) => void) | undefined;
}

/** A channel that is served. */
interface Open {
  channel: ConfirmChannel;
  consumer: string;
  lost: Promise<void>;
}

type Enveloped = (kind: string, body: Buffer, correlationId: string) => Request;

/** Serves the tools of one client. */
export class Provider {
  private readonly tools = new Map<string, Tool>();
  private readonly calls = new Calls(this.tools, this);
  private readonly work = new Set<Promise<void>>();
  private options: ServeOptions = {};
  private stopping: AbortController | undefined;
  private served: Promise<void> | undefined;
  private mayAnnounce = true;

  constructor(
    private readonly agent: string,
    private readonly link: Link,
    private readonly enveloped: Enveloped,
    /** Counts a message that is of no use. */
    private readonly dropped: () => void,
  ) {}

  /** Offers a tool. */
  add<Args>(definition: ToolDefinition<Args>, run: Handler<Args>): void {
    const { name, title, description, effect } = definition;
    if (!name) throw new Misuse("a tool has a name");
    if (this.tools.has(name)) throw new Misuse(`there is a tool '${name}' already`);
    const annotations = effect && ANNOTATIONS[effect];
    if (effect && !annotations) throw new Misuse(`no effect of a tool: '${effect}'`);
    const { inputSchema, check } = checked(name, definition.parameters);
    const listed = { name, title, description, inputSchema, annotations };
    messages.encode(listed); // throws for what cannot be listed
    this.tools.set(name, { listed, effect, check, run });
    if (this.served) void this.announce();
  }

  /** Serves until it is stopped, and then lets calls end. */
  serve(options: ServeOptions): Promise<void> {
    const { concurrency = 16, drain = 30, signal } = options;
    if (this.served) throw new Misuse("the client serves its tools already");
    if (!NAME.test(this.agent)) {
      throw new Misuse(`a provider has a name of up to 64 letters, digits, '.', '_' and '-', not '${this.agent}'`);
    }
    if (!(Number.isInteger(concurrency) && concurrency > 0 && concurrency < 65_536)) {
      throw new RangeError(`concurrency is a number of calls from 1 to 65535, not ${concurrency}`);
    }
    if (!(drain >= 0)) throw new RangeError(`drain is a number of seconds, not ${drain}`);
    const stopping = new AbortController();
    const stop = () => stopping.abort();
    [this.options, this.stopping] = [options, stopping];
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    this.served = this.listen(concurrency, drain * 1000, stopping.signal).finally(() => {
      signal?.removeEventListener("abort", stop);
      this.calls.cancelAll();
      this.served = undefined;
    });
    return this.served;
  }

  /** Has `serve` end, if it runs. */
  stop(): Promise<void> | undefined {
    this.stopping?.abort();
    return this.served?.catch(() => {}); // who serves is told
  }

  private async listen(concurrency: number, drain: number, stop: AbortSignal): Promise<void> {
    const stopped = new Promise<void>((resolve) => stop.addEventListener("abort", () => resolve()));
    let open: Open | undefined;
    while (!stop.aborted) {
      try {
        open = await this.link.channel(after(1), (channel) => this.open(channel, concurrency));
        void this.announce();
        await Promise.race([open.lost, stopped]);
      } catch (error) {
        // Others say that there is no broker or no exchange yet.
        if (error instanceof NotPermitted || error instanceof Misuse) throw error;
      }
      await sleep(PAUSE, undefined, { signal: stop }).catch(() => {});
    }
    const { channel, consumer } = open ?? {};
    if (consumer) await quietly(async () => channel?.cancel(consumer));
    await Promise.all([this.empty(), this.drain(drain)]);
    await quietly(async () => channel?.close());
    await this.empty();
  }

  get isStopping(): boolean {
    return this.stopping?.signal.aborted ?? false;
  }

  private get queue(): string {
    return `provider.${this.agent}`;
  }

  private topic(kind: "invoke" | "list"): string {
    return `tool.${kind}.provider.${this.agent}`;
  }

  /** Whether a message came to a topic, as the broker permits it, and not to a queue by its name. */
  private isOn(topic: string, { fields }: Message): boolean {
    return fields.exchange === this.link.exchange && fields.routingKey === topic;
  }

  private async open(channel: ConfirmChannel, concurrency: number): Promise<Open> {
    const { exchange } = this.link;
    let lose = () => {};
    const lost = new Promise<void>((resolve) => {
      lose = resolve;
      channel.on("close", resolve);
    });
    await channel.assertQueue(this.queue, { durable: true, expires: 10_000, arguments: { "x-queue-type": "classic" } });
    await channel.bindQueue(this.queue, exchange, this.topic("invoke"));
    const controls = (await channel.assertQueue("", { exclusive: true, maxLength: MAX_CONTROLS })).queue;
    for (const topic of [this.topic("list"), "tool.cancel"]) await channel.bindQueue(controls, exchange, topic);
    await channel.consume(controls, (message) => (message ? this.control(message) : lose()), { noAck: true });
    await channel.prefetch(concurrency);
    const begin = (message: ConsumeMessage | null) => {
      if (!message) return lose();
      const work = this.handle(channel, message).finally(() => this.work.delete(work));
      this.work.add(work);
    };
    return { channel, lost, consumer: (await channel.consume(this.queue, begin)).consumerTag };
  }

  /** Says that the tools may be others now. Daemons also ask by themselves. */
  private async announce(): Promise<void> {
    if (!this.mayAnnounce) return;
    const request = this.enveloped("Toolbus.ToolAnnouncement", messages.encode({}), randomUUID());
    request.properties.mandatory = false;
    try {
      await this.link.publish("tool.announce", request, after(10));
    } catch (error) {
      if (!(error instanceof NotPermitted)) return;
      this.mayAnnounce = false; // each attempt would cost the connection
      this.failed(error, "");
    }
  }

  /** Lets calls end, and cancels those that do not in time. */
  private async drain(time: number): Promise<void> {
    const idle = async (time: number) => {
      const late = new AbortController();
      const ends = sleep(time, undefined, { signal: late.signal }).catch(() => {});
      await Promise.race([Promise.all(this.work), ends]);
      late.abort();
    };
    await idle(time);
    this.calls.cancelAll();
    await idle(FAREWELL);
  }

  /** Answers what is still in the queue, unless others serve it, and deletes it. */
  private async empty(): Promise<void> {
    for (let attempt = 0; attempt < 5; attempt++) {
      try {
        return await this.link.channel(after(1), async (channel) => {
          const { consumerCount } = await channel.checkQueue(this.queue);
          if (consumerCount === 0) {
            const answered = [];
            for (let message = await channel.get(this.queue); message; message = await channel.get(this.queue)) {
              answered.push(this.handle(channel, message));
            }
            await Promise.all(answered);
            await channel.deleteQueue(this.queue, { ifUnused: true, ifEmpty: true });
          }
          await channel.close();
        });
      } catch (error) {
        // In use again, or filled again; else the broker deletes it soon, or has.
        if (!(error instanceof NotPermitted)) return;
      }
    }
  }

  /** Answers a call, and only then acknowledges it. */
  private async handle(channel: ConfirmChannel, message: Message): Promise<void> {
    if (!message.properties.replyTo || !this.isOn(this.topic("invoke"), message)) this.dropped();
    else if (!this.isFromDaemon(message)) await this.send(message, this.refused(message));
    else await this.send(message, await this.calls.once(message));
    try {
      channel.ack(message);
    } catch {
      // The channel was lost: the call comes again, and gets the same reply.
    }
  }

  /** Takes what each process gets, and calls do not hold up. */
  private control(message: Message): void {
    const { type, replyTo } = message.properties;
    const isAllowed = this.isFromDaemon(message);
    const size = message.content.length;
    if (type === LIST && replyTo && this.isOn(this.topic("list"), message)) {
      if (size > MAX_LIST || this.isStopping) return; // others may serve other tools now
      this.tell(message, isAllowed ? this.list(message) : this.refused(message));
    } else if (type === CANCEL && this.isOn("tool.cancel", message)) {
      if (size <= MAX_CANCEL && isAllowed) this.cancel(message);
    } else this.dropped();
  }

  private isFromDaemon(message: Message): boolean {
    return this.options.daemons?.includes(message.properties.userId) ?? true;
  }

  private refused(message: Message): Reply {
    const text = "This login may not call the tools of this provider.";
    return errorReply(id(message), "", new NotAllowed("not_allowed", text, { outcome: "not_started" }));
  }

  private list(message: Message): Reply {
    try {
      const { ifVersion } = read(message);
      const tools = [...this.tools.values()].map(({ listed }) => listed);
      tools.sort((one, other) => (String(one.name) < String(other.name) ? -1 : 1));
      const version = createHash("sha256").update(messages.json(tools)).digest("hex");
      const notModified = ifVersion === version || undefined;
      const agent = caller(message);
      const body = messages.encode({ agent, version, tools: notModified ? [] : tools, notModified });
      return { kind: "Toolbus.ToolListResponse", body, headers: {}, tool: "" };
    } catch (error) {
      return errorReply(id(message), "", error as ToolError);
    }
  }

  private cancel(message: Message): void {
    try {
      const { toolCallId } = read(message);
      const body = messages.encode({ toolCallId, cancelled: this.calls.cancel(caller(message), toolCallId) });
      const reply = { kind: "Toolbus.ToolCancelResponse", body, headers: {}, tool: "" };
      if (message.properties.replyTo) this.tell(message, reply);
    } catch {
      this.dropped();
    }
  }

  /** Tells the program what its callers are not told. */
  failed(error: unknown, name: string): void {
    const { onError = (error, tool) => console.error(`Tool '${tool}':`, error) } = this.options;
    queueMicrotask(() => onError(error, name));
  }

  /** Sends a reply until the broker has it. */
  private async send(message: Message, reply: Reply): Promise<void> {
    const { replyTo } = message.properties;
    // The broker returns also what it delivers to such an address.
    const mandatory = !replyTo.startsWith("amq.rabbitmq.reply-to.");
    try {
      await this.link.publish(replyTo, this.addressed(message, reply, { mandatory }), after(REPLY_TIME));
    } catch (cause) {
      this.failed(new BusError("a reply did not reach its caller", { cause }), reply.tool);
    }
  }

  /** Publishes once what may be lost, if it is still wanted then. */
  tell(message: Message, reply: Reply, isWanted: () => boolean = () => true): void {
    const request = this.addressed(message, reply, { mandatory: false, persistent: false });
    let attempts = 0;
    const isFirst = () => isWanted() && attempts++ === 0;
    this.link.publish(message.properties.replyTo, request, after(1), isFirst).catch(() => {});
  }

  private addressed(message: Message, { kind, body, headers }: Reply, options: Options.Publish): Request {
    const { properties } = this.enveloped(kind, body, message.properties.correlationId ?? "");
    Object.assign(properties.headers, { "rb-rb-content-trust": "tool-output", ...headers });
    return { exchange: "", body, properties: { ...properties, ...options, replyTo: "" } };
  }
}

async function quietly(work: () => Promise<unknown>): Promise<void> {
  await work().catch(() => {});
}
