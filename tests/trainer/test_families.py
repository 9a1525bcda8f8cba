"""What follows from a config.json is what Transformers saves, what Megatron builds, and what its layers compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.backends.megatron.model import LoraModel, _configure
from lorarl_trainer.backends.megatron.platform_cpu import CpuPlatform
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.models.families import FAMILIES
from lorarl_trainer.models.model_sizes import read_model_sizes, shape_of, sizes_of
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.storage.downloads import read_model_config
from support import tiny_models
from support.in_process import tiny_job
from support.plans import changed
from support.training import BareTrainer

ONE_OF_EACH = ("qwen2", "qwen3", "llama-scaled", "llama-smollm2", "mistral-window")


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.OTHER_SHAPES, *tiny_models.MIXTURES])
def test_sizes_of_a_tested_model_follow_from_config_json(
    model_folder: Callable[[str], Path], architecture: str
) -> None:
    folder = model_folder(architecture)
    config = read_model_config(folder)
    assert judge(tiny_job(folder, folder).spec, config).family == FAMILIES[config["model_type"]].models
    assert sizes_of(config).shapes == read_model_sizes(folder).shapes


def test_every_family_is_tested() -> None:
    tested = {name.partition("-")[0] for name in (*tiny_models.ARCHITECTURES, *tiny_models.OTHER_SHAPES)}
    assert tested | set(tiny_models.MIXTURES) == set(FAMILIES), "test_router_replay.py has the mixtures"


@pytest.mark.parametrize("architecture", ONE_OF_EACH)
def test_layers_are_named_and_plain_as_the_verdict_expects(
    model_folder: Callable[[str], Path], architecture: str
) -> None:
    """D11: modules are looked at by name before workers load. L1: no field of the configuration is unknown."""
    from lorarl_trainer.backends.megatron.plain_config import not_plain

    folder = model_folder(architecture)
    for adapter_type in ("lora", "canonical_lora"):
        model = BareTrainer(CpuDevice(), folder, "fp32", adapter_type).model
        adapter = tiny_job(folder, folder, adapter__type=adapter_type).spec.adapter
        assert set(sizes_of(read_model_config(folder)).targets(adapter)) == set(model.targets)
    assert not_plain(_bare(model).config) == []


def _bare(model: LoraModel) -> Any:
    """The Megatron model without adapters' wrappers."""
    from megatron.core.utils import unwrap_model

    return unwrap_model(model.module)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rotary_percent", 0.5), ("window_size", (7, 0)), ("attention_output_gate", True), ("softmax_type", "learnable")],
)
def test_a_layer_with_more_than_llamas_is_not_fused(
    model_folder: Callable[[str], Path], field: str, value: object
) -> None:
    """L1: partial rotary positions used to pass for plain ones."""
    from lorarl_trainer.backends.megatron.fused_layer import fuse_layers

    trainer = BareTrainer(CpuDevice(), model_folder("llama"), "fp32", packed=True)
    model = _bare(trainer.model)
    assert len(fuse_layers(model, trainer.model._packing)) == 2
    setattr(model.config, field, value)
    assert not fuse_layers(model, trainer.model._packing)


def test_a_field_that_a_new_megatron_adds_is_not_plain(model_folder: Callable[[str], Path]) -> None:
    from lorarl_trainer.backends.megatron.plain_config import not_plain

    config = _bare(BareTrainer(CpuDevice(), model_folder("llama"), "fp32").model).config
    newer = make_dataclass("Newer", [("residual_gate", bool, False)], bases=(type(config),))
    config.__class__, config.residual_gate = newer, False
    assert not_plain(config) == ["residual_gate"]


def test_routers_have_no_loss_of_their_own(tmp_path: Path) -> None:
    """H5: Megatron-Bridge turns it on for mixtures of experts, and its gradient would reach the adapter."""
    get_backend("megatron").import_libraries(CpuDevice())
    from megatron.bridge import AutoBridge
    from transformers import Qwen3MoeConfig

    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3MoeConfig(**sizes, num_experts=4, moe_intermediate_size=64, vocab_size=64)
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.save_pretrained(tmp_path)
    provider = AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)
    assert provider.moe_aux_loss_coeff > 0
    provider.moe_permute_fusion = False  # needs Transformer Engine
    spec, shape = tiny_job(tmp_path, tmp_path).spec, shape_of(read_model_config(tmp_path))
    plan = changed(decide(spec, shape, None), packed=False)
    _configure(provider, CpuPlatform(), plan)
    assert (provider.moe_router_load_balancing_type, provider.moe_aux_loss_coeff) == ("none", 0.0)
    assert provider.moe_z_loss_coeff is None
