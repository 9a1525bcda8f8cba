"""Installs a lock into the environment that runs this code, with uv or else with pip."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lorarl_trainer.errors import LorarlError
from lorarl_trainer.install.locks import Flavour, extract, missing, pins

COMPILED = frozenset({"transformer-engine-torch"})
"""Packages that are compiled against the installed torch, so without build isolation."""
QUIET_SECONDS = 15.0
_KEPT_LINES = 12
# What these programs print, by the cause that a person can do something about; the first that is found counts.
_OF_THE_MACHINE = (
    (
        r"No space left on device|Disk quota exceeded|os error 28",
        "the disk is full. Free some space; UV_CACHE_DIR, PIP_CACHE_DIR and TMPDIR name other folders for downloads",
    ),
    (
        r"(?i)certificate",
        "the package index has a certificate that is not trusted. Name your authority's bundle: "
        "SSL_CERT_FILE for uv, PIP_CERT for pip",
    ),
    (
        r"(?i)error sending request|dns error|failed to fetch|new ?connection ?error|failed to establish|unreachable"
        r"|name or service not known|connection refused|timed out|proxyerror|remote host closed|disconnected",
        "the package index cannot be reached. Check the network and the proxy (HTTPS_PROXY), "
        "or name a mirror: UV_DEFAULT_INDEX for uv, PIP_INDEX_URL for pip",
    ),
    (
        r"(?i)permission denied|read-only file system|operation not permitted",
        "a folder cannot be written. Run this as the user who made the environment",
    ),
)
_CAUSES = (
    *_OF_THE_MACHINE,
    (
        r"(?i)hash mismatch|do not match the hashes",
        "the package index served another file than the one that was locked. Use another mirror, or empty its cache",
    ),
    (
        r"(?i)no matching distribution|no solution found|no wheels with a matching",
        "the package index lacks a package for this machine. Use another mirror; the packages are for Linux on x86_64 "
        "with glibc 2.28 or newer",
    ),
    (r"(?i)failed to build|failed building|compilation terminated", "a package could not be compiled; see above"),
)


def installer() -> list[str]:
    """Return the beginning of the command that installs packages here: a uv that runs, otherwise pip.

    Raises:
        LorarlError: there is neither.
    """
    cache = Path(os.environ.get("LORARL_CACHE") or "~/.cache/lorarl").expanduser()  # where `make setup` keeps its uv
    for folder in (Path(sys.executable).parent, *map(Path, os.get_exec_path()), cache / "uv/bin"):
        uv = shutil.which("uv", path=str(folder))
        # A shim of pyenv is on the PATH, and fails, where another version of Python has uv.
        if uv and subprocess.run([uv, "--version"], capture_output=True, check=False).returncode == 0:
            return [uv, "pip", "install", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    raise LorarlError(
        "neither uv nor pip is installed. Run `python -m ensurepip`, or install uv: "
        "https://docs.astral.sh/uv/getting-started/installation"
    )


def install(lock: Path, flavour: Flavour, say: Callable[[str], None]) -> int:
    """Install what a lock has and this environment lacks.

    `lock`: a file as `uv pip compile --generate-hashes` writes it.

    Returns:
        The number of packages that were missing.

    Raises:
        LorarlError: there is no installer, or it failed; with the cause, as far as it is known.
    """
    text = lock.read_text(encoding="utf-8")
    absent = missing(pins(text))
    if not absent:
        return 0
    program = installer()
    with_pip = "-m" in program
    name = "pip" if with_pip else "uv"
    say(f"installing {len(absent)} packages into {sys.prefix} with {name}; this takes some minutes")
    with tempfile.TemporaryDirectory(prefix="lorarl-setup-") as scratch:
        commands = pip_options(text, Path(scratch)) if with_pip else [uv_options(lock)]
        for options in commands:
            _run([*program, *options], build_environment(flavour, os.environ), say)
    importlib.invalidate_caches()
    if left := missing(pins(text)):
        raise LorarlError(f"the installer reported success, but {len(left)} packages are missing: {', '.join(left)}")
    return len(absent)


def uv_options(lock: Path) -> list[str]:
    """Return the options with which uv installs a lock."""
    # Compile now. If Python may not write bytecode later (PYTHONDONTWRITEBYTECODE, a read-only image), every start
    # would compile 8,000 modules.
    options = ["--no-deps", "--require-hashes", "--compile-bytecode"]
    for name in sorted(COMPILED):
        options += ["--no-build-isolation-package", name]
    return [*options, "-r", str(lock)]


def pip_options(lock: str, folder: Path) -> list[list[str]]:
    """Return the options of the commands with which pip installs a lock, and write their parts of it to a folder.

    For pip, build isolation is for all packages of a command or for none.
    """
    commands = []
    for name, part, options in zip(
        ("packages", "compiled"), extract(lock, COMPILED), ([], ["--no-build-isolation"]), strict=True
    ):
        if pins(part):
            path = folder / f"{name}.lock"
            path.write_text(part, encoding="utf-8")
            commands.append(["--no-deps", "--require-hashes", *options, "-r", str(path)])
    return commands


def build_environment(flavour: Flavour, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the installer's environment: for GPUs, with what Transformer Engine's extension is compiled.

    By default, its build fetches a binary that is in no lock. Where no CUDA toolkit is, the packages have its headers.
    """
    made = dict(environment)
    if flavour == "gpu":
        made.setdefault("NVTE_PYTORCH_FORCE_BUILD", "TRUE")
        if not {"CUDA_HOME", "CUDA_PATH"} & made.keys() and not shutil.which("nvcc", path=made.get("PATH")):
            headers = Path(sysconfig.get_path("purelib")) / "nvidia/cu13"
            made |= {"CUDA_HOME": str(headers), "NVTE_BUILD_USE_NVIDIA_WHEELS": "1"}
    return made


