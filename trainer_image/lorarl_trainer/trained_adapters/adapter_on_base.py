"""An adapter's file on a base model, by PEFT: all of it is used, or the adapter is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lorarl_trainer.errors import InputError, in_one_line
from lorarl_trainer.lora.files import CONFIG_FILE, WEIGHTS_FILE
from lorarl_trainer.lora.peft_options import CONVERT, PEFT_VERSION, REMADE_STARTS, changes_base, unknown_options
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX, by_own_name, misfit, own_name
from lorarl_trainer.trained_adapters.source import ARGUMENT, Source

_HELD = ("", "base_layer.", "original_module.")
"""Where PEFT's layers have the parameters of the base's."""
_SAVED = ".modules_to_save."


def with_adapter(base: Any, source: Source) -> tuple[Any, dict[str, Any]]:
    """Return the base model with the adapter, of whose file every tensor is used, and what of the base has changed.

    PEFT's own `from_pretrained` only warns of tensors that fit no layer, of layers without any, and of options that it
    does not have. Biases of an adapter, and what some starts make of the weights, stay when it is disabled.

    Returns:
        The model; and the base's own parameters that are others in it, by their names there.

    Raises:
        InputError: the adapter does not fit.
    """
    from peft import MODEL_TYPE_TO_PEFT_MODEL_MAPPING, PeftConfig, PeftModel, set_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    from safetensors import safe_open

    from lorarl_trainer.lora.peft_format import read_adapter

    options = json.loads((source.adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    _require_known(options, source)
    weights = source.adapter / WEIGHTS_FILE
    tensors = _without_copies(read_adapter(weights.read_bytes(), ARGUMENT))
    with safe_open(weights, "pt") as file:
        stored = by_own_name(file.keys(), ARGUMENT)
    missing: list[str] = []
    try:
        config = PeftConfig.from_pretrained(str(source.adapter))
        config.inference_mode = True
        _take_vocabulary(base, tensors)
        before = _that_change(base, options, tensors)
        model = MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, PeftModel)(base, config)
        prefix = "" if config.is_prompt_learning else PEFT_PREFIX
        try:
            result = set_peft_model_state_dict(model, {f"{prefix}{name}": data for name, data in tensors.items()})
        except KeyError as error:  # a part beside the matrices: an output layer, rows of the embedding
            result, missing = None, [own_name(str(error.args[0]))]
    except Exception as error:  # PEFT raises nearly every type
        raise InputError(
            ARGUMENT,
            f"{source.name}, which PEFT cannot load onto {source.base} ({in_one_line(error)})",
            "an adapter of this base model",
            "Name the adapter's base model with --base.",
        ) from error
    unused: list[str] = []
    if result is not None:
        of_adapter = PEFT_TYPE_TO_PREFIX_MAPPING.get(config.peft_type) or "\0"
        missing = [own_name(name) for name in result.missing_keys if of_adapter in name]
        unused = [stored.get(own_name(name), name) for name in result.unexpected_keys]
    if fault := misfit(ARGUMENT, unused, missing, source.base, _hint(unused, missing)):
        raise fault
    return model, _changed(model, before)


def _require_known(options: Mapping[str, Any], source: Source) -> None:
    """Refuse what PEFT would leave out, or compute otherwise each time."""
    if options.get("peft_type") != "LORA":
        return
    start = options.get("init_lora_weights")
    if changes_base(options) and start not in REMADE_STARTS:
        got = f"{source.name}, an adapter with init_lora_weights: {json.dumps(start)}"
        raise InputError(ARGUMENT, got, "an adapter of a base that its files say", CONVERT)
    if layers := options.get("layer_replication"):
        got = f"{source.name}, an adapter with layer_replication: {json.dumps(layers)}"
        hint = "Name a base that has these layers already with --base, and set layer_replication to null."
        raise InputError(ARGUMENT, got, "an adapter of the layers that the base model has", hint)
    for name, value in unknown_options(options).items():
        raise InputError(
            ARGUMENT,
            f"{source.name}, an adapter with {name}: {json.dumps(value)}",
            f"options of PEFT {PEFT_VERSION}, which leaves others out",
            f"Remove it from {CONFIG_FILE} if it does not change what the adapter computes.",
        )


def _without_copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what PEFT saves a second time, of layers that it saves for two reasons, and does not read."""

    def is_copy(name: str) -> bool:
        other = tensors.get(name.replace(_SAVED, "."))
        return _SAVED in name and other is not None and bool(other.equal(tensors[name]))

    return {name: tensor for name, tensor in tensors.items() if not is_copy(name)}


def _take_vocabulary(base: Any, tensors: Mapping[str, Any]) -> None:
    """Give a base model as many tokens as its adapter was trained with, if the file has the whole embedding.

    Many programs add tokens of a chat template, or leave out a vocabulary's padding; PEFT then saves the embedding. In
    the base alone, tokens that were added have the mean of all others.
    """
    embedding = base.get_input_embeddings().weight
    layer = next(name for name, parameter in base.named_parameters() if parameter is embedding).rpartition(".")[0]
    found = next((tensors[name] for part in _HELD if (name := f"{layer}.{part}weight") in tensors), embedding)
    if len(found) != len(embedding):
        base.resize_token_embeddings(len(found))


def _that_change(base: Any, options: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of what PEFT may change of a base model when it loads an adapter, by name."""
    weights, biases = changes_base(options), options.get("bias", "none") != "none"
    return {
        name: parameter.data.clone()
        for name, parameter in base.named_parameters()
        if weights or (biases and name.endswith(".bias")) or any(one in tensors for one in _names_of(name))
    }


def _changed(model: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that are others now, by their names in the model with the adapter."""
    names = {f"{PEFT_PREFIX}{one}": name for name in before for one in _names_of(name)}
    return {
        held: before[names[held]]
        for held, parameter in model.named_parameters()
        if held in names and not parameter.equal(before[names[held]])
    }


def _names_of(name: str) -> list[str]:
    """Return the names that a parameter of the base may have within PEFT's layers."""
    layer, _, own = name.rpartition(".")
    return [f"{layer}.{part}{own}" for part in _HELD]


def _hint(unused: Sequence[str], missing: Sequence[str]) -> str:
    if not unused:
        return "Save or copy the adapter again, whole, with its adapter_config.json."
    if not missing:
        return "Save the adapter again with PEFT's save_pretrained, or remove these tensors."
    return "Name the adapter's base model with --base. If this is it, give the tensors the names that PEFT writes."
