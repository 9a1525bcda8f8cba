"""`lorarl merge`: base model and adapter as one plain model, which needs no PEFT."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lorarl_trainer.adapters.model import AdaptedModel, load_adapted
from lorarl_trainer.adapters.source import Source
from lorarl_trainer.errors import InputError, LorarlError

_TEXT = "The quick brown fox jumps over the lazy dog. 2 + 2 = 4"
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""How far merged logits may be off, as a share of the largest: rounding of the weights, by their precision."""


def merge(source: Source, out: Path) -> float:
    """Write a merged model with its tokenizer to a new folder, which appears whole or not at all.

    Returns:
        The largest difference between the logits of the merged model and those of base and adapter, as a share of the
        largest logit, on a short text.

    Raises:
        InputError: the folder exists, or base model or adapter cannot be loaded.
        LorarlError: the merged model computes something else.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("--out", f"{out}, which exists", "a new folder", "Name another one.")
    model = load_adapted(source)
    before = _logits(model, model.model)
    merged = model.model.merge_and_unload()
    after = _logits(model, merged)
    off = float((after - before).abs().max() / before.abs().max())
    precision = str(merged.dtype).removeprefix("torch.")
    if not off <= _TOLERANCE[precision]:
        raise LorarlError(
            f"the merged model's logits are off by {off:.2g} of the largest in {precision}, more than rounding "
            f"explains. Nothing was written. Serve base and adapter without merging."
        )
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        merged.generation_config = model.defaults
        merged.save_pretrained(partial)
        model.tokenizer.save_pretrained(partial)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        hint = "Free some space, or name another folder."
        raise InputError("--out", f"{out}, which cannot be written ({error.strerror})", "a folder", hint) from error
    return off


def _logits(model: AdaptedModel, module: Any) -> Any:
    import torch

    ids = torch.tensor([model.tokenizer(_TEXT)["input_ids"]], device=module.device)
    with torch.inference_mode():
        return module(input_ids=ids).logits.float()
