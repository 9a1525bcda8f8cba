"""The trials of a sweep as processes of `lorarl run`, some at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lorarl_trainer.launch.child_process import start_child
from lorarl_trainer.launch.early_stopping import EarlyStopping, forget, record, stopped
from lorarl_trainer.launch.run import EXIT_INTERRUPTED
from lorarl_trainer.launch.sweep import Trial

OUTPUT = "output.txt"
"""File in a trial's folder with what its newest start printed."""
_LOOKS_PER_SECOND = 5
_SECONDS_BETWEEN_VERDICTS = 1.0
_PREFIX = "lorarl: "
"""How `lorarl run` begins its message about what ended it."""


@dataclass
class Trials:
    """Trials that are made in turn, or some at a time.

    Attributes:
        manifest: the job's.
        shares: the environment of each trial that runs at a time: what of the machine is its own.
        say: takes lines for people.
        stopping: judges the running trials; None if each makes all its steps.
        interrupted: whether Ctrl-C or SIGTERM came. Then no other trial starts.
    """

    manifest: Path
    shares: Sequence[Mapping[str, str]]
    say: Callable[[str], None]
    stopping: EarlyStopping | None = None
    interrupted: bool = False
    _judged_at: float = float("-inf")
    _stopping: set[Trial] = field(default_factory=set)  # those that were asked to end
    _running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = field(default_factory=dict)  # by the share's place

    def run(self, trials: Sequence[Trial]) -> dict[Trial, int]:
        """Make the trials; return the exit codes of those that were started, 0 for one that was stopped early.

        Trials that were stopped before stay so, unless each is to make all its steps.
        Ctrl-C and SIGTERM reach those that run: they publish a checkpoint and end; at once if it comes twice.
        """
        waiting, codes = [trial for trial in trials if not self._stays_stopped(trial)], dict[Trial, int]()
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._running or (waiting and not self.interrupted):
                free = [place for place in range(len(self.shares)) if place not in self._running]
                for place in free if not self.interrupted else ():
                    if waiting:
                        self._running[place] = (waiting[0], self._started(waiting.pop(0), self.shares[place]))
                time.sleep(1 / _LOOKS_PER_SECOND)
                codes |= self._ended()
                self._judge()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return codes

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
            self.say(f"{trial.label}: {'done' if code == 0 else f'ended with exit code {code}: {_message(trial)}'}")
        return dict(ended.values())

    def _stays_stopped(self, trial: Trial) -> bool:
        verdict = stopped(trial) if self.stopping else None
        if verdict:
            self.say(f"{trial.label}: was stopped, since {verdict}. Without --stop it continues.")
        return verdict is not None

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

    def _interrupt(self, number: int, _: object) -> None:
        first, self.interrupted = not self.interrupted, True
        for trial, one in self._running.values():
            if not (first and trial in self._stopping):  # A second signal would end it without a checkpoint.
                one.send_signal(number)


def _message(trial: Trial) -> str:
    """Return what a trial said about what ended it, or its last line."""
    text = (trial.folder / OUTPUT).read_text(encoding="utf-8", errors="replace").rstrip()
    _, found, message = f"\n{text}".rpartition(f"\n{_PREFIX}")
    return message if found else text.rpartition("\n")[2]
