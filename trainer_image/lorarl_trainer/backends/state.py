"""The training state in Hugging Face names: fp32 masters and AdamW's moments. It fits any parallel layout.

Random states are not part of it: dropout and sampling are seeded by the step, so a run resumes as if it had never
stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from lorarl_trainer.backends.layout import AdapterLayout, ConflictError
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.optimizer import MOMENTS, AdapterOptimizer
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.random_tensors import uniform

_MASTER = "master"


def new_adapter(
    model: AdaptedModel, layout: AdapterLayout, config: AdapterConfig, seed: int
) -> dict[str, torch.Tensor]:
    """Return a fresh adapter as PEFT makes one: A uniform in +-1/sqrt(inputs) (Kaiming with a = sqrt(5)), B zero.

    DoRA's row lengths are the base's.

    Each tensor has its own random stream, from the seed and its name, so every layout starts from the same adapter.
    """
    adapter = dict(model.row_lengths)
    for target in model.targets:
        for name in target.hf_names:
            rank, inputs = layout.shapes[f"{name}.lora_A.weight"]
            # A fused `lora` adapter has one A for all its parts. They share the first part's stream.
            stream = f"{seed}:{config.owner(target.hf_names[0], 'A')}"
            adapter[f"{name}.lora_A.weight"] = uniform((rank, inputs), 1 / math.sqrt(inputs), stream)
            adapter[f"{name}.lora_B.weight"] = torch.zeros(layout.shapes[f"{name}.lora_B.weight"])
    return adapter


def load_adapter(
    layout: AdapterLayout, optimizer: AdapterOptimizer, adapter: Mapping[str, torch.Tensor], field: str
) -> None:
    """Start from an adapter, with a fresh optimizer.

    Raises:
        InputError: naming `field`, if modules or shapes differ from the job's, or parts of a fused adapter disagree.
    """
    missing, foreign = sorted(set(layout.shapes) - set(adapter)), sorted(set(adapter) - set(layout.shapes))
    hint = "Set spec.adapter.targetModules to the adapter's modules."
    if missing:
        raise InputError(
            field,
            f"an adapter without {missing[0]} ({len(missing)} tensors missing)",
            f"{len(layout.shapes)} tensors",
            hint,
        )
    if foreign:
        raise InputError(
            field, f"an adapter with {foreign[0]} ({len(foreign)} such tensors)", "only the job's modules", hint
        )
    for name, shape in layout.shapes.items():
        if tuple(adapter[name].shape) != shape:
            raise InputError(
                field,
                f"{name} of shape {list(adapter[name].shape)}",
                f"{list(shape)}",
                "Use an adapter of this base model and spec.adapter.rank.",
            )
    try:
        masters = layout.scatter({name: tensor.float() for name, tensor in adapter.items()})
    except ConflictError as conflict:
        raise InputError(
            field, str(conflict), "one A for the parts of a fused layer", "Set spec.adapter.type: canonical_lora."
        ) from conflict
    optimizer.load([*masters, *(head.detach() for head in optimizer.heads.values())], {}, updates=0)


def gather_state(layout: AdapterLayout, optimizer: AdapterOptimizer) -> dict[str, torch.Tensor]:
    """Return the state's tensors, whole (collective: the other tensor-parallel workers call `help_gather_state`).

    They may be the optimizer's own.
    """
    tensors = {}
    for kind, values, heads in _parts(optimizer):
        tensors.update({f"{kind}.{name}": tensor for name, tensor in (layout.gather(values) | heads).items()})
    return tensors


def help_gather_state(layout: AdapterLayout, optimizer: AdapterOptimizer) -> None:
    """Take part in `gather_state`, and keep nothing of it (collective over the tensor-parallel workers)."""
    for _, values, _ in _parts(optimizer):
        layout.help_gather(values)


def _parts(optimizer: AdapterOptimizer) -> Iterator[tuple[str, list[torch.Tensor], dict[str, torch.Tensor]]]:
    """Yield the masters and each moment: one tensor per parameter, and those of the heads by name."""
    count = len(optimizer.values)
    kinds = {_MASTER: [master.detach() for master in optimizer.masters]}
    for kind, tensors in (kinds | {name: optimizer.moments(name) for name in MOMENTS}).items():
        yield kind, tensors[:count], dict(zip(optimizer.heads, tensors[count:], strict=True))


def load_state(
    layout: AdapterLayout, optimizer: AdapterOptimizer, tensors: Mapping[str, torch.Tensor], updates: int
) -> None:
    """Resume from what `gather_state` returned after so many updates, on any layout."""
    loaded: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        loaded.setdefault(kind, {})[name] = tensor

    def own(kind: str) -> list[torch.Tensor]:
        heads = [loaded[kind][name] for name in optimizer.heads]
        return [*layout.scatter(loaded[kind]), *heads]

    optimizer.load(own(_MASTER), {name: own(name) for name in MOMENTS}, updates)
