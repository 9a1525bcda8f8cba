"""topP, topK and minP: engine and trainer have one distribution, and the gate sees a difference and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from lorarl_trainer.kernels.logprobs import token_log_probabilities
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.loop_runs import run_in_process

TOKENS, HIDDEN, VOCABULARY, PADDED, TEMPERATURE = 21, 24, 90, 96, 0.7


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight, targets, weights of the loss, and numbers of kept tokens: from one to more than all."""
    stream = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(TOKENS, HIDDEN, generator=stream), torch.randn(PADDED, HIDDEN, generator=stream)
    weight[VOCABULARY:] *= 100  # padding would win
    ranked = (hidden @ weight[:VOCABULARY].t()).argsort(1, descending=True)
    kept = torch.randint(1, VOCABULARY + 20, (TOKENS,), generator=stream)
    kept[:3] = torch.tensor([1, 1, VOCABULARY])
    place = (torch.rand(TOKENS, generator=stream) * kept.clamp(max=VOCABULARY)).long()
    place[3], kept[3] = 5, 5  # just behind the kept ones
    return hidden, weight, ranked.gather(1, place[:, None])[:, 0], torch.randn(TOKENS, generator=stream), kept


def naive() -> tuple[torch.Tensor, torch.Tensor]:
    hidden, weight, targets, scales, kept = example()
    hidden = hidden.double().requires_grad_()
    logits = hidden @ weight[:VOCABULARY].double().t() / TEMPERATURE
    logprobs = []
    for row, target, count in zip(logits, targets.tolist(), kept.tolist(), strict=True):
        stay = row.argsort(descending=True)[:count].tolist()
        stay = stay if target in stay else [*stay[:-1], target]
        logprobs.append(row[target] - row[stay].logsumexp(0))
    found = torch.stack(logprobs)
    (found * scales).sum().backward()
    assert hidden.grad is not None
    return found.detach().float(), hidden.grad.float()


def truncated(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, _, targets, scales, kept = example()
    hidden.requires_grad_()
    logprobs = token_log_probabilities(hidden, weight, targets, TEMPERATURE, VOCABULARY, dist.group.WORLD, 16, kept)
    (logprobs * scales).sum().backward()
    assert hidden.grad is not None
    return logprobs.detach(), hidden.grad


def _rank(rank: int, rendezvous: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.save(truncated(example()[1].chunk(2)[rank]), f"{out}/{rank}.pt")
    dist.destroy_process_group()


def test_the_softmax_is_over_the_largest_logits_and_the_target() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for found, expected in zip(truncated(example()[1]), naive(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_ranks_that_share_the_vocabulary_keep_the_same_tokens(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    for rank in range(2):
        for found, expected in zip(torch.load(tmp_path / f"{rank}.pt"), naive(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


TRUNCATED = {"rollout__topP": 0.8, "rollout__topK": 20, "rollout__minP": 0.02, "rollout__temperature": 0.9}


def test_engine_and_trainer_have_one_distribution_and_the_gate_sees_to_it(colocated) -> None:
    """A trainer that left out the truncation would be stopped."""
    worker: Colocated = colocated("qwen2", **TRUNCATED)
    worker.randomise()
    worker.sync()
    rollouts = worker.generate(prompts())
    samples = samples_of(prompts(), rollouts)
    kept = np.concatenate([completion.kept for completion in rollouts])
    assert kept.min() >= 1 and kept.max() <= 20 and len(set(kept.tolist())) > 3
    assert worst(worker.trainer_logprobs(samples, 0.9), [c.logprobs for c in rollouts]) < 1e-5

    withheld = worker.worker.update(update_request([replace(s, kept=None) for s in samples], temperature=0.9))
    assert withheld.disagreement is not None and withheld.disagreement.mean > 1e-2
    made = worker.worker.update(update_request(samples, temperature=0.9))
    assert made.disagreement is None and made.metrics["grad_norm"] > 0


def test_a_truncated_run_passes_its_checks(colocated) -> None:
    worker: Colocated = colocated("qwen2", rollout__topP=0.7, rollout__topK=5, algorithm__klCoefficient=0.01)
    steps = asyncio.run(run_in_process(worker))
    assert len(steps) == 4
    assert all(step.metrics["mean_abs_logprob_diff"] < 1e-5 for step in steps)
    assert steps[0].metrics["kl"] < 1e-6, "the base is truncated as the policy is, so nothing is between them yet"
