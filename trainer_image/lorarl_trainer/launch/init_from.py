"""Fetches and checks PEFT adapters that a job names: the one that training starts from, and a teacher.

Loads nothing heavy.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import AdapterSpec, LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import ADAPTER, ADAPTER_CONFIG
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.experts import expert_layers, is_expert, of_all_experts, outer_matrix
from lorarl_trainer.lora.files import CONFIG_FILE, INIT_FROM, MAGNITUDE, METADATA_FILE, TEACHER, WEIGHTS_FILE
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.peft_options import refused_options
from lorarl_trainer.lora.targets import last_parts
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.progress.metrics_file import SUMMARY
from lorarl_trainer.storage import LocalStore, Store, open_store
from lorarl_trainer.storage.hub import fetch_adapter
from lorarl_trainer.storage.secrets import Secrets, secret_of
from lorarl_trainer.storage.tensor_header import Stored, read_header

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


def read_initial_adapter(
    spec: LoRARLJobSpec, secrets: Secrets, base_fingerprint: str, field: str = INIT_FROM
) -> InitialAdapter | None:
    """Read an adapter and check that it fits the job's. None if the manifest names none.

    `secrets`: with `spec.checkpoint.credentialsSecret`: adapters are stored where checkpoints are. Those of the hub
    need that of the model. `field`: which one: the path of its URI in the manifest.

    Returns:
        The adapter. The content of adapter_model.safetensors is not examined here.

    Raises:
        InputError: there is no adapter, or its rank is larger than the job's, or its scaling, kind or base
            model differs from the job's.
        StorageError: the store could not be reached.
    """
    uri = {INIT_FROM: spec.adapter.init_from, TEACHER: spec.algorithm.teacher_adapter}[field]
    if uri is None:
        return None
    store = _open(uri, spec, secrets, field)
    content = store.get(CONFIG_FILE)
    if content is None:
        there = not isinstance(store, LocalStore) or store.root.exists()
        got = f"{uri}, which {f'contains no {CONFIG_FILE}' if there else 'does not exist'}"
        raise InputError(field, got, _EXPECTED, _hint_below(store, uri, field))
    config, weights = _parsed(content, CONFIG_FILE, uri, field), store.get(WEIGHTS_FILE)
    experts = weights is not None and _has_experts(weights)
    expert_rank = config.get("r") if experts else None
    if experts:
        config = _without_experts(config, spec.adapter)
    _check_kind(config, uri, field)
    _check_fit(config, spec, field)
    base: Any = config.get("base_model_name_or_path")
    if (metadata := store.get(METADATA_FILE)) is not None:
        base = None
        _check_base(_parsed(metadata, METADATA_FILE, uri, field), base_fingerprint, spec, field)
    if weights is None:
        hint = _SAFE if store.find(PICKLE_FILE) else _hint(field)
        raise InputError(field, f"{uri}, which contains no {WEIGHTS_FILE}", _EXPECTED, hint)
    scale = AdapterConfig(config["r"], config["lora_alpha"], spec.adapter.rslora).scale
    named = base if isinstance(base, str) and base else None
    return InitialAdapter(weights, config["r"], scale, named, expert_rank)


def other_base(initial: InitialAdapter | None, spec: LoRARLJobSpec) -> list[str]:
    """Return a warning if an adapter names a base model with another name than the job's."""
    name = initial.base if initial else None
    if name is None or _last_part(name) == _last_part(spec.model.uri):
        return []
    return [
        f"the adapter of {INIT_FROM} was made for {name}, and the job trains on {spec.model.uri}. Only names and "
        "shapes of layers are compared: check that both are the same model"
    ]


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].rpartition(":")[2].lower()


def _open(uri: str, spec: LoRARLJobSpec, secrets: Secrets, field: str) -> Store:
    """Return the adapter's folder. Of one on the hub, there is a copy in the hub's cache on this machine."""
    if uri.startswith("hf://"):
        token = secret_of(secrets, spec.model.credentials_secret).get("HF_TOKEN")
        return LocalStore(fetch_adapter(uri, [CONFIG_FILE, WEIGHTS_FILE, METADATA_FILE], token, field), uri=uri)
    return open_store(uri, secret_of(secrets, spec.checkpoint.credentials_secret), field=field)


