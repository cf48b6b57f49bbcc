"""Functions as tools: what they are called with, and what they return."""

from __future__ import annotations

import inspect
import json
import re
import time
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import InvalidArguments, Misuse
from .messages import Result, encode

Effect = Literal["read-only", "idempotent", "effectful"]
HINTS: dict[str | None, dict[str, bool] | None] = {
    "read-only": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
    "idempotent": {"readOnlyHint": False, "idempotentHint": True},
    "effectful": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
    None: None,
}
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
REPORT_EVERY = 0.05
# Errors whose texts have values of the arguments, or words of the program.
UNSAID = {"value_error", "assertion_error", "union_tag_invalid"}
MAX_ERRORS, MAX_MISTAKES = 20, 1000


@dataclass(eq=False)
class Call:
    """The call that a function serves; a parameter with this annotation gets it."""

    agent: str
    """The agent that calls."""
    session: str | None = None
    id: str = ""
    key: str | None = None
    """What identifies the call for good, if it has such a key."""
    deadline: float = field(default_factory=lambda: time.monotonic() + 60)
    """When the call is cancelled, on the clock `time.monotonic`."""
    _send: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    _reported: float = float("-inf")

    @property
    def remaining(self) -> float:
        """Seconds until the call is cancelled."""
        return max(self.deadline - time.monotonic(), 0)

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, if the agent wants it. What comes within 50 ms of another report is dropped."""
        now = time.monotonic()
        if self._send and now - self._reported >= REPORT_EVERY:
            self._reported = now
            await self._send({"progress": progress, "total": total, "message": message})


@dataclass(frozen=True, eq=False)
class Tool:
    """A function, and how agents see it."""

    name: str
    effect: Effect | None
    function: Callable[..., Any]
    definition: dict[str, Any]
    """The tool as MCP lists it."""
    is_async: bool
    model: Any
    """The pydantic model of its arguments."""
    fields: dict[str, str]
    """The parameters of the function, by the fields of the model."""
    calls: list[str]
    """The parameters that get the call."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may run twice."""
        return self.effect in ("read-only", "idempotent")

    @property
    def outcome(self) -> str:
        """What is known of the effect of a call that began and gave no result."""
        return "failed" if self.is_repeatable else "unknown"

    def read(self, text: str) -> dict[str, Any]:
        """The arguments of the function. Raises InvalidArguments with paths, and without values."""
        from pydantic import ValidationError

        try:
            read = self.model.model_validate_json(text.encode("utf-8", "surrogatepass"))
        except ValidationError as error:
            raise InvalidArguments("invalid_arguments", _mistakes(error), outcome="not_started") from None
        return {parameter: getattr(read, name) for name, parameter in self.fields.items()}


def tool_of(
    function: Callable[..., Any], name: str | None, title: str | None, description: str | None, effect: Effect | None
) -> Tool:
    """A function as a tool; raises Misuse if it cannot be one."""
    try:
        import pydantic
        from pydantic.fields import FieldInfo
    except ImportError:
        raise Misuse("tools of your own need pydantic: pip install 'toolbus-client[tools]'") from None
    name = name or str(getattr(function, "__name__", ""))
    if not NAME.fullmatch(name):
        raise Misuse(f"{name!r} is no name of a tool: 1 to 64 letters, digits, '_' and '-'")
    if effect not in HINTS:
        raise Misuse(f"{effect!r} is no effect of a tool: read-only, idempotent or effectful")
    fields: dict[str, str] = {}
    calls: list[str] = []
    types: dict[str, Any] = {}
    try:
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise Misuse(f"tool {name!r}: {parameter} cannot be given by its name")
            annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
            if Call in (annotation, *typing.get_args(annotation)):
                calls.append(parameter.name)
                continue
            default: Any = ... if parameter.default is parameter.empty else parameter.default
            if isinstance(default, FieldInfo):
                annotation, default = typing.Annotated[annotation, default], ...
            # A model cannot have fields of every name.
            fields[f"a{len(fields)}"] = parameter.name
            alias = pydantic.Field(alias=parameter.name)
            if default is not ...:
                alias = pydantic.Field(default, alias=parameter.name)
            types[f"a{len(fields) - 1}"] = (annotation, alias)
        config = pydantic.ConfigDict(extra="forbid")
        model = pydantic.create_model(name, __config__=config, __module__=function.__module__, **types)
        schema = _schema(model)
    except Misuse:
        raise
    except Exception as error:  # of any annotation
        raise Misuse(f"tool {name!r}: its parameters have no schema: {error}") from error
    description = description or inspect.getdoc(function)
    parts = {"name": name, "title": title, "description": description, "inputSchema": schema}
    try:
        definition = json.loads(encode(parts | {"annotations": HINTS[effect]}))
    except (ValueError, TypeError, RecursionError) as error:
        raise Misuse(f"tool {name!r}: JSON cannot hold its definition: {error}") from error
    is_async = inspect.iscoroutinefunction(function)
    return Tool(name, effect, function, definition, is_async, model, fields, calls)


def _schema(model: Any) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """A schema without titles that only repeat names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema: dict[str, Any] = model.model_json_schema(schema_generator=Untitled)
    schema.pop("title", None)
    return schema


def _mistakes(error: Any) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{'/' + '/'.join(map(str, each['loc'])) if each['loc'] else 'the arguments'}: "
        + ("Value not accepted" if each["type"] in UNSAID else each["msg"])
        for each in found[:MAX_ERRORS]
    ]
    return "; ".join(lines)[:MAX_MISTAKES]


def result_of(value: Any) -> Result:
    """What a function returned, as a result. Raises ValueError or TypeError for what JSON cannot hold."""
    if isinstance(value, Result):
        if not isinstance(value.content, str):
            raise TypeError("the content of a Result is no str")
        if not isinstance(value.blocks, list) or not all(isinstance(block, dict) for block in value.blocks):
            raise TypeError("the blocks of a Result are no list of dicts")
        return value
    if value is None or isinstance(value, str):
        return Result(value or "")
    from pydantic_core import to_json

    text = to_json(value).decode()
    if "NaN" in text or "Infinity" in text:  # perhaps numbers, which are no JSON
        json.loads(text, parse_constant=_refuse)
    return Result(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
