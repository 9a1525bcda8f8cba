"""How a new adapter version reaches vLLM. Two transports, one interface, the same tests.

Every version has an id and a name of its own: nothing that vLLM keeps by name or id (a prefix cache, a loaded adapter) can be stale.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from lorarl_trainer.peft_format import PEFT_PREFIX, adapter_config, write_adapter
from lorarl_trainer.rollout.engine import RolloutEngine

Adapter = Mapping[str, torch.Tensor]

_SHARED_MEMORY = Path("/dev/shm")


class AdapterSync(Protocol):
    """Brings an adapter, in Hugging Face names, to the engine as the given version, and drops the version before."""

    def push(self, adapter: Adapter, version: int) -> None:
        """Make `version` the adapter that the engine generates with."""


def make_sync(transport: Literal["tensor", "disk"], engine: RolloutEngine, rank: int, alpha: int) -> AdapterSync:
    """Return the transport that `rollout.adapterSync` names."""
    return TensorSync(engine, rank, alpha) if transport == "tensor" else DiskSync(engine, rank, alpha)


class TensorSync:
    """Within the process: no file, nothing serialised."""

    def __init__(self, engine: RolloutEngine, rank: int, alpha: int) -> None:
        self._engine, self._rank, self._alpha = engine, rank, alpha

    def push(self, adapter: Adapter, version: int) -> None:
        """See `AdapterSync.push`."""
        from vllm.lora.request import LoRARequest

        config = adapter_config(adapter, self._rank, self._alpha, base_model="")
        # vLLM's way to reach its worker, which is in this process: the tensors are handed over as they are.
        self._engine.llm.collective_rpc(_replace_adapter, args=(adapter, config, version))
        # The path is never read: the adapter of this id is there already.
        self._engine.use_adapter(version, LoRARequest(f"v{version}", version, "/adapter-is-in-memory"))


class DiskSync:
    """Through PEFT files in shared memory, loaded by vLLM's own loader."""

    def __init__(self, engine: RolloutEngine, rank: int, alpha: int) -> None:
        self._engine, self._rank, self._alpha = engine, rank, alpha

    def push(self, adapter: Adapter, version: int) -> None:
        """See `AdapterSync.push`."""
        from vllm.lora.request import LoRARequest

        engine = self._engine.llm.llm_engine
        with tempfile.TemporaryDirectory(prefix="lorarl-adapter-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
            path = Path(folder, f"v{version}")
            write_adapter(path, adapter, adapter_config(adapter, self._rank, self._alpha, base_model=""))
            request = LoRARequest(f"v{version}", version, str(path))
            if self._engine.version:
                engine.remove_lora(self._engine.version)
            engine.add_lora(request)  # vLLM reads it here, once
        self._engine.use_adapter(version, request)


@torch.no_grad()
def _replace_adapter(worker: Any, adapter: Adapter, config: dict[str, Any], version: int) -> None:
    """Run in the vLLM worker: make `adapter` its one and only, under the id `version`.

    vLLM has no public way to load an adapter from tensors: this uses what its own loader uses, and the tests hold both to the same bits.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    loras = worker.model_runner.lora_manager
    manager = loras._adapter_manager
    model = LoRAModel.from_lora_tensors(
        lora_model_id=version,
        # vLLM scales B in place, so it gets tensors of its own.
        tensors={PEFT_PREFIX + name: tensor.clone() for name, tensor in adapter.items()},
        peft_helper=PEFTHelper.from_dict(config),
        device=worker.device,
        dtype=loras.lora_config.lora_dtype,
        model_vocab_size=loras.vocab_size,
    )
    for old in list(manager.list_adapters()):
        manager.remove_adapter(old)
    manager.add_adapter(model)
    manager.activate_adapter(version)
