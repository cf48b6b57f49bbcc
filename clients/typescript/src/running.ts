/** Calls that run here, and those that ran. */

import type { Message } from "amqplib";
import { ExecutionFailed, OutcomeUnknown, ToolCancelled, ToolError, ToolNotFound, ToolTimeout } from "./errors.js";
import type { Fields } from "./messages.js";
import * as messages from "./messages.js";
import {
  caller,
  cut,
  type Effect,
  errorReply,
  id,
  invalid,
  isSafe,
  objectOf,
  outcomeOf,
  type Reply,
  read,
  resultReply,
  timeOf,
} from "./replies.js";
import { now } from "./retrying.js";

/** Milliseconds between two reports of progress. */
const REPORT_PERIOD = 50;
/** Replies that are kept for calls that come again, and their bytes in all. */
const [KEPT, KEPT_SIZE] = [1_000, 64 * 1024 * 1024];
/** Cancellations without a call that are remembered, and for how many milliseconds. */
const [EARLY, EARLY_TIME] = [1_000, 600_000];
const [MAX_ID, MAX_REPORT] = [1_024, 1_000];

const CANCELLED = "The call was cancelled.";

/** The call that a function runs for. */
export interface Call {
  /** Agent that calls. */
  readonly agent: string;
  readonly session: string | undefined;
  readonly id: string;
  /** Key by which the caller identifies the call for good. */
  readonly key: string | undefined;
  /** Seconds until the deadline. */
  readonly remaining: number;
  /** Aborted when the call is cancelled or its deadline has passed: the caller has its reply then. */
  readonly signal: AbortSignal;
  /** Reports progress, if the caller wants it; at most every 50 ms, the rest is dropped. */
  report(progress: number, total?: number, message?: string): void;
}

/** Runs a tool. What it returns is the content: a text, a `Result`, or anything that JSON can hold. */
export type Handler<Args = Fields> = (args: Args, call: Call) => unknown;

export interface Tool {
  listed: Fields;
  effect: Effect | undefined;
  check: (args: Fields) => unknown;
  run: Handler<never>;
}

/** What calls need of the provider. */
interface Host {
  readonly isStopping: boolean;
  /** Publishes a report of progress, if it is still wanted then. */
  tell(message: Message, report: Reply, isWanted: () => boolean): void;
  /** Tells the program what callers are not told. */
  failed(error: unknown, tool: string): void;
}

/** Runs each call once. */
export class Calls {
  private readonly known = new Map<string, Promise<Reply>>();
  private readonly ended = new Map<string, Reply>();
  private endedSize = 0;
  /** Times of cancellations that came before their calls. */
  private readonly early = new Map<string, number>();
  private readonly running = new Set<{ id: string; agent: string; cancel: (text: string) => void }>();

  constructor(
    private readonly tools: ReadonlyMap<string, Tool>,
    private readonly host: Host,
  ) {}

  /** Runs a call; one that came before gets the same reply. */
  async once(message: Message): Promise<Reply> {
    const { messageId, userId } = message.properties;
    const identity = messageId && JSON.stringify([userId, caller(message), messageId]);
    const known = this.known.get(identity) ?? this.ended.get(identity);
    if (known) return known;
    const call = this.run(message);
    if (identity) {
      this.known.set(identity, call);
      void call.then((reply) => this.keep(identity, reply));
    }
    return call;
  }

  /** Cancels the agent's calls with an id, or the next one if there is none. */
  cancel(agent: string, id: unknown): boolean {
    const calls = [...this.running].filter((call) => call.id === id && call.agent === agent);
    for (const call of calls) call.cancel(CANCELLED);
    const key = JSON.stringify([agent, id]);
    if (calls.length > 0 || key.length > MAX_ID) return calls.length > 0;
    this.early.delete(key); // the newest are last
    this.early.set(key, now());
    const [oldest] = this.early.keys();
    if (this.early.size > EARLY) this.early.delete(oldest as string);
    return false;
  }

  /** Whether a call was cancelled before it came, which holds once. */
  private wasCancelled(agent: string, id: string): boolean {
    const key = JSON.stringify([agent, id]);
    const time = this.early.get(key);
    return this.early.delete(key) && now() - (time as number) < EARLY_TIME;
  }

  cancelAll(): void {
    for (const call of this.running) call.cancel("The call was cancelled: its provider is stopping.");
  }

