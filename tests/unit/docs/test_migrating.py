"""The pages for users of other systems name fields that exist, and their script and its manifest are one job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lorarl.job import asked
from lorarl_api.load import load_job
from lorarl_api.schema import schema_at
from lorarl_api.v1alpha1 import LoRARLJobSpec

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs/from_trl.md", ROOT / "docs/migrating.md"]
TRL = PAGES[0].read_text()
SCRIPTS = re.findall(r"^```python\n(.*?)^```", TRL, re.M | re.S)
(MANIFEST,) = re.findall(r"^```yaml\n(.*?)^```", TRL, re.M | re.S)
PARTS = [field.alias or name for name, field in LoRARLJobSpec.model_fields.items()]
FIELD = re.compile(rf"((?:{'|'.join(PARTS)})(?:\.[a-zA-Z]\w*|\.\*)+)(?:$|[: ])")
OURS = ("field", "lorarl", "here")
"""Headings of the columns that name our fields."""


def fields(text: str) -> Iterator[str]:
    """The paths of fields in the tables of a page."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        heading, _, *rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in table.splitlines()]
        ours = [number for number, name in enumerate(heading) if name.strip() in OURS]
        spans = [span for row in rows for number in ours for span in re.findall(r"`([^`]+)`", row[number])]
        yield from (found[1] for span in spans if (found := FIELD.match(span)))


def exists(path: str) -> bool:
    """Whether the contract has a field; an entry of a list has the fields that are named below the list."""
    at: tuple[Any, ...] = ("spec",)
    for part in path.replace("data.*", "data.train").split("."):
        at = (*at, part) if schema_at((*at, part)) else (*at, 0, part)
    return schema_at(at) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_field_of_a_page_is_there(page: Path) -> None:
    assert [path for path in fields(page.read_text()) if not exists(path)] == []


def test_the_fields_of_the_tables_are_found() -> None:
    found = set(fields(TRL))
    assert {"rollout.promptsPerStep", "adapter.targetModules", "algorithm.dpo.beta", "data.evals.samples"} <= found
    assert len(found) > 60
    assert not exists("algorithm.grpo.beta") and not exists("rollout.promptPerStep")


def test_the_script_and_the_manifest_are_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the reward and the rows, which the script has itself."""
    monkeypatch.chdir(tmp_path)
    job = named(SCRIPTS[1], "job")
    rows = [{"prompt": "1 + 1", "answer": "2"}]
    here, there = asked(job, reward="exact", data=rows).job.spec, load_job(MANIFEST).spec
    for part in ("model", "adapter", "algorithm", "rollout", "trainer", "checkpoint", "cluster"):
        assert getattr(here, part) == getattr(there, part), part


def test_both_rewards_of_the_page_score_alike() -> None:
    theirs, ours = (named(script, "reward") for script in SCRIPTS)
    texts, right = ["2", " 2 ", "3", ""], ["2", "2", "2", "2"]
    scores = [ours("1 + 1", text, answer, {}) for text, answer in zip(texts, right, strict=True)]
    assert theirs(texts, right) == scores == [1.0, 1.0, 0.0, 0.0]


def test_the_script_sets_what_trl_s_does() -> None:
    """Prompts per step are TRL's completions per optimizer step by its completions per prompt."""
    trl = dict(re.findall(r"^    (\w+)=([\w.\-]+),$", SCRIPTS[0], re.M))
    spec = load_job(MANIFEST).spec
    batch = int(trl["per_device_train_batch_size"]) * int(trl["gradient_accumulation_steps"])
    assert spec.rollout.prompts_per_step * spec.algorithm.effective_group_size == batch
    assert spec.algorithm.effective_group_size == int(trl["num_generations"])
    assert spec.rollout.max_response_tokens == int(trl["max_completion_length"])
    assert (spec.trainer.steps, spec.trainer.learning_rate) == (int(trl["max_steps"]), float(trl["learning_rate"]))


def named(script: str, name: str) -> Any:
    """What a script calls so: a function or a value. The rest of it does not run."""
    (node,) = [
        node
        for node in ast.parse(script).body
        if getattr(node, "name", None) == name or name in [ast.unparse(at) for at in getattr(node, "targets", [])]
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), "<page>", "exec"), names)
    return names[name]
