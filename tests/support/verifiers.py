"""Real tasksets of verifiers, which has a Python by itself: it cannot be installed beside vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REQUIREMENT = "verifiers==0.4.0"
VARIABLE = "LORARL_VERIFIERS_PYTHON"
TASKSETS = Path(__file__).with_name("tasksets")

needs_verifiers = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"needs {VARIABLE}, a Python of an environment with {REQUIREMENT}"
)
