"""Fetches and checks PEFT adapters that a job names: the one that training starts from, and a teacher.

Loads nothing heavy.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import AdapterSpec, LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import ADAPTER, ADAPTER_CONFIG
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.adapter_modules import PICKLE_FILE, SAFE
from lorarl_trainer.lora.chat_template import TEMPLATE_FILE, TOKENIZER_CONFIG, read_chat_template, same_template
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.files import CONFIG_FILE, INIT_FROM, METADATA_FILE, QUANTIZATION, TEACHER, WEIGHTS_FILE
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.peft_options import CONVERT, refused_options
from lorarl_trainer.progress.metrics_file import SUMMARY
from lorarl_trainer.storage import LocalStore, Store, open_store
from lorarl_trainer.storage.hub import fetch_adapter
from lorarl_trainer.storage.secrets import Secrets, secret_of

_FILES = (CONFIG_FILE, WEIGHTS_FILE, METADATA_FILE, TEMPLATE_FILE, TOKENIZER_CONFIG)
_EXPECTED = "the folder of a PEFT LoRA adapter"
_QUANTIZED = re.compile(r"(-unsloth)?-(bnb-4bit|bnb-8bit|4bit|8bit|int4|int8|fp8|awq|gptq)([-_].*)?$")


def read_initial_adapter(
    spec: LoRARLJobSpec, secrets: Secrets, base_fingerprint: str, field: str = INIT_FROM
) -> InitialAdapter | None:
    """Read an adapter and check that it fits the job's. None if the manifest names none.

    `secrets`: with `spec.checkpoint.credentialsSecret`: adapters are stored where checkpoints are. Those of the hub
    need that of the model. `field`: which one: the path of its URI in the manifest.

    Returns:
        The adapter. `launch.adapter_modules` examines its tensors.

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
    quantization = None
    if (content := store.get(METADATA_FILE)) is not None:
        metadata, base = _parsed(content, METADATA_FILE, uri, field), None
        _check_base(metadata, base_fingerprint, spec, field)
        quantization = metadata.get(QUANTIZATION, "none")
    if weights is None:
        hint = SAFE if store.find(PICKLE_FILE) else _hint(field)
        raise InputError(field, f"{uri}, which contains no {WEIGHTS_FILE}", _EXPECTED, hint)
    scale = AdapterConfig(config["r"], config["lora_alpha"], spec.adapter.rslora).scale
    named = base if isinstance(base, str) and base else None
    template = read_chat_template(store.get) if spec.data.chat_template else None
    return InitialAdapter(weights, config["r"], scale, named, quantization, expert_rank, template)


def doubts(
    initial: InitialAdapter | None, spec: LoRARLJobSpec, chat_template: object, field: str = INIT_FROM
) -> list[str]:
    """Return warnings about an adapter that names another base model than the job's, or has another chat template.

    `chat_template`: the one that the training uses. `field`: see `read_initial_adapter`.
    """
    if initial is None:
        return []
    found = []
    if initial.base is not None and _last_part(initial.base) != _last_part(spec.model.uri):
        found.append(
            f"the adapter of {field} was made for {initial.base}, and the job trains on {spec.model.uri}. Only "
            "names and shapes of layers are compared: check that both are the same model"
        )
    if initial.quantization not in (None, spec.model.quantization):
        found.append(
            f"the adapter of {field} was trained with model.quantization {initial.quantization}, and the job has "
            f"{spec.model.quantization}: here it is on a base of other weights"
        )
    if initial.chat_template is not None and not same_template(initial.chat_template, chat_template):
        found.append(
            f"the adapter of {field} has its own chat template, and the job trains with another one. To train "
            f"with the adapter's, name its {TEMPLATE_FILE} in spec.data.chatTemplateFile"
        )
    return found


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].rpartition(":")[2].lower()


def _plain_name(model: str) -> str:
    """Return a model's name without its organisation and quantization: a mirror's and a quantized copy's are the same.

    Unsloth trains on its own copies, and leaves Meta's name out of theirs.
    """
    return _QUANTIZED.sub("", _last_part(model)).removeprefix("meta-")


def _open(uri: str, spec: LoRARLJobSpec, secrets: Secrets, field: str) -> Store:
    """Return the adapter's folder. Of one on the hub, there is a copy in the hub's cache on this machine."""
    if uri.startswith("hf://"):
        token = secret_of(secrets, spec.model.credentials_secret).get("HF_TOKEN")
        return LocalStore(fetch_adapter(uri, _FILES, token, field), uri=uri)
    return open_store(uri, secret_of(secrets, spec.checkpoint.credentials_secret), field=field)


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


def _check_kind(config: Mapping[str, Any], uri: str, field: str) -> None:
    """Require plain LoRA, which Megatron trains and vLLM serves."""
    if config.get("peft_type") != "LORA":
        raise InputError(field, f"{uri} with peft_type {config.get('peft_type')!r}", "LORA", _hint(field))
    for option, value in refused_options(config).items():
        hint = CONVERT if option == "init_lora_weights" else f"Use an adapter without it, or remove {field}."
        raise InputError(field, f"an adapter with {option}: {json.dumps(value)}", "plain LoRA", hint)


def _check_fit(config: Mapping[str, Any], spec: LoRARLJobSpec, field: str) -> None:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= spec.adapter.rank:
        more = f" and spec.adapter.alpha: {alpha}" if type(alpha) is int and alpha != spec.adapter.alpha else ""
        hint = f"Set spec.adapter.rank: {rank}{more}." if type(rank) is int and rank > 0 else _hint(field)
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
    if both_on_the_hub and _plain_name(trained_on) != _plain_name(base):
        quantized = _plain_name(trained_on) != _last_part(trained_on)
        hint = f"Set spec.model.uri to the unquantized model that {trained_on} was made of."
        raise InputError(
            field,
            f"an adapter of {trained_on}",
            f"an adapter of {base}, the model of spec.model.uri",
            hint if quantized else f"Set spec.model.uri: hf://{trained_on}.",
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
