"""The node's own Linux namespaces: processes, mounts and network.

Its first process holds them. When that process is killed, the kernel kills all others, and mounts and network are gone
with them. So nothing has to be searched for, and nothing foreign can be hit.

    python namespaces.py RECORD SOURCE=TARGET...

makes them, with SOURCE mounted over TARGET inside, and returns when they are ready. RECORD gets the id and start time
of the first process. This file imports only the standard library, because it is run by its path.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Fields of /proc/PID/stat after the name: state is the first, the start time is the twentieth.
STATE, START_TIME = 0, 19


@dataclass(frozen=True)
class Init:
    """The first process, as the host sees it. Its start time tells it from a later process with the same id."""

    pid: int
    start_time: str

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        stat = read_stat(self.pid)
        return stat is not None and stat[START_TIME] == self.start_time and stat[STATE] != "Z"

    def processes(self) -> dict[int, list[str]]:
        """Return process id on the host -> command line of those in its process namespace, without containers'."""
        if not self.alive:
            return {}
        namespace = _process_namespace(self.pid)
        found = {}
        for entry in PROC.iterdir():
            if entry.name.isdigit() and _process_namespace(int(entry.name)) == namespace:
                try:
                    found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")[:-1]
                except OSError:
                    continue  # it has just ended
        return found

    def enter(self, command: list[str]) -> list[str]:
        """Return the command that runs another one inside.

        `ip netns exec` would mount /sys again and hide the cgroups.
        """
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", *command]


def read_record(record: Path) -> Init | None:
    """Return the first process that was recorded, alive or not; None if there is no record."""
    try:
        pid, start_time = record.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return Init(int(pid), start_time)


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, or None if the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _process_namespace(pid: int) -> Path | None:
    try:
        return (PROC / str(pid) / "ns/pid").readlink()
    except OSError:
        return None


def start(record: Path, binds: Mapping[str, Path]) -> Init:
    """Make the namespaces in a separate process, with folders mounted over places; return their first process.

    Raises:
        OSError: the kernel does not allow it, or a folder cannot be mounted.
    """
    mounts = (f"{source}={place}" for place, source in binds.items())
    script = [sys.executable, __file__, str(record), *mounts]
    done = subprocess.run(script, capture_output=True, text=True, start_new_session=True, check=False)
    init = read_record(record)
    if done.returncode or init is None:
        raise OSError(done.stderr)
    return init


def make(record: Path, binds: list[tuple[str, str]]) -> None:
    """Make the namespaces and leave their first process behind.

    Raises:
        OSError: the kernel does not allow it, or a folder cannot be mounted.
    """
    go_reader, go_writer = os.pipe()
    ready_reader, ready_writer = os.pipe()
    os.unshare(os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        os.close(go_writer)
        # No unrecorded process may stay: if the parent is killed before it has written, this read ends without a byte.
        if not os.read(go_reader, 1):
            os._exit(1)
        _arrange_mounts(binds)
        os.write(ready_writer, b"1")
        os.closerange(0, ready_writer + 1)
        os.chdir("/")
        _reap()
    os.close(ready_writer)
    stat = read_stat(child)
    assert stat is not None
    written = record.with_name(f"{record.name}.new")
    written.write_text(f"{child} {stat[START_TIME]}\n")
    written.rename(record)
    os.write(go_writer, b"1")
    if not os.read(ready_reader, 1):
        raise OSError("the first process could not arrange its mounts")


def _arrange_mounts(binds: list[tuple[str, str]]) -> None:
    # Mounts of the host are visible here, mounts made here are not visible there, and pods may share mounts.
    for arguments in (["--make-rslave", "/"], ["--make-rshared", "/"], ["-t", "proc", "proc", "/proc"]):
        subprocess.run(["mount", *arguments], check=True)
    for source, target in binds:
        subprocess.run(["mount", "--bind", source, target], check=True)


def _reap() -> None:
    """Reap orphans forever: the work of the first process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass  # no children at the moment
        signal.sigwait({signal.SIGCHLD})


def main(arguments: list[str]) -> None:
    """Run the command line."""
    record, *binds = arguments
    make(Path(record), [(source, target) for source, _, target in (bind.partition("=") for bind in binds)])


if __name__ == "__main__":
    main(sys.argv[1:])
