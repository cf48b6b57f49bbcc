/** The connection to the broker: one channel, on which requests go out and replies come in. */

import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { type ChannelModel, type ConfirmChannel, type ConsumeMessage, connect, type Options } from "amqplib";
import {
  BrokerUnreachable,
  type BusError,
  InvalidURL,
  LoginRefused,
  Misuse,
  NoDaemon,
  NotPermitted,
  ToolTimeout,
} from "./errors.js";
import { left, now } from "./retrying.js";

const DIRECT = "amq.rabbitmq.reply-to";
/** Replies that the broker sends before it waits for acknowledgements. */
const PREFETCH = 512;
const ACKNOWLEDGE_AFTER = 20;
const HEARTBEAT = "10";
const CONNECT_TIME = 10_000;
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2_000;
const NACK_PAUSE = 200;
const LOOKS = "it looks like amqp://user:password@host:5672/%2f";
/**
 * The broker drops a reply queue without a consumer after 10 minutes. It refuses replies beyond 10 000: the daemon tries
 * again, and others that flood the queue do not drive out what is waited for.
 */
const QUEUE: Options.AssertQueue = { durable: true, expires: 600_000, maxLength: 10_000, overflow: "reject-publish" };
const ACCESS_REFUSED = 403;
const NOT_FOUND = 404;

export interface Request {
  /** Another exchange than the client's own. */
  exchange?: string;
  body: Buffer;
  /** `replyTo` and `mandatory` are set where they are absent. */
  properties: Options.Publish & { correlationId: string };
}

type Sent = "confirmed" | "returned" | "rejected" | "refused" | "lost" | "late";

/** One connection, until it is lost. */
export class Session {
  /** Resolves when the connection is lost. */
  readonly end: Promise<void>;
  isLost = false;
  /** Whether the connection was given up because the reply queue was deleted. */
  queueDeleted = false;
  /** Answer of the broker to a request for which it closed the channel. */
  refusal: Error | undefined;
  /** Whether one request was unconfirmed then. */
  wasAlone = false;
  private unconfirmed = 0;
  private readonly returned = new Set<string>();
  private newest: ConsumeMessage | undefined;
  private ended = () => {};

  constructor(
    readonly connection: ChannelModel,
    readonly channel: ConfirmChannel,
    readonly replyTo: string,
    /** Whether replies wait in a queue while there is no connection. */
    readonly durable: boolean,
  ) {
    this.end = new Promise((resolve) => {
      this.ended = resolve;
    });
    // Comes before the callbacks of what is unconfirmed.
    channel.on("error", (error) => {
      this.refusal = error;
      this.wasAlone = this.unconfirmed === 1;
    });
    channel.on("close", () => this.lose());
    channel.on("return", (message) => this.returned.add(message.properties.correlationId));
  }

  /** Publishes once, and waits for the broker's confirm. */
  send(exchange: string, topic: string, request: Request, deadline: number): Promise<Sent> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, left(deadline), "late");
      const done = (error: Error | null) => {
        clearTimeout(timer);
        this.unconfirmed -= 1;
        // The broker returns a message before it confirms it.
        const returned = this.returned.delete(request.properties.correlationId);
        if (!error) resolve(returned ? "returned" : "confirmed");
        else if (error.message === "message nacked") resolve("rejected");
        else resolve(this.refusal ? "refused" : "lost");
      };
      try {
        const properties = { replyTo: this.replyTo, mandatory: true, ...request.properties };
        this.channel.publish(exchange, topic, request.body, properties, done);
        this.unconfirmed += 1;
      } catch (error) {
        clearTimeout(timer);
        if (this.isLost) resolve("lost");
        else reject(error);
      }
    });
  }

  /** Acknowledges replies together: one at a time costs calls. */
  acknowledge(message: ConsumeMessage): void {
    if (!this.newest) {
      setTimeout(() => {
        const newest = this.newest as ConsumeMessage;
        this.newest = undefined;
        try {
          this.channel.ack(newest, true);
        } catch {
          // The connection was lost: they come again, and are dropped.
        }
      }, ACKNOWLEDGE_AFTER);
    }
    this.newest = message;
  }

  lose(): void {
    this.isLost = true;
    this.ended();
  }

  async close(): Promise<void> {
    if (this.durable) await within(CONNECT_TIME, this.channel.deleteQueue(this.replyTo)).catch(() => {});
    await disconnect(this.connection);
    this.lose();
  }
}

/** Keeps a connection for as long as it is open. */
export class Link {
  reconnects = 0;
  /** User that the broker verifies. */
  readonly login: string;
  private readonly url: URL;
  private readonly topics = new Set<string>();
  private readonly waiting = new Set<() => void>();
  private session: Session | undefined;
  private trouble: Error | undefined;
  private turn: Promise<unknown> = Promise.resolve();
  private closed = false;

