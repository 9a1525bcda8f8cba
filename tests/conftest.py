"""Shared by every tier."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.one_platform import ByPlatform

# A shell lets what it starts in the background ignore Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A GPU machine may lack hypothesis, which only unit tests use.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # On a busy machine an example or its data may take long, which is no fault of the code.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPlatform | None:
    """Keep files together that share a platform. Other ways of dealing tests out stay as they are."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.one_platform import ByPlatform

    return ByPlatform(config, log)
