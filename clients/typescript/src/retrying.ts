/** Deadlines, and the repetition of calls within them. */

import { setTimeout as sleep } from "node:timers/promises";
import { ToolError } from "./errors.js";

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;

/** Milliseconds of a clock that is never set. */
export function now(): number {
  return performance.now();
}

/** Time after which a call of so many seconds is late. */
export function after(seconds: number): number {
  if (!(seconds > 0)) throw new RangeError(`a timeout is more than 0 seconds, not ${seconds}`);
  return now() + seconds * 1000;
}

/** Milliseconds until a deadline, at least 1, and at most what timers take. */
export function left(deadline: number): number {
  return Math.min(Math.max(deadline - now(), 1), 2 ** 31 - 1);
}

/** Repeats a call as long as its error says that this may help and there is time. */
export async function retrying<T>(
  attempt: () => Promise<T>,
  deadline: number,
  retries: number,
  key: string | undefined,
  signal: AbortSignal | undefined,
): Promise<T> {
  for (let number = 0; ; number++) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof ToolError) || !error.retryable || number >= retries) throw error;
      // Of a call with a key that began, the daemon repeats the reply.
      if (key !== undefined && error.outcome !== "not_started") throw error;
      const growing = Math.min(FIRST_PAUSE * 2 ** number, LONGEST_PAUSE);
      const pause = (error.retryAfter ?? 0) * 1000 + growing * (0.5 + Math.random() / 2);
      if (now() + pause >= deadline) throw error;
      await sleep(pause, undefined, { signal }).catch(() => signal?.throwIfAborted());
    }
  }
}
