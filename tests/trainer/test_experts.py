"""Mixtures of experts on a CPU: trainer, PEFT and vLLM mean the same by an adapter on experts, and by its files."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lorarl_trainer.backends.megatron import fused_experts
from lorarl_trainer.backends.megatron.plain_config import not_plain
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.engine.vllm.patches.cpu_experts import compute_experts
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.lora.files import CONFIG_FILE, WEIGHTS_FILE
from lorarl_trainer.lora.grouped_experts import joined_adapter
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.peft_format import read_adapter
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from support import tiny_models
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.own_layers import layer_kinds
from support.routers import PROJECTIONS, of_each_expert, summed_outer
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, elements_kept, grouped_samples, relative_difference
from support.transformers_side import hf_logprobs, mean_logprob_gradients, peft_model
from trainer.test_parity import TOLERANCE

LAYERS, EXPERTS = 2, 4
SHARED = {"adapter__experts": "sharedOuter"}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("architecture", "targets", "more"),
    [
        ("qwen3_moe", ATTENTION, {}),
        ("qwen3_moe", ["all-linear"], {}),
        ("qwen3_moe", ["all-linear"], {"adapter__type": "lora", "adapter__expertRank": 8}),
        ("qwen3_moe-shares", ["all-linear"], {"adapter__rslora": True, "rollout__adapterSync": "disk"}),
        ("qwen3_moe-tied", ["q_proj", "*.layers.1.*.experts.2.gate_proj"], {"adapter__expertRank": 3}),
        ("qwen3_moe", ["*.experts.*"], {"adapter__expertRank": 8, "rollout__verifySync": True}),
        ("qwen3_moe", ["all-linear"], SHARED | {"rollout__verifySync": True}),
        ("qwen3_moe", ["all-linear"], SHARED | {"adapter__type": "lora", "rollout__adapterSync": "disk"}),
        pytest.param("mixtral", ["w1", "w2"], SHARED, marks=pytest.mark.long),
        ("olmoe", ["all-linear"], {}),
        ("mixtral", ["all-linear"], {}),
        pytest.param("olmoe", ["all-linear"], {"adapter__type": "lora"}, marks=pytest.mark.long),
        pytest.param("mixtral", ["*.experts.*"], {"adapter__type": "lora"}, marks=pytest.mark.long),
        ("mixtral-tied", ["w1", "experts.3.w3"], {"rollout__adapterSync": "disk"}),
    ],
)
def test_trainer_vllm_and_peft_give_the_same_log_probabilities(
    colocated, tmp_path: Path, architecture: str, targets: list[str], more: dict[str, Any]
) -> None:
    worker: Colocated = colocated(architecture, adapter__targetModules=targets, **more)
    worker.randomise(scale=0.05 if "adapter__rslora" in more else 0.1)
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    peft = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples)
    base = hf_logprobs(AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32).eval(), samples)
    assert worst(worker.trainer_logprobs(samples), peft) < TOLERANCE
    assert worst([c.logprobs for c in rollouts], peft) < TOLERANCE
    assert worst(base, peft) > 0.01, "an adapter that changes nothing would prove nothing"


def test_all_linear_is_every_projection_of_every_expert_and_no_router(colocated) -> None:
    worker: Colocated = colocated("qwen3_moe")
    experts = [name for name in worker.built.modules if is_expert(name)]
    assert len(experts) == 3 * EXPERTS * LAYERS
    assert len(worker.built.modules) == len(experts) + 4 * LAYERS
    assert layer_kinds(worker)["FusedMoEWithLoRA"] == LAYERS
    shapes = {name: tuple(tensor.shape) for name, tensor in worker.export().items()}
    # Half of the experts are active: half of the rank of 8.
    assert shapes["model.layers.0.mlp.experts.3.down_proj.lora_A.weight"] == (4, 96)
    assert shapes["model.layers.0.self_attn.q_proj.lora_A.weight"] == (8, 128)


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_experts_share_the_matrices_on_the_side_of_the_hidden_state(colocated, adapter_type: str) -> None:
    worker: Colocated = colocated("qwen3_moe", adapter__type=adapter_type, **SHARED)
    gate_up, outer, inner = 2 if adapter_type == "canonical_lora" else 1, 4 * 128, 4 * 96
    of_experts = sum(parameter.numel() for name, parameter in worker.parameters.items() if ".experts." in name)
    assert of_experts == LAYERS * ((gate_up + 1) * outer + EXPERTS * 3 * inner)
    assert worker.built.trainable_parameters == sum(parameter.numel() for parameter in worker.parameters.values())
    if adapter_type == "canonical_lora":  # of `lora`, the plan counts A for each part
        planned = AdapterSize.of(worker.spec.adapter, read_model_sizes(worker.model))
        assert planned.trainable(1) == worker.built.trainable_parameters
    fresh = [tensor for name, tensor in worker.export().items() if is_expert(name.partition(".lora_")[0])]
    assert len(fresh) == 2 * 3 * EXPERTS * LAYERS, "each has its own in the files"
    distinct = {tuple(tensor.flatten().tolist()) for tensor in fresh if tensor.any()}
    assert len(distinct) == LAYERS * (gate_up + EXPERTS), "A of gate and up, and each expert's of down"


def test_joined_adapters_of_experts_are_kept_as_planned(model_folder) -> None:
    """Tensors of three dimensions are nothing else."""
    trainer, sizes = BareTrainer(CpuDevice(), folder := model_folder("qwen3_moe"), "fp32", packed=True), []
    ((_, batch),) = trainer.model.micro_batches(grouped_samples(VOCABULARY), 10_000)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() if tensor.dim() == 3 and len(tensor) == EXPERTS else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.model.log_probabilities(batch, 1.0)
    planned = AdapterSize.of(trainer.spec.adapter, read_model_sizes(folder))
    assert sum(sizes) == planned.joined_experts(1) > 0


def test_the_files_have_all_experts_or_none(colocated, tmp_path: Path) -> None:
    targets = ["q_proj", "*.layers.1.*.experts.2.gate_proj"]
    worker: Colocated = colocated("qwen3_moe", adapter__targetModules=targets, adapter__rslora=True)
    worker.randomise()
    folder = worker.write_peft(tmp_path / "adapter")
    config = json.loads((folder / CONFIG_FILE).read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "q_proj", "up_proj"]
    # 16 / sqrt(8) for all layers, whose ranks are 8 and 4.
    scale = 16 / 8**0.5
    assert (config["r"], config["use_rslora"], config["rank_pattern"]) == (4, False, {"q_proj": 8})
    assert (config["lora_alpha"], config["alpha_pattern"]) == (4 * scale, {"q_proj": 8 * scale})
    tensors = read_adapter((folder / WEIGHTS_FILE).read_bytes(), "test")
    experts = {name: tensor for name, tensor in tensors.items() if is_expert(name.partition(".lora_")[0])}
    assert len(experts) == 2 * 3 * EXPERTS * LAYERS
    assert {name.partition(".lora_")[0] for name, tensor in experts.items() if tensor.any()} == {
        "model.layers.1.mlp.experts.2.gate_proj"
    }


@pytest.mark.parametrize(
    ("targets", "more"),
    [(["q_proj", "*.experts.2.gate_proj", "down_proj"], {}), (["q_proj", "gate_proj", "down_proj"], SHARED)],
)
def test_the_files_are_a_start_also_for_larger_ranks(
    colocated, tmp_path: Path, targets: list[str], more: dict[str, Any]
) -> None:
    worker: Colocated = colocated("qwen3_moe", adapter__targetModules=targets, **more)
    worker.randomise()
    content = (worker.write_peft(tmp_path / "adapter") / WEIGHTS_FILE).read_bytes()
    stored, own = InitialAdapter(content, rank=8, scale=2.0, expert_rank=4), worker.export()
    again = worker.worker._of_the_jobs_rank(stored, "test")
    assert again.keys() == own.keys() and all(torch.equal(again[name], own[name]) for name in own)
    fields = {"adapter__rank": 16, "adapter__expertRank": 6, "adapter__alpha": 16} | more
    larger: Colocated = colocated("qwen3_moe", adapter__targetModules=targets, **fields)
    larger.load(larger.worker._of_the_jobs_rank(stored, "test"))
    samples = samples_of(prompts(), larger.sync() and larger.generate(prompts()))
    assert worst(larger.trainer_logprobs(samples), worker.trainer_logprobs(samples)) < TOLERANCE
    assert larger.export()["model.layers.0.mlp.experts.2.gate_proj.lora_A.weight"].shape == (6, 128)


@pytest.mark.parametrize("more", [{}, SHARED], ids=str)
def test_gradients_are_those_of_autograd_through_peft(colocated, tmp_path: Path, more: dict[str, Any]) -> None:
    """PEFT has one adapter for the experts of a layer. test_router_replay.py has the other families."""
    worker: Colocated = colocated("qwen3_moe", **more)
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"), trainable=True)
    theirs = mean_logprob_gradients(model, samples)
    backend = worker.worker.backend
    backend._trainer.forward_backward(update_request(samples))
    found = backend.layout.gather([gradient.clone() for gradient in backend.optimizer.gradients])
    attention = {name for name in found if not is_expert(name.partition(".lora_")[0])}
    assert all(torch.allclose(found[name], theirs[name], atol=1e-6) for name in attention)
    expected = of_each_expert(theirs, LAYERS, PROJECTIONS["qwen3_moe"])
    if more:
        expected = summed_outer(expected)
    assert expected.keys() == found.keys() - attention
    assert all(g.any() and torch.allclose(found[name], g, atol=1e-6) for name, g in expected.items())


@pytest.mark.parametrize("family", ["glm4_moe", "glm4_moe_lite", "qwen3_next", "ernie4_5_moe", "exaone_moe"])
def test_peft_takes_adapters_on_other_mlps_for_those_on_experts(family: str) -> None:
    """If a newer PEFT does not, the reason in planning/mixtures.py does not hold any more."""
    model = tiny_models.build(family)
    assert any("shared_expert" in name and name.endswith("up_proj") for name, _ in model.named_modules())
    assert adapted_by_peft(model) == {"self_attn.o_proj", "mlp.experts", "mlp.experts.base_layer"}


@pytest.mark.parametrize("family", ["gpt_oss", "hy_v3"])
def test_peft_takes_no_adapters_on_single_experts_of_other_families(family: str) -> None:
    assert not any(".experts" in name for name in adapted_by_peft(tiny_models.build(family)))


def adapted_by_peft(model: torch.nn.Module) -> set[str]:
    """What PEFT puts adapters on, within a layer, if it is asked for all MLPs and experts by their layers' names."""
    names = ["o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM"))
    found = [name.partition(".lora_A")[0] for name, _ in adapted.named_parameters() if ".lora_A" in name]
    return {name.partition(".layers.")[2].partition(".")[2] for name in found}


