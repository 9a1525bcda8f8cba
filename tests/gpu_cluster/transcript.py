"""What a user typed and read, kept for docs/gpu-cluster.md."""

from __future__ import annotations

import shlex
from pathlib import Path

from support.cluster.kubectl import RealCluster


class Transcript:
    """A file of commands with their output."""

    def __init__(self, cluster: RealCluster, file: Path) -> None:
        self._cluster, self._file = cluster, file
        file.unlink(missing_ok=True)

    def kubectl(self, *arguments: str) -> str:
        """Run a command of kubectl, which must succeed; what it printed."""
        printed = self._cluster.must(*arguments)
        self.add(f"kubectl {shlex.join(arguments)}", printed)
        return printed

    def add(self, command: str, printed: str) -> None:
        """Note a command that was run elsewhere."""
        with self._file.open("a") as file:
            file.write(f"$ {command}\n{printed.rstrip()}\n\n")
