"""Rows and rewards of the package reasoning-gym, where it is installed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import DataSource, ReasoningGymData, RewardSpec
from lorarl_trainer.data.reasoning_gym import require_task
from lorarl_trainer.data.rows import Row, digest_of, load_rows
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.scorer import check_rows, make_scorer
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore

installed = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs `lorarl env add reasoning-gym`")
CONFIG = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
FIELD = "spec.data.train"


def load(**settings: object) -> list[Row]:
    source = DataSource(reasoning_gym=ReasoningGymData(**{"task": "chain_sum", "size": 4, **settings}))
    return load_rows(source, field=FIELD, needs_answer=True, fetch=Path)


@installed
def test_a_task_becomes_rows_that_its_seed_determines() -> None:
    rows = load(seed=5, config=CONFIG, instruction="Answer with a number.")
    assert [row.number for row in rows] == [1, 2, 3, 4]
    assert str(rows[0].prompt).endswith("\n\nAnswer with a number.")
    assert rows[0].prompt == f"{rows[0].raw['question']}\n\nAnswer with a number."
    assert rows[0].answer == str(eval(rows[0].raw["metadata"]["expression"]))
    assert digest_of(load(seed=5, config=CONFIG)) == digest_of(load(seed=5, config=CONFIG))
    assert [row.raw["question"] for row in load(seed=6, config=CONFIG)][:3] == [row.raw["question"] for row in rows][1:]


@installed
def test_rows_do_not_depend_on_the_order_of_sets() -> None:
    """A resumed run is another process. This task goes through a set of words."""
    script = (
        "from unit.trainer.data.test_gym import load; from lorarl_trainer.data.rows import digest_of; "
        "print(digest_of(load(task='isomorphic_strings', size=20)))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@installed
@pytest.mark.parametrize("task", ["list_functions", "codeio", "chain_sum"])
def test_rows_do_not_depend_on_the_global_random_states(task: str) -> None:
    """Two of the package's tasks draw from them."""
    assert digest_of(load(task=task, size=30)) == digest_of(load(task=task, size=30))


@installed
def test_a_reward_takes_the_settings_of_its_rows() -> None:
    config = {"min_num_decimal_places": 2, "max_num_decimal_places": 2}
    for row in load(task="decimal_arithmetic", size=3, config=config):
        entry = {"question": row.raw["question"], "answer": row.answer, "metadata": row.raw["metadata"]}
        own = reasoning_gym_task("decimal_arithmetic", config).score_answer
        for given in (row.answer, str(float(row.answer or 0) + 0.01), str(float(row.answer or 0) + 0.00005)):
            scored = decimal_arithmetic(row.prompt, given, row.answer, row.raw)
            assert scored["score"] == own(given, entry)


def reasoning_gym_task(task: str, config: dict[str, int]) -> Any:
    from reasoning_gym.factory import DATASETS

    dataset, settings = DATASETS[task]
    return dataset(config=settings(**config))


def decimal_arithmetic(*arguments: Any) -> dict[str, float]:
    from lorarl_trainer.rewards import reasoning_gym

    return reasoning_gym.decimal_arithmetic(*arguments)


@installed
@pytest.mark.parametrize(("task", "text"), [("prime_factorization", "I do not know"), ("boxnet", "42")])
def test_an_answer_that_a_tasks_scorer_cannot_read_is_wrong(task: str, text: str) -> None:
    from lorarl_trainer.rewards import reasoning_gym

    [row, *_] = load(task=task)
    scored = getattr(reasoning_gym, task)(row.prompt, text, row.answer, row.raw)
    assert scored == {"score": 0.0, "answer_tags": 0.0, "unreadable": 1.0}


@installed
@pytest.mark.parametrize("task", ["arc_agi", "rearc"])
def test_rows_from_a_file_score_as_those_that_were_generated(task: str) -> None:
    from lorarl_trainer.rewards import reasoning_gym

    for row in load(task=task):
        from_file = json.loads(json.dumps(row.raw))
        assert getattr(reasoning_gym, task)(row.prompt, row.answer, row.answer, from_file)["score"] == 1.0


@installed
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "chain_summ"}, rf"{FIELD}.reasoningGym.task: got chain_summ, .* Did you mean chain_sum\?"),
        (
            {"config": {"terms": 3}},
            rf"{FIELD}.reasoningGym.config: got \{{'terms': 3\}}, .*unexpected keyword argument",
        ),
        ({"config": {"min_terms": 9, "max_terms": 1}}, rf"{FIELD}.reasoningGym.config: got .*AssertionError"),
    ],
)
def test_what_a_task_does_not_take_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(**settings)


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    made = make_scorer(RewardSpec(reasoning_gym="chain_sum"), Path(), processes=1)
    yield made
    made.close()


@installed
@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("I add. <answer> {} </answer>", Outcome(1.0, components={"answer_tags": 1.0, "unreadable": 0.0})),
        ("{}\n", Outcome(1.0, components={"answer_tags": 0.0, "unreadable": 0.0})),
        ("<answer>no</answer>", Outcome(0.0, components={"answer_tags": 1.0, "unreadable": 0.0})),
        ("", Outcome(0.0, components={"answer_tags": 0.0, "unreadable": 0.0})),
    ],
)
def test_a_task_scores_an_answer_with_or_without_tags(scorer: Scorer, completion: str, outcome: Outcome) -> None:
    [row, *_] = load(config=CONFIG)
    sample = ToScore(row.prompt, completion.format(row.answer), row.answer, row.raw)
    assert asyncio.run(scorer.score([sample])) == [outcome]


@installed
def test_a_task_that_is_not_there_is_refused_as_a_reward() -> None:
    made = make_scorer(RewardSpec(reasoning_gym="sums"), Path(), "spec.rewards[0]", processes=1)
    with pytest.raises(InputError, match=r"^spec\.rewards\[0\]\.reasoningGym: got sums, which reasoning-gym does not"):
        asyncio.run(made.ready())
    made.close()


def test_rows_of_other_data_are_refused() -> None:
    rewards = {"spec.reward": RewardSpec(reasoning_gym="chain_sum")}
    with pytest.raises(InputError, match=r"^spec\.reward\.reasoningGym: got chain_sum, but no metadata in row 3"):
        check_rows(rewards, [Row("p", "a", {"prompt": "p", "answer": "a"}, 3)])
    check_rows(rewards, [Row("p", "a", {"prompt": "p", "metadata": {"x": 1}}, 3)])


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorarl_trainer.data.reasoning_gym.MODULE", "reasoning_gym_that_is_not_there")
    with pytest.raises(InputError) as refused:
        require_task("chain_sum", "spec.reward.reasoningGym")
    assert str(refused.value) == (
        "spec.reward.reasoningGym: got chain_sum, but the package reasoning-gym is not installed, expected a task of "
        "reasoning-gym. Install it: lorarl env add reasoning-gym. In a cluster, add it to the trainer's image."
    )
    with pytest.raises(InputError, match=r"^spec\.data\.train\.reasoningGym\.task: got chain_sum, but the package"):
        load()
