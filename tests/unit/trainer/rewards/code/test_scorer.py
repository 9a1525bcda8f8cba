"""Completions scored by the tests that their programs pass."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lorarl_api.v1alpha1 import CodeReward, RewardSpec
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.code.process import RefusedError, Sandbox
from lorarl_trainer.rewards.code.scorer import CodeScorer
from lorarl_trainer.rewards.scorer import check_rows, make_scorer
from lorarl_trainer.rewards.scores import Outcome, ToScore
from unit.trainer.rewards.scoring import score_outcomes

ADD = {"tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(2, 2) == 4", "assert add(-1, 1) == 0"]}
CLEAN = {
    "tests_passed": 1.0,
    "no_program": 0.0,
    "exception": 0.0,
    "stopped_timeout": 0.0,
    "stopped_memory": 0.0,
    "stopped_output": 0.0,
    "stopped_forbidden": 0.0,
}


@pytest.fixture
def scorer() -> Iterator[Callable[..., CodeScorer]]:
    made: list[CodeScorer] = []
    before = set(psutil.Process().children())

    def make(processes: int = 2, timeout_seconds: float = 10.0, **settings: Any) -> CodeScorer:
        spec = RewardSpec(code=CodeReward(**settings), timeout_seconds=timeout_seconds)
        scorer = make_scorer(spec, Path(), processes=processes)
        assert isinstance(scorer, CodeScorer)
        made.append(scorer)
        return scorer

    yield make
    for each in made:
        each.close()
    assert set(psutil.Process().children()) <= before


def score(scorer: CodeScorer, *programs: str, row: dict[str, Any] = ADD) -> list[Outcome]:
    return score_outcomes(scorer, [ToScore("p", f"```python\n{program}\n```", None, row) for program in programs])


def test_all_tests_or_a_share_of_them(scorer) -> None:
    right, half = "def add(a, b): return a + b", "def add(a, b): return a * b"
    assert score(scorer(), right, half) == [
        Outcome(1.0, components=CLEAN),
        Outcome(0.0, components=CLEAN | {"tests_passed": 0.0}),
    ]
    assert score(scorer(score="share"), right, half) == [
        Outcome(1.0, components=CLEAN),
        Outcome(0.5, components=CLEAN | {"tests_passed": 0.5}),
    ]


def test_a_completion_without_a_program_is_a_wrong_one(scorer) -> None:
    [outcome] = score_outcomes(scorer(), [ToScore("p", "```bash\nls\n```", None, ADD)])
    assert outcome == Outcome(0.0, components=CLEAN | {"tests_passed": 0.0, "no_program": 1.0})


def test_attacks_score_0_by_cause_and_the_others_are_scored(scorer) -> None:
    made = scorer(seconds_per_test=3.0, memory_mib=256)
    attacks = {
        "stopped_timeout": "while True: pass",
        "stopped_memory": "x = bytearray(10**10)",
        "stopped_output": "while True: print('x' * 1000)",
        "stopped_forbidden": "import os\nwhile True: os.fork()",
        "exception": "1 / 0",
    }
    *attacked, right = score(made, *attacks.values(), "def add(a, b): return a + b")
    for cause, outcome in zip(attacks, attacked, strict=True):
        assert outcome == Outcome(0.0, components=CLEAN | {"tests_passed": 0.0, cause: 1.0})
    assert right.value == 1.0


def test_all_tests_of_a_completion_have_one_limit(scorer) -> None:
    made = scorer(score="share", timeout_seconds=15.0, seconds_per_test=10.0)
    [outcome] = score(made, "import time\ndef add(a, b): time.sleep(6); return a + b")
    assert outcome.value == 0.5, "two of four tests ended in time"
    assert outcome.components["stopped_timeout"] == 1.0


def test_a_sandbox_that_breaks_costs_its_sample_and_is_replaced(scorer) -> None:
    """That is no fault of the program, so the sample is left out, not scored 0."""
    others = set(psutil.Process().children())
    made = scorer(processes=1, seconds_per_test=60.0, timeout_seconds=60.0)
    asyncio.run(made.ready())
    [sandbox] = set(psutil.Process().children()) - others

    def kill_once_it_runs() -> None:
        while not sandbox.children():
            pass
        sandbox.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill_once_it_runs)
    killer.start()
    broken, right = score(made, "while True: pass", "def add(a, b): return a + b")
    killer.join()
    assert broken.failure == "crash: the sandbox ended"
    assert right.value == 1.0


def test_closing_ends_programs_that_run(scorer) -> None:
    others = set(psutil.Process().children())
    made = scorer(processes=1, seconds_per_test=600.0, timeout_seconds=600.0)

    async def close_once_it_runs() -> list[Outcome]:
        await made.ready()
        [sandbox] = set(psutil.Process().children()) - others
        task = asyncio.create_task(made.score([ToScore("p", "while True: pass", None, ADD)]))
        while not sandbox.children():
            await asyncio.sleep(0)
        await asyncio.to_thread(made.close)
        return await task

    [outcome] = asyncio.run(close_once_it_runs())
    assert outcome.cause == "crash"


def test_a_machine_that_cannot_confine_is_refused(scorer, monkeypatch) -> None:
    monkeypatch.setattr(Sandbox, "start", refuse := Refusal())
    with pytest.raises(InputError) as refused:
        asyncio.run(scorer().ready())
    assert refuse.asked == 1
    assert str(refused.value).startswith("spec.reward.code: got a kernel without Landlock")
    assert "spec.reward.code.requireLandlock: false runs programs that can read files" in str(refused.value)


class Refusal:
    """What a kernel without Landlock makes of a start; this machine's has it."""

    asked = 0

    def __call__(self) -> None:
        self.asked += 1
        raise RefusedError("a kernel without Landlock, which keeps programs from reading the trainer's files")


