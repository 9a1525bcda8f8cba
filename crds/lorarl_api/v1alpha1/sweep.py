"""`LoRARLSweep`: many jobs that differ in some values, and how the best of them is found."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Immutable, Rule, immutable
from lorarl_api.sweeps.halving import FACTOR
from lorarl_api.sweeps.stopping import MIN_TRIALS, START_AFTER
from lorarl_api.v1alpha1.common import FREE_FORM, MAX_SECONDS, Model
from lorarl_api.v1alpha1.job import Checked
from lorarl_api.v1alpha1.kubernetes import AnnotationValue, LabelValue
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.sweep_status import LoRARLSweepStatus

SWEEP_KIND = "LoRARLSweep"
MAX_TRIALS = 100
_MAX_AXES = 6

FIELD_PATH = "^spec([.][A-Za-z][A-Za-z0-9]*)+$"
FieldPath = Annotated[
    str,
    Field(
        max_length=256,
        pattern=FIELD_PATH,
        examples=["spec.trainer.learningRate"],
        json_schema_extra={"expected": "the path of a field of a LoRARLJob, such as spec.trainer.learningRate"},
    ),
]
TrialName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
_ANY = Field(json_schema_extra=FREE_FORM)


class SweepTemplateMetadata(Model):
    """Labels and annotations of each trial's job."""

    labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels. Those of Kueue on the sweep itself are passed on too.",
        examples=[{"kueue.x-k8s.io/queue-name": "research"}],
    )
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64, description="Annotations.")


class SweepTemplate(Model):
    """What the jobs of all trials have in common."""

    metadata: SweepTemplateMetadata = Field(
        default_factory=SweepTemplateMetadata, description="Labels and annotations of each trial's job."
    )
    spec: dict[str, Any] = Field(description="Spec of a LoRARLJob, without the values that each trial sets.")


class SweepAxis(Model):
    """A field, and the values that it has in turn."""

    path: FieldPath = Field(description="The field of a LoRARLJob.")
    values: list[Annotated[Any, _ANY]] = Field(
        min_length=1,
        max_length=MAX_TRIALS,
        description="Its values, as a manifest has them.",
        examples=[[1e-5, 3e-5]],
    )


class SweepTrial(Model):
    """A trial of a list."""

    name: TrialName | None = Field(
        None, description="End of its job's name. Default: its values.", examples=["large-rank"]
    )
    set: dict[str, Annotated[Any, _ANY]] = Field(
        min_length=1,
        max_length=32,
        description="Values by the path of their field.",
        examples=[{"spec.adapter.rank": 64}],
    )


class SweepObjective(Model):
    """What the best trial has most of, as its job's status says it."""

    metric: Literal["best", "evalScore", "reward", "kl", "tokensPerSecond"] = Field(
        description="best: status.best.value of the jobs, which checkpoint.keepBest chooses; the sweep then names that "
        "checkpoint. The others are the newest values in status.metrics of the jobs, and the sweep names the newest "
        "adapter. Other columns of metrics.jsonl are not in a status.",
        examples=["best"],
    )
    goal: Literal["Maximize", "Minimize"] | None = Field(
        None, description="Default: Minimize for a loss and for kl, and Maximize for all else."
    )


class MedianStopping(Model):
    """Stop a trial whose best value so far is worse than the median of the others at its step."""

    start_after: int = Field(START_AFTER, ge=1, le=10_000_000, description="Steps that a trial may always make.")
    min_trials: int = Field(
        MIN_TRIALS,
        ge=1,
        le=MAX_TRIALS,
        description="How many other trials must have reached a step before it stops any.",
    )


class HalvingStopping(Model):
    """At each rung of steps, let the best of the trials continue. The first rung has startAfter steps."""

    start_after: int = Field(START_AFTER, ge=1, le=10_000_000, description="Steps that a trial may always make.")
    factor: int = Field(
        FACTOR,
        ge=2,
        le=MAX_TRIALS,
        description="One of so many trials continues from a rung, and the next rung has so many times the steps.",
    )


class SweepStopping(Model):
    """Which trials end early. A stopped trial is suspended: it keeps its checkpoints and adapters."""

    median: MedianStopping | None = Field(
        None,
        description="The median stopping rule of Google Vizier (Golovin et al., 2017). Either this or halving.",
        examples=[{"startAfter": 20}],
    )
    halving: HalvingStopping | None = Field(
        None,
        description="Asynchronous successive halving (Li et al., 2020). Either this or median.",
        examples=[{"startAfter": 10, "factor": 3}],
    )
    exempt: list[TrialName] = Field(
        default_factory=list,
        max_length=MAX_TRIALS,
        description="Names of trials' jobs that are never stopped. One that was stopped continues.",
        examples=[["sums-seed-0"]],
    )


