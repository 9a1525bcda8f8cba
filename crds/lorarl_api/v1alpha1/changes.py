"""Which fields of a job may change after it was applied, and when."""

from __future__ import annotations

from lorarl_api.rules import Immutable, fixed_unless, immutable, immutable_except, parts_fixed_unless
from lorarl_api.v1alpha1.rollout import RolloutSpec
from lorarl_api.v1alpha1.runtime import CheckpointSpec, TrainerSpec

# What to do if a field may not change. A change of some fields would be a different training, and of others not.
_OTHER_TRAINING = "Apply the manifest under another metadata.name, because it would be a different training."
_SAME_TRAINING = (
    "Delete the job and apply it again: it resumes from its newest checkpoint if checkpoint.deletionPolicy is Retain."
)

_MEMORY_OF_ROLLOUTS = ("offload", "tensorParallelSize", "gpuMemoryFraction")
_MEMORY_OF_TRAINER = (
    *("tokensPerMicroBatch", "recompute"),
    *("tensorParallelSize", "contextParallelSize", "expertParallelSize"),
)
"""Settings that decide how much memory a job needs, and not what it trains."""
_NOTHING_RUNS = (
    "self.spec.suspend || !has(oldSelf.status) || !has(oldSelf.status.phase) || "
    "oldSelf.status.phase in ['Pending', 'Restarting', 'Suspending', 'Suspended']"
)
_WHILE_NOTHING_RUNS = "while nothing runs: with suspend: true, or in phase Pending or Restarting"
_NEXT_ATTEMPT = "Set spec.suspend: true with the change, and false again later. The next attempt uses it."

SPEC_CHANGES: tuple[Immutable, ...] = (
    immutable("model", _OTHER_TRAINING),
    immutable("adapter", _OTHER_TRAINING),
    immutable("algorithm", _OTHER_TRAINING),
    immutable("reward", _OTHER_TRAINING, optional=True),
    immutable("rewards", _OTHER_TRAINING, optional=True),
    immutable("environment", _OTHER_TRAINING, optional=True),
    immutable("data", _OTHER_TRAINING),
    immutable_except("rollout", RolloutSpec, _MEMORY_OF_ROLLOUTS, _SAME_TRAINING),
    immutable_except("trainer", TrainerSpec, ["steps", *_MEMORY_OF_TRAINER], _SAME_TRAINING),
    immutable_except("checkpoint", CheckpointSpec, ["deletionPolicy"], _SAME_TRAINING),
)
"""Of the spec: fields that never change."""
JOB_CHANGES: tuple[Immutable, ...] = (
    fixed_unless(_NOTHING_RUNS, _WHILE_NOTHING_RUNS, "spec.cluster", _NEXT_ATTEMPT),
    fixed_unless(_NOTHING_RUNS, _WHILE_NOTHING_RUNS, "spec.tracking", _NEXT_ATTEMPT),
    fixed_unless(_NOTHING_RUNS, _WHILE_NOTHING_RUNS, "spec.templateRef", _NEXT_ATTEMPT, optional=True),
    *parts_fixed_unless(
        _NOTHING_RUNS, _WHILE_NOTHING_RUNS, "spec.rollout", RolloutSpec, _MEMORY_OF_ROLLOUTS, _NEXT_ATTEMPT
    ),
    *parts_fixed_unless(
        _NOTHING_RUNS, _WHILE_NOTHING_RUNS, "spec.trainer", TrainerSpec, _MEMORY_OF_TRAINER, _NEXT_ATTEMPT
    ),
)
"""Of the job: fields that change while nothing runs."""
