"""`adapter.initFrom` takes the files that lorarl publishes of experts, and says what differs from the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.adapter_modules import require_fitting_modules
from lorarl_trainer.launch.init_from import read_initial_adapter
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.models.model_sizes import sizes_of
from unit.trainer.launch.test_init_from import PLAIN, spec_from
from unit.trainer.planning.test_mixtures import QWEN3_30B_A3B

SIZES = sizes_of(
    QWEN3_30B_A3B
    | {"num_hidden_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "hidden_size": 16, "vocab_size": 64}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "moe_intermediate_size": 8}
)
JOB: dict[str, Any] = {"rank": 8, "alpha": 16, "targetModules": ["q_proj", "up_proj"]}
PUBLISHED = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"q_proj": 16}}


def weights(trained: tuple[str, ...] = ("q_proj", "up_proj"), rank: int = 8, expert_rank: int = 4) -> bytes:
    """What is published of a training of these layers: all layers of experts, with zeros where nothing was trained."""
    tensors = {}
    for linear in SIZES.linears:
        own = expert_rank if is_expert(linear.name) else rank
        last = linear.name.rpartition(".")[2]
        if is_expert(linear.name) or last in trained:
            fill = np.ones if last in trained else np.zeros
            for part, shape in (("A", (own, linear.inputs)), ("B", (linear.outputs, own))):
                tensors[f"base_model.model.{linear.name}.lora_{part}.weight"] = fill(shape, np.float32)
    return save(tensors)


def start(
    folder: Path, content: bytes = b"", adapter: Mapping[str, Any] = MappingProxyType({}), **config: Any
) -> InitialAdapter:
    """Start a job from such files, as far as it goes without torch."""
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | PUBLISHED | config))
    (folder / "adapter_model.safetensors").write_bytes(content or weights())
    spec = spec_from(folder, **JOB | dict(adapter))
    found = read_initial_adapter(spec, {}, "heads.tensors")
    assert found is not None
    require_fitting_modules(found, SIZES, spec.adapter)
    return found


def test_experts_that_share_matrices_start_from_equal_ones(tmp_path: Path) -> None:
    shared = {"experts": "sharedOuter", "targetModules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    all_equal = weights(tuple(shared["targetModules"]))
    assert start(tmp_path, all_equal, shared).expert_rank == 4

    def changed(name: str) -> bytes:
        tensors = load(all_equal)
        tensors[f"base_model.model.model.layers.0.mlp.experts.{name}.weight"][0, 0] = 2.0
        return save(tensors)

    for inner in ("2.up_proj.lora_B", "2.down_proj.lora_A"):
        start(tmp_path, changed(inner), shared)
    for outer, first in (("2.up_proj.lora_A", "0.up_proj.lora_A"), ("3.down_proj.lora_B", "0.down_proj.lora_B")):
        start(tmp_path, changed(outer), shared | {"experts": "perExpert"})
        with pytest.raises(InputError) as refused:
            start(tmp_path, changed(outer), shared)
        prefix = "model.layers.0.mlp.experts."
        assert f"an adapter whose {prefix}{outer}.weight is not {prefix}{first}.weight, expected one such" in str(
            refused.value
        )
        assert "Set spec.adapter.experts: perExpert" in str(refused.value)


def test_what_a_training_publishes_is_a_start(tmp_path: Path) -> None:
    found = start(tmp_path)
    assert (found.rank, found.expert_rank, found.scale) == (8, 4, 2.0)


def test_the_scale_of_rslora_is_in_alpha(tmp_path: Path) -> None:
    scale = 16 / 8**0.5
    numbers = {"lora_alpha": 4 * scale, "alpha_pattern": {"q_proj": 8 * scale}}
    assert start(tmp_path, adapter={"rslora": True}, **numbers).scale == pytest.approx(scale)
    with pytest.raises(InputError, match=r"lora_alpha 45\.25\d*, expected 16, as in spec\.adapter\.alpha"):
        start(tmp_path, **numbers)


def test_smaller_ranks_are_taken(tmp_path: Path) -> None:
    numbers = {"r": 2, "lora_alpha": 4, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 8}}
    found = start(tmp_path, weights(rank=4, expert_rank=2), **numbers)
    assert (found.rank, found.expert_rank, found.scale) == (4, 2, 2.0)


@pytest.mark.parametrize(
    ("content", "adapter", "config", "message"),
    [
        (
            b"",
            {"expertRank": 2},
            {},
            "an adapter with rank 4 on experts, expected at most 2, the job's. Set spec.adapter",
        ),
        (b"", {}, {"alpha_pattern": {"q_proj": 32}}, 'an adapter with alpha_pattern: {"q_proj": 32}, expected plain'),
        (b"", {}, {"rank_pattern": {"q_proj": 8, "o_proj": 4}}, "an adapter with alpha_pattern: "),
        (
            weights(("q_proj", "up_proj", "down_proj")),
            {},
            {},
            "layers.0.mlp.experts.0.down_proj.lora_A.weight and 7 more",
        ),
        (
            weights(("q_proj",)),
            {"targetModules": ["o_proj"]},
            {},
            "layers.0.self_attn.o_proj.lora_A.weight. Set spec.adapter.targetModules: [q_proj]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, content: bytes, adapter: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        start(tmp_path, content, adapter, **config)
    assert message in str(refused.value)


def test_an_adapter_spec_without_experts_takes_none() -> None:
    found = InitialAdapter(weights(("q_proj",)), 8, 2.0, expert_rank=4)
    require_fitting_modules(found, SIZES, AdapterSpec.model_validate({**JOB, "targetModules": ["q_proj"]}))