_KEEPS_BEST = "has(self.template.spec.checkpoint) && has(self.template.spec.checkpoint.keepBest)"
_EVALUATES = "has(self.template.spec.data) && (has(self.template.spec.data.eval) || has(self.template.spec.data.evals))"
_OTHER_SWEEP = "Apply another sweep: its trials would be other ones."


def _set_by_trials(beginning: str) -> str:
    """The condition that trials may set a field whose path begins so. A list's values are not visible to the rule."""
    return f"has(self.trials) || self.over.exists(o, o.path.startsWith('{beginning}'))"


class LoRARLSweepSpec(Checked):
    """The jobs, how many run at a time, and what is better."""

    template: SweepTemplate = Field(description="What the jobs of all trials have in common.")
    over: list[SweepAxis] | None = Field(
        None,
        min_length=1,
        max_length=_MAX_AXES,
        description="Fields with values: each combination is a trial. Either this or trials.",
        examples=[[{"path": "spec.trainer.learningRate", "values": [1e-5, 3e-5]}]],
    )
    trials: list[SweepTrial] | None = Field(
        None,
        min_length=1,
        max_length=MAX_TRIALS,
        description="The trials one by one. Either this or over.",
        examples=[[{"name": "large-rank", "set": {"spec.adapter.rank": 64}}]],
    )
    parallelism: int = Field(
        1,
        ge=1,
        le=MAX_TRIALS,
        description="How many trials are unfinished at a time. May be changed at any time; a smaller number ends none.",
    )
    objective: SweepObjective | None = Field(
        None,
        description="What the best trial has most of. Default: no trial is named. May be set later, but not changed.",
    )
    stopping: SweepStopping | None = Field(
        None,
        description="Which trials end early. Default: none. May be changed at any time; if it is removed, the trials "
        "that it stopped continue.",
        examples=[{"median": {"startAfter": 20}}],
    )
    suspend: bool = Field(
        False,
        description="Suspend the unfinished trials, and begin no others. May be changed at any time.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="Seconds after its end until the sweep is deleted, with its jobs. checkpoint.deletionPolicy says "
        "what happens to their checkpoints. Default: never. May be changed at any time.",
        examples=[604_800],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("over", "has(self.over) != has(self.trials)", "be set, or trials, but not both", "Keep one of them."),
        Rule(
            "over",
            "!has(self.over) || self.over.all(a, self.over.exists_one(b, b.path == a.path))",
            "have each path once",
            "Put all values of a path into one entry.",
        ),
        Rule(
            "over",
            "!has(self.over) || self.over.all(a, a.path != 'spec.suspend')",
            "not set spec.suspend, which the sweep uses",
            "Set suspend of the sweep.",
        ),
        Rule(
            "stopping",
            "!has(self.stopping) || has(self.stopping.median) != has(self.stopping.halving)",
            "have median or halving, but not both",
            "Set one of them, such as median: {}. To stop no trial, remove stopping.",
        ),
        Rule(
            "objective",
            "!has(self.stopping) || has(self.objective)",
            "be set with stopping, which compares trials by it",
            "Add objective: {metric: best}, or remove stopping.",
        ),
        Rule(
            "objective",
            "!has(self.objective) || self.objective.metric != 'best' || "
            f"({_KEEPS_BEST}) || {_set_by_trials('spec.checkpoint')}",
            "name a value that the jobs report: best needs checkpoint.keepBest",
            "Add checkpoint.keepBest: {} to the template, with data.eval to choose by, or name evalScore, reward, kl "
            "or tokensPerSecond.",
        ),
        Rule(
            "objective",
            "!has(self.objective) || self.objective.metric != 'evalScore' || "
            f"({_EVALUATES}) || {_set_by_trials('spec.data')}",
            "name a value that the jobs report: evalScore needs data.eval or data.evals",
            "Add data.eval to the template, or name reward, kl or tokensPerSecond.",
        ),
    )
    immutable: ClassVar[tuple[Immutable, ...]] = (
        immutable("template", _OTHER_SWEEP),
        immutable("over", _OTHER_SWEEP, optional=True),
        immutable("trials", _OTHER_SWEEP, optional=True),
        Immutable(
            "objective",
            "!has(oldSelf.objective) || has(self.objective) && self.objective == oldSelf.objective",
            _OTHER_SWEEP,
            unless="while it is not set",
        ),
    )


class LoRARLSweep(Checked):
    """Jobs that differ in some values, some at a time, and the best of them."""

    api_version: Literal["lorarl.io/v1alpha1"] = Field(description="Version of the API.")
    kind: Literal["LoRARLSweep"] = Field(description="Kind of the object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: LoRARLSweepSpec = Field(description="The jobs, how many run at a time, and what is better.")
    status: LoRARLSweepStatus | None = Field(
        None, description="What became of the trials. lorarl writes it, never the user."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"have at most {MAX_NAME} characters a-z, 0-9 and -, begin with a letter, and end with a letter or digit",
            "Use another name: the names of its jobs begin with it.",
        ),
    )
