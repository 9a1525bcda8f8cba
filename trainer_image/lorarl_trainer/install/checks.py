"""What a machine must have before the trainer's packages are downloaded."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.install.locks import Flavour, installed_flavour

NEEDED_GIGABYTES: dict[Flavour, int] = {"cpu": 8, "gpu": 11}
"""Size of the installed packages, and a little more, in GB of 10^9 bytes."""


@dataclass(frozen=True)
class Machine:
    """What matters of this machine and of the environment that runs lorarl.

    Attributes:
        python: the version of Python, such as (3, 12).
        system: system, processor and C library, such as "linux-x86_64-glibc".
        prefix: folder of the environment.
        isolated: whether it is a virtual environment, not the system's Python.
        installed: the flavour that the environment has.
        free_gigabytes: free space on the environment's disk.
        compiler: path of the C++ compiler.
        python_headers: whether extensions can be compiled for this Python.
        has_libnuma: whether vLLM for CPUs finds its system library.
    """

    python: tuple[int, int]
    system: str
    prefix: Path
    isolated: bool
    installed: Flavour | None
    free_gigabytes: float
    compiler: str | None
    python_headers: bool
    has_libnuma: bool


def look() -> Machine:
    """Look at this machine."""
    conda = (Path(sys.prefix) / "conda-meta").is_dir() and os.environ.get("CONDA_DEFAULT_ENV") != "base"
    return Machine(
        python=sys.version_info[:2],
        system=f"{sysconfig.get_platform()}-{platform.libc_ver()[0] or 'other libc'}",
        prefix=Path(sys.prefix),
        isolated=sys.prefix != sys.base_prefix or conda,
        installed=installed_flavour(),
        free_gigabytes=shutil.disk_usage(sys.prefix).free / 1e9,
        compiler=shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++"),
        python_headers=(Path(sysconfig.get_path("include")) / "Python.h").is_file(),
        has_libnuma=_loads("libnuma.so.1"),
    )


def require(machine: Machine, flavour: Flavour) -> None:
    """Refuse what cannot become an environment of the trainer.

    Raises:
        InputError: it names what is missing, and how to get it.
    """
    _require_python(machine)
    if machine.installed not in (None, flavour):
        raise InputError(
            "environment",
            f"{machine.prefix} with the trainer for {machine.installed.upper()}s",
            "one without a trainer",
            "Make another environment and install lorarl into it: the two share files.",
        )
    if flavour == "cpu" and not machine.has_libnuma:
        raise InputError(
            "libnuma", "no libnuma.so.1", "vLLM's system library", "Install it: `apt-get install libnuma1`."
        )
    if flavour == "gpu":
        _require_compiler(machine)
    needed = NEEDED_GIGABYTES[flavour]
    if machine.installed is None and machine.free_gigabytes < needed:
        raise InputError(
            "disk",
            f"{machine.free_gigabytes:.1f} GB free for {machine.prefix}",
            f"{needed} GB",
            "Free some space, or make the environment on another disk.",
        )


def _require_python(machine: Machine) -> None:
    if machine.python != (3, 12):
        raise InputError(
            "Python",
            "{}.{}".format(*machine.python),
            "3.12",
            "Make an environment with it and install lorarl there: `python3.12 -m venv .venv`.",
        )
    if machine.system != "linux-x86_64-glibc":
        raise InputError(
            "system",
            machine.system,
            "linux-x86_64-glibc, for which the packages are locked",
            "Run lorarl on such a machine. Elsewhere, `lorarl validate` works without the trainer.",
        )
    if not machine.isolated:
        raise InputError(
            "environment",
            f"{machine.prefix}, which is not a virtual environment",
            "a virtual environment, since about 230 packages with exact versions are installed",
            "Make one and install lorarl there: `python3.12 -m venv .venv`.",
        )


def _require_compiler(machine: Machine) -> None:
    """Transformer Engine's extension for torch has no binary that a lock could name."""
    if machine.compiler is None:
        raise InputError(
            "compiler",
            "no C++ compiler",
            "one, which compiles Transformer Engine's extension for torch",
            "Install one, `apt-get install g++`, or name yours: CXX=/path/to/g++.",
        )
    if not machine.python_headers:
        raise InputError(
            "Python",
            f"no Python.h for {sys.executable}",
            "Python's headers, with which Transformer Engine's extension is compiled",
            "Install them: `apt-get install python3.12-dev`.",
        )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