  constructor(
    url: string,
    readonly exchange: string,
    private readonly queue: string,
    private receive: (message: ConsumeMessage) => void,
    private readonly lost: (session: Session) => void,
  ) {
    this.url = parse(url);
    this.login = decodeURIComponent(this.url.username) || "guest";
  }

  /** Connects for the first time; throws a `BusError` if that fails. */
  async open(): Promise<void> {
    const session = await this.connect();
    this.session = session;
    void this.keep(session);
  }

  /** Deletes the reply queue, and disconnects. */
  async close(): Promise<void> {
    this.closed = true;
    const session = this.session;
    this.session = undefined;
    this.wake();
    await session?.close();
  }

  /**
   * Publishes until the broker confirms, as long as the request is wanted: over a new connection again, if the old one is
   * lost. Throws `ToolTimeout` if a request that may have gone out, now or before (`sent`), is not confirmed in time.
   */
  async publish(
    topic: string,
    request: Request,
    deadline: number,
    isWanted: () => boolean = () => true,
    sent = false,
  ): Promise<Session> {
    const exchange = request.exchange ?? this.exchange;
    let refused = false;
    const send = async () => {
      const session = await this.connected(deadline, sent);
      if (!isWanted()) throw unconfirmed();
      return { session, outcome: await session.send(exchange, topic, request, deadline) };
    };
    for (;;) {
      const { session, outcome } = await (refused ? this.inTurn(send) : send());
      switch (outcome) {
        case "confirmed":
          return session;
        case "returned":
          throw new NoDaemon(
            `no queue takes requests on topic "${topic}" of exchange "${exchange}": no daemon has listened there yet`,
          );
        case "late":
          throw unconfirmed();
        case "rejected": // the queue is full, or its node is down
          await sleep(Math.min(NACK_PAUSE, left(deadline)));
          break;
        case "refused":
          // The broker closes a channel for one request that it refuses, and does not say which: those that were under
          // way are tried again, one at a time, until one was alone.
          if (refused && session.wasAlone) throw this.refusal(session.refusal);
          refused = true;
          break;
        case "lost":
          sent = true;
      }
    }
  }

  /** Has messages of a topic come to the reply queue, also after a reconnect. */
  async bind(topic: string): Promise<void> {
    const session = await this.connected(now() + CONNECT_TIME);
    if (!session.durable) {
      throw new NotPermitted(`announcements need a queue, and the broker lets "${this.login}" declare none`);
    }
    this.topics.add(topic);
    try {
      await session.channel.bindQueue(session.replyTo, this.exchange, topic);
    } catch (error) {
      if (!code(error)) {
        // The connection was lost: the next one binds it before it is used.
        await this.connected(now() + CONNECT_TIME);
        return;
      }
      this.topics.delete(topic);
      throw this.refusal(error);
    }
  }

  /** Opens a channel of its own on the connection, and prepares it; throws a `BusError` if that fails. */
  async channel<T>(deadline: number, prepare: (channel: ConfirmChannel) => Promise<T>): Promise<T> {
    const { connection } = await this.connected(deadline);
    const opened = open(connection);
    try {
      return await within(CONNECT_TIME, opened.then(prepare));
    } catch (error) {
      void opened.then((channel) => channel.close()).catch(() => {});
      throw code(error) ? this.refusal(error) : new BrokerUnreachable(`the channel was lost: ${describe(error)}`);
    }
  }

