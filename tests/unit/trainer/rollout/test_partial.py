"""Answers that are continued from step to step, by an engine whose tokens follow from seed, place and version."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.progress import Progress
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Generated, TakeCompletions, Workers
from lorarl_trainer.rollout.partial import Partial
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from support.loop_runs import CountsEvenTokens, rows, spelled
from unit.contract.manifests import manifest

PROMPTS, GROUP, LONGEST, ROUND = 4, 3, 40, 7
ROWS = 12


def length_of(seed: int) -> int:
    """Most answers are short; some reach the limit."""
    return 1 + seed % 5 if seed % 6 else LONGEST


def token(seed: int, place: int) -> int:
    return (seed + 7 * place) % 50


class Scripted:
    """Generates as an engine does. Log-probabilities name the version that drew the token, and its place."""

    def __init__(self) -> None:
        self.version, self.calls = 1, list[int]()
        self.asked: tuple[Sequence[GenerationRequest], TakeCompletions]

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        self.asked = requests, take

    async def results(self) -> Generated:
        requests, take = self.asked
        self.calls.append(len(requests))
        for index in np.random.default_rng(len(self.calls)).permutation(len(requests)).tolist():
            request = requests[index]
            seed, made = request.seed, request.tokens[request.prompt_length :]
            assert seed is not None and request.begun == len(made) and request.max_tokens == ROUND
            assert made == [token(seed, place) for place in range(len(made))] and len(made) < length_of(seed)
            places = range(len(made), min(len(made) + ROUND, length_of(seed)))
            finished = places.stop == length_of(seed) and length_of(seed) < LONGEST
            logprobs = np.array([-self.version - place / 1000 for place in places], np.float32)
            tokens = np.array([token(seed, place) for place in places])
            take([index], [Completion(tokens, logprobs, finished, self.version)])
        return Generated({"generate": 1.0})


def spec_of(**rollout: Any) -> LoRARLJobSpec:
    changed = {"promptsPerStep": PROMPTS, "maxResponseTokens": LONGEST, **rollout}
    return load_job(json.dumps(manifest({f"spec.rollout.{key}": value for key, value in changed.items()}))).spec


def partial(workers: Scripted, extra: int, resumed: Sequence[int] = (), position: int = 0) -> Partial:
    return Partial(
        spec_of(),
        RowStream(rows(ROWS), 0, position),
        {},
        GROUP,
        cast(Workers, workers),
        CountsEvenTokens(),
        spelled,
        Progress([], []),
        spelled,
        extra_prompts=extra,
        tokens_per_round=ROUND,
        resumed=resumed,
    )


def steps_of(rollouts: Partial, workers: Scripted, count: int) -> list[StepBatch]:
    async def make() -> list[StepBatch]:
        made = []
        for step in range(count):
            made.append(await rollouts.next(step + 1, workers.version))
            workers.version += 1
        return made

    return asyncio.run(make())


@pytest.mark.parametrize("extra", [1, 3, 2 * PROMPTS])
def test_every_answer_is_whole_and_each_row_has_its_turn(extra: int) -> None:
    workers = Scripted()
    rollouts = partial(workers, extra)
    steps = steps_of(rollouts, workers, 12)
    for batch in steps:
        assert batch.rewards_P_G.shape == (PROMPTS, GROUP) and not np.isnan(batch.rewards_P_G).any()
        for sample in batch.samples_S:
            response = sample.tokens[sample.prompt_length :].tolist()
            assert response == [token(response[0], place) for place in range(len(response))]
    # Rows come in epochs, and none is passed over for longer than its answers take.
    trained = Counter(tuple(s.tokens[: s.prompt_length].tolist()) for batch in steps for s in batch.samples_S)
    assert set(trained) == {tuple(row.prompt_ids) for row in rows(ROWS)}
    assert len(rollouts.unfinished) == extra
    assert rollouts.position == 12 * PROMPTS + extra


def test_a_token_has_the_log_probability_that_its_adapter_gave_it() -> None:
    workers = Scripted()
    steps = steps_of(partial(workers, 3), workers, 8)
    older = 0
    for version, batch in enumerate(steps, start=1):
        for sample in batch.samples_S:
            assert sample.rollout_logprobs is not None
            versions = np.floor(-sample.rollout_logprobs.astype(np.float64)).astype(int)
            places = np.round((-sample.rollout_logprobs - versions) * 1000)
            assert places.tolist() == list(range(sample.response_length)), "in their order"
            assert (np.diff(versions) >= 0).all() and versions[-1] <= version
            assert sample.fresh == (versions[0] == version)
            older += not sample.fresh
        found = batch.metrics
        counted = [not sample.fresh for sample in batch.samples_S]
        assert found["partial/older_share"] == pytest.approx(np.mean(counted))
        assert 0 <= found["partial/older_tokens_share"] <= 1
        assert (found["partial/versions_behind"] > 0) == any(counted)
    assert older > 0, "the scenario needs answers that are continued"


def test_each_turn_of_a_row_and_each_answer_to_it_draws_by_itself() -> None:
    workers, turns = Scripted(), dict[tuple[int, ...], list[tuple[int, ...]]]()
    for batch in steps_of(partial(workers, 0), workers, 2 * ROWS // PROMPTS):
        for sample in batch.samples_S:
            prompt, response = np.split(sample.tokens, [sample.prompt_length])
            turns.setdefault(tuple(prompt.tolist()), []).append(tuple(response.tolist()))
    assert {len(answers) for answers in turns.values()} == {2 * GROUP}
    distinct = [len(set(answers)) for answers in turns.values()]
    assert np.mean(distinct) > 2 * GROUP - 1, "neither the members of a group nor two turns of a row are alike"
    firsts = [answers[0] for answers in turns.values()]
    assert len(set(firsts)) > ROWS / 2, "nor are rows"


def test_a_step_waits_for_no_answer_that_is_not_needed() -> None:
    patient, hasty = Scripted(), Scripted()
    steps_of(partial(patient, 0), patient, 6)
    steps_of(partial(hasty, 6), hasty, 6)
    assert len(hasty.calls) < len(patient.calls)


def test_a_resumed_run_begins_unfinished_groups_again() -> None:
    workers = Scripted()
    rollouts = partial(workers, 3)
    steps_of(rollouts, workers, 2)
    left = rollouts.unfinished
    again = partial(workers, 3, resumed=left, position=rollouts.position)
    assert again.unfinished == left and again.position == rollouts.position
    (batch,) = steps_of(again, workers, 1)
    assert all(sample.fresh for sample in batch.samples_S)
    ids = {tuple(sample.tokens[: sample.prompt_length].tolist()) for sample in batch.samples_S}
    stream = RowStream(rows(ROWS), 0)
    assert tuple(stream.at(left[0]).prompt_ids) in ids or left[0] in again.unfinished


def test_another_adapters_tokens_are_refused() -> None:
    workers = Scripted()
    rollouts = partial(workers, 1)
    workers.version = 2
    with pytest.raises(StaleAdapterError, match=r"versions \[2\], expected only 1"):
        asyncio.run(rollouts.next(1, 1))
