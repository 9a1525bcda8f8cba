"""The mixture of experts of a fused layer, on the parameters of Megatron's: see `fused_layer`, `lora.grouped_experts`.

Megatron keeps each expert's weights and adapters apart. Here the weights of a layer's experts move into one tensor, of
which Megatron's become views, and the adapters are put together for each pass: they are a thousandth of the layer.

Shape suffixes: T tokens, H hidden size, F an expert's inner size, E experts, I inputs and O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.expert_rows import Trip
from lorarl_trainer.backends.megatron.fused_linear import WRAPPERS, is_plain_linear
from lorarl_trainer.backends.stacked import Stacked
from lorarl_trainer.kernels.operations import rms_norm, rms_norm_backward
from lorarl_trainer.lora.grouped_experts import Adapter, choose_experts, compute_mixture, joined_adapter, weights_of


class FusedExperts:
    """The norm, the router and the experts of one layer."""

    def __init__(self, layer: Any, eps: float, compared: Compared, *, follows: bool, whole: bool = False) -> None:
        """Put the experts' weights together (collective if ranks share them). No rank shares a matrix with another.

        `compared` counts tokens that the rollout sent to other experts. If it `follows`, those are the token's here.
        If the weights are held `whole`, an engine can use those of all experts.
        """
        mixture, config = layer.mlp, layer.config
        self._ranks = ranks = Ranks.of(mixture.ep_group)
        experts = mixture.experts.local_experts
        self._norm, self._eps, self._router = layer.pre_mlp_layernorm.weight, eps, mixture.router.weight
        self._active, self._shares_of_all = config.moe_router_topk, config.moe_router_pre_softmax
        self._compared, self._follows = compared, follows
        self._recompute = config.recompute_granularity == "selective"
        holders = ranks if whole else None
        self._gate_up = _OfAllExperts([expert.linear_fc1 for expert in experts], ("gate", "up"), holders)
        self._down = _OfAllExperts([expert.linear_fc2 for expert in experts], (), holders)

    def weights(self) -> list[torch.Tensor]:
        """Return each expert's gate and up, [E, 2F, H], and down, [E, H, F]: those that are held here."""
        return [self._gate_up.held, self._down.held]

    def adapters(self) -> list[Stacked]:
        """Return the parameters of the experts' adapters that are computed with as one tensor."""
        return [stacked for layer in (self._gate_up, self._down) for stacked in (*layer.downs, *layer.ups)]

    def add(
        self, hidden_T_H: torch.Tensor, rollout_T_K: torch.Tensor | None, ahead: Trip | None = None
    ) -> torch.Tensor:
        """Return the hidden states with the mixture of them added, given each token's experts in the rollout.

        If those are followed, the rows' trip may be known ahead.
        """
        routes: list[_Route] = []  # made by the first pass, and taken by its recomputation
        if self._recompute and torch.is_grad_enabled():
            added: torch.Tensor = checkpoint(
                self._add, hidden_T_H, rollout_T_K, routes, ahead, use_reentrant=False, preserve_rng_state=False
            )
            return added
        return self._add(hidden_T_H, rollout_T_K, routes, ahead)

    def _add(
        self,
        hidden_T_H: torch.Tensor,
        rollout_T_K: torch.Tensor | None,
        routes: list[_Route],
        ahead: Trip | None,
    ) -> torch.Tensor:
        normed_T_H, residual_T_H = _Normed.apply(hidden_T_H, self._norm, self._eps)
        logits_T_E = linear(normed_T_H, self._router)
        if not routes:
            routes.append(self._route(logits_T_E.detach(), rollout_T_K, ahead))
        chosen_T_K, others = routes[0]
        weights_T_K = weights_of(logits_T_E, chosen_T_K, shares_of_all=self._shares_of_all)
        adapters = self._gate_up.adapter(), self._down.adapter()
        experts = self._gate_up.weight, self._down.weight, adapters
        mixed_T_H = compute_mixture(normed_T_H, weights_T_K, chosen_T_K, *experts, others)
        return residual_T_H + mixed_T_H

    def _route(self, logits_T_E: torch.Tensor, rollout_T_K: torch.Tensor | None, ahead: Trip | None) -> _Route:
        """Return where tokens go, given the experts that the rollout sent them to (collective if ranks share them)."""
        own_T_K = choose_experts(logits_T_E, self._active)
        chosen_T_K = own_T_K if ahead is None else ahead.chosen_T_K
        if rollout_T_K is not None:
            known_T_1 = rollout_T_K[:, :1] != torch.iinfo(rollout_T_K.dtype).max
            found_T_K = torch.where(known_T_1, rollout_T_K.long(), chosen_T_K)
            self._compared.add(own_T_K, found_T_K, known_T_1)
            chosen_T_K = found_T_K if self._follows else chosen_T_K
        if ahead is not None or self._ranks.size == 1:
            return _Route(chosen_T_K, ahead)
        return _Route(chosen_T_K, Trip(self._ranks, chosen_T_K, len(self._down.weight)))


class _Route(NamedTuple):
    """Each token's experts, [T, K], and the way to the ranks that have them if ranks share a layer's experts."""

    chosen_T_K: torch.Tensor
    others: Trip | None


