"""Environments of packages and servers: each is played by a class with `reset` and `step`, as a user's own is."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from lorarl_trainer.rewards.worker import RefusedError

MODULES = {"textarena": "textarena", "skyrlGym": "skyrl_gym", "gymnasium": "gymnasium", "openEnv": "open_env"}
"""The module here that plays what a field of `spec.environment` names. A package's own has the same name."""
REQUIREMENTS = {"textarena": "textarena==0.7.4", "skyrl_gym": "skyrl-gym==0.4.0", "gymnasium": "gymnasium==1.4.0"}
"""The packages that are played, in the versions that these modules were written for."""


def class_of(world: tuple[str, str]) -> str:
    """Return the class `package.module:NAME` that plays what a field and a name select."""
    field, name = world
    return f"{__name__}.{MODULES[field]}:{name}"


def package(module: str, wanted: str) -> Any:
    """Return the package's module, for an environment of it.

    Raises:
        RefusedError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        requirement = REQUIREMENTS[module]
        got = f"{wanted}, but the package {requirement.partition('==')[0]} is not installed"
        if error.name != module:
            got = f"{wanted}, but {module} is installed without {error.name}"
        hint = f"Install it: lorarl env add {requirement}. In a cluster, add it to the trainer's image."
        raise RefusedError(got, hint) from error


def require_listed(wanted: str, names: Iterable[str], module: str) -> None:
    """Refuse a name that a package does not list. Raises RefusedError with the nearest one."""
    if wanted in (listed := sorted(names)):
        return
    near = get_close_matches(wanted, listed, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Name one of them, such as {', '.join(listed[:3])}."
    raise RefusedError(f"{wanted}, which is none of the {len(listed)} environments of {module}", hint)


def seeded(row: Mapping[str, Any]) -> int:
    """Return the seed of an episode. If its row has one, the global random numbers begin with that."""
    seed = row.get("seed")
    if not isinstance(seed, int):
        return random.getrandbits(31)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    return seed
