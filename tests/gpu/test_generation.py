"""Generation on one GPU: our layers under CUDA graphs, and our scheduler, against vLLM's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm.patches import attention, attention_kernel
from lorarl_trainer.engine.vllm.patches.attention import decodes_many
from lorarl_trainer.engine.vllm.patches.linear import FEW_TOKENS, adapted_linear
from lorarl_trainer.engine.vllm.patches.linear_kernel import MOST_TOKENS, arrivals
from lorarl_trainer.samples.sample import Completion
from support.in_process import Colocated, mean_difference, prompts, samples_of
from support.own_layers import in_common, layer_kinds, vllm_lora_layers
from support.own_scheduler import vllm_generate, vllm_scheduler

BATCH = {"rollout__promptsPerStep": 16, "rollout__maxResponseTokens": 32}
BLOCKS = 24
"""Of the KV cache: room for some of the 64 samples that could run at a time."""
STEP_TOKENS = 80
"""At least a token for each of these samples."""


@pytest.mark.parametrize(
    ("architecture", "rank", "adapter_type"),
    [("qwen2-gpu", 8, "canonical_lora"), ("qwen3-gpu", 32, "lora"), ("llama-gpu", 128, "canonical_lora")],
)
def test_one_adapter_layers_and_vllms_own_agree(
    on_gpu, monkeypatch, architecture: str, rank: int, adapter_type: str
) -> None:
    changes = BATCH | {"adapter__rank": rank, "adapter__alpha": rank, "adapter__type": adapter_type}
    ours: Colocated = on_gpu(architecture, **changes)
    with vllm_lora_layers(monkeypatch):
        theirs: Colocated = on_gpu(architecture, **changes)
    assert all(kind.startswith("OneAdapter") for kind in layer_kinds(ours))
    assert all(kind.endswith("WithLoRA") for kind in layer_kinds(theirs))
    base = ours.generate(prompts(64))
    for worker in (ours, theirs):
        worker.randomise(scale=0.02)
        worker.sync()
    assert all(torch.equal(a, b) for a, b in zip(ours.vllm_buffers(), theirs.vllm_buffers(), strict=True))
    adapted = ours.generate(prompts(64))
    share, apart = in_common(adapted, theirs.generate(prompts(64)))
    print(
        f"{architecture} rank {rank}: {100 * share:.1f}% of the tokens before a difference, "
        f"log-probabilities {apart.mean():.5f} apart"
    )
    assert share > 0.5 and apart.mean() < 0.02
    assert in_common(adapted, base)[1].mean() > 5 * apart.mean()  # the adapter matters


@pytest.mark.parametrize("architecture", ["qwen2-gpu", "qwen3-gpu"])
def test_decoding_many_agrees_with_flash_attention(on_gpu, monkeypatch, architecture: str) -> None:
    """Sequences of one part of our kernel's and of several, beside each other in graphs."""
    monkeypatch.setattr(attention_kernel, "_PART_TOKENS", 16)
    many = {"rollout__promptsPerStep": 64, "rollout__maxResponseTokens": 64}
    taken: list[bool] = []

    def asked(*step: Any) -> bool:
        taken.append(decodes_many(*step))
        return taken[-1]

    monkeypatch.setattr(attention, "decodes_many", asked)
    ours: Colocated = on_gpu(architecture, **many)
    assert any(taken), "the largest graphs are ours"
    monkeypatch.setattr(attention, "decodes_many", lambda *_: False)
    theirs: Colocated = on_gpu(architecture, **many)
    for worker in (ours, theirs):
        worker.randomise(scale=0.02)
        worker.sync()
    made = ours.generate(prompts(256), range(256))
    share, apart = in_common(made, theirs.generate(prompts(256), range(256)))
    scored = ours.trainer_logprobs(samples_of(prompts(256), made))
    differences = [np.abs(a - c.logprobs).mean() for a, c in zip(scored, made, strict=True) if len(c.tokens)]
    print(f"{architecture}: {100 * share:.1f}% of the tokens in common, log-probabilities {apart.mean():.5f} apart")
    assert {len(c.tokens) // 16 for c in made} >= {0, 1, 2}
    assert share > 0.5 and apart.mean() < 0.02 and np.mean(differences) < 0.02


@pytest.mark.parametrize("architecture", ["qwen2-gpu", "qwen3_moe-gpu"])
def test_the_fast_paths_are_taken(on_gpu, architecture: str) -> None:
    worker: Colocated = on_gpu(architecture, **BATCH)
    config = worker.engine.llm_engine.vllm_config
    assert config.use_v2_model_runner, "its sampler takes a seed a request in one kernel"
    core = worker.engine.llm_engine.engine_core.engine_core
    assert (
        config.scheduler_config.async_scheduling
        and core.batch_queue is not None
        and type(core.scheduler).__name__ == "RolloutScheduler"
    )
    graphs = worker.engine.llm_engine.collective_rpc(lambda w: list(w.model_runner.cudagraph_manager.graphs))[0]
    assert sorted(graph.num_tokens for graph in graphs) == config.compilation_config.cudagraph_capture_sizes
    assert max(graph.num_tokens for graph in graphs) == worker.engine._config.plan.sequences


def test_a_sample_depends_on_its_own_seed_alone(on_gpu) -> None:
    worker: Colocated = on_gpu("qwen3-gpu", **BATCH)
    worker.sync()
    first, second = worker.generate(prompts(16), range(16)), worker.generate(prompts(16), [0, *range(101, 116)])
    assert first[0].tokens[:8].tolist() == second[0].tokens[:8].tolist()
    assert [c.tokens.tolist() for c in first[1:]] != [c.tokens.tolist() for c in second[1:]]


def test_our_scheduler_and_vllms_own_agree(on_gpu, monkeypatch) -> None:
    ours: Colocated = on_gpu("qwen2-gpu", **BATCH)
    with vllm_scheduler(monkeypatch):
        theirs: Colocated = on_gpu("qwen2-gpu", **BATCH)
    for worker in (ours, theirs):
        worker.randomise(scale=0.02)
        worker.sync()
    asked = [
        prompt for prompt in prompts(40) for _ in range(4)
    ]  # more than are served at a time, and they end at different lengths
    for call in range(2):
        seeds = list(range(1000 * call, 1000 * call + len(asked)))
        made = ours.generate(asked, seeds)
        share, apart = in_common(made, vllm_generate(theirs, asked, seeds))
        print(
            f"call {call}: {100 * share:.1f}% of the tokens before a difference, "
            f"log-probabilities {apart.mean():.6f} apart"
        )
        assert share > 0.8 and apart.mean() < 0.01
        assert len({c.finished for c in made}) == 2
    scheduler = ours.engine.llm_engine.engine_core.engine_core.scheduler
    assert not scheduler.requests and scheduler.kv_cache_manager.usage == 0.0


def differences(left: Sequence[Completion], right: Sequence[Completion]) -> float:
    """The share of tokens at which a pair of completions first differs, of the tokens up to there."""
    _, apart = in_common(left, right)
    assert apart.mean() < 0.01
    count = sum(not np.array_equal(a.tokens, b.tokens) for a, b in zip(left, right, strict=True))
    return count / (len(apart) + count)


def test_preempted_samples_continue_with_the_same_tokens(on_gpu) -> None:
    """With blocks for a part of the samples, and steps that take a part of their prompts."""
    worker: Colocated = on_gpu("qwen2-gpu", **BATCH, rollout__offload=[])
    worker.randomise(scale=0.02)
    worker.sync()
    asked = [prompt for prompt in prompts(16) for _ in range(4)]
    expected = worker.generate(asked, range(len(asked)))
    scheduler = worker.engine.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    worker.engine.llm_engine.reset_prefix_cache()
    scheduler.max_num_scheduled_tokens = STEP_TOKENS
    rounding = differences(worker.generate(asked, range(len(asked))), expected)
    assert worker.engine.occupancy.preemptions == 0
    worker.engine.llm_engine.reset_prefix_cache()
    scheduler.kv_cache_manager.watermark_blocks = 0
    taken = pool.get_new_blocks(pool.get_num_free_blocks() - BLOCKS)
    preempted = differences(worker.generate(asked, range(len(asked))), expected)
    occupancy = worker.engine.occupancy
    print(f"{occupancy}: {rounding:.4f} of the tokens begin a difference without preemption, {preempted:.4f} with it")
    assert occupancy.preemptions > 5 and occupancy.waiting > 0
    assert preempted < 2 * rounding + 0.01
    assert pool.get_num_free_blocks() == BLOCKS and len(taken)


@pytest.mark.parametrize("architecture", ["qwen3-gpu", "qwen3_moe-gpu"])
def test_a_truncated_rollout_and_the_trainer_have_one_distribution(on_gpu, architecture: str) -> None:
    worker: Colocated = on_gpu(architecture, **BATCH, rollout__topP=0.8, rollout__topK=50, rollout__minP=0.01)
    worker.randomise(scale=0.02)
    worker.sync()
    rollouts = worker.generate(prompts(64))
    kept = np.concatenate([completion.kept for completion in rollouts])
    assert kept.min() >= 1 and kept.max() <= 50 and len(np.unique(kept)) > 3
    samples = samples_of(prompts(64), rollouts)
    assert mean_difference(worker.trainer_logprobs(samples), [c.logprobs for c in rollouts]) < 0.02


@pytest.mark.parametrize("tokens", [1, 16, MOST_TOKENS, MOST_TOKENS + 1, FEW_TOKENS, FEW_TOKENS + 1])
def test_products_beside_each_other_round_as_one_after_the_other(tokens: int) -> None:
    """Also in a CUDA graph, replayed on other values."""
    torch.manual_seed(0)
    make = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [
        (torch.randn(768, 768, **make) / 28, torch.randn(768, **make), torch.randn(24, 768, **make) / 28)
        for _ in range(6)
    ]
    ups = [torch.randn(768, 24, **make) / 5 for _ in layers]
    arrived = [arrivals(down, up) for (_, _, down), up in zip(layers, ups, strict=True)]

    def run(x: torch.Tensor) -> torch.Tensor:
        for (weight, bias, down), up, counters in zip(layers, ups, arrived, strict=True):
            x = adapted_linear(x, weight, bias, down, up, counters)
        return x

    def in_order(x: torch.Tensor) -> torch.Tensor:
        for (weight, bias, down), up in zip(layers, ups, strict=True):
            x = linear(linear(x, down), up, bias).addmm_(x, weight.t())
        return x

    def require_same(found: torch.Tensor, expected: torch.Tensor) -> None:
        apart, size = (found - expected).float().abs(), expected.float().abs()
        assert apart.mean() < 0.01 * size.mean() and apart.max() < 0.1 * size.max()

    x = torch.randn(tokens, 768, **make)
    for _ in range(20):
        require_same(run(x), in_order(x))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        output = run(x)
    for _ in range(3):
        x.copy_(torch.randn(tokens, 768, **make))
        graph.replay()
        require_same(output, in_order(x))
    assert not any(counters.any() for counters in arrived)
