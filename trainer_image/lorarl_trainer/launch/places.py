"""Folders that Ray, vLLM and torch write to without being told: those of the user and of temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lorarl_trainer.errors import InputError

_PLACES = ("HOME", "TMPDIR", "RAY_TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "VLLM_CACHE_ROOT", "LORARL_CACHE")
"""Variables that name such folders. All but the first may be absent."""
_MADE = _PLACES[2:]
"""Those whose folder is made if it is not there."""


def require_places() -> None:
    """Refuse folders of this process's environment in which nothing can be written.

    OpenShift, for example, gives a container a user without a home, and HOME=/.

    Raises:
        InputError: naming the variable.
    """
    for variable in _PLACES:
        if (value := os.environ.get(variable) or _default(variable)) and (why := _why_not(variable, Path(value))):
            got, hint = f"{value}, in which nothing can be written ({why})", f"Set {variable} to such a folder."
            raise InputError(variable, got, "a folder that this user can write", hint)


def _default(variable: str) -> str | None:
    return os.path.expanduser("~") if variable == "HOME" else None  # noqa: PTH111  # Path.home() raises without any


def _why_not(variable: str, place: Path) -> str | None:
    try:
        if variable in _MADE:
            place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".lorarl-"):
            return None
    except OSError as error:
        return error.strerror or str(error)
