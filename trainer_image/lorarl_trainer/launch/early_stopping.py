"""Early stopping of a sweep's trials by their metrics.jsonl. A file in a trial's folder says that it was stopped."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lorarl_api.sweeps.objective import usual_goal
from lorarl_api.sweeps.stopping import MedianRule, Verdict, stopped_by_median
from lorarl_trainer.launch.sweep import Trial, curve, usual_objective
from lorarl_trainer.progress import METRICS, read_rows

_STOPPED = "stopped.json"


@dataclass
class EarlyStopping:
    """Judges running trials by all that the trials of a sweep have reached.

    Attributes:
        rule: when a trial is stopped.
        trials: all of the sweep.
        objective: a column of metrics.jsonl; None for the usual one.
    """

    rule: MedianRule
    trials: Sequence[Trial]
    objective: str | None
    _read: dict[Path, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)  # by file, with its size then

    def verdicts(self, running: Collection[Trial]) -> dict[Trial, Verdict]:
        """Return which of the running trials are to be stopped, and why."""
        rows = {trial: self._rows(trial.folder / METRICS) for trial in self.trials}
        objective = self.objective or usual_objective(rows.values())
        curves = {trial: curve(of_trial, objective) for trial, of_trial in rows.items()}
        found = {}
        for trial in running:
            others = [one for other, one in curves.items() if other != trial]
            if verdict := stopped_by_median(curves[trial], others, usual_goal(objective), self.rule):
                found[trial] = verdict
        return found

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        size = path.stat().st_size if path.exists() else 0
        if self._read.get(path, (-1, []))[0] != size:
            self._read[path] = size, [dict(row) for row in read_rows(path)]
        return self._read[path][1]


def record(trial: Trial, verdict: Verdict) -> None:
    """Write that a trial is stopped, before it is: a sweep that is killed then does not start it again."""
    (trial.folder / _STOPPED).write_text(json.dumps(asdict(verdict)) + "\n", encoding="utf-8")


def forget(trial: Trial) -> None:
    """Let a trial continue, or say that it ended by itself."""
    (trial.folder / _STOPPED).unlink(missing_ok=True)


def stopped(trial: Trial) -> Verdict | None:
    """Return why a trial was stopped; None if it was not."""
    try:
        found: Mapping[str, Any] = json.loads((trial.folder / _STOPPED).read_text(encoding="utf-8"))
        return Verdict(**found)
    except (FileNotFoundError, ValueError, TypeError):
        return None
