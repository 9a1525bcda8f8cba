"""Which runs `bench_gpu.py` makes on several GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import bench_gpu
from side_by_side.work import Work


class Recorded:
    """Takes the place of `Systems`, and keeps what is asked of lorarl."""

    started = 0.0

    def __init__(self, models: Path, *_: object) -> None:
        self.models = models
        self.runs: list[tuple[str, tuple[int, ...], int]] = []

    def prepare(self, gpus: list[int], *sizes: str) -> dict[str, Any]:
        for size in sizes:
            (self.models / size).mkdir()
        return {"machine": {"gpus": []}}

    def ours(self, size: str, gpus: tuple[int, ...], work: Work, settings: list[str]) -> dict[str, Any]:
        self.runs.append((size, tuple(gpus), work.prompts))
        return {"system": "lorarl", "size": size, "gpus": len(gpus), "steps": [{"seconds": 1.0}]}

    def close(self) -> None:
        pass


def runs(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[tuple[str, tuple[int, ...], int]]:
    """What is run with these options."""
    made: list[Recorded] = []

    def systems(*arguments: Any) -> Recorded:
        made.append(Recorded(*arguments))
        return made[0]

    monkeypatch.setattr(bench_gpu, "Systems", systems)
    out = folder / "out.json"
    command = ["bench_gpu.py", "--systems", "ours", "--models", str(folder), "--out", str(out), *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        bench_gpu.main()
    assert ended.value.code == 0
    assert len(json.loads(out.read_text())["runs"]) == len(made[0].runs)
    return made[0].runs


def test_any_number_of_gpus_does_the_same_step_and_as_many_times_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runs(tmp_path, monkeypatch, "--sizes", "7b", "--gpus", "1", "4", "8")
    of_four, of_eight = tuple(range(4)), tuple(range(8))
    assert found == [
        ("7b", (0,), 64),
        ("7b", of_four, 256),
        ("7b", of_four, 64),
        ("7b", of_eight, 512),
        ("7b", of_eight, 64),
    ]


def test_one_of_both_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = runs(tmp_path, monkeypatch, "--sizes", "7b", "--gpus", "2", "--several", "same")
    assert found == [("7b", (2, 3), 64)]


def test_no_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--gpus", "0"])
    with pytest.raises(SystemExit):
        bench_gpu.main()
    assert "--gpus: got 0, expected numbers from 1" in capsys.readouterr().err
