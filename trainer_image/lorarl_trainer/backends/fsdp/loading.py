"""A Transformers model from a folder, as training needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lorarl_trainer.backends.fsdp.attention import PACKED, register
from lorarl_trainer.backends.fsdp.quantization import quantizing_options
from lorarl_trainer.backends.fsdp.recurrent import take_own_rules
from lorarl_trainer.errors import InputError
from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.models.fsdp_families import auto_class
from lorarl_trainer.models.packed_weights import reading_options, take_precision


def load_base(model_path: Path, dtype: torch.dtype, *, packed: bool, quantization: Format | None = None) -> Any:
    """Load the frozen base model, into main memory.

    `packed`: attention takes packings, see `attention`, if the architecture has a place for that. `quantization`: a
    weight is quantized to it before the next one is read.

    Raises:
        InputError: Transformers has no language model of this kind, or its files lack a weight.
    """
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    register()
    config = transformers.AutoConfig.from_pretrained(model_path)
    language = config.get_text_config()
    for name, value in language.to_dict().items():
        # A base model's config.json may ask for dropout. vLLM has none, and only the adapter is trained.
        if "drop" in name and isinstance(value, float):
            setattr(language, name, 0.0)
    unpacked = reading_options(config)
    options = {"config": config, "dtype": dtype, "output_loading_info": True, **unpacked}
    options |= quantizing_options(quantization)
    if packed:
        options["attn_implementation"] = PACKED
    try:
        model, loaded = getattr(transformers, auto_class(config.model_type)).from_pretrained(model_path, **options)
    except ValueError as error:
        if packed and PACKED in str(error):
            return load_base(model_path, dtype, packed=False, quantization=quantization)
        raise InputError(
            "spec.model.uri",
            str(model_path),
            "a causal language model of Transformers",
            f"It says: {str(error).strip().splitlines()[0]}",
        ) from error
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(
            "spec.model.uri",
            f"{model_path}, whose files lack {missing[0]} ({len(missing)} such weights)",
            "files with all weights of the model that config.json describes",
            "Copy or download the model again. Its config.json may be that of another model.",
        )
    take_own_rules(decoder_layers(language_model(model)))
    if unpacked:
        take_precision(model, dtype)
    return model.requires_grad_(False)


def language_model(model: Any) -> Any:
    """Return the decoder of a model, without its output layer: that of language, if it also takes images."""
    return getattr(model.base_model, "language_model", model.base_model)


def leave_out_what_sees(model: Any) -> None:
    """Free what makes vectors of images. Only text is trained on, and vLLM starts without it too."""
    whole, decoder = model.base_model, language_model(model)
    if decoder is not whole:
        for name, part in list(whole.named_children()):
            if part is not decoder:
                delattr(whole, name)


def decoder_layers(decoder: Any) -> list[torch.nn.Module]:
    """Return a decoder's layers, in order."""
    count = decoder.config.num_hidden_layers
    found = [module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return list(found[0])
