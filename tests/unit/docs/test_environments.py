"""docs/environments.md: its class and its manifest work together, as they are written."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import ToolFormat
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.launch.inputs import Vocabulary
from lorarl_trainer.launch.rollouts import speech_of
from lorarl_trainer.rewards.environment.environment import Answer, Environment, Result
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.contract.manifests import manifest

PAGE = (Path(__file__).resolve().parents[3] / "docs/environments.md").read_text()
CODE, TOOLS, AGENT = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
SPEC, SPEC_OF_TOOLS, SPEC_OF_AGENT, *_ = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
ROW, ROW_OF_AGENT = re.findall(r"`(\{\"prompt\".*?\})`", PAGE)


def test_the_class_of_the_page_plays_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "guess.py").write_text(CODE)
    changes: dict[str, Any] = {"spec.reward": None} | {
        f"spec.{part}.{key}": value for part, fields in yaml.safe_load(SPEC).items() for key, value in fields.items()
    }
    settings = load_job(json.dumps(manifest(changes))).spec.environment
    assert settings is not None
    environment = Environment(settings, CodeFolders((str(tmp_path),)))

    async def play() -> tuple[Any, list[Answer]]:
        async with environment.episode(0) as episode:
            opening = await episode.reset(json.loads(ROW))
            return opening, [await episode.step(text) for text in ("what?", "50", "25", "42")]

    opening, answers = asyncio.run(play())
    environment.close()
    assert opening.startswith("I think of a number")
    assert [answer.text for answer in answers] == ["Write a number alone.", "It is lower.", "It is higher.", ""]
    assert answers[-1] == Answer("", True, 1.0, {"turns_needed": 4.0})
    assert [answer.reward for answer in answers[:3]] == [-0.1, None, None]


def test_the_class_has_about_twenty_lines() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 20


def test_the_tools_of_the_page_are_called_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    changes = {f"spec.{part}": fields for part, fields in yaml.safe_load(SPEC_OF_TOOLS).items()}
    settings = load_job(json.dumps(manifest(changes))).spec.environment
    assert settings is not None
    environment = Environment(settings, CodeFolders((str(tmp_path),)))

    async def play() -> list[Result]:
        async with environment.episode(0) as episode:
            return [await episode.call("price", {"item": item}) for item in ("bread", "milk")]

    bread, milk = asyncio.run(play())
    environment.close()
    assert bread == Result("3.2", "")
    assert milk.fault == "failed" and "the items are apple, bread" in milk.text


def test_the_agent_of_the_page_plays_with_its_row(tmp_path: Path) -> None:
    """With OpenAI's own client, and a model that is wrong at first."""
    (tmp_path / "my_agent.py").write_text(AGENT)
    changes: dict[str, Any] = {"spec.reward": None} | {
        f"spec.{part}.{key}": value
        for part, fields in yaml.safe_load(SPEC_OF_AGENT).items()
        for key, value in fields.items()
    }
    spec = load_job(json.dumps(manifest(changes))).spec
    assert spec.environment is not None
    vocabulary = Vocabulary(load_tokenizer(write_tokenizer(tmp_path / "base", template=CHATML)), (3,))
    environment, agents = (
        Environment(spec.environment, CodeFolders((str(tmp_path),))),
        Agents(spec, speech_of(spec, vocabulary)),
    )
    played = Played([PlayedSequence(EncodedRow(Row("a sum", None, json.loads(ROW_OF_AGENT), 1), [1], []))])

    async def ask(sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
        said = [*vocabulary.tokenizer.encode([" 6", " 5"][len(sequence.turns)], add_special_tokens=False), 3]
        return sequence.add(Completion(np.array(said), np.zeros(len(said), np.float32), True, 0))

    async def play() -> Outcome:
        async with agents.serving(), environment.episode(0) as episode:
            return await agents.play(played, episode, ask)

    assert asyncio.run(play()) == Outcome(0.5, components={"attempts": 2.0})
    environment.close()
    assert vocabulary.tokenizer.decode(played.first.response) == (
        " 6<|im_end|>\n<|im_start|>user\nThat is wrong. Try again.<|im_end|>\n<|im_start|>assistant\n 5<|im_end|>"
    )


def test_the_agent_has_about_fifteen_lines() -> None:
    assert len([line for line in AGENT.splitlines() if line.strip()]) <= 15


def test_the_page_lists_each_format() -> None:
    assert re.findall(r"^  \| `(\w+)` \|", PAGE, re.M)[1:] == list(get_args(ToolFormat))
