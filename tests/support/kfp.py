"""Kubeflow Pipelines' SDK, in a Python that has it: it cannot be installed beside vLLM."""

from __future__ import annotations

import os

import pytest

REQUIREMENT = "kfp==2.17.3"
VARIABLE = "LORARL_KFP_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")

needs_kfp = pytest.mark.skipif(
    not PYTHON, reason=f"needs {VARIABLE}, a Python of an environment with {REQUIREMENT} and lorarl[kubectl]"
)
