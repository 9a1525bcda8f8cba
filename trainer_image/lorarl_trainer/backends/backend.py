"""A trainer backend: one rank's share of the base model, and the adapter that trains on it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.backends import state
from lorarl_trainer.backends.adapter import ModelAdapter
from lorarl_trainer.backends.critic import Critic
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.backends.model import AdaptedModel, ParameterCounts
from lorarl_trainer.backends.optimizer import AdapterOptimizer, Parked
from lorarl_trainer.backends.update import Others, Trainer
from lorarl_trainer.devices.base import Device
from lorarl_trainer.errors import WorkerError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.initial import widened
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.samples.requests import Accumulated, AdamW, Policy, UpdateRequest, UpdateResult
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.timing import StartClock

_AVERAGE = "average."
"""Before the names of a reference that follows the adapter, in the training state."""


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds of an adapter, in Hugging Face names.

    Attributes:
        state: fp32 masters and AdamW's moments, the critic's among them, which `Backend.restore` takes.
        linear_names: full names of all linear layers but the output layer, adapted or not.
        excluded_names: those that were asked to have no adapter.
    """

    adapter: Mapping[str, torch.Tensor]
    state: Mapping[str, torch.Tensor]
    updates: int
    critic_updates: int
    linear_names: Sequence[str]
    excluded_names: Sequence[str]


@dataclass(frozen=True)
class ParkedAdapter:
    """An adapter that is not trained at the moment, with all that belongs to it, in the host's memory.

    Attributes:
        optimizer: its own values and its optimizer.
        others: the adapters that it is compared with or learns from.
        held: the values that it had by `Backend.hold`; None if it was not held.
        critic: its critic's values, head and optimizer; None without a critic.
        routing: what its passes since its last update found; see `AdaptedModel.routing_differences`.
    """

    optimizer: Parked
    others: Others
    held: list[torch.Tensor] | None
    critic: Parked | None
    routing: tuple[float, float] | None


