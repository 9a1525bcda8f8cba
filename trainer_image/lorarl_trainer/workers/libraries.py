"""Torch, the backend and vLLM in a worker's process. Importing them is a good part of every start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.imports import quick_imports
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.timing import Span


def import_libraries(spec: LoRARLJobSpec) -> list[Span]:
    """Import what a job's workers need; return when each part was imported.

    What is chosen for the model may be another backend, whose libraries are imported once that is known.
    """
    parts: list[Span] = []

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.time()
        yield
        parts.append(Span(name, "worker", begin, time.time()))

    with timed("imports"), quick_imports():
        with timed("imports/torch"):
            import torch  # noqa: F401  # for the time that it takes
        with timed("imports/trainer"):
            from lorarl_trainer.backends.registry import get_backend

            backend = get_backend(spec.trainer.backend or "megatron")
            backend.import_libraries(get_device(spec.cluster.gpus_per_node))
        if spec.generates:
            from lorarl_trainer.engine.vllm.imports import import_vllm

            with timed("imports/vLLM"):
                import_vllm()
    return parts
