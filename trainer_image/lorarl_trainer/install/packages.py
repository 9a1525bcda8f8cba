"""`lorarl env add`: more packages in this environment, such as those of a reward, without a change to what is there.

A command that names a package of `separate.py` installs into the environment of that package, beside lorarl's.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.install.install import cause_of_the_machine, installer
from lorarl_trainer.install.separate import SEPARATE, folder_of, make, separate_of

ADDED = "lorarl-added.txt"
"""File in the environment's folder with what was added, a requirement a line. scripts/setup.sh keeps it."""


def add_packages(packages: Sequence[str], *, dry_run: bool = False) -> str:
    """Install packages, with every package that is installed now kept at its version, and record them.

    If one of them has an environment by itself, all are installed there, where only its own version is given.

    `packages`: requirements as pip takes them: names, versions, files, folders or URLs.

    Returns:
        What the installer printed.

    Raises:
        InputError: a package does not exist, or needs another version of one that is installed.
        LorarlError: there is no installer.
    """
    separate, command = separate_of(packages), installer()
    with (
        tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints,
        tempfile.TemporaryDirectory(prefix="lorarl-env-") as scratch,
    ):
        if separate is not None:
            folder = Path(scratch) if dry_run else folder_of(separate)
            command = _into(make(folder, with_pip="-m" in command), command)
        constraints.write("".join(f"{line}\n" for line in ([SEPARATE[separate]] if separate else installed())))
        constraints.flush()
        command += ["--constraint", constraints.name, *(["--dry-run"] if dry_run else []), *packages]
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
        record(Path(sys.prefix), packages if separate is None else [shlex.join(map(_whole, packages))])
    return (ran.stdout + ran.stderr).strip()


def _into(python: Path, command: Sequence[str]) -> list[str]:
    """Return an installer's command for another environment. Its modules are compiled: each run imports them."""
    own = [str(python) if part == sys.executable else part for part in command]
    return own if "-m" in own else [*own, "--compile-bytecode"]


def _what_to_do(said: str) -> str:
    if unknown := re.search(r"(\S+)\s+was\s+not\s+found\s+in\s+the\s+package\s+registry", said):
        return f"There is no package {unknown[1]}: check its name."
    if cause := cause_of_the_machine(said.splitlines()):
        return f"{cause[0].upper()}{cause[1:]}."
    for package, requirement in SEPARATE.items():
        if re.search(rf"\b{package}\b", said):
            return (
                f"Packages that need {package} have an environment by themselves, with {requirement}. Name both: "
                f"lorarl env add {requirement} PACKAGE."
            )
    return "Check the names, name another version, or check the network."


def installed() -> list[str]:
    """Return the packages of this environment as requirements; lorarl itself is left out, since no index has it."""
    found = {(one.metadata["Name"], one.version) for one in metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name and name != "lorarl")


def record(prefix: Path, packages: Sequence[str]) -> None:
    """Note packages in an environment's folder, files and folders with their whole paths."""
    lines = dict.fromkeys([*recorded(prefix), *map(_whole, packages)])
    (prefix / ADDED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _whole(package: str) -> str:
    return str(path.resolve()) if (path := Path(package)).exists() else package


def recorded(prefix: Path) -> list[str]:
    """Return the packages that were added to an environment."""
    file = prefix / ADDED
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def add_again(say: Callable[[str], None]) -> None:
    """Install what was added before the environment was made again. A package that no longer fits is named."""
    for package in recorded(Path(sys.prefix)):
        try:
            add_packages(shlex.split(package) if separate_of([package]) else [package])
            say(f"installed {package} again, which `lorarl env add` had added")
        except LorarlError as error:
            say(f"{package}, which `lorarl env add` had added, is not there any more: {error}")
