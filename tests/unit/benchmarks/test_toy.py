"""Runs that a benchmark keeps are not made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toy import kept_runs, options, read_figures

WANTED = [{"seed": seed, "kind": kind} for seed in (0, 1) for kind in ("a", "b")]


def test_only_missing_runs_are_made_and_each_is_kept_at_once(tmp_path: Path) -> None:
    raw, made = tmp_path / "raw.json", []

    def make(seed: int, kind: str) -> dict[str, Any]:
        made.append((seed, kind))
        assert len(read_figures(raw, [])) == len(made) - 1
        return {"seed": seed, "kind": kind, "right": {"0": 0.5}}

    chosen = options("", raw).parse_args([])
    kept_runs(chosen, WANTED[:1], make)
    assert [run["kind"] for run in kept_runs(chosen, WANTED, make)] == ["a", "b", "a", "b"]
    assert made == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_rendering_makes_none(tmp_path: Path) -> None:
    chosen = options("", tmp_path / "raw.json").parse_args(["--render"])
    assert kept_runs(chosen, WANTED, lambda *_: {}) == []
