"""Python environments beside lorarl's, for packages whose requirements do not fit those of vLLM."""

from __future__ import annotations

import os
import re
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

SEPARATE = {"verifiers": "verifiers==0.4.0"}
"""Each package that has an environment by itself, in the version that lorarl plays."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def separate_of(requirements: Iterable[str]) -> str | None:
    """Return the package with an environment by itself that one of some requirements names; None if none does."""
    names = (match[0].lower() for one in requirements if (match := _NAME.match(one)))
    return next((name for name in names if name in SEPARATE), None)


def folder_of(package: str) -> Path:
    """Return the folder of a package's environment, within lorarl's."""
    return Path(sys.prefix) / f"lorarl-{package}"


def variable_of(package: str) -> str:
    """Return the environment variable that names the Python of an environment of the user's for a package."""
    return f"LORARL_{package.upper()}_PYTHON"


def python_of(package: str) -> Path | None:
    """Return the Python that has a package: the user's, or that of `lorarl env add`; None if there is none."""
    if named := os.environ.get(variable_of(package)):
        return Path(named)
    python = folder_of(package) / "bin/python"
    return python if python.exists() else None


def make(folder: Path, *, with_pip: bool) -> Path:
    """Make an environment unless it is there; return its Python. `with_pip`: whether pip will install into it."""
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, symlinks=True, with_pip=with_pip)
    return python
