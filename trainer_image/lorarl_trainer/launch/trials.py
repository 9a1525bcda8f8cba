"""The trials of a sweep as processes of `lorarl run`, some at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_api.sweeps.halving import HalvingVerdict, moves
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.launch.child_process import start_child
from lorarl_trainer.launch.early_stopping import EarlyStopping, Present, forget
from lorarl_trainer.launch.resumption import changes_since_last_start
from lorarl_trainer.launch.run import EXIT_FAILED, EXIT_INTERRUPTED
from lorarl_trainer.launch.shared_workers import OUTPUT, SharedWorkers
from lorarl_trainer.launch.sweep import Trial
from lorarl_trainer.progress.metrics_file import UnreadableSummaryError, read_summary
from lorarl_trainer.progress.usage import local_path

_LOOKS_PER_SECOND = 5
_SECONDS_BETWEEN_VERDICTS = 1.0
_PREFIX = "lorarl: "
"""How `lorarl run` begins its message about what ended it."""


@dataclass(frozen=True)
class Group:
    """Trials that are made in turn, or some at a time.

    Attributes:
        shares: the environment of each trial that runs at a time: what of the machine is its own.
        workers: those that all of them share; None if each has its own.
    """

    trials: Sequence[Trial]
    shares: Sequence[Mapping[str, str]]
    workers: SharedWorkers | None = None


@dataclass
class Trials:
    """Makes the trials of a sweep, group by group.

    Attributes:
        manifest: the job's.
        say: takes lines for people.
        stopping: judges the running trials; None if each makes all its steps.
        interrupted: whether Ctrl-C or SIGTERM came. Then no other trial starts.
        waiting: group by group, trials that are to start or to continue, in this order.
    """

    manifest: Path
    say: Callable[[str], None]
    stopping: EarlyStopping | None = None
    interrupted: bool = False
    waiting: list[list[Trial]] = field(default_factory=list)
    _acknowledged: bool = False
    _judged_at: float = float("-inf")
    _stopping: set[Trial] = field(default_factory=set)  # those that were asked to end
    _held: list[tuple[Trial, list[Trial]]] = field(default_factory=list)  # stopped ones, with where they would wait
    _made: set[Trial] = field(default_factory=set)  # those that have made all steps
    _failed: set[Trial] = field(default_factory=set)
    _running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = field(default_factory=dict)  # by the share's place

    def run(self, groups: Sequence[Group]) -> dict[Trial, int]:
        """Make the trials; return the exit codes of those that were started, 0 for one that was stopped early.

        Trials that were stopped before stay so, unless each is to make all its steps.
        Ctrl-C and SIGTERM reach those that run: they publish a checkpoint and end; at once if it comes twice.
        """
        codes = dict[Trial, int]()
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._find_waiting(groups)
            while not self.interrupted and any(self.waiting):
                group, waiting = next(each for each in zip(groups, self.waiting, strict=True) if each[1])
                try:
                    codes |= self._run(group, waiting)
                finally:
                    if group.workers:
                        group.workers.stop()
                self._judge(0)  # those that have ended may let others continue
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return codes

    def _find_waiting(self, groups: Sequence[Group]) -> None:
        """Find which trials are to start: not those that an earlier start of the sweep finished or stopped."""
        left = {trial: not self._finished(trial) for group in groups for trial in group.trials}
        verdicts = self.stopping.verdicts(Present(ended=self._made)) if self.stopping else {}
        self.waiting = [[trial for trial in one.trials if left[trial] and trial not in verdicts] for one in groups]
        for group, waiting in zip(groups, self.waiting, strict=True):
            for trial in group.trials:
                if left[trial] and (verdict := verdicts.get(trial)):
                    self._held.append((trial, waiting))
                    how = "was stopped" if verdict.final else "waits"
                    self.say(f"{trial.label}: {how}, since {verdict}. Without --stop it continues.")

    def _run(self, group: Group, waiting: list[Trial]) -> dict[Trial, int]:
        codes = dict[Trial, int]()
        while self._running or (waiting and not self.interrupted):
            self._acknowledge()
            if not self.interrupted and waiting and self._may_start(group.workers):
                self._start(waiting, group)
            elif group.workers and not (self._running or group.workers.started or self.interrupted):
                self.say(f"the workers that trials share did not start: {_message(group.workers.folder / OUTPUT)}")
                codes |= dict.fromkeys(waiting, EXIT_FAILED)
                self._failed.update(waiting)
                waiting.clear()
                return codes
            time.sleep(1 / _LOOKS_PER_SECOND)
            for trial, code in self._ended(waiting).items():
                # One that a signal has ended was not ended by its worker, even if that is lost a moment later.
                if code > 0 and code != EXIT_INTERRUPTED and self._is_lost(trial, group.workers):
                    self.say(f"{trial.label}: lost its worker, and starts again from its newest checkpoint")
                    waiting.insert(0, trial)
                else:
                    codes[trial] = code
                    if code:
                        self._failed.add(trial)
            if time.monotonic() - self._judged_at >= _SECONDS_BETWEEN_VERDICTS:
                free = len(group.shares) - len(self._running) + len(self._stopping)
                self._judge(sum(map(len, self.waiting)) - free, waiting)
        return codes

    def _may_start(self, workers: SharedWorkers | None) -> bool:
        """Return whether a trial can start now. Workers that are not there start, once no trial uses lost ones."""
        if workers is None or workers.ready:
            return True
        if not (workers.started or self._running) and workers.may_start:
            self.say(f"starting the worker that trials share; it prints into {workers.folder}")
            workers.start()
        return False

    def _is_lost(self, trial: Trial, workers: SharedWorkers | None) -> bool:
        return workers is not None and not self.interrupted and workers.ended(trial.name) and workers.may_start

    def _start(self, waiting: list[Trial], group: Group) -> None:
        """Let the first of those that wait take the places that are free."""
        for place, share in enumerate(group.shares):
            if waiting and place not in self._running:
                trial = waiting.pop(0)
                self._running[place] = trial, self._started(trial, share)

    def _started(self, trial: Trial, share: Mapping[str, str]) -> subprocess.Popen[bytes]:
        trial.folder.mkdir(parents=True, exist_ok=True)
        forget(trial)
        settings = [part for one in trial.overrides for part in ("--set", one)]
        command = [sys.executable, "-m", "lorarl_trainer.cli", "run", str(self.manifest), "--out", str(trial.folder)]
        self.say(f"{trial.label}: starts; it prints into {trial.folder / OUTPUT}")
        return start_child([*command, *settings], trial.folder / OUTPUT, share)

    def _ended(self, waiting: list[Trial]) -> dict[Trial, int]:
        ended = {
            place: (trial, code) for place, (trial, one) in self._running.items() if (code := one.poll()) is not None
        }
        for place, (trial, code) in ended.items():
            del self._running[place]
            asked = trial in self._stopping
            self._stopping.discard(trial)
            if asked and code in (EXIT_INTERRUPTED, -signal.SIGTERM):  # The latter before it could handle the signal.
                self.say(f"{trial.label}: stopped; its checkpoint is published")
                ended[place] = trial, 0
                self._held.append((trial, waiting))
                continue
            forget(trial)  # It ended in another way, whatever was asked of it.
            if code == 0:
                self._made.add(trial)
            how = f"ended with exit code {code}: {_message(trial.folder / OUTPUT)}"
            how = {0: "done", EXIT_INTERRUPTED: "interrupted; the same command continues it"}.get(code, how)
            self.say(f"{trial.label}: {how}")
        return dict(ended.values())

    def _finished(self, trial: Trial) -> bool:
        """Return whether an earlier start of the sweep finished a trial."""
        if finished := has_finished(trial.folder, load_job(self.manifest, trial.overrides)):
            self._made.add(trial)
            self.say(f"{trial.label}: finished before")
        return finished

    def _judge(self, wanted: int, present: list[Trial] | None = None) -> None:
        """Ask trials to end, and let others continue, as early stopping finds.

        A trial whose verdict is not final leaves only if its place is wanted, and continues if one is left over.

        Args:
            wanted: places that others wait for; if it is negative, so many are left over.
            present: the waiting trials of the group that is made at the moment, which alone can use these places.
        """
        if self.stopping is None or self.interrupted:
            return
        self._judged_at = time.monotonic()
        running = {trial: one for trial, one in self._running.values() if trial not in self._stopping}
        verdicts = self.stopping.verdicts(Present(running, self._made, self._failed))
        for trial, waiting in [each for each in self._held if each[0] not in verdicts]:
            self._held.remove((trial, waiting))
            waiting.insert(0, trial)
            wanted += 1
            self.say(f"{trial.label}: continues, since it is one of the best at its rung")
        final = [trial for trial in running if trial in verdicts and verdicts[trial].final]
        undecided = {trial: one for trial, one in verdicts.items() if isinstance(one, HalvingVerdict) and not one.final}
        held = [trial for trial, waiting in self._held if waiting is present]
        trains, waits = ({one: undecided[one] for one in each if one in undecided} for each in (running, held))
        leaving, returning = moves(trains, waits, wanted - len(final))
        for trial in returning:
            assert present is not None, "it is where the trial would wait"
            self._held.remove((trial, present))
            present.append(trial)
            self.say(f"{trial.label}: continues, since no other trial needs the place")
        for trial in [*final, *leaving]:
            self._stopping.add(trial)
            how = "is stopped" if verdicts[trial].final else "gives its place to others"
            self.say(f"{trial.label}: {how}, since {verdicts[trial]}")
            running[trial].send_signal(signal.SIGTERM)

    def _acknowledge(self) -> None:
        """Say that a signal came. Its handler may have interrupted a line that was being printed."""
        if self.interrupted and not self._acknowledged:
            self._acknowledged = True
            self.say(
                "stopping: running trials publish a checkpoint after their step; a second signal ends them at once"
            )

    def _interrupt(self, number: int, _: object) -> None:
        first, self.interrupted = not self.interrupted, True
        for trial, one in self._running.values():
            if not (first and trial in self._stopping):  # A second signal would end it without a checkpoint.
                one.send_signal(number)


def has_finished(folder: Path, job: LoRARLJob) -> bool:
    """Return whether the run in a folder made all steps of this very job, and its adapter is still there."""
    try:
        summary = read_summary(folder)
    except (OSError, UnreadableSummaryError):
        return False
    ended = summary.get("state"), summary.get("step")
    uri = summary.get("adapter_uri") or ""
    is_there = bool(uri) and (not uri.startswith("file:") or Path(local_path(uri)).exists())
    return ended == ("succeeded", job.spec.trainer.steps) and is_there and not changes_since_last_start(folder, job)


def _message(output: Path) -> str:
    """Return what a process said about what ended it, or its last line."""
    text = output.read_text(encoding="utf-8", errors="replace").rstrip()
    _, found, message = f"\n{text}".rpartition(f"\n{_PREFIX}")
    return message if found else text.rpartition("\n")[2]