  private keep(identity: string, reply: Reply): void {
    this.known.delete(identity);
    if (reply.mayCallAgain) return; // by the same message
    this.ended.set(identity, reply);
    this.endedSize += reply.body.length;
    for (const [oldest, { body }] of this.ended) {
      if (this.ended.size <= KEPT && this.endedSize <= KEPT_SIZE) break;
      this.ended.delete(oldest);
      this.endedSize -= body.length;
    }
  }

  /** Runs a call; its failures are replies, too. */
  private async run(message: Message): Promise<Reply> {
    const began = now();
    let [callId, name, tool] = [id(message), "", undefined as Tool | undefined];
    try {
      const { toolCallId, toolName, arguments: args, sessionId } = read(message);
      if (typeof toolName !== "string" || !toolName || toolName.length > MAX_ID) throw invalid("toolName is no name");
      name = toolName;
      if (typeof toolCallId === "string" && toolCallId) callId = toolCallId.slice(0, MAX_ID);
      tool = this.tools.get(name);
      const unknown = `Tool '${name}' is not registered.`;
      if (!tool) throw new ToolNotFound("tool_not_found", unknown, { outcome: "not_started" });
      if (message.fields.redelivered && !isSafe(tool.effect)) {
        const text = `Tool '${name}' may have run before.`;
        throw new OutcomeUnknown("execution_failed", text, { outcome: "unknown" });
      }
      const outcome = message.fields.redelivered ? "failed" : "not_started";
      if (this.wasCancelled(caller(message), callId)) throw new ToolCancelled("cancelled", CANCELLED, { outcome });
      if (this.host.isStopping) {
        const text = `Tool '${name}' was not called: its provider is stopping.`;
        throw new ExecutionFailed("execution_failed", text, { retryable: true, outcome });
      }
      const session = typeof sessionId === "string" ? sessionId : undefined;
      const value = await this.invoke(message, tool, { name, id: callId, session, args: objectOf(args) });
      return resultReply(callId, name, value, now() - began);
    } catch (error) {
      return errorReply(callId, name, error instanceof ToolError ? error : this.hidden(error, name, tool));
    }
  }

  private async invoke(
    message: Message,
    tool: Tool,
    { name, id, session, args }: { name: string; id: string; session: string | undefined; args: Fields },
  ): Promise<unknown> {
    const time = timeOf(message);
    const [deadline, control] = [now() + time, new AbortController()];
    const outcome = outcomeOf(tool.effect);
    const agent = caller(message);
    const cancel = (text: string) => control.abort(new ToolCancelled("cancelled", text, { outcome }));
    const running = { id, agent, cancel };
    const text = `Tool '${name}' did not end within ${time / 1000} s.`;
    const late = new ToolTimeout("timeout", text, { retryable: isSafe(tool.effect), outcome });
    const timer = setTimeout(() => control.abort(late), time);
    const aborted = new Promise<never>((_, reject) => {
      control.signal.addEventListener("abort", () => reject(control.signal.reason));
    });
    const call: Call = {
      ...{ agent, session, id, signal: control.signal },
      key: messages.header(message, "rb-idempotency-key"),
      get remaining() {
        return Math.max(deadline - now(), 0) / 1000;
      },
      report: this.reporter(message, id, name, () => this.running.has(running) && !control.signal.aborted),
    };
    this.running.add(running);
    try {
      const run = async () => tool.run((await tool.check(args)) as never, call);
      return await Promise.race([messages.inTrace(message, run), aborted]);
    } finally {
      clearTimeout(timer);
      this.running.delete(running);
    }
  }

  private reporter(message: Message, toolCallId: string, toolName: string, isRunning: () => boolean): Call["report"] {
    const isWanted = messages.header(message, "rb-progress") === "1";
    let next = 0;
    return (progress, total, text) => {
      if (!isWanted || !isRunning() || now() < next || ![progress, total ?? 0].every(Number.isFinite)) return;
      next = now() + REPORT_PERIOD;
      const said = text === undefined ? undefined : cut(text, MAX_REPORT);
      const body = messages.encode({ toolCallId, toolName, progress, total, message: said });
      this.host.tell(message, { kind: messages.PROGRESS, body, headers: {}, tool: toolName }, isRunning);
    };
  }

  private hidden(error: unknown, name: string, tool: Tool | undefined): ToolError {
    this.host.failed(error, name);
    return new ToolError("execution_failed", `Tool '${name}' failed.`, { outcome: outcomeOf(tool?.effect) });
  }
}
