"""Tasksets of verifiers are played exact to the token, and rewarded, failed and refused with the cause."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import DataSource, EnvironmentSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from lorarl_trainer.install import separate
from lorarl_trainer.install.packages import add_packages, recorded
from lorarl_trainer.launch.inputs import Vocabulary
from lorarl_trainer.launch.rollouts import speech_of
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from support.tiny_tokenizers import TOOLS_CHATML, write_tokenizer
from support.verifiers import REQUIREMENT, TASKSETS, VARIABLE, needs_verifiers
from unit.contract.manifests import manifest
from unit.trainer.rewards.test_pool_end import wait_for

pytestmark = pytest.mark.slow
CALL = '<tool_call>{"name": "adder_add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def of(taskset: str) -> Environment:
    return Environment(EnvironmentSpec(verifiers=taskset, timeout_seconds=120.0), CodeFolders((str(TASKSETS),)))


def refused(taskset: str) -> str:
    """Return why a taskset cannot be played."""
    environment = of(taskset)
    try:
        with pytest.raises(InputError) as error:
            asyncio.run(environment.ready())
    finally:
        environment.close()
    return str(error.value)


def played(
    folder: Path, taskset: str, *numbers: int, said: str, first: str = "", turns: int = 8
) -> list[tuple[Outcome, str]]:
    """Play tasks with a model that says one thing, or another at first; return outcomes, and texts that are trained."""
    changes = {
        "spec.reward": None,
        "spec.environment": {"verifiers": taskset, "timeoutSeconds": 120, "maxTurns": turns},
    }
    spec = load_job(json.dumps(manifest(changes))).spec
    vocabulary = Vocabulary(load_tokenizer(write_tokenizer(folder / "base", template=TOOLS_CHATML)), (3,))
    environment, agents = of(taskset), Agents(spec, speech_of(spec, vocabulary))

    async def ask(sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
        text = said if len(sequence.response) else first or said
        tokens = [*vocabulary.tokenizer.encode(text, add_special_tokens=False), 3]
        return sequence.add(Completion(np.array(tokens), np.zeros(len(tokens), np.float32), True, 0))

    async def play(number: int) -> tuple[Outcome, str]:
        row = {"prompt": "a task", "seed": number}
        one = Played([PlayedSequence(EncodedRow(Row("a task", None, row, 1), [1], []))])
        async with environment.episode(0) as episode:
            outcome = await agents.play(one, episode, ask)
        return outcome, vocabulary.tokenizer.decode([*one.first.row.prompt_ids, *one.first.response])

    async def play_all() -> list[tuple[Outcome, str]]:
        async with agents.serving():
            return [await play(number) for number in numbers]

    try:
        return asyncio.run(play_all())
    finally:
        environment.close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package index: a program that asks for it fails. Nothing is written to the user's cache."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))


@needs_verifiers
@pytest.mark.usefixtures("offline")
def test_tasks_are_played_with_the_model_and_rewarded_as_verifiers_does(tmp_path: Path) -> None:
    (right, trained), (wrong, _), (missing, _) = played(tmp_path, "guess-v1", 3, 4, 5, said="it is 3")
    assert right == Outcome(0.5, components={"length": 7.0})
    assert trained == "<|im_start|>user\nWrite 3.<|im_end|>\n<|im_start|>assistant\nit is 3<|im_end|>"
    assert wrong == Outcome(0.0, components={"length": 7.0})
    assert missing.cause == "exception" and "guess-v1 has no task 5: the last one is 4" in missing.message


@needs_verifiers
@pytest.mark.usefixtures("offline")
def test_what_fails_has_a_cause_and_what_an_episode_started_ends_with_it(tmp_path: Path) -> None:
    """Of a taskset without an end, whose tasks each leave a process in another session."""
    (raised, _), (odd, _), (left, trained) = played(tmp_path, "odd-v1", 0, 1, 40, said="yes")
    assert raised.cause == "exception" and "no more" in raised.message
    assert odd.cause in ("exception", "non_finite"), odd
    assert "Task 40." in trained
    wait_for(lambda: not psutil.pid_exists(int(left.value)), 60.0)


@needs_verifiers
@pytest.mark.usefixtures("offline")
def test_a_tool_of_a_task_answers_and_its_server_ends_with_the_episode(tmp_path: Path) -> None:
    ((outcome, trained),) = played(tmp_path, "tools-v1", 0, said="It is 5.", first=CALL)
    assert outcome == Outcome(1.0), trained
    assert "<|im_start|>user\nWhat is 2 + 3?<|im_end|>" in trained
    server = re.search(r"<tool_response>\n5, by (\d+)\n</tool_response>", trained)
    assert server is not None, trained
    wait_for(lambda: not psutil.pid_exists(int(server[1])), 60.0)


@needs_verifiers
@pytest.mark.usefixtures("offline")
def test_an_episode_that_max_turns_ends_is_no_failure(tmp_path: Path) -> None:
    ((outcome, _),) = played(tmp_path, "tools-v1", 0, said="It is 5.", first=CALL, turns=1)
    assert outcome == Outcome(0.0)


@needs_verifiers
@pytest.mark.usefixtures("offline")
def test_a_task_without_a_reward_is_a_failure_and_no_0(tmp_path: Path) -> None:
    ((outcome, _),) = played(tmp_path, "unrewarded-v1", 0, said="yes")
    assert outcome.cause == "wrong_type" and "a task without a reward: it defines none" in outcome.message


@needs_verifiers
@pytest.mark.parametrize(
    ("taskset", "why"),
    [
        ("gues-v1", "got gues-v1, which is no taskset that is installed beside verifiers, .*Did you mean guess-v1?"),
        ("unfit-v1", "got unfit-v1, whose tasks need a container"),
        ("harbor", "got harbor, which has an environment of several roles"),
        ("textarena", "got textarena, whose module cannot be imported .*Install what it needs: lorarl env add"),
    ],
)
def test_a_taskset_that_cannot_be_played_is_refused_with_a_way_on(taskset: str, why: str) -> None:
    assert re.search(why, said := refused(taskset)), said


def test_without_verifiers_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert "got guess-v1, but the package verifiers is not installed" in (said := refused("guess-v1"))
    assert f"lorarl env add {REQUIREMENT} PACKAGE" in said


def test_a_python_without_verifiers_or_with_another_series_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert f"{sys.executable} has no package verifiers" in (said := refused("guess-v1"))
    assert f"uv pip install --python {sys.executable} {REQUIREMENT}" in said
    info = tmp_path / "verifiers-0.1.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verifiers\nVersion: 0.1.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "got guess-v1, but verifiers 0.1.9 is installed, and lorarl plays 0.4" in refused("guess-v1")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bin/python"))
    assert f"{VARIABLE} names {tmp_path}/bin/python, which is not there" in refused("guess-v1")


@pytest.mark.parametrize(
    ("episodes", "hint"),
    [({"size": 4, "seed": 2}, "Set size to 3 or less."), ({"size": 4, "seed": 5}, "Lower seed and size.")],
)
def test_rows_for_more_tasks_than_there_are_are_refused(
    monkeypatch: pytest.MonkeyPatch, episodes: dict[str, int], hint: str
) -> None:
    monkeypatch.setattr(Environment, "tasks", 5)
    environment = of("guess-v1")
    with pytest.raises(InputError) as error:
        environment.require_tasks("spec.data.train", DataSource.model_validate({"episodes": episodes}))
    assert str(error.value).startswith("spec.data.train.episodes: got tasks ") and hint in str(error.value)
    environment.require_tasks("spec.data.train", DataSource.model_validate({"episodes": {"size": 3, "seed": 2}}))


@pytest.mark.long
def test_lorarl_env_add_installs_it_beside_lorarl_and_it_plays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a skip: verifiers comes from the index, into an environment of this test."""
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    add_packages(["verifiers"])
    assert recorded(tmp_path) == ["verifiers"]
    monkeypatch.delenv(VARIABLE, raising=False)
    python = separate.python_of("verifiers")
    assert python == tmp_path / "lorarl-verifiers/bin/python"
    with pytest.raises(InputError, match=r"which cannot be installed here.*lorarl env add verifiers==0\.4\.0 PACKAGE"):
        add_packages(["verifiers==0.3.0"], dry_run=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not long", __file__],
        env={**os.environ, VARIABLE: str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "skipped" not in ran.stdout, ran.stdout