def require_fitting_modules(
    initial: InitialAdapter, model: ModelSizes, adapter: AdapterSpec, field: str = INIT_FROM
) -> None:
    """Check that an adapter has exactly the modules that the job trains, in the base model's shapes.

    `field`: the path of its URI in the manifest, for errors.

    Raises:
        InputError: modules or shapes differ, a value is not finite, or the file is not whole.
    """
    tensors = _tensors(initial.weights, field)
    shapes = {name: list(stored.shape) for name, (stored, _) in tensors.items()}
    has = {name.rpartition(".lora_")[0] for name in shapes}
    wanted = {linear.name: linear for linear in model.adapted(adapter)}
    if missing := [name for name in wanted if name not in has]:
        raise _other_modules(f"an adapter without {missing[0]}", has, wanted, field)
    if foreign := sorted(name for name in has - set(wanted) if not _is_empty_expert(name, tensors)):
        raise _other_modules(f"an adapter with {foreign[0]}", has, wanted, field)
    _check_expert_rank(initial, model, adapter, field)
    for name, linear in wanted.items():
        rank = initial.expert_rank if initial.expert_rank and is_expert(name) else initial.rank
        parts = {"lora_A.weight": [rank, linear.inputs], "lora_B.weight": [linear.outputs, rank]}
        for part, shape in (parts | ({MAGNITUDE: [linear.outputs]} if adapter.dora else {})).items():
            if (found := shapes.get(f"{name}.{part}")) != shape:
                is_there = f"has the shape {found}" if found else "is missing"
                raise InputError(
                    field,
                    f"an adapter whose {name}.{part.removesuffix('.weight')} {is_there}",
                    f"{shape}",
                    "Use an adapter of this base model.",
                )
    if adapter.shares_outer:
        _check_outer(tensors, expert_layers(wanted), field)
    for name, (stored, data) in tensors.items():
        if not _is_finite(stored.dtype, data):
            known = stored.dtype in _DTYPES
            got = f"an adapter whose {name} has a value that is not finite" if known else f"{name} in {stored.dtype}"
            raise InputError(field, got, "finite floating-point numbers", "Use an earlier checkpoint of it.")


def _check_expert_rank(initial: InitialAdapter, model: ModelSizes, adapter: AdapterSpec, field: str) -> None:
    most = model.expert_rank(adapter)
    if initial.expert_rank and most and initial.expert_rank > most:
        raise InputError(
            field,
            f"an adapter with rank {initial.expert_rank} on experts",
            f"at most {most}, the job's",
            f"Set spec.adapter.expertRank: {initial.expert_rank}.",
        )


def _check_outer(tensors: _Tensors, experts: Collection[str], field: str) -> None:
    """Require that the experts of a layer have the same matrix on the side of the hidden state."""
    first: dict[str, str] = {}
    for layer in experts:
        name = f"{layer}.lora_{outer_matrix(layer)}.weight"
        other = first.setdefault(of_all_experts(layer), name)
        (one, data), (alike, other_data) = tensors[name], tensors[other]
        if (one.dtype, one.shape, data) != (alike.dtype, alike.shape, other_data):
            raise InputError(
                field,
                f"an adapter whose {name} is not {other}",
                "one such matrix for all experts of a layer, as in spec.adapter.experts: sharedOuter",
                "Set spec.adapter.experts: perExpert, or use an adapter of a training with sharedOuter.",
            )


def _is_empty_expert(name: str, tensors: _Tensors) -> bool:
    """Return whether a layer is an expert's without a part in the training: its A and B are zeros."""
    parts = [data for part, (_, data) in tensors.items() if part.startswith(f"{name}.lora_")]
    return is_expert(name) and not any(np.frombuffer(data, np.uint8).any() for data in parts)


def _has_experts(weights: bytes) -> bool:
    """Return whether a safetensors file has tensors of experts, by its header; False for other files."""
    return b".experts." in weights[: 8 + int.from_bytes(weights[:8], "little")]


def _without_experts(config: Mapping[str, Any], adapter: AdapterSpec) -> dict[str, Any]:
    """Return the options of an adapter on experts as if it had none: see `lora.peft_format`.

    Its rank and alpha are those of the other layers, whose scale the experts have too. Where they are not so, they stay
    as they are, and are refused.
    """
    rank, alpha = config.get("r"), config.get("lora_alpha")
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or not rank:
        return dict(config)
    others = {(ranks[name], alphas.get(name, alpha)) for name in ranks}
    if len(others) == 1 and ranks.keys() == alphas.keys():
        ((other_rank, other_alpha),) = others
        if math.isclose(other_alpha / other_rank, alpha / rank, rel_tol=1e-6):
            rank, alpha, ranks, alphas = other_rank, other_alpha, {}, {}
    if adapter.rslora and not config.get("use_rslora"):
        alpha = alpha / rank * math.sqrt(rank)
    alpha = round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-6) else alpha
    switched = {"use_rslora": adapter.rslora or bool(config.get("use_rslora"))}
    return {**config, "r": rank, "lora_alpha": alpha, "rank_pattern": ranks, "alpha_pattern": alphas, **switched}


def _is_finite(dtype: str, data: memoryview) -> bool:
    if dtype not in _DTYPES:
        return False
    values = np.frombuffer(data, _DTYPES[dtype])
    return bool(((values & 0x7F80) != 0x7F80).all() if dtype == "BF16" else np.isfinite(values).all())


type _Tensors = Mapping[str, tuple[Stored, memoryview]]
"""What the file says of a tensor, and its content, by name."""


