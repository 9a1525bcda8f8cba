"""`lorarl merge`: base model and adapter as one plain model, which needs no PEFT."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lorarl_trainer.errors import InputError, LorarlError, in_one_line
from lorarl_trainer.trained_adapters.model import AdaptedModel, load_adapted
from lorarl_trainer.trained_adapters.source import Source

_TEXT = "The quick brown fox jumps over the lazy dog. 2 + 2 = 4"
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""How far merged logits may be off, as a share of the largest: rounding of the weights, by their precision."""
_PARTIAL = ".partial"


def merge(source: Source, out: Path) -> float:
    """Write a merged model with its tokenizer to a new folder, which appears whole or not at all, or to an empty one.

    Returns:
        The largest difference between the logits of the merged model and those of base and adapter, as a share of the
        largest logit, on a short text.

    Raises:
        InputError: the folder is not empty or cannot be written, or base model or adapter cannot be loaded.
        LorarlError: the merged model computes something else.
    """
    if out.exists() and (not out.is_dir() or any(path.name != _PARTIAL for path in out.iterdir())):
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
    try:
        _write(model, merged, out.resolve())
    except (OSError, SafetensorError) as error:
        got = f"{out}, which cannot be written ({getattr(error, 'strerror', None) or in_one_line(error)})"
        raise InputError("--out", got, "a folder", "Free some space, or name another folder.") from error
    return off


def _write(model: AdaptedModel, merged: Any, out: Path) -> None:
    """Write a new folder under another name first. An empty one is filled: a shell may be in it, or a volume there."""
    fill = out.exists()
    partial = out / _PARTIAL if fill else out.with_name(f".{out.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)  # of a merge that was killed
    try:
        partial.mkdir(parents=True)
        merged.save_pretrained(partial)
        _settings(model.defaults).to_json_file(partial / "generation_config.json", keys_to_pop=["compile_config"])
        _share_weights(partial)
        model.tokenizer.save_pretrained(partial)
        if not fill:
            partial.rename(out)
            return
        for path in list(partial.iterdir()):
            path.rename(out / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _settings(defaults: Any) -> Any:
    """Return the base model's settings of generation, with the `do_sample` that some forget.

    Llama 2 came with a temperature and without `do_sample`. vLLM samples with it; Transformers loads it, ignores it and
    refuses to save it. What else Transformers refuses to save is kept, for it loads that with the base model too.
    """
    if defaults.do_sample is not None:
        return defaults
    sampled = copy.deepcopy(defaults)
    sampled.do_sample = True
    return sampled if not _valid(defaults) and _valid(sampled) else defaults


def _valid(settings: Any) -> bool:
    try:
        settings.validate(strict=True)
    except ValueError:
        return False
    return True


def _share_weights(folder: Path) -> None:
    """Give weights the mode of other new files: safetensors leaves them with that of its private temporary file."""
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)


def _logits(model: AdaptedModel, module: Any) -> Any:
    import torch

    ids = torch.tensor([model.tokenizer(_TEXT)["input_ids"]], device=module.device)
    with torch.inference_mode():
        return module(input_ids=ids).logits.float()
