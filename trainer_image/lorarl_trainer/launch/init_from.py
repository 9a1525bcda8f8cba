"""Fetches and checks `spec.adapter.initFrom`, the PEFT adapter that training starts from. Loads nothing heavy."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import AdapterSpec, LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import ADAPTER, ADAPTER_CONFIG
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.files import CONFIG_FILE, INIT_FROM, MAGNITUDE, METADATA_FILE, WEIGHTS_FILE
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.peft_options import refused_options
from lorarl_trainer.lora.targets import last_parts
from lorarl_trainer.planning.model_sizes import ModelSizes
from lorarl_trainer.progress.records import SUMMARY
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.storage.fingerprint import same_base_model
from lorarl_trainer.storage.secrets import Secrets, secret_of

_HINT = f"Set {INIT_FROM} to a folder that PEFT's save_pretrained, or lorarl, wrote."

_EXPECTED = "the folder of a PEFT LoRA adapter"
PICKLE_FILE = "adapter_model.bin"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""What safetensors calls floating-point numbers. NumPy has no bfloat16."""
_SAFE = f"Convert {PICKLE_FILE} with PEFT's save_pretrained, whose safe_serialization is on by default."
_CONVERT = (
    "It belongs to a base model that PEFT changes. Convert it with PEFT's save_pretrained and "
    "path_initial_model_for_weight_conversion."
)


_OTHER_FILES = (
    (b"version https://git-lfs", "It is a pointer of git lfs. Fetch the file with git lfs pull."),
    (b"PK\x03\x04", f"It is what torch.save writes. {_SAFE}"),
    (b"\x80", f"It is what torch.save writes. {_SAFE}"),
)


def read_initial_adapter(spec: LoRARLJobSpec, secrets: Secrets, base_fingerprint: str) -> InitialAdapter | None:
    """Read the adapter and check that the job can train it. None if the job starts with a new one.

    Args:
        spec: the job.
        secrets: with `spec.checkpoint.credentialsSecret`: adapters are stored where checkpoints are.
        base_fingerprint: the base model's fingerprint.

    Returns:
        The adapter. The content of adapter_model.safetensors is not examined here.

    Raises:
        InputError: there is no adapter, or its rank is larger than the job's, or its scaling, kind or base
            model differs from the job's.
        StorageError: the store could not be reached.
    """
    uri = spec.adapter.init_from
    if uri is None:
        return None
    secret = secret_of(secrets, spec.checkpoint.credentials_secret)
    store = open_store(uri, secret, field=INIT_FROM)
    content = store.get(CONFIG_FILE)
    if content is None:
        got = f"{uri}, which contains no {CONFIG_FILE}"
        raise InputError(INIT_FROM, got, _EXPECTED, _hint_below(store, uri))
    config = _parsed(content, CONFIG_FILE, uri)
    _check_kind(config, uri)
    _check_fit(config, spec)
    base: Any = config.get("base_model_name_or_path")
    if (metadata := store.get(METADATA_FILE)) is not None:
        base = None
        _check_base(_parsed(metadata, METADATA_FILE, uri), base_fingerprint, spec)
    weights = store.get(WEIGHTS_FILE)
    if weights is None:
        hint = _SAFE if store.find(PICKLE_FILE) else _HINT
        raise InputError(INIT_FROM, f"{uri}, which contains no {WEIGHTS_FILE}", _EXPECTED, hint)
    scale = AdapterConfig(config["r"], config["lora_alpha"], spec.adapter.rslora).scale
    return InitialAdapter(weights, config["r"], scale, base if isinstance(base, str) and base else None)


def other_base(initial: InitialAdapter | None, spec: LoRARLJobSpec) -> list[str]:
    """Return a warning if an adapter names a base model with another name than the job's."""
    name = initial and initial.base
    if name is None or _last_part(name) == _last_part(spec.model.uri):
        return []
    return [
        f"the adapter of {INIT_FROM} was made for {name}, and the job trains on {spec.model.uri}. Only names and "
        "shapes of layers are compared: check that both are the same model"
    ]


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].rpartition(":")[2].lower()


