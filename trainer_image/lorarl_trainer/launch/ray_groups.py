"""Ray's processes in their own process groups.

`timeout 1h lorarl run job.yaml` and `kill %1` send SIGTERM to the whole group of the command. In our group, Ray would
end before the last checkpoint. In separate groups, its agents would outlive a `kill -9` by a minute, so a process
waits for our end.
"""

from __future__ import annotations

import subprocess
from functools import partial

_WAIT_AND_KILL = 'read -r orderly || kill -s KILL -- "$@"'
"""The pipe to it closes when we end. An orderly end says so first: by then the numbers of the groups may be others'."""


def start_apart() -> None:
    """Let each process that Ray starts lead a group. Those that it starts itself, such as the workers, join it."""
    import ray

    ray._private.services.ConsolePopen = partial(subprocess.Popen, process_group=0)


class Guard:
    """Ends what Ray has started when this process ends in any way."""

    def __init__(self) -> None:
        import ray

        started = ray._private.worker._global_node.all_processes.values()
        groups = [f"-{each.process.pid}" for of_a_kind in started for each in of_a_kind]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            ["sh", "-c", _WAIT_AND_KILL, "sh", *groups],
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            process_group=0,
        )

    def dismiss(self) -> None:
        """End, after Ray's own end."""
        self._process.communicate(b"orderly\n")
