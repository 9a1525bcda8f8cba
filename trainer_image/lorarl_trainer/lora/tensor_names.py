"""The names of tensors in a file of a PEFT adapter, as everything that reads such files takes them. Needs no torch.

PEFT writes `base_model.model.` before the base model's own names and leaves its name for the adapter out. Other
programs write the names that their modules have in memory. What a wrapper adds to them is left out here; any other
difference is one that the reader's model decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.files import MAGNITUDE

PEFT_PREFIX = "base_model.model."
"""PEFT's prefix of the base model's own names."""
EARLIER_NAMES = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
"""What names of a model that sees began with before Transformers 4.52, and begin with since. Files kept the former."""
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Modules that torch.compile, FSDP and activation checkpointing put around a module."""
_MATRIX = re.compile(r"(\.lora_\w+)\.[^.]+(\.(?:weight|bias))$")
_WITHOUT_WEIGHT = re.compile(rf"(\.(?:lora_embedding_[AB]|{MAGNITUDE}))(?:\.[^.]+)*$")
_SAVED = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")


def own_name(stored: str) -> str:
    """Return a tensor's name as the base model's layer and PEFT's matrix: model.layers.0.mlp.up_proj.lora_A.weight."""
    parts = [part for part in stored.split(".") if part not in _WRAPPERS]
    while parts[:2] == ["base_model", "model"] or parts[:1] == ["module"]:  # the second: DistributedDataParallel
        parts = parts[2:] if parts[0] == "base_model" else parts[1:]
    name = _SAVED.sub("", ".".join(parts))
    for earlier, now in EARLIER_NAMES.items():
        name = now + name.removeprefix(earlier) if name.startswith(earlier) else name
    return _WITHOUT_WEIGHT.sub(r"\1", _MATRIX.sub(r"\1\2", name))


def by_own_name(stored: Iterable[str], field: str) -> dict[str, str]:
    """Return the names in a file by their own names.

    Raises:
        InputError: naming `field`, if two of them are one tensor.
    """
    found: dict[str, str] = {}
    for name in sorted(stored):
        if (other := found.setdefault(own_name(name), name)) != name:
            raise InputError(
                field,
                f"an adapter with {other} and {name}",
                "one tensor for each matrix of a layer",
                "Save one adapter alone, with PEFT's save_pretrained.",
            )
    return found


def misfit(field: str, unused: Sequence[str], missing: Sequence[str], base: str, hint: str) -> InputError | None:
    """Return what is wrong with an adapter's tensors, by one name that is there and one that was expected,
    each the first by the alphabet.

    Args:
        field: the adapter's option or path in the manifest.
        unused: names in the file that belong to no layer of the base model.
        missing: own names of tensors that the adapter should have.
        base: the base model, for people.
        hint: what to do.
    """
    if not unused and not missing:
        return None
    got = f"an adapter with {min(unused)}{_more(unused)}, which {base} has no place for" if unused else ""
    if missing and not unused:
        got = f"an adapter without {PEFT_PREFIX}{min(missing)}{_more(missing)}"
    expected = (
        f"{PEFT_PREFIX}{min(missing)}" if unused and missing else "one tensor for each matrix of the adapted layers"
    )
    return InputError(field, got, expected, hint)


def _more(names: Collection[str]) -> str:
    return f" and {len(names) - 1:,} more" if len(names) > 1 else ""
