"""Cross-field rules. Each is written once, as a CEL expression.

The API server evaluates the expression from the CRD, and Python evaluates the same expression. Only the API server can
check what an update may change (`Immutable`), because it knows the previous object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# Kubernetes renames properties that are reserved words of CEL:
# https://kubernetes.io/docs/reference/using-api/cel/#escaping
_CEL_WORDS = frozenset(
    [
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return"),
    ]
)


@dataclass(frozen=True)
class Rule:
    """A condition on the fields of one object.

    Attributes:
        field: The field to correct, as a path from the object (`trainer.warmupSteps`).
        cel: The expression, true for a valid object. `self` is the object with its defaults. A property that is a
            reserved word of CEL is written as Kubernetes escapes it: `self.__function__`.
        must: What the field must do, as a verb phrase after "must": `divide rollout.promptsPerStep`.
        hint: What the user can do, as a sentence.
    """

    field: str
    cel: str
    must: str
    hint: str

    def __str__(self) -> str:
        """The API server's message about an object that breaks the rule."""
        return f"must {self.must}. {self.hint}"

    def as_validation(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": str(self), "fieldPath": f".{self.field}"}

    def holds(self, document: dict[str, Any]) -> bool:
        """Whether `document` keeps the rule. It must have its defaults, and no nulls.

        Raises:
            RuntimeError: The expression is wrong: it reads a field that may be absent, or is not a condition.
        """
        return self.holds_in(activation_of(document))

    def holds_in(self, activation: Any) -> bool:
        """`holds` of a document that was converted once for many rules, by `activation_of`."""
        verdict = _compiled(self.cel).eval(activation).plain_value()
        if not isinstance(verdict, bool):
            raise RuntimeError(f"the rule {self.cel!r} returns no boolean: {verdict}")
        return verdict


@dataclass(frozen=True)
class Immutable:
    """A field that no update may change.

    Attributes:
        field: The field, as a path from the object.
        cel: The transition rule, true if the field is the same in `self` and `oldSelf`.
        hint: What the user can do instead, as a sentence.
        mutable: The parts of it that may change.
        unless: When it may change all the same, as a clause after "only"; empty for never.
    """

    field: str
    cel: str
    hint: str
    mutable: tuple[str, ...] = ()
    unless: str = ""

    def __str__(self) -> str:
        """The API server's message about an update that changes the field."""
        if self.unless:
            return f"{self.field} may change only {self.unless}. {self.hint}"
        exception = f", except {_and([f'{self.field}.{part}' for part in self.mutable])}" if self.mutable else ""
        return f"{self.field} is immutable{exception}. {self.hint}"

    def as_validation(self) -> dict[str, str]:
        """The transition rule as an entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": str(self), "fieldPath": f".{self.field}"}


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def immutable(field: str, hint: str, *, optional: bool = False) -> Immutable:
    """The transition rule of a whole field. `optional` says that it may be absent."""
    return Immutable(field, _same(field, optional), hint)


def immutable_except(field: str, group: type[BaseModel], mutable: Sequence[str], hint: str) -> Immutable:
    """The transition rule of all parts of `field`, a `group`, except those in `mutable` (as YAML writes them)."""
    parts = {part.alias or name: part for name, part in group.model_fields.items()}
    kept = [name for name in parts if name not in mutable]
    cel = " && ".join(f"({_same(f'{field}.{name}', _optional(parts[name]))})" for name in kept)
    return Immutable(field, cel, hint, tuple(mutable))


def fixed_unless(free: str, unless: str, field: str, hint: str, *, optional: bool = False) -> Immutable:
    """The transition rule of a whole field that may change while `free` is true. `optional`: it may be absent."""
    return Immutable(field, f"({free}) || ({_same(field, optional)})", hint, unless=unless)


def parts_fixed_unless(
    free: str, unless: str, field: str, group: type[BaseModel], parts: Sequence[str], hint: str
) -> list[Immutable]:
    """The transition rules of some parts of `field`, a `group`, that may change while `free` is true."""
    fields = {part.alias or name: part for name, part in group.model_fields.items()}
    return [
        Immutable(
            f"{field}.{name}", f"({free}) || ({_same(f'{field}.{name}', _optional(fields[name]))})", hint, (), unless
        )
        for name in parts
    ]


def _optional(field: FieldInfo) -> bool:
    return not field.is_required() and field.default is None


def _same(path: str, optional: bool) -> str:
    same = f"self.{path} == oldSelf.{path}"
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})" if optional else same


class Ruled(BaseModel):
    """A model with rules between its fields, and with fields that no update may change."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    cluster_rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules that hold in a cluster only. The API server evaluates them, and Python where a kind exists only there."""
    immutable: ClassVar[tuple[Immutable, ...]] = ()


def broken_rules(
    model: Ruled,
    path: tuple[str | int, ...] = (),
    *,
    in_cluster: bool = False,
    wanted: Callable[[tuple[str | int, ...]], bool] = lambda _: True,
) -> Iterator[tuple[tuple[str | int, ...], Rule]]:
    """Each rule that `model` or a model within it breaks; with `in_cluster`, also those that hold in a cluster only.

    `wanted`: says of the path of a rule's field whether the rule is tried.
    The path of keys and list indices leads to the object that breaks the rule.
    """
    known = (*model.rules, *(model.cluster_rules if in_cluster else ()))
    if rules := [rule for rule in known if wanted((*path, *rule.field.split(".")))]:
        document = model.model_dump(mode="json", by_alias=True, exclude_none=True)
        seen = activation_of(document)
        yield from ((path, rule) for rule in rules if not rule.holds_in(seen))
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        below = (*path, field.alias or name)
        if isinstance(value, Ruled):
            yield from broken_rules(value, below, in_cluster=in_cluster, wanted=wanted)
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, Ruled):
                    yield from broken_rules(entry, (*below, index), in_cluster=in_cluster, wanted=wanted)


def activation_of(document: dict[str, Any]) -> Any:
    """Return what expressions see as `self`. Its conversion takes longer than an expression."""
    return _environment().Activation(data={"self": _escaped(document)})


def _escaped(value: Any) -> Any:
    match value:
        case dict():
            return {_property(key): _escaped(inner) for key, inner in value.items()}
        case list():
            return [_escaped(inner) for inner in value]
        case str():
            return _whole(value)
        case int() if not -(2**63) <= value < 2**63:
            return math.inf if value > 0 else -math.inf  # CEL's integers have 64 bits. `faults` refuses this one.
    return value


def _property(name: str) -> str:
    return f"__{name}__" if name in _CEL_WORDS else _whole(name)


def _whole(text: str) -> str:
    """Return a text without U+0000, where cel-expr-python ends it: two names that begin alike would be the same."""
    return text.replace("\0", "\ufffd")


@cache
def _environment() -> Any:
    # Imported here, so that code which only uses the models' types need not load protobuf.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # the package has stubs, but no py.typed

    return cel.NewEnv(variables={"self": cel.Type.DYN})


@cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)
