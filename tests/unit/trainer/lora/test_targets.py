"""`adapter.targetModules` against a model of two layers with fused QKV and gate/up."""

from __future__ import annotations

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import (
    Linear,
    excluded_names,
    last_parts,
    require_vocabulary_to_split,
    resolve_targets,
)


def two_layers() -> list[Linear]:
    linears = []
    for layer in range(2):
        ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        linears += [
            Linear(f"{ours}.self_attention.linear_qkv", {part: f"{theirs}.self_attn.{part}_proj" for part in "qkv"}),
            Linear(f"{ours}.self_attention.linear_proj", {"": f"{theirs}.self_attn.o_proj"}),
            Linear(f"{ours}.mlp.linear_fc1", {part: f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")}),
            Linear(f"{ours}.mlp.linear_fc2", {"": f"{theirs}.mlp.down_proj"}),
        ]
    return linears


def resolved(target_modules: list[str], *, kind: str = "canonical_lora", exclude: tuple[str, ...] = ()) -> list[str]:
    return [target.name for target in resolve_targets(two_layers(), kind, target_modules, exclude)]


def test_all_linear_is_every_layer_once_per_part_with_its_own_adapter() -> None:
    assert len(resolved(["all-linear"])) == 2 * 7
    assert len(resolved(["all-linear"], kind="lora")) == 2 * 4


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("q_proj", ["decoder.layers.0.self_attention.linear_q", "decoder.layers.1.self_attention.linear_q"]),
        ("linear_q", ["decoder.layers.0.self_attention.linear_q", "decoder.layers.1.self_attention.linear_q"]),
        ("*.layers.1.*.v_proj", ["decoder.layers.1.self_attention.linear_v"]),
        ("self_attn.v_proj", ["decoder.layers.0.self_attention.linear_v", "decoder.layers.1.self_attention.linear_v"]),
        ("layers.0.self_attn.q_proj", ["decoder.layers.0.self_attention.linear_q"]),
        ("1.mlp.linear_fc2", ["decoder.layers.1.mlp.linear_fc2"]),
        ("decoder.layers.0.mlp.linear_fc2", ["decoder.layers.0.mlp.linear_fc2"]),
        ("model.layers.0.mlp.up_proj", ["decoder.layers.0.mlp.linear_fc1_up"]),
        ("*.layers.0.mlp.linear_fc1", ["decoder.layers.0.mlp.linear_fc1_gate", "decoder.layers.0.mlp.linear_fc1_up"]),
    ],
)
def test_names_of_either_side_and_wildcards_are_understood(pattern: str, expected: list[str]) -> None:
    assert resolved([pattern]) == expected


def test_what_is_excluded_has_no_adapter() -> None:
    kept = resolved(["all-linear"], exclude=("*.layers.0.*", "gate_proj"))
    assert kept == [
        "decoder.layers.1.self_attention.linear_q",
        "decoder.layers.1.self_attention.linear_k",
        "decoder.layers.1.self_attention.linear_v",
        "decoder.layers.1.self_attention.linear_proj",
        "decoder.layers.1.mlp.linear_fc1_up",
        "decoder.layers.1.mlp.linear_fc2",
    ]


@pytest.mark.parametrize(
    "name", ["lm_head", "model.embed_tokens", "embed_tokens", "output_layer", "router", "*.mlp.gate", "*norm"]
)
def test_what_never_gets_an_adapter_may_be_excluded(name: str) -> None:
    """vime's own command line has `--exclude-modules lm_head`."""
    assert resolved(["all-linear"], exclude=(name,)) == resolved(["all-linear"])
    assert resolved(["all-linear"], exclude=(name, "gate_proj")) == resolved(["all-linear"], exclude=("gate_proj",))


@pytest.mark.parametrize("name", ["q_prj", "*.layers.7.*", "lm_heads", "proj", "f_attn.q_proj"])
def test_an_exclusion_that_names_nothing_is_refused(name: str) -> None:
    """A typing mistake would train what its author wanted to leave out."""
    with pytest.raises(InputError, match=r"spec\.adapter\.excludeModules: got .*expected a linear layer of this model"):
        resolved(["all-linear"], exclude=(name,))


def test_what_was_excluded_is_told_by_its_full_names() -> None:
    linears = two_layers()
    assert excluded_names(linears, "canonical_lora", ["all-linear"], ["lm_head"]) == []
    assert excluded_names(linears, "canonical_lora", ["all-linear"], []) == []
    assert excluded_names(linears, "lora", ["linear_qkv", "o_proj"], ["*.layers.1.*"]) == [
        f"model.layers.1.self_attn.{part}_proj" for part in "qkvo"
    ]


def test_excluding_everything_is_refused() -> None:
    with pytest.raises(InputError, match="at least one module left to train"):
        resolved(["q_proj"], exclude=("q_proj",))


def test_a_name_that_matches_nothing_is_refused_with_the_nearest() -> None:
    """The message also lists all names that there are."""
    with pytest.raises(InputError) as refusal:
        resolved(["q_prj"])
    assert "Did you mean q_proj?" in str(refusal.value)
    assert "down_proj" in refusal.value.expected
    assert refusal.value.field == "spec.adapter.targetModules"


def test_failure_11_no_part_of_a_fused_layer_is_trained_silently() -> None:
    """A part that was not asked for is never trained along with the others."""
    with pytest.raises(InputError, match=r"q_proj, v_proj alone.*q_proj, k_proj, v_proj.*canonical_lora"):
        resolved(["q_proj", "v_proj"], kind="lora")
    assert resolved(["q_proj", "k_proj", "v_proj"], kind="lora") == resolved(["linear_qkv"], kind="lora")


def test_the_output_layer_cannot_be_named() -> None:
    with pytest.raises(InputError):
        resolved(["lm_head"])


def test_a_summary_names_each_kind_of_layer_once() -> None:
    targets = resolve_targets(two_layers(), "canonical_lora", ["all-linear"], [])
    assert last_parts(name for target in targets for name in target.hf_names) == [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]


def test_what_tensor_parallel_ranks_cannot_share_is_refused() -> None:
    require_vocabulary_to_split(302, 2)
    with pytest.raises(InputError, match="2 for a model with a vocabulary of 259"):
        require_vocabulary_to_split(259, 2)
