"""Makes the scorer of `spec.reward`."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec, RewardSpec
from lorarl_trainer.rewards.builtin import BuiltinScorer, make_compare
from lorarl_trainer.rewards.pool import PoolScorer
from lorarl_trainer.rewards.scores import Scorer

FIELD = "spec.reward"


def make_scorer(
    spec: RewardSpec,
    manifest_folder: Path,
    *,
    processes: int | None = None,
    log: Path | None = None,
    field: str = FIELD,
) -> Scorer:
    """Make the scorer of a manifest's reward.

    Args:
        spec: `spec.reward`.
        manifest_folder: where functions are searched after the Python path and the working directory.
        processes: number of processes of a function and of math_verify; None for one per usable core, at most 8.
        log: gets what a function prints; None for this process's own output.
        field: the reward's path in the manifest, for errors.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    if spec.function is None and spec.type != "math_verify":
        return BuiltinScorer(make_compare(spec), f"{field}.type")
    return PoolScorer(
        spec.function or "lorarl_trainer.rewards.mathematics:score",
        timeout_seconds=spec.timeout_seconds,
        search_path=[Path.cwd(), manifest_folder.resolve()],
        field=f"{field}.function" if spec.function else f"{field}.type",
        processes=processes,
        log=log,
    )


def make_eval_scorers(
    spec: LoRARLJobSpec, manifest_folder: Path, *, processes: int | None = None, log: Path | None = None
) -> dict[str, Scorer]:
    """Make the scorers of the evaluations that have a reward of their own, by their names; see `make_scorer`."""
    return {
        source.name: make_scorer(
            source.reward, manifest_folder, processes=processes, log=log, field=f"spec.data.evals[{number}].reward"
        )
        for number, source in enumerate(spec.data.evals)
        if source.reward
    }


def needs_answers(spec: RewardSpec) -> bool:
    """Whether every row must have an answer. The built-in rewards compare with it; functions may not need it."""
    return spec.function is None
