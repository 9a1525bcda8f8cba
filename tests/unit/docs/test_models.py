"""The tables of models in the documents are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from lorarl_trainer.models.families import FAMILIES
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES
from lorarl_trainer.models.refused_families import REFUSED

ROOT = Path(__file__).parents[3]
REFUSALS = "### Families that are refused"
ROW = re.compile(r"^\| `((?!model_type)\w+)` \| (.*?) \|(.*)$", re.MULTILINE)


def rows(document: str, heading: str) -> list[tuple[str, str, str]]:
    """The rows below a heading whose first column is a `model_type`."""
    _, found, rest = (ROOT / document).read_text().partition(f"\n{heading}\n")
    assert found, f"{document} has no heading {heading}"
    return ROW.findall(rest.partition("\n#")[0])


def test_the_readme_names_the_families_that_work() -> None:
    told = [(kind, models) for kind, models, _ in rows("README.md", "## Models")]
    assert told == [(kind, family.models) for kind, family in FAMILIES.items()]


def test_the_readme_counts_the_families_of_fsdp() -> None:
    assert f"Transformers' own layers train {len(FSDP_FAMILIES)} more" in (ROOT / "README.md").read_text()


def test_each_family_that_works_has_its_figures() -> None:
    found = rows("docs/models.md", "## Families that work")
    assert {kind: models for kind, models, _ in reversed(found) if models} == {
        kind: family.models for kind, family in FAMILIES.items()
    }
    for *_, figures in found:
        trainer, vllm = re.findall(r"\d\.\de-\d\d", figures)
        assert max(float(trainer), float(vllm)) < 1e-5


def test_each_family_of_fsdp_has_its_figures() -> None:
    found = rows("docs/models.md", "### Families that only fsdp trains")
    assert [(kind, models) for kind, models, _ in found if kind not in FAMILIES] == [
        (kind, family.models) for kind, family in FSDP_FAMILIES.items()
    ]
    for _, shape, figures in found:
        trainer, vllm = re.findall(r"\d\.\de-\d\d", shape + figures)
        assert max(float(trainer), float(vllm)) < 1e-5


def test_each_family_that_is_refused_has_its_reason() -> None:
    told = {kind: [models, *rest.strip(" |").split(" | ")] for kind, models, rest in rows("docs/models.md", REFUSALS)}
    assert told == {kind: [one.models, one.why, one.instead] for kind, one in REFUSED.items()}


def test_no_family_is_both_taken_and_refused() -> None:
    assert not REFUSED.keys() & {*FAMILIES, *FSDP_FAMILIES}
