"""Errors of calls and of the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToolbusError(Exception):
    """Base of all errors of this package."""


class Misuse(ToolbusError, RuntimeError):
    """The client was used after its end, in another event loop or thread, or after a fork."""


class BusError(ToolbusError, ConnectionError):
    """The request did not reach a daemon: it was not run."""


class InvalidURL(BusError, ValueError):
    """The URL of the broker is none."""


class BrokerUnreachable(BusError):
    """No broker took the connection, or the request, in time."""


class LoginRefused(BusError):
    """The broker refuses the login, or the login may not use the virtual host."""


class NotPermitted(BusError):
    """The broker does not permit the login to do this."""


class NoDaemon(BusError):
    """The broker has no queue for the request: no daemon listens, or it listens on another exchange or topic."""


class ToolError(ToolbusError):
    """The daemon replied with an error, or no usable reply came.

    `outcome` says what is known of side effects: `not_started`, `failed`, `unknown`, or None if nothing is said.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        outcome: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.outcome = outcome

    @staticmethod
    def from_reply(reply: Mapping[str, Any]) -> ToolError:
        """The error that a body of the type `ToolError` describes."""
        code, outcome = str(reply.get("code", "execution_failed")), reply.get("outcome")
        kind = BY_CODE.get(code, ToolError)
        if outcome == "unknown" and kind is ExecutionFailed:
            kind = OutcomeUnknown
        after = reply.get("retryAfterMs")
        return kind(
            code,
            str(reply.get("message", "")),
            retryable=reply.get("isRetryable") is True,
            retry_after=after / 1000 if isinstance(after, int | float) else None,
            outcome=outcome,
        )


class ToolNotFound(ToolError):
    """No tool of that name, or none that this agent may use."""


class InvalidArguments(ToolError):
    """The arguments do not fit the tool's schema."""


class NotAllowed(ToolError):
    """The agent may not use the tool in this way, such as for this recipient."""


class RateLimited(ToolError):
    """Over the rate limit; `retry_after` is in seconds."""


class AuthRequired(ToolError):
    """The tool needs a credential that only a person can give."""


class ToolTimeout(ToolError):
    """The deadline passed. With the outcome `unknown`, the tool may have run."""


class Overloaded(ToolError):
    """Too many calls wait."""


class ToolCancelled(ToolError):
    """The call was cancelled, by request or by the end of the daemon."""


class ExecutionFailed(ToolError):
    """The tool, or its backend, failed."""


class OutcomeUnknown(ExecutionFailed):
    """The tool began, and its end is not known: find out before you call again."""


class InvalidReply(ToolError):
    """The reply is not what a daemon sends; the tool may have run."""


BY_CODE: dict[str, type[ToolError]] = {
    "tool_not_found": ToolNotFound,
    "invalid_arguments": InvalidArguments,
    "not_allowed": NotAllowed,
    "rate_limited": RateLimited,
    "auth_required": AuthRequired,
    "timeout": ToolTimeout,
    "overloaded": Overloaded,
    "cancelled": ToolCancelled,
    "execution_failed": ExecutionFailed,
}