@pytest.mark.parametrize("more", [{}, SHARED], ids=str)
def test_without_advantages_the_gradient_is_exactly_zero(
    colocated, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """With Megatron-Bridge's default weight of the router's own loss, 1e-3, its norm was 1.4e-3."""
    worker: Colocated = colocated("qwen3_moe", **more)
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    backend = worker.worker.backend
    # Samples without a signal would have no backward pass at all.
    monkeypatch.setattr(LossChoice, "has_gradient", lambda choice, sample: True)
    backend._trainer.forward_backward(update_request([replace(sample, advantage=0.0) for sample in samples]))
    assert not any(gradient.any() for gradient in backend.optimizer.gradients)
    backend.optimizer.zero_grad()
    backend._trainer.forward_backward(update_request(samples))
    assert all(torch.isfinite(gradient).all() for gradient in backend.optimizer.gradients)
    assert backend.model.norm(backend.optimizer.gradients) > 1e-3


def test_an_expert_without_a_token_has_a_gradient_of_zero(colocated) -> None:
    """An adapter without any gradient would stop the run."""
    worker: Colocated = colocated("qwen3_moe")
    worker.randomise()
    short = Sample(np.array([7, 8, 9]), prompt_length=2, advantage=1.0, rollout_logprobs=np.zeros(1, np.float32))
    backend = worker.worker.backend
    backend._trainer.forward_backward(update_request([short], on_policy=False, loss=LossChoice("cross_entropy")))
    found = backend.layout.gather([gradient.clone() for gradient in backend.optimizer.gradients])
    last = "model.layers.1.mlp.experts."
    trained = {name.split(".")[5] for name, gradient in found.items() if name.startswith(last) and gradient.any()}
    # The padding of a row goes through the router too, but nothing is learnt from it.
    assert 2 <= len(trained) < EXPERTS


@pytest.mark.parametrize("architecture", ["qwen3_moe", pytest.param("mixtral", marks=pytest.mark.long)])
def test_an_adapter_on_experts_can_be_merged(colocated, tmp_path: Path, architecture: str) -> None:
    worker: Colocated = colocated(architecture)
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"))
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    assert worst(hf_logprobs(merged, samples), worker.trainer_logprobs(samples)) < TOLERANCE


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_is_what_was_computed(model_folder, recompute: str) -> None:
    samples = grouped_samples(VOCABULARY)
    trainers = [
        BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", recompute=how, packed=True, fused=False)
        for how in ("none", recompute)
    ]
    (loss, gradients), (same_loss, same_gradients) = (trainer.loss_and_gradients(samples) for trainer in trainers)
    kept, again = (elements_kept(trainer.model, samples) for trainer in trainers)
    ((_, batch),) = trainers[0].model.micro_batches(samples, 10_000)
    hidden, inner, active = 128, 96, 2
    assert kept - again >= 0.9 * batch.tokens.numel() * LAYERS * active * (3 * hidden + 4 * inner)
    assert same_loss == pytest.approx(loss, abs=1e-7)
    assert relative_difference(same_gradients, gradients) < 1e-6


def test_a_checkpoint_keeps_no_adapter_that_was_put_together(model_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all layers would be as large as the adapter."""
    made: list[weakref.ref[torch.Tensor]] = []

    def joined(*parts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        matrices = joined_adapter(*parts)
        made.extend(map(weakref.ref, matrices))
        return matrices

    monkeypatch.setattr(fused_experts, "joined_adapter", joined)
    trainer = BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", packed=True, recompute="selective")
    ((_, batch),) = trainer.model.micro_batches(grouped_samples(VOCABULARY), 10_000)
    logprobs = trainer.model.log_probabilities(batch, 1.0)
    assert logprobs.requires_grad and len(made) == 4 * LAYERS
    assert [matrix() for matrix in made] == [None] * len(made)


def test_experts_are_computed_as_by_transformers() -> None:
    stream = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=stream)

    x, gate_up, down = draw(21, 16), draw(EXPERTS, 24, 16), draw(EXPERTS, 16, 12)
    chosen = torch.randn(21, EXPERTS, generator=stream).topk(2).indices
    weights = draw(21, 2).softmax(-1)
    a = draw(EXPERTS, 3, 16), draw(EXPERTS, 3, 16), draw(EXPERTS, 3, 12)
    b = draw(EXPERTS, 12, 3), draw(EXPERTS, 12, 3), draw(EXPERTS, 16, 3)
    found = compute_experts(x, gate_up, down, weights, chosen, (a, b))
    whole_gate_up = gate_up + torch.cat([b[0] @ a[0], b[1] @ a[1]], dim=1)
    whole_down = down + b[2] @ a[2]
    expected = torch.zeros_like(x)
    for token in range(21):
        for place in range(2):
            expert = chosen[token, place]
            gate, up = (whole_gate_up[expert] @ x[token]).chunk(2)
            expected[token] += weights[token, place] * (whole_down[expert] @ (torch.nn.functional.silu(gate) * up))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("moe_router_score_function", "sigmoid"),
        ("moe_router_enable_expert_bias", True),
        ("moe_shared_expert_intermediate_size", 96),
        ("moe_expert_capacity_factor", 1.0),
        ("moe_aux_loss_coeff", 1e-3),
    ],
)
def test_other_mixtures_are_left_to_megatron(model_folder, field: str, value: object) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", packed=True)
    config = trainer.model._unwrapped().config
    assert not_plain(config) == []
    setattr(config, field, value)
    assert not_plain(config) == [field]


def test_a_trial_that_has_its_turn_again_counts_tokens_on_the_device() -> None:
    """Parked sums are numbers, and those of the next layer are a GPU's tensors: here those of the meta device."""
    known_T_1 = torch.ones(4, 1, dtype=torch.bool)
    own_T_K, rollout_T_K = torch.tensor([[0, 1]] * 4), torch.tensor([[1, 0]] * 3 + [[1, 2]])
    on_device, here = fused_experts.Compared(), fused_experts.Compared()
    on_device.put((0.0, 0.0))
    on_device.add(own_T_K.to("meta"), rollout_T_K.to("meta"), known_T_1.to("meta"))
    here.put((2.0, 3.0))
    here.add(own_T_K, rollout_T_K, known_T_1)
    assert here.take() == (3.0, 7.0)
