"""Megatron-Bridge's export of adapters, prepared once.

The bridge looks the names of all adapters up in each export. A mixture of 48 layers with 128 experts has 18,432
adapters, and a start or a checkpoint takes several exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch


class AdapterExport:
    """The export of the adapters of one model, whose parameters stay the same objects."""

    def __init__(self, bridge: Any, chunks: list[Any]) -> None:
        """Take a bridge, and its model with adapters."""
        self._chunks, self._of_model = chunks, bridge._model_bridge
        prepare = self._of_model.build_adapter_conversion_tasks
        prepared = cache(lambda: prepare(chunks))
        self._of_model.build_adapter_conversion_tasks = lambda *_, **__: prepared()
        self._of_model._get_base_hf_param_names_for_adapter = _remembered(
            self._of_model._get_base_hf_param_names_for_adapter
        )

    def run(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the adapter's tensors in Hugging Face names, which may be in the parameters' storage (collective)."""
        exported = self._of_model.stream_adapter_weights_megatron_to_hf(self._chunks, cpu=False, show_progress=False)
        yield from ((item.param_name, item.weight.detach()) for item in exported)


def _remembered(names_of: Any) -> Any:
    """Return a function that looks the names of an adapter's layer up once. The registry is always a like one."""
    known: dict[tuple[Any, ...], list[str]] = {}

    def remembered(registry: Any, *adapter: Any) -> list[str]:
        if adapter not in known:
            known[adapter] = names_of(registry, *adapter)
        return known[adapter]

    return remembered
