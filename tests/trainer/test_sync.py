"""How a new adapter reaches vLLM: the same with either transport, never stale, and nothing is left behind."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_args

import psutil
import pytest
import torch

from lorarl_api.v1alpha1 import SERVED_RANKS
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.rollout.collect import require_version
from support.in_process import Colocated, prompts, random_adapter, samples_of, worst

pytestmark = pytest.mark.both_backends

TRANSPORTS = pytest.mark.parametrize("transport", ["tensor", "disk"])


def push(worker: Colocated, seed: int, scale: float = 0.1) -> None:
    worker.randomise(seed, scale)
    worker.sync()


def test_the_contract_allows_the_ranks_that_vllm_serves() -> None:
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == SERVED_RANKS


def test_tensor_and_disk_agree_bit_for_bit(colocated) -> None:
    first, second = colocated(rollout__adapterSync="tensor"), colocated(rollout__adapterSync="disk")
    rollouts = []
    for worker in (first, second):
        for seed in (0, 1):
            push(worker, seed)
        rollouts.append(worker.generate(prompts()))
    assert all(torch.equal(a, b) for a, b in zip(first.vllm_buffers(), second.vllm_buffers(), strict=True))
    assert [c.tokens.tolist() for c in rollouts[0]] == [c.tokens.tolist() for c in rollouts[1]]
    assert worst([c.logprobs for c in rollouts[0]], [c.logprobs for c in rollouts[1]]) == 0.0


@TRANSPORTS
def test_failure_1_an_adapter_is_read_once_however_often_it_generates(colocated, transport: str) -> None:
    worker: Colocated = colocated(rollout__adapterSync=transport)
    opened: list[str] = []
    watching = True

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if (
            watching
            and event == "open"
            and str(arguments[0]).endswith("adapter_config.json")
            and "w" not in str(arguments[1] or "")
        ):
            opened.append(str(arguments[0]))

    sys.addaudithook(audit)  # Python cannot remove it again; it is silenced below
    push(worker, 0)
    for _ in range(3):
        worker.generate(prompts())
    watching = False
    assert len(opened) == (1 if transport == "disk" else 0)


@TRANSPORTS
def test_failure_2_no_cached_prefix_of_an_older_adapter_is_used(colocated, transport: str) -> None:
    long_prompts = [[5 + i % 7] * 16 for i in range(6)]
    worker: Colocated = colocated(rollout__adapterSync=transport)
    push(worker, 0)
    before = worker.greedy(long_prompts)
    push(worker, 1, scale=0.3)
    warm = worker.greedy(long_prompts)
    cold: Colocated = colocated(rollout__adapterSync=transport)
    push(cold, 1, scale=0.3)
    assert warm == cold.greedy(long_prompts)
    assert warm != before, "adapters that generate alike would prove nothing"


def test_failure_5_rollouts_of_another_version_are_refused(colocated) -> None:
    worker: Colocated = colocated()
    push(worker, 0)
    rollouts = worker.generate(prompts())
    assert {c.adapter_version for c in rollouts} == {1}
    push(worker, 1)
    with pytest.raises(StaleAdapterError, match=r"versions \[1\], expected only 2"):
        require_version(rollouts, 2)


def test_failure_5_a_request_without_the_adapter_is_refused(colocated) -> None:
    worker: Colocated = colocated()
    push(worker, 0)
    worker.engine.slot.request = None
    with pytest.raises(StaleAdapterError, match="version 0, expected 1"):
        worker.generate(prompts())


@TRANSPORTS
def test_failure_9_what_vllm_was_given_stays_when_the_trainer_goes_on(colocated, transport: str) -> None:
    worker: Colocated = colocated(rollout__adapterSync=transport)
    for seed in range(5):
        push(worker, seed)
        given = worker.vllm_buffers()
        rollouts = worker.generate(prompts())
        with torch.no_grad():
            for parameter in worker.parameters.values():
                parameter.fill_(7.0)
        assert all(torch.equal(a, b) for a, b in zip(given, worker.vllm_buffers(), strict=True))
        worker.randomise(seed)
        assert worst([c.logprobs for c in rollouts], worker.trainer_logprobs(samples_of(prompts(), rollouts))) < 1e-5


@TRANSPORTS
def test_failures_16_and_21_200_syncs_leave_memory_flat_and_one_adapter(colocated, transport: str) -> None:
    worker: Colocated = colocated(rollout__adapterSync=transport)
    process = psutil.Process(os.getpid())
    adapters = [random_adapter(worker, seed) for seed in range(2)]

    def resident_after(syncs: int) -> int:
        for index in range(syncs):
            worker.load(adapters[index % 2])
            worker.sync()
            if index % 20 == 0:
                worker.generate(prompts(4))
        return process.memory_info().rss

    sizes = [resident_after(60), *(resident_after(70) for _ in range(3))]
    one_adapter = sum(tensor.nbytes for tensor in adapters[0].values())
    # Other memory may grow now and then. Adapters that pile up would add 70 times the size of one in every round.
    assert min(later - before for before, later in pairwise(sizes)) < 10 * one_adapter, sizes
    kept = worker.engine.llm_engine.collective_rpc(lambda w: set(w.model_runner.lora_manager.list_adapters()))[0]
    assert kept == {worker.version}


def test_failure_17_only_the_newest_version_is_ever_asked_for(colocated) -> None:
    worker: Colocated = colocated()
    for seed in range(3):
        push(worker, seed)
    slots = worker.engine.llm_engine.collective_rpc(
        lambda w: w.model_runner.lora_manager._adapter_manager.lora_index_to_id
    )[0]
    assert [slot for slot in slots if slot is not None] == [3]


def test_failure_22_a_transport_leaves_no_files_behind(colocated) -> None:
    before = set(Path("/dev/shm").glob("lorarl-adapter-*"))
    worker: Colocated = colocated(rollout__adapterSync="disk")
    for seed in range(3):
        push(worker, seed)
        assert set(Path("/dev/shm").glob("lorarl-adapter-*")) == before, "vLLM has read it: it can go"
