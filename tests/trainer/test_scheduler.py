"""Generation with our scheduler against vLLM's own: the same tokens and log-probabilities, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.planning import memory
from lorarl_trainer.samples.types import Completion
from support.in_process import Colocated, whole
from support.own_scheduler import vllm_generate, vllm_scheduler

LENGTHS = {"rollout__maxPromptTokens": 80, "rollout__maxResponseTokens": 40, "adapter__rank": 4}
ROWS = 16  # of the job: 4 prompts x 4 completions
BLOCK = 16  # tokens, as planned

Start = Callable[..., Colocated]


@pytest.fixture
def start(colocated: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a worker with a given number of blocks."""

    def with_blocks(blocks: int = ROWS * 8, **changes: object) -> Colocated:
        size = 2 * 2 * 2 * 32 * 4 * BLOCK  # keys and values, layers, heads of 32, fp32
        monkeypatch.setattr(memory, "kv_cache_bytes", lambda *_, **__: blocks * size)
        worker = colocated(**LENGTHS, **changes)
        worker.randomise(scale=0.05)
        worker.sync()
        return worker

    return with_blocks


def groups(count: int, size: int = 4, longest: int = 80) -> list[list[int]]:
    """`count` prompts of different lengths, each `size` times."""
    stream = np.random.default_rng(7)
    prompts = [stream.integers(4, 60, size=longest - 11 * index % 70).tolist() for index in range(count)]
    return [prompt for prompt in prompts for _ in range(size)]


def assert_equal(ours: Sequence[Completion], theirs: Sequence[Completion]) -> None:
    assert [c.tokens.tolist() for c in ours] == [c.tokens.tolist() for c in theirs]
    assert [c.finished for c in ours] == [c.finished for c in theirs]
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(ours, theirs, strict=True))


def scheduler(worker: Colocated) -> Any:
    return worker.engine.llm.llm_engine.engine_core.engine_core.scheduler


def test_it_generates_what_vllms_own_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with vllm_scheduler(monkeypatch):
        theirs = start()
    ours = start()
    assert type(scheduler(ours)).__name__ == "RolloutScheduler" and type(scheduler(theirs)).__name__ == "Scheduler"
    prompts = groups(4)
    for seed in range(2):  # several versions and calls
        for worker in (ours, theirs):
            worker.randomise(seed, scale=0.05)
            worker.sync()
        seeds = range(100 * seed, 100 * seed + len(prompts))
        made = ours.generate(prompts, seeds)
        assert_equal(made, vllm_generate(theirs, prompts, list(seeds)))
        assert len({len(c.tokens) for c in made}) > 4 and len({c.finished for c in made}) == 2, (
            "they shall end in different ways"
        )
        assert_equal(whole(ours.worker.generate(prompts, None)), vllm_generate(theirs, prompts, None))
    assert (
        ours.generate(prompts[:1], [3])[0].tokens.tolist() == vllm_generate(theirs, prompts[:1], [3])[0].tokens.tolist()
    )


@pytest.mark.parametrize("blocks", [ROWS * 8, 24])
def test_more_requests_than_rows_and_than_blocks(start: Start, blocks: int) -> None:
    prompts = groups(12)
    alone = start()
    expected = [alone.generate([prompt], [seed])[0] for seed, prompt in enumerate(prompts)]
    worker = start(blocks)
    running: list[int] = []
    schedule = scheduler(worker).schedule
    scheduler(worker).schedule = lambda *given: (schedule(*given), running.append(len(scheduler(worker).running)))[0]
    made = worker.generate(prompts, range(len(prompts)))
    assert [c.tokens.tolist() for c in made] == [c.tokens.tolist() for c in expected]
    assert max(np.abs(a.logprobs - b.logprobs).max() for a, b in zip(made, expected, strict=True)) < 1e-5
    assert (max(running) == ROWS) == (blocks > 24), "all rows are in use, unless there are too few blocks"
    assert_idle(worker)


def test_a_group_computes_its_prompt_once(start: Start) -> None:
    worker = start()
    counted = spy(worker)
    worker.generate([[5 + i % 7 for i in range(80)]] * 4, range(4))
    prompt = 79 // BLOCK * BLOCK  # the last token is always computed
    assert sum(counted[:1]) == 80 + 3 * (80 - prompt)


def test_a_prompt_longer_than_a_step(start: Start) -> None:
    prompts = groups(4)
    worker = start()
    expected = worker.greedy(prompts)  # vLLM's CPU runner cannot sample with seeds then
    worker.engine.llm.reset_prefix_cache()
    scheduler(worker).max_num_scheduled_tokens = 48
    counted = spy(worker)
    assert worker.greedy(prompts) == expected
    assert max(counted) == 48


def test_more_prompts_than_a_step_takes(start: Start) -> None:
    """A prompt that fits into a step is not split."""
    prompts = groups(4)
    worker = start()
    expected = worker.generate(prompts, range(len(prompts)))
    worker.engine.llm.reset_prefix_cache()
    scheduler(worker).max_num_scheduled_tokens = 100
    counted = spy(worker)
    made = worker.generate(prompts, range(len(prompts)))
    assert [c.tokens.tolist() for c in made] == [c.tokens.tolist() for c in expected]
    assert 80 <= max(counted) <= 100
    assert_idle(worker)


def test_steps_that_overlap_change_nothing(start: Start) -> None:
    """As on a GPU, where a step starts before the previous one's answer is there. (The CPU's runner has it at once.)"""
    prompts = groups(12)
    worker = start(48)
    expected = worker.generate(prompts, range(len(prompts)))
    core = worker.engine.llm.llm_engine.engine_core.engine_core
    core.batch_queue, core.batch_queue_size, core.step_fn = deque(maxlen=2), 2, core.step_with_batch_queue
    made = worker.generate(prompts, range(len(prompts)))
    assert [c.tokens.tolist() for c in made] == [c.tokens.tolist() for c in expected]
    assert_idle(worker)


def test_a_prompt_that_is_too_long_is_refused_and_leaves_nothing(start: Start) -> None:
    worker = start()
    expected = worker.generate(groups(1), range(4))
    with pytest.raises(ValueError, match=r"81 tokens, expected 80 at most \(rollout.maxPromptTokens\)"):
        worker.generate([[5], [5] * 81], range(2))
    assert_idle(worker)
    assert_equal(worker.generate(groups(1), range(4)), expected)


def spy(worker: Colocated) -> list[int]:
    """The number of tokens of each step from now on."""
    counted: list[int] = []
    schedule = scheduler(worker).schedule

    def counting(*given: Any) -> Any:
        step = schedule(*given)
        counted.append(step.total_num_scheduled_tokens)
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        return step

    scheduler(worker).schedule = counting
    return counted


def assert_idle(worker: Colocated) -> None:
    """The engine keeps nothing of requests that have ended."""
    own = scheduler(worker)
    assert not own.requests and not own.running and not own.waiting and not own.finished_req_ids
    assert own._table.free_rows == ROWS and len(own._table.rows) == 0
    assert own.kv_cache_manager.usage == 0.0