class Compared:
    """How many tokens of how many the trainer's router would have sent to other experts, over all layers."""

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None  # other, all

    def add(self, own_T_K: torch.Tensor, rollout_T_K: torch.Tensor, known_T_1: torch.Tensor) -> None:
        """Add the tokens of a layer whose experts in the rollout are known. Their order means nothing."""
        other_T = (own_T_K.sort(-1).values != rollout_T_K.sort(-1).values).any(-1)
        sums = torch.stack([(other_T & known_T_1[:, 0]).sum(), known_T_1.sum()]).double()
        # What was `put` is on the CPU.
        self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums

    def take(self) -> tuple[float, float]:
        """Return both sums since the last call."""
        sums, self._sums = self._sums, None
        return (0.0, 0.0) if sums is None else (float(sums[0]), float(sums[1]))

    def put(self, sums: tuple[float, float]) -> None:
        """Continue from what `take` returned."""
        self._sums = torch.tensor(sums, dtype=torch.float64)


class _OfAllExperts:
    """One linear layer of every expert that this rank has.

    Attributes:
        weight: [E, O, I].
        held: with the experts of other ranks, if this one holds them for an engine.
        downs, ups: A and B of each part, by expert.
    """

    def __init__(self, layers: Sequence[Any], parts: Sequence[str], holders: Ranks | None) -> None:
        """`holders` are ranks of which each holds the experts of all (collective)."""
        wrappers = [layer if type(layer).__name__ in WRAPPERS else None for layer in layers]
        plain = [layer if wrapper is None else wrapper.to_wrap for layer, wrapper in zip(layers, wrappers, strict=True)]
        self.weight = self.held = torch.stack([layer.weight.detach() for layer in plain])
        if holders is not None and holders.size > 1:
            self.held = holders.gather(self.weight)
            self.weight = self.held.chunk(holders.size)[holders.rank]
        for layer, weight in zip(plain, self.weight, strict=True):
            layer.weight.data = weight
        self._wrapper = next((wrapper for wrapper in wrappers if wrapper is not None), None)
        split = self._wrapper is not None and isinstance(self._wrapper.adapter, torch.nn.ModuleDict)
        # By part, then by expert.
        adapters = [_adapters_of(part, wrappers) for part in parts] if split else [_adapters_of(None, wrappers)]
        self.downs, self.ups = list[Stacked](), list[Stacked]()
        example = next(filter(None, chain(*adapters)), None)
        if example is not None:
            self._scale = example.alpha / example.dim
            # Where an expert has no adapter.
            no_down = self.weight.new_zeros(example.dim, self.weight.shape[2])
            no_up = self.weight.new_zeros(self.weight.shape[1] // len(adapters), example.dim)
            # Looked up once: in each pass, a layer of 128 experts would take the host a millisecond.
            for part in adapters:
                self.downs.append(_stacked([no_down if one is None else one.linear_in.weight for one in part]))
                self.ups.append(_stacked([no_up if one is None else one.linear_out.weight for one in part]))

    def adapter(self) -> Adapter | None:
        """Return the adapters of all experts; None where there are none, or they are switched off."""
        if self._wrapper is None or not self._wrapper._adapter_enabled:
            return None
        each = len(self.weight), -1, -1  # what they share is the same for each
        downs, ups = ([part.stack().expand(each) for part in of_parts] for of_parts in (self.downs, self.ups))
        return Adapter(*joined_adapter(downs, ups), self._scale)


def _stacked(matrices: Sequence[torch.Tensor]) -> Stacked:
    """Return the matrices of all experts, which may be one that they share."""
    return Stacked(matrices[:1] if all(matrix is matrices[0] for matrix in matrices) else matrices)


def _adapters_of(part: str | None, wrappers: Sequence[Any]) -> list[Any]:
    """Return each expert's adapter of a part, or of the whole layer; None where there is none."""
    there = (
        None if wrapper is None else wrapper.adapter if part is None else wrapper.adapter[f"adapter_{part}"]
        for wrapper in wrappers
    )
    return [adapter if hasattr(adapter, "linear_in") else None for adapter in there]


def are_plain_experts(mixture: Any) -> bool:
    """Return whether a mixture of Megatron's is what `FusedExperts` computes, and nothing else."""
    if (type(mixture).__name__, type(mixture.experts).__name__) != ("MoELayer", "SequentialMLP"):
        return False
    layers = [layer for expert in mixture.experts.local_experts for layer in (expert.linear_fc1, expert.linear_fc2)]
    return (
        getattr(mixture, "shared_experts", None) is None
        and type(mixture.router).__name__ == "TopKRouter"
        and getattr(mixture.router, "bias", None) is None
        and mixture.router.expert_bias is None
        and all(is_plain_linear(layer) for layer in layers)
        and len({type(layer).__name__ for layer in layers[::2]} & WRAPPERS) <= 1
    )


class _Normed(torch.autograd.Function):
    """The norm of the hidden states, and the residual, whose gradient is added in the norm's kernel."""

    @staticmethod
    def forward(
        ctx: Any, hidden_T_H: torch.Tensor, norm: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed_T_H, inverse_T = rms_norm(hidden_T_H, norm, eps)
        ctx.norm = norm
        ctx.save_for_backward(hidden_T_H, inverse_T)
        return normed_T_H, hidden_T_H.view_as(hidden_T_H)

    @staticmethod
    def backward(ctx: Any, by_normed_T_H: torch.Tensor, by_residual_T_H: torch.Tensor) -> Any:
        hidden_T_H, inverse_T = ctx.saved_tensors
        # The kernel writes into the first gradient, which autograd may have given to others too.
        by_hidden_T_H, _ = rms_norm_backward(by_normed_T_H.clone(), by_residual_T_H, hidden_T_H, ctx.norm, inverse_T)
        return by_hidden_T_H, None, None
