"""Megatron's attention and rotary positions over packed sequences with shared prompts: see `samples.packing.Packing`.

To Megatron a packing is one sequence of T tokens. Only two of its parts must know better, and they are wrapped: the
rotary embedding gives every token the angles of its position in its own sequence, and core attention lets every segment
see its prompt's keys and its own. Both find the packing of the micro-batch in one `Current`.

Shape suffixes: T tokens of the packing, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lorarl_trainer.backends.megatron.expert_rows import Trip
from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.kernels.packed import Segments, attend_segments


class Current:
    """The micro-batch whose forward or backward pass (which may recompute the forward) is running.

    Attributes:
        angles: cosines and sines of its tokens' rotary angles, [T, D / 2] each.
        routing: the experts of its tokens in the rollout, see `MicroBatch.routing`.
        trips: of the rows of each layer's tokens, if they are known ahead, see `rows_ahead`.
    """

    def __init__(self) -> None:
        self.segments: Segments | None = None
        self.angles: tuple[torch.Tensor, torch.Tensor] | None = None
        self.routing: torch.Tensor | None = None
        self.trips: Sequence[Trip] | None = None

    def get(self) -> Segments:
        """Return the segments."""
        assert self.segments is not None, "set before the model is called"
        return self.segments

    @contextmanager
    def being(self, batch: MicroBatch, trips: Sequence[Trip] | None) -> Iterator[None]:
        """Be this micro-batch in a forward pass, and until the next one if a backward pass follows."""
        before = vars(self).copy()
        self.segments, self.routing, self.trips = batch.segments, batch.routing, trips
        yield
        if not torch.is_grad_enabled():  # the pass before may still have its backward pass
            vars(self).update(before)


class PackedRotary(torch.nn.Module):
    """Stands in for Megatron's `RotaryEmbedding`: the angles at the packing's positions."""

    def __init__(self, rotary: torch.nn.Module, current: Current, dtype: torch.dtype) -> None:
        super().__init__()
        self._rotary, self._current, self._dtype = rotary, current, dtype

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        """Return the longest sequence of the packing, however many tokens the packing has."""
        return self._current.get().longest_sequence

    def forward(self, length: int, **_: Any) -> torch.Tensor:
        """Return the angles, [T, 1, 1, D]."""
        angles: torch.Tensor = self._rotary(length)[self._current.get().positions]
        half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
        # vLLM and transformers keep cosines and sines in the model's precision. Ours must be the same numbers.
        self._current.angles = half.cos().to(self._dtype).float(), half.sin().to(self._dtype).float()
        return angles


class PackedAttention(torch.nn.Module):
    """Stands in for Megatron's core attention: every segment's queries over its prompt's keys and its own."""

    def __init__(self, scale: float, current: Current) -> None:
        """`scale` multiplies the scores."""
        super().__init__()
        self.scale, self._current = scale, current

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the attention's output, [T, 1, A * D], from query [T, 1, A, D], key and value [T, 1, G, D]."""
        output = attend_segments(query[:, 0], key[:, 0], value[:, 0], self._current.get(), self.scale)
        return output.reshape(query.shape[0], 1, -1)


def unpackable(model: torch.nn.Module) -> list[str]:
    """Return what a Megatron GPT model has that packings are not made for; nothing if they fit."""
    config: Any = model.config
    kinds = {type(module.core_attention).__name__ for module in model.modules() if hasattr(module, "core_attention")}
    own = sorted(kinds - {"TEDotProductAttention", "DotProductAttention"})
    found = {
        f"positions of type {model.position_embedding_type}": model.position_embedding_type != "rope",
        "a sliding window": config.window_size is not None,
        "attention sinks": config.softmax_type != "vanilla",
        "attention dropout": config.attention_dropout > 0,
        "latent attention": config.multi_latent_attention,
        f"attention of type {', '.join(own)}": own,
    }
    return [what for what, there in found.items() if there]


def pack_attention(model: torch.nn.Module) -> Current:
    """Let a Megatron GPT model take packings; return where to put the current one."""
    config: Any = model.config
    current = Current()
    model.rotary_pos_emb = PackedRotary(model.rotary_pos_emb, current, config.params_dtype)
    scale = config.softmax_scale if config.softmax_scale is not None else config.kv_channels**-0.5
    for module in model.modules():
        if hasattr(module, "core_attention"):
            module.core_attention = PackedAttention(scale, current)
    return current
