"""Layers that take the keys and values of an earlier one, in a model whose layers have heads of several sizes.

vLLM puts such a layer into the group of the layer whose cache it uses. All layers are one group here (`arguments.py`),
and where heads differ, that group has the size of each layer's cache by the layer's name. vLLM adds the layer without
its size, and then looks for that: Gemma 4 E2B and E4B do not start with `disable_hybrid_kv_cache_manager`. vLLM has no
door for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from lorarl_trainer.engine.vllm import names, slices
from lorarl_trainer.engine.vllm.names import GpuSharedKeys, SharedKeys
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def shared_keys() -> Iterator[None]:
    """Let an engine that starts within the block know the cache's size of layers that have none."""
    place = (GpuSharedKeys if names.on_gpu() else SharedKeys).add_layers
    with replaced(place, partial(_add_layers, getattr(*place))):
        yield


def _add_layers(add: Any, shared: Mapping[str, str], groups: Sequence[slices.KVCacheGroupSpec], *others: Any) -> None:
    """Add layers by `add`, vLLM's own, and the size of what they use. `shared` has whose cache each layer uses."""
    add(shared, groups, *others)
    for group in groups:
        sizes = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        sizes.update({layer: sizes[other] for layer, other in shared.items() if other in sizes})
