"""The events of a run. Each is a small immutable value; `row_of` returns its line in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lorarl_trainer.progress.environment import Environment
from lorarl_trainer.progress.evaluations import is_eval_seconds
from lorarl_trainer.progress.shown import ScoredSample
from lorarl_trainer.progress.worker_events import MoreWorkers, WorkersLost
from lorarl_trainer.samples.columns import eval_column
from lorarl_trainer.timing import Span, by_name, critical_path

EVALUATE = "evaluate"
PHASES = (
    "wake",
    "generate",
    "reward",
    "environment",
    "sleep",
    "forward_backward",
    "optimizer",
    "sync",
    "checkpoint",
    EVALUATE,
    "other",
)
"""The phases of a step, in the order of the loop. `StepDone.seconds` has some or all of these keys.

An evaluation comes after its step. `generate` and `wake` are the times of the slowest engine. Completions are decoded
and scored as they finish, while others are still being generated; `reward` is the time that scoring takes beyond
generation, and `environment` that in which no engine generates because all episodes wait for their environment.
"""

_TIME_COLUMNS = frozenset({"at", "seconds", "tokens_per_second"})

type Event = (
    Noted
    | Downloading
    | RunStarted
    | StartedUp
    | Sampled
    | StepDone
    | EvalDone
    | CheckpointDone
    | BestFound
    | RecordOpened
    | Warned
    | WorkersLost
    | MoreWorkers
    | RunFinished
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSummary:
    """The adapter of the run."""

    type: str
    rank: int
    alpha: int
    modules: tuple[str, ...]
    """Full names of the layers that the adapter changes."""
    trainable_parameters: int
    total_parameters: int
    """Parameters of base and adapter together."""
    expert_rank: int | None = None
    """Rank on each expert's layers; None if no expert has an adapter."""
    shares_outer: bool = False
    """The experts of a layer share the matrices on the side of the hidden state."""
    chat: bool = False
    """It was trained with the chat template that is published with it."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The rows of an evaluation."""

    name: str
    """Of `data.evals`; empty for `data.eval`."""
    uri: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """The rows that fit the limits, and where they are from."""

    train: str
    train_rows: int
    held_out: tuple[HeldOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Everything is loaded, and the first step is next. A run whose workers are replaced starts again so."""

    job: str
    base_model: str
    """A folder or a name on the hub, as transformers and vLLM load it."""
    base_revision: str | None = None
    algorithm: str
    adapter: AdapterSummary
    total_steps: int
    resumed_from_step: int | None
    """The step of the checkpoint that the run resumes from; None for a run from the start."""
    out_dir: str
    manifest: str
    """The manifest in YAML, with overrides applied. The report shows it."""
    manifest_folder: str | None = None
    """The folder of the manifest, where the reward's code may be."""
    changes: tuple[str, ...] = ()
    """What the manifest changes for a run that resumes, as `trainer.learningRate 2e-05 -> 0.0001`."""
    data: DataSummary | None = None
    reward: str | None = None
    """The reward's type or function; None for sft and dpo."""
    environment: Environment = field(default_factory=Environment)
    pods: tuple[str, ...] = ()
    """Names of the workers' pods; none on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Some of the completions of a step, or of the evaluation after it."""

    step: int
    samples: tuple[ScoredSample, ...]
    evaluation: bool = False
    name: str = ""
    """Of the evaluation, see `EvalDone`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDone:
    """The adapter of `step` was evaluated on held-out rows: a score, or for sft a loss.

    The event follows the step's `StepDone`. Step 0 is the evaluation before training and has no `StepDone`.
    """

    step: int
    rows: int
    name: str = ""
    """Of `data.evals`; empty for `data.eval`."""
    samples: int = 1
    """Completions of each row."""
    unscored: int = 0
    """Completions that could not be scored. They are left out of the score."""
    score: float | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further means over the rows, by name: the components of the reward as reward/NAME, pass@4 as pass_at_4.

    The ends of a value's 95% interval have its name and _low and _high: score_low, pass_at_4_high.
    """
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One training step, 1 to `total_steps`.

    A metric is named once, where it is computed: in a loss (`losses/`), in the rollouts, or in the loop. It reaches
    metrics.jsonl, the trackers and the report under that name.
    """

    step: int
    total_steps: int
    adapter_version: int
    """The version that generates the next step's rollouts."""
    metrics: Mapping[str, float]
    """Values by column of metrics.jsonl. A metric that an algorithm does not have is absent: sft has no reward_mean."""
    tokens: int
    """Prompt and response tokens that the step trained on."""
    groups: int = 0
    """Groups of completions, or for sft and dpo the rows."""
    completions: int = 0
    """Completions of all groups together, also those that could not be scored."""
    tokens_per_second: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, see PHASES. Their sum is the duration of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDone:
    """A checkpoint is complete, and `latest.json` names it."""

    step: int
    uri: str
    """The adapter's folder."""
    version: int
    """Version of the adapter."""
    sha256: str
    """Hash of adapter_model.safetensors."""
    published_at: str
    """Time in RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFound:
    """A checkpoint is the best so far, and `latest.json` names it."""

    step: int
    uri: str
    """The adapter's folder."""
    metric: str
    """The column of metrics.jsonl that it was chosen by."""
    value: float
    sha256: str | None = None
    """Hash of its adapter_model.safetensors; None if an older version chose it."""


@dataclass(frozen=True, slots=True)
class RecordOpened:
    """The run's files are published to a folder of the checkpoints' store."""

    uri: str
    """That folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedUp:
    """The first update is done, so the start is over. The event reports where its time went."""

    parts: tuple[Span, ...]
    """Parts of the driver's start and of one worker's."""
    first_token: float | None
    """When the first token was generated, in Unix time; None if nothing is."""
    first_update: float
    """When the first update was done, in Unix time."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What the run does before its first step. Starting takes a while, and silence would look like a hang."""

    text: str


@dataclass(frozen=True, slots=True)
class Downloading:
    """A download has progressed. With its last byte it is over."""

    what: str
    """What is fetched."""
    done: int
    """Bytes so far."""
    total: int
    """All of its bytes."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that the user should know and that does not stop the run."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run has ended.

    A run is `interrupted` by SIGTERM or Ctrl-C. It leaves a checkpoint from which it can be resumed.
    """

    state: Literal["succeeded", "interrupted", "failed"]
    step: int
    adapter_uri: str | None
    """Folder of the newest published adapter; None if there is none."""
    total_seconds: float
    """Wall-clock time of the run in this process, including start-up."""
    message: str = ""
    """Why the run failed or was interrupted."""
    reason: str = ""
    """The message in one CamelCase word, for programs."""
    what_next: str = ""
    """After a failure: what the same command will do, by what is in the store. Empty if that is not known."""


def row_of(event: StepDone | EvalDone) -> dict[str, Any]:
    """Return the event as a line of metrics.jsonl.

    The line is flat except for `seconds`. An evaluation's columns begin with `eval_`, and those of `data.evals` with
    `eval_NAME/`. NaN and infinity become null.
    """
    if isinstance(event, EvalDone):
        return {"step": event.step, **_eval_columns(event)}
    return {
        "step": event.step,
        "total_steps": event.total_steps,
        "adapter_version": event.adapter_version,
        **{name: _finite(value) for name, value in event.metrics.items()},
        "tokens": event.tokens,
        "tokens_per_second": _finite(event.tokens_per_second),
        "seconds": {phase: round(seconds, 6) for phase, seconds in event.seconds.items()},
    }


def is_time_column(column: str) -> bool:
    """Return whether a column of metrics.jsonl measures time.

    All others are equal in two runs with one seed, interrupted or not.
    """
    return column in _TIME_COLUMNS or is_eval_seconds(column)


def scalars_of(event: StepDone | EvalDone) -> dict[str, float]:
    """Return the event's numbers by their names in metrics.jsonl, phases as seconds/PHASE; nulls are left out."""
    row = row_of(event)
    step_seconds: Mapping[str, float] = row.pop("seconds", {})
    flat = row | {f"seconds/{phase}": value for phase, value in step_seconds.items()}
    return {
        name: float(value) for name, value in flat.items() if value is not None and name not in ("step", "total_steps")
    }


def results_of(event: EvalDone) -> dict[str, float]:
    """Return the event's numbers but its duration, by column of metrics.jsonl."""
    return {
        column: float(value)
        for column, value in _eval_columns(event).items()
        if value is not None and column != eval_column(event.name, "seconds")
    }


def startup_of(event: StartedUp) -> dict[str, Any]:
    """Return the start as in run_summary.json, with times in seconds since the process began.

    The values of `waited_for` add up to `first_update_seconds`. Parts that are not in `waited_for` ran in parallel.
    """
    parts = sorted(event.parts, key=lambda part: part.begin)
    began = parts[0].begin
    return {
        "began": began,
        "first_token_seconds": None if event.first_token is None else round(event.first_token - began, 3),
        "first_update_seconds": round(event.first_update - began, 3),
        "waited_for": {
            name: round(seconds, 3) for name, seconds in by_name(critical_path(parts, event.first_update)).items()
        },
        "parts": [
            {
                "name": part.name,
                "who": part.who,
                "begin": round(part.begin - began, 3),
                "seconds": round(part.seconds, 3),
            }
            for part in parts
        ],
    }


def _eval_columns(event: EvalDone) -> dict[str, Any]:
    values = {
        "score": _finite(event.score),
        "loss": _finite(event.loss),
        **{name: _finite(value) for name, value in event.metrics.items()},
        "rows": event.rows,
        **({"unscored": event.unscored} if event.unscored else {}),
        "seconds": round(event.seconds, 6),
    }
    return {eval_column(event.name, metric): value for metric, value in values.items()}


def _finite(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
