"""What earlier runs recorded of the training that a run continues: its evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint.open import best_by
from lorarl_trainer.loop import SHOWN_RESULTS
from lorarl_trainer.progress import METRICS, read_rows
from lorarl_trainer.progress.evaluations import is_eval_seconds
from lorarl_trainer.samples.columns import eval_column
from lorarl_trainer.schedule import evaluations_due
from lorarl_trainer.session import FIRST_RESULTS, STEP_RESULTS


@dataclass(frozen=True)
class Recorded:
    """What is known of the steps up to the one that a run continues from.

    Attributes:
        evaluated: whether all evaluations of that step were made; None if nothing recorded it, as in another pod.
        results: what its model card shows: columns of values by name.
        chosen_by: for `checkpoint.keepBest`, each step's value that the best checkpoint is chosen by.
    """

    evaluated: bool | None
    results: dict[str, dict[str, float]]
    chosen_by: dict[int, float]


def recorded(out_dir: Path, spec: LoRARLJobSpec, step: int) -> Recorded:
    """Return what is recorded in a run's folder about the steps up to `step`; of a start from scratch, nothing."""
    rows = read_rows(out_dir / METRICS)
    own = next((row for row in rows if row["step"] == step), None)
    due = evaluations_due(spec.data, step, spec.trainer.steps)
    evaluated = None if own is None else all(eval_column(name, "rows") in own for name in due)
    if not step:
        return Recorded(evaluated, {}, {})
    results = {FIRST_RESULTS: _evaluations(next((row for row in rows if row["step"] == 0), {}))}
    if own is not None:
        results[STEP_RESULTS] = {name: own[name] for name in SHOWN_RESULTS if name in own} | _evaluations(own)
    return Recorded(evaluated, {name: found for name, found in results.items() if found}, _chosen_by(rows, spec, step))


def _evaluations(row: Mapping[str, Any]) -> dict[str, float]:
    columns = (name for name in row if name.startswith("eval_") and not is_eval_seconds(name))
    return {name: row[name] for name in columns if row[name] is not None}


def _chosen_by(rows: Sequence[Mapping[str, Any]], spec: LoRARLJobSpec, step: int) -> dict[int, float]:
    """Return the values that checkpoints were compared by. The base model's own value does not count."""
    if (by := best_by(spec)) is None:
        return {}
    values = {row["step"]: row.get(by.metric) for row in rows if 0 < row["step"] <= step}
    return {made: value for made, value in values.items() if value is not None}
