"""The files of an adapter on experts: all of a layer's experts or none, of one rank and one scale."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.experts import completed, expert_layers, is_expert, trained_part, usual_rank
from lorarl_trainer.lora.peft_format import adapter_config
from lorarl_trainer.lora.targets import Linear, resolve_targets, served_names

HIDDEN, INNER, RANK = 6, 4, 2
EXPERTS = [f"model.layers.0.mlp.experts.{e}.{part}_proj" for e in range(3) for part in ("gate", "up", "down")]
QUERY = "model.layers.0.self_attn.q_proj"
LAYERS = [QUERY, *EXPERTS]


def adapter(*layers: str) -> dict[str, torch.Tensor]:
    found = {}
    for layer in layers:
        inputs, outputs = (INNER, HIDDEN) if layer.endswith("down_proj") else (HIDDEN, INNER)
        rank = RANK if is_expert(layer) else 2 * RANK
        found[f"{layer}.lora_A.weight"] = torch.ones(rank, inputs)
        found[f"{layer}.lora_B.weight"] = torch.ones(outputs, rank)
    return found


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_only_layers_of_experts_are_experts() -> None:
    assert expert_layers(LAYERS) == EXPERTS
    for other in ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.experts", "model.layers.0.mlp.gate", "lm_head"):
        assert not is_expert(other)


@pytest.mark.parametrize("trained", [EXPERTS[:1], EXPERTS[8:], [QUERY, EXPERTS[4]]], ids=str)
def test_what_is_not_trained_is_zero_in_the_files(trained: list[str]) -> None:
    part = adapter(*trained)
    whole = completed(part, LAYERS)
    wanted = adapter(*EXPERTS, *(layer for layer in trained if not is_expert(layer)))
    assert shapes(whole) == shapes(wanted)
    assert all(bool(whole[name].any()) == (name in part) for name in whole)
    back = trained_part(whole, part.keys())
    assert back.keys() == part.keys() and all(torch.equal(back[name], part[name]) for name in part)


def test_an_adapter_without_experts_stays_as_it_is() -> None:
    assert completed(adapter(QUERY), LAYERS).keys() == adapter(QUERY).keys()


def test_what_an_expert_has_learnt_is_never_left_out() -> None:
    other = adapter(*EXPERTS)
    assert trained_part(other, adapter(QUERY).keys()).keys() == other.keys()


def test_the_usual_rank_is_the_active_share_and_at_least_one() -> None:
    assert [usual_rank(rank, 128, 8) for rank in (1, 16, 32, 512)] == [1, 1, 2, 32]


def test_the_numbers_are_read_alike_by_peft_and_vllm() -> None:
    """PEFT and vLLM take `r` and one alpha / r for experts. PEFT alone follows the patterns of the others."""

    plain = {"use_rslora": False, "target_modules": ["down_proj", "gate_proj", "q_proj", "up_proj"]}
    patterns = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 8}}
    found = adapter_config(adapter(*LAYERS), AdapterConfig(4, 8, expert_rank=2), "base", LAYERS)
    assert {key: found[key] for key in plain} == plain
    assert (found["r"], found["lora_alpha"], found["rank_pattern"], found["alpha_pattern"]) == (
        2,
        4,
        *patterns.values(),
    )
    alike = adapter_config(adapter(*LAYERS), AdapterConfig(4, 8, expert_rank=4), "base", LAYERS)
    assert (alike["r"], alike["lora_alpha"]) == (4, 8) and "rank_pattern" not in alike
    rslora = adapter_config(adapter(*LAYERS), AdapterConfig(4, 8, rslora=True, expert_rank=2), "base", LAYERS)
    assert (rslora["r"], rslora["lora_alpha"], rslora["use_rslora"]) == (2, 8, False)  # 8 / sqrt(4) = 4 = 8 / 2
    assert rslora["alpha_pattern"] == {"q_proj": 16}
    attention = adapter_config(adapter(QUERY), AdapterConfig(4, 8, rslora=True, expert_rank=2), "base", LAYERS)
    assert (attention["r"], attention["lora_alpha"], attention["use_rslora"]) == (4, 8, True)


def test_targets_mean_what_they_say() -> None:
    linears = [Linear("decoder.layers.0.self_attention.linear_proj", {"": "model.layers.0.self_attn.o_proj"})]
    for expert in range(3):
        whole, prefix = f"decoder.layers.0.mlp.experts.local_experts.{expert}", f"model.layers.0.mlp.experts.{expert}"
        parts = {"gate": f"{prefix}.gate_proj", "up": f"{prefix}.up_proj"}
        linears += [Linear(f"{whole}.linear_fc1", parts), Linear(f"{whole}.linear_fc2", {"": f"{prefix}.down_proj"})]

    def names(*patterns: str, exclude: tuple[str, ...] = ()) -> list[str]:
        targets = resolve_targets(linears, "canonical_lora", patterns, exclude)
        return [name for target in targets for name in target.hf_names]

    assert names("*.experts.*") == EXPERTS
    assert names("gate_proj") == EXPERTS[::3]
    assert names("linear_fc1") == [name for name in EXPERTS if not name.endswith("down_proj")]
    assert names("experts.1.up_proj") == [EXPERTS[4]]
    assert names("all-linear", exclude=("*.experts.*", "router")) == ["model.layers.0.self_attn.o_proj"]
    targets = resolve_targets(linears, "canonical_lora", ["all-linear"], [])
    assert served_names(targets) == ["o_proj", "experts"]
