"""The layers of Mamba-2 over packed sequences with shared prompts.

Such a layer has two kinds of memory. Its convolution sees a few tokens before each: in a packing, those of its own
sequence. Its state is of all tokens before, so the scan alone gets each sequence as a row for itself. A prompt is
computed once for all its completions in everything but the scan.

Shape suffixes: T tokens of the packing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import silu

from lorarl_trainer.backends.fsdp.attention import Current
from lorarl_trainer.backends.fsdp.short_convolutions import convolved
from lorarl_trainer.kernels.packed import Segments
from lorarl_trainer.kernels.state_space import scan, step_sizes


def take_own_scan(mixer: Any) -> None:
    """Let a module of Transformers' for such a layer compute with lorarl's scan.

    Transformers would take its own in torch, or kernels of mamba-ssm if someone has installed them.
    """
    mixer.between = partial(_between, mixer)
    mixer.forward = partial(see_own_sequences, mixer, mixer.forward, Current())


def see_own_sequences(
    mixer: Any, forward: Any, current: Current, hidden_states: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Return what the layer makes of each sequence of a packing, [1, T, hidden]; of rows, [B, T, hidden], without one.

    Args:
        mixer: the module, which `take_own_scan` has seen.
        forward: its method, which knows no packings.
        current: where the packing is, if there is one.
        hidden_states: [1, T, hidden], or [B, T, hidden].
        options: of the method: a cache, and a mask of what is padded on the left. Training has neither.
    """
    current.calls += 1
    output: torch.Tensor = mixer.out_proj(mixer.between(mixer.in_proj(hidden_states), current.segments))
    return output


def _between(mixer: Any, projected: torch.Tensor, segments: Segments | None) -> torch.Tensor:
    """Return the input of the layer's last projection, given the output of its first."""
    gate, inputs, steps = projected.split([mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], dim=-1)
    total = convolved(inputs, mixer.conv1d.weight[:, 0], segments)
    if mixer.conv1d.bias is not None:
        total = total + mixer.conv1d.bias.float()
    mixed = torch.cat([silu(total).to(inputs.dtype), steps], dim=-1)
    of_rows = partial(_read, mixer)
    read = of_rows(mixed) if segments is None else segments.by_sequence(of_rows, mixed[0])[None]
    normed: torch.Tensor = mixer.norm(read, gate)
    return normed


def _read(mixer: Any, mixed: torch.Tensor) -> torch.Tensor:
    """Return what tokens read of their sequences' states, [B, S, heads * values of one], in the model's precision.

    `mixed`: the convolution's output, and the raw sizes of steps, [B, S, ...].
    """
    of_group = mixer.n_groups * mixer.ssm_state_size
    values, writes, reads, steps = mixed.split([mixer.intermediate_size, of_group, of_group, mixer.num_heads], dim=-1)
    output, _ = scan(
        values.unflatten(-1, (mixer.num_heads, -1)),
        step_sizes(steps, mixer.dt_bias),
        -mixer.A_log.float().exp(),
        writes.unflatten(-1, (mixer.n_groups, -1)),
        reads.unflatten(-1, (mixer.n_groups, -1)),
        mixer.D,
    )
    return output.flatten(2).to(mixed.dtype)
