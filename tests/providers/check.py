"""Checks tools as `tool.list` gives them by what their providers publish.

Usage: check.py FILE

The file holds a JSON list of [FORMAT, TOOL], for the formats in CHECKS. Writes the list of problems of each. Nothing is
sent anywhere.

The types of OpenAI and Anthropic, the models of Google and the service model of Amazon are those of the installed
packages. What the packages say in prose alone is checked by hand, and the prose must still say so.
"""

import json
import re
import sys

import botocore.session
from anthropic.types import tool_param
from botocore.validate import ParamValidator
from google.genai import types as google
from openai.types.chat import chat_completion_function_tool_param as chat
from openai.types.responses import function_tool_param as responses
from openai.types.shared_params import function_definition
from pydantic import ConfigDict, TypeAdapter, ValidationError

# Of OpenAI's function_definition.py.
OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
OPENAI_PROSE = "Must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64."
# Of Google's FunctionDeclaration.
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
GEMINI_PROSE = (
    "Must start with a letter or an underscore. Must be a-z, A-Z, 0-9, or contain underscores, dots, colons and "
    "dashes, with a maximum length of 128."
)


def closed(kind):
    """A type of a package that has no members but those that it names."""
    kind.__pydantic_config__ = ConfigDict(extra="forbid")
    return kind


for part in (function_definition.FunctionDefinition, chat.ChatCompletionFunctionToolParam, responses.FunctionToolParam):
    closed(part)
OPENAI = TypeAdapter(chat.ChatCompletionFunctionToolParam)
RESPONSES = TypeAdapter(responses.FunctionToolParam)
ANTHROPIC = TypeAdapter(closed(tool_param.ToolParam))
# ToolParam takes any object for a schema; this is the one that it documents.
ANTHROPIC_SCHEMA = TypeAdapter(tool_param.InputSchemaTyped)

BEDROCK = botocore.session.get_session().get_service_model("bedrock-runtime").shape_for("ToolConfiguration")


def said(text, prose):
    """Checks that a package still documents what is checked here by hand."""
    if prose not in " ".join(text.split()):
        raise SystemExit(f"the provider's documentation has changed: {prose!r} is not in {text!r}")


def typed(adapter, value):
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        return [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
    return []


def openai(tool):
    name = tool.get("function", {}).get("name", "")
    return typed(OPENAI, tool) + named(OPENAI_NAME, name)


def openai_responses(tool):
    return typed(RESPONSES, tool) + named(OPENAI_NAME, tool.get("name", ""))


def anthropic(tool):
    return typed(ANTHROPIC, tool) + typed(ANTHROPIC_SCHEMA, tool.get("input_schema"))


def named(pattern, name):
    return [] if pattern.fullmatch(name) else [f"name: {name!r} does not match {pattern.pattern}"]


def gemini(tool):
    try:
        declared = google.FunctionDeclaration.model_validate(tool)
    except (ValidationError, AttributeError) as error:
        # The package reads the name of a type without looking whether it is text.
        return [str(error)]
    schema = declared.parameters_json_schema
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return ["parametersJsonSchema: must describe an object"]
    return named(GEMINI_NAME, declared.name or "") + gemini_schema("parametersJsonSchema", schema)


def gemini_keywords():
    """The keywords that Google documents for JSON Schemas, out of their list in the package."""
    prose = " ".join(google.GenerateContentConfig.model_fields["response_json_schema"].description.split())
    listed = re.search(r"only the following properties are supported: (.*) The non-standard", prose)
    if listed is None:
        raise SystemExit("the list of keywords for Gemini is not where it was")
    return set(re.findall(r"`([^`]+)`", listed[1]))


KEYWORDS = gemini_keywords()


# The model of JSON Schema in Google's package knows less than is documented. It checks the keywords that it knows;
# those that hold schemas are followed here.
SCHEMAS = {"properties", "items", "anyOf", "oneOf"}
MODELLED = {field.alias or name for name, field in google.JSONSchema.model_fields.items()} - SCHEMAS


def gemini_schema(place, schema):
    if not isinstance(schema, dict):
        return [f"{place}: is no object"]
    problems = [f"{place}.{keyword}: not supported" for keyword in schema if keyword not in KEYWORDS]
    try:
        google.JSONSchema.model_validate({keyword: value for keyword, value in schema.items() if keyword in MODELLED})
    except ValidationError as error:
        problems.append(f"{place}: {error}")
    for value in schema.get("enum", []):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            problems.append(f"{place}.enum: {value!r} is neither text nor a number")
    # No package says so, but the service: `parameters.required[0]: property is not defined`.
    for name in schema.get("required", []):
        if name not in schema.get("properties", {}):
            problems.append(f"{place}.required: {name!r} is not defined")
    inner = list(schema.get("properties", {}).items())
    if "items" in schema:
        inner.append(("items", schema["items"]))
    if not isinstance(schema.get("additionalProperties", True), bool):
        inner.append(("additionalProperties", schema["additionalProperties"]))
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        inner += [(f"{keyword}.{number}", value) for number, value in enumerate(schema.get(keyword, []))]
    for name, value in inner:
        problems += gemini_schema(f"{place}.{name}", value)
    return problems


def bedrock(tool):
    report = ParamValidator().validate({"tools": [tool]}, BEDROCK)
    problems = [report.generate_report()] if report.has_errors() else []
    return problems + shaped("tool", tool, BEDROCK.members["tools"].member)


def shaped(place, value, shape):
    """What a shape of the service model says and its validator does not look at: patterns, longest texts, unions."""
    problems = []
    if shape.type_name == "string" and isinstance(value, str):
        pattern, longest = shape.metadata.get("pattern"), shape.metadata.get("max")
        if pattern and not re.fullmatch(pattern, value):
            problems.append(f"{place}: {value!r} does not match {pattern}")
        if longest and len(value) > longest:
            problems.append(f"{place}: more than {longest} characters")
    if shape.type_name == "structure" and isinstance(value, dict) and not getattr(shape, "is_document_type", False):
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            problems.append(f"{place}: must have one member")
        for name, member in shape.members.items():
            if name in value:
                problems += shaped(f"{place}.{name}", value[name], member)
    return problems


CHECKS = {
    "openai": openai,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "bedrock": bedrock,
}


def main():
    with open(function_definition.__file__, encoding="utf-8") as file:
        said(file.read(), OPENAI_PROSE)
    said(google.FunctionDeclaration.model_fields["name"].description, GEMINI_PROSE)
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.dumps([CHECKS[name](tool) for name, tool in json.load(file)]))


if __name__ == "__main__":
    main()
