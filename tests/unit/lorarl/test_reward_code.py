"""A reward function of a notebook works in another process: its module has all that it names, or it is refused."""

from __future__ import annotations

import functools
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from lorarl.job import asked
from lorarl.reward_code import importable, module_of, name_of
from lorarl_trainer.errors import InputError
from unit.contract.manifests import manifest

JOB = manifest({"metadata.name": "sums"})

CELL = '''
import functools
import json as j
import math
import re
from collections import Counter
from typing import Any

NUMBER = re.compile(r"\\d+", re.I)
WEIGHTS = {"right": 1.0, "short": -0.5}


def twice(function):
    """Doubles a score."""
    def doubled(*arguments):
        return 2 * function(*arguments)
    return doubled


def numbers(text: str) -> list[str]:
    return NUMBER.findall(text)


count = numbers


@twice
def score(prompt: str, completion: str, answer: Any, row: dict[str, Any], base: float = WEIGHTS["right"]):
    seen: Counter[str] = Counter(count(completion))
    math_text = j.dumps([math.floor(n) for n in (1.5,)])
    return base * seen[answer] + WEIGHTS["short"] * (len(completion) < len(math_text))


async def slow(prompt, completion, answer, row):
    return float(again(3) == completion.count("a"))


def again(n):
    return n if n == 0 else 1 + again(n - 1)


class Judge:
    def __call__(self, prompt, completion, answer, row):
        return 1.0


judge = Judge()
model = object()


def with_model(prompt, completion, answer, row):
    return float(model is not None)


def outer():
    wanted = 3
    def inner(prompt, completion, answer, row):
        return float(len(completion) == wanted)
    return inner


def as_it_was(function):
    """A wrapper that needs no variable of its function."""
    @functools.wraps(function)
    def wrapper(*arguments):
        return 2.0
    return wrapper


@as_it_was
def wrapped(prompt, completion, answer, row):
    return 1.0


def with_default(weight):
    def inner(prompt, completion, answer, row, *, weight=weight):
        return weight
    return inner


weight = 5

if True:
    def with_text(prompt, completion, answer, row, most=weight):
        wanted = """
  - one
two"""
        return float(wanted in completion) * most


def shadowed(prompt, completion, answer, row):
    model = len(completion)
    return float(model)
'''


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    """The names of a notebook after this cell, as IPython leaves them."""
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), names)
    return names


def scored(folder: Path, text: str, call: str) -> str:
    """What a call of the module prints in a process that has nothing but its file."""
    (folder / "notebook_rewards.py").write_text(text)
    script = f"import asyncio, notebook_rewards; print({call})"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout.strip()


def test_a_function_brings_what_it_names(notebook: dict[str, Any], tmp_path: Path) -> None:
    text = module_of([notebook["score"].__closure__[0].cell_contents], "reward")
    assert "model = " not in text and "Judge" not in text, "and nothing else"
    assert scored(tmp_path, text, "notebook_rewards.score('', '7 and 7', '7', {})") == "4.0"


def test_several_functions_share_one_module(notebook: dict[str, Any], tmp_path: Path) -> None:
    text = module_of([notebook["slow"], notebook["shadowed"]], "reward")
    call = "asyncio.run(notebook_rewards.slow('', 'aaa', None, {})), notebook_rewards.shadowed('', 'ab', None, {})"
    assert scored(tmp_path, text, call) == "1.0 2.0"


def _renamed(function: Any) -> Any:
    function.__name__ = "score"
    return function


def test_texts_of_an_indented_function_stay_as_they_are(notebook: dict[str, Any], tmp_path: Path) -> None:
    text = module_of([notebook["with_text"]], "reward")
    assert scored(tmp_path, text, r"notebook_rewards.with_text('', '\n  - one\ntwo', None, {})") == "5.0"


def test_a_function_that_was_renamed_is_named_as_it_is_written(notebook: dict[str, Any], tmp_path: Path) -> None:
    function = notebook["shadowed"]
    renamed = FunctionType(function.__code__, function.__globals__, "length")
    (named,) = asked(JOB, reward=[renamed]).job.spec.rewards or []
    assert (named.name, named.function) == ("length", "notebook_rewards:shadowed")
    assert scored(tmp_path, module_of([renamed], "reward"), "notebook_rewards.shadowed('', 'ab', None, {})") == "2.0"


def test_two_functions_of_one_name_are_refused(notebook: dict[str, Any]) -> None:
    make = notebook["with_default"]
    with pytest.raises(InputError, match=r"two functions that are defined as inner.* Rename one"):
        module_of([make(5), make(5)], "reward")


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a lambda": (lambda names: lambda *_: 1.0, "Define it with def"),
    "an object": (lambda names: names["judge"], "Define it with def"),
    "a partial": (lambda names: functools.partial(names["slow"], ""), "Define it with def"),
    "a closure": (lambda names: names["outer"](), "Define it at the top level of a cell"),
    "a wrapper": (lambda names: names["wrapped"], "wrapped, which a decorator has wrapped.* Remove the decorator"),
    "a named lambda": (lambda names: _renamed(lambda *_: 1.0), "got a lambda.* Define it with def"),
    "another default": (lambda names: names["with_default"](3), "default weight=weight .* write weight=3 there"),
    "a value of this process": (lambda names: names["with_model"], "Make model inside the function"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_run_elsewhere_is_refused_with_a_fix(notebook: dict[str, Any], kind: str) -> None:
    make, fix = REFUSED[kind]
    with pytest.raises(InputError, match=fix) as raised:
        module_of([make(notebook)], "reward")
    assert raised.value.field == "reward"


def test_a_function_without_source_is_refused_with_a_fix() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def score(prompt, completion, answer, row):\n    return 1.0", names)
    with pytest.raises(InputError, match="pass reward='my_reward:score'"):
        module_of([names["score"]], "reward")


def test_a_function_of_a_module_is_named_and_not_copied(notebook: dict[str, Any]) -> None:
    assert importable(linecache.getline) == "linecache:getline"
    assert importable(notebook["slow"]) is None


def test_an_evaluation_takes_a_function_that_another_process_finds() -> None:
    def score(prompt: str, completion: str) -> float:
        return 1.0

    assert name_of("numeric", "reward") == "numeric"
    assert name_of(linecache.getline, "reward") == "linecache:getline"
    with pytest.raises(InputError, match=r"reward: got score, .*my_reward.py and pass reward='my_reward:score'"):
        name_of(score, "reward")
    with pytest.raises(InputError, match=r"reward: got <lambda>, .*Define it with def"):
        name_of(lambda *_: 1.0, "reward")
