"""Records which experts vLLM sends each token to, so that the trainer can send it to the same ones.

A table beside the KV cache has a row for each of its slots. Each layer writes the experts of a step's tokens to the
rows of the slots that their keys and values go to, so CUDA graphs hold it, and nothing waits for the GPU. What is true
of keys and values is true of the rows: requests with the same prompt share them, and a request that is computed again
has new ones. vLLM 0.26 has its own recorder (`enable_return_routed_experts`), which copies all of it to the host
in every step, misses the experts of a CPU, and wants the slower of vLLM's two runners of models.

Routing replay: W. Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", 2025
(arXiv:2510.11370).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import numpy as np
import torch

from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.engine.vllm import model_slices, names, slices
from lorarl_trainer.engine.vllm.names import Routing
from lorarl_trainer.samples.routing import own_choice, routing_type

_WANTED: ContextVar[bool] = ContextVar("whether the engine that is starting records its routing", default=False)


class RoutingRecorder:
    """The table of one engine, [slots, layers, experts of a token]."""

    def __init__(
        self, slots: int, layers: int, experts: int, active: int, block_size: int, device: torch.device
    ) -> None:
        """Make the table, in which no token has experts yet.

        It has a row more, at the end: there a graph writes what fills a step up, whose slot is -1.
        """
        kind = np.dtype(routing_type(experts))
        row = torch.from_numpy(np.full((layers, active), own_choice(np.empty(0, kind)), kind)).to(device)
        self._table = row.repeat(slots + 1, 1, 1)
        self._block_size = block_size

    def record(self, layer: int, chosen: torch.Tensor) -> None:
        """Write the experts of a step's tokens, [tokens, active], if they have slots: a trial run's have none."""
        slots = next(iter(Routing.get_forward_context().slot_mapping.values()), None)
        if slots is not None:
            self._table[slots[: len(chosen)], layer] = chosen.to(self._table.dtype)

    def read(self, blocks: Sequence[int], count: int) -> torch.Tensor:
        """Return the rows of a request's first tokens, [count, layers, active], on the table's device.

        No later step may have been requested since the request had these blocks.
        """
        slots = np.asarray(blocks)[:, None] * self._block_size + np.arange(self._block_size)
        return self._table[to_device(slots.ravel()[:count], self._table.device)]


@contextmanager
def recorded_routing(wanted: bool) -> Iterator[None]:
    """Let the engine that starts within the block record its routing."""
    token = _WANTED.set(wanted)  # vLLM makes the worker itself, and passes nothing on
    try:
        yield
    finally:
        _WANTED.reset(token)


def start_recording(
    model: torch.nn.Module, cache: slices.KVCacheConfig, device: torch.device
) -> RoutingRecorder | None:
    """Let a model with experts record from now on, if that is wanted. CUDA graphs are captured later."""
    if not _WANTED.get():
        return None
    runners: list[model_slices.MoERunner] = [one for one in model.modules() if isinstance(one, Routing.MoERunner)]
    moe, block_size = runners[0].moe_config, cache.kv_cache_groups[0].kv_cache_spec.block_size
    sizes = len(runners), moe.num_experts, moe.experts_per_token
    recorder = RoutingRecorder(cache.num_blocks * block_size, *sizes, block_size, device)
    for layer, runner in enumerate(runners):
        record = partial(recorder.record, layer)
        if names.on_gpu():
            runner.router.set_capture_fn(record)
        else:
            runner.routed_experts.quant_method.cpu_fused_moe.record = record
    return recorder
