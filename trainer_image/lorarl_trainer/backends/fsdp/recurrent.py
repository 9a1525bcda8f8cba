"""Layers that keep a state in the place of keys and values, over packed sequences with shared prompts.

Such a layer would carry its state from one sequence of a packing into the next. So a delta net gets each sequence as a
row for itself, with its prompt, and what it makes of the tokens goes back to their places in the packing. The prompt of
several completions is computed for each of them, in these layers alone. A short convolution needs no such rows
(`short_convolutions.py`), and a Mamba layer has them for its scan alone (`state_spaces.py`).

Shape suffixes: T tokens of the packing, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from lorarl_trainer.backends.fsdp.attention import Current
from lorarl_trainer.backends.fsdp.delta_rule import chunk_gated_delta_rule
from lorarl_trainer.backends.fsdp.short_convolutions import see_own_tokens
from lorarl_trainer.backends.fsdp.state_spaces import see_own_sequences, take_own_scan
from lorarl_trainer.models.layer_kinds import LAYER_KINDS, Rule


def mixers(layers: Iterable[torch.nn.Module]) -> Iterator[tuple[Rule, Any]]:
    """Yield the modules of decoder layers that keep a state, with what they compute."""
    for layer in layers:
        for kind in LAYER_KINDS.values():
            if (mixer := getattr(layer, kind.mixer, None)) is not None:
                yield kind.rule, mixer


def let_see_sequences(layers: Iterable[torch.nn.Module], current: Current) -> None:
    """Let the layers that keep a state see one sequence of the current packing at a time."""
    for rule, mixer in mixers(layers):
        mixer.forward = partial(_SEES[rule], mixer, mixer.forward, current)


def take_own_rules(layers: Iterable[torch.nn.Module]) -> None:
    """Let layers that keep a state compute with lorarl's rules, where it has its own.

    Transformers would take its own in torch, or kernels of fla or mamba-ssm if someone has installed them. Those of
    fla-core 0.6.0 take no fp32, and on an H200 their backward pass refuses Triton 3.4 to 3.7.0 because it computes
    wrong gradients.
    """
    for rule, mixer in mixers(layers):
        if rule == "gated_delta":
            mixer.chunk_gated_delta_rule = chunk_gated_delta_rule
        elif rule == "state_space":
            take_own_scan(mixer)


def _by_sequence(mixer: Any, forward: Any, current: Current, hidden_states: torch.Tensor, **options: Any) -> Any:
    """Return what `forward` makes of each sequence, [1, T, H], from hidden states [1, T, H]; of rows without a packing.

    `mixer`: the module that it is a method of.
    """
    current.calls += 1
    segments = current.segments
    if segments is None:
        return forward(hidden_states, **options)
    return segments.by_sequence(partial(forward, **options), hidden_states[0])[None]


_SEES: dict[Rule, Any] = {
    "gated_delta": _by_sequence,
    "short_convolution": see_own_tokens,
    "state_space": see_own_sequences,
}
"""How a layer sees the sequences of a packing."""
