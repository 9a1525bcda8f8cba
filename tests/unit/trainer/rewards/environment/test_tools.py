"""Tools run in a process of their own episode: the model reads what goes wrong in one, and nothing else ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.environment.environment import Environment, EpisodeFailedError, Result
from lorarl_trainer.rewards.process import CodeFolders
from unit.trainer.rewards.environment.environments import TOOLS

pytestmark = pytest.mark.slow

type Make = Callable[..., Environment]
TOLD = {
    "raises": "Error: KeyError: 'level'",
    "leaves": "Error: SystemExit: 3",
    "sleeps": "Error: odd took more than 5 s",
    "loops": "Error: odd took more than 5 s",
    "waits for a child": "Error: odd took more than 5 s",
    "floods": "Error: odd returned a text of 10,000,000 characters; at most 1,000,000",
    "no unicode": "Error: odd returned a text that is no Unicode (surrogates not allowed)",
    "nan": "Error: odd returned nan, with a number that is not finite",
    "infinity": "Error: odd returned {'means': [1.0, -inf]}, with a number that is not finite",
}
ENDED = {
    "object": ("wrong_type", "odd returned object <object object"),
    "bytes": ("wrong_type", "odd returned bytes b'x'; it must return a text, or what JSON has"),
    "set": ("wrong_type", "odd returned dict {'names': {'a'}}"),
    "date": ("wrong_type", "odd returned date datetime.date(2026, 1, 1)"),
    "key": ("wrong_type", "odd returned dict {(1, 2): 3}"),
    "dies": ("crash", "the process was ended by SIGKILL in odd"),
}


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Make]:
    made: list[Environment] = []
    (tmp_path / "my_tools.py").write_text(TOOLS)

    def make(*names: str, timeout_seconds: float = 60.0) -> Environment:
        spec = EnvironmentSpec(tools=[f"my_tools:{name}" for name in names], timeout_seconds=timeout_seconds)
        made.append(Environment(spec, CodeFolders((str(tmp_path),))))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def called(environment: Environment, *calls: tuple[str, dict[str, Any]], seed: int = 0) -> list[Result]:
    async with environment.episode(seed) as episode:
        return [await episode.call(name, arguments) for name, arguments in calls]


def test_tools_are_described_by_signature_and_docstring(tools: Make) -> None:
    environment = tools("add", "count")
    asyncio.run(environment.ready())
    add, count = (tool["function"] for tool in environment.tools)
    assert (add["name"], add["description"], count["name"]) == ("add", "Add two numbers.", "count")
    assert add["parameters"] == {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "description": "The first."},
            "y": {"type": "integer", "description": "The second."},
        },
        "required": ["x"],
    }


def test_a_call_is_answered_and_an_episode_keeps_its_own_state(tools: Make) -> None:
    environment = tools("add", "count", "odd")

    async def play() -> list[list[Result]]:
        calls = ("add", {"x": 1}), ("count", {}), ("count", {}), ("odd", {"how": "none"})
        return list(await asyncio.gather(*(called(environment, *calls, seed=seed) for seed in (1, 1, 2))))

    one, again, other = asyncio.run(play())
    assert [one[0], one[3]] == [Result("3", ""), Result("null", "")]
    assert one[1].text.startswith('{"calls": 1, ') and one[2].text.startswith('{"calls": 2, ')
    assert one == again != other


@pytest.mark.parametrize("arguments", [{}, {"x": 1, "z": 2}])
def test_arguments_that_a_tool_does_not_take_are_told_as_malformed(tools: Make, arguments: dict[str, int]) -> None:
    (result,) = asyncio.run(called(tools("add"), ("add", arguments)))
    assert result.fault == "malformed" and result.text.startswith("Error: add: ")


def test_each_fault_of_a_tool_is_told_and_the_episode_goes_on(tools: Make) -> None:
    environment = tools("odd", "add", "waits", timeout_seconds=5.0)
    calls = [("odd", {"how": how}) for how in TOLD]
    *results, waited, last = asyncio.run(called(environment, *calls, ("waits", {}), ("add", {"x": 1})))
    assert [result.text for result in results] == list(TOLD.values())
    assert {result.fault for result in results} == {"failed"}
    assert waited == Result("Error: waits took more than 5 s", "failed")
    assert last == Result("3", "")


@pytest.mark.parametrize("how", ENDED)
def test_what_the_model_cannot_help_ends_the_episode_by_its_cause(tools: Make, how: str) -> None:
    with pytest.raises(EpisodeFailedError) as failed:
        asyncio.run(called(tools("odd"), ("odd", {"how": how})))
    cause, message = ENDED[how]
    assert failed.value.cause == cause and failed.value.message.startswith(message)


TYPED = """
import collections, dataclasses, datetime, decimal, enum, pathlib, typing
Color = enum.Enum("Color", "RED")
Id = typing.NewType("Id", int)
Place = typing.TypedDict("Place", {"x": int})
type Alias = int
@dataclasses.dataclass
class Point:
    x: int

