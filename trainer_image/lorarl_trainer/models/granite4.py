"""Granite 4.0: attention in all layers, or, in H models, Mamba layers in the place of most of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import ATTENTION, USUAL_NORMS, FsdpFamily
from lorarl_trainer.models.layer_kinds import kinds_of
from lorarl_trainer.models.refused_families import refused

_ANOTHER = "Choose another model."


def _requires(config: Mapping[str, Any]) -> None:
    """Refuse Mamba layers that vLLM 0.26 or the trainer would compute otherwise, or has no place for."""
    if "num_hidden_layers" not in config:
        return  # `model_sizes` refuses it
    kinds = kinds_of(config)
    if not (mamba := kinds.count("mamba")):
        return
    if not 0 < (attention := len(kinds) - mamba) <= mamba:
        raise refused(
            f"{attention} layers with attention, and {mamba} Mamba layers",
            "one or more, and no more than Mamba layers: lorarl keeps their keys and values as one group",
            _ANOTHER,
        )
    shortest, longest = config.get("time_step_limit") or (0.0, float("inf"))
    if shortest > 0 or longest < float("inf"):
        raise refused(f"time_step_limit [{shortest}, {longest}]", "none, since vLLM computes without", _ANOTHER)


GRANITE_4 = FsdpFamily(
    "Granite 4.0, dense (350M, 1B, Micro, and their H models)",
    "GraniteMoeHybridForCausalLM",
    "as `granite`, with one layer for gate and up; in H models, Mamba layers in the place of most attention",
    {
        **ATTENTION,
        "shared_mlp.input_linear.weight": "f+f h",
        "shared_mlp.output_linear.weight": "h f",
        **USUAL_NORMS,
    },
    kinds=("attention", "mamba"),
    tied=False,
    usual={"intermediate_size": "shared_intermediate_size"},
    defaults={
        "layer_types": ["mamba"],
        "num_local_experts": 8,
        "shared_intermediate_size": 1024,
        "mamba_d_conv": 4,
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
    },
    only={
        "attention_bias": False,
        "hidden_act": "silu",
        "mamba_conv_bias": True,
        # vLLM normalises each group by itself, and Transformers all together.
        "mamba_n_groups": 1,
        "mamba_proj_bias": False,
    },
    requires=_requires,
)
