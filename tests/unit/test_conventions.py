"""Limits that keep the code readable: the length of files and of test names, and what is at the trainer's top level."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 400
LONGEST_TEST_NAME = 70
MOST_TOP_LEVEL_FILES = 10
PACKAGES = ("crds", "operator", "trainer_image", "tools", "scripts")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """All Python files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip(f"this is not a git checkout: {listed.stderr.strip()}")
    return [path for path in map(ROOT.joinpath, listed.stdout.splitlines()) if path.exists()]


def test_no_python_file_is_too_long(files: list[Path]) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_test_name_is_too_long(files: list[Path]) -> None:
    """What does not fit into the name belongs into the docstring."""
    tests = [path for path in files if path.is_relative_to(ROOT / "tests")]
    names = {name for path in tests for name in re.findall(r"\bdef (test_\w+)\(", path.read_text())}
    assert {name: len(name) for name in names if len(name) > LONGEST_TEST_NAME} == {}


def test_the_trainers_top_level_has_few_files() -> None:
    """A newcomer reads them first; what is not part of the loop belongs into a package."""
    top = sorted(path.name for path in (ROOT / "trainer_image/lorarl_trainer").glob("*.py"))
    assert len(top) <= MOST_TOP_LEVEL_FILES, top


def test_each_public_method_is_documented_once() -> None:
    """By itself, by a base class, or by a protocol of ours that its class implements. Foreign bases have their own."""
    sources = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    trees = [ast.parse(source) for source in sources if not source.startswith("# ruff: noqa: D101")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    by_name = {each.name: each for each in classes}
    of_protocols = {name for each in classes if "Protocol" in bases(each) for name in methods(each, documented=True)}

    def inherits(name: str, of: ast.ClassDef) -> bool:
        return any(
            base not in {*by_name} - {of.name}
            or name in methods(by_name[base], documented=True)
            or inherits(name, by_name[base])
            for base in bases(of)
            if base != "Protocol"
        )

    missing = [
        f"{each.name}.{name}"
        for each in classes
        for name in methods(each, documented=False) - methods(each, documented=True)  # a property's setter has none
        if not each.name.startswith("_") and name not in of_protocols and not inherits(name, each)
    ]
    assert not missing, f"without a docstring: {', '.join(missing)}"


def bases(of: ast.ClassDef) -> list[str]:
    """The last parts of the names of its bases."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in of.bases]


def methods(of: ast.ClassDef, *, documented: bool) -> set[str]:
    """The names of its public methods that have a docstring, or have none."""
    own = [node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name for node in own if not node.name.startswith("_") and bool(ast.get_docstring(node)) is documented}
