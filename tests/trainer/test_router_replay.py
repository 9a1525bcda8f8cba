"""Routing replay on a CPU: vLLM records a rollout's experts, and the trainer sends tokens to the same ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.engine.vllm.names import Routing
from lorarl_trainer.engine.vllm.routing import RoutingRecorder
from lorarl_trainer.planning import memory
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.routing import own_choice
from lorarl_trainer.samples.sample import Completion, Sample
from support.in_process import Colocated, made, prompts, samples_of, update_request, wanted, worst
from support.routers import PROJECTIONS, backward_as_sent, chosen_by, of_each_expert, with_any_routing
from support.tiny_models import MIXTURES, VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference
from support.transformers_side import gradients, peft_model
from trainer.test_parity import TOLERANCE

LAYERS = 2


def with_routing(samples: Sequence[Sample], completions: Sequence[Completion]) -> list[Sample]:
    return [replace(sample, routing=c.routing) for sample, c in zip(samples, completions, strict=True)]


def differences(worker: Colocated) -> float:
    found = worker.worker.backend.model.routing_differences()
    assert found is not None
    return found[0] / found[1]


def test_requests_that_are_computed_again_have_their_own_routing(
    colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 2 * LAYERS * 2 * 32 * 4 * 16  # keys and values, layers, heads of 32, fp32, tokens
    monkeypatch.setattr(memory, "kv_cache_bytes", lambda *_, **__: 24 * block)
    lengths = {"rollout__maxPromptTokens": 80, "rollout__maxResponseTokens": 40, "adapter__rank": 4}
    worker: Colocated = colocated("qwen3_moe", **lengths)
    worker.randomise(scale=0.05)
    worker.sync()
    stream = np.random.default_rng(7)
    asked = [stream.integers(4, 60, size=80 - 11 * index % 70).tolist() for index in range(4) for _ in range(4)]
    samples = samples_of(asked, rollouts := worker.generate(asked))
    assert worker.engine.occupancy.preemptions > 3
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"))
    for sample, completion in zip(samples, rollouts, strict=True):
        assert completion.routing is not None
        assert np.array_equal(np.sort(completion.routing, -1), chosen_by(model, sample.tokens))
    # Steps that overlap, as on a GPU: a request may lose its blocks while its last token is made.
    core = worker.engine.llm_engine.engine_core.engine_core
    core.batch_queue, core.batch_queue_size, core.step_fn = deque(maxlen=2), 2, core.step_with_batch_queue
    overlapped = worker.generate(asked)
    assert 0 < sum(made.routing is None for made in overlapped) < 4, "the scenario needs one that lost them"
    worker.worker.update(update_request(samples_of(asked, overlapped)))


@pytest.mark.parametrize("architecture", [*MIXTURES, "qwen3_moe-shares"])
def test_vllm_records_and_the_trainer_replays_what_transformers_chooses(
    colocated, tmp_path: Path, architecture: str
) -> None:
    """Replayed experts give the gradients that Transformers and PEFT have with the same ones."""
    worker: Colocated = colocated(architecture)
    worker.randomise()
    worker.sync()
    twice = [prompt for prompt in prompts(6) for _ in range(2)]  # the second of each finds the first one's blocks
    drawn = samples_of(twice, rollouts := worker.generate(twice))
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"), trainable=True)
    for sample, completion in zip(drawn, rollouts, strict=True):
        assert completion.routing is not None and completion.routing.dtype == np.uint8
        assert np.array_equal(np.sort(completion.routing, -1), chosen_by(model, sample.tokens))
    worker.trainer_logprobs(with_routing(drawn, rollouts))
    assert differences(worker) == 0, "in fp32 both choose the same"
    greedy = made(worker.worker, wanted(twice))
    assert all(completion.routing is None for completion in greedy), "they are not trained"

    samples = with_any_routing(drawn)
    theirs = backward_as_sent(model, samples)
    assert worst(worker.trainer_logprobs(samples), theirs) < TOLERANCE
    assert differences(worker) > 0.7
    assert worst(worker.trainer_logprobs([replace(s, routing=None) for s in samples]), theirs) > 0.1
    backend = worker.worker.backend
    backend._trainer.forward_backward(update_request(samples))
    found = backend.layout.gather([gradient.clone() for gradient in backend.optimizer.gradients])
    expected = gradients(model)
    expected |= of_each_expert(expected, LAYERS, PROJECTIONS[architecture])
    assert all(torch.allclose(gradient, expected[name], atol=1e-6) for name, gradient in found.items())
    assert all(gradient.any() for gradient in found.values())


@pytest.mark.parametrize(("recompute", "kl_coefficient"), [("selective", 0.0), ("full", 0.0), ("full", 0.1)])
def test_the_backward_pass_replays_too(
    model_folder: Callable[[str], Path], recompute: str, kl_coefficient: float
) -> None:
    """The reference, which sends tokens where it would, comes between both passes."""
    samples = with_any_routing(grouped_samples(VOCABULARY))
    (loss, kept), (same_loss, again) = (
        BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", recompute=how, packed=True).loss_and_gradients(
            samples, loss=LossChoice("policy_gradient", 0.2, kl_coefficient)
        )
        for how in ("none", recompute)
    )
    assert same_loss == pytest.approx(loss, abs=1e-7)
    assert relative_difference(again, kept) < 1e-6


def kept(function: Callable[..., torch.Tensor], results: list[torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, which also puts its results into a list."""

    def keeping(*arguments: torch.Tensor) -> torch.Tensor:
        results.append(function(*arguments))
        return results[-1]

    return keeping


