"""Every recipe of docs/cookbook.md, on a small job: the checks of all here, and two steps of each as long tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from run.jobs import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cookbook.md"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"```(yaml|python)\n(.*?)```", re.DOTALL)
MODULE = re.compile(r"# (\w+\.py)\n")
REPLACED = ("reward", "rewards", "algorithm")
"""Fields that take the place of what the job has; the others are added to it."""


@dataclass(frozen=True)
class Recipe:
    """A section of the page: what goes under `spec`, and the files beside the manifest."""

    title: str
    spec: Mapping[str, Any]
    files: Mapping[str, str]


def recipes() -> list[Recipe]:
    """Return the sections of the page."""
    parts = HEADING.split(PAGE.read_text())[1:]
    return [recipe(title, text) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def recipe(title: str, text: str) -> Recipe:
    """Return a section."""
    blocks = BLOCK.findall(text)
    (spec,) = [yaml.safe_load(block) for language, block in blocks if language == "yaml"]
    modules = [block for language, block in blocks if language == "python"]
    return Recipe(title, spec, {MODULE.match(block)[1]: block for block in modules})  # type: ignore[index]


def applied(job: Job, recipe: Recipe) -> None:
    """Change the job as the recipe says."""
    path = job.folder / "job.yaml"
    manifest = yaml.safe_load(path.read_text())
    spec = manifest["spec"]
    if {"reward", "rewards"} & set(recipe.spec) or recipe.spec.get("algorithm", {}).get("type") == "sft":
        del spec["reward"]
    if "mixture" in recipe.spec.get("data", {}):
        del spec["data"]["train"]
    for field, value in recipe.spec.items():
        spec[field] = value if field in REPLACED else {**spec.get(field, {}), **value}
    path.write_text(yaml.safe_dump(manifest))
    for name, text in recipe.files.items():
        (job.folder / name).write_text(text)
    tests = ["assert add(1, 2) == 3"]
    words = ("yes", "no", "one", "two", "red", "blue")
    job.write_rows({"prompt": f"say {word}", "answer": word, "tests": tests} for word in words)
    held_out = {"prompt": "say on", "answer": "on", "tests": tests}
    (job.folder / "held_out.jsonl").write_text(json.dumps(held_out) + "\n")


RECIPES = recipes()
OF_THESE_ROWS = ("warning: a made-up completion scores higher than", "warning: every completion got 0.")
"""Rewards that do not look at these rows' answers."""


def test_there_are_ten_recipes_at_least() -> None:
    assert len(RECIPES) >= 10
    assert len({recipe.title for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_passes_every_check_that_needs_no_worker(
    tmp_path: Path, base: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lorarl_trainer.dry_run.dry_run import dry_run

    job = Job(tmp_path / "job", base)
    applied(job, recipe)
    monkeypatch.chdir(job.folder)
    code = dry_run(Path("job.yaml"), None, [])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    found = [line for line in printed.out.splitlines() if line.startswith("warning: ")]
    assert all(line.startswith(OF_THESE_ROWS) for line in found), found
    ending = "The warnings above do not stop a run" if found else "Everything that needs no worker is in order"
    assert f"{ending}. Start it with `lorarl run`" in printed.out


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_trains(tmp_path: Path, base: Path, recipe: Recipe) -> None:
    job = Job(tmp_path / "job", base)
    applied(job, recipe)
    ended = job.run("trainer.steps=2", "trainer.warmupSteps=0")
    assert ended.code == 0, ended
    assert ended.summary["state"] == "succeeded"
