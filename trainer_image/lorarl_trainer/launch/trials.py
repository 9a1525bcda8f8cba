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
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.launch.child_process import start_child
from lorarl_trainer.launch.early_stopping import EarlyStopping, forget, record, stopped
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
    """

    manifest: Path
    say: Callable[[str], None]
    stopping: EarlyStopping | None = None
    interrupted: bool = False
    _acknowledged: bool = False
    _judged_at: float = float("-inf")
    _stopping: set[Trial] = field(default_factory=set)  # those that were asked to end
    _running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = field(default_factory=dict)  # by the share's place

    def run(self, groups: Sequence[Group]) -> dict[Trial, int]:
        """Make the trials; return the exit codes of those that were started, 0 for one that was stopped early.

        Trials that were stopped before stay so, unless each is to make all its steps.
        Ctrl-C and SIGTERM reach those that run: they publish a checkpoint and end; at once if it comes twice.
        """
        codes = dict[Trial, int]()
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for group in groups:
                try:
                    codes |= self._run(group)
                finally:
                    if group.workers:
                        group.workers.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return codes

    def _run(self, group: Group) -> dict[Trial, int]:
        waiting, codes = [trial for trial in group.trials if not self._stays(trial)], dict[Trial, int]()
        while self._running or (waiting and not self.interrupted):
            self._acknowledge()
            if not self.interrupted and waiting and self._may_start(group.workers):
                self._start(waiting, group)
            elif group.workers and not (self._running or group.workers.started or self.interrupted):
                self.say(f"the workers that trials share did not start: {_message(group.workers.folder / OUTPUT)}")
                return codes | dict.fromkeys(waiting, EXIT_FAILED)
            time.sleep(1 / _LOOKS_PER_SECOND)
            for trial, code in self._ended().items():
                # One that a signal has ended was not ended by its worker, even if that is lost a moment later.
                if code > 0 and code != EXIT_INTERRUPTED and self._is_lost(trial, group.workers):
                    self.say(f"{trial.label}: lost its worker, and starts again from its newest checkpoint")
                    waiting.insert(0, trial)
                else:
                    codes[trial] = code
            self._judge()
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

    def _ended(self) -> dict[Trial, int]:
        ended = {
            place: (trial, code) for place, (trial, one) in self._running.items() if (code := one.poll()) is not None
        }
        for place, (trial, code) in ended.items():
            del self._running[place]
            if trial in self._stopping and code == EXIT_INTERRUPTED:
                self.say(f"{trial.label}: stopped; its checkpoint is published")
                ended[place] = trial, 0
                continue
            forget(trial)  # It ended in another way, whatever was asked of it.
            how = f"ended with exit code {code}: {_message(trial.folder / OUTPUT)}"
            how = {0: "done", EXIT_INTERRUPTED: "interrupted; the same command continues it"}.get(code, how)
            self.say(f"{trial.label}: {how}")
        return dict(ended.values())

    def _stays(self, trial: Trial) -> bool:
        """Return whether a trial stays as an earlier start of the sweep left it."""
        verdict = stopped(trial) if self.stopping else None
        if verdict:
            self.say(f"{trial.label}: was stopped, since {verdict}. Without --stop it continues.")
        elif finished := has_finished(trial.folder, load_job(self.manifest, trial.overrides)):
            self.say(f"{trial.label}: finished before")
        return verdict is not None or finished

    def _judge(self) -> None:
        """Ask trials to end that early stopping finds not worth their remaining steps."""
        if self.stopping is None or self.interrupted or time.monotonic() - self._judged_at < _SECONDS_BETWEEN_VERDICTS:
            return
        self._judged_at = time.monotonic()
        running = {trial: one for trial, one in self._running.values() if trial not in self._stopping}
        for trial, verdict in self.stopping.verdicts(running).items():
            record(trial, verdict)
            self._stopping.add(trial)
            self.say(f"{trial.label}: is stopped, since {verdict}")
            running[trial].send_signal(signal.SIGTERM)

    def _acknowledge(self) -> None:
        """Say that a signal came. Its handler may have interrupted a line that was being printed."""
        if self.interrupted and not self._acknowledged:
            self._acknowledged = True
            self.say("stopping: running trials publish a checkpoint and end; at once if the signal comes again")

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
