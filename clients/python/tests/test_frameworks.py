"""The agent's tools in frameworks, each with a model that is a script."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from agents import Agent as OpenAIAgent
from agents import FunctionTool, Runner, set_tracing_disabled
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from test_models import of_openai, says

import toolbus.langchain
import toolbus.openai_agents
import toolbus.pydantic_ai
from toolbus import Toolbus


async def test_langchain(bus: Toolbus) -> None:
    tools = {tool.name: tool for tool in await toolbus.langchain.tools(bus)}
    assert await tools["echo"].ainvoke({"text": "hello"}) == "hello"
    assert (await tools["effect"].ainvoke({"id": 7})).startswith("invalid_arguments: ")
    assert tools["effect"].tool_call_schema["required"] == ["id"]  # type: ignore[index]


async def test_pydantic_ai(bus: Toolbus) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if returned:
            return ModelResponse([TextPart(str(returned[0].content))])
        assert "echo" in [tool.name for tool in info.function_tools]
        return ModelResponse([ToolCallPart("echo", {"text": "hello"})])

    agent = Agent(FunctionModel(model), toolsets=[await toolbus.pydantic_ai.toolset(bus)])
    assert (await agent.run("Echo!")).output == "hello"


async def test_openai_agents(bus: Toolbus) -> None:
    set_tracing_disabled(True)
    seen: list[dict[str, Any]] = []
    called = {"id": "call_0", "type": "function", "function": {"name": "echo", "arguments": json.dumps({"text": "hi"})}}
    provider = httpx2.MockTransport(says(seen, of_openai({"tool_calls": [called]}), of_openai({"content": "Done."})))
    tools = await toolbus.openai_agents.tools(bus)
    assert all(isinstance(tool, FunctionTool) for tool in tools)
    async with AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=provider)) as client:
        model = OpenAIChatCompletionsModel(model="m", openai_client=client)
        agent = OpenAIAgent(name="a", model=model, tools=tools)
        assert (await Runner.run(agent, "Echo!")).final_output == "Done."
    assert [message["content"] for message in seen[1]["messages"] if message["role"] == "tool"] == ["hi"]