def _tensors(weights: bytes, field: str) -> _Tensors:
    """Return the tensors of a safetensors file, by names without PEFT's prefix."""
    try:
        header = read_header(BytesIO(weights), len(weights))
    except ValueError as error:
        got = f"an adapter whose {WEIGHTS_FILE} is not a whole safetensors file ({error})"
        hint = next((hint for mark, hint in _OTHER_FILES if weights.startswith(mark)), "Copy the adapter again.")
        raise InputError(field, got, "a PEFT LoRA adapter", hint) from error
    content = memoryview(weights)
    return {name.removeprefix("base_model.model."): (one, content[one.begin : one.end]) for name, one in header.items()}


def _other_modules(got: str, has: Collection[str], wanted: Collection[str], field: str) -> InputError:
    there, asked = (", ".join(last_parts(names)) or "none" for names in (sorted(has), wanted))
    hint = f"Set spec.adapter.targetModules: [{there}], or use another adapter."
    return InputError(field, f"{got} (it has {there})", f"the modules of spec.adapter.targetModules ({asked})", hint)


def _check_kind(config: Mapping[str, Any], uri: str, field: str) -> None:
    """Require plain LoRA, which Megatron trains and vLLM serves."""
    if config.get("peft_type") != "LORA":
        raise InputError(field, f"{uri} with peft_type {config.get('peft_type')!r}", "LORA", _hint(field))
    for option, value in refused_options(config).items():
        hint = _CONVERT if option == "init_lora_weights" else f"Use an adapter without it, or remove {field}."
        raise InputError(field, f"an adapter with {option}: {json.dumps(value)}", "plain LoRA", hint)


def _check_fit(config: Mapping[str, Any], spec: LoRARLJobSpec, field: str) -> None:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= spec.adapter.rank:
        hint = f"Set spec.adapter.rank: {rank}." if type(rank) is int and rank > 0 else _hint(field)
        raise InputError(
            field, f"an adapter with r {rank}", f"at most {spec.adapter.rank}, as in spec.adapter.rank", hint
        )
    if rank == spec.adapter.rank and alpha != spec.adapter.alpha:
        expected, hint = f"{spec.adapter.alpha}, as in spec.adapter.alpha", f"Set spec.adapter.alpha: {alpha}."
        raise InputError(field, f"an adapter with lora_alpha {alpha}", expected, hint)
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise InputError(field, f"an adapter with lora_alpha {alpha}", "a number above 0", _hint(field))
    for key, own, switched in (
        ("use_rslora", "rslora", spec.adapter.rslora),
        ("use_dora", "dora", spec.adapter.dora),
    ):
        if bool(config.get(key)) != switched:
            found, wanted_too = (json.dumps(value) for value in (bool(config.get(key)), switched))
            got, expected = f"an adapter with {key}: {found}", f"{wanted_too}, as in spec.adapter.{own}"
            raise InputError(field, got, expected, f"Set spec.adapter.{own}: {found}.")
    trained_on, base = str(config.get("base_model_name_or_path") or ""), spec.model.uri.removeprefix("hf://")
    both_on_the_hub = (
        spec.model.uri.startswith("hf://") and trained_on.count("/") == 1 and not Path(trained_on).exists()
    )
    if both_on_the_hub and trained_on.lower() != base.lower():
        raise InputError(
            field,
            f"an adapter of {trained_on}",
            f"an adapter of {base}, the model of spec.model.uri",
            f"Set spec.model.uri: hf://{trained_on}.",
        )


def _check_base(metadata: Mapping[str, Any], base_fingerprint: str, spec: LoRARLJobSpec, field: str) -> None:
    if metadata.get("baseModelFingerprint", base_fingerprint) != base_fingerprint:
        raise InputError(
            field,
            f"an adapter of another base model ({metadata.get('baseModel')})",
            f"an adapter of {spec.model.uri} as it is now",
            "Set spec.model.uri to the base model that the adapter was trained on.",
        )


def _hint(field: str) -> str:
    return f"Set {field} to a folder that PEFT's save_pretrained, or lorarl, wrote."


def _hint_below(store: Store, uri: str, field: str) -> str:
    """Return the hint for a folder without an adapter: where below it there is one, if lorarl wrote it."""
    checkpoints = [name for name in store.folders() if name.startswith("iter_")]
    for folder in ("", *(f"{name}/" for name in checkpoints[-1:])):
        if store.find(f"{folder}{ADAPTER_CONFIG}"):
            return f"Set {field}: {uri.rstrip('/')}/{folder}{ADAPTER}."
    with contextlib.suppress(ValueError, TypeError, KeyError):  # no summary of a run, or of one without an adapter
        if published := json.loads(store.get(SUMMARY) or b"{}")["adapter_uri"]:
            return f"Set {field}: {published}, which is this run's newest adapter."
    return _hint(field)


def _parsed(content: bytes, name: str, uri: str, field: str) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise InputError(
            field, f"{uri}, whose {name} cannot be read ({error})", "a PEFT LoRA adapter", _hint(field)
        ) from error
