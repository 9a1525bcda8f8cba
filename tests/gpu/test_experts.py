"""Mixtures of experts on one GPU, in bf16: the trainer's grouped products and the engine's.

test_colocated.py has more of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.kernels import triton_experts
from lorarl_trainer.lora.grouped_experts import Adapter, compute_mixture, joined_adapter
from support.in_process import Colocated, prompts, samples_of
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference
from support.transformers_side import hf_logprobs, peft_model

MODEL = "qwen3_moe-gpu"
MEAN_DIFFERENCE = 0.02


@pytest.mark.parametrize(
    ("architecture", "experts"),
    [(MODEL, "perExpert"), (MODEL, "sharedOuter"), ("olmoe-gpu", "perExpert"), ("mixtral-gpu", "perExpert")],
)
def test_transformers_and_peft_say_the_same(on_gpu, tmp_path: Path, architecture: str, experts: str) -> None:
    worker: Colocated = on_gpu(architecture, adapter__experts=experts)
    assert worker.worker._plan.layout.shared_base and worker.worker._plan.trainer.fused_layers
    worker.randomise(scale=0.05)
    worker.sync()
    samples = samples_of(prompts(32), rollouts := worker.generate(prompts(32)))
    peft = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples)
    base = hf_logprobs(AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32).eval(), samples)

    def mean(found: list[np.ndarray]) -> float:
        return float(np.mean([np.abs(a - b).mean() for a, b in zip(found, peft, strict=True)]))

    print(mean(worker.trainer_logprobs(samples)), mean([c.logprobs for c in rollouts]), mean(base))
    assert mean(worker.trainer_logprobs(samples)) < MEAN_DIFFERENCE
    assert mean([c.logprobs for c in rollouts]) < MEAN_DIFFERENCE
    assert mean(base) > 3 * MEAN_DIFFERENCE, "an adapter that changes nothing would prove nothing"


@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "v_proj"]], ids=["experts", "attention"])
def test_the_trainer_follows_the_rollouts_choice_of_experts(on_gpu, targets: list[str]) -> None:
    """Also without adapters on experts, where vLLM computes them. CUDA graphs hold the record."""
    worker: Colocated = on_gpu(MODEL, adapter__targetModules=targets)
    worker.randomise(scale=0.05)
    worker.sync()
    asked = [prompt for prompt in prompts(32) for _ in range(2)]
    samples = samples_of(asked, rollouts := worker.generate(asked))
    recorded = [completion.routing for completion in rollouts]
    for sample, routing in zip(samples, recorded, strict=True):
        assert routing is not None and len(routing) == len(sample.tokens) - 1
        assert (np.sort(routing, -1)[..., 1:] > np.sort(routing, -1)[..., :-1]).all(), "a token has different experts"
        assert routing.max() < 4
    model = worker.worker.backend.model
    model.routing_differences()
    own = worker.trainer_logprobs(samples)
    assert model.routing_differences() == (0.0, 0.0)
    followed = worker.trainer_logprobs([replace(s, routing=r) for s, r in zip(samples, recorded, strict=True)])
    differences = model.routing_differences()
    assert differences is not None and differences[0] / differences[1] < 0.05
    engine = [completion.logprobs for completion in rollouts]
    apart = [float(np.mean([np.abs(a - b).mean() for a, b in zip(of, engine, strict=True)])) for of in (own, followed)]
    print(f"other experts {differences[0] / differences[1]:.4%}; apart {apart[0]:.5f}, with replay {apart[1]:.5f} nats")
    assert apart[1] < MEAN_DIFFERENCE and apart[1] < 1.2 * apart[0]


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_experts_have_the_same_gradients(model_folder, recompute: str) -> None:
    samples = grouped_samples(VOCABULARY)
    trainers = [
        BareTrainer(CudaDevice(), model_folder(MODEL), "bf16", recompute=how, packed=True, fused=True)
        for how in ("none", recompute)
    ]
    (loss, gradients), (same_loss, same_gradients) = (trainer.loss_and_gradients(samples) for trainer in trainers)
    assert same_loss == pytest.approx(loss, abs=1e-6)
    assert relative_difference(same_gradients, gradients) < 1e-3


@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
@pytest.mark.parametrize(("tokens", "rank"), [(1, 4), (7, 4), (300, 12)])
def test_grouped_products_are_those_of_each_expert(tokens: int, rank: int, few: bool) -> None:
    """Also in a CUDA graph, with experts that no token has."""
    stream = torch.Generator("cuda").manual_seed(0)
    experts, hidden, inner, active = 32, 256, 128, 4

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=stream, device="cuda") * 0.3).bfloat16()

    x, gate_up, down = draw(tokens, hidden), draw(experts, 2 * inner, hidden), draw(experts, hidden, inner)
    chosen = torch.randn(tokens, experts, generator=stream, device="cuda").topk(active).indices
    weights = torch.rand(tokens, active, generator=stream, device="cuda")
    parts = [draw(experts, rank, hidden) for _ in range(2)], [draw(experts, inner, rank) for _ in range(2)]
    first = Adapter(*joined_adapter(tuple(parts[0]), tuple(parts[1])))
    second = Adapter(*joined_adapter((draw(experts, rank, inner),), (draw(experts, hidden, rank),)))

    def compute() -> torch.Tensor:
        if few:
            return triton_experts.mix_few(x, weights, chosen, (gate_up, *first[:2]), (down, *second[:2]))
        return compute_mixture(x, weights, chosen, gate_up, down, (first, second))

    with torch.no_grad():
        found = compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = compute()
        graph.replay()
    assert torch.equal(captured, found)
    whole_gate_up = gate_up.double() + first.up_E_O_R.double() @ first.down_E_R_I.double()
    whole_down = down.double() + second.up_E_O_R.double() @ second.down_E_R_I.double()
    expected = torch.zeros(tokens, hidden, dtype=torch.double, device="cuda")
    for place in range(active):
        rows = torch.einsum("th,toh->to", x.double(), whole_gate_up[chosen[:, place]])
        gate, up = rows.chunk(2, dim=-1)
        product = torch.einsum("tf,thf->th", silu(gate) * up, whole_down[chosen[:, place]])
        expected += weights[:, place, None] * product
    assert (found - expected).norm() / expected.norm() < 0.01
