"""What the loop asks of the workers: of `workers.group.WorkerGroup`, and of the tests' worker without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lorarl_trainer.checkpoint import Best, Owner, Published
from lorarl_trainer.lora.config import Probe
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest, Policy, UpdateRequest, UpdateResult
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.timing import Span

UPLOAD_SECONDS = 900.0
"""How long the end of a run waits for its last checkpoint: longer than storage retries a write."""

type CardResults = Mapping[str, Mapping[str, float]]
"""What a model card shows: the values of a column by name."""

type TakeCompletions = Callable[[Sequence[int], Sequence[Completion]], None]
"""Takes completions that have ended: the indices of their requests among those of its call, and the completions."""


@dataclass(frozen=True)
class Built:
    """What the workers found when they had built the model.

    Attributes:
        modules: full Hugging Face names of the layers with an adapter.
        expert_rank: of the adapter on each expert's layers; None if no expert has one.
        trainable_parameters, total_parameters: over all tensor-parallel ranks.
        ranks: workers that make a trainer's updates together, and workers of an engine.
        memory: the plan as a table: what was chosen, and what takes how much memory.
        micro_batch_tokens: tokens of one forward and backward pass.
        gpu: the product's name of each worker's GPU; empty on CPU.
        warnings: what the user should know about the model.
    """

    modules: tuple[str, ...]
    expert_rank: int | None
    trainable_parameters: int
    total_parameters: int
    ranks: tuple[int, int]
    memory: str
    warnings: tuple[str, ...]
    micro_batch_tokens: int
    gpu: str = ""


@dataclass(frozen=True)
class DriverState:
    """What a checkpoint keeps of the driver's, beside what the workers keep.

    Attributes:
        position: rows taken so far.
        kl_coefficient: the weight of a KL penalty that keeps a divergence; None where it is fixed, or from the start.
        curriculum: see `Curriculum.state`; None without one, or from the start.
        unfinished: the positions of rows that were taken, and whose completions have not all ended.
    """

    position: int = 0
    kl_coefficient: float | None = None
    curriculum: Mapping[str, Any] | None = None
    unfinished: Sequence[int] = ()


@dataclass(frozen=True)
class Resumed:
    """Where a run begins.

    Attributes:
        step: the step of the checkpoint that the run resumes from; 0 for a run from the start.
        adapter_version: the checkpoint's; 0 for a run from the start.
        warnings: checkpoints that were skipped, and why.
        published: that checkpoint; None if there is none, or if it is only now being published.
    """

    step: int
    driver: DriverState
    adapter_version: int
    adapter_uri: str | None
    warnings: tuple[str, ...]
    published: Published | None = None


@dataclass(frozen=True)
class JobCheckpoints:
    """Whose checkpoints a run makes, and what they are made of.

    Attributes:
        owner: whose checkpoints they are. A new job of the same name is another one.
        identity: what makes this training what it is; a checkpoint of another training is refused.
        unpublished: the folder for checkpoints that could not be published.
        chat_template: the job's own, which is published with the adapter; None for the base model's.
    """

    owner: Owner
    identity: Mapping[str, Any]
    unpublished: Path
    provenance: Mapping[str, Any]
    chat_template: str | None = None


@dataclass(frozen=True)
class Generated:
    """How engines generated.

    Attributes:
        seconds: by phase; of several engines, the slowest one's.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    occupancy: Occupancy = field(default_factory=Occupancy)

    def then(self, other: Generated) -> Generated:
        """Return how an engine generated twice."""
        phases = dict.fromkeys((*self.seconds, *other.seconds))
        seconds = {phase: self.seconds.get(phase, 0.0) + other.seconds.get(phase, 0.0) for phase in phases}
        return Generated(seconds, Occupancy.over((self.occupancy, other.occupancy)))


class Generators(Protocol):
    """What generates completions: a job's workers, or a model that was loaded to look at it."""

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        """Let the engines generate these completions, with others that they may be generating.

        Each goes to `take` when it has ended, while someone waits for `results`.
        """

    async def results(self) -> Generated:
        """Wait until all that was submitted has ended, also what is submitted meanwhile."""


class Workers(Generators, Protocol):
    """All workers of a job, addressed together. Every method raises LorarlError for what a user can act on."""

    def lane(self) -> Generators:
        """Return what generates for one caller. With servers or separate engines, others may do so meanwhile."""

    async def open_checkpoints(self, of: JobCheckpoints) -> None:
        """Name the job's checkpoints, and what their adapters are made of. The newest is read while the model loads."""

    async def resume(self) -> Resumed:
        """Take over the job's checkpoints and bring every worker to the newest whole one, after `open_checkpoints`."""

    async def sync(self, version: int, *, verify: bool = False) -> float:
        """Bring the adapter to every engine as this version; return the slowest worker's seconds.

        With `verify`, compare every element with the trainer's export as well, as `rollout.verifySync` does.
        """

    async def hold_probe(self, probe: Probe | None) -> None:
        """Let the adapter be a probe until the next call; None brings the job's own back. Its engines need a sync."""

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update on the request's samples."""

    async def log_probabilities(
        self, samples: Sequence[Sample], temperature: float, of: Policy = "policy"
    ) -> list[Floats]:
        """Return the trainer's log-probabilities of each sample's response tokens.

        The reference is the KL penalty's: the base model, or the adapter of the start.
        """

    async def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Return the critic's values of each sample's response tokens: the return that it expects before each."""

    async def publish(self, step: int, adapter_version: int, driver: DriverState, results: CardResults) -> None:
        """Take a checkpoint and publish it in the background. Its model card shows the results, values by name."""

    async def complete(self, step: int, results: CardResults, value: float | None) -> None:
        """Add an evaluation's results to the card of its step's checkpoint, and let the best one be chosen by `value`.

        Nothing waits for it, and a step without a checkpoint is ignored.
        """

    async def compare(self, values: Mapping[int, float]) -> None:
        """Choose the best checkpoint among those of earlier steps too, by the values of their evaluations."""

    async def best(self) -> Best | None:
        """Return the best checkpoint so far, if the job keeps it."""

    async def uploads(self) -> list[Published]:
        """Return the checkpoints published so far; raise if one could not be."""

    async def published(self) -> list[Published]:
        """Return the checkpoints published so far, also after one could not be."""

    async def drain_uploads(self, seconds: float = UPLOAD_SECONDS) -> list[Published]:
        """Wait until every checkpoint is published. After `seconds`, keep the newest on the worker's disk and raise."""

    async def finish(self) -> None:
        """Record in the job's folder that all steps are made. Everything is published before."""

    async def startup_spans(self) -> list[Span]:
        """Return the spans of the worker that reached its first update last."""

    async def drain_asked(self) -> bool:
        """Return whether a worker's pod is about to be removed."""
