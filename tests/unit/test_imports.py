"""No circle of imports, those for types and those inside functions included: of files, and of the trainer's rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "trainer_image/lorarl_trainer"
PACKAGES = [ROOT / "crds/lorarl_api", ROOT / "operator/lorarl_operator", TRAINER, ROOT / "trainer_image/lorarl"]


def test_no_file_imports_itself_through_others() -> None:
    for package in PACKAGES:
        assert circle_of(imports_of(package)) is None


def test_no_room_of_the_trainer_imports_itself_through_others() -> None:
    rooms: dict[str, set[str]] = {}
    for module, imported in imports_of(TRAINER).items():
        rooms.setdefault(room(module), set()).update(map(room, imported))
    assert circle_of({one: others - {one} for one, others in rooms.items()}) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import made.second", "import made.first"),
        (
            "from made.second import B",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made import first",
        ),
        ("from made import second", "def late():\n    from made.first import A"),
    ],
)
def test_a_circle_is_found(tmp_path: Path, first: str, second: str) -> None:
    package = tmp_path / "made"
    package.mkdir()
    for name, text in (("__init__", ""), ("first", first), ("second", second), ("third", "from made import first")):
        (package / f"{name}.py").write_text(text)
    assert set(circle_of(imports_of(package)) or ()) == {"made.first", "made.second"}


def circle_of(imports: Mapping[str, set[str]]) -> list[str] | None:
    """One circle, if there is any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def imports_of(package: Path) -> dict[str, set[str]]:
    """The modules of a package that each of its modules imports."""
    modules = {module_of(path, package): path for path in package.rglob("*.py")}
    return {
        module: {found for name in imported(path) if (found := nearest(name, modules)) and found != module}
        for module, path in modules.items()
    }


def module_of(path: Path, package: Path) -> str:
    """The name by which a file is imported."""
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """What a file imports, as module or as a name of one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def nearest(name: str, modules: Mapping[str, Path]) -> str | None:
    """The module that a name is, or is of; None if it is of another package."""
    parent = name.rpartition(".")[0]
    return name if name in modules else parent if parent in modules else None


def room(module: str) -> str:
    """The folder or file below the package's own that a module is in."""
    return ".".join(module.split(".")[:2])
