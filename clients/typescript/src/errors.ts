/** Errors of calls and of the connection. */

/** Base of all errors of this package. */
export class ToolbusError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The client was used in a way that cannot work, such as after its end. */
export class Misuse extends ToolbusError {}

/** The request did not reach a daemon: it was not run. */
export class BusError extends ToolbusError {}

/** The URL of the broker is none. */
export class InvalidURL extends BusError {}

/** No broker took the connection, or the request, in time. */
export class BrokerUnreachable extends BusError {}

/** The broker refuses the login, or the login may not use the virtual host. */
export class LoginRefused extends BusError {}

/** The broker does not permit the login to do this. */
export class NotPermitted extends BusError {}

/** The broker has no queue for the request: no daemon listens, or it listens on another exchange or topic. */
export class NoDaemon extends BusError {}

export interface ErrorDetails {
  /** Whether the same call may succeed later. */
  retryable?: boolean | undefined;
  /** Seconds to wait before that. */
  retryAfter?: number | undefined;
  /** Knowledge of side effects: `not_started`, `failed`, `unknown`, or nothing. */
  outcome?: string | undefined;
}

/** The daemon replied with an error, or no usable reply came. `message` is for the model. */
export class ToolError extends ToolbusError {
  readonly retryable: boolean;
  readonly retryAfter: number | undefined;
  readonly outcome: string | undefined;

  constructor(
    readonly code: string,
    message: string,
    details: ErrorDetails = {},
  ) {
    super(message);
    this.retryable = details.retryable ?? false;
    this.retryAfter = details.retryAfter;
    this.outcome = details.outcome;
  }

  /** Whether daemons know a code. */
  static isCode(code: string): boolean {
    return BY_CODE.has(code);
  }

  /** Makes the error that a body of the type `ToolError` describes. */
  static fromReply(reply: Record<string, unknown>): ToolError {
    const code = text(reply.code) ?? "execution_failed";
    const outcome = text(reply.outcome);
    const Kind =
      code === "execution_failed" && outcome === "unknown" ? OutcomeUnknown : (BY_CODE.get(code) ?? ToolError);
    const after = reply.retryAfterMs;
    return new Kind(code, text(reply.message) ?? "", {
      retryable: reply.isRetryable === true,
      retryAfter: typeof after === "number" ? after / 1000 : undefined,
      outcome,
    });
  }
}

/** No tool of that name, or none that this agent may use. */
export class ToolNotFound extends ToolError {}

/** The arguments do not fit the tool's schema. */
export class InvalidArguments extends ToolError {}

/** The agent may not use the tool in this way, such as for this recipient. */
export class NotAllowed extends ToolError {}

/** Over the rate limit; `retryAfter` is in seconds. */
export class RateLimited extends ToolError {}

/** The tool needs a credential that only a person can give. */
export class AuthRequired extends ToolError {}

/** The deadline passed. With the outcome `unknown`, the tool may have run. */
export class ToolTimeout extends ToolError {}

/** Too many calls wait. */
export class Overloaded extends ToolError {}

/** The call was cancelled, by request or by the end of the daemon. */
export class ToolCancelled extends ToolError {}

/** The tool, or its backend, failed. */
export class ExecutionFailed extends ToolError {}

/** The tool began, and its end is not known: find out before you call again. */
export class OutcomeUnknown extends ExecutionFailed {}

/** The reply is not what a daemon sends; the tool may have run. */
export class InvalidReply extends ToolError {}

const BY_CODE = new Map<string, typeof ToolError>([
  ["tool_not_found", ToolNotFound],
  ["invalid_arguments", InvalidArguments],
  ["not_allowed", NotAllowed],
  ["rate_limited", RateLimited],
  ["auth_required", AuthRequired],
  ["timeout", ToolTimeout],
  ["overloaded", Overloaded],
  ["cancelled", ToolCancelled],
  ["execution_failed", ExecutionFailed],
]);

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}
