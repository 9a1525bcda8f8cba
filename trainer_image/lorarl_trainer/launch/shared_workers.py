"""The workers that trials of a sweep share, as the sweep sees them: the process that keeps them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.launch.child_process import start_child
from lorarl_trainer.launch.shared_cluster import SHARED
from lorarl_trainer.launch.shared_keeper import ADDRESS, CULPRIT

OUTPUT = "output.txt"
"""File in a process's folder with what its newest start printed: of a trial, or of these workers."""
_MOST_LOSSES = 3
"""How often workers are replaced, in case one trial ends them each time."""
_LOSS_SECONDS = 5.0
"""How long the keeper may take to end after its workers, which a trial may notice first."""


@dataclass
class SharedWorkers:
    """Workers that are started when the first trial comes, and again if they are lost.

    Attributes:
        manifest: the job's.
        overrides: the assignments that make one of the trials of it.
        folder: for their output.
        seats: most trials at a time.
    """

    manifest: Path
    overrides: Sequence[str]
    folder: Path
    seats: int
    _keeper: subprocess.Popen[bytes] | None = None
    _starts: int = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a trial that uses them."""
        return {SHARED: str((self.folder / ADDRESS).resolve()), **_same_token()}

    def start(self) -> None:
        """Begin to start them. Those before are gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (ADDRESS, CULPRIT):
            (self.folder / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "lorarl_trainer.launch.shared_keeper", str(self.manifest), str(self.folder)]
        self._keeper = start_child([*command, str(self.seats), *self.overrides], self.folder / OUTPUT, _same_token())
        self._starts += 1

    @property
    def started(self) -> bool:
        """Whether they are there, or begin to be."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def ready(self) -> bool:
        """Whether a trial can find them."""
        return self.started and (self.folder / ADDRESS).exists()

    @property
    def may_start(self) -> bool:
        """Whether they are to be started: the first time, or after a loss when they had been ready."""
        return not self._starts or ((self.folder / ADDRESS).exists() and self._starts <= _MOST_LOSSES)

    def ended(self, trial: str) -> bool:
        """Return whether their end is why a trial failed, and not the trial why they ended."""
        if self._keeper is None:
            return False
        try:
            self._keeper.wait(_LOSS_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        culprit = self.folder / CULPRIT
        return not (culprit.exists() and culprit.read_text(encoding="utf-8") == trial)

    def stop(self) -> None:
        """End them, after the trials. If another trial comes, they start as for the first."""
        if self._keeper is not None:
            self._keeper.send_signal(signal.SIGTERM)
            self._keeper.wait()
            self._keeper, self._starts = None, 0


def _same_token() -> dict[str, str]:
    """Return what lets a trial connect to the keeper's Ray, which by default asks for the user's token."""
    return {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token")}
