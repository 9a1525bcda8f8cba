"""Early stopping of a sweep's trials by their metrics.jsonl. Files in a trial's folder say what was decided."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lorarl_api.sweeps.halving import Climber, HalvingRule, HalvingVerdict, Mark, standings
from lorarl_api.sweeps.objective import usual_goal
from lorarl_api.sweeps.stopping import MedianRule, Verdict, stopped_by_median
from lorarl_trainer.launch.sweep import Trial, curve, usual_objective
from lorarl_trainer.progress import METRICS, read_rows

_STOPPED = "stopped.json"
_RUNGS = "rungs.json"


@dataclass(frozen=True)
class Present:
    """What the trials of a sweep do at the moment.

    Attributes:
        running: those whose process runs and that were not asked to end.
        ended: those that have made all their steps.
        failed: those that have failed since the sweep's command began.
    """

    running: Collection[Trial] = ()
    ended: Collection[Trial] = ()
    failed: Collection[Trial] = ()


class EarlyStopping(Protocol):
    """Judges trials by all that the trials of a sweep have reached."""

    def verdicts(self, present: Present) -> Mapping[Trial, Verdict | HalvingVerdict]:
        """Return which trials do not continue, and why, and keep that in files.

        A verdict that is not `final` holds if another trial can have the place. A later one may let the trial continue.
        """


@dataclass
class Reached:
    """What the trials of a sweep have reached, read when a file has changed.

    Attributes:
        trials: all of the sweep.
        objective: a column of metrics.jsonl; None for the usual one.
    """

    trials: Sequence[Trial]
    objective: str | None
    _read: dict[Path, tuple[object, list[dict[str, Any]]]] = field(default_factory=dict)  # by file, with its state then

    def curves(self) -> tuple[str, dict[Trial, list[tuple[int, float]]]]:
        """Return the objective, and each trial's values of it. One that is no number is NaN."""
        rows = {trial: self._rows(trial.folder / METRICS) for trial in self.trials}
        objective = self.objective or usual_objective(rows.values())
        return objective, {trial: curve(of_trial, objective) for trial, of_trial in rows.items()}

    def began(self, trial: Trial) -> str | None:
        """Return when the training began of which there are values. One that begins again has none of the earlier."""
        return next((row.get("at") for row in self._rows(trial.folder / METRICS)), None)

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        state = ((found := path.stat()).st_size, found.st_mtime_ns) if path.exists() else None
        if path not in self._read or self._read[path][0] != state:
            self._read[path] = state, [dict(row) for row in read_rows(path)]
        return self._read[path][1]


@dataclass(frozen=True)
class MedianStopping:
    """Ends trials by the median of the others. What it has stopped stays so."""

    rule: MedianRule
    reached: Reached

    def verdicts(self, present: Present) -> Mapping[Trial, Verdict]:
        """See `EarlyStopping`. A trial is recorded as stopped before it is: a killed sweep does not start it again."""
        objective, curves = self.reached.curves()
        numbers = {trial: [point for point in one if math.isfinite(point[1])] for trial, one in curves.items()}
        found = {trial: verdict for trial in curves if (verdict := stopped(trial))}
        for trial in present.running:
            others = [one for other, one in numbers.items() if other != trial]
            if verdict := stopped_by_median(numbers[trial], others, usual_goal(objective), self.rule):
                found[trial] = verdict
                (trial.folder / _STOPPED).write_text(json.dumps(asdict(verdict)) + "\n", encoding="utf-8")
        return found


@dataclass(frozen=True)
class HalvingStopping:
    """Lets the best at each rung continue.

    Attributes:
        steps: that each trial is to make.
    """

    rule: HalvingRule
    reached: Reached
    steps: Mapping[Trial, int]

    def verdicts(self, present: Present) -> Mapping[Trial, HalvingVerdict]:
        """See `EarlyStopping`. The rungs of a trial are recorded before it continues or ends."""
        objective, curves = self.reached.curves()
        began = {trial: self.reached.began(trial) for trial in curves}
        marks = {trial: _marks(trial, objective, began[trial]) for trial in curves}
        climbers = {
            trial: Climber(one, self.steps[trial], marks[trial], ended=trial in present.ended)
            for trial, one in curves.items()
            if trial not in present.failed
        }
        found = standings(climbers, usual_goal(objective), self.rule)
        for trial, standing in found.items():
            if standing.marks != marks[trial]:
                rungs = [asdict(mark) for mark in standing.marks]
                text = json.dumps({"objective": objective, "began": began[trial], "rungs": rungs})
                (part := trial.folder / f"{_RUNGS}.part").write_text(text + "\n", encoding="utf-8")
                part.replace(trial.folder / _RUNGS)
        return {trial: standing.verdict for trial, standing in found.items() if standing.verdict}


def _marks(trial: Trial, objective: str, began: str | None) -> tuple[Mark, ...]:
    """The recorded rungs of a trial, if they are of this objective, and of the training that began then."""
    try:
        found = json.loads((trial.folder / _RUNGS).read_text(encoding="utf-8"))
        same = (found["objective"], found["began"]) == (objective, began)
        return tuple(Mark(**one) for one in found["rungs"]) if same else ()
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # what cannot be read is found again from the values
        return ()


def forget(trial: Trial) -> None:
    """Let a trial continue that the median had stopped, or say that it ended by itself."""
    (trial.folder / _STOPPED).unlink(missing_ok=True)


def stopped(trial: Trial) -> Verdict | None:
    """Return why the median has stopped a trial; None if it has not."""
    try:
        found: Mapping[str, Any] = json.loads((trial.folder / _STOPPED).read_text(encoding="utf-8"))
        return Verdict(**found)
    except (FileNotFoundError, ValueError, TypeError):
        return None
