"""Generation with our scheduler against vLLM's own: the same tokens and log-probabilities, bit for bit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.planning import memory
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.sampling import Sampling
from support.in_process import Colocated, made, wanted
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


def assert_alike(made: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """The same tokens, and the same log-probabilities but for rounding."""
    assert [c.tokens.tolist() for c in made] == [c.tokens.tolist() for c in expected]
    assert max(np.abs(a.logprobs - b.logprobs).max() for a, b in zip(made, expected, strict=True)) < 1e-5


def scheduler(worker: Colocated) -> Any:
    return worker.engine.llm_engine.engine_core.engine_core.scheduler


@pytest.mark.parametrize("blocks", [ROWS * 8, 24])
def test_a_completion_that_is_made_in_rounds_is_the_same(start: Start, blocks: int) -> None:
    """Unless there are too few blocks, a round computes nothing that an earlier one has computed, but for a block."""
    prompts = groups(4)
    seeds = list(range(len(prompts)))
    expected = start().generate(prompts, seeds)
    worker = start(blocks)
    steps = spy(worker)
    parts: list[list[Completion]] = [[] for _ in prompts]
    preempted = 0
    for round_ in range(4):  # of 13 tokens; 40 at most
        left = [index for index, made in enumerate(parts) if not made or not made[-1].finished]
        begun = [[int(token) for part in parts[index] for token in part.tokens] for index in left]
        requests = [
            GenerationRequest([*prompts[index], *own], seed=seeds[index], begun=len(own), max_tokens=13)
            for index, own in zip(left, begun, strict=True)
        ]
        steps.clear()
        ended = made(worker.worker, requests)
        assert_idle(worker)
        if round_ and blocks > 24:
            assert sum(step.tokens for step in steps) <= sum(BLOCK + len(one.tokens) for one in ended)
        preempted += worker.engine.occupancy.preemptions
        assert all(len(one.tokens) <= (13 if round_ < 3 else 1) for one in ended)
        for index, one in zip(left, ended, strict=True):
            parts[index].append(one)
    whole_again = [
        Completion(
            np.concatenate([part.tokens for part in ended]),
            np.concatenate([part.logprobs for part in ended]),
            ended[-1].finished,
            ended[-1].adapter_version,
        )
        for ended in parts
    ]
    assert (preempted > 0) == (blocks == 24)
    assert [one.finished for one in whole_again] == [one.finished for one in expected]
    assert_alike(whole_again, expected)


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
        drawn = ours.generate(prompts, seeds)
        assert_equal(drawn, vllm_generate(theirs, prompts, list(seeds)))
        assert len({len(c.tokens) for c in drawn}) > 4 and len({c.finished for c in drawn}) == 2, (
            "they shall end in different ways"
        )
        assert_equal(made(ours.worker, wanted(prompts)), vllm_generate(theirs, prompts, None))
    assert (
        ours.generate(prompts[:1], [3])[0].tokens.tolist() == vllm_generate(theirs, prompts[:1], [3])[0].tokens.tolist()
    )


@pytest.mark.parametrize("blocks", [ROWS * 8, 24])
def test_more_requests_than_rows_and_than_blocks(start: Start, blocks: int) -> None:
    """Too few blocks: requests are preempted, and continue with the tokens that they would have had anyway."""
    prompts = groups(12)
    alone = start(rollout__topK=20)
    expected = [alone.generate([prompt], [seed])[0] for seed, prompt in enumerate(prompts)]
    worker = start(blocks, rollout__topK=20)
    steps = spy(worker)
    drawn = worker.generate(prompts, range(len(prompts)))
    assert_alike(drawn, expected)
    assert all(a.kept.tolist() == b.kept.tolist() for a, b in zip(drawn, expected, strict=True))
    assert (max(step.running for step in steps) == ROWS) == (blocks > 24), "all rows, unless there are too few blocks"
    assert (worker.engine.occupancy.preemptions > 10) == (blocks == 24)
    assert_idle(worker)


def test_a_group_computes_its_prompt_once(start: Start) -> None:
    worker = start()
    steps = spy(worker)
    worker.generate([[5 + i % 7 for i in range(80)]] * 4, range(4))
    prompt = 79 // BLOCK * BLOCK  # the last token is always computed
    assert steps[0].tokens == 80 + 3 * (80 - prompt)


@pytest.mark.parametrize("size", [48, 100])
def test_prompts_that_do_not_fit_into_a_step(start: Start, size: int) -> None:
    """Each is longer than a step, or the last of a step is cut. A number that is drawn for a part changes nothing."""
    prompts = groups(4)
    worker = start()
    expected = worker.generate(prompts, range(len(prompts)))
    worker.engine.llm_engine.reset_prefix_cache()
    scheduler(worker).max_num_scheduled_tokens = size
    steps = spy(worker)
    assert_alike(worker.generate(prompts, range(len(prompts))), expected)
    assert max(step.tokens for step in steps) == size
    assert max(step.running for step in steps) == ROWS and len(steps) < 60, "groups decode together"
    assert_idle(worker)


def test_steps_that_overlap_change_nothing(start: Start) -> None:
    """As on a GPU, where a step starts before the previous one's answer is there. (The CPU's runner has it at once.)"""
    prompts = groups(12)
    worker = start(24)
    expected = worker.generate(prompts, range(len(prompts)))
    core = worker.engine.llm_engine.engine_core.engine_core
    core.batch_queue, core.batch_queue_size, core.step_fn = deque(maxlen=2), 2, core.step_with_batch_queue
    assert_alike(worker.generate(prompts, range(len(prompts))), expected)
    assert worker.engine.occupancy.preemptions > 10
    assert_idle(worker)


@pytest.mark.parametrize("blocks", [ROWS * 8, 24])
def test_requests_that_come_while_others_decode_change_nothing(start: Start, blocks: int) -> None:
    """Their tokens are those of one batch. They come from another thread, before any step, and after the last one."""
    prompts = groups(12)
    requests = dict(enumerate(wanted(prompts, range(len(prompts)))))
    expected = start().generate(prompts, range(len(prompts)))
    worker = start(blocks)
    late = [*requests.items()]
    first = dict(late[:4])
    del late[:4]
    running: list[int] = []

    def submit(others: dict[int, GenerationRequest]) -> None:
        thread = threading.Thread(target=worker.worker.submit, args=(others,))
        thread.start()
        thread.join()

    def before_a_step(step: Step) -> None:
        running.append(step.running)
        if late and len(running) % 3 == 0:
            submit(dict([late.pop(0)]))

    spy(worker, before_a_step)
    worker.worker.submit(first)
    found = {}
    while True:
        for chunk in worker.worker.results(0):
            found.update(zip(chunk.numbers, chunk.completions, strict=True))
        if not late:
            break
        submit(dict([late.pop(0)]))  # the engine had nothing left
    assert_alike([found[number] for number in requests], expected)
    assert max(running) > 4, "requests that came later have joined"
    assert (worker.engine.occupancy.preemptions > 0) == (blocks == 24)
    assert_idle(worker)


def test_a_request_of_another_sampling_waits_for_those_before_it(start: Start) -> None:
    """vLLM's samplers here draw all tokens of a step alike."""
    prompts, worker = groups(2), start()
    choices = [{"seeds": range(8)}, {}, {"seeds": range(8), "sampling": Sampling(top_k=3)}]
    expected = [made(worker.worker, wanted(prompts, **choice)) for choice in choices]
    mixed = [
        wanted([prompt], **{**choice, **({"seeds": [at]} if choice else {})})[0]
        for at, prompt in enumerate(prompts)
        for choice in choices
    ]
    found = made(worker.worker, mixed)
    for place, alone in enumerate(expected):
        of_choice = found[place :: len(choices)]
        assert [c.tokens.tolist() for c in of_choice] == [c.tokens.tolist() for c in alone]
        assert [c.kept is None for c in of_choice] == [c.kept is None for c in alone]
        assert [len(c.logprobs) for c in of_choice] == [len(c.logprobs) for c in alone]


