"""What the loop tells about a run. Each event is a small immutable value; `row_of` makes its line in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..timing import Span, by_name, critical_path

EVALUATE = "evaluate"
PHASES = (
    "wake",
    "generate",
    "reward",
    "sleep",
    "forward_backward",
    "optimizer",
    "sync",
    "checkpoint",
    EVALUATE,
    "other",
)
"""Where a step's time goes, in the order of the loop. `StepDone.seconds` has these keys, or some of them; an evaluation follows its step.

`generate` and `wake` are the slowest engine's. Completions are decoded and scored as they end, while others are still being generated:
`reward` is what that takes beyond generation.
"""

TIME_COLUMNS = frozenset({"seconds", "tokens_per_second", "eval_seconds"})
"""Columns of metrics.jsonl that measure time: all others are the same in two runs of one seed, interrupted or not."""

type Event = Noted | RunStarted | StartedUp | Sampled | StepDone | EvalDone | CheckpointDone | Warned | RunFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSummary:
    """The adapter as it was built."""

    type: str
    rank: int
    alpha: int
    modules: tuple[str, ...]
    """Full names of the layers that have an adapter."""
    trainable_parameters: int
    total_parameters: int
    """Base and adapter together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Everything is loaded; the first step is next."""

    job: str
    base_model: str
    """What transformers and vLLM can load: a folder or a name on the hub."""
    base_revision: str | None = None
    algorithm: str
    adapter: AdapterSummary
    total_steps: int
    resumed_from_step: int | None
    """Step of the checkpoint the run goes on from; None for a run from the start."""
    out_dir: str
    manifest: str
    """The manifest as it is run, in YAML: it goes into the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """A completion and what it was worth."""

    prompt: str | Sequence[Mapping[str, Any]]
    """As the data has it: a text or chat messages."""
    completion: str
    answer: str | None
    reward: float | None
    """None where it could not be scored."""
    tokens: int
    truncated: bool
    """Whether it was cut off at `rollout.maxResponseTokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Some of the completions of a step, or of an evaluation after it."""

    step: int
    samples: tuple[ScoredSample, ...]
    evaluation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDone:
    """Held-out rows were evaluated with the adapter of `step`: a score (grpo) or a loss (sft).

    It comes after the step's `StepDone`, of which there is none for step 0, before training.
    """

    step: int
    rows: int
    score: float | None = None
    loss: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One training step, 1 to `total_steps`.

    A metric is named once, where it is computed: by a loss (`losses/`), by the rollouts, or by the loop. From here it
    reaches metrics.jsonl, the trackers and the report under that name.
    """

    step: int
    total_steps: int
    adapter_version: int
    """The version that vLLM generates the next step's rollouts with."""
    metrics: Mapping[str, float]
    """By column of metrics.jsonl. An algorithm that has no such metric leaves it out: sft has no reward_mean."""
    tokens: int
    """Prompt and response tokens trained on."""
    tokens_per_second: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, see PHASES; their sum is the step's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDone:
    """A checkpoint is whole and `latest.json` names it."""

    step: int
    uri: str
    """The adapter's folder."""
    version: int
    """Of the adapter."""
    sha256: str
    """Of adapter_model.safetensors."""
    published_at: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedUp:
    """The first update is made: the start is over, and this is where its time went."""

    parts: tuple[Span, ...]
    """The driver's and one worker's."""
    first_token: float | None
    """When the first token was generated, Unix time; None for sft."""
    first_update: float
    """When the first update was done."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What the run is at before its first step: starting takes a while, and silence looks like a hang."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know that does not stop the run."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run has ended. interrupted: after SIGTERM or Ctrl-C, with a checkpoint, to be gone on with."""

    state: Literal["succeeded", "interrupted", "failed"]
    step: int
    adapter_uri: str | None
    """Folder of the newest published adapter; None where there is none."""
    total_seconds: float
    """Wall-clock time of this process's run, start-up included."""
    message: str = ""
    """Why it failed or was interrupted."""
    reason: str = ""
    """The same in one CamelCase word, for programs."""


def row_of(event: StepDone | EvalDone) -> dict[str, Any]:
    """The event as a line of metrics.jsonl: flat but for `seconds`, evaluation under `eval_*`, null for what is no finite number."""
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


def startup_of(event: StartedUp) -> dict[str, Any]:
    """The start as run_summary.json has it: times in seconds since the process began.

    `waited_for` adds up to `first_update_seconds`; what is in `parts` and not there went on beside it.
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
    return {
        "eval_score": _finite(event.score),
        "eval_loss": _finite(event.loss),
        "eval_rows": event.rows,
        "eval_seconds": round(event.seconds, 6),
    }


def _finite(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
