"""The paths and links in the documents exist, and a change to any module leads to the tests to run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lorarl_trainer.cli import main as lorarl

ROOT = Path(__file__).parents[3]
TRAINER = ROOT / "trainer_image/lorarl_trainer"
# The folders that a name in a table's first column may be relative to.
PACKAGES = (ROOT, TRAINER, ROOT / "operator/lorarl_operator")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("helm/*/*.md"), *ROOT.glob("tests/*.md")])
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
ROW = re.compile(r"^\| (.*?) \| (.*?) \|", re.MULTILINE)
TABLE = ROW.findall(CONTRIBUTING.partition("| you touch |")[2])
TOUCHED = {name.rstrip("/") for touched, _ in TABLE for name in re.findall(r"`([\w./]+)`", touched)}
RUN = {path for _, run in TABLE for path in re.findall(r"\btests/[\w./]+", run)}
PLACES = ROW.findall(CONTRIBUTING.partition("| to add |")[2].partition("\n\n")[0])
OWNERS = {
    "an algorithm": ("algorithms/registry.py", "crds/lorarl_api/v1alpha1/algorithm_types.py"),
    "a family of models": ("models/families.py", "models/fsdp_families.py", "tests/support/tiny_models.py"),
    "a kind of environment": ("rollout/episodes.py", "data/bridge.py", "crds/lorarl_api/v1alpha1/environment.py"),
    "a quantization": ("models/stored_weights.py", "kernels/formats.py", "engine/vllm/shared_base.py"),
    "a metric": ("losses/", "rollout/lockstep.py", "loop.py"),
    "an object store": ("crds/lorarl_api/v1alpha1/stores.py", "storage/credentials.py"),
    "a field of the manifest": ("checkpoint/identity.py", "tests/unit/contract/test_every_field.py"),
    "a reason why a job waits": ("operator/lorarl_operator/decide/reasons.py",),
    "a reason why an attempt ended": ("operator/lorarl_operator/decide/reasons.py", "errors.py"),
    "an option of the operator": ("operator/lorarl_operator/decide/settings.py",),
}
"""What a newcomer adds, and the files that their row must name: the lists that own it."""


def exists(name: str) -> bool:
    return any((folder / name).exists() for folder in PACKAGES)


def parts_of_the_trainer() -> set[str]:
    return {path.name for path in TRAINER.iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed")}


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_path_of_the_table_is_there() -> None:
    assert TOUCHED and RUN
    assert [name for name in TOUCHED if not exists(name)] == []
    assert [path for path in RUN if not (ROOT / path).exists()] == []


def test_every_part_of_the_trainer_is_in_the_table() -> None:
    """The operator is one row."""
    assert parts_of_the_trainer() - {name.split("/")[0] for name in TOUCHED} == set()


def test_every_test_is_in_the_table() -> None:
    """By its own path or by that of a folder around it."""
    tests = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py")]
    assert tests
    assert [str(test) for test in tests if not any(test.is_relative_to(path) for path in RUN)] == []


def test_every_place_to_add_something_is_there() -> None:
    places = {place for _, where in PLACES for place in re.findall(r"`([\w.]*[/.][\w./]*)`", where)}
    assert places
    assert [place for place in places if not exists(place)] == []


@pytest.mark.parametrize("what", OWNERS)
def test_the_owner_of_what_is_added_is_named(what: str) -> None:
    lines = [line for line in CONTRIBUTING.splitlines() if line.startswith(f"| {what}")]
    assert lines, f"no row says where to add {what}"
    assert [owner for owner in OWNERS[what] if f"`{owner}`" not in lines[0]] == []
    assert all(exists(owner) for owner in OWNERS[what])


def test_every_part_of_the_trainer_has_its_room_in_the_architecture() -> None:
    named = {name.split("/")[0] for name in re.findall(r"`([\w.]+/?)[\w./]*`", ARCHITECTURE)}
    assert parts_of_the_trainer() - named == set()


def test_the_floors_of_the_architecture_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["lorarl_trainer"])
    held = {room: number for number, rooms in enumerate(layers, 1) for room in re.findall(r"\w+", rooms)}
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", ARCHITECTURE, re.MULTILINE)
    shown = {room: int(floor) for floor, rooms in rows for room in re.findall(r"`(\w+)", rooms)}
    assert shown == held
    mixed = [number for number, rooms in enumerate(layers, 1) if ":" in rooms]
    (said,) = re.findall(r"may import each other only on the floors ([\d, and]+)\.", ARCHITECTURE)
    assert [int(number) for number in re.findall(r"\d+", said)] == mixed


def test_every_file_of_the_architecture_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))
    assert named
    assert [name for name in named if not exists(name)] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"index.md"}
    assert [page for page in sorted(pages) if f"]({page})" not in index] == []


def test_every_make_target_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:^|`|sudo )make ([a-z-]+)", path.read_text(), re.M)}
    assert named
    assert named - targets == set()


def test_every_lorarl_command_is_there() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:`|bin/)lorarl ([a-z]+)", path.read_text())}
    assert named
    assert named - set(lorarl.commands) == set()


def test_every_log_by_labels_is_whole() -> None:
    """By labels kubectl shows the last ten lines unless `--tail` says otherwise."""
    commands = [
        line for path in DOCUMENTS for line in path.read_text().splitlines() if re.match(r"kubectl logs\b.* -l ", line)
    ]
    assert commands
    assert [command for command in commands if "--tail=-1" not in command] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", document.read_text())
    local = [(document.parent / link if link else document, anchor) for link, anchor in links if "://" not in link]
    assert [str(path) for path, _ in local if not path.exists()] == []
    assert [f"{path.name}#{anchor}" for path, anchor in local if anchor and anchor not in anchors(path)] == []
