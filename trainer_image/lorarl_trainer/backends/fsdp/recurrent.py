"""Layers that keep a state in the place of keys and values, over packed sequences with shared prompts.

Such a layer would carry its state from one sequence of a packing into the next. So it gets each sequence as a row for
itself, with its prompt, and what it makes of the tokens goes back to their places in the packing. The prompt of several
completions is computed for each of them, in these layers alone. A short convolution needs no rows for itself
(`short_convolutions.py`).

Shape suffixes: T tokens of the packing, K keys of all its segments, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from lorarl_trainer.backends.fsdp.attention import Current
from lorarl_trainer.backends.fsdp.delta_rule import chunk_gated_delta_rule
from lorarl_trainer.backends.fsdp.short_convolutions import see_own_tokens
from lorarl_trainer.models.layer_kinds import LAYER_KINDS


def let_see_sequences(layers: Iterable[torch.nn.Module], current: Current) -> None:
    """Let the layers that keep a state see one sequence of the current packing at a time."""
    for layer in layers:
        for name, kind in LAYER_KINDS.items():
            if (mixer := getattr(layer, kind.mixer, None)) is not None:
                by_itself = partial(see_own_tokens, mixer) if name == "conv" else _by_sequence
                mixer.forward = partial(by_itself, mixer.forward, current)


def take_own_rule(layers: Iterable[torch.nn.Module]) -> None:
    """Let delta nets compute with lorarl's rule.

    Transformers would take its own in torch, or fla's kernels if someone has installed them. Those of fla-core 0.6.0
    take no fp32, and on an H200 their backward pass refuses Triton 3.4 to 3.7.0 because it computes wrong gradients.
    """
    for layer in layers:
        if (mixer := getattr(layer, "linear_attn", None)) is not None:
            mixer.chunk_gated_delta_rule = chunk_gated_delta_rule


def _by_sequence(forward: Any, current: Current, hidden_states: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return what `forward` makes of each sequence, [1, T, H], from hidden states [1, T, H]; of rows without a packing.

    A segment's keys are its whole sequence: its prompt, then its own tokens.
    """
    current.calls += 1
    segments = current.segments
    if segments is None:
        rows: torch.Tensor = forward(hidden_states, **options)
        return rows
    keys_K_H = segments.keys(hidden_states[0])
    sequences = segments.extents.sequences
    made = [
        forward(keys_K_H.index_select(0, batch.keys).view(batch.count, -1, keys_K_H.shape[-1]), **options).flatten(0, 1)
        for batch in sequences.each
    ]
    return torch.cat(made).index_select(0, sequences.places)[None]
