"""Trials that give their places to others at a rung, as processes that report what a training reports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lorarl_api.sweeps.halving import HalvingRule
from lorarl_trainer.cli.sweep import stopping_of
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import trials as module
from lorarl_trainer.launch.early_stopping import HalvingStopping, Reached
from lorarl_trainer.launch.sweep import Trial, grid
from lorarl_trainer.launch.trials import Group, Trials
from lorarl_trainer.progress import METRICS, read_rows
from unit.contract.manifests import SMALLEST

STEPS = 100
TRAINING = """
import json, pathlib, signal, sys
path, value, steps = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
for step in range(len(path.read_text().splitlines()) if path.exists() else 0, steps):
    with path.open("a") as file:
        file.write(json.dumps({"step": step + 1, "reward_mean": value}) + "\\n")
    if value > 0.8 and step == 20:
        sys.exit(3)
    if signal.sigtimedwait({signal.SIGTERM}, 0.01):
        sys.exit(75)
"""


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's, whose trials are short processes: the one value that differs is the reward, and one of 0.9 fails."""

    def start(command: Sequence[str], output: Path, _: Mapping[str, str]) -> subprocess.Popen[bytes]:
        value = next(one for one in command if one.startswith("spec.trainer.minLearningRateShare=")).partition("=")[2]
        training = [sys.executable, "-c", TRAINING, str(output.parent / METRICS), value, str(STEPS)]
        with output.open("wb") as printed:
            return subprocess.Popen(training, stdout=printed, stderr=printed)

    monkeypatch.setattr(module, "start_child", start)
    monkeypatch.setattr(module, "has_finished", lambda folder, _: done(folder) == STEPS)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_VERDICTS", 0.02)
    monkeypatch.setattr(module, "_LOOKS_PER_SECOND", 50)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(SMALLEST))
    return path


def done(folder: Path) -> int:
    return len(read_rows(folder / METRICS))


def trials_of(manifest: Path, *values: float) -> list[Trial]:
    over = [f"spec.trainer.minLearningRateShare={','.join(map(str, values))}"]
    return grid("demo", over, ["spec.trainer.learningRateSchedule=cosine"], manifest.parent / "sweep")


def run(manifest: Path, trials: list[Trial], places: int, groups: int = 1) -> tuple[dict[Trial, int], list[str]]:
    lines: list[str] = []
    stopping = HalvingStopping(HalvingRule(5, 3), Reached(trials, None), dict.fromkeys(trials, STEPS))
    made = Trials(manifest, lines.append, stopping)
    size = len(trials) // groups
    return made.run([Group(trials[at : at + size], [{}] * places) for at in range(0, len(trials), size)]), lines


@pytest.mark.parametrize(("places", "groups"), [(1, 1), (4, 1), (1, 2)])
def test_the_best_makes_all_steps_and_the_others_few(manifest: Path, places: int, groups: int) -> None:
    trials = trials_of(manifest, 0.1, 0.3, 0.4, 0.2)
    codes, lines = run(manifest, trials, places, groups)
    assert codes == dict.fromkeys(trials, 0)
    steps = [done(trial.folder) for trial in trials]
    assert steps[2] == STEPS and all(5 <= one < STEPS for one in (steps[0], steps[1], steps[3])), lines
    assert any("is number" in line for line in lines)
    assert (places == 4) != any("gives its place to others" in line for line in lines), "none waits for a place"
    codes, lines = run(manifest, trials, places, groups)
    assert codes == {} and [done(trial.folder) for trial in trials] == steps, "a restart decides the same"
    assert sum("was stopped, since" in line for line in lines) == 3
    codes = Trials(manifest, lines.append).run([Group(trials, [{}] * 4)])
    assert [done(trial.folder) for trial in trials] == [STEPS] * 4, "without --stop they continue"


def test_a_held_trial_continues_in_a_place_that_is_left_over(manifest: Path) -> None:
    """Three places at a second start: one of the two that were held has the third until the end, the better one."""
    trials = trials_of(manifest, 0.5, 0.6, 0.9, 0.1)
    stopping = HalvingStopping(HalvingRule(5, 4), Reached(trials, None), dict.fromkeys(trials, STEPS))
    for trial in trials[:2]:
        trial.folder.mkdir(parents=True)
        rows = ({"step": step, "reward_mean": 0.5 + 0.1 * trials.index(trial)} for step in range(1, 6))
        (trial.folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines: list[str] = []
    codes = Trials(manifest, lines.append, stopping).run([Group(trials, [{}] * 3)])
    assert any("waits, since its 0.6" in line for line in lines), lines
    assert any("no other trial needs the place" in line for line in lines)
    assert codes[trials[2]] == 3 and done(trials[1].folder) == STEPS


def test_the_next_best_takes_the_place_of_one_that_fails(manifest: Path) -> None:
    trials = trials_of(manifest, 0.1, 0.3, 0.9)
    codes, lines = run(manifest, trials, 1)
    assert codes == {trials[0]: 0, trials[1]: 0, trials[2]: 3}, lines
    assert done(trials[0].folder) < STEPS and done(trials[1].folder) == STEPS
    assert done(trials[2].folder) == 21


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, 5, None, None), "--start-after: got 5 without --stop, expected it only with --stop median"),
        (("halving", 5, 2, None), "--min-trials: got 2 with --stop halving, expected it only with --stop median"),
        (("median", None, None, 3), "--factor: got 3 with --stop median, expected it only with --stop halving"),
    ],
)
def test_an_option_that_is_not_read_is_refused(options: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stopping_of(*options, {}, None)


def test_a_rule_that_can_stop_no_trial_is_refused(manifest: Path) -> None:
    steps = dict(zip(trials_of(manifest, 0.1, 0.2), (5, 10), strict=True))
    with pytest.raises(InputError, match="--start-after: got 10, with trials of 10 steps, expected fewer steps"):
        stopping_of("halving", None, None, None, steps, None)
    assert stopping_of("median", 9, None, None, steps, None)
