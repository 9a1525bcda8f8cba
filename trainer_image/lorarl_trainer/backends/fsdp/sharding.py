"""The frozen base, sharded over the data-parallel ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

A layer's weights are whole on a rank only while that layer is at work. Adapters, a thousandth of the model, stay whole
on each rank, and so do the embedding, the last norm and the output layer: the optimizer and the log-probabilities are
the same as without shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def shard_layers(decoder: torch.nn.Module, layers: Sequence[torch.nn.Module], device: torch.device, ranks: int) -> None:
    """Leave this rank its share of each layer's frozen weights, on the device (collective)."""
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in layers:
        trained = {parameter for parameter in layer.parameters() if parameter.requires_grad}
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    # The root of the shards, which holds none itself.
    whole = {parameter for parameter in decoder.parameters() if not isinstance(parameter, DTensor)}
    fully_shard(decoder, mesh=mesh, ignored_params=whole)


def own_share(parameter: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
