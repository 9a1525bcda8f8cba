"""`lorarl env add`: more packages in this environment, such as those of a reward, without a change to what is there."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from importlib import metadata

from lorarl_trainer.environment.install import installer
from lorarl_trainer.errors import InputError


def add_packages(packages: Sequence[str], *, dry_run: bool = False) -> str:
    """Install packages, with every package that is installed now kept at its version.

    Args:
        packages: requirements as pip takes them: names, versions, files, folders or URLs.
        dry_run: only find out what would be installed.

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
        raise InputError(
            "PACKAGE",
            f"{' '.join(packages)}, which cannot be installed here:\n{ran.stderr.strip()}\n",
            "packages that fit the versions that lorarl needs",
            "Name another version, or check the network.",
        )
    return (ran.stdout + ran.stderr).strip()


def installed() -> list[str]:
    """Return the packages of this environment as requirements; lorarl itself is left out, since no index has it."""
    found = {(one.metadata["Name"], one.version) for one in metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name and name != "lorarl")
