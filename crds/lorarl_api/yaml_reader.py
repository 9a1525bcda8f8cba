"""YAML as Kubernetes reads it. Errors have line and column."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from lorarl_api.faults import Fault, ManifestError

TAG = "tag:yaml.org,2002:"


_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", list("yYnNtTfFoO")),
    ("int", r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|0[0-7_]*|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
)
"""The words and numbers of kubectl."""


def add_resolvers(reads: type[yaml.resolver.BaseResolver]) -> None:
    """Let a loader or a dumper of PyYAML know the words and numbers of kubectl."""
    for tag, pattern, first in _RESOLVERS:
        reads.add_implicit_resolver(f"{TAG}{tag}", re.compile(rf"^(?:{pattern})$"), first)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the words and numbers of kubectl.

    By itself PyYAML reads 1e-5 as a string, 12:30 as the number 750, and 2026-01-31 as a date.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own class attribute


add_resolvers(_Loader)


def read_documents(source: str | Path) -> list[Any]:
    """The non-empty documents of a file (`Path`) or text (`str`).

    Raises:
        ManifestError: The file cannot be read, or is not YAML.
    """
    name = str(source) if isinstance(source, Path) else "the manifest"
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    except OSError as error:
        raise ManifestError(
            [Fault(name, (error.strerror or str(error)).lower(), "a readable file", "Check the path.")]
        ) from error
    except UnicodeDecodeError as error:
        utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        got = "text in UTF-16" if utf16 else f"bytes that are not UTF-8 at {error.start}"
        hint = "Convert it: iconv -f UTF-16 -t UTF-8." if utf16 else "Save it as UTF-8."
        raise ManifestError([Fault(name, got, "text in UTF-8", hint)]) from error
    return [document for document in _parsed(text, name) if document is not None]


def read_value(text: str, name: str) -> Any:
    """One YAML value.

    Raises:
        ManifestError: It is not YAML, or more than one document. `name` says where the text is from.
    """
    values = _parsed(text, name)
    if len(values) > 1:
        raise ManifestError([Fault(name, f"{len(values)} YAML documents", "one value", "Remove the ---.")])
    return values[0] if values else None


def _parsed(text: str, name: str) -> list[Any]:
    try:
        loader = _Loader(text)
        try:
            values = []
            while loader.check_node():
                if (node := loader.get_node()) is not None:
                    values.append(_Values(loader).of(node))
            return values
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        raise ManifestError(
            [Fault(name, f"the character #x{error.character:04x}", "characters that YAML allows", "Remove it.")]
        ) from error
    except yaml.MarkedYAMLError as error:
        raise ManifestError([_syntax_fault(error, name)]) from error
    except RecursionError as error:
        raise ManifestError(
            [Fault(name, "lists or mappings nested too deeply", "a manifest", "See examples/ for one to start from.")]
        ) from error


def _syntax_fault(error: yaml.MarkedYAMLError, name: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    where = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
    problem = error.problem or error.context or "a syntax error"
    if isinstance(error, _Refused):
        return Fault(where, problem, error.expected, error.hint)
    tab = "found character '\\t'" in problem
    hint = "Indent with spaces, not tabs." if tab else "Correct the syntax there."
    return Fault(where, f"invalid YAML ({problem})", "valid YAML", hint)


class _Refused(yaml.MarkedYAMLError):
    """YAML that PyYAML accepts and Kubernetes does not."""

    def __init__(self, problem: str, mark: yaml.Mark, expected: str, hint: str) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.expected, self.hint = expected, hint


class _Values:
    """The Python values of a document's nodes. A node that an alias uses again is built once."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._done: dict[yaml.Node, Any] = {}
        self._open: set[yaml.Node] = set()

    def of(self, node: yaml.Node) -> Any:
        if node in self._done:
            return self._done[node]
        if node in self._open:
            raise _Refused(
                "an alias within its own anchor", node.start_mark, "a finite document", "Write the value out."
            )
        self._open.add(node)
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.of(inner) for inner in node.value]
        elif isinstance(node, yaml.ScalarNode):
            value = self._scalar(node)
        self._open.discard(node)
        self._done[node] = value
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise _Refused(
                    "a list or mapping as a key", key_node.start_mark, "a string as a key", "Write KEY: VALUE."
                )
            if key in keys and key != "<<":
                raise _Refused(f"the key {key} twice", key_node.start_mark, "each key once", "Remove one of the two.")
            keys.add(key)
        self._loader.flatten_mapping(node)
        # Keys are strings, as in JSON: `on:` is not a boolean.
        return {self._text(key_node): self.of(inner) for key_node, inner in node.value}

    def _text(self, node: yaml.ScalarNode) -> str:
        try:
            node.value.encode()
        except UnicodeEncodeError as error:
            raise _Refused(
                "an unpaired surrogate", node.start_mark, "whole characters", "Write the character itself."
            ) from error
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = self._text(node)
        try:
            match node.tag.removeprefix(TAG):
                case "bool":
                    return text.lower() in ("y", "yes", "true", "on")
                case "int":
                    return _integer(text.replace("_", ""))
                case "float":
                    return _number(text)
                case "merge":
                    return text
                case "str" | "null":
                    return self._loader.construct_object(node)
                case "binary" | "timestamp" as tag:
                    expected = "a text, a number, true, false or null"
                    hint = "Remove the tag, and put a text in quotes."
                    raise _Refused(f"the tag !!{tag}", node.start_mark, expected, hint)
                case _:
                    return self._loader.construct_object(node)
        except ValueError as error:
            raise _Refused(
                str(error),
                node.start_mark,
                f"a value of type {node.tag.removeprefix(TAG)}",
                "Correct it, or put it in quotes.",
            ) from error


def _integer(text: str) -> int:
    """0b101, 0o17, 017 (octal too), 0x1F or 15, with or without a sign."""
    digits = text.lstrip("+-").lower()
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2]) or (8 if digits.startswith("0") else 10)
    return int(digits, base) * (-1 if text.startswith("-") else 1)


def _number(text: str) -> int | float | str:
    number = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if math.isinf(number) and "inf" not in text.lower():
        return text  # 1e400, which is too large for a float
    # JSON, which Kubernetes uses internally, does not distinguish 1 and 1.0.
    return int(number) if number.is_integer() else number