def cause_of(output: Iterable[str]) -> str | None:
    """Return why an installer failed to install a lock and what to do, from what it printed."""
    return _first(_CAUSES, output)


def cause_of_the_machine(output: Iterable[str]) -> str | None:
    """Return the same of a failure that has nothing to do with which packages were asked for."""
    return _first(_OF_THE_MACHINE, output)


def _first(causes: Iterable[tuple[str, str]], output: Iterable[str]) -> str | None:
    text = "\n".join(output)
    return next((cause for pattern, cause in causes if re.search(pattern, text)), None)


def _run(command: list[str], environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Run an installer; show its large downloads as they come, that it still works, and the rest if it fails."""
    last: deque[str] = deque(maxlen=200)
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
        still_at_work(say),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            if is_progress(line):
                say(line.rstrip())
    if process.returncode != 0:
        for line in list(last)[-_KEPT_LINES:]:
            say(line)
        program = "pip" if command[1:3] == ["-m", "pip"] else "uv"
        why = cause_of(last) or f"{program} ended with exit code {process.returncode}; its last lines are above"
        raise LorarlError(f"the packages were not installed: {why}. Then run the same command again")


@contextmanager
def still_at_work(say: Callable[[str], None], every: float = QUIET_SECONDS) -> Iterator[None]:
    """Say from time to time that the block still runs: to compile 34,000 modules takes minutes without a line."""
    began, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(every):
            say(f"still at work after {time.monotonic() - began:.0f} s: unpacking, and compiling Python modules")

    teller = threading.Thread(target=tell, name="still-at-work", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def is_progress(line: str) -> bool:
    """Return whether a line of uv or pip says what takes long: downloads, compilations, installation."""
    # pip names every file; those of less than a megabyte are done before a person has read the line.
    return bool(
        re.match(r" *(Downloading|Building|Prepared|Installed|Installing|Bytecode compiled)\b", line)
        and not re.search(r"\(\d+(\.\d+)? [kK]?B\)|metadata", line)
        and len(line) < 300
    )
