"""Which options of PEFT's LoraConfig an adapter to start from may have. PEFT itself is not imported: it needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PEFT_VERSION = "0.21.2"
"""The version whose defaults are recorded here; a test compares them with its own."""

DEFAULTS: Mapping[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": False,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": PEFT_VERSION,
    "qalora_group_size": 16,
    "r": 8,
    "rank_pattern": {},
    "revision": None,
    "target_modules": None,
    "target_parameters": None,
    "task_type": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}

UNDERSTOOD = frozenset(
    [
        *("peft_type", "r", "lora_alpha", "base_model_name_or_path"),  # compared with the job
        *("use_rslora", "use_dora"),  # likewise
        *("target_modules", "exclude_modules"),  # the tensors' names say which modules there are
        *("peft_version", "auto_mapping", "inference_mode", "task_type", "revision"),  # of no effect on the weights
        *("lora_dropout", "eva_config"),  # of effect while that adapter was trained, or before
    ]
)
"""Options that may have any value."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base model as it is.

With others (pissa, olora, loftq, corda, lora_ga) PEFT changes the base when it loads the adapter, which then belongs to
the changed base alone.
"""


REMADE_STARTS = ("pissa", "olora")
"""Those of the others that PEFT computes from the base alone: it can make the changed base again."""
CONVERT = (
    "It belongs to a base model that PEFT changes. Convert it with PEFT's save_pretrained and "
    "path_initial_model_for_weight_conversion."
)


def changes_base(config: Mapping[str, Any]) -> bool:
    """Return whether PEFT changes the base model when it loads an adapter with this adapter_config.json."""
    start = config.get("init_lora_weights")
    return start is not None and not _is_plain("init_lora_weights", start)


def unknown_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are switched on and that this version of PEFT does not have: it leaves them out."""
    return {name: value for name, value in config.items() if value and name not in DEFAULTS}


def refused_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an adapter_config.json that make the adapter more than plain LoRA.

    An option is refused if its value is neither the default nor understood. Options that this version of PEFT does not
    have are refused if they are switched on.
    """
    return {
        name: value
        for name, value in config.items()
        if name not in UNDERSTOOD and not _is_plain(name, value) and not _is_off(name, value)
    }


def _is_plain(name: str, value: Any) -> bool:
    if name == "init_lora_weights":
        return any(value is start or (isinstance(start, str) and value == start) for start in PLAIN_STARTS)
    return name in DEFAULTS and bool(value == DEFAULTS[name])


def _is_off(name: str, value: Any) -> bool:
    """Return whether an option is off: other versions of PEFT write null where this one writes false, and so on."""
    return not value and not DEFAULTS.get(name)
