"""Fetches and checks `spec.adapter.initFrom`, the PEFT adapter that training starts from. Loads nothing heavy."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import AdapterSpec, LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.files import CONFIG_FILE, INIT_FROM, METADATA_FILE, WEIGHTS_FILE
from lorarl_trainer.lora.peft_options import refused_options
from lorarl_trainer.lora.targets import last_parts
from lorarl_trainer.planning.model_sizes import ModelSizes
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.fingerprint import same_base_model
from lorarl_trainer.storage.secrets import Secrets, secret_of

_HINT = f"Set {INIT_FROM} to a folder that PEFT's save_pretrained, or lorarl, wrote."

_CONVERT = (
    "It belongs to a base model that PEFT changes. Convert it with PEFT's save_pretrained and "
    "path_initial_model_for_weight_conversion."
)


def read_initial_adapter(spec: LoRARLJobSpec, secrets: Secrets, base_fingerprint: str) -> bytes | None:
    """Read the adapter and check that the job can train it. None if the job starts with a new one.

    Args:
        spec: the job.
        secrets: with `spec.checkpoint.credentialsSecret`: adapters are stored where checkpoints are.
        base_fingerprint: the base model's fingerprint.

    Returns:
        The content of adapter_model.safetensors, which is not examined here.

    Raises:
        InputError: there is no adapter, or its rank, scaling, kind or base model differs from the job's.
        StorageError: the store could not be reached.
    """
    uri = spec.adapter.init_from
    if uri is None:
        return None
    secret = secret_of(secrets, spec.checkpoint.credentials_secret)
    store = open_store(uri, secret, field=INIT_FROM)
    config = _parsed(store.get(CONFIG_FILE), CONFIG_FILE, uri)
    _check_kind(config, uri)
    _check_fit(config, spec)
    if (metadata := store.get(METADATA_FILE)) is not None:
        _check_base(_parsed(metadata, METADATA_FILE, uri), base_fingerprint, spec)
    weights = store.get(WEIGHTS_FILE)
    if weights is None:
        raise _missing(WEIGHTS_FILE, uri)
    return weights


def require_fitting_modules(weights: bytes, model: ModelSizes, adapter: AdapterSpec) -> None:
    """Check that the adapter to start from has exactly the modules that the job trains, in its shapes.

    Args:
        weights: the content of adapter_model.safetensors, of which only the header is read.
        model: sizes of the base model.
        adapter: `spec.adapter`.

    Raises:
        InputError: modules or shapes differ, or the file is not whole.
    """
    shapes = _shapes(weights)
    has = {name.rpartition(".lora_")[0] for name in shapes}
    wanted = {linear.name: linear for linear in model.adapted(adapter)}
    if missing := [name for name in wanted if name not in has]:
        raise _other_modules(f"an adapter without {missing[0]}", has, wanted)
    if foreign := sorted(has - set(wanted)):
        raise _other_modules(f"an adapter with {foreign[0]}", has, wanted)
    for name, linear in wanted.items():
        for part, shape in (("A", [adapter.rank, linear.inputs]), ("B", [linear.outputs, adapter.rank])):
            if (found := shapes.get(f"{name}.lora_{part}.weight")) != shape:
                raise InputError(
                    INIT_FROM,
                    f"an adapter whose {name}.lora_{part} has the shape {found}",
                    f"{shape}",
                    "Use an adapter of this base model.",
                )


def _shapes(weights: bytes) -> dict[str, list[int]]:
    """Return the shapes in a safetensors file's header, by names without PEFT's prefix."""
    try:
        (length,) = struct.unpack("<Q", weights[:8])
        header = json.loads(weights[8 : 8 + length])
        size = (
            8 + length + max((entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_"), default=0)
        )
        if size != len(weights):
            raise ValueError(f"it has {len(weights)} bytes instead of {size}")
        return {
            name.removeprefix("base_model.model."): entry["shape"] for name, entry in header.items() if name[0] != "_"
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        got = f"an adapter whose {WEIGHTS_FILE} is not a whole safetensors file ({error})"
        raise InputError(INIT_FROM, got, "a PEFT LoRA adapter", "Copy the adapter again.") from error


def _other_modules(got: str, has: Collection[str], wanted: Collection[str]) -> InputError:
    there, asked = (", ".join(last_parts(names)) or "none" for names in (sorted(has), wanted))
    hint = f"Set spec.adapter.targetModules: [{there}], or use another adapter."
    return InputError(
        INIT_FROM, f"{got} (it has {there})", f"the modules of spec.adapter.targetModules ({asked})", hint
    )


def _check_kind(config: Mapping[str, Any], uri: str) -> None:
    """Require plain LoRA, which Megatron trains and vLLM serves."""
    if config.get("peft_type") != "LORA":
        raise InputError(INIT_FROM, f"{uri} with peft_type {config.get('peft_type')!r}", "LORA", _HINT)
    for option, value in refused_options(config).items():
        hint = _CONVERT if option == "init_lora_weights" else f"Use an adapter without it, or remove {INIT_FROM}."
        raise InputError(INIT_FROM, f"an adapter with {option}: {json.dumps(value)}", "plain LoRA", hint)


def _check_fit(config: Mapping[str, Any], spec: LoRARLJobSpec) -> None:
    for key, field, wanted in (("r", "rank", spec.adapter.rank), ("lora_alpha", "alpha", spec.adapter.alpha)):
        if config.get(key) != wanted:
            hint = f"Set spec.adapter.{field}: {config.get(key)}."
            raise InputError(
                INIT_FROM, f"an adapter with {key} {config.get(key)}", f"{wanted}, as in spec.adapter.{field}", hint
            )
    trained_on, base = str(config.get("base_model_name_or_path") or ""), spec.model.uri.removeprefix("hf://")
    both_on_the_hub = (
        spec.model.uri.startswith("hf://") and trained_on.count("/") == 1 and not Path(trained_on).exists()
    )
    if both_on_the_hub and trained_on.lower() != base.lower():
        raise InputError(
            INIT_FROM,
            f"an adapter of {trained_on}",
            f"an adapter of {base}, the model of spec.model.uri",
            f"Set spec.model.uri: hf://{trained_on}.",
        )


def _check_base(metadata: Mapping[str, Any], base_fingerprint: str, spec: LoRARLJobSpec) -> None:
    if not same_base_model(str(metadata.get("baseModelFingerprint", base_fingerprint)), base_fingerprint):
        raise InputError(
            INIT_FROM,
            f"an adapter of another base model ({metadata.get('baseModel')})",
            f"an adapter of {spec.model.uri} as it is now",
            "Set spec.model.uri to the base model that the adapter was trained on.",
        )


def _parsed(content: bytes | None, name: str, uri: str) -> dict[str, Any]:
    if content is None:
        raise _missing(name, uri)
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise InputError(
            INIT_FROM, f"{uri}, whose {name} cannot be read ({error})", "a PEFT LoRA adapter", _HINT
        ) from error


def _missing(name: str, uri: str) -> InputError:
    return InputError(INIT_FROM, f"{uri}, which contains no {name}", "the folder of a PEFT LoRA adapter", _HINT)
