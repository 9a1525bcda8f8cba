"""The faults of a manifest as messages: the field, what was got, what was expected, and the fix."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lorarl_api.mending import mended
from lorarl_api.redaction import redacted
from lorarl_api.rules import Rule
from lorarl_api.schema import Schema, in_words, schema_at

Path = tuple[str | int, ...]
"""A place in a document: keys of mappings and indices of lists."""


@dataclass(frozen=True)
class Fault:
    """One thing to fix.

    Its text is `path: got ..., expected ... Hint.` or, for a rule, `path: got ..., must ... Hint.`

    Attributes:
        path: The field (`spec.adapter.rank`), or the file if it is not valid YAML.
        got: The present value. A secret is never shown.
        expected: What the field takes; with `verb` "must", what it must do.
        hint: What to do, as a sentence.
        verb: "must" for a rule between fields, otherwise "expected".
    """

    path: str
    got: str
    expected: str
    hint: str
    verb: Literal["expected", "must"] = "expected"

    def __str__(self) -> str:
        return f"{self.path}: got {self.got}, {self.verb} {self.expected}. {self.hint}"


class ManifestError(ValueError):
    """A manifest that cannot be used. Its text has one line per fault."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """Store the faults, at least one."""
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in faults))


def dotted(path: Sequence[str | int]) -> str:
    """A path in the usual notation: `spec.adapter.targetModules[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the manifest"


def from_rule(document: Any, path: Path, rule: Rule) -> Fault:
    """The fault of an object at `path` that breaks `rule`."""
    field = (*path, *rule.field.split("."))
    value = _value_at(document, field)
    hint = _QUOTES_HINT if isinstance(value, str) and value[:1] in _TYPOGRAPHIC else rule.hint
    return Fault(dotted(field), shown(value, field), rule.must, hint, "must")


def from_pydantic(error: ValidationError, whole: Schema | None = None) -> list[Fault]:
    """The faults that Pydantic found, in the order of the fields. `whole`: as `schema_at` takes it."""
    return [fault for details in error.errors(include_url=False) for fault in _sentences(details, whole)]


def _sentences(details: ErrorDetails, whole: Schema | None) -> Iterator[Fault]:
    path, got = details["loc"], details["input"]
    kind, schema = details["type"], schema_at(details["loc"], whole)
    if kind == "extra_forbidden" or schema is None:
        yield _unknown_key(path, whole)
    elif kind == "metadata_keys":
        yield from (_unknown_key((*path, key), whole) for key in details["ctx"]["unknown"])
    elif kind == "label_keys":
        for key in details["ctx"]["refused"]:
            yield Fault(
                dotted(path),
                f"the key {shown(key)}",
                "[PREFIX/]NAME, of letters, digits, dots, dashes and underscores",
                "Write a key such as example.com/name.",
            )
    elif kind == "missing":
        yield Fault(dotted(path), "nothing", in_words(schema), _add(path, schema))
    elif kind == "pattern":
        yield Fault(dotted(path), shown(got, path), details["msg"], "Correct the pattern, and put it in single quotes.")
    else:
        yield Fault(dotted(path), shown(got, path), in_words(schema), _change(got, path, schema))


def _unknown_key(path: Path, whole: Schema | None) -> Fault:
    *above, key = path
    known = list((schema_at(above, whole) or {}).get("properties", {}))
    meant = nearest(str(key), known)
    got = "an unknown key"
    expected = f"one of {', '.join(known)}" if known else "no such key"
    if not above and schema_at(("spec", key), whole):
        return Fault(dotted(path), got, expected, f"Move it below spec: spec.{key}.")
    if meant:
        return Fault(dotted(path), got, expected, f"Did you mean {meant}?")
    if str(key).isdecimal():
        return Fault(dotted(path), got, expected, "Write a number without a comma: it separates entries here.")
    return Fault(dotted(path), got, expected, "Remove it.")


def nearest(key: str, known: Sequence[str]) -> str | None:
    """The known key that was probably meant, whatever its spelling; None if none is near."""
    near = difflib.get_close_matches(_bare(key), [_bare(name) for name in known], n=1, cutoff=0.6)
    return next((name for name in known if near and _bare(name) == near[0]), None)


def _bare(name: str) -> str:
    """A key without the differences between spellings: learning_rate, learning-rate, learningRate."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def example_of(schema: Schema) -> Any:
    """A value that the field takes."""
    if "properties" in schema and not schema.get("examples"):
        return {name: example_of(schema["properties"][name]) for name in schema.get("required", [])}
    if schema.get("default") not in (None, []):
        return schema["default"]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("enum"):
        return schema["enum"][0]
    return schema.get("minimum", schema.get("default"))


def _add(path: Path, schema: Schema) -> str:
    return f"Add it, for example {path[-1] if path else 'spec'}: {in_yaml(example_of(schema))}."


_TYPOGRAPHIC = tuple("“”„‘’‚«»")
_QUOTES_HINT = 'Use plain quotes (") in place of typographic ones, as a word processor writes them.'


def _change(got: Any, path: Path, schema: Schema) -> str:
    """What to do about a value that a field does not take. A value that the hint names is one that it takes."""
    if isinstance(got, str) and got[:1] in _TYPOGRAPHIC:
        return _QUOTES_HINT
    if (meant := mended(got, schema)) is not None:
        return _write(got, meant, path)
    if hint := schema.get("hint"):
        return str(hint)
    if "uri" in schema.get("properties", {}) and isinstance(got, str):
        example = {"uri": example_of(schema["properties"]["uri"])}
        return f"Write {{uri: {in_yaml(redacted(got))}}} with a scheme, for example {in_yaml(example)}."
    if isinstance(got, str) and got in schema.get("properties", {}).get("type", {}).get("enum", ()):
        return f"Write {{type: {got}}}."
    if "function" in schema.get("properties", {}) and isinstance(got, str):
        return f"Write {{function: {in_yaml(redacted(got))}}}."
    if "enum" in schema and isinstance(got, str) and (near := _near(got, schema["enum"])):
        # Letters in another order are likelier than other letters, and difflib ranks them the same.
        return f"Did you mean {next((name for name in near if sorted(name) == sorted(got.lower())), near[0])}?"
    if isinstance(got, str) and ":" in schema.get("pattern", "") and (hint := _function_hint(got, schema["pattern"])):
        return hint
    example = example_of(schema)
    return "Correct it." if example is None else f"Use a value such as {in_yaml(example)}."


def _near(got: str, names: Sequence[str]) -> list[str]:
    """The names that a text is probably a misspelling of. Short words have three letters in common by chance."""
    return difflib.get_close_matches(got.lower(), names, cutoff=0.7)


def _write(got: Any, meant: Any, path: Path) -> str:
    """Say that `meant` was meant. What people write is shown without secrets."""
    if isinstance(got, bool):
        return "Put it in quotes: YAML reads an unquoted y, n, yes, no, on, off, true or false as a boolean."
    if isinstance(meant, str) and isinstance(got, int | float) and meant == str(got):
        return "Put it in quotes, so that YAML reads a string."
    if isinstance(meant, str) and isinstance(got, dict):
        return f"Write the name alone: {in_yaml(meant)}."
    if isinstance(meant, str) and isinstance(got, str) and re.search("[A-Za-z]", got):
        return f"Write {in_yaml(meant)}."
    if isinstance(meant, str):
        return f"Add a unit: {in_yaml(meant)}."
    if isinstance(got, str) and not isinstance(meant, list):
        return "Remove the quotes."
    if isinstance(meant, list):
        return f"Write a list: {in_yaml([redacted(str(one)) if isinstance(one, str) else one for one in meant])}."
    shown_ = {key: "VALUE" if isinstance(got, list) else value for key, value in meant.items()}
    return f"Write names with their values: {path[-1]}: {in_yaml(shown_)}."


def _function_hint(got: str, pattern: str) -> str:
    """What to do about a name that is almost `package.module:function`; empty where that is not clear."""
    module, colon, function = got.partition(":")
    if not colon and not module.endswith(".py") and "/" not in module:
        module, _, function = module.rpartition(".") if "." in module else (module, "", "")
    named = module.rpartition("/")[2].removesuffix(".py")
    plain = re.sub(r"[-\s]", "_", named)
    meant = f"{plain}:{function or 'score'}"
    if not re.fullmatch(pattern, meant):
        return ""
    if plain != named:
        return f"Rename the file to {plain}.py: a module's name has no dash or space. Then write {meant}."
    return f"Name its module and its function: {meant}."


_PLAIN = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null|[-+]?[0-9][0-9_.]*(?:e[-+]?[0-9]+)?|0x[0-9a-f]+|0[ob][0-7]+|[-+]?\.(?:inf|nan))$)"
    r"[A-Za-z0-9_./:-]*[A-Za-z_/][A-Za-z0-9_./:-]*(?<!:)"
)
"""Texts that YAML reads as such without quotes."""


def in_yaml(value: Any) -> str:
    """A value on one line, in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {in_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(in_yaml(inner) for inner in value) + "]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    text = json.dumps(value)
    # YAML 1.1 takes an exponent without a point for a string.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _value_at(document: Any, path: Path) -> Any:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


_LONGEST_SHOWN = 80


def shown(value: Any, path: Path = ()) -> str:
    """A short description of a value of a manifest. It never shows a secret."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        size = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        return f"a {kind} with {size}" if value else f"an empty {kind}"
    if any(str(step).lower().endswith(("secret", "token", "password", "key")) for step in path[-2:]):
        return "a value that is not shown here"
    if isinstance(value, bool | int | float):
        text = json.dumps(value) if not isinstance(value, int) or abs(value) < 10**40 else "an enormous integer"
        return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
    text = json.dumps(redacted(str(value)), ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f'{text[:_LONGEST_SHOWN]}..." ({len(str(value))} characters)'