  private inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.turn.then(work);
    this.turn = done.catch(() => {});
    return done;
  }

  private async connected(deadline: number, sent = false): Promise<Session> {
    for (;;) {
      if (this.closed) throw new Misuse("the client is closed");
      if (this.session && !this.session.isLost) return this.session;
      if (!(await this.change(deadline))) {
        if (sent) throw unconfirmed();
        throw new BrokerUnreachable(`no connection in time: ${this.trouble?.message ?? "it was just lost"}`);
      }
    }
  }

  /** Waits for a connection, or the end of the client; false if neither comes in time. */
  private change(deadline: number): Promise<boolean> {
    return new Promise((resolve) => {
      const done = (changed: boolean) => {
        clearTimeout(timer);
        this.waiting.delete(woken);
        resolve(changed);
      };
      const woken = () => done(true);
      const timer = setTimeout(done, left(deadline), false);
      this.waiting.add(woken);
    });
  }

  private wake(): void {
    for (const woken of [...this.waiting]) woken();
  }

  private async keep(first: Session): Promise<void> {
    for (let session: Session | undefined = first; session; session = await this.reconnect()) {
      if (this.closed) return session.close();
      this.session = session;
      this.wake();
      await session.end;
      if (this.closed) return;
      this.session = undefined;
      this.lost(session);
      void disconnect(session.connection);
    }
  }

  private async reconnect(): Promise<Session | undefined> {
    for (let pause = FIRST_PAUSE; !this.closed; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      try {
        const session = await this.connect();
        this.reconnects += 1;
        return session;
      } catch (error) {
        this.trouble = error as BusError;
      }
      await this.change(now() + pause * (0.5 + Math.random() / 2));
    }
    return undefined;
  }

  private async connect(): Promise<Session> {
    const at = `${this.url.hostname}:${this.url.port || (this.url.protocol === "amqps:" ? 5671 : 5672)}`;
    let connection: ChannelModel;
    try {
      connection = await connect(this.url.href, {
        timeout: CONNECT_TIME,
        noDelay: true,
        clientProperties: { connection_name: this.queue },
      });
    } catch (error) {
      const text = describe(error);
      const refused = `the broker at ${at} refuses the login "${this.login}"`;
      if (text.includes("terminated by server: 403")) throw new LoginRefused(`${refused}: wrong user or password`);
      // What the broker says instead is not passed on.
      if (text.includes("ConnectionOpenOk")) {
        const vhost = decodeURIComponent(this.url.pathname.slice(1)) || "/";
        throw new LoginRefused(`${refused} for the virtual host "${vhost}", or there is none of that name`);
      }
      if (text.includes("Handshake terminated")) throw new LoginRefused(`${refused}: ${text}`);
      throw new BrokerUnreachable(`no broker at ${at}: ${text}`);
    }
    connection.on("error", () => {}); // the end of the channel says the same
    try {
      return await within(CONNECT_TIME, this.prepare(connection));
    } catch (error) {
      void disconnect(connection);
      if (code(error)) throw this.refusal(error);
      throw new BrokerUnreachable(`the broker at ${at} closed the connection: ${describe(error)}`);
    }
  }

  /** Declares the reply queue. A login that may not declare one uses direct reply-to. */
  private async prepare(connection: ChannelModel): Promise<Session> {
    let [channel, replyTo, durable] = [await open(connection), this.queue, true];
    try {
      await channel.assertQueue(this.queue, QUEUE);
    } catch (error) {
      if (code(error) !== ACCESS_REFUSED) throw error;
      [channel, replyTo, durable] = [await open(connection), DIRECT, false];
    }
    const session = new Session(connection, channel, replyTo, durable);
    await channel.prefetch(PREFETCH);
    for (const topic of this.topics) await channel.bindQueue(replyTo, this.exchange, topic);
    const receive = (message: ConsumeMessage | null) => {
      if (!message) {
        session.queueDeleted = true;
        return session.lose();
      }
      this.receive(message);
      if (durable) session.acknowledge(message);
    };
    await channel.consume(replyTo, receive, { noAck: !durable });
    return session;
  }

  private refusal(error: unknown): BusError {
    if (code(error) === NOT_FOUND) {
      return new NoDaemon(`the broker has no exchange "${this.exchange}": no daemon has been started on it yet`);
    }
    return new NotPermitted(`the broker refuses it to the login "${this.login}": ${describe(error)}`);
  }
}

function unconfirmed(): ToolTimeout {
  return new ToolTimeout("timeout", "the broker did not confirm the request in time", { outcome: "unknown" });
}

async function open(connection: ChannelModel): Promise<ConfirmChannel> {
  const channel = await connection.createConfirmChannel();
  channel.on("error", () => {}); // without a listener it would end the process
  return channel;
}

async function within<T>(time: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("no answer in time")), time);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

/** Closes a connection, also to a broker that does not answer: its socket would keep the process from its end. */
async function disconnect(connection: ChannelModel): Promise<void> {
  await within(CONNECT_TIME, connection.close()).catch(() => {});
  (connection.connection as unknown as { stream: Duplex }).stream.destroy(new Error("closed"));
}

function code(error: unknown): number | undefined {
  const code = (error as { code?: unknown }).code;
  return typeof code === "number" ? code : undefined;
}

function describe(error: unknown): string {
  const { message, code } = error as { message?: string; code?: string };
  return message || code || String(error);
}

function parse(url: string): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
    decodeURIComponent(parsed.username + parsed.password + parsed.pathname);
  } catch {
    throw new InvalidURL(`the URL of the broker cannot be read; ${LOOKS}`);
  }
  if (!["amqp:", "amqps:"].includes(parsed.protocol) || !parsed.hostname) {
    throw new InvalidURL(`${parsed.protocol}//… is no URL of a broker; ${LOOKS}`);
  }
  if (!parsed.searchParams.has("heartbeat")) parsed.searchParams.set("heartbeat", HEARTBEAT);
  return parsed;
}