def require_fitting_modules(initial: InitialAdapter, model: ModelSizes, adapter: AdapterSpec) -> None:
    """Check that the adapter to start from has exactly the modules that the job trains, in the base model's shapes.

    Args:
        initial: the adapter.
        model: sizes of the base model.
        adapter: `spec.adapter`.

    Raises:
        InputError: modules or shapes differ, a value is not finite, or the file is not whole.
    """
    tensors, rank = _tensors(initial.weights), initial.rank
    shapes = {name: shape for name, (shape, _, _) in tensors.items()}
    has = {name.rpartition(".lora_")[0] for name in shapes}
    wanted = {linear.name: linear for linear in model.adapted(adapter)}
    if missing := [name for name in wanted if name not in has]:
        raise _other_modules(f"an adapter without {missing[0]}", has, wanted)
    if foreign := sorted(has - set(wanted)):
        raise _other_modules(f"an adapter with {foreign[0]}", has, wanted)
    for name, linear in wanted.items():
        parts = {"lora_A.weight": [rank, linear.inputs], "lora_B.weight": [linear.outputs, rank]}
        for part, shape in (parts | ({MAGNITUDE: [linear.outputs]} if adapter.dora else {})).items():
            if (found := shapes.get(f"{name}.{part}")) != shape:
                is_there = f"has the shape {found}" if found else "is missing"
                raise InputError(
                    INIT_FROM,
                    f"an adapter whose {name}.{part.removesuffix('.weight')} {is_there}",
                    f"{shape}",
                    "Use an adapter of this base model.",
                )
    for name, (_, dtype, data) in tensors.items():
        if not _is_finite(dtype, data):
            got = (
                f"an adapter whose {name} has a value that is not finite" if dtype in _DTYPES else f"{name} in {dtype}"
            )
            raise InputError(INIT_FROM, got, "finite floating-point numbers", "Use an earlier checkpoint of it.")


def _is_finite(dtype: str, data: memoryview) -> bool:
    if dtype not in _DTYPES:
        return False
    values = np.frombuffer(data, _DTYPES[dtype])
    return bool(((values & 0x7F80) != 0x7F80).all() if dtype == "BF16" else np.isfinite(values).all())


def _tensors(weights: bytes) -> dict[str, tuple[list[int], str, memoryview]]:
    """Return shape, type and content of each tensor of a safetensors file, by names without PEFT's prefix."""
    try:
        (length,) = struct.unpack("<Q", weights[:8])
        header = json.loads(weights[8 : 8 + length])
        size = (
            8 + length + max((entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_"), default=0)
        )
        if size != len(weights):
            raise ValueError(f"it has {len(weights)} bytes instead of {size}")
        content = memoryview(weights)[8 + length :]
        return {
            name.removeprefix("base_model.model."): (
                entry["shape"],
                entry["dtype"],
                content[slice(*entry["data_offsets"])],
            )
            for name, entry in header.items()
            if name[0] != "_"
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        got = f"an adapter whose {WEIGHTS_FILE} is not a whole safetensors file ({error})"
        hint = next((hint for mark, hint in _OTHER_FILES if weights.startswith(mark)), "Copy the adapter again.")
        raise InputError(INIT_FROM, got, "a PEFT LoRA adapter", hint) from error


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
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= spec.adapter.rank:
        hint = f"Set spec.adapter.rank: {rank}." if type(rank) is int and rank > 0 else _HINT
        raise InputError(
            INIT_FROM, f"an adapter with r {rank}", f"at most {spec.adapter.rank}, as in spec.adapter.rank", hint
        )
    if rank == spec.adapter.rank and alpha != spec.adapter.alpha:
        expected, hint = f"{spec.adapter.alpha}, as in spec.adapter.alpha", f"Set spec.adapter.alpha: {alpha}."
        raise InputError(INIT_FROM, f"an adapter with lora_alpha {alpha}", expected, hint)
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise InputError(INIT_FROM, f"an adapter with lora_alpha {alpha}", "a number above 0", _HINT)
    for key, field, switched in (
        ("use_rslora", "rslora", spec.adapter.rslora),
        ("use_dora", "dora", spec.adapter.dora),
    ):
        if bool(config.get(key)) != switched:
            found, wanted_too = (json.dumps(value) for value in (bool(config.get(key)), switched))
            got, expected = f"an adapter with {key}: {found}", f"{wanted_too}, as in spec.adapter.{field}"
            raise InputError(INIT_FROM, got, expected, f"Set spec.adapter.{field}: {found}.")
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


def _hint_below(store: Store, uri: str) -> str:
    """Return the hint for a folder without an adapter: where below it there is one, if lorarl wrote it."""
    checkpoints = [name for name in store.folders() if name.startswith("iter_")]
    for folder in ("", *(f"{name}/" for name in checkpoints[-1:])):
        if store.find(f"{folder}{ADAPTER_CONFIG}"):
            return f"Set {INIT_FROM}: {uri.rstrip('/')}/{folder}{ADAPTER}."
    with contextlib.suppress(ValueError, TypeError, KeyError):  # no summary of a run, or of one without an adapter
        if published := json.loads(store.get(SUMMARY) or b"{}")["adapter_uri"]:
            return f"Set {INIT_FROM}: {published}, which is this run's newest adapter."
    return _HINT


def _parsed(content: bytes, name: str, uri: str) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise InputError(
            INIT_FROM, f"{uri}, whose {name} cannot be read ({error})", "a PEFT LoRA adapter", _HINT
        ) from error
