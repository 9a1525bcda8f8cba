"""Megatron's attention and rotary positions over packed sequences with shared prompts: see `packing.Packing`.

To Megatron a packing is one sequence of T tokens. Only two of its parts have to know better, and they are wrapped: the rotary
embedding gives every token the angles of its position in its own sequence, and core attention lets every segment see its prompt's
keys and its own. Both find the packing of the micro-batch in one `Current`.

Shape suffixes: T tokens of the packing, K keys, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding_bag, scaled_dot_product_attention

from lorarl_trainer.samples.packing import Packing


def on_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Bring an array to the device without waiting for what the device is at."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Rows:
    """Rows to take from a matrix, in any order and as often as one likes: `rows(matrix)` is `matrix[index]`, differentiable.

    A row that is taken several times gets the sum of its gradients, in float32 and always in the same order.
    """

    def __init__(self, index: np.ndarray, of: int, device: torch.device) -> None:
        """`index` points into a matrix of `of` rows."""
        self.identity = np.array_equal(index, np.arange(of))
        self.index = on_device(index, device)
        self.order = on_device(np.argsort(index, kind="stable"), device)
        self.ends = on_device(np.concatenate([[0], np.cumsum(np.bincount(index, minlength=of))]), device)

    def __call__(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the rows of `matrix`, [of, ...]."""
        if self.identity:
            return matrix
        taken: torch.Tensor = _TakeRows.apply(matrix, self)
        return taken

    def summed(self, taken: torch.Tensor) -> torch.Tensor:
        """Return for each row of the matrix the sum of the rows that were taken from it, [of, ...]."""
        # A bag a row of the matrix, of the places that it was taken to. Unlike index_add_, it adds up in float32 and without a race.
        sums = embedding_bag(
            self.order, taken.reshape(len(self.order), -1), self.ends, mode="sum", include_last_offset=True
        )
        return sums.view(-1, *taken.shape[1:])


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, rows: Rows) -> torch.Tensor:
        ctx.rows = rows
        return matrix.index_select(0, rows.index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.rows.summed(gradient), None


@dataclass(frozen=True)
class Segments:
    """A packing's segments on the device, as attention kernels want them."""

    positions: torch.Tensor
    longest_sequence: int
    keys: Rows
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, packing: Packing, device: torch.device) -> Segments:
        """Bring a packing's segments to the device."""
        return cls(
            positions=on_device(packing.positions, device),
            longest_sequence=int(packing.positions.max()) + 1,
            keys=Rows(packing.keys, len(packing.tokens), device),
            query_ends=on_device(packing.query_ends, device),
            key_ends=on_device(packing.key_ends, device),
            longest_query=int(np.diff(packing.query_ends).max()),
            longest_key=int(np.diff(packing.key_ends).max()),
        )


class Current:
    """Holds the segments of the micro-batch whose forward or backward pass (which may recompute the forward) is running.

    Attributes:
        segments: of the micro-batch.
        angles: cosines and sines of its tokens' rotary angles, [T, D / 2] each.
    """

    segments: Segments | None = None
    angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def get(self) -> Segments:
        """Return them."""
        assert self.segments is not None, "set before the model is called"
        return self.segments


class PackedRotary(torch.nn.Module):
    """Stands in for Megatron's `RotaryEmbedding`: the angles at the packing's positions."""

    def __init__(self, rotary: torch.nn.Module, current: Current) -> None:
        super().__init__()
        self._rotary, self._current = rotary, current

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        """Return the longest sequence of the packing, however many tokens the packing has."""
        return self._current.get().longest_sequence

    def forward(self, length: int, **_: Any) -> torch.Tensor:
        """Return the angles, [T, 1, 1, D]."""
        angles: torch.Tensor = self._rotary(length)[self._current.get().positions]
        half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
        self._current.angles = half.cos(), half.sin()
        return angles


class PackedAttention(torch.nn.Module):
    """Stands in for Megatron's core attention: every segment's queries over its prompt's keys and its own."""

    def __init__(self, scale: float, current: Current) -> None:
        super().__init__()
        self._scale, self._current = scale, current

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the attention's output, [T, 1, A * D], from query [T, 1, A, D], key and value [T, 1, G, D]."""
        segments = self._current.get()
        keys_K_G_D, values_K_G_D = segments.keys(key[:, 0]), segments.keys(value[:, 0])
        return self.attend(query[:, 0], keys_K_G_D, values_K_G_D).reshape(query.shape[0], 1, -1)

    def attend(self, query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor) -> torch.Tensor:
        """Return the output, [T, A, D], given each segment's keys and values one after another."""
        kernel = _attend_flash if query_T_A_D.is_cuda and query_T_A_D.dtype != torch.float32 else _attend_by_segment
        return kernel(query_T_A_D, key_K_G_D, value_K_G_D, self._current.get(), self._scale)


def unpackable(model: torch.nn.Module) -> list[str]:
    """Return what a Megatron GPT model has that packings are not made for; nothing where they fit."""
    config: Any = model.config
    kinds = {type(module.core_attention).__name__ for module in model.modules() if hasattr(module, "core_attention")}
    own = sorted(kinds - {"TEDotProductAttention", "DotProductAttention"})
    found = {
        f"positions of type {model.position_embedding_type}": model.position_embedding_type != "rope",
        "a sliding window": config.window_size is not None,
        "attention sinks": config.softmax_type != "vanilla",
        "attention dropout": config.attention_dropout > 0,
        "latent attention": config.multi_latent_attention,
        f"attention of its own, {', '.join(own)}": own,
    }
    return [what for what, there in found.items() if there]


def pack_attention(model: torch.nn.Module) -> Current:
    """Make a Megatron GPT model that packings fit take them; return where to put the current one."""
    config: Any = model.config
    current = Current()
    model.rotary_pos_emb = PackedRotary(model.rotary_pos_emb, current)
    scale = config.softmax_scale if config.softmax_scale is not None else config.kv_channels**-0.5
    for module in model.modules():
        if hasattr(module, "core_attention"):
            module.core_attention = PackedAttention(scale, current)
    return current


def _attend_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scale: float
) -> torch.Tensor:
    result = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        segments.query_ends,
        segments.key_ends,
        segments.longest_query,
        segments.longest_key,
        0.0,
        True,
        False,
        scale=scale,
    )
    output: torch.Tensor = result[0]
    return output


def _attend_by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scale: float
) -> torch.Tensor:
    """Attend segment by segment: for fp32 and the CPU, for which there is no kernel, and what the GPU's is compared with."""
    ends = zip(segments.query_ends.tolist(), segments.key_ends.tolist(), strict=True)
    outputs, (query_start, key_start) = [], next(ends)
    for query_end, key_end in ends:
        q, k, v = (
            t.transpose(0, 1) for t in (query[query_start:query_end], key[key_start:key_end], value[key_start:key_end])
        )
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril_(k.shape[1] - q.shape[1])
        outputs.append(scaled_dot_product_attention(q, k, v, visible, scale=scale, enable_gqa=True).transpose(0, 1))
        query_start, key_start = query_end, key_end
    return torch.cat(outputs)
