"""The critic: its gradient against Transformers and PEFT, one base with policy and reference, and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from lorarl_trainer.backends.critic import HEAD, Critic
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from support.in_process import Colocated, prompts, samples_of, tiny_job, update_request, worst
from support.routers import PROJECTIONS, of_each_expert, with_any_routing
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference
from support.transformers_side import gradients, peft_model

CLIP = 0.3
UPDATE = CriticUpdate(1e-2, CLIP, alone=False)
PPO = {"algorithm": "{type: ppo, groupSize: 4}"}


def with_returns(samples: list[Sample]) -> list[Sample]:
    """Samples whose values have moved within the clip range, and beyond it on both sides."""
    stream = np.random.default_rng(3)
    return [
        replace(
            sample,
            values=stream.normal(0, 0.5, sample.response_length).astype(np.float32),
            returns=stream.normal(0, 1, sample.response_length).astype(np.float32),
        )
        for sample in samples
    ]


def random_critic(trainer: BareTrainer, folder: Path) -> Critic:
    """A critic whose adapter is another one than the policy's."""
    layout = AdapterLayout(trainer.model)
    spec = tiny_job(folder, folder).spec
    critic = Critic(CpuDevice(), trainer.model, layout, spec, 150, fused=False)
    stream = torch.Generator().manual_seed(1)
    critic.load(
        {name: 0.05 * torch.randn(shape, generator=stream) for name, shape in sorted(layout.shapes.items())}, "test"
    )
    with torch.no_grad():
        critic.head.copy_(0.3 * torch.randn(critic.head.shape, generator=stream))
    return critic


def critic_in_peft(critic: Critic, base: Path, folder: Path) -> tuple[PeftModel, torch.Tensor]:
    """The critic's adapter, out of its state, in Transformers' model, and its head."""
    masters = {
        name.removeprefix("critic.master."): tensor.clone()
        for name, tensor in critic.gather_state().items()
        if name.startswith("critic.master.")
    }
    head = masters.pop(HEAD).requires_grad_()
    write_adapter(folder, masters, adapter_config(masters, AdapterConfig(8, 16, expert_rank=4), str(base)))
    return peft_model(base, folder, trainable=True), head


def values_in_peft(model: PeftModel, head: torch.Tensor, sample: Sample) -> torch.Tensor:
    """The values before each response token: the head's product with what predicts the token."""
    output = model(torch.from_numpy(sample.tokens)[None], output_hidden_states=True)
    return (output.hidden_states[-1][0, sample.prompt_length - 1 : -1] @ head.t())[:, 0]


@pytest.mark.parametrize(("architecture", "packed"), [("qwen2", True), ("qwen2", False), ("qwen3_moe", True)])
def test_gradients_are_those_of_autograd_through_peft(
    model_folder, tmp_path: Path, architecture: str, packed: bool
) -> None:
    base = model_folder(architecture)
    trainer = BareTrainer(CpuDevice(), base, "fp32", budget=150, packed=packed)
    critic = random_critic(trainer, base)
    samples = with_returns(grouped_samples(VOCABULARY, prompts=6))
    if architecture == "qwen3_moe":  # the policy's experts are not the critic's
        samples = with_any_routing(samples)
    model, head = critic_in_peft(critic, base, tmp_path / "critic")
    with torch.no_grad():
        expected_values = [values_in_peft(model, head, sample).numpy() for sample in samples]
    largest = max(np.abs(values).max() for values in expected_values)
    assert worst(critic.values(samples), expected_values) < 1e-5 * max(largest, 1)

    loss, clipped = critic.forward_backward(update_request(samples), UPDATE)
    tokens, total, of_clipped = sum(sample.response_length for sample in samples), torch.zeros(()), 0
    for sample in samples:
        values = values_in_peft(model, head, sample)
        before, returns = torch.from_numpy(sample.values), torch.from_numpy(sample.returns)
        plain = (values - returns) ** 2
        held = (torch.clip(values, before - CLIP, before + CLIP) - returns) ** 2
        of_clipped += int((((values - before).abs() > CLIP) & (held > plain)).sum())
        total = total + torch.max(plain, held).sum() / (2 * tokens)
    total.backward()
    assert loss == pytest.approx(total.item(), abs=1e-6)
    assert clipped == pytest.approx(of_clipped / tokens) and 0.1 < clipped < 0.9
    *adapter, of_head = critic.optimizer.gradients
    found, expected = AdapterLayout(trainer.model).gather(adapter), gradients(model)
    if architecture == "qwen3_moe":
        of_experts = of_each_expert(expected, 2, PROJECTIONS[architecture])
        expected = {name: g for name, g in expected.items() if ".experts." not in name} | of_experts
    assert found.keys() == expected.keys()
    assert relative_difference(found, expected) < 1e-5
    assert relative_difference({HEAD: of_head}, {HEAD: head.grad}) < 1e-5
    assert not any(gradient.any() for gradient in trainer.optimizer.gradients), "nothing for the policy"


