"""The source of reward functions that exist in this process alone, as in a notebook, as a module for other processes.

A function brings what it names: imports, plain values, and other functions and classes of the notebook.
"""

from __future__ import annotations

import ast
import inspect
import re
import symtable
import sys
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
        self._argument, self._seen, self._named = argument, set[int](), dict[str, Any]()

    def add(self, definition: Any, reward: Any) -> None:
        """Add a function or class that a reward uses, or is, after what it names."""
        if id(definition) in self._seen:
            return
        self._seen.add(id(definition))
        source, known = self._source(definition, reward), _globals_of(definition)
        if self._named.setdefault(written_name(definition), definition) is not definition:
            got = f"two functions that are defined as {written_name(definition)}"
            raise InputError(self._argument, got, "a different name for each", "Rename one where it is defined.")
        self._require_same_defaults(source, definition, known)
        for name in names_in(source):
            if name in known:
                self._add_name(name, known[name], definition, reward)
        self.definitions.append(source)

    def _add_name(self, name: str, value: Any, user: Any, reward: Any) -> None:
        if isinstance(value, ModuleType):
            self.imports[f"import {value.__name__} as {name}"] = None
        elif isinstance(value, FunctionType | type) and value.__module__ == user.__module__:
            self.add(value, reward)
            if written_name(value) != name:
                self.definitions.append(f"{name} = {written_name(value)}\n")
        elif place := _place_of(value):
            self.imports[f"from {place[0]} import {place[1]} as {name}"] = None
        elif isinstance(value, re.Pattern):
            self.imports["import re"] = None
            self.values[f"{name} = re.compile({value.pattern!r}, {value.flags})"] = None
        elif _is_plain(value):
            self.values[f"{name} = {value!r}"] = None
        else:
            got = f"{user.__name__}, which uses {name}, of type {type(value).__name__}, of this process"
            hint = f"Make {name} inside the function. Or: {_in_a_file(reward)}"
            raise InputError(self._argument, got, "a function that other processes can run", hint)

    def _source(self, definition: Any, reward: Any) -> str:
        if not isinstance(definition, FunctionType | type) or written_name(definition) == "<lambda>":
            is_lambda = isinstance(definition, FunctionType)
            got = "a lambda" if is_lambda else f"a value of type {type(definition).__name__}"
            raise InputError(self._argument, got, _EXPECTED, "Define it with def, at the top level of a cell.")
        named = definition.__name__
        if hasattr(definition, "__wrapped__"):  # its source is that of the function within
            got = f"{named}, which a decorator has wrapped"
            hint = f"Remove the decorator. Or: {_in_a_file(reward)}"
            raise InputError(self._argument, got, "a function without a wrapper", hint)
        if outer := getattr(getattr(definition, "__code__", None), "co_freevars", ()):
            got = f"{named}, which uses variables of the function around it ({', '.join(outer)})"
            raise InputError(self._argument, got, _EXPECTED, "Define it at the top level of a cell.")
        try:
            source = inspect.getsource(definition)
        except (OSError, TypeError):
            got = f"{named}, whose source is not known here"
            raise InputError(self._argument, got, _EXPECTED, _in_a_file(reward)) from None
        return f"if True:\n{source}" if source[:1].isspace() else source  # texts of several lines stay as they are

    def _require_same_defaults(self, source: str, definition: Any, known: Mapping[str, Any]) -> None:
        """Require that an argument's default that is a name, such as `w=w`, still stands for the same value."""
        if not isinstance(definition, FunctionType):
            return
        for argument, name in _named_defaults(source, definition):
            made = inspect.signature(definition).parameters[argument].default
            if (now := known.get(name, inspect.Parameter.empty)) is not made and now != made:
                got = f"{definition.__name__}, whose default {argument}={name} is not the {name} of this notebook"
                hint = f"Run its cell again, or write {argument}={made!r} there."
                raise InputError(self._argument, got, "a default that other processes can make", hint)


def _in_a_file(reward: Any) -> str:
    return f"Write it to a file my_reward.py and pass reward='my_reward:{reward.__name__}'."


def written_name(definition: Callable[..., Any]) -> str:
    """Return the name after `def` or `class`, which another one may have replaced in `__name__`."""
    return definition.__code__.co_name if isinstance(definition, FunctionType) else str(definition.__name__)


def _named_defaults(source: str, function: FunctionType) -> Iterator[tuple[str, str]]:
    """Yield each argument of a function whose default is written as a name, and that name."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    node = next(one for one in ast.walk(ast.parse(source)) if isinstance(one, kinds))
    plain = [*node.args.posonlyargs, *node.args.args]
    pairs = [
        *zip(plain[::-1], node.args.defaults[::-1], strict=False),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if isinstance(default, ast.Name):
            yield argument.arg, default.id


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
