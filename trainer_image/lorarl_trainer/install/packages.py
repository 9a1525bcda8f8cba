"""`lorarl env add`: more packages in this environment, such as those of a reward, without a change to what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.install.install import installer

ADDED = "lorarl-added.txt"
"""File in the environment's folder with what was added, a requirement a line. scripts/setup.sh keeps it."""


def add_packages(packages: Sequence[str], *, dry_run: bool = False) -> str:
    """Install packages, with every package that is installed now kept at its version, and record them.

    `packages`: requirements as pip takes them: names, versions, files, folders or URLs.

    Returns:
        What the installer printed.

    Raises:
        InputError: a package does not exist, or needs another version of one that is installed.
        LorarlError: there is no installer.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("".join(f"{line}\n" for line in installed()))
        constraints.flush()
        command = [*installer(), "--constraint", constraints.name, *(["--dry-run"] if dry_run else []), *packages]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.strip()
        raise InputError(
            "PACKAGE",
            f"{' '.join(packages)}, which cannot be installed here",
            "packages that fit the versions that lorarl needs",
            f"{_what_to_do(said)} The installer said:\n{said}",
        )
    if not dry_run:
        record(Path(sys.prefix), packages)
    return (ran.stdout + ran.stderr).strip()


def _what_to_do(said: str) -> str:
    if unknown := re.search(r"(\S+)\s+was\s+not\s+found\s+in\s+the\s+package\s+registry", said):
        return f"There is no package {unknown[1]}: check its name."
    return "Check the names, name another version, or check the network."


def installed() -> list[str]:
    """Return the packages of this environment as requirements; lorarl itself is left out, since no index has it."""
    found = {(one.metadata["Name"], one.version) for one in metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name and name != "lorarl")


def record(prefix: Path, packages: Sequence[str]) -> None:
    """Note packages in an environment's folder, files and folders with their whole paths."""
    whole = [str(path.resolve()) if (path := Path(package)).exists() else package for package in packages]
    lines = dict.fromkeys([*recorded(prefix), *whole])
    (prefix / ADDED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def recorded(prefix: Path) -> list[str]:
    """Return the packages that were added to an environment."""
    file = prefix / ADDED
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def add_again(say: Callable[[str], None]) -> None:
    """Install what was added before the environment was made again. A package that no longer fits is named."""
    for package in recorded(Path(sys.prefix)):
        try:
            add_packages([package])
            say(f"installed {package} again, which `lorarl env add` had added")
        except LorarlError as error:
            say(f"{package}, which `lorarl env add` had added, is not there any more: {error}")
