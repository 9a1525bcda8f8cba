"""H3: a prompt's keys are there once for each of its completions, and both the plan and the micro-batches count them.

Without that, a plan said "fits", and the first update ran out of memory.
"""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.memory_lines import key_bytes, micro_batch_keys, micro_batch_tokens, token_bytes
from lorarl_trainer.samples.packing import pack, packed_micro_batches
from lorarl_trainer.samples.sample import Sample
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import LARGER, SHAPES

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB, "NVIDIA H200")
MODELS = {name: sizes_of(config) for name, config in (SHAPES | LARGER).items()}
CASES = [
    # model; prompt, completions, response, tokens of a micro-batch; keys that one then has
    ("7B", 64, 8, 256, 16_384, 18_312),
    ("Llama-3.1-8B", 4096, 16, 256, 16_384, 147_424),
    ("Llama-3.1-8B", 8192, 32, 128, 16_384, 274_400),
    ("14B", 4096, 16, 256, 16_384, 147_424),
    ("Llama-3.1-8B", 8192, 64, 128, 32_768, 1_081_216),
]


def groups(prompt: int, completions: int, response: int, count: int) -> list[Sample]:
    """Samples of `count` prompts, all at their longest."""
    samples = []
    for number in range(count):
        tokens = np.full(prompt + response, number)
        samples += [Sample(tokens=tokens, prompt_length=prompt)] * completions
    return samples


def planned(name: str, prompt: int, completions: int, response: int, tokens: int, *changes: str) -> JobPlan:
    spec = gpu_job(
        f"algorithm.groupSize={completions}",
        f"trainer.tokensPerMicroBatch={tokens}",
        *changes,
        prompt_tokens=prompt,
        response_tokens=response,
    )
    return choose_plan(spec, MODELS[name], H200)


def most_keys(samples: list[Sample], tokens: int, budget: int | None) -> int:
    return max(
        len(pack([samples[index] for index in batch]).keys) for batch in packed_micro_batches(samples, tokens, budget)
    )


@pytest.mark.parametrize(("name", "prompt", "completions", "response", "tokens", "there"), CASES)
@pytest.mark.parametrize("dropout", [0, 0.1], ids=["fused", "Megatron's own"])
def test_the_plan_counts_the_keys_that_a_micro_batch_has(
    name: str, prompt: int, completions: int, response: int, tokens: int, there: int, dropout: float
) -> None:
    plan = planned(name, prompt, completions, response, tokens, f"adapter.dropout={dropout}")
    execution, model = plan.execution, MODELS[name]
    samples = groups(prompt, completions, response, count=64 if prompt == 64 else 4)
    assert most_keys(samples, tokens, None) == there
    found = most_keys(samples, tokens, execution.trainer.micro_batch_keys)
    assert plan.fits and found <= micro_batch_keys(execution)
    # Each of a layer's tensors over all keys has a place in the plan.
    (activations,) = [line.bytes for line in plan.memory.lines if line.what == "activations"]
    by_token = micro_batch_tokens(execution) * sum(token_bytes(model, execution))
    assert activations > by_token + found * sum(key_bytes(model, execution))


def test_keys_that_do_not_fit_part_the_groups() -> None:
    """With Megatron's own layers, which keep them: 1,081,216 keys of 32 layers would take 142 GB."""
    name, prompt, completions, response, tokens, there = CASES[-1]
    plan = planned(name, prompt, completions, response, tokens, "adapter.dropout=0.1", "trainer.recompute=selective")
    kept, _ = key_bytes(MODELS[name], plan.execution)
    assert kept * there > 141 * GB
    budget = plan.execution.trainer.micro_batch_keys
    assert plan.fits and budget is not None and budget < there / 2
    batches = packed_micro_batches(groups(prompt, completions, response, count=2), tokens, budget)
    assert len(batches) > 2 and sum(map(len, batches)) == 2 * completions
