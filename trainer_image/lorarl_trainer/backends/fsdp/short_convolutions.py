"""Short convolutions over packed sequences with shared prompts.

Such a layer sees a few tokens before each: in a packing, those of its own sequence, of which the prompt has the first.
So a prompt is computed once for all its completions here too.

Shape suffixes: T tokens of the packing, H hidden size, L taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from lorarl_trainer.backends.fsdp.attention import Current
from lorarl_trainer.kernels.packed import Segments


def see_own_tokens(
    mixer: Any, forward: Any, current: Current, hidden_states: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Return what `forward` of Transformers' `Lfm2ShortConv` makes of each sequence, [1, T, H], or of rows without one.

    Args:
        mixer: the module.
        forward: its method, which knows no packings.
        current: where the packing is, if there is one.
        hidden_states: [1, T, H].
        options: of the method.
    """
    current.calls += 1
    if current.segments is None:
        rows: torch.Tensor = forward(hidden_states, **options)
        return rows
    before, after, inputs = mixer.in_proj(hidden_states[0]).chunk(3, dim=-1)
    mixed = convolved((before * inputs)[None], mixer.conv.weight[:, 0], current.segments)[0]
    output: torch.Tensor = mixer.out_proj(after * mixed.to(inputs.dtype))
    return output[None]


def convolved(values: torch.Tensor, weight_H_L: torch.Tensor, segments: Segments | None) -> torch.Tensor:
    """Return the sum over each token's last L values, each times its tap's weight, in fp32.

    `values`: of a packing, [1, T, H]; of rows, [B, T, H], without one.
    """
    *earlier, own = weight_H_L.float().unbind(-1)
    total = values.float() * own
    for steps, tap in enumerate(reversed(earlier), start=1):
        total = total + _before(values, steps, segments).float() * tap
    return total


def _before(values: torch.Tensor, steps: int, segments: Segments | None) -> torch.Tensor:
    """Return the values of the token so many places before each in its sequence; zeros where it has none."""
    if segments is None:
        return pad(values, (0, 0, steps, 0))[:, : values.shape[1]]
    return segments.before(steps)(pad(values[0], (0, 0, 0, 1)))[None]
