"""Training: what changes, what never changes, and what stops it."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.errors import GradientError, PolicyDriftError
from lorarl_trainer.guards.updates import require_agreement
from lorarl_trainer.progress.events import row_of
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE, LossChoice
from lorarl_trainer.samples.sample import Sample
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.loop_runs import run_in_process

pytestmark = pytest.mark.both_backends


def rollouts(worker: Colocated) -> list[Sample]:
    """Samples of the newest adapter. Every second one has a negative advantage."""
    samples = samples_of(prompts(), worker.generate(prompts()))
    return [Sample(s.tokens, s.prompt_length, (-1.0) ** i, s.rollout_logprobs) for i, s in enumerate(samples)]


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_failure_6_only_the_adapter_has_gradients_and_the_base_stays(colocated, adapter_type: str) -> None:
    worker: Colocated = colocated("qwen2", adapter__type=adapter_type)
    worker.sync()
    base, served = worker.worker.backend.base_digest(), worker.vllm_base()
    before = worker.export()
    for _ in range(5):
        result = worker.worker.update(update_request(rollouts(worker)))
        assert result.disagreement is None
        worker.sync()
    frozen = [name for name, p in worker.worker.backend.model.module.named_parameters() if not p.requires_grad]
    assert all(p.grad is None for name, p in worker.worker.backend.model.module.named_parameters() if name in frozen)
    assert all(".adapter." in name or ".lora_" in name for name in worker.parameters)
    assert worker.worker.backend.base_digest() == base
    assert all(torch.equal(tensor, served[name]) for name, tensor in worker.vllm_base().items())
    after = worker.export()
    assert all(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.both_backends(quick=True)
def test_failure_7_rollout_and_trainer_agree_at_every_step(colocated) -> None:
    worker: Colocated = colocated()
    worker.sync()
    differences = []
    for _ in range(12):
        differences.append(worker.worker.update(update_request(rollouts(worker))).metrics[LOGPROB_DIFFERENCE])
        worker.sync()
    assert max(differences) < 1e-6


@pytest.mark.parametrize("rate", [1e-5, 1e-6])
def test_failure_8_a_tiny_update_reaches_the_next_rollout(colocated, rate: float) -> None:
    worker: Colocated = colocated()
    worker.randomise()
    worker.sync()
    samples = rollouts(worker)
    again = [c.logprobs for c in worker.generate(prompts())]
    assert worst([s.rollout_logprobs for s in samples], again) == 0.0, "without an update nothing changes"
    worker.worker.update(update_request(samples, learning_rate=rate))
    worker.sync()
    moved = worker.generate(prompts())
    changed = [not np.array_equal(m.logprobs, s.rollout_logprobs) for m, s in zip(moved, samples, strict=True)]
    assert all(changed)


@pytest.mark.both_backends(quick=True)
def test_a_skipped_sync_stops_the_next_step_and_its_update(colocated) -> None:
    from vllm.lora.request import LoRARequest

    worker: Colocated = colocated()
    worker.randomise()
    worker.sync()
    old = worker.write_peft(worker.out / "old")
    worker.worker.update(update_request(rollouts(worker)))
    # A broken sync: vLLM has the old weights as the new version.
    engine, new_version = worker.engine, LoRARequest("v2", 2, str(old))
    engine.llm_engine.remove_lora(1)
    engine.llm_engine.add_lora(new_version)
    engine.slot.request = new_version
    trained = worker.export()
    result = worker.worker.update(update_request(rollouts(worker)))
    assert result.disagreement is not None and result.disagreement.largest >= result.disagreement.mean > 1e-4
    assert all(torch.equal(tensor, trained[name]) for name, tensor in worker.export().items()), (
        "the update was withheld"
    )
    with pytest.raises(PolicyDriftError, match=r"step 7: .*\(spec\.rollout\.logprobTolerance\)"):
        require_agreement(result, 7)


def test_a_difference_that_is_not_a_number_is_drift(colocated) -> None:
    worker: Colocated = colocated()
    worker.sync()
    samples = [
        Sample(s.tokens, s.prompt_length, 1.0, np.full_like(s.rollout_logprobs, math.nan)) for s in rollouts(worker)
    ]
    assert worker.worker.update(update_request(samples)).disagreement is not None


def test_a_gradient_that_is_not_a_number_changes_nothing_and_is_reported(colocated) -> None:
    worker: Colocated = colocated()
    worker.sync()
    samples = [Sample(s.tokens, s.prompt_length, math.inf, s.rollout_logprobs) for s in rollouts(worker)]
    before = worker.export()
    result = worker.worker.update(update_request(samples))
    assert not math.isfinite(result.metrics["loss"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.export().items()), "the update was withheld"
    healthy = worker.worker.update(update_request(rollouts(worker)))
    assert math.isfinite(healthy.metrics["grad_norm"]), "the next update is made as if nothing had been"
    assert any(not torch.equal(tensor, before[name]) for name, tensor in worker.export().items())


@pytest.mark.both_backends(quick=True)
@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_a_gradient_larger_than_max_grad_norm_is_scaled_to_it(colocated, limit: float) -> None:
    worker: Colocated = colocated(trainer__maxGradNorm=limit)
    worker.sync()
    norm = worker.worker.update(update_request(rollouts(worker))).metrics["grad_norm"]
    assert 1e-3 < norm < 1e3, "the scenario needs one limit below the norm, and one above"
    moments = worker.worker.backend.optimizer.moments("exp_avg")
    of_moments = math.sqrt(sum(moment.square().sum().item() for moment in moments))
    assert of_moments == pytest.approx((1 - worker.spec.trainer.beta1) * min(norm, limit), rel=1e-3)


def poison(monkeypatch: pytest.MonkeyPatch, worker: Colocated, updates: set[int]) -> None:
    """Give the gradients of these updates, counted from 1, an element that is not a number."""
    trainer, step = worker.worker.backend._trainer, worker.worker.backend._trainer.optim_step
    numbers = itertools.count(1)

    def optim_step(rate: float) -> float:
        if next(numbers) in updates:
            worker.worker.backend.optimizer.gradients[0].view(-1)[0] = math.nan
        return step(rate)

    monkeypatch.setattr(trainer, "optim_step", optim_step)


def test_a_run_goes_on_after_withheld_updates_and_counts_them(colocated, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Colocated = colocated(trainer__steps=5)
    poison(monkeypatch, worker, {2, 3, 5})
    steps = asyncio.run(run_in_process(worker))
    assert [step.metrics.get("withheld_updates") for step in steps] == [None, 1.0, 1.0, None, 1.0]
    assert [row_of(step)["grad_norm"] is None for step in steps] == [False, True, True, False, True]
    assert worker.worker.backend.optimizer.updates == 2
    assert all(torch.isfinite(tensor).all() for tensor in worker.export().values())


def test_three_withheld_updates_in_a_row_stop_the_run(colocated, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Colocated = colocated(trainer__steps=8)
    poison(monkeypatch, worker, {2, 3, 4})
    with pytest.raises(GradientError, match=r"step 4: 3 updates in a row were withheld"):
        asyncio.run(run_in_process(worker))
    assert worker.worker.backend.optimizer.updates == 1


def test_a_loss_that_is_not_finite_withholds_the_update(colocated) -> None:
    worker: Colocated = colocated()
    worker.sync()
    before = worker.export()
    off_policy = [Sample(s.tokens, s.prompt_length, -1.0, s.rollout_logprobs - 1000) for s in rollouts(worker)]
    result = worker.worker.update(update_request(off_policy, on_policy=False))
    assert result.metrics["loss"] == math.inf and result.disagreement is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.export().items())


def test_dropout_that_the_base_asks_for_stays_off(model_folder, tmp_path: Path) -> None:
    """vLLM has none: with it, rollouts and trainer would disagree."""
    base = tmp_path / "base"
    shutil.copytree(model_folder("qwen3-tied"), base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    worker = Colocated(base, tmp_path / "out")
    try:
        worker.sync()
        result = worker.worker.update(update_request(rollouts(worker)))
        assert result.disagreement is None and result.metrics[LOGPROB_DIFFERENCE] < 1e-5
    finally:
        worker.close()


def test_with_dropout_the_gate_measures_without_it(colocated) -> None:
    worker: Colocated = colocated(adapter__dropout=0.5)
    worker.randomise(scale=0.3)
    worker.sync()
    samples = rollouts(worker)
    first, second = (worker.worker.update(update_request(samples, seed=seed, learning_rate=1e-12)) for seed in (0, 1))
    assert first.metrics[LOGPROB_DIFFERENCE] < 1e-6 and first.disagreement is None
    assert first.metrics["loss"] == pytest.approx(second.metrics["loss"], abs=1e-6)
    assert first.metrics["grad_norm"] != pytest.approx(second.metrics["grad_norm"], rel=1e-3), "dropout was on for it"


def test_the_loss_is_the_same_in_any_split_into_micro_batches(colocated) -> None:
    losses, adapters = [], []
    for budget in (16_384, 40):
        # With a small epsilon, AdamW's first update is the sign of the gradient, also of one that is rounding alone.
        worker: Colocated = colocated(trainer__tokensPerMicroBatch=budget, trainer__epsilon=1e-3)
        worker.randomise()
        worker.sync()
        losses.append(worker.worker.update(update_request(rollouts(worker))).metrics["loss"])
        adapters.append(worker.export())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert all(torch.allclose(adapters[0][name], adapters[1][name], atol=1e-5) for name in adapters[0])


def test_the_ratio_is_clipped_where_the_policy_has_moved(colocated) -> None:
    worker: Colocated = colocated()
    worker.randomise()
    worker.sync()
    samples = rollouts(worker)
    assert worker.worker.update(update_request(samples, learning_rate=0.1)).metrics["clipped_share"] == 0.0
    moved = worker.worker.update(update_request(samples, on_policy=False))
    assert moved.metrics["clipped_share"] > 0.1 and moved.disagreement is None
    now = worker.trainer_logprobs(samples)
    far_above = [
        Sample(s.tokens, s.prompt_length, 1.0, logprobs - 1.0) for s, logprobs in zip(samples, now, strict=True)
    ]
    result = worker.worker.update(update_request(far_above, on_policy=False))
    assert result.metrics["grad_norm"] == 0.0 and result.metrics["clipped_share"] == 1.0, (
        "past the clip range a good completion pulls no more"
    )


def test_the_kl_penalty_is_to_the_base_without_its_adapter(colocated) -> None:
    worker: Colocated = colocated()
    worker.randomise()
    worker.sync()
    samples = rollouts(worker)
    current = worker.trainer_logprobs(samples)
    with worker.worker.backend.model.base_only():
        base = worker.trainer_logprobs(samples)
    ratios = [b - c for b, c in zip(base, current, strict=True)]
    expected = np.concatenate([np.exp(r) - 1 - r for r in ratios]).mean()
    result = worker.worker.update(
        update_request(samples, loss=LossChoice("policy_gradient", 0.2, kl_coefficient=0.5), learning_rate=0.0)
    )
    assert result.metrics["kl"] == pytest.approx(expected, rel=1e-4) and expected > 1e-3
    without = worker.worker.update(update_request(samples, learning_rate=0.0))
    assert result.metrics["loss"] == pytest.approx(without.metrics["loss"] + 0.5 * expected, rel=1e-4)
    assert "kl" not in without.metrics


def test_several_updates_a_step_see_equal_shares(colocated) -> None:
    worker: Colocated = colocated(algorithm__updatesPerStep=2, trainer__steps=2)
    rows = asyncio.run(run_in_process(worker))
    assert worker.worker.backend.optimizer.updates == 4
    assert [row.step for row in rows] == [1, 2]
