"""What NVIDIA's own tool says of a machine's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.devices.nvidia_smi import largest_gpu


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of nvidia-smi on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "nvidia-smi"


def says(tool: Path, text: str, code: int = 0) -> None:
    tool.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    tool.chmod(0o755)


def test_the_largest_gpu_is_taken_as_free(tool: Path) -> None:
    says(tool, "24564, 8.9, NVIDIA L4\n81559, 9.0, NVIDIA H100 80GB HBM3")
    assert largest_gpu() == Gpu(81559 << 20, 81559 << 20, "NVIDIA H100 80GB HBM3", (9, 0))


@pytest.mark.parametrize(("text", "code"), [("", 0), ("No devices were found", 0), ("[N/A], [N/A], MIG", 0), ("", 9)])
def test_a_driver_that_names_no_gpu_is_no_verdict(tool: Path, text: str, code: int) -> None:
    says(tool, text, code)
    assert largest_gpu() is None


def test_a_machine_without_the_tool_has_no_known_gpu(tool: Path) -> None:
    assert not tool.exists() and largest_gpu() is None
