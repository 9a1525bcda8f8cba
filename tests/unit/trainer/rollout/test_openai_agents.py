"""The Agents SDK of OpenAI plays with its defaults: responses, tools, and a stream; it has a Python by itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from unit.trainer.rollout.talk import Talk

VARIABLE = "LORARL_OPENAI_AGENTS_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason=f"needs {VARIABLE}, a Python of an environment with openai-agents==0.24.0"
)

AGENT = """
import asyncio, sys
from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=sys.argv[1], api_key=sys.argv[2]), use_for_tracing=False)

@function_tool
def look(word: str) -> str:
    "Look a word up."
    return f"{word} is bright"

agent = Agent(name="one", instructions="Be brief.", model="lorarl", tools=[look])

async def main():
    first = await Runner.run(agent, "Go.")
    assert first.final_output == "It is bright.", first.final_output
    items = first.to_input_list() + [{"role": "user", "content": "And?"}]
    second = Runner.run_streamed(agent, items)
    text = ""
    async for event in second.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == second.final_output == "So it is.", text

asyncio.run(main())
"""
CALL = '<tool_call>{"name": "look", "arguments": {"word": "sun"}}</tool_call>'
LONG: Any = {"spec.rollout.maxPromptTokens": 3000, "spec.rollout.maxResponseTokens": 1000}


def test_an_agent_of_the_sdk_is_one_sequence_with_its_tools_and_its_stream(tmp_path: Path) -> None:
    talk = Talk(tmp_path, [CALL, "It is bright.", "So it is."], **LONG)
    (tmp_path / "agent.py").write_text(AGENT)

    async def play() -> None:
        async with talk.client() as client:
            arguments = str(tmp_path / "agent.py"), str(client.base_url), client.api_key
            process = await asyncio.create_subprocess_exec(PYTHON, *arguments, stderr=asyncio.subprocess.PIPE)
            _, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()

    asyncio.run(play())
    [(prompt, whole, trained)] = talk.sequences()
    assert prompt.count("Be brief.") == 1 and '"name": "look"' in prompt
    assert trained == f"{CALL}<|im_end|>It is bright.<|im_end|>So it is.<|im_end|>"
    assert "<tool_response>\nsun is bright\n</tool_response>" in whole
    assert talk.said.refusal is None
