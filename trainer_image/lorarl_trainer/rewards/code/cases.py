"""The tests of a row, in the forms that data sets have, and the program of a completion. Pure functions."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FORMS = (
    "a list of assertions (texts), a list of {input, output}, {inputs: [...], outputs: [...]}, or one text with "
    "assertions or with such JSON"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a program.

    Attributes:
        assertions: Python that runs after the program, and may use its names; None if its output is compared.
        input: what the program reads from standard input.
        output: what it should print; None if there are assertions.
    """

    assertions: str | None = None
    input: str = ""
    output: str | None = None


class CasesError(ValueError):
    """The column has no tests, or one that cannot run. Its argument says what it has."""


def cases_of(value: Any) -> list[Case]:
    """Return the tests of a row.

    Args:
        value: the row's column, in one of FORMS: those of MBPP (assertions), of APPS, TACO and LiveCodeBench
            (`inputs` and `outputs`), of CodeContests ({input, output}), or the JSON of any.

    Raises:
        CasesError: it has none of these forms, or no test.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    if isinstance(value, Mapping):
        value = _paired(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise CasesError(f"{type(value).__name__} {_brief(value)}")
    if not (cases := [_case(one) for one in value]):
        raise CasesError("no test")
    return cases


def _paired(value: Mapping[str, Any]) -> list[Any]:
    inputs, outputs = value.get("inputs", value.get("input")), value.get("outputs", value.get("output"))
    if value.get("fn_name"):
        raise CasesError(f"tests of the function {value['fn_name']}, by its arguments")
    if isinstance(inputs, str) and isinstance(outputs, str):
        return [{"input": inputs, "output": outputs}]
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise CasesError(f"an object with {', '.join(map(str, value)) or 'nothing'}")
    if len(inputs) != len(outputs):
        raise CasesError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    return [{"input": each, "output": output} for each, output in zip(inputs, outputs, strict=True)]


def _case(value: Any) -> Case:
    if isinstance(value, str) and value.strip():
        return Case(assertions=value)
    if isinstance(value, Mapping):
        given, expected = value.get("input", ""), value.get("output")
        if isinstance(given, str) and isinstance(expected, str):
            return Case(input=given, output=expected)
    raise CasesError(f"a test {_brief(value)}")


def require_python(cases: Sequence[Case]) -> None:
    """Refuse assertions that are no Python: no program could pass them. It takes some 20 microseconds each.

    Raises:
        CasesError: naming the first.
    """
    for case in cases:
        if what := _fault_of(case.assertions or ""):
            raise CasesError(f"a test that is not valid Python, {_brief(case.assertions)} ({what})")


@lru_cache(maxsize=4096)  # all completions of a row have the same tests
def _fault_of(assertions: str) -> str:
    """Return why a text is no Python; empty if it is."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of `is` with a literal, for example
            compile(assertions, "<test>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    return ""


_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = ("", "python", "py", "python3", "py3")


def program_of(completion: str) -> str:
    """Return the program in a completion: its last block of Python between ```; all of it if there is no block.

    A block that is cut off ends with the completion. Returns an empty text if there are only blocks of others.
    """
    blocks = [(found[1].lower(), found[2]) for found in _BLOCK.finditer(completion)]
    if not blocks:
        return completion
    return next((text for language, text in reversed(blocks) if language in _PYTHON), "")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