class Backend(ABC):
    """All that a worker asks of a backend; nothing outside of this package uses another part of it.

    `create_adapter` or `load_adapter` comes before the first update.
    """

    @staticmethod
    @abstractmethod
    def import_libraries(device: Device) -> None:
        """Import all libraries that a worker needs. torch comes before."""

    @staticmethod
    @abstractmethod
    def load_model(
        device: Device, spec: LoRARLJobSpec, model_path: Path, plan: ExecutionPlan, clock: StartClock
    ) -> AdaptedModel:
        """Load the base model as planned and attach adapters; see `__init__`."""

    def __init__(
        self, device: Device, spec: LoRARLJobSpec, model_path: Path, plan: ExecutionPlan, clock: StartClock
    ) -> None:
        """Load the base model as planned and attach adapters (collective over all workers).

        `import_libraries` and torch.distributed come first. `clock` takes the parts of the time.

        Raises:
            InputError: the model, or `spec.adapter`, cannot be trained.
            PlanError: the model is not what was planned.
        """
        self._device = device
        self.model = self.load_model(device, spec, model_path, plan, clock)
        self._require_device()
        with clock.part("trainer/layout"):
            self.layout = AdapterLayout(self.model)
        self.adapter = ModelAdapter(self.model, self.layout, AdapterConfig.of(spec.adapter, plan.expert_rank))
        fused = device.name != "cpu"
        self.optimizer = AdapterOptimizer(self.model, spec.trainer, fused=fused)
        self.critic: Critic | None = None
        if spec.algorithm.about.critic:
            self.critic = Critic(device, self.model, self.layout, spec, plan.trainer.micro_batch_tokens, fused=fused)
        self._kept: list[torch.Tensor] | None = None  # the adapter's own values while it has others
        self._trainer = Trainer(
            device, self.model, self.optimizer, plan.trainer.micro_batch_tokens, spec.adapter.dropout
        )
        self.begin_job(spec)

    def begin_job(self, spec: LoRARLJobSpec) -> None:
        """Let the adapter that is made next be of this job, which has the execution plan of the first one."""
        self._reference = spec.reference
        self._decay = spec.algorithm.kl.effective_decay if spec.algorithm.kl else None
        self.optimizer.take_numbers(spec.trainer)
        if self.critic is not None:
            self.critic.begin_job(spec)
        self.model.routing_differences()  # those of another job, which has ended
        self._trainer.others = Others()

    def parked(self) -> ParkedAdapter:
        """Return a copy of the adapter and of all that belongs to it, which has its own values from now on."""
        held, routing = None, self.model.routing_differences()
        if self._kept is not None:
            held = [parameter.detach().to("cpu", copy=True) for parameter in self.model.parameters.values()]
            self.hold(None)
        critic = self.critic.optimizer.parked() if self.critic is not None else None
        return ParkedAdapter(self.optimizer.parked(), self._trainer.others.on("cpu"), held, critic, routing)

    def take(self, parked: ParkedAdapter) -> None:
        """Continue with an adapter as it was `parked`."""
        self.optimizer.take(parked.optimizer)
        self._trainer.others = parked.others.on(self.model.device)
        if self.critic is not None and parked.critic is not None:
            self.critic.optimizer.take(parked.critic)
        if parked.routing is not None:
            self.model.continue_routing(parked.routing)
        if parked.held is not None:
            self._hold(parked.held)

    def create_adapter(self, seed: int) -> None:
        """Start from a new adapter, which changes nothing yet."""
        self.load_adapter(self._new_adapter(seed), "spec.adapter")

    def widen(self, adapter: Mapping[str, torch.Tensor], scale: float, seed: int) -> dict[str, torch.Tensor]:
        """Return an adapter of a smaller rank, with this factor of B A x, as one of the job's rank."""
        return widened(adapter, self._new_adapter(seed), scale / self.adapter.config.scale)

    def load_adapter(self, adapter: Mapping[str, torch.Tensor], field: str) -> None:
        """Start from an adapter in Hugging Face names, with a fresh optimizer. So does the critic.

        Raises:
            InputError: naming `field`, if the adapter does not fit the job's.
        """
        state.load_adapter(self.layout, self.optimizer, adapter, field)
        if self.critic is not None:
            self.critic.load(adapter, field)
        if self._reference != "base":
            self._trainer.keep_reference(self._decay if self._reference == "average" else None)

    def keep_teacher(self, adapter: Mapping[str, torch.Tensor]) -> None:
        """Let an adapter teach, in Hugging Face names and of the job's rank. It fits the job's."""
        self._trainer.keep_teacher(self.layout.scatter({name: tensor.float() for name, tensor in adapter.items()}))

    @torch.no_grad()
    def hold(self, adapter: Mapping[str, torch.Tensor] | None) -> None:
        """Let the adapter have these values, in Hugging Face names, until the next call; None brings its own back.

        The optimizer's state stays as it is: make no update meanwhile.
        """
        self._require_device()
        if adapter is not None:
            self._hold(self.layout.scatter(adapter))
        elif self._kept is not None:
            torch._foreach_copy_(list(self.model.parameters.values()), self._kept)
            self._kept = None
            self.model.routing_differences()  # the next update's are not those of a probe

    @torch.no_grad()
    def _hold(self, values: Sequence[torch.Tensor]) -> None:
        parameters = list(self.model.parameters.values())
        if self._kept is None:
            self._kept = [parameter.clone() for parameter in parameters]
        torch._foreach_copy_(parameters, list(values))

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update, and the critic's (collective over all workers)."""
        self._require_device()
        result = self._trainer.update(request)
        if self.critic is None or request.critic is None or result.disagreement is not None:
            return result
        of_critic = self.critic.update(request, request.critic)
        return replace(
            result,
            metrics={**result.metrics, **of_critic.metrics},
            seconds={phase: seconds + of_critic.seconds[phase] for phase, seconds in result.seconds.items()},
        )

    def accumulate(self, request: UpdateRequest, *, with_gradient: bool) -> Accumulated:
        """Add the gradient of the samples' loss to those before it, without a step. For a single worker."""
        self._require_device()
        return self._trainer.accumulate(request, with_gradient=with_gradient)

    def optim_step(self, numbers: AdamW) -> float:
        """Update the adapter with the gradients so far and forget them; return their norm before clipping.

        If it is not a finite number, nothing is updated.
        """
        self._require_device()
        norm = self._trainer.optim_step(numbers)
        self.optimizer.zero_grad()
        return norm

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        assert self.critic is not None, "only an algorithm with a critic asks for values"
        self._require_device()
        return self.critic.values(samples)

    def log_probabilities(
        self, samples: Sequence[Sample], temperature: float, of: Policy = "policy"
    ) -> list[np.ndarray]:
        """Return the log-probabilities of each sample's response tokens."""
        self._require_device()
        return self._trainer.log_probabilities(samples, temperature, of)

    def snapshot(self) -> Snapshot:
        """Return all of the adapter's state, whole. Its tensors may be the backend's own.

        Collective: every other rank calls `help_snapshot`.
        """
        adapter, gathered = self.model.export(), state.gather_state(self.layout, self.optimizer)
        return Snapshot(
            adapter=adapter,
            state=gathered | self._gathered_average() | (self.critic.gather_state() if self.critic else {}),
            updates=self.optimizer.updates,
            critic_updates=self.critic.optimizer.updates if self.critic else 0,
            linear_names=self.model.linear_names,
            excluded_names=self.model.excluded_names,
        )

    def help_snapshot(self) -> None:
        """Take part in the first rank's `snapshot`, in the same order.

        Only the ranks that share its model do: the others have all that it has. None of them keeps a whole tensor for
        longer than the next one takes, or those of a layer's experts.
        """
        if self.model.parallel.first_copy:
            self.model.help_export()
            state.help_gather_state(self.layout, self.optimizer)
            if (average := self._trainer.averaged) is not None:
                self.layout.help_gather(average)
            if self.critic is not None:
                self.critic.help_gather_state()

    def restore(self, tensors: Mapping[str, torch.Tensor], updates: int, critic_updates: int = 0) -> None:
        """Resume from a snapshot's state after so many updates, on any number of ranks."""
        average = {key.removeprefix(_AVERAGE): value for key, value in tensors.items() if key.startswith(_AVERAGE)}
        state.load_state(self.layout, self.optimizer, tensors, updates)
        if self._trainer.averaged is not None:
            self._trainer.restore_average(self.layout.scatter(average))
        if self.critic is not None:
            self.critic.restore(tensors, critic_updates)

    def _new_adapter(self, seed: int) -> dict[str, torch.Tensor]:
        return state.new_adapter(self.model, self.layout, self.adapter.config, seed)

    def _gathered_average(self) -> dict[str, torch.Tensor]:
        average = self._trainer.averaged
        gathered = {} if average is None else self.layout.gather(average)
        return {f"{_AVERAGE}{name}": tensor for name, tensor in gathered.items()}

    @property
    def modules(self) -> tuple[str, ...]:
        """Full Hugging Face names of the layers with an adapter."""
        return tuple(name for target in self.model.targets for name in target.hf_names)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the model."""
        return tuple(
            f"sequences are padded, which is slower than packed: the model has {what}" for what in self.model.unpackable
        )

    def counts(self) -> ParameterCounts:
        """Count parameters over the ranks that share the model (collective)."""
        return self.model.counts()

    def _require_device(self) -> None:
        """Require that every parameter is on the device that the job asks for.

        Raises:
            WorkerError: one is elsewhere.
        """
        elsewhere = [
            (n, p.device) for n, p in self.model.module.named_parameters() if p.device.type != self._device.name
        ]
        if elsewhere:
            name, device = elsewhere[0]
            raise WorkerError(
                f"{len(elsewhere)} parameters are on {device} ({name}), but the job asks for {self._device.name} "
                "(spec.cluster.gpusPerNode). No update was made with them. "
                "Check that the machine's driver and torch see its GPUs."
            )

    def base_digest(self) -> str:
        """Return a SHA-256 over the frozen base parameters of this rank: it never changes."""
        digest = hashlib.sha256()
        for name, parameter in self.model.base_parameters():
            digest.update(name.encode())
            digest.update(parameter.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
