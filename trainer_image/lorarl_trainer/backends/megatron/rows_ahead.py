"""The trips of all layers' rows, found before a pass: the experts of its tokens are known if a rollout's are followed.

Otherwise each layer's host waits until the ranks have told each other how many rows they send, and the device waits for
the host. Here, hosts count the rows of all layers and tell each other, while the device has other work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.expert_rows import Places, Sizes, Trip
from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.samples.expert_rows import any_experts, count_rows
from lorarl_trainer.samples.routing import Routing, routing_type, rows_of

_UNKNOWN = -1
"""Stands for the number of rows of a rank that does not know it."""


class RowsAhead:
    """Finds the trips of the micro-batches of some ranks, which make every pass together."""

    def __init__(self, ranks: Ranks, hosts: Any, share: Ranks, config: Any, device: torch.device) -> None:
        """Take the ranks that share the experts, and their group for what is on the host.

        `share`: the ranks that compute a part of the tokens each.
        """
        self._ranks, self._hosts, self._share = ranks, hosts, share
        self._layers, self._experts = config.num_layers, config.num_moe_experts
        of_nothing = any_experts(config.moe_router_topk, self._experts)
        self._of_nothing_K = torch.from_numpy(of_nothing).to(device)

    def find(self, batch: MicroBatch) -> list[Trip] | None:
        """Return each layer's trip; None if some rank does not know the experts of some token (collective)."""
        routing_T_L_K = self._on_host(batch)
        if routing_T_L_K is None:
            counts_P_L_2 = np.full((self._ranks.size, self._layers, 2), _UNKNOWN)
        else:
            own_T_L_K = np.split(routing_T_L_K, self._share.size)[self._share.rank]
            counts_P_L_2 = count_rows(own_T_L_K, self._experts, self._ranks.size)
        sent_P_L_2 = torch.from_numpy(counts_P_L_2)
        received_P_L_2 = torch.empty_like(sent_P_L_2)
        dist.all_to_all_single(received_P_L_2, sent_P_L_2, group=self._hosts)
        if bool((received_P_L_2 == _UNKNOWN).any()):  # its own are among them
            return None
        chosen_L_T_K, each = self._chosen(batch), self._experts // self._ranks.size
        places = Places.of(chosen_L_T_K, each, self._ranks.size)
        sizes = map(Sizes.of, sent_P_L_2.unbind(1), received_P_L_2.unbind(1))
        of_layers = zip(chosen_L_T_K, zip(places, sizes, strict=True), strict=True)
        return [Trip(self._ranks, chosen_T_K, each, ahead) for chosen_T_K, ahead in of_layers]

    def _on_host(self, batch: MicroBatch) -> Routing | None:
        """Return the experts of all tokens; None if some are not known."""
        if batch.is_filler:
            like = np.empty((0, self._layers, len(self._of_nothing_K)), routing_type(self._experts))
            return rows_of(None, like, 0, batch.tokens.numel())
        return None if batch.routing is None else batch.routing_on_host

    def _chosen(self, batch: MicroBatch) -> torch.Tensor:
        """Return the experts of this rank's tokens as `count_rows` has them, [L, T, K]."""
        if batch.routing is None:
            tokens = batch.tokens.numel() // self._share.size
            return self._of_nothing_K.expand(self._layers, tokens, -1)
        own_T_L_K = batch.routing.chunk(self._share.size)[self._share.rank]
        unknown = own_T_L_K == torch.iinfo(own_T_L_K.dtype).max
        return torch.where(unknown, self._of_nothing_K, own_T_L_K.long()).transpose(0, 1).contiguous()
