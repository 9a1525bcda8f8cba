"""Torch, the backend and vLLM in a worker's process. Importing them is a good part of every start."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.imports import quick_imports
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.timing import StartClock


def import_libraries(spec: LoRARLJobSpec, clock: StartClock) -> None:
    """Import what a job's workers need.

    What is chosen for the model may be another backend, whose libraries are imported once that is known.
    """
    with clock.part("imports"), quick_imports():
        with clock.part("imports/torch"):
            import torch  # noqa: F401  # for the time that it takes
        with clock.part("imports/trainer"):
            from lorarl_trainer.backends.registry import get_backend

            backend = get_backend(spec.trainer.backend or "megatron")
            backend.import_libraries(get_device(spec.cluster.gpus_per_node))
        if spec.generates:
            from lorarl_trainer.engine.vllm.imports import import_vllm

            with clock.part("imports/vLLM"):
                import_vllm()
