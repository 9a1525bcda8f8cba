"""`adapter.initFrom` takes plain LoRA, and refuses by its name every option that makes an adapter something else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.init_from import read_initial_adapter
from lorarl_trainer.lora.peft_options import DEFAULTS, PEFT_VERSION, refused_options

PLAIN = DEFAULTS | {"r": 32, "lora_alpha": 64, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


def read(folder: Path, **changes: Any) -> bytes | None:
    """Start a job from an adapter whose config has these changes."""
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | changes))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    spec = LoRARLJobSpec.model_validate(
        {
            "model": {"uri": "file:base"},
            "adapter": {"targetModules": ["q_proj"], "initFrom": f"file:{folder}"},
            "algorithm": {"type": "sft"},
            "data": {"train": {"uri": "file:train.jsonl"}},
            "checkpoint": {"uri": "file:checkpoints"},
        }
    )
    return read_initial_adapter(spec, {}, "heads.tensors")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"init_lora_weights": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"lora_dropout": 0.1, "inference_mode": True, "revision": "main", "peft_version": "0.9.0"},
        {"exclude_modules": ["lm_head"], "loftq_config": None, "rank_pattern": None, "use_bdlora": False},
        {"an_option_of_another_version": None},
    ],
    ids=str,
)
def test_plain_lora_is_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, **changes) == b"weights"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "loftq"),
        ("alora_invocation_tokens", [1, 2]),
        ("use_qalora", True),
        ("layer_replication", [[0, 4], [2, 5]]),
        ("fan_in_fan_out", True),
        ("target_parameters", ["feed_forward.experts.gate_up_proj"]),
        ("lora_bias", True),
        ("bias", "lora_only"),
        ("use_dora", True),
        ("use_rslora", True),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("layers_to_transform", [0]),
        ("layers_pattern", "layers"),
        ("trainable_token_indices", [5]),
        ("arrow_config", {"top_k": 2}),
        ("qalora_group_size", 8),
        ("an_option_of_another_version", "on"),
    ],
)
def test_what_is_more_than_plain_lora_is_refused_by_name(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, **{option: value})
    assert refused.value.got == f"an adapter with {option}: {json.dumps(value)}"
    assert (refused.value.field, refused.value.expected) == ("spec.adapter.initFrom", "plain LoRA")


def test_an_adapter_of_a_changed_base_can_be_converted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="path_initial_model_for_weight_conversion"):
        read(tmp_path, init_lora_weights="pissa")


def test_a_falsy_number_is_no_option_that_is_off() -> None:
    assert refused_options({"qalora_group_size": 0, "use_dora": 0, "init_lora_weights": 1}) == {
        "qalora_group_size": 0,
        "init_lora_weights": 1,
    }


@pytest.mark.slow
def test_the_recorded_defaults_are_pefts_own() -> None:
    import peft

    assert peft.__version__ == PEFT_VERSION
    own = {
        field.name: field.default_factory() if field.default is dataclasses.MISSING else field.default  # type: ignore[misc]
        for field in dataclasses.fields(peft.LoraConfig)
        if field.name != "runtime_config"  # PEFT does not write it
    }
    assert own | {"peft_type": "LORA", "peft_version": PEFT_VERSION} == DEFAULTS
