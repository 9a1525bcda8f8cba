"""A frozen linear layer of Megatron's with its adapters in few products, whole or split over tensor-parallel ranks.

Megatron-Bridge adds an adapter's output to its layer's in separate passes over the widest activations there are
(multiply by the scale, join the parts, add). Here a product with B adds into the frozen layer's output, forward and
backward, and the parts of a fused layer (q, k, v; gate, up) are one adapter with a block-diagonal B.

Over several ranks (M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, with sequence parallelism, arXiv:2205.05198) a
layer is split by its outputs (linear_qkv, linear_fc1) or by its inputs (linear_proj, linear_fc2). Outside, each rank
has only its share of the tokens. The bridge splits A of the former and B of the latter by rows, too: `whole_parameters`
gathers these, and sums their gradients. So each rank computes what the engine's layers compute, rounded alike.

Shape suffixes: T tokens, S of them on this rank, I inputs, O outputs, each perhaps this rank's share, R rank of the
adapter (of all parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_trainer.backends.megatron.bridge_lora import adapters_of
from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.own_heads import WHOLE, OwnHeads

LowRank = tuple[torch.Tensor, torch.Tensor]
"""A of all parts, [R, I], and block-diagonal B, [O, R]."""
_LINEAR = {
    "TELayerNormColumnParallelLinear",
    "TEColumnParallelLinear",
    "TERowParallelLinear",
    "ColumnParallelLinear",
    "RowParallelLinear",
}
WRAPPERS = {"LoRALinear", "LoRALinearSplitQKV", "LoRALinearSplitFC1UpGate"}


class FusedLinear:
    """The parameters of such a layer and its adapters, the norm before it, and its products.

    Attributes:
        ranks: who shares the layer.
        weight: this rank's share, [O, I].
        norm, eps: weight and epsilon of the norm before the layer, if there is one.
    """

    def __init__(
        self,
        module: Any,
        ranks: Ranks,
        widths: Sequence[int] = (),
        parts: Sequence[str] = (),
        norm: Any = None,
        eps: float = 0.0,
        own: OwnHeads | None = None,
    ) -> None:
        """A layer with `parts` is split by its outputs, another one by its inputs (collective with `own`).

        `widths` are the outputs of the parts in each of the layer's groups. `own` are this rank's outputs of linear_qkv
        if they are not Megatron's share.
        """
        self._wrapper = module if type(module).__name__ in WRAPPERS else None
        layer = module if self._wrapper is None else module.to_wrap
        self.ranks, self._by_outputs, self._own = ranks, bool(parts), own
        self.weight, self._bias, self.eps = layer.weight, layer.bias, eps
        if own is not None:
            self.weight = own.take(WHOLE, ranks.gather(layer.weight.detach()))
            if layer.bias is not None and layer.bias.numel():
                self._bias = own.take(WHOLE, ranks.gather(layer.bias.detach()))
        self.norm = getattr(layer, "layer_norm_weight", getattr(norm, "weight", None))
        adapters: list[Any] = []
        if self._wrapper is not None:
            split = isinstance(module.adapter, torch.nn.ModuleDict)
            adapters = [module.adapter[f"adapter_{part}"] for part in parts] if split else [module.adapter]
        self._group_width = sum(widths)
        self._adapters, self._parts, self._columns, first, rank = [], [], [], 0, 0
        for index, adapter in enumerate(adapters):
            width = widths[index] if len(adapters) > 1 else 0
            if hasattr(adapter, "linear_in"):  # a part may be left out
                self._adapters.append(adapter)
                self._parts.append(parts[index] if len(adapters) > 1 else WHOLE)
                self._columns.append((slice(first, first + width), slice(rank, rank + adapter.dim)))
                self.scale = adapter.alpha / adapter.dim
                rank += adapter.dim
            first += width
        self._rank, self._joined = rank, len(adapters) > 1

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return this rank's A of each part, then B of each; nothing where the adapters are switched off."""
        if self._wrapper is None or not self._wrapper._adapter_enabled:
            return []
        return [a.linear_in.weight for a in self._adapters] + [a.linear_out.weight for a in self._adapters]

    def gathers(self, index: int) -> bool:
        """Return whether ranks gather one of the `parameters`: A of a layer split by its outputs, B of another one."""
        return (index < len(self._adapters)) == self._by_outputs or self._own is not None

    def taken(self, index: int, whole: torch.Tensor) -> torch.Tensor:
        """Return what the product takes of one of the `parameters` that ranks gather."""
        is_down = index < len(self._adapters)
        return (
            whole if self._own is None or is_down else self._own.take(self._parts[index - len(self._adapters)], whole)
        )

    def join(self, parameters: Sequence[torch.Tensor]) -> LowRank | tuple[()]:
        """Join the adapters of the parts, as `whole_parameters` returns them, into one."""
        if not parameters:
            return ()
        downs, ups = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        if not self._joined:
            return downs[0], ups[0]
        up_O_R = ups[0].new_zeros(self.weight.shape[0], self._rank)
        for view, up in zip(self._blocks(up_O_R), ups, strict=True):
            view.copy_(up.view(view.shape))
        return torch.cat(list(downs)), up_O_R

    def _split(self, by_down_R_I: torch.Tensor, by_up_O_R: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of the parts' adapters, in the order of `join`, given the joined adapter's."""
        if not self._joined:
            return [by_down_R_I, by_up_O_R]
        ups = [view.reshape(-1, view.shape[-1]) for view in self._blocks(by_up_O_R)]
        return [*by_down_R_I.split([up.shape[1] for up in ups]), *ups]

    def _blocks(self, up_O_R: torch.Tensor) -> list[torch.Tensor]:
        groups = up_O_R.view(-1, self._group_width, self._rank)
        return [groups[:, rows, columns] for rows, columns in self._columns]

    def apply(self, x: torch.Tensor, adapter: LowRank | tuple[()]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return W x + b + scale B A x, and scale A x (collective).

        If split by its outputs, the layer takes x [S, I] to [T, O], otherwise [T, I] to [S, O]. The adapter's product
        comes first, and is summed over the ranks along with the layer's, as in the engine's layers.
        """
        x_T_I = self.ranks.gather(x) if self._by_outputs else x
        bias_O = self._bias if self._bias is not None and self._bias.numel() else None  # Transformer Engine's is empty
        low_T_R = None
        if adapter:
            low_T_R = (x_T_I @ adapter[0].t()).mul_(self.scale)
            output_T_O = linear(low_T_R, adapter[1], bias_O).addmm_(x_T_I, self.weight.t())
        else:
            output_T_O = linear(x_T_I, self.weight, bias_O)
        return output_T_O if self._by_outputs else self.ranks.scatter_sum(output_T_O), low_T_R

    def of_all_tokens(self, by_output: torch.Tensor) -> torch.Tensor:
        """Return the gradient by the outputs of all tokens, [T, O], given the one by `apply`'s output (collective)."""
        return by_output if self._by_outputs else self.ranks.gather(by_output)

    def apply_backward(
        self, by_output_T_O: torch.Tensor, adapter: LowRank | tuple[()]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients by x and by A x, of the tokens that `apply` was given (collective)."""
        by_x = self._summed(by_output_T_O @ self.weight)
        if not adapter:
            return by_x, None
        by_low = self._summed((by_output_T_O @ adapter[1]).mul_(self.scale))
        return by_x.addmm_(by_low, adapter[0]), by_low

    def _summed(self, by_input: torch.Tensor) -> torch.Tensor:
        return self.ranks.scatter_sum(by_input) if self._by_outputs else by_input

    def gradients(
        self,
        x: torch.Tensor,
        low_T_R: torch.Tensor | None,
        by_output_T_O: torch.Tensor,
        by_low: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """Return the gradients of what `join` was given: of gathered parameters, this rank's part of the sum."""
        if low_T_R is None or by_low is None:
            return []
        return self._split(by_low.t() @ x, by_output_T_O.t() @ low_T_R)


def whole_parameters(linears: Sequence[FusedLinear], ranks: Ranks) -> list[Sequence[torch.Tensor]]:
    """Return the parameters of each layer as its products take them (collective): differentiable, in one message."""
    shares = [layer.parameters() for layer in linears]
    if ranks.size == 1 or not any(shares):
        return list(shares)
    places = [
        (number, index)
        for number, layer in enumerate(linears)
        for index in range(len(shares[number]))
        if layer.gathers(index)
    ]
    found: list[list[torch.Tensor]] = [list(share) for share in shares]
    whole = _Whole.apply(ranks, *(found[number][index] for number, index in places))
    for (number, index), parameter in zip(places, whole, strict=True):
        found[number][index] = linears[number].taken(index, parameter)
    return list(found)


class _Whole(torch.autograd.Function):
    """Parameters whose rows the ranks share, whole. Each rank's gradients of them are parts of a sum."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *shares: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.ranks = ranks
        flat = ranks.gather(torch.cat([share.flatten() for share in shares])[None])
        parts = flat.split([share.numel() for share in shares], dim=1)
        return tuple(part.reshape(-1, share.shape[1]) for part, share in zip(parts, shares, strict=True))

    @staticmethod
    def backward(ctx: Any, *by_whole: torch.Tensor) -> Any:
        size = ctx.ranks.size
        (flat,) = ctx.ranks.scatter_sum(torch.cat([gradient.reshape(size, -1) for gradient in by_whole], dim=1))
        parts = flat.split([gradient.numel() // size for gradient in by_whole])
        return None, *(part.view(-1, of.shape[1]) for part, of in zip(parts, by_whole, strict=True))


def is_plain_linear(module: Any) -> bool:
    """Return whether a layer is W x + b, and its adapters B A x, and nothing else."""
    if type(module).__name__ not in WRAPPERS:
        return type(module).__name__ in _LINEAR
    return type(module.to_wrap).__name__ in _LINEAR and all(
        isinstance(adapter.activation, torch.nn.Identity) and isinstance(adapter.dropout, torch.nn.Identity)
        for adapter in adapters_of(module)
        if hasattr(adapter, "linear_in")
    )