def test_a_perturbed_router_sends_tokens_where_the_rollout_did(model_folder: Callable[[str], Path]) -> None:
    """The perturbation turns choices over. Weights of experts are still the trainer's own."""
    folder = model_folder("qwen3_moe")
    samples = grouped_samples(VOCABULARY)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rollout = [replace(s, routing=chosen_by(plain, s.tokens).astype(np.uint8)) for s in samples]
    trainer = BareTrainer(CpuDevice(), folder, "fp32", packed=True)
    sent: list[torch.Tensor] = []
    for layer in trainer.model._unwrapped().decoder.layers:
        noise = torch.randn(layer.mlp.router.weight.shape, generator=torch.Generator().manual_seed(1))
        layer.mlp.router.weight.data += 0.3 * noise
        experts = layer.forward.__self__._experts
        experts._route = lambda *a, route=experts._route: sent.append((found := route(*a)).chosen_T_K) or found
    ((_, batch),) = trainer.model.micro_batches(rollout, 10_000)
    trainer.model.log_probabilities(batch, 1.0)
    assert batch.routing is not None and len(sent) == LAYERS
    known = batch.routing[:, 0, 0] != own_choice(rollout[0].routing)
    assert known.sum() >= sum(sample.response_length for sample in samples)
    assert all(torch.equal(found[known], batch.routing[known, layer].long()) for layer, found in enumerate(sent))
    found = trainer.model.routing_differences()
    assert found is not None and 0.05 < found[0] / found[1] < 0.95, "some choices were turned over"


def test_without_replay_the_difference_is_measured(colocated) -> None:
    worker: Colocated = colocated("qwen3_moe", trainer__routerReplay=False)
    worker.randomise()
    worker.sync()
    asked = prompts()
    samples = with_routing(samples_of(asked, rollouts := worker.generate(asked)), rollouts)
    result = worker.worker.update(update_request(samples))
    assert result.disagreement is None and result.metrics["routing_changed"] == 0
    others = with_any_routing(samples)
    own = worker.trainer_logprobs([replace(sample, routing=None) for sample in samples])
    assert worst(worker.trainer_logprobs(others), own) == 0, "nothing is replayed"
    assert worker.worker.update(update_request(others, on_policy=False)).metrics["routing_changed"] > 0.7


def test_the_reference_sends_tokens_where_it_would(colocated) -> None:
    worker: Colocated = colocated("qwen3_moe", algorithm__klCoefficient=0.1)
    worker.randomise()
    worker.sync()
    samples = with_any_routing(samples_of(asked := prompts(), worker.generate(asked)))
    backend, plain = worker.worker.backend, [replace(sample, routing=None) for sample in samples]
    assert worst(*(backend.log_probabilities(s, 1.0, "reference") for s in (samples, plain))) == 0
    assert worst(*(backend.log_probabilities(s, 1.0, "policy") for s in (samples, plain))) > 0.1


def test_a_dense_model_records_nothing(colocated) -> None:
    worker: Colocated = colocated("qwen3")
    worker.sync()
    assert worker.worker._plan is not None and worker.worker._plan.router_replay is None
    assert worker.engine.vllm_worker.routing is None  # type: ignore[attr-defined]  # our worker's
    samples = samples_of(asked := prompts(4), rollouts := worker.generate(asked))
    assert all(completion.routing is None for completion in rollouts)
    metrics = worker.worker.update(update_request(samples)).metrics
    assert "routing_changed" not in metrics
    ((_, batch),) = worker.worker.backend.model.micro_batches(samples, 10_000)
    assert batch.routing is None


def test_what_fills_up_a_step_of_a_cuda_graph_reaches_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is -1. No step on a CPU has such rows."""
    import_vllm()
    recorder = RoutingRecorder(slots=8, layers=2, experts=300, active=2, block_size=4, device=torch.device("cpu"))
    monkeypatch.setattr(
        Routing, "get_forward_context", lambda: SimpleNamespace(slot_mapping={"layer": torch.tensor([6, 1, 7, -1, -1])})
    )
    recorder.record(1, torch.tensor([[256, 1], [2, 299], [4, 5], [6, 7], [8, 9]]))
    none = [own_choice(np.empty(0, np.int16))] * 2
    assert recorder.read([1, 0], 6).dtype == torch.int16
    assert recorder.read([1, 0], 6)[:, 1].tolist() == [none, none, [256, 1], [4, 5], none, [2, 299]]
    assert recorder.read([0, 1], 8)[:, 0].tolist() == [none] * 8
