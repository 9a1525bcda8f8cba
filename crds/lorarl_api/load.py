"""From a file or text to a `LoRARLJob`, or to all its faults."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lorarl_api.faults import Fault, ManifestError, dotted, from_pydantic, from_rule, shown
from lorarl_api.hinted import rules_of_wrong_fields
from lorarl_api.other_kinds import other_kind
from lorarl_api.rules import broken_rules
from lorarl_api.v1alpha1 import API_VERSION, KIND, RULES_LATER, LoRARLJob
from lorarl_api.yaml_reader import read_documents, read_value

__all__ = ["Fault", "ManifestError", "documents", "faults", "load_job"]


def load_job(source: str | Path, overrides: Sequence[str] = (), reads: Collection[str] | None = None) -> LoRARLJob:
    """The job of a manifest that has exactly one.

    Args:
        source: A file (`Path`), or the YAML itself (`str`). Objects of other kinds are ignored.
        overrides: Assignments such as `spec.trainer.steps=5`, applied before validation. The value is YAML.
        reads: The paths of what the caller reads of the job, with all below them; None for everything. An assignment of
            anything else is refused, since nothing would come of it.

    Raises:
        ManifestError: The source cannot be read, has no job or several jobs, or the job has faults. The error has all
            of them.
    """
    jobs = documents(source)
    if len(jobs) > 1:
        raise ManifestError(
            [Fault("the manifest", f"{len(jobs)} {KIND} objects", "one", "Put each job into its own file.")]
        )
    document = jobs[0]
    assign(document, overrides)
    if reads is not None and (unread := [fault for one in overrides for fault in _unread(one, reads)]):
        raise ManifestError(unread)
    if found := faults(document):
        raise ManifestError(found)
    return job_of(document)


def job_of(document: Any) -> LoRARLJob:
    """The job of a parsed manifest in which `faults` has found none."""
    return LoRARLJob.model_validate(document, by_alias=True, by_name=False, context=RULES_LATER)


def documents(source: str | Path, kinds: Sequence[str] = (KIND,)) -> list[Any]:
    """The unchecked documents of jobs, or of other `kinds`, in a manifest.

    Without any, all its documents, so that their faults can be reported.

    Raises:
        ManifestError: The file cannot be read, is not YAML, is empty, or has only objects of lorarl's other kinds.
    """
    everything = read_documents(source)
    if not everything:
        raise ManifestError([Fault("the manifest", "nothing", f"a {KIND}", "See examples/ for one to start from.")])
    wanted = [document for document in everything if isinstance(document, dict) and document.get("kind") in kinds]
    if not wanted and (other := other_kind(everything, source)):
        raise ManifestError([other])
    return wanted or everything


def faults(document: Any, *, in_cluster: bool = False) -> list[Fault]:
    """All faults of a parsed manifest: those of its fields and, if the fields are valid, of the rules between them.

    Of fields that are not valid, the rules are those that they would break with what the hints say to write.

    `in_cluster`: the job can only run in a cluster, so that the rules count that hold only there.
    """
    if not isinstance(document, dict):
        return [
            Fault(
                "the manifest",
                shown(document),
                "a mapping with apiVersion, kind, metadata and spec",
                "See examples/ for one to start from.",
            )
        ]
    if identity := _identity(document):
        return identity
    try:
        job = job_of(document)
    except ValidationError as error:
        return [*from_pydantic(error), *rules_of_wrong_fields(document, error)]
    if numbers := list(_numbers(document, ())):
        return numbers
    return [from_rule(document, path, rule) for path, rule in broken_rules(job, in_cluster=in_cluster)]


def _identity(document: dict[Any, Any]) -> list[Fault]:
    """The faults of apiVersion and kind. An object of another kind needs no other message."""
    found = []
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if key not in document:
            near = difflib.get_close_matches(key.lower(), [str(other).lower() for other in document], n=1)
            found.append(
                Fault(key, "nothing", wanted, f"Add {key}: {wanted}" + (f" in place of {near[0]}." if near else "."))
            )
        elif document[key] != wanted:
            found.append(Fault(key, shown(document[key]), wanted, f"Write {key}: {wanted}, or name another file."))
    return found


def _numbers(value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    """The faults of numbers that an API server cannot keep. A field of a free form, such as a template's, has any."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, (*path, key))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield Fault(
            dotted(path), shown(value, path), "an integer of at most 64 bits", "Put it in quotes, if it is a text."
        )
    elif isinstance(value, float) and not math.isfinite(value):
        yield Fault(dotted(path), shown(value, path), "a finite number", "Put it in quotes, if it is a text.")


def assign(document: Any, overrides: Sequence[str]) -> None:
    """Apply assignments such as `spec.trainer.steps=5` to a parsed manifest, in place. The values are YAML.

    Raises:
        ManifestError: One is not an assignment, or its path leads through something that is no mapping.
    """
    for assignment in overrides:
        _assign(document, assignment)


def _unread(assignment: str, reads: Collection[str]) -> Iterator[Fault]:
    """The faults of an assignment of what is not read: of a mapping, all that is in it."""
    path, _, text = assignment.partition("=")
    for leaf, value in _leaves(path.strip(), read_value(text, f"--set {path}")):
        if not any(f"{leaf}.".startswith(f"{one}.") or f"{one}.".startswith(f"{leaf}.") for one in reads):
            wanted = f"a field that this command reads: {', '.join(sorted(reads))}"
            yield Fault(f"--set {leaf}", shown(value), wanted, "Leave it out, for nothing would come of it.")


def assigned(assignment: str) -> list[str]:
    """The paths of the fields that an assignment such as `spec.trainer.steps=5` sets: of a mapping, all that is in it.

    Raises:
        ManifestError: Its value is not YAML.
    """
    path, _, text = assignment.partition("=")
    return [leaf for leaf, _ in _leaves(path.strip(), read_value(text, f"--set {path}"))]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}", inner)


def _assign(document: Any, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise ManifestError(
            [Fault("--set", shown(assignment), "PATH=VALUE", "Write an assignment such as spec.trainer.steps=5.")]
        )
    if not text.strip():
        hint = f"Write a value, or {path}=null for the default. A variable of the shell may be unset."
        raise ManifestError([Fault(f"--set {path}", "nothing", "a value", hint)])
    if not isinstance(document, dict):
        return  # `faults` reports that.
    put(document, path.strip(), read_value(text, f"--set {path}"), f"--set {path}")


def put(document: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set the field at a path such as `spec.trainer.steps`, in place. `where` is the place of a fault, for people.

    Raises:
        ManifestError: The path leads through something that is no mapping.
    """
    keys, inner = path.split("."), document
    for depth, key in enumerate(keys[:-1], start=1):
        found = {} if inner.get(key) is None else inner[key]
        if not isinstance(found, dict):
            above = ".".join(keys[:depth])
            got = f"a path below {above}, which is not a mapping"
            raise ManifestError([Fault(where, got, "a path of fields", f"Set {above} itself.")])
        inner[key] = dict(found)  # A copy: another field may be a YAML alias of this one, and must not change.
        inner = inner[key]
    inner[keys[-1]] = value
