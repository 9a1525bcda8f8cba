"""A user's environment plays each episode in its own process: a failure has a cause, and costs no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.environment.environment import Answer, Environment, EpisodeFailedError
from lorarl_trainer.rewards.process import CodeFolders
from unit.trainer.rewards.environment.environments import ENVIRONMENTS

pytestmark = pytest.mark.slow

type Make = Callable[..., Environment]
FAULTS = {
    "reset none": ("wrong_type", "reset returned None"),
    "reset number": ("wrong_type", "reset returned [3]"),
    "reset raises": ("exception", "reset: ValueError: first second (my_env.py, line "),
    "reset hangs": ("timeout", "reset took more than 5 s"),
    "reset floods": ("too_long", "reset returned a text of 10,000,000 characters"),
    "raises": ("exception", "step: KeyError: 'level' (my_env.py, line "),
    "none": ("wrong_type", "step returned None"),
    "number": ("wrong_type", "step returned 0.5"),
    "nothing in it": ("wrong_type", "step must return a mapping with text, reward or done"),
    "no text": ("wrong_type", "step returned None as 'text', and is not done"),
    "text of bytes": ("wrong_type", "step returned b'x' as 'text'"),
    "no unicode": ("wrong_type", "step returned a text that is no Unicode"),
    "done by words": ("wrong_type", "step returned 'yes' as 'done'"),
    "nan": ("non_finite", "step returned nan as 'reward'"),
    "component": ("wrong_type", "step returned str 'it' as 'found'"),
    "hangs": ("timeout", "step took more than 5 s, the environment's timeoutSeconds"),
    "waits": ("timeout", "step took more than 5 s"),
    "floods": ("too_long", "step returned a text of 10,000,000 characters; at most 1,000,000"),
    "leaves": ("crash", "the process exited with code 3 in step"),
    "dies": ("crash", "the process was ended by SIGKILL in step"),
    "has a child": ("timeout", "step took more than 5 s"),
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Environment] = []
    before = set(psutil.Process().children(recursive=True))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(ENVIRONMENTS)

    def make(name: str, timeout_seconds: float = 60.0) -> Environment:
        spec = EnvironmentSpec(function=f"my_env:{name}", timeout_seconds=timeout_seconds)
        made.append(Environment(spec, CodeFolders((str(tmp_path),))))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert set(psutil.Process().children(recursive=True)) <= before


async def played(environment: Environment, seed: int, row: dict[str, Any], *texts: str) -> tuple[Any, list[Answer]]:
    async with environment.episode(seed) as episode:
        return await episode.reset(row), [await episode.step(text) for text in texts]


async def fault_of(environment: Environment, row: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(EpisodeFailedError) as failed:
        await played(environment, 0, row, "x")
    return failed.value.cause, failed.value.message


def test_an_episode_is_opened_and_answered_turn_by_turn(environment: Make) -> None:
    opening, answers = asyncio.run(played(environment("Echo"), 1, {"word": "go"}, "a", "b"))
    assert opening.startswith("go ")
    assert answers == [Answer("A", False, 0.5, {"turns": 1.0}), Answer("B", True, 0.5, {"turns": 2.0})]


def test_a_class_without_async_may_open_with_messages_and_give_no_reward(environment: Make) -> None:
    opening, answers = asyncio.run(played(environment("Plain"), 1, {}, "a"))
    assert opening == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert answers == [Answer("next", False, None)]


def test_random_numbers_are_those_of_the_seed_whatever_plays_beside(environment: Make) -> None:
    async def play(echo: Environment, seeds: list[int]) -> list[str]:
        episodes = [played(echo, seed, {"word": "go"}) for seed in seeds]
        return [opening for opening, _ in await asyncio.gather(*episodes)]

    many = asyncio.run(play(environment("Echo"), [1, 2, 1, 3] * 4))
    alone = asyncio.run(play(environment("Echo"), [1]))
    assert len(set(many)) == 3
    assert many[0] == many[2] == many[12] == alone[0]


def test_each_fault_has_its_cause_and_costs_its_episode_alone(environment: Make, tmp_path: Path) -> None:
    async def play(odd: Environment) -> list[tuple[str, str]]:
        return await asyncio.gather(*(fault_of(odd, {"how": how}) for how in FAULTS))

    found = dict(zip(FAULTS, asyncio.run(play(environment("Odd", timeout_seconds=5.0))), strict=True))
    for how, (cause, message) in FAULTS.items():
        assert found[how][0] == cause, how
        assert message in found[how][1], how
    with contextlib.suppress(psutil.NoSuchProcess):  # what an episode started ends with it
        psutil.Process(int((tmp_path / "child.txt").read_text())).wait(30)


@pytest.mark.usefixtures("children_ignored")
def test_an_end_has_its_cause_where_the_trainer_ignores_its_children(environment: Make) -> None:
    found = asyncio.run(fault_of(environment("Odd", timeout_seconds=30.0), {"how": "leaves"}))
    assert found == ("crash", "the process exited with code 3 in step")


def test_an_async_step_that_waits_is_cut_too(environment: Make) -> None:
    found = asyncio.run(fault_of(environment("Hungry", timeout_seconds=5.0), {}))
    assert found == ("timeout", "step took more than 5 s, the environment's timeoutSeconds")


def test_a_process_that_the_machine_ended_is_replaced(environment: Make) -> None:
    async def play(echo: Environment) -> list[Answer]:
        others = psutil.Process().children()
        await echo.ready()
        [process] = [one for one in psutil.Process().children() if one not in others]
        process.kill()
        process.wait()
        _, answers = await played(echo, 1, {"word": "go"}, "a")
        return answers

    assert [answer.text for answer in asyncio.run(play(environment("Echo")))] == ["A"]


@pytest.mark.parametrize(
    ("name", "got", "hint"),
    [
        ("Nope", "has no such class", "Name one of its classes (Echo, "),
        ("function", "which is no class", "Name the class."),
        ("Lacks", "which has no method step", "Define step(self, text) in Lacks."),
        ("Narrow", "whose reset does not take one argument", "Define reset(self, row) in Narrow."),
        ("Wants", "which cannot be made without arguments", "Give its arguments defaults"),
    ],
)
def test_what_is_no_environment_is_refused(environment: Make, name: str, got: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        asyncio.run(environment(name).ready())
    said = str(refused.value)
    assert said.startswith("spec.environment.function: ")
    assert got in said
    assert hint in said
