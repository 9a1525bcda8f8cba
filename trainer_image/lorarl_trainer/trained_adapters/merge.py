"""`lorarl merge`: base model and adapter as one plain model, which needs no PEFT."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lorarl_trainer.errors import InputError, LorarlError, in_one_line
from lorarl_trainer.lora.files import CONFIG_FILE
from lorarl_trainer.lora.peft_options import refused_options
from lorarl_trainer.models.stored_weights import stored_weights
from lorarl_trainer.trained_adapters.merged_weights import changes_nothing, recompute
from lorarl_trainer.trained_adapters.model import AdaptedModel, load_adapted
from lorarl_trainer.trained_adapters.source import ARGUMENT, Source

_TEXT = "The quick brown fox jumps over the lazy dog. 2 + 2 = 4"
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""How far merged logits may be off, as a share of the largest: rounding of the weights, by their precision."""
_PARTIAL = ".partial"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""What Transformers and vLLM make inputs of a model from that also takes images; vLLM does not start without."""


@dataclass(frozen=True)
class Merged:
    """What is known of a merged model.

    Attributes:
        off: the largest difference between its logits and those of base and adapter, as a share of the largest logit,
            on a short text.
        computed: how many of its weights were computed again, see `merged_weights.recompute`.
    """

    off: float
    computed: int


def merge(source: Source, out: Path) -> Merged:
    """Write a merged model with its tokenizer to a new folder, which appears whole or not at all, or to an empty one.

    Of a base that was quantized for the training, it has the numbers that the codes stand for, in the job's precision.

    Raises:
        InputError: the folder is not empty or cannot be written, base model or adapter cannot be loaded, or the adapter
            cannot be merged.
        LorarlError: the merged model computes something else.
    """
    if out.exists() and (not out.is_dir() or any(path.name != _PARTIAL for path in out.iterdir())):
        raise InputError("--out", f"{out}, which exists", "a new folder", "Name another one.")
    from lorarl_trainer.backends.fsdp.quantization import dequantize

    model = load_adapted(source)
    _require_separate(model.model.get_base_model(), source)
    with model.plain():
        alone = _logits(model, model.model)
    before = _logits(model, model.model)
    quantized = dequantize(model.model.get_base_model())
    merged = _merged(model, source)
    after = _logits(model, merged)
    off = float((after - before).abs().max() / before.abs().max())
    precision = str(merged.dtype).removeprefix("torch.")
    if not off <= _TOLERANCE[precision]:
        raise LorarlError(
            f"the merged model's logits are off by {off:.2g} of the largest in {precision}, more than rounding "
            f"explains. Nothing was written. Serve base and adapter without merging."
        )

    def check(written: Path) -> int:
        _require_whole(merged, written)
        found = recompute(source.base_folder(), source.adapter, written, quantized)
        same = not found.changed if found.count else bool((after == alone).all())
        if same and not changes_nothing(source.adapter):
            raise LorarlError(
                f"the merged model would be the base model: what {source.name} changes is lost in {precision}. Nothing "
                "was written. Serve base and adapter without merging."
            )
        return found.count

    try:
        return Merged(off, _write(model, merged, source.base_folder(), out.resolve(), check))
    except (OSError, SafetensorError) as error:
        got = f"{out}, which cannot be written ({getattr(error, 'strerror', None) or in_one_line(error)})"
        raise InputError("--out", got, "a folder", "Free some space, or name another folder.") from error


def _require_separate(base: Any, source: Source) -> None:
    """Refuse an adapter on a weight that embedding and output layer share: merged, it would change both.

    An adapter adds to one use of the weight. One on both adds something else to each.
    """
    from peft.tuners.lora import LoraLayer

    ends = {"embedding": base.get_input_embeddings(), "output layer": base.get_output_embeddings()}
    adapted = [name for name, end in ends.items() if isinstance(end, LoraLayer)]
    held = {id(getattr(end, "base_layer", end).weight) for end in ends.values() if end is not None}
    if adapted and len(held) == 1:
        got = f"{source.name}, an adapter on the {' and the '.join(adapted)} of a model that has one weight for both"
        expected = "an adapter on other layers, or a base model with tie_word_embeddings: false"
        raise InputError(ARGUMENT, got, expected, "Serve base and adapter without merging.")


def _merged(model: AdaptedModel, source: Source) -> Any:
    """Return the merged model. PEFT refuses some kinds of adapters, each with its own type of error."""
    try:
        return model.model.merge_and_unload()
    except Exception as error:
        options = refused_options(json.loads((source.adapter / CONFIG_FILE).read_text(encoding="utf-8")))
        kind = "".join(f" with {name}: {json.dumps(value)}" for name, value in options.items())
        raise InputError(
            ARGUMENT,
            f"{source.name}, an adapter{kind} that PEFT cannot merge ({in_one_line(error)})",
            "an adapter whose change is a part of the weights",
            "Serve base and adapter without merging.",
        ) from error


def _write(model: AdaptedModel, merged: Any, base: Path, out: Path, check: Callable[[Path], int]) -> int:
    """Write a new folder under another name first, and return what `check` returns for its weights.

    What reads images for the model comes from `base`. An empty folder is filled: a shell may be in it, or a volume
    there.
    """
    fill = out.exists()
    partial = out / _PARTIAL if fill else out.with_name(f".{out.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)  # of a merge that was killed
    try:
        partial.mkdir(parents=True)
        # Packed weights would be left out of the files' own format: Transformers 5.12 does not pack them again.
        merged.save_pretrained(partial, save_original_format=not model.unpacked)
        _settings(model.defaults).to_json_file(partial / "generation_config.json", keys_to_pop=["compile_config"])
        _share_weights(partial)
        checked = check(partial)
        model.tokenizer.save_pretrained(partial)
        for name in _PROCESSORS:
            if (base / name).is_file():
                shutil.copyfile(base / name, partial / name)
        if not fill:
            partial.rename(out)
            return checked
        for path in list(partial.iterdir()):
            path.rename(out / path.name)
        return checked
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_whole(merged: Any, written: Path) -> None:
    """Require that a model's files have as many values as the model. Raises LorarlError if some were left out."""
    there = sum(math.prod(tensor.stored.shape) for tensor in stored_weights(written).values())
    if there < (wanted := sum(parameter.numel() for parameter in merged.parameters())):
        raise LorarlError(
            f"Transformers left weights out of the merged model's files: they have {there:,} of {wanted:,} values. "
            "Nothing was written. Serve base and adapter without merging."
        )


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
