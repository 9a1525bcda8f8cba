"""What vLLM gives up while the trainer works, the storage that both share, and how fast an adapter gets there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE
from support.in_process import Colocated, prompts, samples_of, update_request, worst


def used() -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def test_sleep_frees_memory_and_waking_changes_nothing(on_gpu) -> None:
    """One engine for all of it: vLLM allows one with memory that can sleep in a process."""
    worker: Colocated = on_gpu(rollout__offload="[kv_cache,weights]", rollout__verifySync="true")
    worker.sync()
    assert worker.engine.sleep(), "what it keeps of the first adapter is not the next one's"
    worker.randomise(scale=0.02)
    worker.sync()
    before, buffers, base = worker.generate(prompts(64)), worker.vllm_buffers(), worker.vllm_base()
    for offload in (["kv_cache"], ["kv_cache", "weights"]):
        worker.engine._memory._offload = frozenset(offload)
        awake = used()
        assert worker.engine.sleep() and not worker.engine.sleep()
        asleep = used()
        assert asleep < awake - 2**20, "a megabyte at least"
        assert worker.engine.wake("weights", "kv_cache")
        print(f"\n{offload}: {(awake - asleep) / 1e6:.1f} MB given up")
        assert all(torch.equal(a, b) for a, b in zip(buffers, worker.vllm_buffers(), strict=True))
        assert all(torch.equal(tensor, worker.vllm_base()[name]) for name, tensor in base.items())
        after = worker.generate(prompts(64))
        assert [c.tokens.tolist() for c in before] == [c.tokens.tolist() for c in after]
        assert worst([c.logprobs for c in before], [c.logprobs for c in after]) == 0.0

    levels = []
    for _ in range(20):
        samples = samples_of(prompts(64), worker.generate(prompts(64)))
        result = worker.worker.update(
            update_request(samples, learning_rate=1e-4, limits=AgreementLimits(tolerance=0.05))
        )
        assert result.disagreement is None and result.metrics[LOGPROB_DIFFERENCE] < 0.02
        assert result.seconds["sleep"] > 0
        worker.sync()
        levels.append(used())
    assert max(levels[5:]) - min(levels[5:]) < 64 * 2**20


@pytest.mark.parametrize("architecture", ["qwen3-gpu", "qwen2-gpu", "llama-gpu"])
def test_vllm_has_the_trainers_storage(on_gpu, architecture: str) -> None:
    worker: Colocated = on_gpu(architecture)
    own = {p.data_ptr() for _, p in worker.worker.backend.model.base_parameters()}

    def foreign(vllm: object) -> list[str]:
        return [n for n, p in vllm.model_runner.model.named_parameters() if p.data_ptr() not in own and "lora" not in n]

    names = worker.engine.llm_engine.collective_rpc(foreign)[0]
    assert names and all("qkv_proj" in name for name in names)


@pytest.mark.parametrize("adapter_type", ["lora", "canonical_lora"])
def test_a_sync_takes_less_than_a_millisecond(on_gpu, adapter_type: str) -> None:
    worker: Colocated = on_gpu(adapter__type=adapter_type, adapter__rank=32)
    worker.sync()
    plan = worker.rollouts.deliveries[0].sync.plan
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    plan.run()
    start.record()
    plan.run()
    end.record()
    walls = [worker.sync() for _ in range(20)]
    kernel, wall = start.elapsed_time(end), 1e3 * float(np.median(walls))
    print(f"\n{adapter_type}: {plan.nbytes / 1e6:.1f} MB, kernel {kernel:.3f} ms, wall {wall:.3f} ms")
    assert np.median(walls) < 1e-3
