"""Claims that are true of some machines name those machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.yaml"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_same_bytes_are_promised_on_a_cpu_alone(page: Path) -> None:
    """On a GPU, attention's backward pass adds up in no fixed order."""
    promises = [line for line in page.read_text().splitlines() if re.search(r"(?i)the same seed|byte for byte", line)]
    assert [line for line in promises if "CPU" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_job_starts_from_the_folder_of_an_adapter(page: Path) -> None:
    """A checkpoint's folder, in which the adapter's lies, is refused."""
    checkpoints = re.findall(r"initFrom[=:] ?\S*iter_\d+\S*", page.read_text())
    assert [uri for uri in checkpoints if not uri.endswith("/lora_adapter")] == []
