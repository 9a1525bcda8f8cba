"""examples/verifiers: an agent plays a task of verifiers' own, exact to the token, and fails as verifiers says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lorarl_api.load import load_job
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.install.install import installer
from lorarl_trainer.launch.inputs import Vocabulary
from lorarl_trainer.launch.rollouts import speech_of
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.contract.manifests import manifest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/verifiers"
VARIABLE = "LORARL_VERIFIERS_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
needs_verifiers = pytest.mark.skipif(
    not PYTHON, reason=f"needs {VARIABLE}, a Python of an environment with verifiers==0.4.0"
)


def played(folder: Path, number: int, said: str) -> tuple[Outcome, str]:
    """Play a task with a model that says one thing; return its outcome and what is trained, as text."""
    changes = {"spec.reward": None, "spec.environment": {"agent": "taskset_agent:play", "timeoutSeconds": 120}}
    spec = load_job(json.dumps(manifest(changes))).spec
    assert spec.environment is not None
    vocabulary = Vocabulary(load_tokenizer(write_tokenizer(folder / "base", template=CHATML)), (3,))
    environment = Environment(spec.environment, CodeFolders((str(EXAMPLE),)))
    agents, episode_of = Agents(spec, speech_of(spec, vocabulary)), {"prompt": "a task", "seed": number}
    one = Played([PlayedSequence(EncodedRow(Row("a task", None, episode_of, 1), [1], []))])

    async def ask(sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
        tokens = [*vocabulary.tokenizer.encode(said, add_special_tokens=False), 3]
        return sequence.add(Completion(np.array(tokens), np.zeros(len(tokens), np.float32), True, 0))

    async def play() -> Outcome:
        async with agents.serving(), environment.episode(0) as episode:
            return await agents.play(one, episode, ask)

    try:
        return asyncio.run(play()), vocabulary.tokenizer.decode([*one.first.row.prompt_ids, *one.first.response])
    finally:
        environment.close()


@pytest.fixture
def taskset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package index: a program that asks for it fails."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("VERIFIERS_PYTHON", PYTHON)
    monkeypatch.setenv("VERIFIERS_TASKSET", "guess-v1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))


@needs_verifiers
@pytest.mark.usefixtures("taskset")
def test_a_task_is_played_with_the_model_and_rewarded_as_verifiers_does(tmp_path: Path) -> None:
    outcome, trained = played(tmp_path, 3, "it is 3")
    assert outcome == Outcome(0.5, components={"length": 7.0})
    assert trained == "<|im_start|>user\nWrite 3.<|im_end|>\n<|im_start|>assistant\nit is 3<|im_end|>"


@needs_verifiers
@pytest.mark.usefixtures("taskset")
def test_a_task_that_is_not_there_fails_its_episode(tmp_path: Path) -> None:
    outcome, _ = played(tmp_path, 5, "it is 3")
    assert outcome.cause == "exception" and "guess-v1 has no task 5; the first is 0" in outcome.message


@pytest.mark.long
def test_the_example_plays_with_the_real_package(tmp_path: Path) -> None:
    """Without a skip: verifiers comes from the index, into an environment of this test."""
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env/bin/python")
    command = [python if part == sys.executable else part for part in installer()]
    subprocess.run([*command, "verifiers==0.4.0"], check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not long", __file__],
        env={**os.environ, VARIABLE: python},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "skipped" not in ran.stdout, ran.stdout
