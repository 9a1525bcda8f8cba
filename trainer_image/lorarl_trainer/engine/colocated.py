"""The engine in a worker's process, built from the job, and how a new adapter reaches it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Device
from lorarl_trainer.engine.sync.verify import Delivery
from lorarl_trainer.engine.vllm.config import EngineConfig
from lorarl_trainer.engine.vllm.engine import RolloutEngine
from lorarl_trainer.engine.vllm.shared_base import SharedBase
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.lora.adapter import Adapter
from lorarl_trainer.lora.targets import served_names
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.protocols.shared_base import SharesBase
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.wire import CompletionChunk
from lorarl_trainer.timing import StartClock


class ColocatedEngine:
    """One rank's engine, and the way that the adapter takes to it.

    Attributes:
        base: what it shares with the trainer; None if it has its own base model.
        deliveries: how the adapter gets into each of the engine's slots.
    """

    def __init__(
        self,
        device: Device,
        spec: LoRARLJobSpec,
        adapter: Adapter,
        trainer: SharesBase,
        model_path: Path,
        stop_token_ids: tuple[int, ...],
        plan: ExecutionPlan,
        clock: StartClock,
    ) -> None:
        """Start the engine as planned (collective).

        Args:
            device: this process's.
            spec: the job.
            adapter: the one to generate with.
            trainer: lends the engine its base model, if so planned.
            model_path: the base model's folder.
            stop_token_ids: any of them ends a completion.
            plan: how the engine runs, on how many ranks and in how much memory.
            clock: takes the spans of the engine's start, up to the first token.
        """
        config = EngineConfig(
            model_path=model_path,
            plan=plan.engine,
            ranks=plan.layout.engine_ranks,
            dtype=plan.compute.dtype,
            rank=adapter.config.rank,
            expert_rank=plan.expert_rank,
            target_modules=tuple(served_names(adapter.targets)),
            max_prompt_tokens=spec.rollout.max_prompt_tokens,
            max_response_tokens=spec.rollout.max_response_tokens,
            sampling=Sampling.of(spec.rollout),
            stop_token_ids=stop_token_ids,
            stop=tuple(spec.rollout.stop),
            quantization=plan.quantization,
            records_routing=plan.router_replay is not None,
        )
        self.base = SharedBase(trainer) if plan.layout.shared_base else None
        self.engine = RolloutEngine(device, config, spec.trainer.seed, self.base, clock)
        with clock.part("engine/sync plan"):
            self.deliveries = [Delivery(spec.rollout.adapter_sync, slot, adapter) for slot in self.engine.slots]
        self._device, self._verify = device, spec.rollout.verify_sync

    def sync(self, version: int, verify: bool = False, slot: int = 0) -> float:
        """Bring the trainer's adapter to the engine as this version (collective); return the seconds it took.

        `slot`: its place, which no request that generates may have. Other slots keep their adapters.

        Raises:
            StaleAdapterError: vLLM's copy is not the trainer's adapter, that of another slot has changed, or requests
                of the adapter that the slot has are not done.
        """
        delivery, held = self.deliveries[slot], self.engine.slots[slot].version
        if len(self.deliveries) > 1 and held in self.engine.generating:
            raise StaleAdapterError(f"adapter version {version} would take the place of {held}, which is generating")
        self.engine.wake("weights")
        self._device.synchronize()
        clock = time.perf_counter()
        delivery.sync.push(version)
        self._device.synchronize()
        seconds = time.perf_counter() - clock
        delivery.arrived.require(version)
        for other in self.deliveries:
            if other is not delivery:
                other.arrived.require_kept()
        if verify or self._verify:
            delivery.every_element.compare()
        return seconds

    def submit(self, requests: Mapping[int, GenerationRequest]) -> None:
        """See `RolloutEngine.submit`."""
        self.engine.submit(requests)

    def results(self, until: int | None = None) -> Iterator[CompletionChunk]:
        """See `RolloutEngine.results`. The engine wakes up for it."""
        clock = time.perf_counter()
        woke = self.engine.wake("weights", "kv_cache")
        awake = time.perf_counter()
        waking = {"wake": awake - clock} if woke else {}
        for numbers, completions in self.engine.results(until):
            seconds = waking | {"generate": time.perf_counter() - awake}
            yield CompletionChunk(numbers, completions, seconds, self.engine.occupancy)

    def sleep(self) -> Mapping[str, float]:
        """Give up the memory that the trainer needs meanwhile; return the seconds of the phase, if there is any."""
        clock = time.perf_counter()
        return {"sleep": time.perf_counter() - clock} if self.engine.sleep() else {}