def test_a_request_has_limits_of_its_own(start: Start) -> None:
    worker, prompt = start(), groups(1)[0]
    (whole,) = worker.generate([prompt], [0])
    assert len(whole.tokens) > 6
    (short,) = made(worker.worker, wanted([prompt], [0], max_tokens=5))
    assert short.tokens.tolist() == whole.tokens[:5].tolist() and not short.finished
    stop = int(whole.tokens[3])
    (stopped,) = made(worker.worker, wanted([prompt], [0], stop_token_ids=(stop,)))
    assert (
        stopped.finished and stopped.tokens.tolist() == whole.tokens[: whole.tokens.tolist().index(stop) + 1].tolist()
    )


def test_a_request_for_another_adapter_is_refused(start: Start) -> None:
    worker, request = start(), GenerationRequest([5], "in step 7", seed=0, adapter=1)
    assert len(made(worker.worker, [request])) == 1
    worker.sync()
    with pytest.raises(StaleAdapterError, match=r"^in step 7: adapter version 2 would generate, expected 1"):
        made(worker.worker, [request])
    assert_idle(worker)


def test_a_prompt_that_is_too_long_is_refused_and_leaves_nothing(start: Start) -> None:
    worker = start()
    expected = worker.generate(groups(1), range(4))
    with pytest.raises(
        ValueError, match=r"^in step 7: a prompt has 81 tokens, expected 80 at most \(rollout.maxPromptTokens\)"
    ):
        made(worker.worker, wanted([[5], [5] * 81], range(2), asked_by="in step 7"))
    assert_idle(worker)
    assert_equal(worker.generate(groups(1), range(4)), expected)


class Step(NamedTuple):
    """How many requests were in a step, and how many of their tokens."""

    running: int
    tokens: int


def spy(worker: Colocated, before: Callable[[Step], None] = lambda step: None) -> list[Step]:
    """The steps from now on. Each is given to `before` before it is computed."""
    steps: list[Step] = []
    schedule = scheduler(worker).schedule

    def counting(*given: Any) -> Any:
        step = schedule(*given)
        steps.append(Step(len(step.num_scheduled_tokens), step.total_num_scheduled_tokens))
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        before(steps[-1])
        return step

    scheduler(worker).schedule = counting
    return steps


def assert_idle(worker: Colocated) -> None:
    """The engine keeps nothing of requests that have ended."""
    own = scheduler(worker)
    assert not own.requests and not own.running and not own.waiting and not own.finished_req_ids
    assert own._table.free_rows == ROWS and len(own._table.rows) == 0
    assert own.kv_cache_manager.usage == 0.0