def test_rows_without_tests_are_refused_before_a_run() -> None:
    code = RewardSpec(code=CodeReward(tests_field="checks"))
    rewards = {"spec.rewards[0]": RewardSpec(type="exact"), "spec.rewards[1]": code}
    check_rows(rewards, [Row("p", "a", {"prompt": "p", "checks": "assert f()"}, 1)])
    with pytest.raises(InputError) as refused:
        check_rows(rewards, [Row("p", "a", {"prompt": "p", "test": "assert f()"}, 7)])
    assert str(refused.value).startswith("spec.rewards[1].code.testsField: got no column checks in row 7, expected a ")
    assert str(refused.value).endswith("Name the column with the tests (the row has prompt, test).")
    with pytest.raises(InputError, match="got no test in row 8"):
        check_rows(rewards, [Row("p", "a", {"checks": []}, 8)])


def test_tests_that_are_not_python_are_refused_and_never_score_0(scorer) -> None:
    code = {"spec.reward": RewardSpec(code=CodeReward(tests_field="tests"))}
    with pytest.raises(InputError) as refused:
        check_rows(code, [Row("p", "a", {"tests": ["assert f() == 1", "assert f( == 2"]}, 3)])
    assert str(refused.value).startswith(
        "spec.reward.code.testsField: got a test that is not valid Python, 'assert f( == 2' (SyntaxError: "
    )
    assert "in row 3, expected assertions in Python. Fix that test, or name another column (the row has tests)." in str(
        refused.value
    )
    [outcome] = score(scorer(), "pass", row={"tests": ["The answer is 5."]})
    assert (outcome.failure or "").startswith("wrong_type: the row's column tests has a test that is not valid Python")


def test_a_row_that_lost_its_tests_costs_its_sample(scorer) -> None:
    [outcome] = score(scorer(), "pass", row={"test": 1})
    assert outcome.failure == "wrong_type: the row's column tests has NoneType None"
