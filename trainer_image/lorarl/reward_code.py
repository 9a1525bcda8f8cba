"""The source of reward functions that exist in this process alone, as in a notebook, as a module for other processes.

A function brings what it names: imports, plain values, and other functions and classes of the notebook.
"""

from __future__ import annotations

import ast
import inspect
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from lorarl_trainer.errors import InputError

MODULE = "notebook_rewards"
"""Name of the module that is written."""
_EXPECTED = "a function `def score(prompt, completion, answer, row)`"
_HEADING = '"""Reward functions of a notebook, written by `lorarl.train`."""\n\nfrom __future__ import annotations\n\n'


def importable(function: Callable[..., Any]) -> str | None:
    """Return `module:function` of a function that other processes can import; None if only this one has it."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None)
    known = getattr(sys.modules.get(str(module)), name, None) is function
    return f"{module}:{name}" if known and module != "__main__" else None


def name_of(reward: str | Callable[..., Any], argument: str) -> str:
    """Return a reward by its type or place, which another process finds.

    Raises:
        InputError: it is a function that only this process has.
    """
    if isinstance(reward, str):
        return reward
    if place := importable(reward):
        return place
    named = getattr(reward, "__name__", type(reward).__name__)
    hint = _in_a_file(reward) if named.isidentifier() else "Define it with def, in a file."
    raise InputError(argument, f"{named}, which only this process has", "a type, or package.module:function", hint)


def module_of(functions: Sequence[Callable[..., Any]], argument: str) -> str:
    """Return the text of a module that has these functions, and all that they need.

    Raises:
        InputError: one cannot work outside this process.
    """
    parts = _Parts(argument)
    for function in functions:
        parts.add(function, function)
    return _HEADING + "\n".join([*parts.imports, *parts.values, *(f"\n\n{text}" for text in parts.definitions)])


class _Parts:
    """The lines of a module, in the order in which they have to come: a definition after those that it names."""

    def __init__(self, argument: str) -> None:
        self.imports: dict[str, None] = {}
        self.values: dict[str, None] = {}
        self.definitions: list[str] = []
        self._argument, self._seen = argument, set[int]()

    def add(self, definition: Any, reward: Any) -> None:
        """Add a function or class that a reward uses, or is, after what it names."""
        if id(definition) in self._seen:
            return
        self._seen.add(id(definition))
        source = self._source(definition, reward)
        for name in names_in(source):
            if name in (known := _globals_of(definition)):
                self._add_name(name, known[name], definition, reward)
        self.definitions.append(source)

    def _add_name(self, name: str, value: Any, user: Any, reward: Any) -> None:
        if isinstance(value, ModuleType):
            self.imports[f"import {value.__name__} as {name}"] = None
        elif isinstance(value, FunctionType | type) and value.__module__ == user.__module__:
            self.add(value, reward)
            if value.__name__ != name:
                self.definitions.append(f"{name} = {value.__name__}\n")
        elif place := _place_of(value):
            self.imports[f"from {place[0]} import {place[1]} as {name}"] = None
        elif isinstance(value, re.Pattern):
            self.imports["import re"] = None
            self.values[f"{name} = re.compile({value.pattern!r}, {value.flags})"] = None
        elif _is_plain(value):
            self.values[f"{name} = {value!r}"] = None
        else:
            got = f"{user.__name__}, which uses {name}, a {type(value).__name__} of this process"
            hint = f"Make {name} inside the function. Or: {_in_a_file(reward)}"
            raise InputError(self._argument, got, "a function that other processes can run", hint)

    def _source(self, definition: Any, reward: Any) -> str:
        named = getattr(definition, "__name__", "")
        if not isinstance(definition, FunctionType | type) or named == "<lambda>":
            got = "a lambda" if named == "<lambda>" else f"a {type(definition).__name__}"
            raise InputError(self._argument, got, _EXPECTED, "Define it with def, at the top level of a cell.")
        if outer := getattr(getattr(definition, "__code__", None), "co_freevars", ()):
            got = f"{named}, which uses variables of the function around it ({', '.join(outer)})"
            raise InputError(self._argument, got, _EXPECTED, "Define it at the top level of a cell.")
        try:
            return textwrap.dedent(inspect.getsource(definition))
        except (OSError, TypeError):
            got = f"{named}, whose source is not known here"
            raise InputError(self._argument, got, _EXPECTED, _in_a_file(reward)) from None


def _in_a_file(reward: Any) -> str:
    return f"Write it to a file my_reward.py and pass reward='my_reward:{reward.__name__}'."


def names_in(source: str) -> list[str]:
    """Return the global names that a definition reads. Annotations do not count: nothing evaluates them."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    whole = symtable.symtable(ast.unparse(tree), "reward", "exec")
    return sorted({symbol.get_name() for table in _tables(whole) for symbol in table.get_symbols() if _is_read(symbol)})


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _is_read(symbol: symtable.Symbol) -> bool:
    return symbol.is_referenced() and symbol.is_global()


def _globals_of(definition: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(definition, "__globals__", None) or vars(sys.modules[definition.__module__])
    return found


def _place_of(value: Any) -> tuple[str, str] | None:
    """Return module and name under which other processes import a value; None if they cannot."""
    module = getattr(value, "__module__", None) or ""
    name = getattr(value, "__name__", None) or getattr(value, "_name", None) or ""
    known = name and module != "__main__" and getattr(sys.modules.get(module), name, None) is value
    return (module, name) if known else None


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
