"""Cross-field rules. Each is written once, as CEL: the API server evaluates it from the CRD, and Python evaluates the same expression.

What an update may change (`Immutable`) the API server alone can tell: it knows the object as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel

# Kubernetes renames properties that are words of CEL itself: https://kubernetes.io/docs/reference/using-api/cel/#escaping
_CEL_WORDS = frozenset(
    [
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return"),
    ]
)


@dataclass(frozen=True)
class Rule:
    """What must hold between the fields of one object.

    Attributes:
        field: The field to mend, as a path from the object (`trainer.warmupSteps`).
        cel: The expression, true for a good object, which it sees as `self` with its defaults filled in. A property that is a word of CEL
            is written as Kubernetes escapes it: `self.__function__`.
        expected: What is expected, as the end of a sentence.
        hint: What the user can do.
    """

    field: str
    cel: str
    expected: str
    hint: str

    def __str__(self) -> str:
        """What the API server says of an object that breaks the rule."""
        return f"expected {self.expected}; {self.hint}"

    def as_validation(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": str(self), "fieldPath": f".{self.field}"}

    def holds(self, document: dict[str, Any]) -> bool:
        """Whether `document`, with its defaults and without nulls, keeps the rule.

        Raises:
            RuntimeError: The expression itself is wrong: it reads a field that may be absent, or is not a condition.
        """
        verdict = _compiled(self.cel).eval(data={"self": _escaped(document)}).plain_value()
        if not isinstance(verdict, bool):
            raise RuntimeError(f"the rule {self.cel!r} gives no verdict: {verdict}")
        return verdict


@dataclass(frozen=True)
class Immutable:
    """A field that stays as it was when the object was made.

    Attributes:
        field: The field, as a path from the object.
        cel: The transition rule, true where `self` has the field as `oldSelf` has it.
        hint: What the user can do instead.
        but: The parts of it that may change.
    """

    field: str
    cel: str
    hint: str
    but: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What the API server says of an update that changes the field."""
        return f"{self.field} is immutable{f' but for {" and ".join(self.but)}' if self.but else ''}; {self.hint}"

    def as_validation(self) -> dict[str, str]:
        """The transition rule as an entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": str(self), "fieldPath": f".{self.field}"}


def immutable(field: str, hint: str, *, optional: bool = False) -> Immutable:
    """The transition rule of a whole field; `optional` where it may be absent."""
    return Immutable(field, _same(field, optional), hint)


def immutable_but(field: str, group: type[BaseModel], but: Sequence[str], hint: str) -> Immutable:
    """The transition rules of all parts of the field `field`, a `group`, without those in `but` (as YAML writes them)."""
    parts = {part.alias or name: part for name, part in group.model_fields.items()}
    kept = [name for name in parts if name not in but]
    cel = " && ".join(
        f"({_same(f'{field}.{name}', not parts[name].is_required() and parts[name].default is None)})" for name in kept
    )
    return Immutable(field, cel, hint, tuple(but))


def _same(path: str, optional: bool) -> str:
    same = f"self.{path} == oldSelf.{path}"
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})" if optional else same


class Ruled(BaseModel):
    """A model with rules between its fields, and fields that no update may change."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    immutable: ClassVar[tuple[Immutable, ...]] = ()


def broken_rules(model: Ruled, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Rule]]:
    """Each rule that `model` or a model within it breaks, with the path of the object that breaks it: keys, and indices of lists."""
    if model.rules:
        document = model.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield from ((path, rule) for rule in model.rules if not rule.holds(document))
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        below = (*path, field.alias or name)
        if isinstance(value, Ruled):
            yield from broken_rules(value, below)
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, Ruled):
                    yield from broken_rules(entry, (*below, index))


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"__{key}__" if key in _CEL_WORDS else key: _escaped(inner) for key, inner in value.items()}
    return value


@cache
def _environment() -> Any:
    # Imported where it is used: whoever only names the models' types need not load protobuf.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # the package has stubs, but no py.typed

    return cel.NewEnv(variables={"self": cel.Type.DYN})


@cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)