def tool(%s):
    \"\"\"Do it.

    Args:
        day: It.
    \"\"\"
    return repr(day)
"""


def typed(folder: Path, arguments: str) -> Environment:
    (folder / "typed.py").write_text(TYPED % arguments)
    return Environment(EnvironmentSpec(tools=["typed:tool"]), CodeFolders((str(folder),)))


@pytest.mark.parametrize(
    "kind",
    [
        *("datetime.date", "decimal.Decimal", "pathlib.Path", "bytes", "Color", "Point", "Id", "Alias"),
        *("list[datetime.date]", "dict[str, list[Point]]", "datetime.date | None", "typing.Optional[Color]"),
    ],
)
def test_an_argument_of_a_type_that_no_call_has_is_refused(tmp_path: Path, kind: str) -> None:
    """It would be described as an object, and come as a text or a mapping."""
    said = "which no JSON has"
    with closing(typed(tmp_path, f"day: {kind}")) as environment, pytest.raises(InputError, match=said) as refused:
        asyncio.run(environment.ready())
    assert refused.value.hint.startswith("Take day as str, int, float, bool, list or dict")


@pytest.mark.parametrize("arguments", ["*day: int", "**day: int", "day: int, /"])
def test_an_argument_that_has_no_name_is_refused(tmp_path: Path, arguments: str) -> None:
    said = r"cannot be given by its name.*Write each argument by its own name"
    with closing(typed(tmp_path, arguments)) as environment, pytest.raises(InputError, match=said):
        asyncio.run(environment.ready())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("typing.Any", {"x": [1]}),
        ("typing.Literal['a', 'b']", "a"),
        ("int | list[str] | None", ["a"]),
        ("typing.Annotated[int, 'at least 1']", 3),
        ("dict[str, list[tuple[int, str]]]", {"a": [[1, "b"]]}),
        ("Place", {"x": 1}),
        ("float = 2.5", 1.5),
    ],
)
def test_an_argument_of_a_type_of_json_comes_as_it_is(tmp_path: Path, kind: str, value: Any) -> None:
    with closing(typed(tmp_path, f"day: {kind}")) as environment:
        assert asyncio.run(called(environment, ("tool", {"day": value}))) == [Result(repr(value), "")]


@pytest.mark.parametrize(
    ("names", "got", "hint"),
    [
        (("bare",), "cannot be described to the model (", "Give each argument a type hint"),
        (("undescribed",), "the docstring has no description for the argument 'x'", "a line for each under Args:"),
        (("nope",), "has no such function", "Name one of its functions (add, "),
        (("add", "add"), "two functions named add", "Name each function once"),
    ],
)
def test_what_is_no_tool_is_refused(tools: Make, names: tuple[str, ...], got: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        asyncio.run(tools(*names).ready())
    said = str(refused.value)
    assert said.startswith("spec.environment.tools: ") and got in said and hint in said