def test_the_gradient_is_that_of_finite_differences(model_folder) -> None:
    base = model_folder("qwen2")
    trainer = BareTrainer(CpuDevice(), base, "fp32", packed=True)
    critic = random_critic(trainer, base)
    request = update_request(with_returns(grouped_samples(VOCABULARY)))
    unclipped = replace(UPDATE, clip_range=1e6)
    critic.forward_backward(request, unclipped)
    norm = float(torch.cat([gradient.flatten() for gradient in critic.optimizer.gradients]).double().norm())
    direction = [gradient / norm for gradient in critic.optimizer.gradients]
    losses = []
    for step in (1e-3, -1e-3):
        torch._foreach_add_(critic.optimizer.masters, direction, alpha=step)
        losses.append(critic.forward_backward(request, unclipped)[0])
        torch._foreach_add_(critic.optimizer.masters, direction, alpha=-step)
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(norm, rel=1e-3)


def drawn(worker: Colocated) -> list[Sample]:
    return with_returns(samples_of(prompts(), worker.generate(prompts())))


@pytest.mark.both_backends(quick=True)
def test_policy_critic_and_reference_share_one_base(colocated: Callable[..., Colocated]) -> None:
    worker = colocated("qwen2", **PPO)
    worker.randomise()
    worker.sync()
    backend, samples = worker.worker.backend, drawn(worker)
    digest = backend.base_digest()
    frozen = [name for name, _ in backend.model.base_parameters()]
    bases: list[dict[str, int]] = []
    adapters: list[list[int]] = []

    def note(*_: object) -> None:
        found = dict(backend.model.module.named_parameters())
        bases.append({name: found[name].data_ptr() for name in frozen})
        adapters.append([parameter.data_ptr() for parameter in backend.model.parameters.values()])

    last_norm = [
        m for name, m in backend.model.module.named_modules() if name.endswith(("model.norm", "final_layernorm"))
    ]
    handle = last_norm[0].register_forward_pre_hook(note)
    policy = worker.trainer_logprobs(samples)
    reference = worker.worker.log_probabilities(Samples(samples), 1.0, "reference")
    values = worker.worker.values(Samples(samples))
    update = worker.worker.update(update_request(samples, critic=UPDATE))
    handle.remove()
    assert update.metrics["critic/grad_norm"] > 0 and update.metrics["grad_norm"] > 0
    assert worst(policy, reference) > 1e-3
    assert [len(one) for one in values] == [sample.response_length for sample in samples]
    assert all(base == bases[0] for base in bases), "one copy, whoever computes"
    own, of_critic = adapters[0], [tensor.data_ptr() for tensor in backend.critic.optimizer.values]
    assert not set(own) & set(of_critic) and own in adapters and of_critic in adapters
    assert [parameter.data_ptr() for parameter in backend.model.parameters.values()] == own
    # vLLM computes with the same tensors too; Megatron's q, k and v are a copy in another order.
    shared = worker.rollouts.base
    assert shared.shared_bytes + shared.copied_bytes == sum(p.nbytes for _, p in backend.model.base_parameters())
    assert backend.base_digest() == digest


def test_a_new_critic_expects_nothing_and_learns(colocated: Callable[..., Colocated]) -> None:
    worker = colocated(**PPO, adapter__dropout=0.1)
    worker.sync()
    samples = drawn(worker)
    assert not np.concatenate(worker.worker.values(Samples(samples))).any()
    samples = [replace(s, values=np.zeros_like(s.values), returns=np.full_like(s.returns, 0.7)) for s in samples]
    request = update_request(samples, on_policy=False, critic=replace(UPDATE, clip_range=10.0))
    losses = [worker.worker.update(request).metrics["critic/loss"] for _ in range(12)]
    assert losses[0] == pytest.approx(0.7**2 / 2)
    assert losses[-1] < 0.2 * losses[0]


def test_alone_the_critic_leaves_the_policy_as_it_is(colocated: Callable[..., Colocated]) -> None:
    worker = colocated(**PPO)
    worker.randomise()
    worker.sync()
    before, samples = worker.export(), drawn(worker)
    result = worker.worker.update(update_request(samples, critic=replace(UPDATE, alone=True)))
    assert result.metrics["grad_norm"] == 0 and result.metrics["critic/grad_norm"] > 0
    assert result.metrics["entropy"] > 0, "the policy is measured, and compared with the engine"
    backend = worker.worker.backend
    assert (backend.optimizer.updates, backend.critic.optimizer.updates) == (0, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.export().items())
    assert worst(worker.worker.values(Samples(samples)), [np.zeros(1)] * len(samples)) > 0


def test_a_critic_that_is_not_finite_is_not_updated(colocated: Callable[..., Colocated]) -> None:
    worker = colocated(**PPO)
    worker.sync()
    samples = [replace(sample, returns=np.full_like(sample.returns, np.inf)) for sample in drawn(worker)]
    result = worker.worker.update(update_request(samples, critic=UPDATE))
    assert not np.isfinite(result.metrics["critic/loss"])
    backend = worker.worker.backend
    assert (backend.optimizer.updates, backend.critic.optimizer.updates) == (1, 0)
